"""Translate settings of single architectures: what a file says otherwise, and what llama.cpp has built in.

Each function returns fields of a configuration of transformers. The sources are llama.cpp's code of the architectures
(`src/llama-model.cpp`, `src/models`) and its converter.
"""

from __future__ import annotations

from typing import Any

from attnctl.models.gguf.settings import Settings, rope_parameters

Fields = dict[str, Any]

SLIDING, FULL = "sliding_attention", "full_attention"


def rope(settings: Settings) -> Fields:
    """Return the rotary positions."""
    return {"rope_parameters": rope_parameters(settings)}


def _pattern(settings: Settings, every: int) -> list[str]:
    """Return the kinds of layers if each `every`-th layer sees the whole text and the others have windows.

    Raises AttnctlError if the file says otherwise.
    """
    kinds = [FULL if (layer + 1) % every == 0 else SLIDING for layer in range(settings.layers)]
    stated = settings.file.metadata.get(f"{settings.architecture}.attention.sliding_window_pattern")
    settings.used.add("attention.sliding_window_pattern")
    if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0:
        return [FULL if (layer + 1) % stated == 0 else SLIDING for layer in range(settings.layers)]
    if isinstance(stated, tuple) and [bool(windowed) for windowed in stated[: len(kinds)]] != [
        kind == SLIDING for kind in kinds
    ]:
        raise settings.refuse(
            "attention.sliding_window_pattern", f"llama.cpp has each {every}th layer without a window"
        )
    return kinds


def _windows(settings: Settings, every: int, default: int | None = None) -> Fields:
    window = settings.whole("attention.sliding_window", default)
    if not window:
        return {"layer_types": [FULL] * settings.layers}
    return {"layer_types": _pattern(settings, every), "sliding_window": window}


def cohere2(settings: Settings) -> Fields:
    """Return the windows of Cohere 2: three layers of four have one."""
    return _windows(settings, 4)


def olmo3(settings: Settings) -> Fields:
    """Return the windows of OLMo 3, in three layers of four, and its positions: those with windows are not scaled."""
    near = rope_parameters(settings, "rope.freq_base_swa", settings.number("rope.freq_base", 10000.0), scaled=False)
    return {"rope_parameters": {FULL: rope_parameters(settings), SLIDING: near}} | _windows(settings, 4)


def gemma2(settings: Settings) -> Fields:
    """Return the windows and the scale of Gemma 2: llama.cpp takes the scale of 27B for a file of 46 blocks."""
    return _windows(settings, 2, 4096) | {"query_pre_attn_scalar": _gemma_scalar(settings, 46)}


def gemma3(settings: Settings) -> Fields:
    """Return the windows, the positions and the scale of Gemma 3: layers with windows are not scaled."""
    fields: Fields = {"query_pre_attn_scalar": _gemma_scalar(settings, 62)}
    near = rope_parameters(settings, "rope.freq_base_swa", scaled=False)
    fields["rope_parameters"] = {FULL: rope_parameters(settings), SLIDING: near}
    return fields | _windows(settings, 6, 0)


def _gemma_scalar(settings: Settings, blocks: int) -> int:
    """Return the number whose root divides the scores: the width of a head, in 27B the model's width by its heads."""
    return settings.width // settings.heads if settings.layers == blocks else settings.head_width


