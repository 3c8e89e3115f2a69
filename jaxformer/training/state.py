"""The state of training: all that a checkpoint holds and a step replaces."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxformer.sharding import fit, pad, params_shardings, replicated


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["step", "params", "opt_state", "ema", "skipped", "skipped_total"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class TrainState:
    """`step` counts batches consumed; `skipped` the non-finite updates up to now in a row.

    `ema` is the average of the parameters, {} where a run has none.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    ema: Any
    skipped: jax.Array
    skipped_total: jax.Array


def new_state(params: Any, tx: optax.GradientTransformation, *, ema: bool = False) -> TrainState:
    """The state before the first step; `ema`: with an average of the parameters."""
    zero = jnp.zeros((), jnp.int32)
    average = jax.tree.map(jnp.copy, params) if ema else {}
    return TrainState(zero, params, tx.init(params), average, zero, zero)


def abstract_state(
    make_params: Callable[[], Any],
    tx: optax.GradientTransformation,
    mesh: Mesh | None,
    *,
    padded: bool = True,
    ema: bool = False,
) -> TrainState:
    """Shapes, dtypes and shardings of a state, at no cost; moments live where parameters do.

    So does the average, where there is one.

    `padded`: with rows behind a vocabulary that the mesh does not divide, as in training; without
    them it is what checkpoints hold.
    """
    make = (lambda: pad(mesh, make_params())) if padded else make_params
    abstract = jax.eval_shape(lambda: new_state(make(), tx, ema=ema))
    everywhere = replicated(mesh)
    of_params = params_shardings(mesh, abstract.params)
    of_moments = optax.tree.map_params(
        tx,
        lambda moment, sharding: moment if _is_masked(moment) else sharding,
        abstract.opt_state,
        of_params,
        transform_non_params=lambda _: everywhere,
        is_leaf=_is_masked,
    )
    shardings = dataclasses.replace(
        jax.tree.map(lambda _: everywhere, abstract),
        params=of_params,
        opt_state=of_moments,
        ema=of_params if ema else {},
    )
    return jax.tree.map(
        lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s),
        abstract,
        shardings,
    )


def _is_masked(leaf: Any) -> bool:
    """In the place of a parameter that another part of an optimizer has."""
    return isinstance(leaf, optax.MaskedNode)


def shardings_of(abstract: Any) -> Any:
    """The shardings of a tree of ShapeDtypeStructs."""
    return jax.tree.map(lambda leaf: leaf.sharding, abstract)


def initialise(
    make_params: Callable[[], Any], tx: optax.GradientTransformation, abstract: TrainState
) -> TrainState:
    """Makes the state in place: each device computes its own shards and never holds the whole."""

    def make() -> TrainState:
        params = jax.tree.map(lambda x, like: fit(x, like.shape), make_params(), abstract.params)
        return new_state(params, tx, ema=bool(abstract.ema))

    return jax.jit(make, out_shardings=shardings_of(abstract))()
