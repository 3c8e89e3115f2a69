"""Strict conversion, cross-field checks, and that every field is read by something."""

import dataclasses
import functools
import itertools
import json
import math
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest

from configs import agreement, banking77, base, masked_lm, multi30k, shakespeare_char, thucnews
from jaxformer.config import ModelConfig, RunConfig, Section
from jaxformer.errors import UserError

TEXT = {"data.source": "text", "data.path": "a.txt"}


def values(**changes):
    """base.py as plain nested dicts with fields changed by path."""
    out = base.get_config().to_dict()
    for path, value in changes.items():
        *parents, name = path.split(".")
        functools.reduce(lambda section, parent: section[parent], parents, out)[name] = value
    return out


def convert(**changes) -> RunConfig:
    return RunConfig.from_config_dict(values(**changes))


def refusal(**changes) -> UserError:
    with pytest.raises(UserError) as caught:
        convert(**changes)
    return caught.value


def fields(cls=RunConfig, prefix=""):
    """(path, type) of every field."""
    for name, kind in get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            yield from fields(kind, f"{prefix}{name}.")
        elif name != "prefix":
            yield f"{prefix}{name}", kind


FIELDS = dict(fields())


def test_the_defaults_are_a_run():
    cfg = RunConfig.from_config_dict(base.get_config())
    assert cfg == convert()
    assert len(FIELDS) > 70
    for module in (agreement, shakespeare_char, multi30k, banking77, thucnews, masked_lm):
        made = module.get_config()
        if made.data.source not in ("agreement",) and not made.data.path:
            made.data.path = "a.txt"
        if made.objective.kind == "seq2seq":
            made.data.target_path = "b.txt"
        assert RunConfig.from_config_dict(made.lock()) is not None


WRONG = {
    int: [1.5, 2.0, "3", True, None, [1], {}],
    float: ["1.5", True, None, [1.0], math.nan, math.inf, -math.inf],
    bool: [1, 0, "true", None, [True]],
    str: [1, None, True, ["a"]],
}


@pytest.mark.parametrize("path", FIELDS)
def test_a_value_of_another_type_is_refused(path):
    kind = FIELDS[path]
    if get_origin(kind) is tuple:
        pytest.skip("sequences have their own test")
    for value in WRONG.get(kind, [1, None, True, ["a"], ""]):
        error = refusal(**{path: value})
        assert error.where == path
        assert str(value) in error.what or repr(value) in error.what
        if kind in WRONG and value not in (math.inf, -math.inf) and value == value:
            assert kind.__name__ in error.mend


@pytest.mark.parametrize("path", [p for p, kind in FIELDS.items() if get_origin(kind) not in WRONG])
def test_a_missing_field_is_refused(path):
    *parents, name = path.split(".")
    broken = values()
    del functools.reduce(lambda section, parent: section[parent], parents, broken)[name]
    with pytest.raises(UserError, match=r"is missing, start from configs/base\.py") as caught:
        RunConfig.from_config_dict(broken)
    assert caught.value.where == path


def test_an_integer_is_a_float_but_nothing_else_is():
    cfg = convert(**{"model.norm_epsilon": 1, "optimizer.clip_norm": 0})
    assert cfg.model.norm_epsilon == 1.0
    assert type(cfg.model.norm_epsilon) is type(cfg.optimizer.clip_norm) is float


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("sead", "did you mean seed?"),
        ("modle", "did you mean model?"),
        ("model.num_layer", "did you mean model.num_layers?"),
        ("model.position.rope.bsae", "did you mean model.position.rope.base?"),
        ("train.banana", "see configs/base.py"),
    ],
)
def test_an_unknown_field_is_refused_with_a_suggestion(path, hint):
    error = refusal(**{path: 1})
    assert (error.where, error.what, error.mend) == (path, "is not a field", hint)