def phi3(settings: Settings) -> Fields:
    """Return the field of the longest text before scaling; llama.cpp has no windows for Phi-3."""
    original = settings.whole("rope.scaling.original_context_length", settings.whole("context_length"))
    parameters = rope_parameters(settings)
    if parameters["rope_type"] == "yarn":
        raise settings.refuse("rope.scaling.type", "attnctl reads none, linear and longrope for phi3")
    if parameters["rope_type"] == "linear":  # the class takes longrope alone, whose factors can be equal
        divisors = [parameters["factor"]] * (settings.whole("rope.dimension_count", settings.head_width) // 2)
        parameters |= {
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": 1.0,
        }
    return {"original_max_position_embeddings": original, "rope_parameters": parameters}


def stablelm(settings: Settings) -> Fields:
    """Return whether queries and keys are normed."""
    return {"qk_layernorm": settings.has_tensor("attn_q_norm.weight")}


def one_kv_head(settings: Settings) -> Fields:
    """Read that all heads share one head of keys."""
    if settings.whole("attention.head_count_kv", 1) != 1:
        raise settings.refuse("attention.head_count_kv", "attnctl reads 1")
    return {}


def falcon(settings: Settings) -> Fields:
    """Return the layout of Falcon: 40B has two norms and groups of heads, 7B one head of keys."""
    two_norms = settings.has_tensor("attn_norm_2.weight")
    return {
        "new_decoder_architecture": two_norms,
        "multi_query": not two_norms and settings.whole("attention.head_count_kv", 1) == 1,
    }


def bloom(settings: Settings) -> Fields:
    """Check the width of the inner layer, which the class does not take from its configuration."""
    _check_inner(settings)
    settings.get("context_length")
    settings.get("attention.head_count_kv")
    return {}


def _check_inner(settings: Settings) -> None:
    if settings.whole("feed_forward_length") != 4 * settings.width:
        raise settings.refuse("feed_forward_length", "attnctl reads 4 × embedding_length")


def mpt(settings: Settings) -> Fields:
    """Return the biases of positions and the bound of Q, K and V."""
    settings.get("attention.head_count_kv")
    if settings.number("attention.max_alibi_bias", 8.0) != 8:
        raise settings.refuse("attention.max_alibi_bias", "the network of transformers has 8 built in")
    clip = settings.number("attention.clamp_kqv", 0.0)
    expansion = settings.whole("feed_forward_length") // settings.width
    return {"attn_config": {"clip_qkv": clip} if clip else {}, "expansion_ratio": expansion}


def olmo(settings: Settings) -> Fields:
    """Return the bound of Q, K and V; the norms have no weights, and 1e-5 is in transformers' code."""
    settings.get("attention.layer_norm_epsilon")
    return {"clip_qkv": settings.number("attention.clamp_kqv", 0.0) or None}


def granite(settings: Settings) -> Fields:
    """Return Granite's four factors; what is missing or 0 is 1, and the scale of the scores 1 / √d_k."""
    if settings.get("rope.scaling.finetuned") is False:
        raise settings.refuse("rope.scaling.finetuned", "llama.cpp then turns no queries and keys")
    return {
        "attention_multiplier": settings.number("attention.scale", 0.0) or settings.head_width**-0.5,
        "embedding_multiplier": settings.number("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": settings.number("residual_scale", 0.0) or 1.0,
        "logits_scaling": settings.number("logit_scale", 0.0) or 1.0,
    }


def temperature_of_positions(settings: Settings) -> Fields:
    """Return Mistral 3's factor of the queries, which grows with the position."""
    fields = rope_parameters(settings)
    if fields["rope_type"] != "yarn":
        raise settings.refuse("rope.scaling.type", "attnctl reads yarn for mistral3")
    fields["llama_4_scaling_beta"] = settings.number("attention.temperature_scale", 0.0)
    fields.setdefault("original_max_position_embeddings", settings.whole("context_length"))
    if multiplier := settings.number("rope.scaling.yarn_log_multiplier", 0.0):
        fields |= {"mscale": 1.0, "mscale_all_dim": multiplier}
    return {"rope_parameters": fields}


def sigmoid_gate(settings: Settings) -> Fields:
    """Return the groups of experts, and check that experts are chosen by sigmoids."""
    if settings.get("expert_gating_func") not in (None, 2):
        raise settings.refuse("expert_gating_func", "attnctl reads 2, a sigmoid")
    return _expert_groups(settings)


def _expert_groups(settings: Settings) -> Fields:
    groups, used = settings.whole("expert_group_count", 1) or 1, settings.whole("expert_group_used_count", 1) or 1
    if used > groups:
        raise settings.refuse("expert_group_used_count", f"the file has {groups} groups of experts")
    return {"n_group": groups, "topk_group": used}


def shared_width(settings: Settings) -> Fields:
    """Read the width of the shared experts, which the configuration computes."""
    settings.get("expert_shared_feed_forward_length")
    return {}


def full_layers(settings: Settings) -> Fields:
    """Return layers that see the whole text."""
    return {"layer_types": [FULL] * settings.layers}


def hunyuan_experts(settings: Settings) -> Fields:
    """Read the widths of Hunyuan's experts: one for all, and one shared expert."""
    for key in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        if settings.whole(key, settings.whole("feed_forward_length")) != settings.whole("feed_forward_length"):
            raise settings.refuse(key, "attnctl reads one width for all experts")
    if settings.whole("expert_shared_count", 1) != 1:
        raise settings.refuse("expert_shared_count", "attnctl reads one shared expert")
    return {}


def exaone4(settings: Settings) -> Fields:
    """Return the windows of EXAONE 4: llama.cpp has them only for a file of 64 blocks."""
    if settings.layers == 64:
        return _windows(settings, 4, 4096)
    return {"layer_types": [FULL] * settings.layers, "sliding_window": None}


def deepseek(settings: Settings) -> Fields:
    """Return the attention of low rank, and the choice of experts.

    The file describes it as llama.cpp multiplies: one head of keys whose width is the rank plus the turned part.
    """
    turned, rank = settings.whole("rope.dimension_count"), settings.whole("attention.kv_lora_rank")
    width = settings.get("attention.key_length_mla")
    wide = width is not None  # older files hold the matrix of both ranks, and the width of a head
    key = "attention.key_length_mla" if wide else "attention.key_length"
    value = "attention.value_length_mla" if wide else "attention.value_length"
    for unread in ("attention.key_length", "attention.value_length", "attention.head_count_kv"):
        settings.get(unread)
    gate = settings.get("expert_gating_func")
    if gate not in (None, 0, 1, 2):
        raise settings.refuse("expert_gating_func", "attnctl reads 1, a softmax, and 2, a sigmoid")
    fields: Fields = {
        "kv_lora_rank": rank,
        "q_lora_rank": settings.get("attention.q_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": settings.whole(key) - turned,
        "v_head_dim": settings.whole(value),
        "routed_scaling_factor": settings.number("expert_weights_scale", 0.0) or 1.0,
        "norm_topk_prob": bool(settings.get("expert_weights_norm")),
        **_expert_groups(settings),
        "num_key_value_heads": settings.heads,
        "topk_method": "greedy",
        "head_dim": turned,
    }
    if gate != 2 and fields["norm_topk_prob"]:
        raise settings.refuse("expert_weights_norm", "attnctl reads it where experts are chosen by sigmoids")
    if gate != 2 and fields["n_group"] > 1:
        raise settings.refuse("expert_group_count", "attnctl reads groups of experts that are chosen by sigmoids")
    parameters = rope_parameters(settings)
    parameters.pop("partial_rotary_factor", None)
    if parameters["rope_type"] == "yarn":  # the converter writes a tenth of mscale_all_dim
        multiplier = 10 * settings.number("rope.scaling.yarn_log_multiplier", 0.0)
        parameters |= {"mscale": multiplier, "mscale_all_dim": multiplier}
    if parameters["rope_type"] not in ("default", "yarn") or parameters.get("mscale") == 0:
        raise settings.refuse(
            "rope.scaling.type", "attnctl reads yarn with a rope.scaling.yarn_log_multiplier, and none"
        )
    return fields | {"rope_parameters": parameters}


def gpt_oss(settings: Settings) -> Fields:
    """Return the windows of gpt-oss: every other layer has one."""
    settings.get("expert_feed_forward_length")
    return {
        **_windows(settings, 2),
        "intermediate_size": settings.whole("expert_feed_forward_length", settings.whole("feed_forward_length")),
    }


def minimax(settings: Settings) -> Fields:
    """Return the turned part of a head of MiniMax M2."""
    if settings.get("expert_gating_func") != 2:
        raise settings.refuse("expert_gating_func", "attnctl reads 2, a sigmoid")
    width = settings.whole("expert_feed_forward_length", settings.whole("feed_forward_length"))
    return {"rotary_dim": settings.whole("rope.dimension_count", settings.head_width), "intermediate_size": width}


def dbrx(settings: Settings) -> Fields:
    """Return DBRX' settings, which stand in two parts of its configuration."""
    settings.get("attention.layer_norm_epsilon")
    attention = {
        "kv_n_heads": settings.whole("attention.head_count_kv"),
        "clip_qkv": settings.number("attention.clamp_kqv", 0.0) or None,
        "rope_theta": settings.number("rope.freq_base", 10000.0),
    }
    experts = {
        "ffn_hidden_size": settings.whole("feed_forward_length"),
        "moe_num_experts": settings.whole("expert_count"),
        "moe_top_k": settings.whole("expert_used_count"),
        "hidden_size": settings.width,
    }
    return {"attn_config": attention, "ffn_config": experts, "rope_parameters": rope_parameters(settings)}


def lfm2(settings: Settings) -> Fields:
    """Return LFM2's layers: those with heads of keys attend, the others are convolutions."""
    counts = settings.get("attention.head_count_kv")
    counts = [counts] * settings.layers if isinstance(counts, int) else list(counts)
    return {
        "layer_types": [FULL if count else "conv" for count in counts],
        "num_key_value_heads": max(counts),
        "conv_L_cache": settings.whole("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": settings.whole("feed_forward_length"),
    }
