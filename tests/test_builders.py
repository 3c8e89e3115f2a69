"""The pairwise cover covers pairs."""

import itertools

import numpy as np

from tests.builders import GRID, PAIRS, grid_config, leaves, model_config, pairwise, random_params


def met(rows):
    return {p for row in rows for p in itertools.combinations(sorted(row.items()), 2)}


def test_every_pair_of_values_meets():
    axes = {"a": "xyz", "b": "pq", "c": "12345", "d": "uvw"}
    rows = pairwise(axes)
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    assert met(rows) == met(every)
    assert len(rows) <= 20  # 15 at least, 90 in all
    assert met(PAIRS) == met(pairwise({k: list(v) for k, v in reversed(GRID.items())}))


def test_rows_of_the_grid_are_different_models():
    assert len({grid_config(row) for row in PAIRS}) == len(PAIRS)


def test_random_parameters_of_scanned_layers_are_stacked():
    flat = leaves(random_params(model_config()))
    stacked = leaves(random_params(model_config(scan_layers=True)))
    for i in range(2):
        np.testing.assert_array_equal(
            stacked["layers/attention/query/kernel"][i], flat[f"layers/{i}/attention/query/kernel"]
        )