@pytest.mark.parametrize(
    ("path", "value", "hint"),
    [
        ("model.norm", "layernrom", "did you mean layernorm? choose from layernorm, rmsnorm"),
        ("model.position.kind", "rop", "did you mean rope? choose from none, sinusoidal"),
        ("compute_dtype", "int4", "choose from float32, bfloat16"),
        ("model.final_norm", True, "choose from auto, true, false"),
    ],
)
def test_an_unknown_choice_is_refused_with_a_suggestion(path, value, hint):
    error = refusal(**{path: value})
    assert error.where == path
    assert hint in error.mend


@pytest.mark.parametrize("value", [3, None, [1], "gpt2"])
def test_a_section_takes_no_value(value):
    error = refusal(**{"model.position.rope": value})
    assert error.where == "model.position.rope"
    assert "section" in error.mend


def test_errors_are_one_line():
    error = refusal(**{"model.norm": "layer\nnorm"})
    assert "\n" not in str(error)
    assert str(error).startswith("model.norm: is ")


@dataclasses.dataclass(frozen=True)
class Sequences(Section):
    sizes: tuple[int, ...]


@pytest.mark.parametrize("given", [(1, 2), [1, 2]])
def test_sequences_are_tuples_and_lists_are_accepted(given):
    assert Sequences.from_config_dict({"sizes": given}).sizes == (1, 2)


@pytest.mark.parametrize(
    ("given", "where"),
    [(3, "sizes"), ("12", "sizes"), ([1, 2.5], "sizes[1]"), ([True], "sizes[0]")],
)
def test_sequences_of_something_else(given, where):
    with pytest.raises(UserError) as caught:
        Sequences.from_config_dict({"sizes": given})
    assert caught.value.where == where


ROPE, SIN = {"model.position.kind": "rope"}, {"model.position.kind": "sinusoidal"}
CONSTANT = {"schedule.kind": "constant"}
FILE = TEXT | {"data.tokenizer.kind": "file"}
BPE = TEXT | {"data.tokenizer.kind": "bpe"}
WSD = {"schedule.kind": "wsd"}


def but(changes, path, value):
    """The same with another value, which comes last."""
    return {name: v for name, v in changes.items() if name != path} | {path: value}


