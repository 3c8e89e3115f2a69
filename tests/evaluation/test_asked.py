"""Lines of a jsonl file, and a journal that survives a kill."""

import pytest

from jaxformer.data.vocabulary import word_tokenizer
from jaxformer.errors import UserError
from jaxformer.evaluation.asked import (
    Journal,
    check_apart,
    digest,
    json_lines,
    prompt_field,
    prompt_ids,
    read_lines,
)
from tests.training import tiny

WORDS = word_tokenizer("abcdefgh")


def test_lines_have_ids_or_numbers(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b", "id": "q7", "reference": "c", "z": 1}\n')
    first, second = read_lines(path, ["prompt"], ["reference"])
    assert first == (f"{path} line 1", 1, {"prompt": "a"})
    assert second == (f"{path} line 3", "q7", {"prompt": "b", "reference": "c"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'x.jsonl: is empty, give lines like {"prompt": "…"}'),
        ('{"source": "a"}', "line 1: has no field 'prompt', it has 'source': add it"),
        ("{}", "line 1: has no field 'prompt', it has none: add it"),
        ('{"prompt": null}', "line 1: has no string in 'prompt'"),
        ('{"prompt": "a", "reference": 3}', "line 1: has no string in 'reference'"),
        ('{"prompt": "a", "id": "\\ud83d"}', "line 1: has an id with half a character"),
        ('{"prompt": "a", "id": [NaN]}', "line 1: has an id with half a character or a number"),
    ],
)
def test_bad_lines_are_named(tmp_path, text, message):
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(UserError) as raised:
        read_lines(tmp_path / "x.jsonl", ["prompt"], ["reference"])
    assert message in str(raised.value)


def lines_of(tmp_path, *prompts, field="prompt"):
    (tmp_path / "x.jsonl").write_text(json_lines({field: prompt} for prompt in prompts))
    return read_lines(tmp_path / "x.jsonl", [field])


def test_prompts_are_framed_as_in_training(tmp_path):
    cfg = tiny.config(data__add_bos=True)
    assert prompt_field(cfg) == "prompt"
    found = prompt_ids(cfg, WORDS, lines_of(tmp_path, "a b", ""), 1)
    assert [ids.tolist() for ids in found] == [
        [WORDS.bos_id, *WORDS.encode("a b")],
        [WORDS.bos_id],
    ]
    with pytest.raises(UserError, match=r"line 2: holds words .* 'z'"):
        prompt_ids(cfg, WORDS, lines_of(tmp_path, "a", "z"), 1)
    with pytest.raises(UserError, match=r"line 1: has a prompt of 8 tokens, model\.max_length = 8"):
        prompt_ids(cfg, WORDS, lines_of(tmp_path, "a b c d e f g"), 1)
    pairs = tiny.config(**tiny.SEQ2SEQ, data__add_bos=False, data__add_eos=True)
    assert prompt_field(pairs) == "source"
    (ids,) = prompt_ids(pairs, WORDS, lines_of(tmp_path, "a b", field="source"), 1)
    assert ids.tolist() == [*WORDS.encode("a b"), WORDS.eos_id]


def test_tokens_that_the_model_has_not_are_named_by_their_line(tmp_path):
    cfg = tiny.config(model__vocab_size=WORDS.vocab_size - 1)
    lines = lines_of(tmp_path, "a b", "a h")
    with pytest.raises(UserError, match=r"line 2: has token 10, the model 10 tokens"):
        prompt_ids(cfg, WORDS, lines, 1)


def test_what_was_read_is_known_by_its_lines(tmp_path):
    """Not by a file that may be a pipe."""
    one, same, other = (lines_of(tmp_path, *texts) for texts in (["a"], ["a"], ["b"]))
    assert digest(one) == digest(same) != digest(other)
    assert digest([one[0]._replace(id="x")]) != digest(one)


def test_results_are_not_written_over_what_is_asked(tmp_path):
    file = tmp_path / "generated.jsonl"
    check_apart(file, file)  # neither is there
    file.write_text("{}")
    check_apart(file, tmp_path / "scores.jsonl")
    with pytest.raises(UserError, match=r"--out: would write over .*generated.jsonl"):
        check_apart(tmp_path / "." / "generated.jsonl", file)


def test_a_journal_goes_on_where_it_was_cut(tmp_path):
    path, settings = tmp_path / "partial.jsonl", {"seed": 1, "positions": "trained"}
    first = Journal(path, settings)
    assert first.done == {}
    first.begin()
    first.append({4: {"text": "é"}, 2: {"text": "b"}})
    first.append({0: {"text": "c"}})
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])  # a kill in the middle of a line
    again = Journal(path, settings)
    assert again.done == {4: {"text": "é"}, 2: {"text": "b"}}
    again.begin()
    again.append({0: {"text": "c"}})
    assert path.read_bytes() == whole
    other = Journal(path, settings | {"seed": 2})
    assert other.done == {}
    other.begin()
    assert Journal(path, settings).done == {}
    other.remove()
    assert not path.exists()
