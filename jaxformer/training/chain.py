"""The hash chain: one short word for all that a run consumed and computed up to a step.

chain_n = sha256(chain_{n-1}, step, batch, loss, gradient norm) with the bits of the last three, so
that two runs whose chains agree at a step agreed at every step before. The batch enters as a digest
that the step computes from the tokens it was given: it is the same on any devices and processes,
and `data`, a chain of the digests alone, compares runs whose losses may differ in the last bits.
"""

import binascii
import hashlib
import struct
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxformer.models import abstract_params, build
from jaxformer.sharding import fit, mesh_of, path_of, replicated

LENGTH = 16  # hexadecimal digits kept of a hash
GOLDEN = 0x9E3779B9


class Chain:
    """Grows by a step at a time; `links` is its whole state."""

    def __init__(self, links: Mapping[str, str] | None = None):
        self.links = {"data": "", "chain": ""} | dict(links or {})

    def add(self, step: int, batch: int, loss: float, grad_norm: float) -> None:
        """Adds a step: the digest of its batch, its loss (a sum) and gradient norm, float32."""
        place = struct.pack("<qQ", step, batch)
        computed = np.array([loss, grad_norm], np.float32).tobytes()
        data, chain = self.links["data"], self.links["chain"]
        self.links = {"data": _hash(data, place), "chain": _hash(chain, place + computed)}


def parameters_digest(stored: Any, mesh: Mesh | None) -> Callable[[Any], jax.Array]:
    """A jitted `digest` of parameters in the shapes of checkpoints, which every process reads."""
    return jax.jit(
        lambda params: digest(jax.tree.map(lambda x, like: fit(x, like.shape), params, stored)),
        out_shardings=replicated(mesh),
    )


def model_digest(model: Any) -> str:
    """The digest of a model's parameters in the shapes of checkpoints, as in metrics.jsonl."""
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    stored = abstract_params(build(model.config))
    return as_hex(parameters_digest(stored, mesh_of(params))(params))


def digest(tree: Any) -> jax.Array:
    """uint32[2]: a digest of the bits of all leaves, for use inside jit.

    Each word is mixed with its place and its leaf's path, and all are summed modulo 2^32: the sum
    is the same however the leaves are cut into shards.
    """
    total = jnp.zeros(2, jnp.uint32)
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        words = _words(leaf)
        place = jnp.zeros(words.shape, jnp.uint32)
        for axis, size in enumerate(words.shape):
            place = place * np.uint32(size) + jax.lax.broadcasted_iota(
                jnp.uint32, words.shape, axis
            )
        seed = binascii.crc32(path_of(keys).encode())
        for part in range(2):
            salt = np.uint32((seed + part * GOLDEN) % 2**32)
            mixed = _mix(words ^ _mix(place * np.uint32(GOLDEN) + salt))
            total = total.at[part].add(mixed.sum(dtype=jnp.uint32))
    return total


def as_int(digest: Any) -> int:
    """The two words of a digest as one number."""
    low, high = np.asarray(digest).tolist()
    return low | high << 32


def as_hex(digest: Any) -> str:
    """The two words of a digest as in metrics.jsonl."""
    return f"{as_int(digest):0{LENGTH}x}"


def _words(leaf: Any) -> jax.Array:
    """The bits of an array as uint32; 64-bit numbers become two."""
    leaf = jnp.asarray(leaf)
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    width = leaf.dtype.itemsize
    if width >= 4:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    kind = {1: jnp.uint8, 2: jnp.uint16}[width]
    return jax.lax.bitcast_convert_type(leaf, kind).astype(jnp.uint32)


def _mix(x: jax.Array) -> jax.Array:
    """The finaliser of MurmurHash3: a bijection of uint32 that spreads every bit."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _hash(before: str, added: bytes) -> str:
    return hashlib.sha256(before.encode() + added).hexdigest()[:LENGTH]
