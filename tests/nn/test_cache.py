"""Slots of the key/value cache as literal arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.cache import LayerCache, Places, append, init_cache
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


@pytest.mark.parametrize("layer", [None, 1])
@pytest.mark.parametrize("slot", [2, 3])
def test_one_token_of_one_row_is_written_alike(layer, slot):
    shape = (1, 2, 3, 2) if layer is None else (3, 1, 2, 3, 2)
    start = LayerCache(jnp.ones(shape), jnp.ones(shape))
    k_BLGK = jnp.arange(5.0, 9.0).reshape(1, 1, 2, 2)
    cache = start.write(jnp.array([[slot]]), k_BLGK, -k_BLGK, layer)
    expected = np.ones(shape)
    if slot < 3:  # 3 is no slot: padding
        expected[() if layer is None else layer][..., slot, :] = k_BLGK[:, 0]
    np.testing.assert_array_equal(cache.k, expected)
    np.testing.assert_array_equal(cache.v == 1, expected == 1)


def ring(tokens, segment_ids, lengths, kept_ids, start=None):
    """Appends tokens, whose keys are their orders + 1, to rings of 3 slots in caches of 8."""
    order_BL, ids_BL = jnp.array(tokens), jnp.array(segment_ids)
    kept_BC = jnp.array([row + [0] * (8 - len(row)) for row in kept_ids])
    order_BC = jnp.broadcast_to(jnp.arange(8)[None], kept_BC.shape)
    new = Places(order_BL, ids_BL, 10 * order_BL, None)
    kept = Places(order_BC, kept_BC, 10 * order_BC, None)
    k_BLGK = (order_BL + 1.0)[..., None, None]
    empty = jnp.zeros((len(tokens), 1, 3, 1))
    start = LayerCache(empty, empty) if start is None else start
    cache, k, v, seen = append(start, k_BLGK, -k_BLGK, new, kept, jnp.array(lengths))
    np.testing.assert_array_equal(v, -k)
    return cache, k[..., 0, 0].tolist(), seen


def test_a_ring_keeps_the_last_tokens_of_a_row():
    prompts = [[0, 1, 2, 3, 4], [0, 8, 1, 8, 8]], [[1] * 5, [1, 0, 1, 0, 0]]
    cache, keys, seen = ring(*prompts, [5, 2], [[1] * 5, [1, 1]])
    # New tokens see each other, behind what the ring held before: nothing.
    assert keys[0] == [0, 0, 0, 1, 2, 3, 4, 5]
    assert seen.segment_ids.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 0, 1, 0, 0]]
    assert cache.k[..., 0].tolist() == [[[4, 5, 3]], [[1, 2, 0]]]
    # One more: it is written first, and the ring is read as it lies.
    cache, keys, seen = ring([[5], [2]], [[1], [1]], [6, 3], [[1] * 6, [1] * 3], cache)
    assert keys == [[4, 5, 6], [1, 2, 3]]
    assert seen.order.tolist() == [[3, 4, 5], [0, 1, 2]]
    assert seen.positions.tolist() == [[30, 40, 50], [0, 10, 20]]
    # A row that is done leaves its ring alone.
    _, keys, seen = ring([[6], [8]], [[1], [0]], [7, 3], [[1] * 7, [1] * 3], cache)
    assert keys == [[7, 5, 6], [1, 2, 3]]
    assert seen.order.tolist() == [[6, 4, 5], [0, 1, 2]]


def test_several_tokens_after_a_full_ring_see_what_they_push_out():
    cache, _, _ = ring([[0, 1, 2, 3]], [[1] * 4], [4], [[1] * 4])
    cache, keys, seen = ring([[4, 5]], [[2, 2]], [6], [[1, 1, 1, 1, 2, 2]], cache)
    assert keys == [[4, 2, 3, 5, 6]]
    assert seen.order.tolist() == [[3, 1, 2, 4, 5]]
    assert seen.segment_ids.tolist() == [[1, 1, 1, 2, 2]]
    assert cache.k[..., 0].tolist() == [[[4, 5, 6]]]


@pytest.mark.parametrize(("kind", "slots"), [("rope", 4), ("cope", 7)])
def test_layers_with_a_window_keep_that_many_keys(kind, slots):
    """But for an encoding that counts keys in their order."""
    cache = init_cache(model_config(window=4, **{"position.kind": kind}), 3, 7)
    assert {leaf.shape for leaf in jax.tree.leaves(cache.layers)} == {(3, 4, slots, 4)}
    assert cache.capacity == 7
