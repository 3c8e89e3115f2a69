"""Which experts a token goes to, with what weights, and what that tells of a layer."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from jaxformer.config import MoeConfig

FIELDS = ["tokens", "load_E", "dropped", "entropy", "balance", "z"]


@functools.partial(jax.tree_util.register_dataclass, data_fields=FIELDS, meta_fields=[])
@dataclasses.dataclass(frozen=True)
class Routing:
    """Sums over the real tokens of a batch, float32, of one layer or [N, …] of all with experts.

    `load_E`: tokens given to each expert, dropped ones too; `dropped`: how many of these; `entropy`
    of the router's softmax in nats; `balance`: tokens times the load-balancing loss; `z`: squared
    logsumexp of the router's logits. They add up over microbatches.
    """

    tokens: jax.Array
    load_E: jax.Array
    dropped: jax.Array
    entropy: jax.Array
    balance: jax.Array
    z: jax.Array


def choose(
    probs_BLE: jax.Array, real_BL: jax.Array, top_k: int, normalize: bool
) -> tuple[jax.Array, jax.Array]:
    """int32[B, L, k] experts of each token, best first, and float32[B, L, k] their weights.

    Of equal ones the first is taken; padding goes to none: number E. Weights are the router's
    probabilities, which `normalize` divides by their sum (Mixtral).
    """
    num_experts, left_BLE = probs_BLE.shape[-1], jax.lax.stop_gradient(probs_BLE)
    experts, weights = [], []
    for _ in range(top_k):  # a sort is not cut over the devices of a mesh
        best_BL = left_BLE.argmax(-1)
        is_best_BLE = jax.nn.one_hot(best_BL, num_experts, dtype=bool)
        experts.append(best_BL.astype(jnp.int32))
        weights.append(jnp.where(is_best_BLE, probs_BLE, 0).sum(-1))
        left_BLE = jnp.where(is_best_BLE, -1.0, left_BLE)
    experts_BLK, weights_BLK = jnp.stack(experts, -1), jnp.stack(weights, -1)
    if normalize:
        weights_BLK = weights_BLK / weights_BLK.sum(-1, keepdims=True)
    real_BL1 = real_BL[..., None]
    return jnp.where(real_BL1, experts_BLK, num_experts), jnp.where(real_BL1, weights_BLK, 0)


def capacity(moe: MoeConfig, length: int) -> int:
    """Tokens of a row that an expert takes; more than the row has is never needed."""
    share = moe.capacity_factor * moe.top_k * length / moe.num_experts
    return max(1, math.ceil(min(length, share)))


def slots(experts_BLK: jax.Array, num_experts: int, size: int) -> jax.Array:
    """int32[B, L, k]: each token's place among those of its row that its expert takes.

    `size` stands for none. Earlier tokens come first, of one token its better expert: so what a
    token is given depends on no later one. Fedus et al. 2022 §2.2, with a row for a group.
    """
    batch_size = experts_BLK.shape[0]
    flat_BT = experts_BLK.reshape(batch_size, -1)
    is_taken_BTE = jax.nn.one_hot(flat_BT, num_experts, dtype=jnp.int32)
    before_BTE = jnp.cumsum(is_taken_BTE, 1) - is_taken_BTE
    slot_BT = jnp.where(flat_BT < num_experts, (before_BTE * is_taken_BTE).sum(-1), size)
    return jnp.minimum(slot_BT, size).reshape(experts_BLK.shape)


def describe(
    logits_BLE: jax.Array, experts_BLK: jax.Array, dropped: jax.Array, by_row: bool
) -> Routing:
    """The sums of a layer; the balance loss is E Σ f_e P_e of Fedus et al. 2022 eq. 4.

    f_e is the share of tokens that are given to expert e (before any is dropped, and of all k · T
    where each has k), P_e the mean of its probability: 1 where both are even. Means are over the
    batch, or over each row, then weighted by its tokens.
    """
    num_experts, top_k = logits_BLE.shape[-1], experts_BLK.shape[-1]
    real_BL = experts_BLK[..., 0] < num_experts
    logp_BLE = jax.nn.log_softmax(logits_BLE)
    probs_BLE = jnp.where(real_BL[..., None], jnp.exp(logp_BLE), 0)
    chosen_BLKE = jax.nn.one_hot(experts_BLK, num_experts, dtype=jnp.float32)
    load_BE, mass_BE = chosen_BLKE.sum((1, 2)), probs_BLE.sum(1)
    tokens_B = real_BL.sum(1).astype(jnp.float32)
    load_E, tokens = load_BE.sum(0), tokens_B.sum()
    if by_row:
        balance = ((load_BE * mass_BE).sum(-1) / jnp.maximum(tokens_B, 1)).sum()
    else:
        balance = (load_E * mass_BE.sum(0)).sum() / jnp.maximum(tokens, 1)
    z_BL = jnp.square(jax.nn.logsumexp(logits_BLE, -1))
    return Routing(
        tokens=tokens,
        load_E=load_E,
        dropped=dropped.astype(jnp.float32),
        entropy=-(probs_BLE * logp_BLE).sum(),
        balance=num_experts / top_k * balance,
        z=jnp.where(real_BL, z_BL, 0).sum(),
    )


def losses(
    moe: MoeConfig, routing: Routing | None, segment_ids_BL: jax.Array, prefix: str = ""
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """What the layers add to the loss as (sum, weight): each layer's, a real token.

    The weights are of the batch alone, not of the layers': see training/step.py.
    """
    if routing is None:
        return {}
    tokens = (segment_ids_BL != 0).sum().astype(jnp.float32)
    sums = {"balance": (moe.balance_weight, routing.balance), "router_z": (moe.z_weight, routing.z)}
    return {f"{prefix}{n}": (w * x_N.sum(), tokens) for n, (w, x_N) in sums.items() if w}


def metrics(routing: Routing) -> dict[str, jax.Array]:
    """Means over layers [N] of a batch's sums: see docs/moe.md."""
    tokens_N = jnp.maximum(routing.tokens, 1)
    given_N = jnp.maximum(routing.load_E.sum(-1), 1)
    return {
        "experts/load_cv": (
            routing.load_E.std(-1) / jnp.maximum(routing.load_E.mean(-1), 1)
        ).mean(),
        "experts/dropped": (routing.dropped / given_N).mean(),
        "experts/balance": (routing.balance / tokens_N).mean(),
        "experts/entropy": (routing.entropy / tokens_N).mean(),
    }
