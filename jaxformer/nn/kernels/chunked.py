"""The reference on some queries at a time, each with the keys up to its own place and none after.

Of tokens that look back at their own row that leaves out nearly half of all pairs, which the mask
forbids: on a CPU, rows of some hundred tokens take little more than half the time. The weights of
all chunks are kept for the backward pass: half the reference's memory, which grows with L² still.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxformer.nn.kernels import reference
from jaxformer.nn.kernels.blocks import even
from jaxformer.nn.kernels.rule import Rule

CHUNK = 128


def attend(
    q_BLHK: jax.Array, k_BSGK: jax.Array, v_BSGK: jax.Array, rule: Rule, *, chunk: int = CHUNK
) -> jax.Array:
    """Outputs [B, L, H, K] of a causal call whose queries and keys are the same tokens, L = S.

    At most `chunk` queries at a time. Has no dropout and returns no weights.
    """
    length = q_BLHK.shape[1]
    parts = []
    size = even(length, chunk)
    for start in range(0, length, size):
        end = min(start + size, length)
        keys_values = k_BSGK[:, :end], v_BSGK[:, :end]
        out_BlHK, _ = reference.attend(q_BLHK[:, start:end], *keys_values, _part(rule, start, end))
        parts.append(out_BlHK)
    return jnp.concatenate(parts, axis=1)


def _part(rule: Rule, start: int, end: int) -> Rule:
    """The rule of queries start … end and keys 0 … end."""
    view = rule.visibility
    cut = dataclasses.replace(
        view,
        q_order_BL=view.q_order_BL[:, start:end],
        k_order_BS=view.k_order_BS[:, :end],
        q_segment_ids_BL=view.q_segment_ids_BL[:, start:end],
        k_segment_ids_BS=view.k_segment_ids_BS[:, :end],
        aligned=False,
    )
    q_places, k_places = rule.q_positions_BL, rule.k_positions_BS
    return dataclasses.replace(
        rule,
        visibility=cut,
        q_positions_BL=None if q_places is None else q_places[:, start:end],
        k_positions_BS=None if k_places is None else k_places[:, :end],
    )
