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
    data_fields=["step", "params", "opt_state", "skipped", "skipped_total"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class TrainState:
    """`step` counts batches consumed; `skipped` the non-finite updates up to now in a row."""

    step: jax.Array
    params: Any
    opt_state: Any
    skipped: jax.Array
    skipped_total: jax.Array


def new_state(params: Any, tx: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, tx.init(params), zero, zero)


def abstract_state(
    make_params: Callable[[], Any],
    tx: optax.GradientTransformation,
    mesh: Mesh | None,
    *,
    padded: bool = True,
) -> TrainState:
    """Shapes, dtypes and shardings of a state, at no cost; moments live where parameters do.

    `padded`: with rows behind a vocabulary that the mesh does not divide, as in training; without
    them it is what checkpoints hold.
    """
    make = (lambda: pad(mesh, make_params())) if padded else make_params
    abstract = jax.eval_shape(lambda: new_state(make(), tx))
    everywhere = replicated(mesh)
    of_params = params_shardings(mesh, abstract.params)
    of_moments = optax.tree.map_params(
        tx,
        lambda _, sharding: sharding,
        abstract.opt_state,
        of_params,
        transform_non_params=lambda _: everywhere,
    )
    shardings = dataclasses.replace(
        jax.tree.map(lambda _: everywhere, abstract), params=of_params, opt_state=of_moments
    )
    return jax.tree.map(
        lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s),
        abstract,
        shardings,
    )


def shardings_of(abstract: Any) -> Any:
    """The shardings of a tree of ShapeDtypeStructs."""
    return jax.tree.map(lambda leaf: leaf.sharding, abstract)


def initialise(
    make_params: Callable[[], Any], tx: optax.GradientTransformation, abstract: TrainState
) -> TrainState:
    """Makes the state in place: each device computes its own shards and never holds the whole."""

    def make() -> TrainState:
        params = jax.tree.map(lambda x, like: fit(x, like.shape), make_params(), abstract.params)
        return new_state(params, tx)

    return jax.jit(make, out_shardings=shardings_of(abstract))()