ENCODER = TEXT | {"model.architecture": "encoder"}
MASKED = ENCODER | {"objective.kind": "masked_lm"}
TAGGER = ENCODER | {"model.head.kind": "token"}
CLASSES = ENCODER | {
    "model.head.kind": "sequence",
    "data.source": "csv",
    "objective.kind": "sequence_classification",
}
PAIRS = TEXT | {
    "data.target_path": "b.txt",
    "model.architecture": "encoder_decoder",
    "objective.kind": "seq2seq",
}
FIXED = {"train.num_steps": 100, "train.num_epochs": 0.0}
OFFSET = {"model.position.source.kind": "offset"}
RANGE_30 = {"model.position.source.range": 30}
ABACUS = {"model.position.source.kind": "abacus"}
# The last change is the one at fault; then a word of what is wrong, or of how to mend it.
SOURCES = {"data.source": "text", "data.path": ""}
MIXTURE = {"data.mixture.paths": ("a.txt", "b.txt")}
MOE = {"model.moe.num_experts": 4}
REFUSED = [
    *(({f"model.{n}": 0}, "1 or more") for n in ("num_layers", "d_model", "num_heads")),
    ({"model.max_length": 0}, "1 or more"),
    *(
        ({f"model.{n}": -1}, "0 or more")
        for n in ("num_kv_heads", "head_dim", "d_ff", "vocab_size")
    ),
    ({"model.norm_epsilon": 0.0}, "above 0"),
    *(
        ({f"model.dropout.{n}": rate}, "from 0 to below 1")
        for n in ("embedding", "attention", "feed_forward", "residual")
        for rate in (-0.1, 1.0)
    ),
    ({"model.num_kv_heads": 3}, "does not divide num_heads = 4"),
    ({"model.num_kv_heads": 8}, "equal groups"),
    ({"model.d_model": 66}, "set model.head_dim"),
    (SIN | {"model.position.sinusoidal.base": 0.0}, "above 0"),
    (SIN | {"model.head_dim": 8, "model.d_model": 63}, "pairs"),
    (ROPE | {"model.position.rope.base": -1.0}, "above 0"),
    (ROPE | {"model.position.rope.fraction": 0.0}, "up to 1"),
    (ROPE | {"model.position.rope.fraction": 1.5}, "up to 1"),
    (ROPE | {"model.position.rope.fraction": 0.3}, "rotates 4.8 of 16"),
    (ROPE | {"model.position.rope.fraction": 0.0625}, "even whole number"),
    (ROPE | {"model.position.rope.fraction": 1e-9}, "even whole number"),
    ({"data.length": 1}, "2 or more"),
    ({"data.validation_fraction": -0.1}, "from 0 (a tenth)"),
    ({"data.validation_fraction": 1.0}, "from 0 (a tenth)"),
    ({"data.agreement.num_examples": 0}, "1 or more"),
    ({"data.agreement.max_modifiers": -1}, "0 or more"),
    ({"data.agreement.modifier_weights": (0.6, 0.4)}, "has 2 for the numbers 0 … 3"),
    ({"data.agreement.modifier_weights": (1.0, 1.0, 0.0, 1.0)}, "positive"),
    ({"data.path": "a.txt"}, "never read"),
    ({"data.validation_fraction": 0.2}, "never read"),
    ({"data.text_field": "text"}, "never read"),
    ({"data.pattern": "*"}, "never read"),
    ({"data.tokenizer.kind": "char"}, "brings its own words"),
    ({"data.add_bos": False}, "<s>"),
    ({"data.add_eos": False}, "</s>"),
    ({"data.pack": True}, "false"),
    ({"data.source": "text", "data.path": ""}, "name the data"),
    (
        TEXT | {"data.text_field": "text"},
        "data.source = jsonl | csv | parquet | hub | tsv reads it",
    ),
    (TEXT | {"data.pattern": "*.py"}, "data.source = folder"),
    (TEXT | {"data.tokenizer.path": "t.json"}, "kind = file"),
    (TEXT | {"data.tokenizer.vocab_size": 300}, "kind = bpe"),
    (FILE | {"data.tokenizer.path": ""}, "tokenizer.json"),
    (BPE | {"data.tokenizer.vocab_size": 259}, "at least 260"),
    ({"optimizer.weight_decay": -0.1}, "0 or more"),
    ({"train.spike_guard.decay": 0.0}, "between 0 and 1"),
    ({"optimizer.clip_norm": -1.0}, "0 or more"),
    ({"optimizer.epsilon": 0.0}, "above 0"),
    *(({f"optimizer.{n}": b}, "0 to below 1") for n in ("b1", "b2") for b in (-0.1, 1.0)),
    *(({f"schedule.{n}": -1.0}, "0 or more") for n in ("init_value", "end_value")),
    *(({f"schedule.{n}": -1}, "0 or more") for n in ("warmup_steps", "decay_steps")),
    ({"schedule.peak_value": 0.0}, "above 0"),
    ({"schedule.decay_steps": 200, "schedule.warmup_steps": 200}, "warmup included"),
    (CONSTANT | {"schedule.end_value": 0.1}, "warmup_cosine, linear, wsd"),
    (CONSTANT | {"schedule.decay_steps": 9}, "warmup_cosine, linear, wsd"),
    (CONSTANT | {"schedule.warmup_steps": 0, "schedule.init_value": 0.1}, "warmup_steps > 0"),
    ({"schedule.cooldown_steps": 9}, "kind = wsd"),
    (WSD | {"schedule.decay_steps": 300, "schedule.cooldown_steps": 101}, "do not fit"),
    ({"schedule.kind": "inverse_sqrt", "schedule.end_value": 0.1}, "linear, wsd"),
    ({"schedule.kind": "inverse_sqrt", "schedule.warmup_steps": 0}, "give 1 or more"),
    ({"optimizer.kind": "adam", "optimizer.weight_decay": 0.1}, "kind = adamw"),
    ({"objective.label_smoothing": 1.0}, "below 1"),
    ({"objective.label_smoothing": -0.1}, "0 or more"),
    ({"objective.z_loss": -1.0}, "0 or more"),
    *((MASKED | {"objective.masked_lm.rate": rate}, "between 0 and 1") for rate in (0.0, 1.0)),
    (MASKED | {"objective.masked_lm.mask": -0.1}, "0 or more"),
    (MASKED | {"objective.masked_lm.random": 0.3}, "more than 1 together"),
    *(
        (start | {"objective.kind": kind}, words)
        for start, kind, words in (
            (TEXT, "masked_lm", "set model.architecture = encoder, or choose causal_lm"),
            (ENCODER, "causal_lm", "set model.architecture = decoder, or choose masked_lm"),
            (ENCODER, "sequence_classification", "set model.head.kind = sequence"),
            (TAGGER, "sequence_classification", "set model.head.kind = sequence, or choose token"),
            (ENCODER, "seq2seq", "set model.architecture = encoder_decoder"),
            ({}, "prefix_lm", "tasks are for causal_lm"),
        )
    ),
    (but(PAIRS, "data.target_path", ""), "translations"),
    (
        PAIRS | {"data.validation_path": "v.en", "data.validation_target_path": ""},
        "both or neither",
    ),
    (but(PAIRS, "data.source", "folder"), "choose from text, jsonl"),
    *((PAIRS | {f"data.{n}": "x"}, "has columns") for n in ("source_field", "target_field")),
    (PAIRS | {"data.label_field": "x"}, "classification"),
    (PAIRS | {"data.source": "csv", "data.target_path": "", "data.text_field": "x"}, "other than"),
    (
        but(PAIRS | {"data.source": "csv"}, "data.target_path", "x"),
        "seq2seq with data.source = text",
    ),
    (PAIRS | {"data.target_length": 65}, "model.max_length = 64"),
    (
        PAIRS
        | {"data.validation_path": "v", "data.validation_target_path": "v", "data.split_seed": 1},
        "a split of pairs",
    ),
    (but(CLASSES, "data.source", "text"), "choose from jsonl, csv, parquet, tsv"),
    (CLASSES | {"data.pack": True}, "one text"),
    (CLASSES | {"data.target_length": 5}, "seq2seq"),
    (TEXT | {"data.target_path": "b.txt"}, "seq2seq"),
    (TEXT | {"data.split_seed": 1}, "labelled examples"),
    (TEXT | {"data.validation_path": "v", "data.validation_fraction": 0.2}, "never read"),
    (TEXT | {"data.columns": "a,b"}, "csv, tsv"),
    (TEXT | {"data.source": "hub", "data.validation_path": "b.txt"}, "local files"),
    *(({f"data.{n}": "x"}, "never read") for n in ("validation_path", "columns", "cache")),
    ({"data.mixture.paths": ("a", "b")}, "never read"),
    (TEXT | MIXTURE, "besides data.path = a.txt"),
    (TEXT | {"data.mixture.weights": (1.0, 2.0)}, "only data.mixture.paths"),
    (TEXT | {"data.mixture.end": "stop"}, "only data.mixture.paths"),
    (SOURCES | {"data.mixture.paths": ("a", "")}, "name the sources"),
    (SOURCES | {"data.mixture.paths": ("a", "b", "a")}, "give each once"),
    (SOURCES | MIXTURE | {"data.mixture.weights": (1.0,)}, "has 1 for 2 paths"),
    (SOURCES | MIXTURE | {"data.mixture.weights": (1.0, 0.0)}, "above 0"),
    (PAIRS | {"data.path": ""} | MIXTURE, "mix jsonl, csv, tsv or parquet"),
    ({"data.target_length": -1}, "0 or more"),
    ({"data.source": "task", "data.task.name": "sum", "data.task.modulus": 46_341}, "10,000"),
    ({"data.split_seed": -1}, "0 or more"),
    *(
        ({f"train.{n}": 0}, "1 or more")
        for n in ("batch_size", "num_microbatches", "log_every", "keep_latest", "max_skipped_steps")
    ),
    *(
        ({f"train.{n}": -1}, "0 or more")
        for n in ("num_steps", "num_epochs", "keep_best", "eval_every", "checkpoint_every")
    ),
    ({"train.num_epochs": 0.0, "train.num_steps": 0}, "give the run an end"),
    ({"train.num_microbatches": 3}, "does not divide batch_size = 64"),
    ({"eval.batch_size": 0}, "1 or more"),
    ({"eval.max_rows": -1}, "0 or more"),
    ({"mesh.data": 0}, "-1 for the rest"),
    ({"mesh.data": 1, "mesh.fsdp": -2}, "-1 for the rest"),
    ({"seed": -1}, "0 to 4294967295"),
    ({"seed": 2**32}, "0 to 4294967295"),
    ({"data.length": 65}, "model.max_length = 64"),
    (FIXED | {"schedule.warmup_steps": 100}, "the run's 100 steps"),
    ({"model.moe.top_k": 1}, "only model.moe.num_experts > 0 reads it: set it to 2"),
    ({"model.moe.balance_over": "row"}, "set it to 'batch'"),
    ({"model.moe.num_experts": 1}, "2 or more"),
    (MOE | {"model.moe.top_k": 5}, "5 is more than num_experts = 4"),
    (MOE | {"model.moe.top_k": 0}, "1 or more"),
    (MOE | {"model.moe.top_k": 1, "model.moe.normalize_top_k": True}, "router never learn"),
    (MOE | {"model.moe.every": 3}, "no layer would have experts"),
    (MOE | {"model.moe.every": 2, "model.scan_layers": True}, "scanned layers are equal"),
    (MOE | {"model.moe.jitter": 1.0}, "0 to below 1"),
    (
        MOE | {"model.moe.balance_weight": 0.0, "model.moe.balance_over": "row"},
        "balance_weight > 0",
    ),
    (MOE | {"model.moe.d_ff": 8, "model.d_ff": 9}, "model.moe.d_ff = 0 or every > 1"),
    ({"model.architecture": "lstm", "model.position.kind": "none"} | MOE, "an LSTM does not"),
    *(
        (MOE | {f"model.moe.{n}": -1.0}, "0 or more")
        for n in ("capacity_factor", "balance_weight", "z_weight")
    ),
    ({"model.position.source.range": 30}, "offset, randomized"),
    ({"model.position.source.range": -1}, "0 or more"),
    (OFFSET | {"model.position.source.range": 19}, "below data.length = 20"),
    (OFFSET | {"model.position.source.range": 65}, "more than model.max_length = 64"),
    (PAIRS | OFFSET | {"data.target_length": 40} | RANGE_30, "below data.target_length = 40"),
    ({"model.position.source.abacus.max_offset": -1}, "0 or more"),
    (ABACUS | ROPE | {"model.position.rope.scaling.kind": "dynamic_ntk"}, "choose another"),
    ({"model.position.source.abacus.digits": (4, -1)}, "those of the tokenizer"),
    (ABACUS | {"data.length": 20}, "ids up to 119 with model.position.source.abacus.max_offset"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=str)
def test_contradictions_are_refused(changes, words):
    error = refusal(**changes)
    assert error.where == list(changes)[-1]
    assert words in f"{error.what}, {error.mend}"
    assert error.what
    assert error.mend


def test_two_rests_of_a_mesh_are_refused():
    error = refusal(**{"mesh.data": -1, "mesh.fsdp": -1})
    assert error.where == "mesh"
    assert "all sizes but one" in error.mend


@pytest.mark.parametrize(
    "changes",
    [
        {"model.position.kind": "none", "model.position.rope.fraction": 9.0},
        {"model.position.kind": "rope", "model.position.sinusoidal.base": -9.0},
        ROPE | {"model.position.rope.fraction": 0.25},
        ROPE | {"model.position.rope.fraction": 0.29, "model.head_dim": 200},
        {"model.d_model": 66, "model.head_dim": 16},
        {"model.d_model": 63, "model.num_heads": 3},
        TEXT | {"data.tokenizer.kind": "char", "data.pack": True, "data.add_eos": False},
        TEXT | {"data.agreement.num_examples": -5},
        TEXT | {"data.source": "csv", "data.text_field": "review"},
        TEXT | {"data.source": "folder", "data.pattern": "*.py"},
        FILE | {"data.tokenizer.path": "t.json"},
        BPE | {"data.tokenizer.vocab_size": 260},
        CONSTANT,
        {"schedule.kind": "constant", "schedule.init_value": 0.1},
        {"schedule.kind": "inverse_sqrt"},
        WSD | {"schedule.decay_steps": 300, "schedule.cooldown_steps": 100},
        {"optimizer.kind": "adam", "optimizer.weight_decay": 0.0},
        MASKED | {"data.pack": True, "objective.masked_lm.random": 0.2},
        TEXT | {"objective.masked_lm.rate": 9.0, "objective.smoothing": "others"},
        TEXT | {"objective.kind": "prefix_lm", "data.validation_path": "v.txt"},
        TEXT | {"data.cache": "gs://bucket/tokens", "data.stream.window": -1},
        SOURCES | MIXTURE | {"data.mixture.weights": (2, 0.5), "data.mixture.end": "stop"},
        SOURCES | MIXTURE | {"data.mixture.paths": ["a", "b"]},
        CLASSES | {"data.path": ""} | MIXTURE,
        CLASSES | {"data.columns": "text,label", "data.split_seed": 1, "data.label_field": "c"},
        TAGGER | {"data.source": "jsonl", "objective.kind": "token_classification"},
        PAIRS | {"data.pack": True, "data.target_length": 64, "data.split_seed": 1},
        PAIRS | {"data.source": "tsv", "data.target_path": "", "data.source_field": "en"},
        {"schedule.decay_steps": 201},
        FIXED | {"schedule.warmup_steps": 99},
        FIXED | {"schedule.warmup_steps": 100, "schedule.decay_steps": 200},
        {"data.length": 64, "seed": 2**32 - 1, "mesh.data": 2, "mesh.fsdp": 4},
        OFFSET | {"model.position.source.range": 20, "model.position.source.abacus.max_offset": 9},
        ROPE | {"model.position.source.kind": "randomized", "model.position.source.range": 2048},
        ABACUS | {"model.max_length": 120},
        ABACUS | {"model.position.kind": "none", "model.position.source.abacus.digits": (3, 4)},
    ],
    ids=str,
)
def test_unselected_sections_and_limits_are_accepted(changes):
    convert(**changes)


def test_derived_sizes():
    model = convert().model
    assert (model.kv_heads, model.head_width, model.ff_width) == (4, 16, 256)
    changes = {"model.num_kv_heads": 2, "model.head_dim": 8, "model.d_ff": 100}
    model = convert(**changes).model
    assert (model.kv_heads, model.head_width, model.ff_width) == (2, 8, 100)


def test_a_config_is_frozen_and_hashable():
    cfg = convert()
    with pytest.raises(dataclasses.FrozenInstanceError):
        cfg.seed = 1  # pyright: ignore[reportAttributeAccessIssue]
    assert hash(cfg) == hash(convert())


def test_config_json_round_trip(tmp_path):
    cfg = convert(**ROPE, **{"seed": 7, "optimizer.weight_decay": 0.1 + 0.2})
    cfg.save(tmp_path / "config.json")
    assert RunConfig.load(tmp_path / "config.json") == cfg
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model"]["position"]["kind"] == "rope"


@pytest.mark.parametrize(
    "content", [None, b"", b"{", b"\xff\xfe\x00", b'{"seed": NaN}', b"[1, 2]"], ids=repr
)
def test_a_config_json_that_is_none(tmp_path, content):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError):
        RunConfig.load(path)


