"""Quality by length: the syntax of `--lengths`, and a task's or a text's examples at each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jaxformer.config import RunConfig
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.tasks import make_sampler, make_task
from jaxformer.data.tasks.agreement import Agreement as AgreementTask
from jaxformer.data.tasks.rows import SampledTask
from jaxformer.errors import UserError
from jaxformer.evaluation.evaluators import Batch, Evaluator, Total, evaluate_batches
from jaxformer.evaluation.task_tests import TaskTests
from jaxformer.generation.inputs import bucket
from jaxformer.nn.positions.sources import document_limit


def parse_lengths(text: str) -> tuple[int, ...]:
    """Parses comma-separated numbers and `start:stop[:step]` ranges, ascending, without repeats.

    A range includes `stop` where its steps reach it: 0:10:5 is 0, 5, 10 and 1:10:5 is 1, 6.
    Raises UserError.
    """
    lengths: set[int] = set()
    for part in text.split(","):
        numbers = [_number(text, number) for number in part.split(":")]
        if len(numbers) > 3:
            raise UserError("lengths", f"has {part!r}", "a range is start:stop or start:stop:step")
        start, stop, step = (*numbers, *(numbers[0], 1)[len(numbers) - 1 :])
        if step < 1:
            raise UserError("lengths", f"has step {step} in {part!r}", "give a step of at least 1")
        if stop < start:
            raise UserError("lengths", f"has {part!r}, which is empty", "start is at most stop")
        lengths.update(range(start, stop + 1, step))
    return tuple(sorted(lengths))


def trained_up_to(cfg: RunConfig) -> int:
    """The greatest length in training: that of a task's problems, or tokens of a text."""
    tasks = {"agreement": cfg.data.agreement.max_modifiers, "task": cfg.data.task.max_length}
    return tasks.get(cfg.data.source, cfg.data.length)


def bucket_of(cfg: RunConfig, length: int) -> str:
    """'id': a length of the training data; 'ood': a greater one; 'below': a smaller one."""
    least = cfg.data.task.min_length if cfg.data.source == "task" else 0
    return "ood" if length > trained_up_to(cfg) else "id" if length >= least else "below"


def describe_length(cfg: RunConfig, length: int) -> dict[str, Any]:
    """Columns of results about a length: its bucket, and of a task whether it is exhaustive."""
    if cfg.data.source != "task":
        return {"bucket": bucket_of(cfg, length)}
    exhaustive = make_sampler(cfg).is_exhaustive(length)
    return {"bucket": bucket_of(cfg, length), "exhaustive": exhaustive}


def length_name(cfg: RunConfig) -> str:
    """What lengths count, in the plural."""
    if cfg.data.source == "task":
        return make_task(cfg.data.task).about.length_is
    return "modifiers" if cfg.data.source == "agreement" else "tokens of context"


def fits(cfg: RunConfig, length: int, needs: int, strict: bool) -> bool:
    """Whether no learned table, or range of ids, ends before the `needs` tokens of a length do.

    Where one does, `strict` raises UserError.
    """
    most, field = document_limit(cfg.model)
    if strict and most and needs > most:
        raise UserError(
            field,
            f"is {most}, but length {length} needs {needs} positions",
            "evaluate shorter lengths, or train with a greater one or other positions",
        )
    return not most or needs <= most


class Examples(Protocol):
    """Test examples of one length."""

    @property
    def length(self) -> int: ...

    def batches(self, batch_size: int, bound: int) -> Iterator[Batch]: ...


class LengthExamples:
    """Test examples of one length, as rows of one width that few lengths share."""

    def __init__(self, task: AgreementTask, length: int, num_examples: int, seed: int):
        self.length = length
        self._questions = task.evaluation(length, num_examples, seed)
        self._rows = task.rows(self._questions)
        sentences = self._questions.sentences
        self.longest = int(sentences.lengths_B.max()) - 1  # inputs: all but the last token

    def batches(self, batch_size: int, bound: int) -> Iterator[Batch]:
        """Batches padded to `bucket(longest)`, or to `bound` where positions end (0: nowhere)."""
        width = min(bucket(self.longest), bound or bucket(self.longest))
        for batch in evaluation_batches(self._rows, batch_size):
            rows_B = batch["rows"]
            counted_B = rows_B < len(self._rows)
            rows_B = np.where(counted_B, rows_B, 0)
            questions = {
                "verb_index": self._questions.prefix_lengths_B[rows_B] - 1,
                "correct": self._questions.correct_B[rows_B],
                "wrong": self._questions.wrong_B[rows_B],
            }
            batch = {name: _widen(x, width) if x.ndim == 2 else x for name, x in batch.items()}
            yield batch | questions | {"counted": counted_B}


def draw_lengths(
    task: AgreementTask | SampledTask,
    cfg: RunConfig,
    lengths: tuple[int, ...],
    *,
    num_examples: int,
    seed: int,
    strict: bool,
) -> Sequence[Examples]:
    """Test examples of every length, shortest first.

    Where a learned position table ends before a length does, `strict` raises UserError; otherwise
    that length and all above it are left out.
    """
    if isinstance(task, SampledTask):
        return _draw_tests(task, cfg, lengths, num_examples, seed, strict)
    drawn = []
    for length in sorted(lengths):
        examples = LengthExamples(task, length, num_examples, seed)
        if not fits(cfg, length, examples.longest, strict):
            break
        drawn.append(examples)
    return drawn


def _draw_tests(
    task: SampledTask,
    cfg: RunConfig,
    lengths: tuple[int, ...],
    num_examples: int,
    seed: int,
    strict: bool,
) -> list[TaskTests]:
    """The same of a sampled task, whose batches all have the shape that the longest needs."""
    kept, sampler = [], task.sampler
    least, most = sampler.task.about.smallest, sampler.task.about.largest
    for length in sorted(lengths):
        exists = length >= least and (not most or length <= most)
        if strict and not exists:
            name = cfg.data.task.name
            to = f" to {most}" if most else ""
            raise UserError("lengths", f"has {length}", f"lengths of {name} are from {least}{to}")
        if exists and fits(cfg, length, sampler.most_ids(length), strict):
            kept.append(length)
    return [TaskTests(sampler, length, num_examples, seed, kept[-1]) for length in kept]


def evaluate_lengths(
    evaluators: tuple[Evaluator, ...],
    graphdef: Any,
    params: Any,
    drawn: Sequence[Examples],
    cfg: RunConfig,
) -> dict[int, Mapping[str, Total]]:
    """Totals of all evaluators at each length; those that counted nothing are left out."""
    bound, found = document_limit(cfg.model).tokens, {}
    for examples in drawn:
        batches = examples.batches(cfg.eval.batch_size, bound)
        totals = evaluate_batches(evaluators, graphdef, params, batches)
        found[examples.length] = {name: total for name, total in totals.items() if total.weight}
    return found


def _widen(rows_BL: np.ndarray, width: int) -> np.ndarray:
    """Cuts or fills rows with 0 (padding) to a width that holds all of their tokens."""
    missing = max(0, width - rows_BL.shape[1])
    return np.pad(rows_BL, ((0, 0), (0, missing)))[:, :width]


def _number(text: str, number: str) -> int:
    if not number.strip().isdecimal():
        mend = "give whole numbers and ranges, such as 1:200:10,256"
        raise UserError("lengths", f"has {number!r} in {text!r}", mend)
    return int(number)
