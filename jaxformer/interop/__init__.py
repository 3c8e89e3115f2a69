"""Models of the Hugging Face library, in and out: `docs/interop.md`.

One module a family says how a config.json and the tensors of its safetensors files are ours.
"""

from jaxformer.interop.published import load_published, read_matching
from jaxformer.interop.read import FAMILIES, from_huggingface, open_folder
from jaxformer.interop.settings import run_config
from jaxformer.interop.write import to_huggingface

__all__ = [
    "FAMILIES",
    "from_huggingface",
    "load_published",
    "open_folder",
    "read_matching",
    "run_config",
    "to_huggingface",
]