def test_a_model_section_converts_alone():
    assert ModelConfig.from_config_dict(base.model()) == convert().model
    with pytest.raises(UserError) as caught:
        ModelConfig.from_config_dict(base.model().to_dict() | {"norm": 1})
    assert caught.value.where == "model.norm"


def resolve(vocab_size=50, steps_per_epoch=10.0, **changes):
    cfg = convert(**({"schedule.warmup_steps": 2} | changes))
    return cfg.resolve(vocab_size=vocab_size, steps_per_epoch=steps_per_epoch)


def test_resolving_fills_what_the_data_tells():
    cfg = resolve()
    assert cfg.model.vocab_size == 50
    assert (cfg.train.num_steps, cfg.train.num_epochs) == (80, 0.0)
    assert cfg.schedule.decay_steps == 80
    assert cfg.resolve(vocab_size=50, steps_per_epoch=3.0) == cfg  # nothing left to fill


@pytest.mark.parametrize(
    ("steps", "epochs", "steps_per_epoch", "expected"),
    [
        (0, 8.0, 312.5, 2500),
        (100, 8.0, 312.5, 100),
        (9000, 8.0, 312.5, 2500),
        (100, 0.0, 312.5, 100),
        (0, 0.5, 9.0, 4),
        (0, 0.001, 3000.0, 3),
    ],
)
def test_the_run_ends_at_the_first_of_steps_and_epochs(steps, epochs, steps_per_epoch, expected):
    changes = {"train.num_steps": steps, "train.num_epochs": epochs}
    cfg = resolve(steps_per_epoch=steps_per_epoch, **changes)
    assert cfg.train.num_steps == cfg.schedule.decay_steps == expected


