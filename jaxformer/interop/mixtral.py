"""Mixtral; Jiang et al. 2024: Mistral whose feed-forward layers have experts.

Published names, which `transformers` writes too: of each expert w1 (gate), w3 (up) and w2 (down).
"""

from collections.abc import Collection
from typing import Any

from jaxformer.config import ModelConfig
from jaxformer.interop.family import Extra, Family, Special
from jaxformer.interop.fields import Fields
from jaxformer.interop.layouts import STACK, TRANSPOSE, Row, row
from jaxformer.interop.llama import BUFFERS, NORMS, make_rows, read_mistral, tied, write_mistral

EXPERT = {"w1": "gate", "w3": "up", "w2": "down"}


def read(fields: Fields, names: Collection[str]) -> dict[str, Any]:
    shape = read_mistral(fields, names)
    for of_training in ("router_aux_loss_coef", "output_router_logits", "router_jitter_noise"):
        fields.get(of_training)
    return shape | {
        "norm_epsilon": fields.number("rms_norm_eps", 1e-5),
        "moe.num_experts": fields.integer("num_local_experts", 8),
        "moe.top_k": fields.integer("num_experts_per_tok", 2),
    }


def rows(cfg: ModelConfig, extra: Extra) -> list[Row]:
    found = [row for row in make_rows(cfg, NORMS) if "/feed_forward/" not in row.paths[0]]
    for i in range(cfg.num_layers):
        name, path = f"model.layers.{i}.block_sparse_moe", f"layers/{i}/feed_forward"
        found.append(row(f"{name}.gate.weight", f"{path}/router/kernel", TRANSPOSE))
        for theirs, ours in EXPERT.items():
            each = [f"{name}.experts.{e}.{theirs}.weight" for e in range(cfg.moe.num_experts)]
            found.append(Row(tuple(each), (f"{path}/experts/{ours}/kernel",), STACK))
    return found


def write(cfg: ModelConfig, special: Special) -> dict[str, Any]:
    return write_mistral(cfg, special) | {
        "architectures": ["MixtralForCausalLM"],
        "intermediate_size": cfg.expert_width,
        "num_local_experts": cfg.moe.num_experts,
        "num_experts_per_tok": cfg.moe.top_k,
    }


MIXTRAL = Family("mixtral", read, rows, write, "model.", tied, BUFFERS)
