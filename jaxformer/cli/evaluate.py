"""eval.py: evaluates a run by a suite, or does one other thing with it; see MODES."""

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from absl import flags

from jaxformer.command import FLAGS, start
from jaxformer.errors import PUBLISHED, UserError

USAGE = """\
usage: python eval.py --workdir=DIR [flags]

  --workdir   a run of train.py, or hf:PATH, a folder of the Hugging Face library
  --step      the checkpoint's step; default the newest
  --weights   raw, the parameters as they were trained, or ema, their average; default the run's
              eval.weights
  --mesh      devices to use: AXIS:SIZE,… of data, fsdp, tensor, context, expert, such as
              fsdp:2,tensor:4 (data takes the rest), or run for the run's own mesh; default one
              device, of several processes run
  --dtype     bfloat16: weights and cache in half the bytes; float32; default as in training
  --out       where results go; default WORKDIR/eval, of hf:PATH to be given
  --coordinator, --num_processes, --process_id   as of train.py, for a run that needs several
  --debug     show the traceback of an error

What is done, one of these (docs/evaluation.md):

  --suite     a file in configs/eval/ by name; default the one for the run's data
    --lengths   lengths of a task, or tokens of context of a text, to evaluate at, e.g. 0:10 or
                1:200:10,256 (start:stop:step)
  --prompt    continue this text; may be given several times; a run of seq2seq takes it for the
              source and prints the target
    --stream    print it as it comes; default for one prompt on a terminal (--nostream: at the end)
  --prompts   a jsonl file: the `prompt` (seq2seq: `source`) of each line, to generated.jsonl, with
              BLEU and chrF where lines have a `reference`; a command that was killed goes on
  --scores    a jsonl file: how probable the `continuation` of each line is after its `prompt`
              (seq2seq: `target` and `source`), to scores.jsonl
  --pairs     a jsonl file, or a folder of them, of minimal pairs `sentence_good`, `sentence_bad`
  --perplexity  a text file, in windows
    --window    tokens of a window; default those of a row in training
    --stride    tokens from window to window; default the window: they do not overlap

  --batch_size  of --prompts, --scores, --pairs, --perplexity; changes no result
  --max_new_tokens, --sampler, --repetition_penalty, --seed   of --prompt and --prompts
  --positions test-time schemes to evaluate under, side by side: see below; default trained;
              --prompt, --prompts and --scores take one

  --positions=SCHEME,…, a SCHEME is any of these, joined by + where several go together:
    trained     as it was trained            base:B      base of the rotary frequencies
    pi:S        position interpolation       none        no positions (only untrained encodings)
    ntk:S       NTK-aware scaling            window:N    attend to fewer than N tokens away
    dyn_ntk[:A] dynamic NTK                  logn        logits grow with ln n beyond training
    parts:S     NTK-by-parts                 yarn:S      YaRN
    llama3:S    Llama 3's scaling            (S: how many times longer than in training)

  --sampler=greedy | temperature:T | top_k:K[:T] | top_p:P[:T] | min_p:P[:T]
    default top_p:0.9, of seq2seq greedy; the steps in order: repetition penalty, temperature,
    top-k, top-p or min-p
"""


class Mode(NamedTuple):
    """What eval.py can do: where it is, and the flags that it reads besides those of all."""

    module: str
    reads: tuple[str, ...]


GENERATION = ("max_new_tokens", "sampler", "repetition_penalty", "seed")
MODES = {  # by the flag that asks for it
    "prompt": Mode("eval_prompt", (*GENERATION, "stream")),
    "prompts": Mode("eval_prompts", (*GENERATION, "batch_size", "out")),
    "scores": Mode("eval_scores", ("batch_size", "out")),
    "pairs": Mode("eval_pairs", ("batch_size", "out")),
    "perplexity": Mode("eval_perplexity", ("window", "stride", "batch_size", "out")),
    "suite": Mode("eval_suite", ("lengths", "out")),
}


