"""How a run may end other than well."""


class UserError(Exception):
    """Bad input: which field or file, what is wrong with it, and how to mend it.

    The command line prints it as `error: <where>: <what>, <mend>` and exits with status 2.
    """

    def __init__(self, where: str, what: str, mend: str):
        super().__init__(where, what, mend)
        self.where, self.what, self.mend = where, what, mend

    def __str__(self) -> str:
        return " ".join(f"{self.where}: {self.what}, {self.mend}".split())


class Preempted(Exception):
    """A signal stopped the run; everything is saved at `step` and the same command resumes it."""

    def __init__(self, step: int, signal_name: str):
        super().__init__(f"{signal_name}: saved at step {step}, the same command resumes")
        self.step = step


class TrainingFailed(Exception):
    """The run cannot go on by itself; its checkpoints stay."""
