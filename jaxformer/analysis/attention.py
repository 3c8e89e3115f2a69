"""What the heads of a trained decoder attend to: python -m jaxformer.analysis.attention

A command that no module imports: it needs data, checkpoints and tables, so it stands above
`analysis` in the order of imports.
"""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxformer.analysis.attention_scores import SCORES, distance_profile, mean_cosine, weight_on
from jaxformer.command import FLAGS, OK, start
from jaxformer.data import open_data
from jaxformer.data.loader import evaluation_batches
from jaxformer.data.tasks import grammar
from jaxformer.errors import UserError
from jaxformer.evaluation import report
from jaxformer.evaluation.inputs import read_inputs
from jaxformer.evaluation.lengths import Examples, parse_lengths
from jaxformer.evaluation.suite import load_suite
from jaxformer.losses import cross_entropy
from jaxformer.models import forward
from jaxformer.nn.positions.sources import document_limit
from jaxformer.run import Run, load

CAPTURE = ("attention_weights", "hidden_states")
MOST_LABELS = 40  # tokens that are written beside a heat map
USAGE = """\
usage: python -m jaxformer.analysis.attention --workdir=DIR [flags]

  Writes, by layer and head and for each length: entropy, weight on the first token, the previous
  token and on what followed the same token before (induction), weight by distance; of the agreement
  task also the weight of the last token before the verb on the subject, on other nouns, and what
  an even spread would give. Also how alike the states of tokens are (1: all the same) and the
  norm of the gradient, by layer; and heat maps of one example a length.

  --workdir       a run of train.py, a decoder
  --step          the checkpoint's step; default the newest
  --lengths       as of eval.py; default the suite's for the run's data
  --num_examples  examples a length; default 256
  --out           where files go; default WORKDIR/eval/attention
  --debug         show the traceback of an error
"""


