"""The one exception that stands for bad input."""


class UserError(Exception):
    """Bad input: which field or file, what is wrong with it, and how to mend it.

    The command line prints it as `error: <where>: <what>, <mend>` and exits with status 2.
    """

    def __init__(self, where: str, what: str, mend: str):
        super().__init__(where, what, mend)
        self.where, self.what, self.mend = where, what, mend

    def __str__(self) -> str:
        return " ".join(f"{self.where}: {self.what}, {self.mend}".split())
