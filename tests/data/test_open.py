import dataclasses

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from configs import shakespeare_char, text
from jaxformer.config import RunConfig
from jaxformer.data import describe, open_data
from jaxformer.data import texts as module
from jaxformer.data.loader import Loader, evaluation_batches
from jaxformer.data.packing import DocumentRows, PackedRows
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import UserError

LINES = "".join(f"line {i} of the text\n" for i in range(200))


def config(path, get_config=text.get_config, **changes) -> RunConfig:
    c = get_config()
    c.data.path = str(path)
    c.data.length = 16
    c.update_from_flattened_dict(changes)
    if c.data.tokenizer.kind != "bpe":
        c.data.tokenizer.vocab_size = 0
    return RunConfig.from_config_dict(c)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(LINES)
    return path


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for i in range(10):
        (folder / f"{i}.txt").write_text(f"text number {i} é\n" * (i + 1))
    return folder


def read_all(source) -> np.ndarray:
    rows = [source.row(0, i) for i in range(len(source))]
    return np.concatenate([r["targets"][r["weights"] > 0] for r in rows])


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_validation_rows_hold_the_end_of_the_text(path, tmp_path, kind):
    data = open_data(config(path, **{"data.tokenizer.kind": kind}), tmp_path / "run")
    held_out = data.tokenizer.decode(read_all(data.validation))
    assert LINES.endswith(held_out)
    assert len(held_out) == pytest.approx(len(LINES) / 10, rel=0.05)
    assert data.validation.num_bytes == len(held_out)
    assert data.train.num_bytes == len(LINES) - len(held_out)
    assert data.train.num_tokens == len(read_all(data.train))
    ends = [
        r["targets"] == 2 for r in (data.validation.row(0, i) for i in range(len(data.validation)))
    ]
    assert np.sum(ends) == 1  # </s> is a target


def test_no_text_is_in_both_splits(folder, tmp_path):
    cfg = config(folder, **{"data.source": "folder", "data.validation_fraction": 0.3})
    data = open_data(cfg, tmp_path / "run")
    train, validation = (
        {i for i in range(10) if f"number {i} " in data.tokenizer.decode(read_all(source))}
        for source in (data.train, data.validation)
    )
    assert (train, validation) == ({*range(7)}, {7, 8, 9})


def test_merges_come_from_training_documents_only(folder):
    (folder / "9.txt").write_text("zebra" * 100)
    data = open_data(config(folder, **{"data.source": "folder"}), None)
    tokens = [data.tokenizer.token(i) for i in range(data.tokenizer.vocab_size)]
    assert any("number" in t for t in tokens)
    assert not any("ze" in t for t in tokens)
    char = open_data(
        config(folder, **{"data.source": "folder", "data.tokenizer.kind": "char"}), None
    )
    assert char.tokenizer.encode("zebra").all()  # symbols are listed from all documents


def begin(workdir):
    """What training does next: from then on the run is bound to its tokenizer."""
    (workdir / "config.json").touch()


def test_a_refused_start_binds_nobody(path, tmp_path):
    open_data(config(path, **{"data.tokenizer.kind": "byte"}), tmp_path / "run")
    data = open_data(config(path), tmp_path / "run")
    assert data.tokenizer.kind == Tokenizer.load(tmp_path / "run" / "tokenizer.json").kind == "bpe"


def test_second_start_reads_no_text(path, tmp_path, monkeypatch):
    first = open_data(config(path), tmp_path / "run")
    begin(tmp_path / "run")
    monkeypatch.setattr(module, "read_texts", None)
    monkeypatch.setattr(module, "make_tokenizer", None)
    second = open_data(config(path), tmp_path / "run")
    assert second.train.fingerprint == first.train.fingerprint
    assert second.tokenizer.fingerprint == first.tokenizer.fingerprint
    for index in (0, len(first.train) - 1):
        a, b = (d.train.row(3, index) for d in (first, second))
        assert all((a[name] == b[name]).all() for name in a)


def test_changed_text_is_tokenised_again_with_the_saved_tokenizer(path, tmp_path):
    first = open_data(config(path), tmp_path / "run")
    begin(tmp_path / "run")
    path.write_text(LINES + "zzzz zzzz zzzz\n" * 50)
    second = open_data(config(path), tmp_path / "run")
    assert second.tokenizer.fingerprint == first.tokenizer.fingerprint
    assert second.validation.fingerprint != first.validation.fingerprint
    assert second.validation.num_tokens > first.validation.num_tokens


def test_torn_cache_gives_the_same_rows(path, tmp_path, caplog):
    first = open_data(config(path), tmp_path / "run")
    row = first.train.row(1, 1)
    for folder in (tmp_path / "run").glob("tokens-*"):
        tokens = folder / "tokens"
        tokens.write_bytes(tokens.read_bytes()[:10])
    second = open_data(config(path), tmp_path / "run")
    assert all((second.train.row(1, 1)[name] == row[name]).all() for name in row)
    assert len(caplog.records) == 2


