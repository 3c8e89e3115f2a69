"""Measures the tables of docs/reproductions.md: python -m scripts.reproductions [OUT]

Small experiments of textbooks on the Transformer, with this project's own modules, beside the
numbers that course notes report. All seeds of a row are trained together, in one program.
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from configs import base
from jaxformer.config import LayerSpec, ModelConfig
from jaxformer.evaluation.report import markdown, write_atomic
from jaxformer.losses import accuracy, cross_entropy
from jaxformer.models import build
from jaxformer.nn import masks, parameters
from jaxformer.nn.attention import SelfAttention
from jaxformer.nn.context import Context
from jaxformer.nn.linear import Embedding, Linear
from jaxformer.nn.positions import make_encodings

OUT = Path(__file__).resolve().parent.parent / "docs" / "reproductions.md"
SEEDS, WORDS, LENGTH = 3, 10, 12
HEAD_TARGETS = (1, 2, 4)  # how far back the words are that one layer has to find at once
BACK = 3  # … and a deep model

# A model's logits [B, L, …, WORDS] of tokens [B, L].
Forward = Callable[[dict[str, Any], jax.Array], jax.Array]


class OneLayer(nnx.Module):
    """One attention layer without residual connection, norm or feed-forward layer."""

    def __init__(self, cfg: ModelConfig):
        init, dtype = parameters.scheme(cfg), jnp.dtype("float32")
        self.embedding = Embedding(cfg.vocab_size, cfg.d_model, init.embedding)
        self.position = make_encodings(cfg, causal=True)
        self.attention = SelfAttention(cfg, LayerSpec(cfg.position.kind, window=0), dtype)
        size = len(HEAD_TARGETS) * cfg.vocab_size
        self.head = Linear(cfg.d_model, size, bias=True, initializer=init.kernel, dtype=dtype)

    def __call__(self, tokens_BL: jax.Array) -> jax.Array:
        """Logits [B, L, targets, V]."""
        segments_BL = jnp.ones_like(tokens_BL)
        place_BL, rest = masks.order(segments_BL), (None, None, None, frozenset())
        view = masks.Visibility(place_BL, place_BL, segments_BL, segments_BL, causal=True)
        extents_BL = masks.extents(place_BL, segments_BL)
        context = Context(self.position, view, place_BL, place_BL, extents_BL, *rest)
        x_BLD = self.embedding(tokens_BL)
        for encoding in self.position.values():
            x_BLD = encoding.embed(x_BLD, place_BL)
        x_BLD, _, _ = self.attention(x_BLD, context, 0, None)
        return self.head(x_BLD).reshape(*tokens_BL.shape, len(HEAD_TARGETS), -1)


def config(**changes: Any) -> ModelConfig:
    """The base model over ten words, with some fields changed."""
    model: Any = base.model()
    model.update({"vocab_size": WORDS, "max_length": LENGTH, "initializer": "xavier"})
    model.update(changes)
    return ModelConfig.from_config_dict(model)


def earlier(tokens_BL: jax.Array, back: int) -> tuple[jax.Array, jax.Array]:
    """The word `back` places before each, and 1 where there is one."""
    weights_BL = (jnp.arange(tokens_BL.shape[1]) >= back)[None] * jnp.ones(tokens_BL.shape)
    return jnp.roll(tokens_BL, back, axis=1), weights_BL


def losses(logits: jax.Array, tokens_BL: jax.Array, backs: tuple[int, ...]) -> jax.Array:
    """Mean cross-entropy in nats over all words that are asked for."""
    parts = [
        cross_entropy(logits[..., n, :], *earlier(tokens_BL, back)) for n, back in enumerate(backs)
    ]
    total, weight = (sum(column) for column in zip(*parts, strict=True))
    return jnp.asarray(total / weight)


@dataclasses.dataclass(frozen=True)
class Trained:
    """Parameters stacked over seeds, and what was seen of them."""

    params: Any
    losses_SN: np.ndarray
    accuracy_ST: np.ndarray  # by target, on words never trained on


def train(
    module: nnx.Module, backs: tuple[int, ...], *, steps: int, rate: Any, batch_size: int = 64
) -> Trained:
    """Trains every seed on new random words in each step, and tests on 1,000 other rows."""
    graphdef, _ = nnx.split(module)
    forward: Forward = lambda params, tokens: logits_of(graphdef, params, tokens)  # noqa: E731
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    def one_seed(seed: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        key = jax.random.key(seed)
        params = parameters.fill(module, key)

        def step(carry: tuple[Any, Any], number: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
            params, opt_state = carry
            tokens_BL = words(jax.random.fold_in(key, number), batch_size)
            of = lambda p: losses(forward(p, tokens_BL), tokens_BL, backs)  # noqa: E731
            loss, grads = jax.value_and_grad(of)(params)
            updates, opt_state = tx.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), loss

        carry = params, tx.init(params)
        (params, _), losses_N = jax.lax.scan(step, carry, jnp.arange(steps))
        tokens_BL = words(jax.random.fold_in(key, steps), 1000)
        logits = forward(params, tokens_BL)
        found = [
            accuracy(logits[..., n, :], *earlier(tokens_BL, back)) for n, back in enumerate(backs)
        ]
        return params, losses_N, jnp.stack([right / weight for right, weight in found])

    params, losses_SN, accuracy_ST = jax.jit(jax.vmap(one_seed))(jnp.arange(SEEDS))
    return Trained(params, np.asarray(losses_SN), np.asarray(accuracy_ST))


def logits_of(graphdef: nnx.GraphDef, params: Any, tokens_BL: jax.Array) -> jax.Array:
    """Logits [B, L, targets, V] of either kind of model."""
    out: Any = nnx.merge(graphdef, params)
    out = out(tokens_BL)
    return out if isinstance(out, jax.Array) else out.logits[..., None, :]


def words(key: jax.Array, rows: int) -> jax.Array:
    return jax.random.randint(key, (rows, LENGTH), 0, WORDS)


def scaling() -> str:
    """Softmax over ten keys with and without the division by sqrt(d_k)."""
    reference = {
        4: (2.0, 0.497, 0.308, 0.335, 0.340),
        16: (4.0, 0.733, 0.317, 0.261, 0.346),
        64: (8.1, 0.856, 0.317, 0.169, 0.349),
        256: (16.0, 0.934, 0.319, 0.087, 0.347),
        1024: (32.2, 0.965, 0.320, 0.048, 0.348),
    }

    @functools.partial(jax.jit, static_argnums=1)
    def measure(key: jax.Array, width: int) -> jax.Array:
        q_key, k_key = jax.random.split(key)
        q = jax.random.normal(q_key, (2000, width))
        k = jax.random.normal(k_key, (2000, 10, width))
        scores = jnp.einsum("nk,nsk->ns", q, k)
        found = [scores.std()]
        for scale in (1.0, width**-0.5):
            p = jax.nn.softmax(scores * scale)
            slope = jnp.eye(10)[None] * p[:, None] - p[:, None] * p[..., None]
            found += [p.max(-1).mean(), jnp.linalg.norm(slope, axis=(1, 2)).mean()]
        return jnp.stack(found)

    rows = []
    for width, theirs in reference.items():
        ours = np.mean([measure(jax.random.key(seed), width) for seed in range(SEEDS)], axis=0)
        std, *rest = theirs
        notes = (std, rest[0], rest[2], rest[1], rest[3])  # weight, slope; unscaled, then scaled
        names = ("std of q·k", "max weight", "slope", "max weight, scaled", "slope, scaled")
        pairs = zip(names, ours, notes, strict=True)
        rows.append({"d_k": width} | {name: f"{o:.3f} ({n:.3f})" for name, o, n in pairs})
    return markdown(rows)


def heads() -> str:
    """One layer that has to look at three places at once, by number of heads."""
    reference = {
        1: (0.691, 0.313, 0.612, 0.100),
        2: (0.984, 0.941, 0.967, 0.919),
        3: (1.0,) * 4,
        6: (1.0,) * 4,
    }
    rows = []
    for number, theirs in reference.items():
        cfg = config(d_model=24, num_heads=number)
        module = OneLayer(cfg)
        size = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))
        found = train(module, HEAD_TARGETS, steps=3000, rate=1e-2).accuracy_ST
        ours = (*found.mean(0), found.min())
        names = (*(f"x[t-{back}]" for back in HEAD_TARGETS), "worst")
        pairs = zip(names, ours, theirs, strict=True)
        row = {"heads": number, "parameters": f"{size:,}"}
        rows.append(row | {name: f"{o:.3f} ({n:.3f})" for name, o, n in pairs})
    return markdown(rows)


def residual() -> str:
    """Eight layers with and without residual connections."""
    reference = {
        "Pre-LN": (0.126, 1.062, 0.003, 1.0),
        "Post-LN": (0.235, 1.044, 0.003, 1.0),
        "Pre-LN without residuals": (1.000, 2.317, 2.305, 0.101),
    }
    changes = {"norm_placement": "post"}, {"residual": False}
    models = dict(zip(reference, ({}, *changes), strict=True))
    rows = []
    for name, theirs in reference.items():
        cfg = config(num_layers=8, scan_layers=True, initializer="gpt2", **models[name])
        found = train(build(cfg), (BACK,), steps=300, rate=1e-3)
        ours = (
            np.mean([cosine(cfg, seed) for seed in range(SEEDS)]),
            found.losses_SN[:, :50].mean(),
            found.losses_SN[:, -50:].mean(),
            found.accuracy_ST.mean(),
        )
        names = ("cosine at the start", "loss, first 50", "loss, last 50", "accuracy")
        pairs = zip(names, ours, theirs, strict=True)
        rows.append({"model": name} | {what: f"{o:.3f} ({n:.3f})" for what, o, n in pairs})
    return markdown(rows)


def cosine(cfg: ModelConfig, seed: int) -> float:
    """Mean cosine between the last hidden states of two places of a row, before training."""
    module = build(cfg)
    graphdef, _ = nnx.split(module)

    @jax.jit  # the key is an argument: XLA would draw the parameters while it compiles a constant
    def measure(key: jax.Array) -> jax.Array:
        model: Any = nnx.merge(graphdef, parameters.fill(module, key))
        x_BLD = model(words(key, 64)).hidden
        x_BLD /= jnp.linalg.norm(x_BLD, axis=-1, keepdims=True)
        between_BLL = jnp.einsum("bld,bsd->bls", x_BLD, x_BLD)
        length = x_BLD.shape[1]
        others = between_BLL.sum((1, 2)) - length
        return (others / (length * (length - 1))).mean()

    return float(measure(jax.random.key(seed)))


def depth() -> str:
    """24 layers by initialisation, placement of norms, and warmup; gradients at the start."""
    rows = []
    for initializer, placement in itertools.product(("gpt2", "xavier"), ("pre", "post")):
        changes = {"norm_placement": placement, "initializer": initializer}
        cfg = config(num_layers=24, scan_layers=True, **changes)
        norms = gradient_norms(cfg)
        for warmup in (0, 200):
            rise = optax.linear_schedule(0.0, 1e-3, warmup) if warmup else 1e-3
            found = train(build(cfg), (BACK,), steps=600, rate=rise, batch_size=32)
            by_seed = found.losses_SN[:, -50:].mean(1)
            rows.append(
                {
                    "initializer": initializer,
                    "model": "Pre-LN" if placement == "pre" else "Post-LN",
                    "warmup steps": warmup,
                    "loss, last 50, by seed": ", ".join(f"{loss:.3f}" for loss in by_seed),
                    "accuracy": f"{found.accuracy_ST.mean():.3f}",
                    "gradient norm at the start, layers 1, 12, 24": ", ".join(
                        f"{norms[n]:.3f}" for n in (0, 11, 23)
                    ),
                }
            )
    return markdown(rows)


def gradient_norms(cfg: ModelConfig) -> np.ndarray:
    """Norm of the loss's gradient with respect to each layer at initialisation, mean of seeds."""
    module = build(cfg)
    graphdef, _ = nnx.split(module)

    @jax.jit
    def measure(seed: jax.Array) -> jax.Array:
        key = jax.random.key(seed)
        tokens_BL = words(key, 256)
        of = lambda p: losses(logits_of(graphdef, p, tokens_BL), tokens_BL, (BACK,))  # noqa: E731
        grads = jax.grad(of)(parameters.fill(module, key))["layers"]
        squares = [
            jnp.square(leaf).reshape(len(leaf), -1).sum(1) for leaf in jax.tree.leaves(grads)
        ]
        return jnp.sqrt(jnp.stack(squares).sum(0))

    return np.mean([measure(jnp.int32(seed)) for seed in range(SEEDS)], axis=0)


