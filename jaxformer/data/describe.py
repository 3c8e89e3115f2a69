"""What `--dry_run` says about the data."""

from jaxformer.config import RunConfig
from jaxformer.data.open import Data


def describe(data: Data, cfg: RunConfig) -> dict[str, str]:
    """Named facts in the order to print them, the last a decoded row of the first batch."""
    row = data.train.row(0, 0)
    ids = row["tokens"][row["segment_ids"] > 0]
    return {
        "vocabulary": f"{data.tokenizer.vocab_size:,} tokens ({data.tokenizer.kind})",
        "training tokens": f"{data.train.num_tokens:,} an epoch",
        "validation tokens": f"{data.validation.num_tokens:,}",
        "training rows": f"{len(data.train):,} of {cfg.data.length} tokens an epoch",
        "validation rows": f"{len(data.validation):,}",
        "batches": f"{len(data.train) / cfg.train.batch_size:,.1f} an epoch",
        "sample row": repr(data.tokenizer.decode(ids)),
        "its tokens": " ".join(map(repr, map(data.tokenizer.token, ids[:12].tolist()))) + " …",
    }
