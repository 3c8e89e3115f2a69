"""What an LSTM reads of the network's fields."""

import functools
from typing import Any

from jaxformer.config.section import at_least, refuse

# Fields that it does not read, and the only values that they may have: base.py's defaults. Whoever
# changes one means another model. 'none' says what an LSTM is: it has no positions.
UNREAD: dict[str, tuple[Any, ...]] = {
    "num_encoder_layers": (0,),
    "num_heads": (4,),
    "num_kv_heads": (0,),
    "head_dim": (0,),
    "d_ff": (0,),
    "activation": ("gelu",),
    "norm": ("layernorm",),
    "norm_placement": ("pre",),
    "final_norm": ("auto",),
    "norm_epsilon": (1e-5,),
    "embedding_norm": (False,),
    "residual": (True,),
    "attention_bias": (True,),
    "attention_output_bias": (True,),
    "feed_forward_bias": (True,),
    "scale_attention": (True,),
    "qk_norm": (False,),
    "attention_softcap": (0.0,),
    "attention_sink": (False,),
    "attention_kernel": ("auto",),
    "window": (0,),
    "layer_pattern": ("",),
    "share_embeddings": (True,),
    "scan_layers": (False,),
    "remat": ("none",),
    "layernorm.bias": (True,),
    "head.transform": (False,),
    "dropout.attention": (0.0,),
    "dropout.feed_forward": (0.0,),
    "moe.num_experts": (0,),
    "position.kind": ("learned", "none"),
    "position.options": ("",),
    "position.source.kind": ("contiguous",),
    "position.logn_length": (0,),
}


def check_lstm(model: Any) -> None:
    """Raises UserError where the config of an LSTM sets what only Transformers read."""
    for name, allowed in UNREAD.items():
        value = functools.reduce(getattr, name.split("."), model)
        if value not in allowed:
            what = f"is set to {value!r} but an LSTM does not read it"
            refuse(f"model.{name}", what, f"set it to {allowed[0]!r}")
    at_least("model", model, 0, "logit_softcap")
