"""Slots of the key/value cache as literal arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.cache import LayerCache, init_cache
from tests.builders import model_config


def empty(capacity=5, batch_size=2):
    return init_cache(model_config(), batch_size, capacity)


def reserve(cache, positions, segment_ids):
    cache, slots_BL = cache.reserve(jnp.array(positions), jnp.array(segment_ids))
    return cache, slots_BL.tolist()


def test_reserving_takes_the_next_free_slots_and_drops_padding():
    cache, slots = reserve(empty(), [[7, 8, 9], [4, 5, 6]], [[1, 1, 0], [0, 1, 0]])
    assert slots == [[0, 1, 5], [5, 0, 5]]  # 5 is no slot: padding is not written
    assert cache.positions_BC.tolist() == [[7, 8, 0, 0, 0], [5, 0, 0, 0, 0]]
    assert cache.segment_ids_BC.tolist() == [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert cache.length_B.tolist() == [2, 1]
    cache, slots = reserve(cache, [[1, 2, 3], [1, 2, 3]], [[0, 3, 3], [0, 0, 0]])
    assert slots == [[5, 2, 3], [5, 5, 5]]
    assert cache.positions_BC.tolist() == [[7, 8, 2, 3, 0], [5, 0, 0, 0, 0]]
    assert cache.segment_ids_BC.tolist() == [[1, 1, 3, 3, 0], [1, 0, 0, 0, 0]]
    assert cache.length_B.tolist() == [4, 1]


def test_next_positions_continue_each_row():
    cache, _ = reserve(empty(), [[0, 1, 2], [0, 1, 2]], [[1, 1, 1], [1, 0, 0]])
    positions_BL = cache.next_positions(jnp.array([[1, 1], [0, 1]]))
    assert positions_BL.tolist() == [[3, 4], [1, 1]]
    assert positions_BL.dtype == jnp.int32


def test_tokens_beyond_the_capacity_leave_the_slots_as_they_are():
    """dynamic_update_slice would clamp and overwrite the last slot (jax-ml/jax#34257)."""
    cache, _ = reserve(empty(2, 1), [[5, 6]], [[1, 1]])
    cache, slots = reserve(cache, [[7]], [[1]])
    assert slots == [[2]]
    assert cache.positions_BC.tolist() == [[5, 6]]


@pytest.mark.parametrize("layer", [None, 1])
def test_writing_and_reading(layer):
    k_BLGK = np.arange(1.0, 9.0, dtype=np.float32).reshape(2, 2, 1, 2)
    shape = (2, 1, 3, 2) if layer is None else (3, 2, 1, 3, 2)
    start = LayerCache(jnp.zeros(shape), jnp.zeros(shape))
    cache = start.write(jnp.array([[2, 0], [3, 1]]), jnp.asarray(k_BLGK), -k_BLGK, layer)
    expected_BCGK = np.zeros((2, 3, 1, 2))
    expected_BCGK[0, 2], expected_BCGK[0, 0] = k_BLGK[0]
    expected_BCGK[1, 1] = k_BLGK[1, 1]
    k_BCGK, v_BCGK = cache.read(layer)
    np.testing.assert_array_equal(k_BCGK, expected_BCGK)
    np.testing.assert_array_equal(v_BCGK, -expected_BCGK)
    if layer is not None:
        for other in (0, 2):
            assert not cache.k[other].any()


@pytest.mark.parametrize("scan_layers", [False, True])
def test_an_empty_cache(scan_layers):
    cfg = model_config(num_kv_heads=2, scan_layers=scan_layers)
    cache = init_cache(cfg, 3, 7, jnp.bfloat16)
    shapes = [leaf.shape for leaf in jax.tree.leaves(cache.layers)]
    assert shapes == ([(2, 3, 2, 7, 4)] * 2 if scan_layers else [(3, 2, 7, 4)] * 4)
    assert {leaf.dtype for leaf in jax.tree.leaves(cache.layers)} == {jnp.dtype("bfloat16")}
    assert cache.capacity == 7
    assert cache.positions_BC.shape == cache.segment_ids_BC.shape == (3, 7)
    assert cache.length_B.tolist() == [0, 0, 0]
