"""Tiny models of every family that the installed transformers can build, by reflection over its configurations."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# settings by the names they go by in configurations → a small value; taken where a configuration has a number there
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("embedding_size", "input_embedding_size", "output_embedding_size", "embedding_rank"), 32),
    **dict.fromkeys(("attention_hidden_size", "lru_width", "backbone_hidden_size", "encoder_hidden_size"), 32),
    **dict.fromkeys(("hidden_size_global", "d_latents", "entity_emb_size", "true_hidden_size", "mamba_d_ssm"), 32),
    **dict.fromkeys(
        ("cross_attention_hidden_size", "pooler_hidden_size", "prediction_head_size", "out_hidden_size"), 32
    ),
    **dict.fromkeys(
        ("input_size", "audio_hidden_size", "input_dim", "vision_output_dim", "output_dim", "adapter_in_dim"), 32
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers", "num_blocks", "depth"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("num_decoder_attention_heads", "swa_num_attention_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "num_query_groups"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "kv_channels", "dim_head", "swa_head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("qk_head_dim", "index_head_dim", "attention_head_size", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "d_rel"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "index_n_heads"), 2),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 4),
    **dict.fromkeys(("qk_nope_head_dim",), 8),
    **dict.fromkeys(("v_head_dim", "swa_v_head_dim"), 6),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "laurel_rank", "adapter_rank"), 16),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "d_inner"), 48),
    **dict.fromkeys(("hidden_dim", "dff", "dim_ff", "ffn_hidden_size", "feed_forward_size", "mlp_dim"), 48),
    **dict.fromkeys(("dense_intermediate_size", "intermediate_size_mlp", "shared_intermediate_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size"), 16),
    **dict.fromkeys(("router_hidden_size", "intra_bottleneck_size", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("ple_embed_dim", "shape_embed_dim", "pronunciation_embed_dim", "hc_lowrank"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "top_k_experts", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "zero_expert_num"), 1),
    **dict.fromkeys(("vocab_size", "src_vocab_size", "tgt_vocab_size", "decoder_vocab_size", "entity_vocab_size"), 128),
    **dict.fromkeys(("vocab_size_per_layer_input", "unpadded_vocab_size", "shape_vocab_size"), 128),
    **dict.fromkeys(("pronunciation_vocab_size", "audio_vocab_size", "encoder_hash_byte_group_vocab"), 128),
    **dict.fromkeys(("t2u_vocab_size", "unit_hifi_gan_vocab_size", "char_vocab_size", "num_centroids"), 128),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "model_max_length"), 64),
    **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings", "context_length"), 64),
    **dict.fromkeys(("max_target_positions", "original_max_position_embeddings", "rel_extent"), 64),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size", "local_attention"), 4),
    **dict.fromkeys(("keep_window_size", "attention_chunk_size", "local_attention_window_len"), 4),
    **dict.fromkeys(("index_topk", "index_block_size", "index_topk_blocks", "attention_window", "window_size"), 4),
    **dict.fromkeys(("block_size", "chunk_size", "mamba_chunk_size", "local_radius", "global_block_size"), 4),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size", "time_step_rank", "mamba_dt_rank"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 16),
    **dict.fromkeys(("relative_attention_num_buckets", "num_buckets", "position_bias_num_buckets"), 8),
    **dict.fromkeys(("relative_attention_max_distance", "relative_max_distance", "position_bias_max_distance"), 8),
    **dict.fromkeys(("segment_means_seq_len", "num_landmarks", "num_global_tokens", "num_latents"), 4),
    **dict.fromkeys(("image_size",), 16),
    **dict.fromkeys(("patch_size",), 8),
    **dict.fromkeys(("query_pre_attn_scalar", "expert_capacity", "ngram_vocab_size_base"), 16),
    **dict.fromkeys(("speech_encoder_layers", "num_layers_per_stack", "t2u_encoder_layers", "t2u_decoder_layers"), 2),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"), 1),
    **dict.fromkeys(("num_kv_shared_layers",), 1),
    **dict.fromkeys(("conv_kernel_size",), 3),
    **dict.fromkeys(("prompt_length",), 4),
    "split_ngram_parts": 4,
    "make_ngram_vocab_size_divisible_by": 4,
    "max_window_layers": 1,
    "moe_layer_end_index": 1,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "cls_token_id": 1}
SPECIAL |= {"sep_token_id": 2, "mask_token_id": 3}
# what one family needs besides; by model_type
HYBRID = {"num_hidden_layers": 4}
NEEDS: dict[str, dict[str, Any]] = {
    "bamba": HYBRID | {"attn_layer_indices": [1, 3]},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"layer_types": ["full_attention", "sliding_attention"], "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "laguna": {"layer_types": ["full_attention", "sliding_attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mellum": {"layer_types": ["full_attention", "sliding_attention"]},
    "ministral": {"head_dim": 8, "layer_types": ["full_attention", "sliding_attention"]},
    "nemotron": {"num_key_value_heads": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "bigbird_pegasus": {"block_size": 1, "num_random_blocks": 1},  # in blocks from 8 tokens on
    "jamba": HYBRID | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "longcat_flash": {"num_layers": 1, "num_hidden_layers": 2, "head_dim": 4},
    "esm": {"vocab_size": 128, "pad_token_id": 0, "mask_token_id": 3},
    "esmc": {"num_key_value_heads": 4, "vocab_size": 128},
    "mobilebert": {"hidden_size": 32, "intra_bottleneck_size": 16, "embedding_size": 16, "true_hidden_size": 16},
    "mpnet": {"pad_token_id": 1, "max_position_embeddings": 66, "relative_attention_num_buckets": 32},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [4, 16]},
    "mamba2": {"expand": 2, "n_groups": 2, "head_dim": 16, "num_heads": 4},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"], **HYBRID, "attention_hidden_size": 64},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"], **HYBRID, "attention_hidden_size": 64, "n_mamba_heads": 4},
    "nemotron_h": {"n_groups": 2, "mamba_n_groups": 2},
    "xlstm": {"num_heads": 4, "qk_dim_factor": 1.0},
    "llama4_text": {"no_rope_layers": [1, 0], "interleave_moe_layer_step": 1},
    "gemma3n_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma4_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma4_unified_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": dict.fromkeys(("sliding_attention", "full_attention"), {"rope_type": "default", "rope_theta": 1e4})},
    "hrm_text": {"num_hidden_layers": 16, "num_layers_per_stack": 2},
    "longformer": {"attention_window": 4},
    "led": {"attention_window": 4},
    "blt": {"num_hidden_layers": 2},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0}},
    "dots3_note_text": {"per_layer_config": {}, "head_dim": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
    "dots3_note_vision_encoder": {"per_layer_config": {}},
    "dots3_note_audio_encoder": {"per_layer_config": {}},
    "emu3_vqgan": {"base_channels": 32, "channel_multiplier": [1], "hidden_size": 32, "codebook_size": 64},
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    "qwen4_exp_text": {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "indexer_n_heads": 2, "indexer_kv_heads": 1,
                       "indexer_head_dim": 8, "indexer_budget": 8, "indexer_compress_ratio": 2, "ple_embed_dim": 16},
    "neomme": {"head_dim": 16},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_block_size": 2, "index_topk_blocks": 2,
                           "index_local_blocks": 1, "index_n_heads": 2, "index_head_dim": 8},
    "emu3": {"vocabulary_map": {"<|extra_200|>": 110, "<image>": 111, "<|visual token 000000|>": 112}},
    "audioflamingo3_encoder": {"model_type": "audioflamingo3_encoder"},
    "nemotron3_5_transcribe_word_timestamp": {"blank_token_id": 5},
}  # fmt: skip
NEEDS_OF_A_HEAD = {"reformer masked": {"is_decoder": False}}
TOO_LARGE = {"vibevoice_asr"}  # its audio half stays at 690 million parameters
NO_TEXT = {
    "perceiver base",
    "voxtral_realtime base",
    "voxtral_realtime seq2seq",
    "whisper base",
}  # they read other inputs
HEADS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "base": "MODEL_MAPPING_NAMES",
}


@dataclass(frozen=True)
class Family:
    """A model_type of transformers with one of its heads."""

    kind: str  # the configuration's model_type
    head: str  # causal, masked, seq2seq, base

    def __str__(self) -> str:
        return f"{self.kind} {self.head}"


def families() -> Iterator[Family]:
    """Every (model_type, head) that reads text by token ids, as far as the mappings tell."""
    from transformers.models.auto import modeling_auto

    text: set[str] = set()
    for head, mapping in HEADS.items():
        kinds = getattr(modeling_auto, mapping)
        if head != "base":
            text |= set(kinds)
        wanted = [Family(kind, head) for kind in sorted(set(kinds) - TOO_LARGE) if head != "base" or kind in text]
        yield from (family for family in wanted if str(family) not in NO_TEXT)


def configuration(kind: str) -> Any:
    """A small configuration of a model_type. Raises whatever its class raises."""
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[kind]
    return config_class(**_small(config_class, config_class()) | NEEDS.get(kind, {}))


def _small(config_class: Any, default: Any) -> dict[str, Any]:
    said = dict(vars(default))
    if "qk_rope_head_dim" in said:  # a latent (MLA): every head has keys of its own, a part of them turned by position
        return _plain(config_class, default, said) | {"num_key_value_heads": 4, "head_dim": 4, "qk_head_dim": 12}
    return _plain(config_class, default, said)


def _plain(config_class: Any, default: Any, said: dict[str, Any]) -> dict[str, Any]:
    small: dict[str, Any] = {}
    inner = getattr(config_class, "sub_configs", {}) or {}
    for name, value in said.items():
        if name in inner:
            if value is not None and not isinstance(value, dict):
                small[name] = _small(type(value), value) | NEEDS.get(str(value.model_type), {})
        elif name in SPECIAL:
            small[name] = SPECIAL[name]
        elif isinstance(value, int) and not isinstance(value, bool) and name in SMALL:
            small[name] = min(SMALL[name], value) if value > 0 else value
    for name, to in getattr(default, "attribute_map", {}).items():
        if name in SMALL and to not in small and isinstance(said.get(to), int) and not isinstance(said.get(to), bool):
            small[to] = min(SMALL[name], said[to])
    kinds = list(dict.fromkeys(said.get("layer_types") or ()))
    if len(kinds) > 1:  # every kind of layer that there is
        layers = next((n for n in ("num_hidden_layers", "n_layer", "num_layers") if n in small), None)
        if layers is not None:
            small[layers] = max(2, len(kinds))
            small["layer_types"] = (kinds * 2)[: small[layers]]
    return small


def class_of(family: Family) -> Any:
    """The model class of a family."""
    import transformers
    from transformers.models.auto import modeling_auto

    name = getattr(modeling_auto, HEADS[family.head])[family.kind]
    return getattr(transformers, name if isinstance(name, str) else name[0])


def _of_class(config: Any, config_class: type) -> Any:
    """The configuration, or that part of one for several kinds of input which the model is made of."""
    if type(config) is config_class:
        return config
    parts = [part for part in vars(config).values() if isinstance(part, config_class)]
    return parts[0] if parts else config.get_text_config() if not isinstance(config, config_class) else config


DEVICE = "cpu"  # where the networks run; `--device` of the sweep sets it


def build(family: Family, kernel: str = "eager", dtype: str = "float32") -> Any:
    """A random model of a family, its weights large enough that attention is peaky; the same each time."""
    import torch

    made = _made(family, kernel, dtype, str(NEEDS.get(family.kind)))
    torch.manual_seed(0)
    return copy.deepcopy(made).to(DEVICE)


@lru_cache(maxsize=6)  # the kernels and types of numbers in which one family is run
def _made(family: Family, kernel: str, dtype: str, _: str) -> Any:
    import torch

    config, model_class = configuration(family.kind), class_of(family)
    if str(family) in NEEDS_OF_A_HEAD:
        config.update(NEEDS_OF_A_HEAD[str(family)])
    config = _of_class(config, model_class.config_class)
    torch.manual_seed(0)
    model = model_class._from_config(config, attn_implementation=kernel)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name and "wte" not in name and parameter.is_floating_point():
                parameter.mul_(0.2 / (parameter.std() + 1e-6))
            elif "sinks" in name:
                parameter.normal_(0.0, 2.0)
            if not torch.isfinite(parameter).all():  # some classes leave memory as they found it
                parameter.normal_(0.0, 0.02)
    return model.to(getattr(torch, dtype)).eval()
