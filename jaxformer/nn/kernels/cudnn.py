"""cuDNN's fused attention on NVIDIA GPUs, through `jax.nn.dot_product_attention`.

It takes causality, a window and lengths, but no segment ids: a batch whose rows are one document
each, padded on the right or not at all, runs without a mask; any other batch with the mask as a
bias, [B, 1, L, S]. Which it is, the device finds out when it runs.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.nn import masks
from jaxformer.nn.kernels.rule import Rule

IMPLEMENTATION = "cudnn"


def attend(q_BLHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, rule: Rule) -> jax.Array:
    """Outputs [B, L, H, K] in 16 bits; a query that may attend to nothing gives 0."""
    view = rule.visibility

    def run(with_mask: bool) -> Any:
        """The mask says all by itself; without one, causality and the window count places."""
        window = (view.window - 1, 0) if view.window and not with_mask else None
        q_lengths, k_lengths = (None, None) if with_mask else _lengths(view)
        return jax.nn.dot_product_attention(
            q_BLHK,
            k_BSGK,
            v_BSGK,
            mask=masks.attention_mask(view)[:, None] if with_mask else None,
            scale=rule.scale,
            is_causal=view.causal and not with_mask,
            local_window_size=window,
            implementation=IMPLEMENTATION,
            query_seq_lengths=q_lengths,
            key_value_seq_lengths=k_lengths,
        )

    plain = masks.is_plain(view.q_segment_ids_BL) & masks.is_plain(view.k_segment_ids_BS)
    out_BLHK = jax.lax.cond(plain, lambda: run(False), lambda: run(True))
    # Fully masked queries give the mean of the values otherwise.
    return jnp.where(masks.sees_any(view)[..., None, None], out_BLHK, 0)


def _lengths(view: masks.Visibility) -> tuple[Any, Any]:
    """Real tokens of each row, 1 where there are none: such a row gives 0 in the end.

    A causal query sees no padding on its right anyway.
    """
    if view.causal:
        return None, None
    rows = len(view.q_segment_ids_BL)

    def count(ids: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jnp.maximum((ids != 0).sum(1, dtype=jnp.int32), 1), (rows,))

    return count(view.q_segment_ids_BL), count(view.k_segment_ids_BS)
