"""Invariant 7 on meshes with tensor and context axes: one update whatever the devices.

Each case takes other options with it (positions, windows, packing, grouped heads, remat, scan), so
that few meshes meet most of them; the product with all meshes is slow.
"""

from typing import Any

import jax
import numpy as np
import pytest

from jaxformer import sharding
from jaxformer.checkpoint import Checkpoints
from jaxformer.config import MeshConfig
from jaxformer.training.loop import train
from tests.builders import without_compile_cache
from tests.training import tiny
from tests.training.test_loop import lines

SUMS = ("loss", "weight", "correct", "total", "grad_norm")
ROWS = 8
COMMON = tiny.DROPOUT | {
    "model__num_heads": 4,
    "model__head_dim": 4,
    "model__activation": "swiglu",
    "objective__label_smoothing": 0.1,
    "objective__z_loss": 1e-2,
}
CASES: dict[str, dict[str, Any]] = {
    "rope": {
        "model__position__kind": "rope",
        "model__num_kv_heads": 1,  # fewer than tensor: keys are whole
        "model__window": 3,
        "model__tie_embeddings": False,
        "train__num_microbatches": 2,
    },
    "learned": {
        "model__scan_layers": True,
        "model__remat": "full",
        "model__num_kv_heads": 2,
        "model__attention_sink": True,
        "model__qk_norm": True,
    },
    "alibi": {"model__position__kind": "alibi", "model__remat": "dots", "model__head_bias": True},
    "seq2seq": tiny.SEQ2SEQ | {"model__position__kind": "t5", "model__num_kv_heads": 2},
    "seq2seq_sinusoidal": tiny.SEQ2SEQ
    | {"model__position__kind": "sinusoidal", "model__scan_layers": True, "model__remat": "dots"},
    # No pair of microbatches here: over a batch the balance is each microbatch's.
    "experts": {
        "model__moe__num_experts": 4,
        "model__moe__shared_d_ff": 8,
        "model__moe__z_weight": 0.1,
        "model__moe__jitter": 0.2,
        "model__scan_layers": True,
        "model__remat": "full",
    },
    "switch": {
        "model__moe__num_experts": 2,
        "model__moe__top_k": 1,
        "model__moe__normalize_top_k": False,
        "model__moe__capacity_factor": 1.0,
        "model__moe__balance_over": "row",
        "model__feed_forward_bias": False,
        "train__num_microbatches": 2,
    },
}
MESHES = (
    (8, 1, 1, 1),
    (2, 4, 1, 1),
    (2, 2, 2, 1),
    (2, 1, 2, 2),
    (1, 2, 1, 4),
    (1, 1, 4, 2),
    (1, 2, 2, 1, 2),
    (2, 1, 1, 2, 2),
)
QUICK = (
    ("rope", (2, 1, 2, 2)),
    ("learned", (2, 2, 2, 1)),
    ("seq2seq", (1, 2, 2, 2)),
    ("experts", (1, 2, 2, 1, 2)),
    ("switch", (2, 1, 1, 2, 2)),
)


def batch(case, step, seed=0):
    """Rows of two packed documents, padding between and behind them; the weights are uneven."""
    rng = np.random.default_rng([step, seed])
    first, gap = rng.integers(1, 5, (ROWS, 1)), rng.integers(0, 2, (ROWS, 1))
    at = np.arange(tiny.LENGTH)[None]
    after = at - first - gap
    second = (after >= 0) & (after < rng.integers(1, 5, (ROWS, 1)))
    segments = np.where(at < first, 1, np.where(second, 2, 0)).astype(np.int32)

    def words():
        ids = rng.integers(3, tiny.VOCAB, (ROWS, tiny.LENGTH))
        return np.where(segments > 0, ids, 0).astype(np.int32)

    positions = np.where(segments == 1, at, np.where(segments == 2, after, 0)).astype(np.int32)
    weights = (rng.integers(0, 3, segments.shape) * (segments > 0)).astype(np.float32)
    made = {
        "tokens": words(),
        "targets": words(),
        "segment_ids": segments,
        "positions": positions,
        "weights": weights,
        "rows": np.arange(ROWS, dtype=np.int32),
    }
    if case.startswith("seq2seq"):
        names = ("source", "source_segment_ids", "source_positions")
        made |= dict(zip(names, (words(), segments, positions), strict=True))
    return made


def config(case, **changes):
    return tiny.config(**(COMMON | CASES[case] | changes))


def updates(cfg, case, mesh, steps=5):
    """Sums of five updates of plain SGD, and the parameters after them as checkpoints have them."""
    with sharding.using(mesh):
        program = tiny.program(cfg, mesh, sgd_norm=0.5, rate=0.5)
        state, found = program.state, []
        for step in range(steps):
            put = sharding.put_batch(mesh, batch(case, step))
            state, metrics = program.step(state, put)
            found.append([metrics[name] for name in SUMS])
    whole = tiny.program(cfg, sgd_norm=0.5, rate=0.5).abstract.params
    params = jax.tree.map(lambda x, like: sharding.fit(x, like.shape), state.params, whole)
    return np.array(jax.device_get(found)), jax.device_get(params)


def check(case, sizes, capfd):
    cfg = config(case)
    expected, params = updates(cfg, case, None)
    mesh = sharding.make_mesh(MeshConfig(*sizes))
    assert mesh is not None
    with without_compile_cache():
        found, its = updates(cfg, case, mesh)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), its, params)
    assert "rematerialization" not in capfd.readouterr().err


@pytest.mark.parametrize(("case", "sizes"), QUICK)
def test_five_updates_are_those_of_one_device(case, sizes, capfd):
    """Dropout on, 11 tokens on 2 devices; and XLA never gathers whole activations."""
    check(case, sizes, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", MESHES)
@pytest.mark.parametrize("case", CASES)
def test_any_mesh_gives_the_update_of_one_device(case, sizes, capfd):
    expert = sizes[4] if len(sizes) > 4 else 1
    if expert > 1 and case not in ("experts", "switch"):
        pytest.skip("no experts")
    shards = sizes[0] * sizes[1] * expert
    if CASES[case].get("train__num_microbatches", 1) * shards > ROWS:
        pytest.skip("more devices than rows of a microbatch")
    check(case, sizes, capfd)


def arrays(workdir, step):
    return Checkpoints(workdir, read_only=True).arrays(step)


def test_a_run_moves_from_mesh_to_mesh(tmp_path):
    """The vocabulary is padded to 12 on the first, to 11 on the next, and no checkpoint tells."""
    changes = COMMON | CASES["learned"]
    alone = tiny.config(**changes, train__num_steps=8)
    assert train(alone, tiny.data(), tmp_path / "one") == 8
    for steps, sizes in ((4, {"fsdp": 2, "tensor": 2, "context": 2}), (8, {"data": 8})):
        mesh = {f"mesh__{axis}": size for axis, size in sizes.items()}
        cfg = tiny.config(**changes, **mesh, train__num_steps=steps, schedule__decay_steps=12)
        assert train(cfg, tiny.data(), tmp_path / "moved") == steps
    one, moved = (arrays(tmp_path / name, 8) for name in ("one", "moved"))
    assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in moved.items()}
    assert one["params/embedding/table"].shape == (11, 8)
    for found, expected in zip(lines(tmp_path / "moved"), lines(tmp_path / "one"), strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
