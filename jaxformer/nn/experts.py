"""The feed-forward networks of a mixture: what tokens make of the experts they were given to.

Two ways, for any mesh. `by_capacity` moves the tokens of a row to slots of fixed number, so that
XLA cuts all by itself; with an expert axis it sends slots to their experts and back, all to all.
`dropless` sorts each device's tokens by expert, of any number (grouped products); with an expert
axis the devices of one share their tokens, each does its own experts', and sums are scattered back.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

from jaxformer.config import GATED, ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.feedforward import ACTIVATIONS
from jaxformer.nn.platform import platform
from jaxformer.sharding import AXES, constrain, fitting

Weights = dict[str, jax.Array]


class ExpertLinear(nnx.Module):
    """E kernels [in, out] and biases, each drawn by itself."""

    def __init__(
        self, shape: tuple[int, int, int], bias: bool, initializer: parameters.Initializer
    ):
        self.kernel = parameters.declare(shape, parameters.for_each(initializer))
        self.bias = parameters.declare((shape[0], shape[2]), parameters.zeros) if bias else None


class Experts(nnx.Module):
    """E networks like nn/feedforward.py's. Products run in `dtype`, accumulate in float32.

    A token's dropout mask [F] is the same for all its experts.
    """

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        init, bias = parameters.scheme(cfg), cfg.feed_forward_bias
        count, width = cfg.moe.num_experts, cfg.moe.d_ff or cfg.ff_width
        into, out = (count, cfg.d_model, width), (count, width, cfg.d_model)
        self.up = ExpertLinear(into, bias, init.kernel)
        self.gate = ExpertLinear(into, bias, init.kernel) if cfg.activation in GATED else None
        self.down = ExpertLinear(out, bias, init.residual)
        self.activate = ACTIVATIONS[GATED.get(cfg.activation, cfg.activation)]
        self.count, self.width, self.dtype = count, width, dtype

    def by_capacity(
        self,
        x_BLD: jax.Array,
        mask_BLF: jax.Array | None,
        experts_BLK: jax.Array,
        weights_BLK: jax.Array,
        slots_BLK: jax.Array,
        size: int,
    ) -> jax.Array:
        """float32[B, L, D]: weighted sums over each token's experts; of what was dropped, 0."""
        rows, length = x_BLD.shape[:2]
        nowhere = self.count * size
        at_BLK = jnp.where(slots_BLK < size, experts_BLK * size + slots_BLK, nowhere)
        token_BLK = jnp.broadcast_to(jnp.arange(length)[:, None], at_BLK.shape)
        put = lambda at_LK, token_LK: jnp.full(nowhere, length).at[at_LK].set(token_LK, mode="drop")  # noqa: E731
        token_BS = jax.vmap(put)(at_BLK, token_BLK)  # S: slots of all experts

        def to_experts(x: jax.Array, last: str | None) -> jax.Array:
            x = constrain(x, "batch", None, last)
            x = _take(x, token_BS).reshape(rows, self.count, size, x.shape[-1])
            x = constrain(x, "batch", None, None, last)
            x = constrain(x, "expert_rows", "experts", None, last)  # all to all
            return constrain(x, "expert_rows", "experts", "length", last)

        x_BECD = to_experts(x_BLD.astype(self.dtype), None)
        mask_BECF = None if mask_BLF is None else to_experts(mask_BLF, "ff")
        multiply = lambda x_BECI, kernel_EIO: jnp.einsum(  # noqa: E731
            "beci,eio->beco", x_BECI, kernel_EIO, preferred_element_type=jnp.float32
        )
        weights = self._weights()
        biases = {name: bias[None, :, None] for name, bias in self._biases().items()}
        h_BECF = self._hidden(multiply, x_BECD, mask_BECF, weights, biases)
        h_BECF = constrain(h_BECF, "expert_rows", "experts", "length", "ff")
        y_BECD = multiply(h_BECF, weights["down"]) + biases.get("down", 0.0)
        y_BECD = constrain(y_BECD.astype(self.dtype), "expert_rows", "experts", "length", None)
        y_BECD = constrain(y_BECD, "expert_rows", "experts", None, None)
        y_BECD = constrain(y_BECD, "batch", None, None, None)
        y_BTD = _take(y_BECD.reshape(rows, nowhere, -1), at_BLK.reshape(rows, -1))
        y_BLKD = y_BTD.reshape(*at_BLK.shape, -1)
        return (y_BLKD * weights_BLK[..., None]).sum(2)

    def dropless(
        self,
        x_BLD: jax.Array,
        mask_BLF: jax.Array | None,
        experts_BLK: jax.Array,
        weights_BLK: jax.Array,
    ) -> jax.Array:
        """float32[B, L, D]: weighted sums over each token's experts, whatever their load."""
        run = self.all_products if platform() == "cpu" else self.grouped_products
        tokens = [x_BLD.astype(self.dtype), experts_BLK, weights_BLK]
        tokens += [] if mask_BLF is None else [mask_BLF]
        weights, biases = self._weights(), self._biases()
        last = biases.pop("down", None)  # added once, not by each device of a tensor axis
        mesh = jax.sharding.get_abstract_mesh()
        if AXES[0] in mesh.axis_names and AxisType.Manual not in mesh.axis_types:
            out_BLD = self._on_mesh(mesh, run, tokens, weights, biases)
        else:
            out_BLD = run(jnp.int32(0), tokens, weights, biases)
        if last is None:
            return out_BLD
        shares_BLE = _shares(experts_BLK, weights_BLK, self.count)
        return out_BLD + jnp.matmul(shares_BLE, last, precision="highest")

    def all_products(
        self, first: jax.Array, tokens: list[jax.Array], weights: Weights, biases: Weights
    ) -> jax.Array:
        """float32[B, L, D] from the experts `first` …: each does all tokens, most for nothing.

        E / k times the work, in two large products: what is fast on a CPU.
        """
        (x_TD, experts_TK, weights_TK, *mask), shape = _flat(tokens), tokens[0].shape
        mask_T1F = mask[0][:, None] if mask else None
        count, _, width = weights["up"].shape

        def multiply(x_TD: jax.Array, kernel_EDF: jax.Array) -> jax.Array:
            kernel_DO = jnp.moveaxis(kernel_EDF, 1, 0).reshape(x_TD.shape[1], -1)
            y_TO = jnp.matmul(x_TD, kernel_DO, preferred_element_type=jnp.float32)
            return y_TO.reshape(-1, count, width)

        biases = {name: bias[None] for name, bias in biases.items()}
        h_TEF = self._hidden(multiply, x_TD, mask_T1F, weights, biases)
        h_TEF = h_TEF * _shares(experts_TK - first, weights_TK, count)[..., None]
        h_TO = h_TEF.astype(self.dtype).reshape(len(x_TD), -1)
        kernel_OD = weights["down"].reshape(-1, shape[-1])
        return jnp.matmul(h_TO, kernel_OD, preferred_element_type=jnp.float32).reshape(shape)

    def grouped_products(
        self, first: jax.Array, tokens: list[jax.Array], weights: Weights, biases: Weights
    ) -> jax.Array:
        """float32[B, L, D] from the experts `first` …: tokens sorted by expert, then in groups."""
        (x_TD, experts_TK, weights_TK, *mask), shape = _flat(tokens), tokens[0].shape
        count, top_k = len(weights["up"]), experts_TK.shape[1]
        expert_R = (experts_TK - first).reshape(-1)  # R: a row for each of a token's k experts
        expert_R = jnp.where((expert_R >= 0) & (expert_R < count), expert_R, count)
        order_R = jnp.argsort(expert_R, stable=True)  # those of other devices come last
        sorted_R, token_R = expert_R[order_R], order_R // top_k
        sizes_E = jnp.bincount(expert_R, length=count).astype(jnp.int32)

        def multiply(x_RI: jax.Array, kernel_EIO: jax.Array) -> jax.Array:
            return jax.lax.ragged_dot(x_RI, kernel_EIO, sizes_E, preferred_element_type=jnp.float32)

        own = {name: bias.at[sorted_R].get(mode="clip") for name, bias in biases.items()}
        mask_RF = mask[0][token_R] if mask else None
        h_RF = self._hidden(multiply, x_TD[token_R], mask_RF, weights, own)
        y_RD = multiply(h_RF, weights["down"])
        y_RD = jnp.where((sorted_R < count)[:, None], y_RD, 0)
        y_TKD = y_RD[jnp.argsort(order_R)].reshape(-1, top_k, shape[-1])
        return (y_TKD * weights_TK[..., None]).sum(1).reshape(shape)

    def _on_mesh(
        self,
        mesh: Any,
        run: Callable[..., jax.Array],
        tokens: list[jax.Array],
        weights: Weights,
        biases: Weights,
    ) -> jax.Array:
        """Each device does its own experts for the tokens of its group along the expert axis."""
        lasts = (None, None, None, "ff")
        specs = [
            fitting(mesh, x.shape, "batch", "length", last)
            for x, last in zip(tokens, lasts, strict=False)
        ]
        is_cut = specs[0][0] is not None  # else each device has all rows
        own = self.count // mesh.shape["expert"]

        def on_device(tokens: list[jax.Array], weights: Weights, biases: Weights) -> jax.Array:
            if is_cut:
                tokens = [jax.lax.all_gather(x, "expert", axis=0, tiled=True) for x in tokens]
            weights = {
                name: jax.lax.all_gather(w, "fsdp", axis=2 if name == "down" else 1, tiled=True)
                for name, w in weights.items()
            }
            out_BLD = run(jax.lax.axis_index("expert") * own, tokens, weights, biases)
            out_BLD = jax.lax.psum(out_BLD, "tensor")
            if not is_cut:
                return jax.lax.psum(out_BLD, "expert")
            return jax.lax.psum_scatter(out_BLD, "expert", scatter_dimension=0, tiled=True)

        into, out = ("expert", "fsdp", "tensor"), ("expert", "tensor", "fsdp")
        of_weights = {n: PartitionSpec(*(out if n == "down" else into)) for n in weights}
        of_biases = {n: PartitionSpec("expert", "tensor") for n in biases}
        run_on_mesh = jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(specs, of_weights, of_biases),
            out_specs=specs[0],
            check_vma=False,
        )
        return run_on_mesh(tokens, weights, biases)

    def _hidden(
        self,
        multiply: Callable[[jax.Array, jax.Array], jax.Array],
        x: jax.Array,
        mask: jax.Array | None,
        weights: Weights,
        biases: Weights,
    ) -> jax.Array:
        """The hidden layer of each expert in `dtype`; biases and mask are as the product needs."""

        def linear(name: str) -> jax.Array:
            return (multiply(x, weights[name]) + biases.get(name, 0.0)).astype(self.dtype)

        h = linear("up")
        h = self.activate(h) if self.gate is None else self.activate(linear("gate")) * h
        return h if mask is None else h * mask

    def _weights(self) -> Weights:
        parts = {"up": self.up, "gate": self.gate, "down": self.down}
        return {n: p.kernel[...].astype(self.dtype) for n, p in parts.items() if p is not None}

    def _biases(self) -> Weights:
        parts = {"up": self.up, "gate": self.gate, "down": self.down}
        found = {n: None if p is None else p.bias for n, p in parts.items()}
        return {n: bias[...] for n, bias in found.items() if bias is not None}


def _flat(tokens: list[jax.Array]) -> list[jax.Array]:
    """[B, L, …] as [T, …]."""
    return [x.reshape(-1, x.shape[-1]) for x in tokens]


def _shares(experts: jax.Array, weights: jax.Array, count: int) -> jax.Array:
    """The weight of each of `count` experts for each token, float32[..., E]."""
    chosen = jax.nn.one_hot(experts, count, dtype=jnp.float32)
    return (chosen * weights[..., None]).sum(-2)


def _take(x_BLD: jax.Array, at_BS: jax.Array) -> jax.Array:
    """[B, S, D]: of each row what stands at its places, zeros for places outside."""
    return jax.vmap(lambda x, at: x.at[at].get(mode="fill", fill_value=0))(x_BLD, at_BS)
