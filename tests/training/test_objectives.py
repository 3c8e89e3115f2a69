"""Every objective through the training step and the evaluators."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxformer import sharding
from jaxformer.config import MeshConfig
from jaxformer.data.objectives import (
    Masking,
    causal_lm,
    classification,
    masked_lm,
    prefix_lm,
    seq2seq,
    tagging,
)
from jaxformer.evaluation.classification import macro_f1
from jaxformer.evaluation.evaluators import validation
from jaxformer.losses import cross_entropy
from jaxformer.models import build, forward
from jaxformer.training.loop import train
from tests.training import tiny
from tests.training.test_loop import At, Killed, kill, lines, saved

LENGTH, VOCAB, CLASSES = tiny.LENGTH, tiny.VOCAB, 3
TEXT = {"data__source": "text", "data__path": "a.txt"}
ENCODER = TEXT | {"model__architecture": "encoder"}
CSV = ENCODER | {"data__source": "csv", "model__head__num_classes": CLASSES}
SMOOTHED = {"objective__label_smoothing": 0.2, "objective__smoothing": "others"}
CONFIGS: dict[str, dict[str, Any]] = {
    "prefix_lm": TEXT,
    "masked_lm": ENCODER,
    "seq2seq": tiny.SEQ2SEQ,
    "sequence_classification": CSV | {"model__head__kind": "sequence"},
    "token_classification": CSV | {"model__head__kind": "token"},
}
ORDINARY = np.arange(VOCAB) >= 4
MASKING = Masking(0.3, 0.8, 0.1, 3, ORDINARY, np.flatnonzero(ORDINARY))


def config(kind, **changes):
    return tiny.config(**(CONFIGS[kind] | {"objective__kind": kind} | changes))


@dataclasses.dataclass(frozen=True)
class Rows:
    """Ragged random rows of one objective, whose answers can be learned from the tokens."""

    kind: str
    size: int = 11
    num_tokens: int = 0
    num_bytes: int = 0
    fingerprint: str = ""

    def __len__(self) -> int:
        return self.size

    def row(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([epoch, index])
        ids = rng.integers(4, VOCAB, rng.integers(3, LENGTH + 1))
        padded, real = np.zeros(LENGTH + 1, int), np.arange(LENGTH + 1) < len(ids)
        padded[real] = ids
        words = rng.integers(0, 2**63, (3, LENGTH)).astype(np.uint64)
        if self.kind == "prefix_lm":
            return prefix_lm(causal_lm(padded, real.astype(int)), words[0])
        if self.kind == "masked_lm":
            return masked_lm(padded[:-1], real[:-1].astype(int), words, MASKING)
        if self.kind == "seq2seq":
            cuts = ids[:2], ids[2:]
            return seq2seq(list(cuts), [np.array([1, *ids[:2], 2])] * 2, LENGTH, LENGTH)
        if self.kind == "sequence_classification":
            return classification(ids, ids[:1] % CLASSES, LENGTH)
        return tagging(ids, np.where(ids % 2, ids % CLASSES + 1, 0), LENGTH)


def batch(kind, step=0, size=8):
    rows = [Rows(kind).row(step, i) for i in range(size)]
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return stacked | {"rows": np.arange(size, dtype=np.int32)}


def logits(cfg, params, batch):
    graphdef, _ = nnx.split(build(cfg.model))
    return jax.jit(lambda p: forward(nnx.merge(graphdef, p), batch).logits)(params)


@pytest.mark.parametrize("kind", CONFIGS)
def test_it_learns_and_its_loss_is_never_smoothed(kind):
    cfg = config(kind, **SMOOTHED, schedule__peak_value=0.03)
    program, one = tiny.program(cfg), batch(kind)
    supervised = logits(cfg, program.state.params, one), one["targets"], one["weights"]
    plain, weight = cross_entropy(*supervised)
    smooth, _ = cross_entropy(*supervised, label_smoothing=0.2, smoothing="others")
    state, first = program.step(program.state, one)
    assert first["weight"] == weight == one["weights"].sum()
    np.testing.assert_allclose(first["loss"], plain, rtol=1e-5)
    np.testing.assert_allclose(first["total"], smooth / weight, rtol=1e-5)
    assert abs(first["total"] - plain / weight) > 1e-4
    for _ in range(11):
        state, last = program.step(state, one)
    assert last["loss"] < 0.8 * first["loss"]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("kind", ["seq2seq", "sequence_classification"])
def test_update_is_the_same_for_any_number_of_microbatches(kind):
    """Dropout on, weights of rows uneven."""
    after = []
    for parts in (1, 4):
        cfg = config(kind, train__num_microbatches=parts, **tiny.DROPOUT)
        program = tiny.program(cfg, sgd_norm=0.5, rate=0.5)
        after.append(program.step(program.state, batch(kind)))
    (one, metrics), (four, other) = after
    np.testing.assert_allclose(metrics["loss"], other["loss"], rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), one.params, four.params
    )


LAYERED = ("masked_lm", "sequence_classification", "seq2seq")  # one of each architecture or head


def losses(program, kind, mesh=None):
    """Loss and gradient norm of each of four updates."""
    state, found = program.state, []
    for step in range(4):
        state, metrics = program.step(state, sharding.put_batch(mesh, batch(kind, step, 16)))
        found.append([metrics["loss"] / metrics["weight"], metrics["grad_norm"]])
    return found


@pytest.mark.parametrize("kind", LAYERED)
def test_scanned_layers_and_a_mesh_change_no_loss(kind):
    """Dropout on: unrolled on one device, scanned on a mesh of eight."""
    changes = {"train__batch_size": 16, "train__num_microbatches": 2, "model__num_layers": 2}
    changes |= tiny.DROPOUT
    expected = losses(tiny.program(config(kind, **changes)), kind)
    mesh = sharding.make_mesh(MeshConfig(2, 4))
    assert mesh is not None
    with jax.set_mesh(mesh):
        spread = tiny.program(config(kind, model__scan_layers=True, **changes), mesh)
        np.testing.assert_allclose(losses(spread, kind, mesh), expected, rtol=1e-5)
    assert any(len(leaf.sharding.device_set) == 8 and not leaf.sharding.is_fully_replicated
               for leaf in jax.tree.leaves(spread.state.params))  # fmt: skip


@pytest.mark.parametrize("kind", LAYERED)
def test_a_run_cut_off_and_resumed_is_bit_equal(kind, tmp_path):
    """Killed after the checkpoint of step 4; parameters, optimizer state and metrics."""
    cfg = config(kind, train__num_steps=8, **tiny.DROPOUT)
    tokenizer = SimpleNamespace(fingerprint="tiny", vocab_size=VOCAB)
    data: Any = SimpleNamespace(
        tokenizer=tokenizer, train=Rows(kind, 40), validation=Rows(kind), task=None
    )
    assert train(cfg, data, tmp_path / "whole") == 8
    with pytest.raises(Killed):
        train(cfg, data, tmp_path / "cut", progress=At(6, kill))
    assert train(cfg, data, tmp_path / "cut") == 8
    found, expected = (saved(tmp_path / name, cfg) for name in ("cut", "whole"))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    assert len(lines(tmp_path / "whole")) == 6


@pytest.mark.parametrize("kind", CONFIGS)
def test_validation_is_the_mean_over_rows_whatever_the_batch(kind):
    cfg = config(kind)
    params, source = tiny.program(cfg).state.params, Rows(kind)
    graphdef, _ = nnx.split(build(cfg.model))
    found = validation(cfg, graphdef, source, None)(params)  # a batch of 8 and one of 3
    everything = batch(kind, 0, len(source))
    targets, weights = everything["targets"], everything["weights"]
    guesses = logits(cfg, params, everything)
    loss, weight = cross_entropy(guesses, targets, weights)
    right = ((guesses.argmax(-1) == targets) * weights).sum()
    assert found["loss"] == pytest.approx(float(loss / weight), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float(right / weight), rel=1e-5)
    assert found["tokens"] == weight
    if "classification" in kind:
        counted = weights > 0
        expected = f1_by_hand(targets[counted], np.asarray(guesses.argmax(-1))[counted])
        assert found["macro_f1"] == pytest.approx(expected, rel=1e-6)
    else:
        assert "macro_f1" not in found


def f1_by_hand(truth, guesses):
    """The mean over classes of 2 · precision · recall / (precision + recall)."""
    scores = []
    for name in set(truth.tolist()) | set(guesses.tolist()):
        right = ((truth == name) & (guesses == name)).sum()
        if not right:
            scores.append(0.0)
            continue
        precision, recall = right / (guesses == name).sum(), right / (truth == name).sum()
        scores.append(2 * precision * recall / (precision + recall))
    return float(np.mean(scores))


def test_macro_f1_by_hand():
    """Class 0: 2 of 3 guesses and 2 of 4 truths right; class 1 never right; class 2 unseen."""
    total, count = macro_f1(np.array([[2, 0, 0], [3, 1, 0], [4, 0, 0]]))
    assert (total, count) == (pytest.approx(2 * 2 / 7), 2)
    truth, guesses = np.array([0, 0, 0, 0]), np.array([0, 0, 1, 0])
    counts = np.array([[3, 0, 0], [3, 1, 0], [4, 0, 0]])
    total, count = macro_f1(counts)
    assert total / count == pytest.approx(f1_by_hand(truth, guesses))
