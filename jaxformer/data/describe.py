"""What `--dry_run` says about the data."""

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.open import Data
from jaxformer.data.tasks.rows import TaskRows


def describe(data: Data, cfg: RunConfig) -> dict[str, str]:
    """Named facts in the order to print them, the last a decoded row of the first batch."""
    row = data.train.row(0, 0)
    ids = row["tokens"][row["segment_ids"] > 0]
    decode = data.tokenizer.decode
    what = "texts" if np.ndim(row["targets"]) == 0 else "tokens"
    width, count = len(row["tokens"]), len(data.train)
    facts = {
        "vocabulary": f"{data.tokenizer.vocab_size:,} tokens ({data.tokenizer.kind})",
        f"training {what}": f"{data.train.num_tokens:,} an epoch",
        f"validation {what}": f"{data.validation.num_tokens:,}",
        "training rows": f"{count:,} of {width} tokens an epoch",
        "validation rows": f"{len(data.validation):,}",
        "batches": f"{count / cfg.train.batch_size:,.1f} an epoch",
    }
    if isinstance(data.train, TaskRows):
        del facts[f"training {what}"]  # lengths are drawn
        if data.train.is_endless:
            facts["training rows"] = f"of {width} tokens, new ones for ever"
            del facts["batches"]
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
