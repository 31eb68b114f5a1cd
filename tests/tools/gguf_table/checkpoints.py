"""The checkpoints that the table of GGUF architectures is made of: tiny configurations, whose settings bite in the second rows."""

from __future__ import annotations

from typing import Any, NamedTuple

TEXT = "the rain on the stone and the hand in the sand were there all night"
SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SIZES |= {
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
OLD_SIZES = {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}  # names of GPT-2's time
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LLAMA3 |= {"original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 20000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16}
LONG |= {"short_factor": [1 + 0.1 * i for i in range(8)], "long_factor": [1.5 + 0.5 * i for i in range(8)]}


def plain(theta: float, **more: Any) -> dict[str, Any]:
    """Return the settings of rotary positions without scaling."""
    return {"rope_type": "default", "rope_theta": theta, **more}


class Row(NamedTuple):
    """A row of the table: a name, the class of the network, its settings, and what of them bites."""

    architecture: str  # in the file, general.architecture
    network: str
    settings: dict[str, Any]
    bites: str = "its usual settings"
    base: dict[str, Any] = SIZES

    @property
    def name(self) -> str:
        """Return a name for files."""
        words = "".join(letter if letter.isalnum() else "-" for letter in self.bites)[:48].strip("-").lower()
        return f"{self.architecture}--{words}"


def rows() -> list[Row]:
    """Return the rows: two for each architecture, and more where scaling has more forms."""
    half = {"full_attention": plain(1e6), "sliding_attention": plain(5000.0)}
    gemma_scaled = {"full_attention": {**LINEAR, "factor": 8.0}, "sliding_attention": plain(3000.0)}
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
    mla = {"q_lora_rank": None, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
    mla |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "n_shared_experts": 1}
    mla |= {"first_k_dense_replace": 1, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1}
    v2 = mla | {"topk_method": "greedy", "norm_topk_prob": False, "routed_scaling_factor": 1.0}
    return [
        Row("llama", "LlamaForCausalLM", {}),
        Row(
            "llama",
            "LlamaForCausalLM",
            {"head_dim": 24, "rope_parameters": LLAMA3, "tie_word_embeddings": True},
            "llama3 scaling, a wide head, tied",
        ),
        Row(
            "llama",
            "LlamaForCausalLM",
            {"attention_bias": True, "mlp_bias": True, "rope_parameters": LINEAR},
            "biases, linear scaling",
        ),
        Row("llama", "LlamaForCausalLM", {"rope_parameters": YARN}, "YaRN"),
        Row(
            "llama",
            "MistralForCausalLM",
            {"sliding_window": None, "head_dim": 24, "rope_parameters": plain(1e6)},
            "Mistral, a wide head",
        ),
        Row(
            "llama", "MixtralForCausalLM", {**EXPERTS, "sliding_window": None, "rope_parameters": plain(1e6)}, "Mixtral"
        ),
        Row("qwen2", "Qwen2ForCausalLM", {}),
        Row("qwen2", "Qwen2ForCausalLM", {"rope_parameters": YARN, "tie_word_embeddings": True}, "YaRN, tied"),
        Row("qwen2moe", "Qwen2MoeForCausalLM", {**EXPERTS, "shared_expert_intermediate_size": 72}),
        Row(
            "qwen2moe",
            "Qwen2MoeForCausalLM",
            {**EXPERTS, "shared_expert_intermediate_size": 56, "rope_parameters": YARN, "moe_intermediate_size": 24},
            "YaRN, other widths",
        ),
        Row("qwen3", "Qwen3ForCausalLM", {"head_dim": 16}),
        Row(
            "qwen3",
            "Qwen3ForCausalLM",
            {"head_dim": 32, "rope_parameters": YARN, "tie_word_embeddings": True},
            "a wide head, YaRN, tied",
        ),
        Row("qwen3moe", "Qwen3MoeForCausalLM", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
        Row(
            "qwen3moe",
            "Qwen3MoeForCausalLM",
            {
                **EXPERTS,
                "head_dim": 32,
                "moe_intermediate_size": 24,
                "rope_parameters": plain(5e6),
                "norm_topk_prob": True,
            },
            "a wide head, another width, theta",
        ),
        Row("gemma", "GemmaForCausalLM", {"head_dim": 16}),
        Row("gemma", "GemmaForCausalLM", {"head_dim": 24, "num_key_value_heads": 1}, "a wide head, one head of keys"),
        Row(
            "gemma2",
            "Gemma2ForCausalLM",
            {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9},
            "a window",
        ),
        Row(
            "gemma2",
            "Gemma2ForCausalLM",
            {
                "head_dim": 24,
                "query_pre_attn_scalar": 24,
                "attn_logit_softcapping": 3.0,
                "final_logit_softcapping": 7.0,
            },
            "a wide head, low caps",
        ),
        Row(
            "gemma2",
            "Gemma2ForCausalLM",
            {"head_dim": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 46, "hidden_size": 32},
            "46 blocks, as 27B",
        ),
        Row(
            "gemma3",
            "Gemma3ForCausalLM",
            {
                "head_dim": 16,
                "query_pre_attn_scalar": 16,
                "sliding_window": 9,
                "num_hidden_layers": 7,
                "rope_parameters": half,
            },
            "windows of 9 and full layers",
        ),
        Row(
            "gemma3",
            "Gemma3ForCausalLM",
            {
                "head_dim": 24,
                "query_pre_attn_scalar": 24,
                "sliding_window": 12,
                "num_hidden_layers": 7,
                "rope_parameters": gemma_scaled,
            },
            "a wide head, linear scaling by 8",
        ),
        Row(
            "gemma3",
            "Gemma3ForCausalLM",
            {
                "head_dim": 16,
                "query_pre_attn_scalar": 16,
                "sliding_window": 12,
                "num_hidden_layers": 62,
                "hidden_size": 32,
                "rope_parameters": half,
            },
            "62 blocks, as 27B",
        ),
        Row("phi2", "PhiForCausalLM", {"num_key_value_heads": 4, "intermediate_size": 256}),
        Row(
            "phi2",
            "PhiForCausalLM",
            {
                "num_key_value_heads": 4,
                "intermediate_size": 256,
                "rope_parameters": plain(10000.0, partial_rotary_factor=0.25),
            },
            "a quarter rotary",
        ),
        Row("phi3", "Phi3ForCausalLM", {"sliding_window": None, "original_max_position_embeddings": 256}),
        Row(
            "phi3",
            "Phi3ForCausalLM",
            {
                "sliding_window": None,
                "original_max_position_embeddings": 256,
                "tie_word_embeddings": True,
                "rope_parameters": plain(30000.0, partial_rotary_factor=0.75),
            },
            "three quarters rotary, as Phi-4-mini",
        ),
        Row(
            "phi3",
            "Phi3ForCausalLM",
            {"sliding_window": None, "original_max_position_embeddings": 16, "rope_parameters": LONG},
            "longrope",
        ),
        Row(
            "starcoder2",
            "Starcoder2ForCausalLM",
            {"sliding_window": None, "use_bias": True, "rope_parameters": plain(999999.44)},
        ),
        Row(
            "starcoder2",
            "Starcoder2ForCausalLM",
            {"sliding_window": None, "tie_word_embeddings": False, "rope_parameters": plain(700.0)},
            "theta 700, not tied",
        ),
        Row("stablelm", "StableLmForCausalLM", {}),
        Row(
            "stablelm",
            "StableLmForCausalLM",
            {
                "use_qkv_bias": True,
                "use_parallel_residual": False,
                "rope_parameters": plain(700.0, partial_rotary_factor=0.5),
            },
            "half rotary, biases, theta",
        ),
        Row("stablelm", "StableLmForCausalLM", {"use_parallel_residual": True}, "parallel residual"),
        Row("gpt2", "GPT2LMHeadModel", {}, base=OLD_SIZES),
        Row(
            "gpt2",
            "GPT2LMHeadModel",
            {"n_positions": 100, "tie_word_embeddings": False},
            "100 positions, not tied",
            OLD_SIZES,
        ),
        Row("gptneox", "GPTNeoXForCausalLM", {}),
        Row(
            "gptneox",
            "GPTNeoXForCausalLM",
            {"use_parallel_residual": False, "rope_parameters": plain(700.0, partial_rotary_factor=0.5)},
            "in series, half rotary, theta",
        ),
        Row(
            "falcon",
            "FalconForCausalLM",
            {
                "num_kv_heads": 1,
                "multi_query": True,
                "parallel_attn": True,
                "bias": False,
                "new_decoder_architecture": False,
            },
        ),
        Row(
            "falcon",
            "FalconForCausalLM",
            {
                "new_decoder_architecture": True,
                "num_kv_heads": 2,
                "bias": False,
                "rope_parameters": plain(700.0),
                "tie_word_embeddings": False,
            },
            "two norms and grouped keys, as 40B, theta",
        ),
        Row("bloom", "BloomForCausalLM", {}, base={"vocab_size": 320, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
        Row(
            "bloom",
            "BloomForCausalLM",
            {},
            "6 heads",
            {"vocab_size": 320, "hidden_size": 96, "n_layer": 2, "n_head": 6},
        ),
        Row(
            "mpt",
            "MptForCausalLM",
            {},
            base={
                "vocab_size": 320,
                "d_model": 64,
                "n_layers": 2,
                "n_heads": 4,
                "max_seq_len": 256,
                "expansion_ratio": 2,
                "no_bias": True,
            },
        ),
        Row(
            "mpt",
            "MptForCausalLM",
            {},
            "6 heads",
            {
                "vocab_size": 320,
                "d_model": 96,
                "n_layers": 2,
                "n_heads": 6,
                "max_seq_len": 256,
                "expansion_ratio": 2,
                "no_bias": True,
            },
        ),
        Row(
            "mpt",
            "MptForCausalLM",
            {"attn_config": {"clip_qkv": 1.5}},
            "clipped",
            {
                "vocab_size": 320,
                "d_model": 64,
                "n_layers": 2,
                "n_heads": 4,
                "max_seq_len": 256,
                "expansion_ratio": 2,
                "no_bias": True,
            },
        ),
        Row("starcoder", "GPTBigCodeForCausalLM", {}, base=OLD_SIZES),
        Row(
            "starcoder",
            "GPTBigCodeForCausalLM",
            {"n_positions": 100, "tie_word_embeddings": False},
            "100 positions, not tied",
            OLD_SIZES,
        ),
        Row("olmo", "OlmoForCausalLM", {}),
        Row(
            "olmo",
            "OlmoForCausalLM",
            {"clip_qkv": 1.2, "rope_parameters": plain(700.0), "tie_word_embeddings": True},
            "clipped, theta, tied",
        ),
        Row("olmo2", "Olmo2ForCausalLM", {}),
        Row("olmo2", "Olmo2ForCausalLM", {"rope_parameters": YARN, "num_key_value_heads": 4}, "YaRN"),
        Row(
            "olmo2",
            "Olmo3ForCausalLM",
            {
                **sliding,
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
                "rope_parameters": plain(5e5),
            },
            "OLMo 3, windows",
        ),
        Row(
            "olmo2",
            "Olmo3ForCausalLM",
            {
                "num_hidden_layers": 4,
                "sliding_window": 12,
                "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
                "rope_parameters": {"full_attention": {**YARN, "rope_theta": 700.0}, "sliding_attention": plain(700.0)},
            },
            "OLMo 3, windows, YaRN in the others, theta",
        ),
        Row("olmoe", "OlmoeForCausalLM", {**EXPERTS, "num_key_value_heads": 4}),
        Row(
            "olmoe",
            "OlmoeForCausalLM",
            {**EXPERTS, "num_key_value_heads": 4, "rope_parameters": plain(700.0), "intermediate_size": 40},
            "another width, theta",
        ),
        Row("granite", "GraniteForCausalLM", {}),
        Row(
            "granite",
            "GraniteForCausalLM",
            {
                "attention_multiplier": 0.11,
                "embedding_multiplier": 3.0,
                "residual_multiplier": 0.4,
                "logits_scaling": 4.0,
                "rope_parameters": plain(5e6),
            },
            "its four factors, theta",
        ),
        Row("granitemoe", "GraniteMoeForCausalLM", {**EXPERTS}),
        Row(
            "granitemoe",
            "GraniteMoeSharedForCausalLM",
            {**EXPERTS, "shared_intermediate_size": 56, "attention_multiplier": 0.11, "residual_multiplier": 0.4},
            "a shared expert, factors",
        ),
        Row("command-r", "CohereForCausalLM", {}),
        Row(
            "command-r",
            "CohereForCausalLM",
            {
                "use_qk_norm": True,
                "logit_scale": 0.3,
                "rope_parameters": plain(700.0),
                "num_hidden_layers": 64,
                "hidden_size": 32,
            },
            "64 blocks, norms of queries and keys, theta",
        ),
        Row("cohere2", "Cohere2ForCausalLM", {"sliding_window": 9, "num_hidden_layers": 5, "head_dim": 16}, "windows"),
        Row(
            "cohere2",
            "Cohere2ForCausalLM",
            {
                "sliding_window": 12,
                "num_hidden_layers": 5,
                "head_dim": 16,
                "rope_parameters": plain(700.0),
                "logit_scale": 0.3,
            },
            "theta, factor of the logits",
        ),
        Row("smollm3", "SmolLM3ForCausalLM", {"num_hidden_layers": 4}),
        Row(
            "smollm3",
            "SmolLM3ForCausalLM",
            {"num_hidden_layers": 5, "rope_parameters": plain(2e6), "tie_word_embeddings": False},
            "theta, not tied",
        ),
        Row("arcee", "ArceeForCausalLM", {}),
        Row("arcee", "ArceeForCausalLM", {"head_dim": 24, "rope_parameters": YARN}, "a wide head, YaRN"),
        Row("seed_oss", "SeedOssForCausalLM", {"head_dim": 16}),
        Row(
            "seed_oss",
            "SeedOssForCausalLM",
            {"head_dim": 24, "attention_bias": True, "rope_parameters": plain(1e7)},
            "a wide head, biases, theta",
        ),
        Row("ernie4_5", "Ernie4_5ForCausalLM", {"head_dim": 16}),
        Row(
            "ernie4_5",
            "Ernie4_5ForCausalLM",
            {"head_dim": 24, "rope_parameters": plain(700.0), "tie_word_embeddings": True},
            "a wide head, theta, tied",
        ),
        Row(
            "ernie4_5-moe",
            "Ernie4_5_MoeForCausalLM",
            {
                "moe_num_experts": 4,
                "moe_k": 2,
                "moe_intermediate_size": 40,
                "moe_layer_start_index": 1,
                "moe_num_shared_experts": 2,
                "intermediate_size": 160,
            },
        ),
        Row(
            "ernie4_5-moe",
            "Ernie4_5_MoeForCausalLM",
            {
                "moe_num_experts": 6,
                "moe_k": 3,
                "moe_intermediate_size": 24,
                "moe_layer_start_index": 1,
                "moe_num_shared_experts": 2,
                "intermediate_size": 96,
                "rope_parameters": plain(700.0),
            },
            "six experts, theta",
        ),
        Row("chatglm", "GlmForCausalLM", {"head_dim": 16}),
        Row(
            "chatglm",
            "GlmForCausalLM",
            {"head_dim": 16, "num_key_value_heads": 1, "rope_parameters": plain(700.0, partial_rotary_factor=0.5)},
            "one head of keys, theta",
        ),
        Row("glm4", "Glm4ForCausalLM", {"head_dim": 16}),
        Row(
            "glm4",
            "Glm4ForCausalLM",
            {"head_dim": 24, "attention_bias": True, "rope_parameters": plain(700.0, partial_rotary_factor=0.5)},
            "a wide head, biases, theta",
        ),
        Row(
            "glm4moe",
            "Glm4MoeForCausalLM",
            {
                "head_dim": 16,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 40,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
                "num_nextn_predict_layers": 0,
            },
        ),
        Row(
            "glm4moe",
            "Glm4MoeForCausalLM",
            {
                "head_dim": 24,
                "use_qk_norm": True,
                "attention_bias": True,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 40,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
                "routed_scaling_factor": 1.5,
                "rope_parameters": plain(700.0, partial_rotary_factor=0.5),
                "num_nextn_predict_layers": 0,
            },
            "norms of queries and keys, biases, theta",
        ),
        Row(
            "glm4moe",
            "Glm4MoeForCausalLM",
            {
                "head_dim": 16,
                "n_routed_experts": 8,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 40,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
                "n_group": 4,
                "topk_group": 2,
                "norm_topk_prob": False,
                "num_nextn_predict_layers": 0,
            },
            "groups of experts",
        ),
        Row("hunyuan-dense", "HunYuanDenseV1ForCausalLM", {"head_dim": 16}),
        Row(
            "hunyuan-dense",
            "HunYuanDenseV1ForCausalLM",
            {"head_dim": 32, "rope_parameters": plain(700.0), "tie_word_embeddings": True},
            "a wide head, theta, tied",
        ),
        Row(
            "hunyuan-moe",
            "HunYuanMoEV1ForCausalLM",
            {
                "head_dim": 16,
                "num_experts": 4,
                "moe_topk": [2, 2],
                "moe_intermediate_size": [96, 96],
                "num_shared_expert": [1, 1],
            },
        ),
        Row(
            "exaone4",
            "Exaone4ForCausalLM",
            {"head_dim": 16, "sliding_window": None, "layer_types": ["full_attention"] * 2},
        ),
        Row(
            "exaone4",
            "Exaone4ForCausalLM",
            {
                "sliding_window": None,
                "layer_types": ["full_attention"] * 2,
                "rope_parameters": LLAMA3,
                "tie_word_embeddings": True,
                "head_dim": 16,
            },
            "llama3 scaling, tied",
        ),
        Row("nemotron", "NemotronForCausalLM", {"head_dim": 16}),
        Row(
            "nemotron",
            "NemotronForCausalLM",
            {"head_dim": 16, "rope_parameters": plain(700.0, partial_rotary_factor=0.25), "norm_eps": 1e-3},
            "a quarter rotary, theta",
        ),
        Row(
            "deepseek2",
            "DeepseekV2ForCausalLM",
            v2 | {"num_hidden_layers": 27, "hidden_size": 32},
            "27 blocks, as V2 Lite",
        ),
        Row(
            "deepseek2",
            "DeepseekV2ForCausalLM",
            v2
            | {
                "num_hidden_layers": 27,
                "hidden_size": 32,
                "rope_parameters": {
                    **YARN,
                    "factor": 40.0,
                    "original_max_position_embeddings": 32,
                    "mscale": 0.707,
                    "mscale_all_dim": 0.707,
                },
            },
            "27 blocks, YaRN with mscale",
        ),
        Row(
            "deepseek2",
            "DeepseekV2ForCausalLM",
            v2 | {"q_lora_rank": 20, "rope_parameters": plain(700.0), "routed_scaling_factor": 1.5},
            "queries of low rank, theta",
        ),
        Row(
            "deepseek2",
            "DeepseekV3ForCausalLM",
            mla
            | {
                "q_lora_rank": 20,
                "n_group": 1,
                "topk_group": 1,
                "scoring_func": "sigmoid",
                "norm_topk_prob": True,
                "routed_scaling_factor": 2.5,
                "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
            },
            "DeepSeek V3, YaRN with mscale",
        ),
        Row(
            "deepseek2",
            "DeepseekV3ForCausalLM",
            mla
            | {
                "q_lora_rank": 20,
                "n_routed_experts": 8,
                "n_group": 4,
                "topk_group": 2,
                "scoring_func": "sigmoid",
                "norm_topk_prob": True,
                "routed_scaling_factor": 2.5,
                "rope_parameters": {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0},
            },
            "DeepSeek V3, groups of experts, YaRN by 40",
        ),
        Row(
            "gpt-oss",
            "GptOssForCausalLM",
            {
                **EXPERTS,
                "head_dim": 16,
                "sliding_window": 9,
                "num_hidden_layers": 4,
                "intermediate_size": 64,
                "rope_parameters": plain(150000.0),
            },
            "windows, sinks",
        ),
        Row(
            "gpt-oss",
            "GptOssForCausalLM",
            {
                **EXPERTS,
                "head_dim": 24,
                "sliding_window": 9,
                "num_hidden_layers": 4,
                "intermediate_size": 64,
                "rope_parameters": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
            },
            "YaRN, a wide head",
        ),
        Row("apertus", "ApertusForCausalLM", {}),
        Row(
            "apertus",
            "ApertusForCausalLM",
            {"rope_parameters": {**LLAMA3, "rope_theta": 12e6}, "head_dim": 24},
            "llama3 scaling, a wide head",
        ),
        Row(
            "dots1",
            "Dots1ForCausalLM",
            {
                "scoring_func": "sigmoid",
                "num_key_value_heads": 4,
                "head_dim": 16,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 40,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
                "layer_types": ["full_attention"] * 2,
            },
        ),
        Row(
            "dots1",
            "Dots1ForCausalLM",
            {
                "scoring_func": "sigmoid",
                "num_key_value_heads": 4,
                "head_dim": 24,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 40,
                "n_shared_experts": 2,
                "first_k_dense_replace": 1,
                "n_group": 1,
                "topk_group": 1,
                "routed_scaling_factor": 1.5,
                "rope_parameters": plain(700.0),
                "layer_types": ["full_attention"] * 2,
            },
            "a wide head, theta",
        ),
        Row(
            "minimax-m2",
            "MiniMaxM2ForCausalLM",
            {**EXPERTS, "head_dim": 16, "rotary_dim": 8, "scoring_func": "sigmoid"},
        ),
        Row("jais2", "Jais2ForCausalLM", {}),
        Row("jais2", "Jais2ForCausalLM", {"rope_parameters": plain(700.0)}, "theta"),
        Row(
            "mistral3",
            "Ministral3ForCausalLM",
            {
                "head_dim": 16,
                "sliding_window": None,
                "rope_parameters": {
                    **YARN,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "llama_4_scaling_beta": 0.1,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                },
            },
        ),
        Row(
            "dbrx",
            "DbrxForCausalLM",
            {
                "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 500000.0},
                "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
            },
            base={"vocab_size": 320, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 256},
        ),
        Row(
            "dbrx",
            "DbrxForCausalLM",
            {
                "attn_config": {"kv_n_heads": 1, "clip_qkv": 1.2, "rope_theta": 700.0},
                "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 6, "moe_top_k": 3, "hidden_size": 64},
            },
            "one head of keys, clipped, theta",
            {"vocab_size": 320, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 256},
        ),
        Row(
            "lfm2",
            "Lfm2ForCausalLM",
            {
                "layer_types": ["full_attention", "conv", "full_attention"],
                "num_hidden_layers": 3,
                "rope_parameters": plain(700.0),
                "block_ff_dim": 96,
                "block_auto_adjust_ff_dim": False,
            },
            "two layers that attend, theta",
        ),
        Row(
            "minimax-m2",
            "MiniMaxM2ForCausalLM",
            {
                **EXPERTS,
                "head_dim": 24,
                "rotary_dim": 12,
                "scoring_func": "sigmoid",
                "rope_parameters": plain(700.0, partial_rotary_factor=0.5),
            },
            "a wide head, theta",
        ),
        Row(
            "hunyuan-moe",
            "HunYuanMoEV1ForCausalLM",
            {
                "head_dim": 32,
                "num_experts": 6,
                "moe_topk": [3, 3],
                "moe_intermediate_size": [96, 96],
                "num_shared_expert": [1, 1],
                "rope_parameters": plain(700.0),
            },
            "a wide head, six experts, theta",
        ),
        Row(
            "mistral3",
            "Ministral3ForCausalLM",
            {
                "head_dim": 24,
                "sliding_window": None,
                "tie_word_embeddings": True,
                "rope_parameters": {
                    **YARN,
                    "factor": 8.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 0.7,
                    "llama_4_scaling_beta": 0.3,
                    "beta_fast": 16.0,
                    "beta_slow": 2.0,
                },
            },
            "a wide head, other bounds of YaRN, tied",
        ),
        Row(
            "lfm2",
            "Lfm2ForCausalLM",
            {"layer_types": ["conv", "full_attention"], "block_ff_dim": 96, "block_auto_adjust_ff_dim": False},
        ),
    ]
