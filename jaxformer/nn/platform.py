"""What a program is compiled for."""

import jax


def platform() -> str:
    """cpu, gpu or tpu: of the mesh's devices, which need not be here, or of the default ones."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform
