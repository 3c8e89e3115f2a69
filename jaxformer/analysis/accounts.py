"""What a model consists of and what a token costs, in numbers, without building it.

Conventions. A multiplication with its addition is 2 FLOPs; only matrix products are counted, as in
Kaplan et al. 2020 §2.1, and all of them: forward, 2 FLOPs a weight of a linear layer, and for the
attention matrix 4 H K for each key that a query is multiplied with (q kᵀ and weights v), as in
Chowdhery et al. 2022 App. B. A dense kernel computes masked products too, so causality halves
nothing. The network behind FIRE's bias runs for each key, in each layer that uses it. A training
step costs three times as much (without recomputation).

Of an encoder-decoder's rows, those of the encoder and of the cross-attention's keys and values are
for a source token, the others for a target token.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.config import ModelConfig
from jaxformer.models import abstract_params, build

ORDER = ("embedding", "position", "embedding_norm", "encoder", "decoder", "layers", "final_norm")


@dataclasses.dataclass(frozen=True)
class Part:
    """A module's parameters; `layers` equal ones are one part (0: it stands outside the layers)."""

    path: tuple[str, ...]
    layers: int
    shapes: dict[str, tuple[int, ...]]

    @property
    def parameters(self) -> int:
        return max(self.layers, 1) * sum(math.prod(shape) for shape in self.shapes.values())


@dataclasses.dataclass(frozen=True)
class Flops:
    """Of one token's forward pass, by kind of product."""

    projections: int  # of attention: queries, keys, values, outputs; an LSTM's gates
    attention_matrix: int
    feed_forward: int
    head: int

    @property
    def total(self) -> int:
        return self.projections + self.attention_matrix + self.feed_forward + self.head


def count_parameters(tree: Any) -> int:
    """The number of elements in a tree of arrays or shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def active_parameters(cfg: ModelConfig) -> int:
    """Those that one token meets: of experts its top k."""
    found = parts(cfg)
    idle = sum(part.parameters for part in found if "experts" in part.path)
    idle = idle // max(1, cfg.moe.num_experts) * (cfg.moe.num_experts - cfg.moe.top_k)
    return sum(part.parameters for part in found) - (idle if cfg.moe.num_experts else 0)


def parts(cfg: ModelConfig) -> list[Part]:
    """The modules that own parameters, in the order in which a token meets them."""
    layers: dict[tuple[str, ...], set[int]] = {}
    shapes: dict[tuple[str, ...], dict[str, tuple[int, ...]]] = {}
    stacked: dict[tuple[str, ...], int] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(abstract_params(build(cfg))):
        names = [key.key for key in keys]
        shape = tuple(leaf.shape)
        path = tuple(str(name) for name in names[:-1] if not isinstance(name, int))
        if "layers" in path and cfg.scan_layers:
            stacked[path], shape = shape[0], shape[1:]
        layers.setdefault(path, set()).update(name for name in names if isinstance(name, int))
        shapes.setdefault(path, {})[names[-1]] = shape
    found = [Part(p, stacked.get(p, len(layers[p])), shapes[p]) for p in shapes]
    return sorted(found, key=lambda part: _place(part.path))


def module_table(
    cfg: ModelConfig, *, length: int, source_length: int = 0, compute_dtype: str = "float32"
) -> list[dict[str, Any]]:
    """Rows of module, shape, parameters, and a token's FLOPs, activation and cache bytes.

    `length` is the context that a token attends over (`source_length`: over the source; 0: the
    same). Activations are what the backward pass needs (Korthikanti et al. 2022 §4.1 counts the
    same; JAX may keep up to three times as much): inputs of products, norms and nonlinearities in
    the compute type, attention weights and logits in float32, dropout masks of a byte. With
    `model.remat` a layer keeps its input (row attention/query) and, for 'dots', the float32 results
    of its linear layers; what is computed again for one layer at a time is not counted. The last
    row is the total.
    """
    size, source_length = jnp.dtype(compute_dtype).itemsize, source_length or length
    rows: list[dict[str, Any]] = []
    for part in parts(cfg):
        shape = _main_shape(part)
        row = {"module": "/".join(part.path), "shape": _times(part.layers, shape)}
        keys = _bias_keys(part, cfg, source_length if part.path[0] == "encoder" else length)
        row |= {"parameters": part.parameters, "flops": _flops(part, cfg, length, keys)}
        row["activation_bytes"] = max(part.layers, 1) * _activations(part, cfg, length, size)
        row["activation_bytes"] += keys * _bias_activations(part, cfg)
        row["cache_bytes"] = part.layers * _cached(part, cfg, size)
        rows.append(row)
        if part.path[-1] == "output":
            rows.append(_matrix_row(part, cfg, length, source_length, size))
    if cfg.tie_embeddings and cfg.head.kind == "vocabulary":
        logits = 4 * cfg.vocab_size * _logits_at_once(cfg, length) // length
        rows.append(
            {"module": "head (tied)", "shape": f"{cfg.d_model} x {cfg.vocab_size}"}
            | {"parameters": 0, "flops": 2 * cfg.d_model * cfg.vocab_size}
            | {"activation_bytes": size * cfg.d_model + logits, "cache_bytes": 0}
        )
    total = {name: sum(row[name] for row in rows) for name in list(rows[0])[2:]}
    return [*rows, {"module": "total", "shape": ""} | total]


def flops(cfg: ModelConfig, *, length: int, source_length: int = 0) -> Flops:
    """A token's forward FLOPs by kind (an encoder-decoder's: a source and a target token's)."""
    found = dict.fromkeys(("projections", "attention_matrix", "feed_forward", "head"), 0)
    for row in module_table(cfg, length=length, source_length=source_length)[:-1]:
        names = row["module"].split("/")
        if "feed_forward" in names:
            kind = "feed_forward"
        elif names[0].startswith("head"):
            kind = "head"
        else:
            of_pairs = names[-1] == "matrix" or "position" in names
            kind = "attention_matrix" if of_pairs else "projections"
        found[kind] += row["flops"]
    return Flops(**found)


