"""Checkpoints of a run: Orbax behind our names.

A checkpoint STEP holds `state` (a TrainState as nested dicts of arrays, keyed by path), `meta`
(JSON: resolved config, loader, version, fingerprints of tokenizer and data, validation loss) and
the sums of all its files. Saving is asynchronous and atomic: a killed save leaves a temporary
folder, never half a checkpoint. Reading starts with the sums, so that damage is told from a bug.
Restoring is strict: every path, shape and dtype must be the one saved, and arrays land on the
shardings of the target, so a run may continue on another mesh.
"""

from jaxformer.checkpoint.folder import Unreadable
from jaxformer.checkpoint.store import Checkpoints

__all__ = ["Checkpoints", "Unreadable"]
