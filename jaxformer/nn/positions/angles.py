"""Frequencies, and angles that stay exact at far positions."""

import math

import jax
import jax.numpy as jnp
import numpy as np


def frequencies(width: int, base: float) -> np.ndarray:
    """base^(-2m/width) for m < width/2, float64."""
    return base ** (-np.arange(0, width, 2) / width)


def angles(positions_BL: jax.Array, frequencies_M: np.ndarray) -> jax.Array:
    """t w_m modulo a full turn, float32[B, L, M] in [-π, π].

    The float32 product t w_m is off by up to 4e-3 at t = 65,535, from rounding w_m and the product.
    Here w_m counts 2^-32ths of a turn, and integers that overflow drop whole turns: the error is
    at most t π 2^-32 + 4e-7, 5e-5 at that position.
    """
    steps_M = np.round(frequencies_M / (2 * math.pi) * 2.0**32).astype(np.uint64) % 2**32
    steps_M = steps_M.astype(np.uint32).view(np.int32)
    phases_BLM = positions_BL.astype(jnp.int32)[..., None] * steps_M[None, None]
    return phases_BLM.astype(jnp.float32) * np.float32(2 * math.pi / 2**32)
