"""What a model consists of, in numbers, without building it."""

import math
from typing import Any

import jax

from jaxformer.config import ModelConfig
from jaxformer.models import abstract_params, build


def parameter_table(cfg: ModelConfig) -> list[dict[str, Any]]:
    """Parameters by part of the model, with a total: rows of module, parameters and float32 bytes.

    Layers are added up by their parts (`layers/attention`), however many there are.
    """
    counts: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_params(build(cfg))):
        names = [key.key for key in path if not isinstance(key.key, int)]
        module = "/".join(names[:2] if names[0] == "layers" else names[:1])
        counts[module] = counts.get(module, 0) + math.prod(leaf.shape)
    counts["total"] = sum(counts.values())
    return [{"module": m, "parameters": n, "bytes": 4 * n} for m, n in counts.items()]