TEXT = """\
# Reproductions

Claims of course notes on the Transformer, measured with this code: `make tables` writes this
page. Means of three seeds, the notes' numbers in brackets (runs of their own code, whose budgets
are not all known: claims should hold, digits need not). `scripts/reproductions.py` says what each
experiment is.

## Dividing by sqrt(d_k)

2,000 draws of one query and ten keys, standard normal: without the division the softmax of wide
keys puts all weight on one of them and has no slope. Slope: Frobenius norm of its Jacobian.

{scaling}
## Heads

Random sequences over ten words; at every position the words one, two and four places before are to
be named at once, by one attention layer of width 24 with learned positions. One head cannot look at
three places; three can, with the same number of parameters. `worst`: the worst target of any seed.

{heads}
## Residual connections and norm placement

Eight layers name the word three places before, 300 steps, initialised as GPT-2. Without residual
connections all positions look alike from the start (cosine 1) and nothing is learned.

{residual}
## Depth and warmup

24 layers on the same words, 600 steps, peak rate 1e-3, all seeds. The notes claim that Post-LN
needs warmup and Pre-LN does not; they have no table. Here the initialisation decides: with GPT-2's,
Post-LN learns without warmup too; with Xavier's it learns neither with 200 steps of it nor without.

{depth}"""


def main(out: str = str(OUT)) -> None:
    tables = {table.__name__: table() for table in (scaling, heads, residual, depth)}
    print(f"written: {write_atomic(Path(out), TEXT.format(**tables))}")


if __name__ == "__main__":
    main(*sys.argv[1:])
