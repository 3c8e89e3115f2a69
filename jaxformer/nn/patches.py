"""Images as tokens: square patches of pixels, and a class token before them (ViT)."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxformer.config import ModelConfig
from jaxformer.nn import parameters
from jaxformer.nn.linear import affine
from jaxformer.sharding import constrain


class PatchEmbedding(nnx.Module):
    """A linear map of each patch's pixels; Dosovitskiy et al. 2021 §3.1, eq. 1.

    A convolution whose stride is its width is the same, its kernel reshaped.
    """

    def __init__(self, cfg: ModelConfig, dtype: jnp.dtype):
        patches, init = cfg.patches, parameters.scheme(cfg)
        pixels = patches.patch_size**2 * patches.channels
        self.size, self.shape, self.dtype = patches.patch_size, patches.shape, dtype
        self.kernel = parameters.declare((pixels, cfg.d_model), init.kernel)
        self.bias = parameters.declare((cfg.d_model,), parameters.zeros)
        self.class_token = parameters.declare((cfg.d_model,), parameters.zeros)

    def __call__(self, images: jax.Array) -> jax.Array:
        """float32[B, 1 + patches, D] of images [B, H, W, C]: patches row by row of the image."""
        if images.shape[1:] != self.shape:
            raise ValueError(f"images are {images.shape[1:]}, model.patches says {self.shape}")
        rows, across, channels, side = len(images), self.shape[0] // self.size, -1, self.size
        cut = images.reshape(rows, across, side, across, side, channels)
        pixels = jnp.moveaxis(cut, 2, 3).reshape(rows, across**2, -1)
        x_BLD = affine(pixels, self.kernel[...], self.bias[...], self.dtype)
        first = jnp.broadcast_to(self.class_token[...], (rows, 1, x_BLD.shape[-1]))
        return constrain(jnp.concatenate([first, x_BLD], 1), "batch", "length", None)
