"""Frequencies of rotary encodings for texts longer than those of training.

R is the number of rotated dimensions, L the original length, s the factor. All are computed in
float64 from the config, but for dynamic NTK, which looks at each document.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config import RopeConfig
from jaxformer.nn.positions.angles import frequencies


def static_frequencies(rope: RopeConfig, width: int, length: int) -> np.ndarray:
    """float64[R/2]: scaled, then all but the ⌊keep R/2⌋ highest are 0.

    The latter is p-RoPE, Barbero et al. 2024, as in Gemma's code: pairs of frequency 0 do not
    turn, the others keep theirs of all R dimensions. `fraction` in contrast spreads the whole
    schedule over fewer dimensions.
    """
    scaled_M = SCALINGS[rope.scaling.kind](rope, width, length)
    kept = int(rope.keep * width / 2 + 1e-6)  # .29 · 100 is 28.999999999999996
    return np.where(np.arange(width // 2) < kept, scaled_M, 0.0)


def unscaled(rope: RopeConfig, width: int, length: int) -> np.ndarray:
    """w_m = base^(-2m/R)."""
    return frequencies(width, rope.base)


def linear(rope: RopeConfig, width: int, length: int) -> np.ndarray:
    """Position interpolation, Chen et al. 2023: t / s for t, which is w_m / s for w_m."""
    return frequencies(width, rope.base) / rope.scaling.factor


def ntk(rope: RopeConfig, width: int, length: int) -> np.ndarray:
    """NTK-aware, Peng et al. 2023 §3.1: base' = base s^(R/(R-2)), the slowest pair is w / s."""
    return frequencies(width, rope.base * rope.scaling.factor ** (width / (width - 2)))


def ntk_by_parts(rope: RopeConfig, width: int, length: int) -> np.ndarray:
    """YaRN's frequencies without its temperature; Peng et al. 2023 §3.2."""
    betas = rope.scaling.ntk_by_parts
    return _by_parts(rope, width, length, betas.beta_fast, betas.beta_slow)


def yarn(rope: RopeConfig, width: int, length: int) -> np.ndarray:
    """Pairs that turn often within L stay, those that turn seldom are interpolated.

    Peng et al. 2023: the published code is followed, whose ramp between the two is linear in the
    number m of the pair and has whole ends; the paper's §3.2 has it linear in the number of turns.
    """
    return _by_parts(rope, width, length, rope.scaling.yarn.beta_fast, rope.scaling.yarn.beta_slow)


def _by_parts(rope: RopeConfig, width: int, length: int, fast: float, slow: float) -> np.ndarray:
    def pair(turns: float) -> float:
        """The m, as a real number, that turns this often within L."""
        return width * math.log(length / (2 * math.pi * turns)) / (2 * math.log(rope.base))

    low, high = max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), width - 1)
    ramp_M = np.clip((np.arange(width // 2) - low) / max(high - low, 1e-3), 0, 1)
    w_M = frequencies(width, rope.base)
    return w_M / rope.scaling.factor * ramp_M + w_M * (1 - ramp_M)


def llama3(rope: RopeConfig, width: int, length: int) -> np.ndarray:
    """Llama 3.1's published code: by turns within L, more than `high` stay, fewer than `low` are
    interpolated, between them linearly in the number of turns (as in the YaRN paper's §3.2)."""
    low, high = rope.scaling.llama3.low_frequency_factor, rope.scaling.llama3.high_frequency_factor
    w_M = frequencies(width, rope.base)
    stay_M = np.clip((length * w_M / (2 * math.pi) - low) / (high - low), 0, 1)
    return w_M / rope.scaling.factor * (1 - stay_M) + w_M * stay_M


def dynamic_stretch(
    rope: RopeConfig, width: int, length: int, extents_BL: jax.Array
) -> jax.Array | None:
    """What dynamic NTK multiplies w_m by, float32[B, L, R/2]; None for all other kinds.

    base' = base (a n/L - (a-1))^(R/(R-2)) for documents of n > L tokens, a = `alpha`: the code
    published with Peng et al. 2023 (§3.3 has a = 1), where a call of length n has one base.
    """
    if rope.scaling.kind != "dynamic_ntk":
        return None
    alpha = rope.scaling.dynamic_ntk.alpha
    longer_BL = alpha * jnp.maximum(extents_BL / length, 1) - (alpha - 1)
    exponents_M = (np.arange(0, width, 2) / (width - 2)).astype(np.float32)
    return jnp.exp(-jnp.log(longer_BL)[..., None] * exponents_M[None, None])


def temperature(rope: RopeConfig) -> float:
    """Multiplies rotated queries and keys: YaRN's 0.1 ln s + 1 (Peng et al. 2023 §3.4), else 1.

    That is the code's `mscale`; logits, if all dimensions are rotated, grow by its square.
    """
    if rope.scaling.kind != "yarn":
        return 1.0
    return rope.scaling.yarn.temperature or 0.1 * math.log(rope.scaling.factor) + 1


SCALINGS: dict[str, Callable[[RopeConfig, int, int], np.ndarray]] = {
    "none": unscaled,
    "linear": linear,
    "ntk": ntk,
    "dynamic_ntk": unscaled,
    "ntk_by_parts": ntk_by_parts,
    "yarn": yarn,
    "llama3": llama3,
}
