"""Lists of lengths on the command line: `1:200:10,256`."""

from jaxformer.errors import UserError


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


def _number(text: str, number: str) -> int:
    if not number.strip().isdecimal():
        mend = "give whole numbers and ranges, such as 1:200:10,256"
        raise UserError("lengths", f"has {number!r} in {text!r}", mend)
    return int(number)
