"""The layers of a model, unrolled or stacked under one `lax.scan`: the same numbers either way."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn.block import Block
from jaxformer.nn.cache import LayerCache
from jaxformer.nn.context import Context
from jaxformer.sharding import constrain

Layers = nnx.List | Block
Caches = tuple[LayerCache, ...] | LayerCache | None


def make_layers(cfg: ModelConfig, dtype: jnp.dtype) -> Layers:
    """A list of blocks, or one abstract block whose parameters have a leading layer axis."""
    if not cfg.scan_layers:
        return nnx.List([Block(cfg, dtype) for _ in range(cfg.num_layers)])
    graphdef, state = nnx.split(Block(cfg, dtype))
    stacked = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct((cfg.num_layers, *s.shape), s.dtype), state
    )
    return nnx.merge(graphdef, stacked)


def run_layers(
    layers: Layers, x_BLD: jax.Array, context: Context, caches: Caches
) -> tuple[jax.Array, Caches, dict[str, jax.Array]]:
    """Runs the layers in turn; captured arrays are stacked over layers, [N, ...]."""
    run = _run_unrolled if isinstance(layers, nnx.List) else _run_scanned
    return run(layers, x_BLD, context, caches)


def _run_unrolled(layers, x_BLD, context, caches):
    new_caches, captured = [], []
    for i, block in enumerate(layers):
        cache = None if caches is None else caches[i]
        x_BLD, cache, seen = block(x_BLD, context, i, cache)
        x_BLD = constrain(x_BLD, "batch", "length", None)
        new_caches.append(cache)
        captured.append(seen)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *captured)
    return x_BLD, None if caches is None else tuple(new_caches), stacked


def _run_scanned(layers, x_BLD, context, caches):
    graphdef, state = nnx.split(layers)
    num_layers = jax.tree.leaves(state)[0].shape[0]

    def body(carry, layer_input):
        x_BLD, caches = carry  # the whole cache stays in the carry: as an output it is copied
        state, i = layer_input
        block = nnx.merge(graphdef, state)
        x_BLD, caches, seen = block(x_BLD, context, i, caches, i)
        return (constrain(x_BLD, "batch", "length", None), caches), seen

    xs = (state, jnp.arange(num_layers))
    (x_BLD, caches), captured = jax.lax.scan(body, (x_BLD, caches), xs)
    return x_BLD, caches, captured
