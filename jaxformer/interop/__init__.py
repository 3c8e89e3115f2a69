"""Models of the Hugging Face library, in and out: `docs/interop.md`.

One module a family says how a config.json and the tensors of its safetensors files are ours.
"""

from jaxformer.interop.published import load_published, read_matching
from jaxformer.interop.read import FAMILIES, from_huggingface
from jaxformer.interop.write import to_huggingface

__all__ = ["FAMILIES", "from_huggingface", "load_published", "read_matching", "to_huggingface"]
