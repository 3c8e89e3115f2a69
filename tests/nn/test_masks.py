"""Masks, order and positions as literal arrays."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn import masks
from jaxformer.nn.masks import Visibility, attention_mask, contiguous_positions


def mask_of(segment_ids, causal, keys=None):
    ids_BL = jnp.array([segment_ids])
    keys_BS = ids_BL if keys is None else jnp.array([keys])
    visibility = Visibility(masks.order(ids_BL), masks.order(keys_BS), ids_BL, keys_BS, causal)
    return np.asarray(attention_mask(visibility))[0].astype(int).tolist()


def test_causal_mask():
    assert mask_of([1, 1, 1, 1], causal=True) == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]


def test_documents_are_blocks_and_padding_sees_nothing():
    assert mask_of([1, 1, 2, 2, 2, 0], causal=True) == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def test_padding_on_the_left_and_in_between():
    assert mask_of([0, 1, 0, 1], causal=True) == [
        [0, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 0],
        [0, 1, 0, 1],
    ]


def test_bidirectional_mask():
    assert mask_of([1, 1, 2, 0], causal=False) == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 0],
    ]


def test_keys_of_another_length():
    assert mask_of([1, 2], causal=False, keys=[1, 1, 2, 0]) == [[1, 1, 0, 0], [0, 0, 1, 0]]


def test_queries_that_continue_a_cache_are_aligned_at_their_end():
    """The third and fourth token of a row see the two before them (not the top-left corner)."""
    ones_BL, keys_BS = jnp.ones((1, 2), jnp.int32), jnp.array([[1, 1, 1, 1, 0]])
    slots_BS = jnp.arange(5)[None]
    mask_BLS = attention_mask(Visibility(jnp.array([[2, 3]]), slots_BS, ones_BL, keys_BS, True))
    assert mask_BLS[0].astype(int).tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]


def test_rows_of_a_batch_have_masks_of_their_own():
    ids_BL = jnp.array([[1, 1], [1, 0]])
    order_BL = masks.order(ids_BL)
    mask_BLS = attention_mask(Visibility(order_BL, order_BL, ids_BL, ids_BL, True))
    assert mask_BLS.astype(int).tolist() == [[[1, 0], [1, 1]], [[1, 0], [0, 0]]]


@pytest.mark.parametrize(
    ("segment_ids", "order", "positions"),
    [
        ([1, 1, 1, 1], [0, 1, 2, 3], [0, 1, 2, 3]),
        ([1, 1, 2, 2, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, 0]),
        ([1, 1, 0, 0], [0, 1, 2, 2], [0, 1, 0, 0]),
        ([0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1]),
        ([1, 0, 1, 2, 0, 2], [0, 1, 1, 2, 3, 3], [0, 0, 1, 0, 0, 1]),
        ([0, 2, 0, 5, 5, 0], [0, 0, 1, 1, 2, 3], [0, 0, 0, 0, 1, 0]),
        ([0, 0], [0, 0], [0, 0]),
    ],
    ids=str,
)
def test_order_and_positions(segment_ids, order, positions):
    ids_BL = jnp.array([segment_ids, segment_ids])
    assert masks.order(ids_BL).tolist() == [order, order]
    positions_BL = contiguous_positions(ids_BL)
    assert positions_BL.tolist() == [positions, positions]
    assert positions_BL.dtype == jnp.int32


def test_prefix_mask():
    """Documents of four and three tokens whose first two are a prefix, which sees itself whole."""
    ids_BL = jnp.array([[1, 1, 1, 1, 2, 2, 2, 0]])
    prefix_BL = jnp.array([[1, 1, 0, 0, 1, 1, 0, 0]], bool)
    order_BL = masks.order(ids_BL)
    mask_BLS = attention_mask(Visibility(order_BL, order_BL, ids_BL, ids_BL, True, prefix_BL))
    assert mask_BLS[0].astype(int).tolist() == [
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("causal", [True, False])
def test_window(causal):
    """Two tokens: itself and a neighbour, padding not counted."""
    ids_BL = jnp.array([[1, 0, 1, 1, 1]])
    order_BL = masks.order(ids_BL)
    visibility = Visibility(order_BL, order_BL, ids_BL, ids_BL, causal, window=2)
    expected = [
        [1, 0, 1, 0, 0],
        [0, 0, 0, 0, 0],
        [1, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1],
    ]
    expected = np.tril(expected) if causal else np.array(expected)
    np.testing.assert_array_equal(attention_mask(visibility)[0].astype(int), expected)


def test_source_mask_of_packed_pairs():
    """A target document sees the source segment of its own number."""
    targets_BL, sources_BS = jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 2, 2, 0, 0]])
    visibility = Visibility(
        masks.order(targets_BL), masks.order(sources_BS), targets_BL, sources_BS, causal=False
    )
    assert attention_mask(visibility)[0].astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0],
    ]


def test_extents_are_of_the_whole_document_padding_anywhere():
    segments_BL = jnp.array([[0, 1, 0, 1, 2, 2, 2, 0], [1, 1, 1, 0, 2, 0, 3, 3]])
    positions_BL = jnp.array([[9, 0, 9, 5, 7, 3, 1, 9], [0, 4, 2, 9, 0, 9, 2, 1]])
    found_BL = np.asarray(masks.extents(positions_BL, segments_BL))
    np.testing.assert_array_equal(found_BL[0, [1, 3, 4, 5, 6]], [6, 6, 8, 8, 8])
    np.testing.assert_array_equal(found_BL[1, [0, 1, 2, 4, 6, 7]], [5, 5, 5, 1, 3, 3])
