import json
import logging

import numpy as np
import pytest

from jaxformer.data.cache import open_cache, read_cache

DOCUMENTS = [(np.array([3, 4, 5], np.int32), 9), (np.array([], np.int32), 0), (np.array([6]), 2)]


def made_again(caplog) -> bool:
    return any("tokenising again" in record.getMessage() for record in caplog.records)


def test_documents_come_back(tmp_path):
    for workdir in (tmp_path, None):
        cache = open_cache(workdir, "abc", 7, DOCUMENTS)
        assert cache.tokens.tolist() == [3, 4, 5, 6]
        assert cache.offsets.tolist() == [0, 3, 3, 4]
        assert cache.bytes.tolist() == [9, 0, 2]
        assert cache.lengths.tolist() == [3, 0, 1]
    assert [p.name for p in tmp_path.iterdir()] == ["tokens-abc"]  # no temporary folder stays


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")],
)
def test_smallest_type_that_holds_the_vocabulary(vocab_size, dtype):
    top = vocab_size - 1
    cache = open_cache(None, "abc", vocab_size, [(np.array([0, top], np.int32), 1)])
    assert cache.tokens.dtype == dtype
    assert cache.tokens.tolist() == [0, top]


def test_whole_cache_is_not_made_again(tmp_path, caplog):
    open_cache(tmp_path, "abc", 7, DOCUMENTS)

    def never():
        raise AssertionError("tokenised again")
        yield

    assert open_cache(tmp_path, "abc", 7, never()).tokens.tolist() == [3, 4, 5, 6]
    assert read_cache(tmp_path, "abc") is not None
    assert read_cache(tmp_path, "other") is None
    assert not made_again(caplog)


def truncate(folder):
    (folder / "tokens").write_bytes((folder / "tokens").read_bytes()[:-1])


def flip(folder):
    content = bytearray((folder / "tokens").read_bytes())
    content[1] ^= 1
    (folder / "tokens").write_bytes(content)


def flip_offsets(folder):
    content = bytearray((folder / "offsets").read_bytes())
    content[8] ^= 1
    (folder / "offsets").write_bytes(content)


def lose_meta(folder):
    (folder / "meta.json").unlink()


def half_meta(folder):
    (folder / "meta.json").write_text((folder / "meta.json").read_text()[:40])


def lose_file(folder):
    (folder / "bytes").unlink()


def other_format(folder):
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"format": 0}))


def other_content(folder):
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"fingerprint": "xyz"}))


@pytest.mark.parametrize(
    "damage",
    [truncate, flip, flip_offsets, lose_meta, half_meta, lose_file, other_format, other_content],
)
def test_damaged_cache_is_made_again_and_said(tmp_path, caplog, damage):
    open_cache(tmp_path, "abc", 7, DOCUMENTS)
    damage(tmp_path / "tokens-abc")
    assert read_cache(tmp_path, "abc") is None
    with caplog.at_level(logging.WARNING):
        cache = open_cache(tmp_path, "abc", 7, DOCUMENTS)
    assert cache.tokens.tolist() == [3, 4, 5, 6]
    assert cache.offsets.tolist() == [0, 3, 3, 4]
    assert made_again(caplog)
    assert len(caplog.records) == 1
    assert read_cache(tmp_path, "abc") is not None


def test_stopped_half_way_leaves_no_cache(tmp_path):
    def stops():
        yield DOCUMENTS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_cache(tmp_path, "abc", 7, stops())
    assert list(tmp_path.iterdir()) == []
