"""Flags and exit status, the same for every program of the package.

Exit status: 0 the target step was reached or the evaluation done; 2 bad input, one line
`error: <field or file>: <what>, <how to mend>`; 75 preempted and saved, the same command resumes;
1 anything else.
"""

import difflib
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from jaxformer.errors import Preempted, TrainingFailed, UserError, check_folder

FLAGS = flags.FLAGS
FOLDERS = ("workdir", "out")  # flags that name one
OK, FAILED, BAD_INPUT, PREEMPTED = 0, 1, 2, 75


def define_config() -> None:
    """Declares --config and its overrides."""
    try:
        config_flags.DEFINE_config_file(
            "config", None, "A file with get_config().", lock_config=True
        )
    except flags.Error as error:  # it reads the command line, which may name a --flagfile
        print(f"error: --flagfile: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def start(main: Callable[..., int], usage: str, num_arguments: int = 0) -> None:
    """Parses the command line, runs `main` on its arguments, ends the process with its status."""
    flags.DEFINE_bool("debug", False, "Show the traceback of an error.")
    app.run(
        lambda argv: guard(lambda: main(*argv[1:]), FLAGS.debug),
        flags_parser=lambda argv: parse(argv, usage, num_arguments),
    )


def parse(argv: Sequence[str], usage: str, num_arguments: int = 0) -> list[str]:
    """Parses flags, loads the config, returns the program's name and its arguments.

    Whatever is wrong ends the process with status 2.
    """
    if {"--help", "-help", "-h", "--helpfull", "--helpshort"} & set(argv[1:]):
        print(usage, end="")
        sys.exit(OK)
    arguments: list[str] = []

    def read() -> int:
        arguments.extend(FLAGS(list(argv))[1:])
        if arguments and not num_arguments:
            raise UserError(arguments[0], "is not a flag", "write --name=value; see --help")
        if len(arguments) != num_arguments:
            what = f"are {len(arguments)}, not {num_arguments}"
            raise UserError("arguments", what, "see --help")
        for name in FOLDERS:
            if name in FLAGS:
                check_folder(f"--{name}", FLAGS[name].value, published=True)
        if "config" in FLAGS:
            _ = FLAGS.config and FLAGS.config.keys()  # a missing file raises at first use only
        return OK

    debug = "--debug" in argv
    logging.set_verbosity(logging.ERROR)  # Orbax tells its whole story otherwise
    getLogger("jaxformer").setLevel("WARNING")
    status = guard(lambda: _reworded(read, argv), debug)
    if status != OK:
        sys.exit(status)
    return [argv[0], *arguments]


def _reworded(read: Callable[[], int], argv: Sequence[str]) -> int:
    """Turns what absl and ml_collections raise into one line about one flag."""
    try:
        return read()
    except UserError:
        raise
    except Exception as error:
        _check_config(argv)
        text = " ".join(str(error).split())
        if unknown := re.match(r"Unknown command line flag '?([\w.\-]+)", text):
            near = difflib.get_close_matches(unknown[1], list(FLAGS), n=1)
            mend = f"did you mean --{near[0]}?" if near else "see --help"
            raise UserError(f"--{unknown[1]}", "is not a flag", mend) from error
        if value := re.match(r"flag --(?:config\.)?([\w.\-]+)=(.*?): (.*)", text):
            kinds = {"int()": "a whole number", "to float": "a number", "boolean": "true or false"}
            takes = next((kind for words, kind in kinds.items() if words in value[3]), "")
            mend = f"it takes {takes}" if takes else f"({value[3]})"
            raise UserError(value[1], f"is {value[2]!r}", mend) from error
        raise UserError("flags", f"cannot be read ({text[:200]})", "see --help") from error


def _check_config(argv: Sequence[str]) -> None:
    """Raises UserError for a config file that does not load, or an override of no field."""
    given = [argument for argument in argv if re.match("--?config=", argument)]
    if not given:
        return
    path = given[-1].split("=", 1)[1]
    file, *argument = path.split(":", 1)
    if not os.path.isfile(file):
        raise UserError(file, "is not a file", "--config takes the path of a config file")
    try:
        config = runpy.run_path(file)["get_config"](*argument)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        what, mend = f"cannot be loaded ({reason})", "--debug shows the traceback"
        raise UserError(path, what, mend) from error
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([^=]+)", argument)
        section: Any = config
        walked: list[str] = []
        for name in match[1].split(".") if match else ():
            walked.append(name)
            names = list(section) if isinstance(section, ConfigDict) else []
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                better = ".".join([*walked[:-1], *near])
                mend = f"did you mean {better}?" if near else "see configs/base.py"
                raise UserError(".".join(walked), "is not a field", mend)
            section = section[name]


def guard(main: Callable[[], int], debug: bool) -> int:
    """Runs `main` and turns what it raises into an exit status and one line on stderr."""
    try:
        return main()
    except UserError as error:
        if debug:
            traceback.print_exc()
        print(*error.details, f"error: {error}", sep="\n", file=sys.stderr)
        return BAD_INPUT
    except Preempted as error:
        print(error, file=sys.stderr)
        return PREEMPTED
    except TrainingFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return FAILED
