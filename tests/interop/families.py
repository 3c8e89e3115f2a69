"""Odd small configs of each family, and models of `transformers` with random weights."""

from typing import Any

import torch
import transformers

VOCAB = 41  # ids from FIRST on are words
FIRST = 4
LENGTHS = (9, 4, 7)  # of the rows of a ragged batch

DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
# PyTorch's product of groups takes rows of multiples of 16 bytes.
EXPERTS = DECODER | {"intermediate_size": 20}
ENCODER = {
    "vocab_size": VOCAB,
    "hidden_size": 30,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "max_position_embeddings": 24,
}
GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 30,
    "n_layer": 2,
    "n_head": 5,
    "n_inner": 44,
    "n_positions": 48,
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 26,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 9,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": VOCAB,
    "d_model": 30,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 5,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 44,
    "max_position_embeddings": 48,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
BLOOM = {"vocab_size": VOCAB, "hidden_size": 30, "n_layer": 2, "n_head": 5}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **more}}


LLAMA3 = rope(
    "llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=16)
SLIDES = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}

# Class and config, the first of each family in the default suite.
CASES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "gpt2": [
        ("GPT2LMHeadModel", GPT2),
        ("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False, "n_inner": None}),
        ("GPT2LMHeadModel", GPT2 | {"activation_function": "gelu", "n_head": 3, "n_layer": 1}),
        ("GPT2LMHeadModel", GPT2 | {"activation_function": "relu", "layer_norm_epsilon": 1e-3}),
    ],
    "llama": [
        ("LlamaForCausalLM", DECODER | LLAMA3),
        ("LlamaForCausalLM", DECODER | {"tie_word_embeddings": True, "attention_bias": True}),
        ("LlamaForCausalLM", DECODER | YARN | {"mlp_bias": True, "num_key_value_heads": 6}),
        ("LlamaForCausalLM", DECODER | rope("linear", factor=3.0) | {"num_key_value_heads": 1}),
    ],
    "mistral": [
        ("MistralForCausalLM", DECODER | {"sliding_window": 4}),
        ("MistralForCausalLM", DECODER | {"sliding_window": None, "head_dim": 10}),
        ("MistralForCausalLM", DECODER | {"sliding_window": 2, "tie_word_embeddings": True}),
        ("MistralForCausalLM", DECODER | {"sliding_window": 30, "num_key_value_heads": 3}),
    ],
    "mixtral": [
        ("MixtralForCausalLM", EXPERTS | {"num_local_experts": 5, "head_dim": None}),
        ("MixtralForCausalLM", EXPERTS | {"sliding_window": 4, "num_experts_per_tok": 3}),
        ("MixtralForCausalLM", EXPERTS | {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
        ("MixtralForCausalLM", EXPERTS | {"num_key_value_heads": 6, "num_local_experts": 2}),
    ],
    "qwen3": [
        ("Qwen3ForCausalLM", DECODER | SLIDES),
        ("Qwen3ForCausalLM", DECODER | {"tie_word_embeddings": True}),
        ("Qwen3ForCausalLM", DECODER | {"attention_bias": True, "rms_norm_eps": 1e-3}),
        ("Qwen3ForCausalLM", DECODER | YARN | {"num_key_value_heads": 1}),
    ],
    "gemma2": [
        ("Gemma2ForCausalLM", DECODER | {"sliding_window": 4, "query_pre_attn_scalar": 8}),
        (
            "Gemma2ForCausalLM",
            DECODER | {"query_pre_attn_scalar": 8, "tie_word_embeddings": False},
        ),
        (
            "Gemma2ForCausalLM",
            DECODER
            | {
                "query_pre_attn_scalar": 8,
                "attn_logit_softcapping": None,
                "final_logit_softcapping": 2.0,
                "sliding_window": 3,
            },
        ),
        (
            "Gemma2ForCausalLM",
            DECODER
            | {
                "query_pre_attn_scalar": 12,
                "head_dim": 12,
                "attn_logit_softcapping": 1.5,
                "num_hidden_layers": 2,
                "sliding_window": 6,
            },
        ),
    ],
    "bloom": [
        ("BloomForCausalLM", BLOOM),
        ("BloomForCausalLM", BLOOM | {"hidden_size": 36, "n_head": 12}),
        ("BloomForCausalLM", BLOOM | {"n_head": 1, "layer_norm_epsilon": 1e-3}),
        ("BloomForCausalLM", BLOOM | {"n_head": 6, "tie_word_embeddings": False}),
    ],
    "bert": [
        ("BertForMaskedLM", ENCODER),
        ("BertForSequenceClassification", ENCODER | {"num_labels": 3, "hidden_act": "gelu_new"}),
        ("BertForTokenClassification", ENCODER | {"num_labels": 4, "type_vocab_size": 3}),
        ("BertModel", ENCODER | {"layer_norm_eps": 1e-3}),
    ],
    "roberta": [
        ("RobertaForMaskedLM", ENCODER | {"pad_token_id": 1}),
        ("RobertaForSequenceClassification", ENCODER | {"pad_token_id": 1, "num_labels": 3}),
        ("RobertaForTokenClassification", ENCODER | {"pad_token_id": 3, "num_labels": 5}),
        ("RobertaForMaskedLM", ENCODER | {"pad_token_id": 0, "num_attention_heads": 3}),
    ],
    "t5": [
        ("T5ForConditionalGeneration", T5),
        ("T5ForConditionalGeneration", T5 | {"num_layers": 1, "num_decoder_layers": 3}),
        ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-silu"}),
        (
            "T5ForConditionalGeneration",
            T5 | {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
        ),
    ],
    "t5_v1_1": [
        (
            "T5ForConditionalGeneration",
            T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        ),
        ("T5ForConditionalGeneration", T5 | {"tie_word_embeddings": False}),
    ],
    "bart": [
        ("BartForConditionalGeneration", BART),
        ("BartForConditionalGeneration", BART | {"scale_embedding": True}),
        ("BartForConditionalGeneration", BART | {"activation_function": "relu"}),
        ("BartForConditionalGeneration", BART | {"encoder_layers": 1, "decoder_layers": 3}),
    ],
}


def make_theirs(kind: str, fields: dict[str, Any], seed: int = 0) -> Any:
    """A model in float32 whose every parameter matters: norms and biases are drawn too."""
    model_class = getattr(transformers, kind)
    fields = fields | {"bos_token_id": None, "eos_token_id": None, "attn_implementation": "eager"}
    config = model_class.config_class(**fields)
    torch.manual_seed(seed)
    model = model_class(config).eval()
    if kind.startswith("T5") and fields.get("tie_word_embeddings") is False:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                # Positions that matter keep a greedy text from one word for ever.
                is_position = "embed_positions" in name or ".wpe." in name
                spread = 1.0 if is_position else parameter.shape[-1] ** -0.5
                parameter.normal_(0, spread)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
        for name, table in model.named_buffers():
            if name == "final_logits_bias":
                table.normal_(0, 0.5)
    return model