def test_resolving_fills_classes_and_the_end_of_a_schedule():
    cfg = convert(**CLASSES | {"schedule.warmup_steps": 2} | WSD)
    cfg = cfg.resolve(vocab_size=50, steps_per_epoch=10.0, num_classes=7)
    assert cfg.model.head.num_classes == 7
    assert (cfg.schedule.decay_steps, cfg.schedule.cooldown_steps) == (80, 16)
    noam = resolve(**{"schedule.kind": "inverse_sqrt"}).schedule
    assert (noam.decay_steps, noam.cooldown_steps) == (0, 0)
    few = convert(**CLASSES | {"model.head.num_classes": 6})
    with pytest.raises(UserError, match="6 is too small for the data's 7 classes"):
        few.resolve(vocab_size=50, steps_per_epoch=100.0, num_classes=7)


def test_resolving_keeps_what_is_set():
    cfg = resolve(**{"model.vocab_size": 64, "schedule.decay_steps": 500})
    assert (cfg.model.vocab_size, cfg.schedule.decay_steps) == (64, 500)
    constant = {"schedule.kind": "constant", "schedule.warmup_steps": 0}
    assert resolve(**constant).schedule.decay_steps == 0


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"model.vocab_size": 49}, "model.vocab_size", "50 tokens"),
        ({"schedule.warmup_steps": 80}, "schedule.warmup_steps", "decay_steps = 80"),
    ],
)
def test_resolving_refuses_what_does_not_fit(changes, where, words):
    with pytest.raises(UserError) as caught:
        resolve(**changes)
    assert caught.value.where == where
    assert words in caught.value.what


def test_choices_are_named_beside_the_default():
    lines = Path(base.__file__).read_text("utf-8").splitlines()
    for path, kind in FIELDS.items():
        choices = [c for c in get_args(kind) if isinstance(c, str)]
        if choices:
            name = path.split(".")[-2:] if path.count(".") > 1 else path.split(".")[-1:]
            where = ".".join(name)
            found = [
                above + ln  # choices too long for the line stand above it
                for above, ln in itertools.pairwise(lines)
                if f".{where} = " in ln or f" s.{name[-1]} = " in ln  # s: the section
            ]
            assert any(all(choice in ln for choice in choices) for ln in found), path
