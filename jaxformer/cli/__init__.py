"""The command line: flags, exit status, and the dataflow of a run.

Exit status: 0 the target step was reached or the evaluation done; 2 bad input, one line
`error: <field or file>: <what>, <how to mend>`; 75 preempted and saved, the same command resumes;
1 anything else.
"""

from jaxformer.cli.evaluate import run_eval
from jaxformer.cli.sweep import run_sweep
from jaxformer.cli.train import run_train
from jaxformer.command import parse

__all__ = ["parse", "run_eval", "run_sweep", "run_train"]
