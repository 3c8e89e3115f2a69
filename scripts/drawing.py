"""Figures of position encodings, in one style, with the parameters that encodings start from."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from configs import base
from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.positions import PositionEncoding, encoding_class

# Okabe and Ito's colours, which readers with any colour vision tell apart, and dashes besides.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES = ("-", "--", "-.", ":")
TRAINED, FACTOR = 256, 4  # length and factor of the pictures of RoPE's scalings


def config(kind: str, changes: dict[str, Any]) -> ModelConfig:
    """The base model, heads of 64 dimensions, with some fields of `model.position` changed."""
    model: Any = base.model()
    model.update({"d_model": 512, "num_heads": 8, "max_length": TRAINED})
    model.position.update_from_flattened_dict({"kind": kind} | changes)
    return ModelConfig.from_config_dict(model)


def encoding(kind: str, changes: dict[str, Any] | None = None) -> PositionEncoding:
    """As a causal model starts with it."""
    abstract = encoding_class(kind)(config(kind, changes or {}), True)
    params = parameters.fill(abstract, jax.random.key(0))
    return nnx.merge(nnx.split(abstract)[0], params)


def biases(of: PositionEncoding, distances: np.ndarray, query: int = 0) -> np.ndarray:
    """float32[H, S] of a query at `query`: unless given as far as the largest distance."""
    at = query or int(distances.max())
    bias = of.bias(jnp.array([[at]]), jnp.asarray(at - distances)[None])
    assert bias is not None
    return np.asarray(bias)[0, :, 0]


def likeness(of: PositionEncoding, distances: np.ndarray) -> np.ndarray:
    """float32[S]: the mean of cos(distance · w_m), from a query and keys of ones, turned."""
    last = int(distances.max())
    ids_BS, ones_BSHK = jnp.asarray(last - distances)[None], jnp.ones((1, len(distances), 1, 64))
    extents_BS = jnp.full_like(ids_BS, last + 1)
    q_BLHK, _ = of.rotate(ones_BSHK, ones_BSHK, jnp.full_like(ids_BS, last), extents_BS)
    _, k_BSHK = of.rotate(ones_BSHK, ones_BSHK, ids_BS, extents_BS)
    return np.asarray((q_BLHK * k_BSHK).mean(-1))[0, :, 0]


def figure(titles: Sequence[str], x_label: str, y_labels: Sequence[str], rows: int = 1) -> Any:
    """A figure and its panels, in rows; the last of the y labels serves all that follow."""
    columns = len(titles) // rows
    fig = Figure(figsize=(4.2 * columns, 2.9 * rows), layout="constrained")
    FigureCanvasAgg(fig)
    axes = np.atleast_1d(fig.subplots(rows, columns)).ravel()
    for n, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        ax.set_title(title, fontsize=10)
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_labels[min(n, len(y_labels) - 1)])
        ax.grid(alpha=0.3)
        ax.set_prop_cycle(color=list(COLOURS), linestyle=list(DASHES * 2))
    return fig, axes


def below(ax: Any) -> None:
    """A legend under curves between -1 and 1."""
    ax.set_ylim(-1.6, 1.1)
    ax.legend(fontsize=7, loc="lower center", ncols=4, columnspacing=1, handlelength=1.8)