def _place(path: tuple[str, ...]) -> tuple[Any, ...]:
    """A key that sorts parts as a token meets them."""
    inside = ("attention", "cross_attention", "feed_forward", "query", "key", "value", "output")
    inside = (*inside, "router", "experts", "shared", "up", "gate", "down")
    inside = (*inside, "transform", "norm", "pooler", "classifier")

    def place(name: str) -> tuple[int, str]:
        for order in (ORDER, inside):
            if name in order:
                return order.index(name), name
        stem = name.removesuffix("_norm").removesuffix("_post")
        return inside.index(stem) if stem in inside else len(ORDER), name

    return tuple(place(name) for name in path)


def _main_shape(part: Part) -> tuple[int, ...]:
    return max(part.shapes.values(), key=len)


def _times(layers: int, shape: tuple[int, ...]) -> str:
    text = " x ".join(map(str, shape))
    return f"{layers} of {text}" if layers else text


def _bias_keys(part: Part, cfg: ModelConfig, reach: int) -> int:
    """How often a token's position bias is computed: once for each key and layer that has it."""
    if "position" not in part.path:
        return 0
    both = cfg.architecture == "encoder_decoder" and part.path[0] == "encoder"
    specs = cfg.layer_specs(cfg.encoder_layers if both else cfg.num_layers)
    kind = part.path[part.path.index("position") + 1]
    return reach * sum(spec.position == kind for spec in specs)


def _bias_activations(part: Part, cfg: ModelConfig) -> int:
    """Bytes kept of a query and a key by a bias's network: its inputs and nonlinearities."""
    if "position" not in part.path or "kernel" not in part.shapes or cfg.remat != "none":
        return 0
    n_in, n_out = part.shapes["kernel"]
    return 4 * (n_in + (n_out if "bias" in part.shapes else 0))


def _flops(part: Part, cfg: ModelConfig, length: int, keys: int) -> int:
    """2 a weight; a table is looked up. A row is classified once, not once a token."""
    if "kernel" not in part.shapes:
        return 0
    once = 2 * max(part.layers, keys, 1) * math.prod(part.shapes["kernel"])
    if "experts" in part.path:
        once = once // cfg.moe.num_experts * cfg.moe.top_k
    return once // length if _once_a_row(part, cfg) else once


def _once_a_row(part: Part, cfg: ModelConfig) -> bool:
    return cfg.head.kind == "sequence" and part.path[0] == "head"


def _logits_at_once(cfg: ModelConfig, length: int) -> int:
    """Positions of a row whose logits are kept together."""
    return min(cfg.logit_chunk or length, length)


