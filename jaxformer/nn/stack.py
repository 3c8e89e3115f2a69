"""The layers of a model, unrolled or stacked under one `lax.scan`: the same numbers either way."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn.attention import CrossAttention
from jaxformer.nn.block import Block
from jaxformer.nn.cache import LayerCache
from jaxformer.nn.context import Context
from jaxformer.nn.platform import head_dtype
from jaxformer.sharding import constrain

Layers = nnx.List | Block
Caches = tuple[LayerCache, ...] | LayerCache | None

# What the backward pass finds in memory; the rest is computed again (Chen et al. 2016).
REMAT_POLICIES: dict[str, Any] = {
    "full": jax.checkpoint_policies.nothing_saveable,  # each layer's input only
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # results of linear layers
}


def make_layers(
    cfg: ModelConfig, num_layers: int, dtype: jnp.dtype, *, cross: bool = False
) -> Layers:
    """A list of blocks, or one abstract block whose parameters have a leading layer axis."""
    specs = cfg.layer_specs(num_layers)
    if not cfg.scan_layers:
        return nnx.List([Block(cfg, spec, dtype, cross=cross) for spec in specs])
    graphdef, state = nnx.split(Block(cfg, specs[0], dtype, cross=cross))
    stacked = jax.tree.map(lambda s: jax.ShapeDtypeStruct((num_layers, *s.shape), s.dtype), state)
    return nnx.merge(graphdef, stacked)


def run_layers(
    layers: Layers,
    x_BLD: jax.Array,
    context: Context,
    *,
    remat: str,
    caches: Caches = None,
    cross_caches: Caches = None,
) -> tuple[jax.Array, Caches, dict[str, jax.Array]]:
    """Runs the layers in turn; captured arrays are stacked over layers, [N, ...].

    So are the `routing` of those that have experts.
    """
    run = _run_unrolled if isinstance(layers, nnx.List) else _run_scanned
    return run(layers, x_BLD, context, remat, caches, cross_caches)


def source_caches(layers: Layers, hidden_BSD: jax.Array) -> Caches:
    """Keys and values of the source for every layer's cross-attention, computed once."""
    if isinstance(layers, nnx.List):
        return tuple(_source_cache(block.cross_attention, hidden_BSD) for block in layers)
    graphdef, state = nnx.split(layers)

    def keys_values(state: nnx.State) -> LayerCache:
        return _source_cache(nnx.merge(graphdef, state).cross_attention, hidden_BSD)

    return jax.lax.map(keys_values, state)


def _source_cache(attention: CrossAttention | None, hidden_BSD: jax.Array) -> LayerCache:
    assert attention is not None
    k_BSGK, v_BSGK = attention.keys_values(hidden_BSD)
    dtype = head_dtype(k_BSGK.dtype)
    return LayerCache.of(k_BSGK.astype(dtype), v_BSGK.astype(dtype))


def _run_unrolled(layers, x_BLD, context, remat, caches, cross_caches):
    new_caches, captured = [], []
    for i, layer in enumerate(layers):
        graphdef, state = nnx.split(layer)

        def run(state, x_BLD, cache, cross_cache, i=i, graphdef=graphdef):
            block = nnx.merge(graphdef, state)
            x_BLD, cache, seen = block(x_BLD, context, i, cache, cross_cache)
            return constrain(x_BLD, "batch", "length", None), cache, seen

        cache, cross_cache = (None if c is None else c[i] for c in (caches, cross_caches))
        run = _rematerialised(run, remat, prevent_cse=True)
        x_BLD, cache, seen = run(state, x_BLD, cache, cross_cache)
        new_caches.append(cache)
        captured.append(seen)
    routing = [seen.pop("routing") for seen in captured if "routing" in seen]
    stacked = _stacked(captured) | ({"routing": _stacked(routing)} if routing else {})
    return x_BLD, None if caches is None else tuple(new_caches), stacked


def _run_scanned(layers, x_BLD, context, remat, caches, cross_caches):
    graphdef, state = nnx.split(layers)
    num_layers = jax.tree.leaves(state)[0].shape[0]

    def body(carry, layer_input):
        x_BLD, caches = carry  # the whole cache stays in the carry: as an output it is copied
        state, i = layer_input
        block = nnx.merge(graphdef, state)
        x_BLD, caches, seen = block(x_BLD, context, i, caches, cross_caches, i)
        return (constrain(x_BLD, "batch", "length", None), caches), seen

    # The loop itself keeps XLA from undoing the recomputation.
    body = _rematerialised(body, remat, prevent_cse=False)
    xs = (state, jnp.arange(num_layers))
    (x_BLD, caches), captured = jax.lax.scan(body, (x_BLD, caches), xs)
    return x_BLD, caches, captured


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _rematerialised(run: Callable, remat: str, *, prevent_cse: bool) -> Callable:
    if remat == "none":
        return run
    return jax.checkpoint(run, policy=REMAT_POLICIES[remat], prevent_cse=prevent_cse)
