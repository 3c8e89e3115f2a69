"""Evaluators against sums in NumPy, for any batch size and mesh."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from flax import nnx

from configs import base
from jaxformer.config import MeshConfig, RunConfig
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.objectives import causal_lm
from jaxformer.evaluation import evaluators
from jaxformer.evaluation.evaluators import EVALUATORS, Total, evaluate_batches, validation
from jaxformer.generation import Greedy, generate
from jaxformer.sharding import make_mesh
from tests import builders

VOCAB, LENGTH, EOS = 12, 9, 2
CFG = builders.model_config(vocab_size=VOCAB, num_layers=1)
MODEL = builders.make_model(CFG)
GRAPHDEF, STATE = nnx.split(MODEL)
PARAMS = nnx.to_pure_dict(STATE)
EXACT = EVALUATORS["exact_match"]


class Rows:
    """Rows held in a list."""

    num_tokens, num_bytes, fingerprint = 0, 0, ""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def row(self, epoch, index):
        return self.rows[index]


def random_rows(count: int) -> Rows:
    """Two documents a row and padding at the end."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        first, real = int(rng.integers(1, 5)), int(rng.integers(6, LENGTH + 2))
        index = np.arange(LENGTH + 1)
        segments = np.where(index < first, 1, np.where(index < real, 2, 0))
        rows.append(causal_lm(rng.integers(0, VOCAB, LENGTH + 1), segments))
    return Rows(rows)


ROWS = random_rows(7)


def totals(names, source=ROWS, batch_size=4, **kw) -> dict[str, Total]:
    chosen = tuple(EVALUATORS[name] for name in names)
    return evaluate_batches(chosen, GRAPHDEF, PARAMS, evaluation_batches(source, batch_size, **kw))


def logits(row) -> np.ndarray:
    inputs = (row["tokens"], row["segment_ids"], row["positions"])
    return np.asarray(MODEL(*(np.asarray(x)[None] for x in inputs)).logits[0], np.float64)


def test_perplexity_is_the_mean_over_supervised_tokens():
    losses, right = [], []
    for row in ROWS.rows:
        logits_LV = logits(row)
        log_normaliser_L = np.log(np.exp(logits_LV).sum(-1))
        for i in np.flatnonzero(row["weights"]):
            losses.append(log_normaliser_L[i] - logits_LV[i, row["targets"][i]])
            right.append(logits_LV[i].argmax() == row["targets"][i])
    found = totals(["perplexity"])
    assert found["loss"].weight == found["accuracy"].weight == len(losses)
    assert found["loss"].mean == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["accuracy"].mean == pytest.approx(np.mean(right))
    assert 0 < found["accuracy"].mean < 1


@pytest.mark.parametrize("batch_size", [1, 3, 7, 8])
def test_results_do_not_depend_on_the_batch_size(batch_size):
    names = ["perplexity", "exact_match"]
    found, wanted = totals(names, batch_size=batch_size), totals(names)
    assert found.keys() == wanted.keys()
    for name, total in wanted.items():
        assert found[name].weight == total.weight
        assert found[name].sum == pytest.approx(total.sum, rel=1e-6)


def test_nothing_to_evaluate_is_zero():
    blank = Rows([{name: np.zeros_like(x) for name, x in ROWS.rows[0].items()}])
    found = totals(["perplexity", "exact_match"], blank)
    assert {name: total.mean for name, total in found.items()} == {
        "loss": 0.0,
        "accuracy": 0.0,
        "exact_match": 0.0,
    }
    assert evaluate_batches((EXACT,), GRAPHDEF, PARAMS, []) == {}


def test_teacher_forced_exact_match_is_that_of_greedy_generation():
    """Prompts of ragged lengths with the model's own answers, some of them spoiled anywhere."""
    rng, count = np.random.default_rng(1), 24
    prompts = rng.integers(3, VOCAB, (count, 5)).astype(np.int32)
    lengths = rng.integers(1, 6, count)

    def answer(prompts, lengths):
        return generate(
            MODEL,
            prompts,
            lengths,
            max_new_tokens=LENGTH - 4,
            sampler=Greedy(),
            key=jax.random.key(0),
            eos_id=EOS,
        )

    own = answer(prompts, lengths)
    rows, expected = [], []
    for b in range(count):
        wanted = own.tokens[b, : own.lengths[b]].copy()
        if b % 3 == 1:
            place = rng.integers(len(wanted))
            wanted[place] = (wanted[place] + 1) % VOCAB
        if b % 3 == 2 and len(wanted) > 1:  # stops too soon; no target goes on after its end
            wanted = wanted[:-1]
        tokens = np.zeros(LENGTH + 2, np.int32)
        tokens[: lengths[b]] = prompts[b, : lengths[b]]
        end = lengths[b] + len(wanted)
        tokens[lengths[b] : end] = wanted
        row = causal_lm(tokens, (np.arange(LENGTH + 2) < end).astype(np.int32))
        row["weights"][: lengths[b] - 1] = 0  # the prompt is not supervised
        rows.append(row)
        out = own.tokens[b, : len(wanted)]
        expected.append(bool(len(out) == len(wanted) and (out == wanted).all()))
    found = totals(["exact_match"], Rows(rows))["exact_match"]
    assert found == (sum(expected), count)
    assert 0 < sum(expected) < count