def _activations(part: Part, cfg: ModelConfig, length: int, size: int) -> int:
    """Bytes that one module keeps of a token (its attention matrix apart)."""
    name, shape, dropout = part.path[-1], _main_shape(part), cfg.dropout
    if "position" in part.path:
        return 0
    if "experts" in part.path:  # as often as a token has one
        one = {n: s[1:] for n, s in part.shapes.items()}
        of_one = dataclasses.replace(part, path=(*part.path[:-2], name), shapes=one)
        return cfg.moe.top_k * _activations(of_one, cfg, length, size)
    if part.layers and cfg.remat != "none":
        is_input = part.path[-2:] == ("attention", "query")
        needed = name != "down" or cfg.norm_placement in ("post", "sandwich")  # else only added
        dots = cfg.remat == "dots" and "kernel" in part.shapes and needed
        return size * shape[0] * is_input + 4 * shape[-1] * dots
    if name == "embedding":
        uses = 2 if cfg.architecture == "encoder_decoder" and cfg.share_embeddings else 1
        return uses * cfg.d_model * (dropout.embedding > 0)
    if "kernel" not in part.shapes:  # a norm's input, that of the embeddings in float32
        heads = {"query_norm": cfg.num_heads, "key_norm": cfg.kv_heads}.get(name, 1)
        return (
            (4 if name == "embedding_norm" else size) * shape[0] * heads * ("scale" in part.shapes)
        )
    if name in ("key", "value"):
        return 0  # the queries' input, or the encoder's result
    if name == "gate":
        return size * shape[1]  # up has the same input; the result meets a nonlinearity
    if name == "up":
        return size * sum(shape) + shape[1] * (dropout.feed_forward > 0)
    if name == "router":  # float32, and its softmax
        return 4 * sum(shape) + 4 * shape[1]
    if name in ("output", "down"):
        return size * shape[0] + shape[1] * (dropout.residual > 0)
    if name == "recurrent":  # its input, the gates, cell and output in float32
        return size * shape[0] + 4 * (shape[1] + 2 * shape[0]) + shape[0] * (dropout.residual > 0)
    if name == "head":
        return size * shape[0] + 4 * shape[1] * _logits_at_once(cfg, length) // length
    kept = size * sum(shape) if part.path[0] == "head" else size * shape[0]
    return kept // length if _once_a_row(part, cfg) else kept


def _cached(part: Part, cfg: ModelConfig, size: int) -> int:
    """Bytes of keys and values, of a source token in cross-attention; encoders have no cache.

    They are of accelerators: a CPU keeps float32 in bfloat16 too.
    """
    decodes = cfg.architecture != "encoder" and part.path[0] != "encoder"
    return size * _main_shape(part)[1] if decodes and part.path[-1] in ("key", "value") else 0


def _matrix_row(
    part: Part, cfg: ModelConfig, length: int, source_length: int, size: int
) -> dict[str, Any]:
    """The products of queries with keys and of weights with values, which have no parameters."""
    cross, causal = part.path[-2] == "cross_attention", cfg.architecture != "encoder"
    causal &= part.path[0] != "encoder"
    reach = source_length if cross or part.path[0] == "encoder" else length
    keys = 0
    for spec in cfg.layer_specs(part.layers):
        near = spec.window if causal else 2 * spec.window - 1
        keys += min(reach, near) if spec.window and not cross else reach
    width, kept = cfg.num_heads * cfg.head_width, 0
    if cfg.remat == "none":
        weight = 4 + (1 + size) * (cfg.dropout.attention > 0)  # softmax, mask, dropped weights
        vectors = size * (width + 2 * cfg.kv_heads * cfg.head_width)
        # What auto takes is not known, and chunked keeps half at least; other kernels keep none.
        keeping = ("auto", "reference", "chunked")
        whole = cfg.attention_kernel in keeping or cfg.dropout.attention > 0
        kept = part.layers * (vectors + whole * cfg.num_heads * reach * weight)
    row = {"module": "/".join([*part.path[:-1], "matrix"])}
    row |= {"shape": f"{part.layers} of {cfg.num_heads} heads x {reach} keys", "parameters": 0}
    return row | {"flops": 4 * width * keys, "activation_bytes": kept, "cache_bytes": 0}
