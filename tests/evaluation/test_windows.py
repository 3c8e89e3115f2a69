"""Text in windows of each length: what is predicted, from what, and how often."""

import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest

from configs import base
from jaxformer.config import RunConfig
from jaxformer.data import open_data
from jaxformer.errors import UserError
from jaxformer.evaluation.windows import LAST, ByPlace, cut_lengths
from jaxformer.nn.positions import position_bound
from tests import builders

LINES = [7, 90, 25, 61, 3, 140]  # characters of the validation documents


def text_run(tmp_path, pack, max_rows=0, trained=16, position="rope", **changes):
    """(data, config) of a text whose validation documents have LINES characters each."""
    words = np.random.default_rng(3).integers(97, 123, sum(LINES)).astype(np.uint8)
    lines = np.split(words, np.cumsum(LINES)[:-1])
    train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
    text = "".join(f'{{"text": "{bytes(line).decode()}"}}\n' for line in lines)
    train.write_text(text)
    held_out.write_text(text)
    config = base.get_config()
    config.data.update(source="jsonl", path=str(train), validation_path=str(held_out))
    config.data.update(
        length=trained, pack=pack, tokenizer={**config.data.tokenizer, "kind": "byte"}
    )
    config.eval.update(batch_size=4, max_rows=max_rows)
    builders.change(config, {"model.position.kind": position} | changes)
    cfg = RunConfig.from_config_dict(config)
    data = open_data(cfg, None)
    return data, cfg.resolve(vocab_size=data.tokenizer.vocab_size, steps_per_epoch=1000)


def predictions(windows, name):
    """{(document, place in it) of a predicted token: (its id, tokens before it in its window)}."""
    found, cache = {}, windows._cache
    for index in range(len(windows)):
        row = windows.row(0, index)
        for place in np.flatnonzero(row[name]):
            start = windows._windows[index][0] + place
            document = int(np.searchsorted(cache.offsets, start, side="right")) - 1
            key = document, start + 1 - int(cache.offsets[document])
            assert key not in found, "predicted twice"
            assert row["tokens"][place] == cache.tokens[start]
            found[key] = int(row["targets"][place]), int(row["positions"][place])
    return found


@pytest.mark.parametrize("pack", [False, True])
def test_every_token_is_predicted_once_at_every_length(tmp_path, pack):
    data, cfg = text_run(tmp_path, pack)
    cache = data.validation.cache
    expected = {
        (document, place): int(ids[place])
        for document, ids in ((d, cache.document(d)) for d in range(cache.num_documents))
        for place in range(1, len(ids))
    }
    assert len(expected) == sum(LINES) + len(LINES)  # <s> before, </s> after each
    for windows in cut_lengths(data, cfg, (5, 16, 40, 100), strict=True):
        found = predictions(windows, "weights")
        assert {key: token for key, (token, _) in found.items()} == expected
        assert all(before < windows.length for _, before in found.values())
        beyond = predictions(windows, "beyond")
        assert beyond == {key: seen for key, seen in found.items() if seen[1] >= 16}
        assert bool(beyond) == (windows.length > 16)
        batches = list(windows.batches(4, position_bound(cfg.model)))
        assert {b["tokens"].shape[1] for b in batches} == {windows.length}
        assert len({b["tokens"].shape for b in batches}) == 1
        assert sum(b["weights"].sum() for b in batches) == len(expected)


@pytest.mark.parametrize("pack", [False, True])
def test_the_last_tokens_are_the_same_at_every_length(tmp_path, pack):
    data, cfg = text_run(tmp_path, pack)
    by_length = {
        windows.length: predictions(windows, "last")
        for windows in cut_lengths(data, cfg, (20, 32, 64), strict=True)
    }
    tokens = {
        n: {key: token for key, (token, _) in found.items()} for n, found in by_length.items()
    }
    assert tokens[20] == tokens[32] == tokens[64]
    if pack:  # 338 tokens in one text: 5 windows of 64, whose joins of documents predict nothing
        assert 4 * LAST < len(tokens[64]) <= 5 * LAST
        return
    # One document alone: 64 inputs fit once in the one of 92 tokens and twice in that of 142.
    assert len(tokens[64]) == 3 * LAST
    for length, found in by_length.items():
        before = sorted({seen for _, seen in found.values()})
        assert before == list(range(length - LAST, length))


def test_tokens_are_limited_as_validation_rows_are(tmp_path):
    data, cfg = text_run(tmp_path, pack=True, max_rows=7)
    for windows in cut_lengths(data, cfg, (10, 32, 112), strict=True):
        row_keys = predictions(windows, "weights")
        whole = dataclasses.replace(cfg, eval=dataclasses.replace(cfg.eval, max_rows=0))
        (all_of_it,) = cut_lengths(data, whole, (10,), strict=True)
        everything = predictions(all_of_it, "weights")
        ends = np.cumsum([n + 2 for n in LINES])
        place = {key: ends[key[0]] - (LINES[key[0]] + 2) + key[1] for key in everything}
        assert row_keys.keys() == {key for key in everything if place[key] <= 7 * 16}
    with pytest.raises(UserError, match=r"lengths: have 113, but .* windows of up to 112 tokens"):
        cut_lengths(data, cfg, (113,), strict=True)


def test_what_is_too_long_is_refused_or_left_out(tmp_path):
    data, cfg = text_run(tmp_path, pack=False)
    assert [w.length for w in cut_lengths(data, cfg, (8, 141, 142), strict=False)] == [8, 141]
    with pytest.raises(UserError, match=r"lengths: have 142, .* up to 141 tokens"):
        cut_lengths(data, cfg, (8, 142), strict=True)
    with pytest.raises(UserError, match="lengths: have 0"):
        cut_lengths(data, cfg, (0, 8), strict=True)
    (tmp_path / "learned").mkdir()
    data, cfg = text_run(tmp_path / "learned", False, 0, 16, "learned", **{"model.max_length": 32})
    assert [w.length for w in cut_lengths(data, cfg, (8, 32, 33), strict=False)] == [8, 32]
    with pytest.raises(UserError, match=r"model\.max_length: is 32, but length 33 needs 33"):
        cut_lengths(data, cfg, (8, 33), strict=True)


def test_a_masked_language_model_has_no_lengths(tmp_path):
    data, cfg = text_run(tmp_path, pack=False)
    masked = dataclasses.replace(cfg.objective, kind="masked_lm")
    with pytest.raises(UserError, match=r"lengths: .* objective\.kind = masked_lm"):
        cut_lengths(data, dataclasses.replace(cfg, objective=masked), (8,), strict=True)


def test_losses_by_place_are_sums_over_their_weights():
    """Logits that make every token as likely as any other: log V nats each."""
    batch = {
        "tokens": jnp.zeros((2, 3), jnp.int32),
        "targets": jnp.ones((2, 3), jnp.int32),
        "last": jnp.array([[0.0, 1, 1], [0, 0, 0]]),
        "beyond": jnp.array([[0.0, 0, 1], [1, 1, 1]]),
    }
    logits = types.SimpleNamespace(logits=jnp.zeros((2, 3, 5)).at[1].add(jnp.arange(5.0)[None]))
    uneven = float(np.log(np.exp(np.arange(5)).sum()) - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxformer.evaluation.windows.forward", lambda model, batch: logits)
        sums = ByPlace().sums(None, batch)
    assert {name: (float(a), float(b)) for name, (a, b) in sums.items()} == {
        "loss_last": (pytest.approx(2 * np.log(5)), 2),
        "loss_beyond": (pytest.approx(np.log(5) + 3 * uneven), 4),
    }
