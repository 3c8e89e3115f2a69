"""What a program is compiled for."""

from typing import Any

import jax
import jax.numpy as jnp


def platform() -> str:
    """cpu, gpu or tpu: of the mesh's devices, which need not be here, or of the default ones."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def head_dtype(dtype: Any) -> jnp.dtype:
    """The type in which single heads are multiplied, and in which a cache keeps keys and values.

    That of the activations, but float32 on CPUs: XLA there has no product of heads in bfloat16, it
    turns all keys and values into float32 for each one.
    """
    return jnp.dtype(jnp.float32 if platform() == "cpu" else dtype)
