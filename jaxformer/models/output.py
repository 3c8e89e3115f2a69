"""What every model returns."""

import dataclasses
import functools

import jax

from jaxformer.nn.cache import Cache
from jaxformer.nn.recurrent import State
from jaxformer.nn.routing import Routing


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["logits", "hidden", "cache", "losses", "captured", "routing"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Output:
    """Logits float32[B, L, V], last hidden states [B, L, D] (after the final norm), the cache,
    of an LSTM its state.

    `losses` holds what layers add to the loss, each as (sum, weight), with weights that are sums
    over the batch alone; `routing` what mixtures of experts tell, [N, …]; `captured` holds
    'attention_weights' [N, B, H, L, S], 'cross_attention_weights' (over the source) and
    'hidden_states' [N, B, L, D] (after each layer) where they were asked for.
    """

    logits: jax.Array
    hidden: jax.Array
    cache: Cache | State | None
    losses: dict[str, tuple[jax.Array, jax.Array]]
    captured: dict[str, jax.Array]
    routing: Routing | None = None
