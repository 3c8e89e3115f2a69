"""Runs of text classifiers beside TF-IDF and logistic regression, on the same examples.

    python benchmarks/text_classification.py WORKDIR [WORKDIR …]

Each run's training examples train the baseline, and its validation rows test both: they should be
a test set that nothing was tuned on. The baseline's C is tuned on a tenth of the training examples,
and its features are words and pairs of words, or where the run's tokens are characters, characters
and pairs of them; of words, pieces of words too. Needs the extra `oracle`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from jaxformer import load
from jaxformer.command import OK, guard
from jaxformer.config import RunConfig
from jaxformer.data import changed_sources, open_data, source_fingerprints
from jaxformer.data.columns import Row
from jaxformer.data.examples import read_examples
from jaxformer.data.loader import evaluation_batches
from jaxformer.errors import UserError
from jaxformer.evaluation.evaluators import EVALUATORS, Total, evaluate_batches
from jaxformer.evaluation.report import markdown
from jaxformer.evaluation.statistics import wilson

STRENGTHS = (1.0, 4.0, 16.0, 64.0)  # C, the inverse of the penalty
WORDS = {
    "words, 1–2": {"ngram_range": (1, 2)},
    "characters within words, 2–5": {"analyzer": "char_wb", "ngram_range": (2, 5)},
}
CHARACTERS = {"characters, 1–2": {"analyzer": "char", "ngram_range": (1, 2)}}


class Baseline(NamedTuple):
    """Logistic regression on TF-IDF: the C that was chosen, and examples it gets right."""

    strength: float
    right: Total


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Text classifiers beside TF-IDF.")
    parser.add_argument("workdir", nargs="+", help="a run of a text classifier")
    rows, seen = [], set()
    for workdir in parser.parse_args(argv).workdir:
        run = load(workdir)
        if run.config.objective.kind != "sequence_classification":
            what = f"is a run of {run.config.objective.kind}"
            raise UserError(f"workdir {workdir}", what, "give runs of sequence_classification")
        split = split_of(run.config)
        if split not in seen:
            seen.add(split)
            examples = read_examples(run.config)
            features = CHARACTERS if run.tokenizer.kind == "char" else WORDS
            for name, settings in features.items():
                found = baseline(examples["train"], examples["validation"], settings)
                what = f"TF-IDF of {name}, C = {found.strength:g}"
                rows.append(line(split[0], "logistic regression", what, found.right))
        size = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(run.model)))
        what = f"step {run.step:,}, {size:,} parameters"
        rows.append(line(split[0], str(workdir), what, accuracy(run, workdir)))
    print(markdown(rows), end="")
    return OK


def split_of(cfg: RunConfig) -> tuple[Any, ...]:
    """Equal for runs that train and validate on the same examples."""
    data = cfg.data
    return data.path, data.validation_path, data.held_out, data.split_seed


def line(data: str, classifier: str, what: str, right: Total) -> dict[str, Any]:
    low, high = wilson(right.sum, right.weight)
    return {
        "data": data,
        "classifier": classifier,
        "of": what,
        "accuracy %": f"{100 * right.mean:.2f}",
        "95 % interval": f"{100 * low:.1f} – {100 * high:.1f}",
        "tested on": f"{right.weight:,.0f}",
    }


def accuracy(run: Any, workdir: str) -> Total:
    """What a run gets right of its validation rows."""
    cfg, data = run.config, open_data(run.config, Path(workdir))
    if data.train.fingerprint != run.data:
        where = changed_sources(cfg.data, run.sources, source_fingerprints(data.train))
        raise UserError(where, "has changed since this run was trained", "restore it")
    graphdef, state = nnx.split(run.model)
    batches = evaluation_batches(data.validation, cfg.eval.batch_size)
    evaluators = (EVALUATORS["classification"],)
    return evaluate_batches(evaluators, graphdef, nnx.to_pure_dict(state), batches)["accuracy"]


def baseline(train: list[Row], test: list[Row], settings: dict[str, Any]) -> Baseline:
    """Tunes C on a tenth of `train`, then fits all of it: the smallest C of those that tie."""
    is_held_out = np.zeros(len(train), bool)
    order = np.argsort(np.random.Philox(key=[0, 1]).random_raw(len(train)), kind="stable")
    is_held_out[order[: len(train) // 10]] = True
    held_out = [row for row, held in zip(train, is_held_out, strict=True) if held]
    kept = [row for row, held in zip(train, is_held_out, strict=True) if not held]
    scores = [count_right(kept, held_out, settings, C).sum for C in STRENGTHS]
    best = STRENGTHS[int(np.argmax(scores))]
    return Baseline(best, count_right(train, test, settings, best))


def count_right(train: list[Row], test: list[Row], settings: dict[str, Any], C: float) -> Total:
    """Fits TF-IDF and the regression to `train`."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, **settings)
    features = vectorizer.fit_transform([text for text, _ in train])
    model = LogisticRegression(C=C, max_iter=1000).fit(features, [label for _, label in train])
    guesses = model.predict(vectorizer.transform([text for text, _ in test]))
    labels = np.array([label for _, label in test])
    return Total(float((guesses == labels).sum()), float(len(labels)))


if __name__ == "__main__":
    sys.exit(guard(main, debug=False))