def examine(run: Run, examples: Examples, num_examples: int) -> tuple[list[dict], dict[str, Any]]:
    """Rows (layer, head, metric, value, …) of one length, and the arrays of its first batch.

    Nothing where the task has no example of the length.
    """
    graphdef, state = nnx.split(run.model)

    @jax.jit
    def capture(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return forward(nnx.merge(graphdef, params), batch, capture=CAPTURE).captured

    batches, seen = [], 0
    for batch in examples.batches(run.config.eval.batch_size, document_limit(run.config.model)[0]):
        captured = jax.device_get(capture(nnx.to_pure_dict(state), dict(batch)))
        host = {name: np.asarray(array) for name, array in batch.items()}
        filled = np.flatnonzero((host["weights"] > 0).any(1))[: num_examples - seen]
        batches.append({n: x[filled] for n, x in host.items()})
        batches[-1] |= {name: x[:, filled] for name, x in captured.items()}
        seen += len(filled)
        if seen >= num_examples:
            break
    if not seen:
        return [], {}
    joined = {
        name: np.concatenate([b[name] for b in batches], axis=1 if name in CAPTURE else 0)
        for name in batches[0]
    }
    real_BL = joined["segment_ids"] != 0
    weights_NBHLS, tokens_BL = joined["attention_weights"], joined["tokens"]
    found = {name: score(weights_NBHLS, tokens_BL, real_BL) for name, score in SCORES.items()}
    if "verb_index" in joined:
        found |= _nouns(weights_NBHLS, tokens_BL, joined["verb_index"])
    rows = [
        _row(layer, head, name, x) for name, xs in found.items() for (layer, head), x in _all(xs)
    ]
    for (layer, head, d), x in _all(distance_profile(weights_NBHLS, real_BL)):
        rows.append(_row(layer, head, "distance", x) | {"distance": d})
    for (layer,), x in _all(mean_cosine(joined["hidden_states"], real_BL)):
        rows.append(_row(layer, "", "mean_cosine", x))
    told = [{"length": examples.length} | row for row in rows if np.isfinite(row["value"])]
    return told, {name: array for name, array in batches[0].items() if name != "hidden_states"}


def _nouns(weights: np.ndarray, tokens_BL: np.ndarray, last_B: np.ndarray) -> dict[str, np.ndarray]:
    """Weight of the last token before the verb on the subject, which is the first noun, and on
    each other noun before it."""
    is_noun = (tokens_BL >= grammar.NOUN) & (tokens_BL < grammar.ADJECTIVE)
    nouns_BL = is_noun & (np.arange(tokens_BL.shape[1]) <= last_B[:, None])
    subject_BL = nouns_BL & (np.cumsum(nouns_BL, 1) == 1)
    even = np.full(weights.shape[:1] + weights.shape[2:3], (1 / (last_B + 1)).mean())
    return {
        "subject": weight_on(weights, last_B, subject_BL),
        "distractor": weight_on(weights, last_B, nouns_BL & ~subject_BL),
        "even": even,
    }


def gradient_norms(run: Run, batch: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The norm of the gradient of the mean loss, by layer and by what stands outside of them."""
    graphdef, state = nnx.split(run.model)

    @jax.jit
    @jax.grad
    def gradient(params: Any) -> jax.Array:
        arrays = {name: jnp.asarray(array) for name, array in batch.items()}
        out = forward(nnx.merge(graphdef, params), arrays)
        total, weight = cross_entropy(out.logits, arrays["targets"], arrays["weights"])
        return total / weight

    grads, squares = jax.device_get(gradient(nnx.to_pure_dict(state))), {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(grads):
        names = [str(key.key) for key in keys]
        if names[0] == "layers" and run.config.model.scan_layers:
            parts = {f"layers/{n}": x for n, x in enumerate(leaf)}
        else:
            parts = {"/".join(names[: 1 + (names[0] == "layers")]): leaf}
        for name, x in parts.items():
            squares[name] = squares.get(name, 0.0) + float((np.float64(x) ** 2).sum())
    return {name: square**0.5 for name, square in squares.items()}


def tables(rows: Sequence[Mapping[str, Any]], norms: Mapping[str, float]) -> str:
    """Markdown: heads by length, tokens' likeness and gradient norms by layer."""
    text = ""
    for length in dict.fromkeys(row["length"] for row in rows):
        heads: dict[tuple[int, int], dict[str, Any]] = {}
        for row in rows:
            if row["length"] == length and row["head"] != "" and row["metric"] != "distance":
                place = row["layer"], row["head"]
                own = heads.setdefault(place, dict(zip(("layer", "head"), place, strict=True)))
                own[row["metric"]] = f"{row['value']:.3f}"
        text += f"## Heads at length {length}\n\n{report.markdown(list(heads.values()))}\n"
    alike: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["metric"] == "mean_cosine":
            own = alike.setdefault(row["layer"], {"layer": row["layer"]})
            own[f"length {row['length']}"] = f"{row['value']:.3f}"
    text += "## Mean cosine between tokens, after each layer\n\n"
    text += report.markdown(list(alike.values()))
    shown = [{"part": name, "gradient norm": f"{norm:.4g}"} for name, norm in norms.items()]
    return text + f"\n## Gradient norm on validation rows\n\n{report.markdown(shown)}"


def heat_map(weights_NHLS: np.ndarray, words: Sequence[str]) -> bytes:
    """A PNG of one example, a panel a head: what each token (down) attends to (across)."""
    n, heads, size = weights_NHLS.shape[0], weights_NHLS.shape[1], len(words)
    scale = max(2.2, 0.16 * size)
    figure = Figure(figsize=(scale * heads + 1, scale * n + 1), layout="constrained")
    FigureCanvasAgg(figure)
    image: Any = None
    for (layer, head), panel in np.ndenumerate(figure.subplots(n, heads, squeeze=False)):
        image = panel.imshow(
            weights_NHLS[layer, head, :size, :size], cmap="cividis", vmin=0, vmax=1
        )
        panel.set_title(f"layer {layer}, head {head}", fontsize=8)
        panel.set(xticks=[], yticks=[])
        if size <= MOST_LABELS and head == 0:
            panel.set_yticks(range(size), words, fontsize=6)
        if size <= MOST_LABELS and layer == n - 1:
            panel.set_xticks(range(size), words, fontsize=6, rotation=90)
    figure.colorbar(image, ax=figure.axes, label="attention weight", shrink=0.6)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": "jaxformer"})
    return buffer.getvalue()


def write_report(run: Run, out: Path, lengths: tuple[int, ...], num_examples: int) -> list[Path]:
    """Writes attention.csv, table.md and a heat map a length. Raises UserError."""
    cfg = run.config
    if cfg.model.architecture != "decoder":
        what = f"is {cfg.model.architecture}"
        raise UserError("model.architecture", what, "heads are reported of decoders")
    data = open_data(cfg, None)
    suite = load_suite("", cfg.data, cfg.objective.kind)
    suite = dataclasses.replace(suite, num_examples=num_examples)
    drawn = read_inputs(cfg, data, suite, lengths).examples
    rows, paths = [], []
    for examples in drawn:
        found, first = examine(run, examples, num_examples)
        if not found:
            continue
        rows += found
        size = int((first["segment_ids"][0] != 0).sum())
        words = [run.tokenizer.token(token) for token in first["tokens"][0, :size]]
        image = heat_map(first["attention_weights"][:, 0], words)
        out.mkdir(parents=True, exist_ok=True)
        paths.append(report.write_atomic(out / f"length_{examples.length}.png", image))
    batch = next(evaluation_batches(data.validation, cfg.eval.batch_size))
    text = tables(rows, gradient_norms(run, batch))
    return [
        report.write_csv(out / "attention.csv", rows),
        report.write_atomic(out / "table.md", text),
        *paths,
    ]


def _row(layer: Any, head: Any, metric: str, value: float) -> dict[str, Any]:
    return {"layer": layer, "head": head, "metric": metric, "value": float(value)}


def _all(values: np.ndarray) -> Any:
    return np.ndenumerate(values)


def _main() -> int:
    if not FLAGS.workdir:
        raise UserError("--workdir", "is missing", "give the directory of a train.py run")
    lengths = parse_lengths(FLAGS.lengths) if FLAGS.lengths else ()
    out = Path(FLAGS.out or Path(FLAGS.workdir) / "eval" / "attention")
    paths = write_report(load(FLAGS.workdir, FLAGS.step), out, lengths, FLAGS.num_examples)
    print(paths[1].read_text(encoding="utf-8"))
    print("written: " + "\n         ".join(map(str, paths)))
    return OK


def main() -> None:
    flags.DEFINE_string("workdir", "", "A run of train.py.")
    flags.DEFINE_integer("step", None, "The checkpoint's step.", lower_bound=0)
    flags.DEFINE_string("lengths", "", "Lengths to look at.")
    flags.DEFINE_integer("num_examples", 256, "Examples a length.", lower_bound=1)
    flags.DEFINE_string("out", "", "Where files go.")
    start(_main, USAGE)


if __name__ == "__main__":
    main()