def run_eval() -> None:
    """The entry point of eval.py."""
    flags.DEFINE_string("workdir", "", "A run of train.py.")
    flags.DEFINE_integer("step", None, "The checkpoint's step.", lower_bound=0)
    flags.DEFINE_string("weights", "", "Which parameters: raw or ema.")
    flags.DEFINE_string("suite", "", "A file in configs/eval/ by name.")
    flags.DEFINE_string("lengths", "", "Lengths to evaluate at.")
    flags.DEFINE_string("positions", "trained", "Test-time schemes.")
    flags.DEFINE_multi_string("prompt", [], "Text to continue, or a source.")
    flags.DEFINE_bool("stream", None, "Print the text of a prompt as it comes.")
    flags.DEFINE_string("prompts", "", "A jsonl file of prompts or sources.")
    flags.DEFINE_string("scores", "", "A jsonl file of continuations or targets.")
    flags.DEFINE_string("pairs", "", "A jsonl file of minimal pairs, or a folder of them.")
    flags.DEFINE_string("perplexity", "", "A text file.")
    flags.DEFINE_integer("window", None, "Tokens of a window.", lower_bound=1)
    flags.DEFINE_integer("stride", None, "Tokens from window to window.", lower_bound=1)
    flags.DEFINE_integer("batch_size", None, "Rows of a batch.", lower_bound=1)
    flags.DEFINE_integer("max_new_tokens", 100, "Tokens to add to a prompt.", lower_bound=1)
    flags.DEFINE_string("sampler", "", "How tokens are chosen.")
    flags.DEFINE_float("repetition_penalty", 1.0, "For tokens that were there before.")
    flags.DEFINE_integer("seed", 0, "Of the sampler.", lower_bound=0)
    flags.DEFINE_string("dtype", "", "Of weights, cache and computation.")
    flags.DEFINE_string("mesh", "", "Devices along each axis.")
    flags.DEFINE_string("out", "", "Where results go.")
    flags.DEFINE_string("coordinator", None, "Of several processes: HOST:PORT of process 0.")
    flags.DEFINE_integer("num_processes", None, "How many there are.")
    flags.DEFINE_integer("process_id", None, "Which one this is.")
    start(_evaluate, USAGE)


def _evaluate() -> int:
    if not FLAGS.workdir:
        raise UserError("--workdir", "is missing", "give the directory of a train.py run")
    mode = find_mode({name for name in FLAGS if FLAGS[name].present})
    for name in ("prompts", "scores", "pairs", "perplexity"):
        if FLAGS[name].present and not FLAGS[name].value:
            raise UserError(f"--{name}", "is empty", "name a file")
    if FLAGS.workdir == PUBLISHED:
        raise UserError("--workdir", f"is {PUBLISHED}", "name a folder behind it")

    from jaxformer.distributed import find_group, is_alone, joined
    from jaxformer.evaluation.schemes import parse_schemes
    from jaxformer.run import load

    schemes = parse_schemes(FLAGS.positions)
    group = find_group(FLAGS.coordinator, FLAGS.num_processes, FLAGS.process_id, os.environ)
    with joined(group):
        mesh = FLAGS.mesh or ("" if is_alone() else "run")
        run = load(FLAGS.workdir, FLAGS.step, mesh, FLAGS.weights, FLAGS.dtype)
        module: Any = importlib.import_module(f"jaxformer.cli.{mode.module}")
        main: Callable[..., int] = module.main
        return main(run, schemes)


def find_mode(given: set[str]) -> Mode:
    """What the flags that are given ask for; UserError where they do not go together."""
    asked = [name for name in MODES if name in given] or ["suite"]
    if len(asked) > 1:
        what = f"is given with --{asked[0]}"
        raise UserError(f"--{asked[1]}", what, "ask for one thing at a time")
    mode = MODES[asked[0]]
    for name in sorted(given):
        readers = [other for other, one in MODES.items() if name in one.reads]
        if readers and name not in mode.reads:
            what = f"is not read by --{asked[0]}"
            mend = f"leave it out: it is for {', '.join(f'--{reader}' for reader in readers)}"
            raise UserError(f"--{name}", what, mend)
    return mode
