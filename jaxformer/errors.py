"""How a run may end other than well."""

import re


class UserError(Exception):
    """Bad input: which field or file, what is wrong with it, and how to mend it.

    The command line prints it as `error: <where>: <what>, <mend>` and exits with status 2;
    `details`, such as the lines of a diff, come before.
    """

    def __init__(self, where: str, what: str, mend: str, details: tuple[str, ...] = ()):
        super().__init__(where, what, mend)
        self.where, self.what, self.mend, self.details = where, what, mend, details

    def __str__(self) -> str:
        return " ".join(f"{self.where}: {self.what}, {self.mend}".split())


PUBLISHED = "hf:"  # before a folder of the Hugging Face library


def check_folder(where: str, path: object, *, published: bool = False) -> None:
    """Raises UserError for a URL where a run reads, appends, renames and locks: a folder.

    `published`: one of the Hugging Face library may be named there.
    """
    named = str(path).removeprefix(PUBLISHED if published else "")
    if not published and named.startswith(PUBLISHED):
        raise UserError(where, f"{path} is read only", "name a folder that can be written")
    if re.match(r"[A-Za-z][\w+.-]*:/", named):
        mend = "mount the bucket and name the folder (docs/scaling.md); data.cache may be a URL"
        raise UserError(where, f"{path} is a URL, not a folder", mend)


class Preempted(Exception):
    """A signal stopped the run; everything is saved at `step` and the same command resumes it."""

    def __init__(self, step: int, signal_name: str):
        done = f"saved at step {step}" if step else "before the first step"
        super().__init__(f"{signal_name}: {done}, the same command resumes")
        self.step = step


class TrainingFailed(Exception):
    """The run cannot go on by itself; its checkpoints stay."""
