"""Runs a kernel on each device of a mesh by itself, on the rows and heads that the device holds.

XLA partitions what it can look into. A loop over the rows of a batch, or a Pallas call, it would
have every device do as a whole instead.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxformer.nn.kernels.rule import Rule, overrides
from jaxformer.nn.masks import Visibility
from jaxformer.sharding import AXES, partition, shards

POSITIONS = ("q_positions_BL", "k_positions_BS")


def spread(
    kernel: Callable[..., jax.Array],
    q_BLHK: jax.Array,
    k_BSGK: jax.Array,
    v_BSGK: jax.Array,
    rule: Rule,
    *,
    step: int = 1,
    prepare: Callable[..., Any] | None = None,
) -> jax.Array:
    """What the kernel returns; without a mesh, or where one is split by hand already, just that.

    Keys and values are gathered along the length. Queries are cut along it where each device gets
    a multiple of `step`. `prepare(rule, q_shape, k_shape, shards)` makes what a kernel has to know
    of the places of its queries, to be cut with them, which it is given besides.
    """
    mesh, shapes = jax.sharding.get_abstract_mesh(), (q_BLHK.shape, k_BSGK.shape)
    by_hand = any(kind == AxisType.Manual for kind in mesh.axis_types)
    if AXES[0] not in mesh.axis_names or by_hand:
        prepared = () if prepare is None else (prepare(rule, *shapes, 1),)
        return kernel(q_BLHK, k_BSGK, v_BSGK, rule, *prepared)
    k_BSGK, v_BSGK = share_heads(q_BLHK, k_BSGK, v_BSGK)
    batch = _axes(mesh, "batch", q_BLHK.shape[0])
    length = _axes(mesh, "length", q_BLHK.shape[1], step)
    # A position encoding gives the biases of all heads, so each device does them all.
    biased = rule.encoding is not None and overrides(rule.encoding, "bias", "allow")
    heads = None if biased else _axes(mesh, "heads", k_BSGK.shape[2])
    places, encoding, state = _taken_apart(rule)
    by_place = {
        name: PartitionSpec(batch if x.shape[0] > 1 else None, length if name[0] == "q" else None)
        for name, x in places.items()
    }
    queries, keys = PartitionSpec(batch, length, heads), PartitionSpec(batch, None, heads)
    prepared, by_prepared = (), ()
    if prepare is not None:
        prepared = (prepare(rule, *shapes, _count(mesh, length)),)
        sharding = NamedSharding(mesh, PartitionSpec(None, length))
        by_prepared = (prepared[0].manual_sharding_spec(sharding),)

    def on_device(q, k, v, places, sink_H, state, *prepared):
        return kernel(q, k, v, _together(rule, places, sink_H, encoding, state), *prepared)

    run = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(
            *(queries, keys, keys, by_place),
            *(PartitionSpec(heads), PartitionSpec()),
            *by_prepared,
        ),
        out_specs=queries,
        check_vma=False,
    )
    return run(q_BLHK, k_BSGK, v_BSGK, places, rule.sink_H, state, *prepared)


def share_heads(
    q_BLHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Keys and values with a copy of a head for each device that has queries of it.

    As they are where the mesh in use cuts no heads, or has no more pieces than they have heads.
    """
    pieces, groups = shards("heads"), k_BSGK.shape[2]
    if groups % pieces == 0 or pieces % groups or q_BLHK.shape[2] % pieces:
        return k_BSGK, v_BSGK
    return jnp.repeat(k_BSGK, pieces // groups, 2), jnp.repeat(v_BSGK, pieces // groups, 2)


def _axes(mesh: AbstractMesh, logical: str, size: int, step: int = 1) -> Any:
    """The mesh axes along which a dimension is cut; None where it is whole or does not divide."""
    (axes,) = partition(logical)
    return axes if size % (_count(mesh, axes) * step) == 0 else None


def _count(mesh: AbstractMesh, axes: Any) -> int:
    names = axes if isinstance(axes, tuple) else (axes,) if axes else ()
    return math.prod(mesh.shape[name] for name in names)


def _taken_apart(rule: Rule) -> tuple[dict[str, jax.Array], Any, Any]:
    """The arrays [B, L] and [B, S] of a rule, the encoding as a graph, and its parameters."""
    view = {f.name: getattr(rule.visibility, f.name) for f in dataclasses.fields(Visibility)}
    arrays = view | {name: getattr(rule, name) for name in POSITIONS}
    places = {name: x for name, x in arrays.items() if hasattr(x, "shape")}
    if rule.encoding is None:
        return places, None, {}
    encoding, state = nnx.split(rule.encoding)
    return places, encoding, nnx.to_pure_dict(state)


def _together(rule: Rule, places: Any, sink_H: Any, encoding: Any, state: Any) -> Rule:
    positions = {name: x for name, x in places.items() if name in POSITIONS}
    view = {name: x for name, x in places.items() if name not in POSITIONS}
    return dataclasses.replace(
        rule,
        visibility=dataclasses.replace(rule.visibility, **view),
        sink_H=sink_H,
        encoding=None if encoding is None else nnx.merge(encoding, state),
        key=None,
        **positions,
    )
