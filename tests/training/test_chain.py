"""The digest sees every bit and no layout; the chain remembers every step."""

import binascii
import hashlib
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import MeshConfig
from jaxformer.sharding import make_mesh, put_batch
from jaxformer.training.chain import Chain, as_hex, as_int, digest
from tests.training import tiny

digest_of = jax.jit(digest)


def by_hand(arrays):
    """The same sum in Python integers."""

    def mix(x):
        x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
        x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
        return x ^ x >> 16

    total = [0, 0]
    for name, array in sorted(arrays.items()):
        for place, word in enumerate(array.reshape(-1).view(np.uint32).tolist()):
            for part in range(2):
                salt = binascii.crc32(name.encode()) + part * 0x9E3779B9
                total[part] += mix(word ^ mix((place * 0x9E3779B9 + salt) % 2**32))
    return total[0] % 2**32 | total[1] % 2**32 << 32


def test_digest_is_the_sum_of_mixed_words():
    arrays = {"b": np.arange(6, dtype=np.int32).reshape(2, 3), "a": np.float32([1.5, -0.0])}
    assert as_int(digest_of(arrays)) == by_hand(arrays)
    assert as_hex(digest_of(arrays)) == f"{by_hand(arrays):016x}"


@pytest.mark.parametrize(
    ("dtype", "value", "other"),
    [
        (jnp.float32, 0.0, -0.0),
        (jnp.float32, 1.0, np.nextafter(np.float32(1), np.float32(2))),
        (jnp.bfloat16, 1.0, 1.0078125),
        (jnp.int32, 5, 6),
        (jnp.uint8, 5, 6),
        (jnp.bool_, True, False),
    ],
)
def test_digest_sees_one_bit_anywhere(dtype, value, other):
    x = jnp.full((3, 4), value, dtype)
    found = {as_int(digest_of({"x": x}))}
    found |= {as_int(digest_of({"x": x.at[i, j].set(other)})) for i in range(3) for j in range(4)}
    assert len(found) == 13


def test_digest_sees_places_and_names():
    x, y = np.int32([[1, 2], [3, 4]]), np.int32([7])
    trees = [
        *({"x": x, "y": y}, {"x": y, "y": x}, {"x": x, "z": y}, {"x": x.T, "y": y}),
        *({"x": x[::-1], "y": y}, {"x": x}, {"x": x, "y": np.int32([7, 0])}),
    ]
    assert len({as_int(digest_of(tree)) for tree in trees}) == len(trees)


def test_digest_is_the_same_on_any_mesh():
    batch = tiny.batch()
    expected = as_int(digest_of(batch))
    for data, fsdp in ((8, 1), (2, 4)):
        mesh = make_mesh(MeshConfig(data, fsdp))
        assert as_int(digest_of(put_batch(mesh, batch))) == expected


def test_chain_by_hand():
    chain = Chain()
    chain.add(1, 2**63 + 5, 1.25, 0.5)
    data = hashlib.sha256(struct.pack("<qQ", 1, 2**63 + 5)).hexdigest()[:16]
    bits = struct.pack("<qQff", 1, 2**63 + 5, 1.25, 0.5)
    assert chain.links == {"data": data, "chain": hashlib.sha256(bits).hexdigest()[:16]}
    before = chain.links
    chain.add(2, 0, float("nan"), 0.5)
    bits = before["chain"].encode() + struct.pack("<qQff", 2, 0, float("nan"), 0.5)
    assert chain.links["chain"] == hashlib.sha256(bits).hexdigest()[:16]
    again = Chain(before)
    again.add(2, 0, float("nan"), 0.5)
    assert again.links == chain.links


def test_chain_remembers():
    """Two chains that once differed never meet again; `data` is blind to losses alone."""
    a, b, c = Chain(), Chain(), Chain()
    for chain, loss, batch in ((a, 1.0, 3), (b, 1.0000001, 3), (c, 1.0, 4)):
        chain.add(1, batch, loss, 1.0)
        chain.add(2, 9, 1.0, 1.0)
    assert len({chain.links["chain"] for chain in (a, b, c)}) == 3
    assert a.links["data"] == b.links["data"] != c.links["data"]
