"""Tiny random models of many architectures, with caps, windows, sinks and biases that bite."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from typing import Any

import torch

os.environ["HF_HUB_OFFLINE"] = "1"

TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = TINY | {"num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "vocab_size": 64,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 8,
    "decoder_start_token_id": 0,
}
BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
}

# name of a case → (module of transformers.models, class, settings of its configuration)
DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("gpt2", "GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 64}),
    "llama": ("llama", "LlamaForCausalLM", GROUPED),
    "mistral, window": ("mistral", "MistralForCausalLM", GROUPED | {"sliding_window": 3}),
    "mixtral": ("mixtral", "MixtralForCausalLM", GROUPED | EXPERTS),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", GROUPED),
    "qwen3, qk-norm": ("qwen3", "Qwen3ForCausalLM", GROUPED | {"head_dim": 8}),
    "gemma2, soft cap and window": (
        "gemma2",
        "Gemma2ForCausalLM",
        GROUPED | {"head_dim": 8, "attn_logit_softcapping": 1.5, "sliding_window": 3, "query_pre_attn_scalar": 4},
    ),
    "gemma3, window": (
        "gemma3",
        "Gemma3ForCausalLM",
        GROUPED
        | {
            "head_dim": 8,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 4,
        },
    ),
    "phi, partial rotary": ("phi", "PhiForCausalLM", TINY | {"partial_rotary_factor": 0.5}),
    "phi3": ("phi3", "Phi3ForCausalLM", GROUPED),
    "gpt_neox, partial rotary": ("gpt_neox", "GPTNeoXForCausalLM", TINY),
    "opt": ("opt", "OPTForCausalLM", TINY | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "olmo2, qk-norm": ("olmo2", "Olmo2ForCausalLM", GROUPED),
    "olmo3, window": ("olmo3", "Olmo3ForCausalLM", GROUPED | {"sliding_window": 3}),
    "granite, own scale": ("granite", "GraniteForCausalLM", GROUPED | {"attention_multiplier": 0.7}),
    "cohere2, window": ("cohere2", "Cohere2ForCausalLM", GROUPED | {"sliding_window": 3}),
    "gpt_oss, sinks": ("gpt_oss", "GptOssForCausalLM", GROUPED | EXPERTS | {"head_dim": 8, "sliding_window": 3}),
    "stablelm": ("stablelm", "StableLmForCausalLM", GROUPED),
    "starcoder2": ("starcoder2", "Starcoder2ForCausalLM", GROUPED),
    "smollm3": ("smollm3", "SmolLM3ForCausalLM", GROUPED),
    "deepseek_v3, d_k is not d_v": (
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        TINY
        | {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
        }
        | {"v_head_dim": 6, "first_k_dense_replace": 2},
    ),
}
DECODERS["deepseek_v32, keys picked by an indexer"] = (
    "deepseek_v32",
    "DeepseekV32ForCausalLM",
    DECODERS["deepseek_v3, d_k is not d_v"][2] | {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4},
)
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("bert", "BertModel", TINY),
    "roberta": ("roberta", "RobertaModel", TINY | {"max_position_embeddings": 66}),
    "distilbert": (
        "distilbert",
        "DistilBertModel",
        {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "vocab_size": 64},
    ),
    "albert, one layer shared": ("albert", "AlbertModel", TINY | {"embedding_size": 16}),
    "electra": ("electra", "ElectraModel", TINY | {"embedding_size": 16}),
    "modernbert, window": (
        "modernbert",
        "ModernBertModel",
        TINY | {"local_attention": 4, "global_attn_every_n_layers": 2},
    ),
    "vit": ("vit", "ViTModel", TINY | {"image_size": 8, "patch_size": 4}),
}
PAIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5, bias": ("t5", "T5ForConditionalGeneration", T5),
    "mt5, bias": ("mt5", "MT5ForConditionalGeneration", T5),
    "bart": ("bart", "BartForConditionalGeneration", BART),
    "marian": ("marian", "MarianMTModel", BART),
    "t5gemma, two halves": (
        "t5gemma",
        "T5GemmaForConditionalGeneration",
        {"encoder": GROUPED | {"head_dim": 8}, "decoder": GROUPED | {"head_dim": 8, "cross_attention_hidden_size": 32}}
        | {"vocab_size": 64},
    ),
    "pegasus": ("pegasus", "PegasusForConditionalGeneration", BART),
}
OUTSIDE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bloom, ALiBi": ("bloom", "BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}),
    "mpt, ALiBi": (
        "mpt",
        "MptForCausalLM",
        {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 64, "max_seq_len": 64},
    ),
    "falcon, ALiBi": ("falcon", "FalconForCausalLM", TINY | {"alibi": True}),
    "gptj": ("gptj", "GPTJForCausalLM", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "rotary_dim": 4}),
    "deberta": ("deberta", "DebertaModel", TINY),
}
# attention in some of the layers only, or behind a model for pictures
SPARSE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "lfm2, convolutions": ("lfm2", "Lfm2ForCausalLM", GROUPED | {"layer_types": ["conv", "full_attention"]}),
}
CLASSIFIERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert of classes": ("bert", "BertForSequenceClassification", TINY | {"num_labels": 3}),
    "gpt2 of classes": (
        "gpt2",
        "GPT2ForSequenceClassification",
        DECODERS["gpt2"][2] | {"num_labels": 3, "pad_token_id": 0},
    ),
}
ALL = SPARSE | DECODERS | ENCODERS | PAIRS | OUTSIDE | CLASSIFIERS


def build(case: str, kernel: str = "sdpa", dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """A random model of a case, its weights large enough that attention is sharp; the same each time."""
    module, name, config = ALL[case]
    family = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    model_class = getattr(family, name)
    torch.manual_seed(0)
    model = model_class._from_config(
        model_class.config_class(**config | settings), attn_implementation="eager" if case in OUTSIDE else None
    )
    spread = 0.12 if module in ("t5", "mt5") else 0.2  # T5 does not scale its scores down
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in parameter_name and "wte" not in parameter_name:
                parameter.mul_(spread / (parameter.std() + 1e-6))
            elif "sinks" in parameter_name:
                parameter.normal_(0.0, 2.0)
    with contextlib.suppress(Exception), warnings.catch_warnings():
        model.set_attn_implementation(kernel)
    return model.to(dtype).eval()


def inputs(case: str, n: int = 9, batch: int = 1) -> dict[str, Any]:
    """Something for the model of a case to read."""
    generator = torch.Generator().manual_seed(1)
    if case == "vit":
        return {"pixel_values": torch.randn(batch, 3, 8, 8, generator=generator)}
    ids = torch.randint(3, 64, (batch, n), generator=generator)
    if case in PAIRS:
        return {"input_ids": ids, "decoder_input_ids": torch.randint(3, 64, (batch, 5), generator=generator)}
    return {"input_ids": ids}