def test_dry_run_writes_nothing(path, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    dry = open_data(config(path), None)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text.txt", "tmp"]
    kept = open_data(config(path), tmp_path / "run")
    assert dry.train.fingerprint == kept.train.fingerprint
    assert (dry.train.row(0, 5)["tokens"] == kept.train.row(0, 5)["tokens"]).all()


def test_run_folder_holds_the_tokenizer_and_two_caches(path, tmp_path):
    open_data(config(path), tmp_path / "run")
    names = sorted(p.name[:7] for p in (tmp_path / "run").iterdir())
    assert names == ["tokeniz", "tokens-", "tokens-"]


def test_every_option_that_changes_tokens_has_a_cache_of_its_own(path, tmp_path):
    changes = [{}, {"data.add_bos": False}, {"data.add_eos": False}]
    changes += [{"data.validation_fraction": 0.2}, {"data.tokenizer.kind": "char"}]
    made = {open_data(config(path, **c), None).validation.fingerprint for c in changes}
    assert len(made) == len(changes)


def test_special_tokens_by_config(folder):
    for bos, eos in ((True, True), (True, False), (False, True), (False, False)):
        changes = {"data.source": "folder", "data.pack": False, "data.length": 128}
        cfg = config(folder, **changes, **{"data.add_bos": bos, "data.add_eos": eos})
        data = open_data(cfg, None)
        row = data.train.row(0, 0)
        ids = row["tokens"][row["segment_ids"] > 0].tolist()
        ids.append(row["targets"][row["weights"] > 0].tolist()[-1])
        expected = data.tokenizer.encode("text number 0 é\n").tolist()
        assert ids == [1] * bos + expected + [2] * eos
        documents = 9
        texts = sum(len(f"text number {i} é\n".encode()) * (i + 1) for i in range(documents))
        first = 0 if bos else documents * data.tokenizer.num_bytes(expected[0])
        assert data.train.num_bytes == texts - first


def test_packing_by_config(folder):
    kinds = {True: PackedRows, False: DocumentRows}
    for pack, kind in kinds.items():
        data = open_data(config(folder, **{"data.source": "folder", "data.pack": pack}), None)
        assert type(data.train) is type(data.validation) is kind


def test_batches_of_text(path):
    data = open_data(config(path), None)
    loader = Loader(data.train, 4, seed=0)
    batch = loader.batch(0)
    assert batch["tokens"].shape == (4, 16)
    assert (batch["tokens"][0][1:] == batch["targets"][0][:-1]).mean() > 0.9
    total = sum(b["weights"].sum() for b in evaluation_batches(data.validation, 4))
    assert total == data.validation.num_tokens


def test_text_shorter_than_the_context(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("some words of text\n")
    long = {"data.length": 64, "data.tokenizer.kind": "char"}
    with pytest.raises(UserError, match=r"a\.txt: has \d+ tokens for training, too few for .* 64"):
        open_data(config(path, **long), tmp_path / "run")
    path.write_text("some words of text\n" * 20)
    with pytest.raises(UserError, match=r"a\.txt: has \d+ tokens for validation, too few"):
        open_data(config(path, **long), tmp_path / "run")
    # The failed starts leave no tokenizer that would contradict the next text.
    assert not (tmp_path / "run" / "tokenizer.json").exists()


def test_saved_tokenizer_that_contradicts_the_config(path, tmp_path):
    open_data(config(path), tmp_path / "run")
    begin(tmp_path / "run")
    for changes, match in (
        ({"data.tokenizer.kind": "char"}, r"data\.tokenizer\.kind: asks .* is of kind bpe"),
        ({"data.tokenizer.vocab_size": 261}, r"data\.tokenizer\.vocab_size: asks .* tokens"),
    ):
        with pytest.raises(UserError, match=match):
            open_data(config(path, **changes), tmp_path / "run")
    Tokenizer.load(tmp_path / "run" / "tokenizer.json").save(tmp_path / "same.json")
    same = {"data.tokenizer.kind": "file", "data.tokenizer.path": str(tmp_path / "same.json")}
    assert open_data(config(path, **same), tmp_path / "run").tokenizer.kind == "bpe"
    open_data(config(path, **{"data.tokenizer.kind": "char"}), tmp_path / "other")
    other = same | {"data.tokenizer.path": str(tmp_path / "other" / "tokenizer.json")}
    with pytest.raises(UserError, match=r"data\.tokenizer\.path: asks"):
        open_data(config(path, **other), tmp_path / "run")


def test_text_that_the_saved_tokenizer_does_not_know(path, tmp_path):
    char = {"data.tokenizer.kind": "char"}
    open_data(config(path, **char), tmp_path / "run")
    begin(tmp_path / "run")
    path.write_text(LINES + "ÄÖ\n" * 9)
    with pytest.raises(UserError, match=r"text\.txt: holds characters .* 'Ä', 'Ö'"):
        open_data(config(path, **char), tmp_path / "run")


def test_file_without_the_special_tokens_asked_for(path, tmp_path):
    backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "line": 1}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "t.json"))
    file = {"data.tokenizer.kind": "file", "data.tokenizer.path": str(tmp_path / "t.json")}
    with pytest.raises(UserError, match=r"data\.add_bos: is true but .*t\.json has no such token"):
        open_data(config(path, **file), tmp_path / "run")
    cfg = config(path, **file, **{"data.add_bos": False, "data.add_eos": False})
    assert open_data(cfg, tmp_path / "run").tokenizer.vocab_size == 2


def test_description(path):
    cfg = config(path)
    facts = describe(open_data(cfg, None), cfg)
    assert facts["vocabulary"].endswith("tokens (bpe)")
    assert "of the text" in facts["sample row"]
    assert facts["training rows"].endswith("of 16 tokens an epoch")


def test_shakespeare_config(shared_data):
    file = shared_data("tinyshakespeare") / "input.txt"
    c = shakespeare_char.get_config()
    c.data.path = str(file)
    cfg = RunConfig.from_config_dict(c)
    data = open_data(cfg, None)
    assert data.tokenizer.vocab_size == 65 + 3
    resolved = cfg.resolve(vocab_size=68, steps_per_epoch=len(data.train) / 12)
    assert resolved.train.num_steps == 2000
    assert data.train.num_bytes + data.validation.num_bytes == 1_115_394
    assert data.validation.num_bytes == pytest.approx(111_540, rel=0.001)
    assert dataclasses.replace(resolved.model).max_length == resolved.data.length == 64