def test_agreement_compares_the_two_forms_after_the_prefix():
    rows = [dict(row) for row in ROWS.rows]
    expected = []
    for b, row in enumerate(rows):
        place, correct, wrong = b % 5, (3 * b) % VOCAB, (3 * b + 5) % VOCAB
        logits_V = logits(row)[place]
        expected.append(logits_V[correct] > logits_V[wrong])
        row |= {"verb_index": place, "correct": correct, "wrong": wrong, "counted": True}
    rows.append(rows[expected.index(True)] | {"counted": False})
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    found = evaluate_batches((EVALUATORS["agreement"],), GRAPHDEF, PARAMS, [batch])
    assert found == {"agreement": (sum(expected), len(expected))}
    assert 0 < sum(expected) < len(expected)


def run_config(batch_size: int, max_rows: int = 0) -> RunConfig:
    config = base.get_config()
    config.eval.update(batch_size=batch_size, max_rows=max_rows)
    return RunConfig.from_config_dict(config)


def test_validation_for_the_training_loop():
    wanted = totals(["perplexity"])
    evaluate = validation(run_config(3), GRAPHDEF, ROWS, None)
    found = evaluate(PARAMS)
    assert found == {
        "loss": pytest.approx(wanted["loss"].mean, rel=1e-6),
        "accuracy": pytest.approx(wanted["accuracy"].mean),
        "tokens": wanted["loss"].weight,
    }
    assert isinstance(found["tokens"], int)
    compiled = evaluators._sums._cache_size()
    other = evaluate(jax.tree.map(lambda x: 2 * x, PARAMS))
    assert other["loss"] != found["loss"]
    assert evaluators._sums._cache_size() == compiled
    some = validation(run_config(3, max_rows=2), GRAPHDEF, ROWS, None)(PARAMS)
    assert some["tokens"] == sum(row["weights"].sum() for row in ROWS.rows[:2])


def test_validation_on_a_mesh_equals_one_device():
    mesh = make_mesh(MeshConfig(data=4, fsdp=2))
    assert mesh is not None
    found = validation(run_config(3), GRAPHDEF, ROWS, mesh)(PARAMS)
    wanted = validation(run_config(3), GRAPHDEF, ROWS, None)(PARAMS)
    assert found["tokens"] == wanted["tokens"]
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    assert math.isclose(found["accuracy"], wanted["accuracy"])


def test_randomized_positions_are_drawn_by_the_row_whatever_the_batch_size():
    """And anew in no evaluation: the loss of a checkpoint is one number."""
    drawn = builders.model_config(
        vocab_size=VOCAB, num_layers=1, **{"position.source.kind": "randomized"}
    )
    graphdef = builders.graphdef(drawn)
    chosen = (EVALUATORS["perplexity"],)
    losses = [
        evaluate_batches(chosen, graphdef, PARAMS, evaluation_batches(ROWS, size))["loss"].mean
        for size in (2, 7)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    contiguous = totals(["perplexity"])["loss"].mean
    assert losses[0] != pytest.approx(contiguous, rel=1e-3)


def test_exact_match_of_classes_of_whole_texts_counts_texts():
    cfg = builders.model_config(
        architecture="encoder", vocab_size=VOCAB, num_layers=1, **{"head.kind": "sequence"}
    )
    cfg = dataclasses.replace(cfg, head=dataclasses.replace(cfg.head, num_classes=3))
    model = builders.make_model(cfg)
    tokens_BL = np.random.default_rng(5).integers(3, VOCAB, (5, 4)).astype(np.int32)
    ones_BL = np.ones_like(tokens_BL)
    best_B = np.asarray(model(tokens_BL, ones_BL).logits.argmax(-1))
    batch = {"tokens": tokens_BL, "segment_ids": ones_BL, "positions": 0 * ones_BL}
    batch["positions"] = np.arange(4, dtype=np.int32)[None].repeat(5, 0)
    batch["targets"] = np.where(np.arange(5) < 3, best_B, (best_B + 1) % 3).astype(np.int32)
    batch["weights"] = np.array([1, 1, 1, 1, 0], np.float32)
    graphdef, state = nnx.split(model)
    found = evaluate_batches((EXACT,), graphdef, nnx.to_pure_dict(state), [batch])
    assert found["exact_match"] == (3.0, 4.0)
