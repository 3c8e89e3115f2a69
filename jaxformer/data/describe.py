"""What `--dry_run` says about the data."""

import itertools

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.mixture import MixedRows
from jaxformer.data.objectives import Row
from jaxformer.data.open import Data
from jaxformer.data.packing import RowSource
from jaxformer.data.streams import RowStream
from jaxformer.data.tasks.rows import TaskRows

SAMPLED = 1000  # rows of a mixture of streams


def describe(data: Data, cfg: RunConfig) -> dict[str, str]:
    """Named facts in the order to print them, the last a decoded row of the first batch."""
    facts = {"vocabulary": f"{data.tokenizer.vocab_size:,} tokens ({data.tokenizer.kind})"}
    if isinstance(data.train, RowStream):
        row = _first_row(data.train)
        facts |= _of_stream(data.train, data.validation, cfg)
    else:
        row = data.train.row(0, 0)
        facts |= _of_rows(data.train, data.validation, cfg, row)
    if cfg.data.source == "images":
        shape = " x ".join(map(str, row["tokens"].shape))
        facts["vocabulary"] = f"none: {shape} numbers an image"
        facts["its class"] = data.classes[int(row["targets"])]
        return facts
    ids = row["tokens"][row["segment_ids"] > 0]
    decode = data.tokenizer.decode
    if data.classes:
        some = ", ".join(data.classes[:8]) + (", …" if len(data.classes) > 8 else "")
        facts["classes"] = f"{len(data.classes)}: {some}"
    if "source" in row:
        facts["sample source"] = repr(decode(row["source"][row["source_segment_ids"] > 0]))
    facts["sample row"] = repr(decode(ids))
    first = " ".join(map(repr, map(data.tokenizer.token, ids[:12].tolist())))
    facts["its tokens"] = first + " …" * (len(ids) > 12)
    if np.ndim(row["targets"]) == 0:
        facts["its class"] = data.classes[int(row["targets"])]
    return facts


def _of_rows(train: RowSource, validation: RowSource, cfg: RunConfig, row: Row) -> dict[str, str]:
    what = "texts" if np.ndim(row["targets"]) == 0 else "tokens"
    facts = {
        f"training {what}": f"{train.num_tokens:,} an epoch",
        f"validation {what}": f"{validation.num_tokens:,}",
        "training rows": f"{len(train):,} of {len(row['segment_ids'])} tokens an epoch",
        "validation rows": f"{len(validation):,}",
        "batches": f"{len(train) / cfg.train.batch_size:,.1f} an epoch",
    }
    if isinstance(train, TaskRows):
        del facts[f"training {what}"]  # lengths are drawn
        if train.is_endless:
            facts["training rows"] = f"of {len(row['tokens'])} tokens, new ones for ever"
            del facts["batches"]
    if isinstance(train, MixedRows):
        parts = zip(train.names, train.counts, train.sources, strict=True)
        facts["mixture"] = "; ".join(
            f"{name} {count / len(train):.1%} ({count:,} rows an epoch, it has {len(source):,})"
            for name, count, source in parts
        )
    return facts


def _of_stream(train: RowStream, validation: RowSource, cfg: RunConfig) -> dict[str, str]:
    window = cfg.data.stream.window
    order = f"shuffled {window:,} documents at a time" if window else "in their order"
    facts = {
        "training documents": f"streamed, {order}; how many there are is not known",
        "validation tokens": f"{validation.num_tokens:,}",
        "validation rows": f"{len(validation):,}",
    }
    if train.weights:
        drawn = np.bincount(
            [train.source_of(r) for r in range(SAMPLED)], minlength=len(train.weights)
        )
        facts["mixture"] = "; ".join(
            f"{path} {weight / sum(train.weights):.1%} (of the first {SAMPLED:,} rows {count:,})"
            for path, weight, count in zip(cfg.data.paths, train.weights, drawn, strict=True)
        )
    return facts


def _first_row(train: RowStream) -> Row:
    ((window, number),) = itertools.islice(train.rows(), 1)
    return train.make(*window, 0, number)
