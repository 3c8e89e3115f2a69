"""Rows made without data look like those of data: every objective, against rows of files."""

import numpy as np
import pytest

from configs import agreement, banking77, masked_lm, multi30k, text, thucnews
from configs.lengths import copy
from jaxformer.config import RunConfig
from jaxformer.data import open_data
from jaxformer.data.blank import blank_batch
from jaxformer.data.loader import Loader

LINES = [f"a line of number {i}" for i in range(40)]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(LINES * 5))
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{x},{x[-1]}\n" for x in LINES))
    (tmp_path / "tags.tsv").write_text(
        "text\tlabel\n" + "".join(f"{x}\t{'n ' * 4}m\n" for x in LINES)
    )
    return tmp_path


CASES = {
    "agreement": (agreement, {}),
    "task": (copy, {}),
    "causal": (text, {"data.path": "a.txt", "data.tokenizer.vocab_size": 300}),
    "prefix": (
        text,
        {
            "data.path": "a.txt",
            "objective.kind": "prefix_lm",
            "data.tokenizer.vocab_size": 300,
        },
    ),
    "masked": (masked_lm, {"data.path": "a.txt"}),
    "pairs": (
        multi30k,
        {"data.path": "a.txt", "data.target_path": "a.txt", "data.tokenizer.vocab_size": 300},
    ),
    "class": (banking77, {"data.path": "a.csv", "data.label_field": ""}),
    "characters": (
        thucnews,
        {
            "data.path": "a.csv",
            "data.source": "csv",
            "data.label_field": "",
            "data.columns": "",
        },
    ),
    "tags": (
        banking77,
        {
            "data.path": "tags.tsv",
            "data.source": "tsv",
            "data.label_field": "",
            "objective.kind": "token_classification",
            "model.head.kind": "token",
            "model.head.pooling": "first",
            "data.tokenizer.kind": "word",
            "data.tokenizer.vocab_size": 0,
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_blank_batches_have_the_shapes_of_real_ones(name, files):
    module, changes = CASES[name]
    made = module.get_config()
    changes = {
        field: str(files / value) if field.endswith("path") and value else value
        for field, value in changes.items()
    }
    made.update_from_flattened_dict({"train.batch_size": 3} | changes)
    cfg = RunConfig.from_config_dict(made)
    real = Loader(open_data(cfg, None).train, 3, 0).batch(0)
    shapes = lambda batch: {n: (np.shape(x), np.asarray(x).dtype) for n, x in batch.items()}  # noqa: E731
    assert shapes(blank_batch(cfg)) == shapes(real)
