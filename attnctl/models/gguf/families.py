"""Name the network of each architecture of GGUF files, and what the converter changes in a checkpoint.

The source of each line is llama.cpp's converter (its folder `conversion`) and its code of the architecture (`src/models`).
That the lines are right is measured: the documentation has the largest difference from llama.cpp's weights for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnctl.models.gguf import adjustments as adjust
from attnctl.models.gguf.settings import Settings

Adjustment = Callable[[Settings], Mapping[str, Any]]

SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
}
RMS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
EPS = {"attention.layer_norm_epsilon": "layer_norm_eps"}
OLD_SIZES = {"context_length": "n_positions", "embedding_length": "n_embd", "feed_forward_length": "n_inner"}
EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
OLD_NAMES = {"layers": "n_layer", "heads": "n_head", "kv_heads": "", "head_width": ""}
BIASES = {"attn_q.bias": "attention_bias"}


@dataclass(frozen=True)
class Family:
    """How the files of an architecture are read."""

    network: str  # class of transformers
    keys: Mapping[str, str]  # name of a setting → field of the configuration
    names: Mapping[str, str] = field(
        default_factory=dict
    )  # layers, heads, kv_heads, head_width → field; "": the class has none
    fixed: Mapping[str, Any] = field(default_factory=dict)  # fields that no file holds, and llama.cpp has one value for
    biases: Mapping[str, str] = field(default_factory=dict)  # end of a tensor's name → field that is true if it exists
    adjustments: tuple[Adjustment, ...] = ()
    ties: str = "tie_word_embeddings"  # field; "": the class always ties its head
    halves: bool = False  # rows of Q and K in turn from both halves of a head: LlamaModel.permute of the converter
    norm_shift: float = 0.0  # what is added to each norm of the file: Gemma's and Nemotron's are stored plus one
    partial: bool = False  # whether the class turns only a part of each head
    layout: str = ""  # of the fused matrix of Q, K and V: interleaved (BLOOM, GPT-NeoX), grouped (Falcon)
    turned: bool = False  # matrices are stored transposed (GPT-2)
    uses_gelu: bool = False  # llama.cpp looks gelu up in a table of half precision: weights differ by up to 3e-3

    def field_of(self, what: str, default: str) -> str:
        """Return the configuration's field for layers, heads, kv_heads or head_width; "" if it has none."""
        return self.names.get(what, default)


MIXTURE = {**SIZES, **RMS, **EXPERTS, "expert_feed_forward_length": "moe_intermediate_size"}
NO_HEAD_WIDTH = {"head_width": ""}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        "LlamaForCausalLM",
        {**SIZES, **RMS},
        halves=True,
        biases={**BIASES, "ffn_gate.bias": "mlp_bias"},
        adjustments=(adjust.rope,),
    ),
    "llama with experts": Family(
        "MixtralForCausalLM",
        {**SIZES, **RMS, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        halves=True,
        fixed={"sliding_window": None},
        adjustments=(adjust.rope,),
    ),
    "mistral3": Family(
        "Ministral3ForCausalLM",
        {**SIZES, **RMS},
        halves=True,
        fixed={"sliding_window": None},
        adjustments=(adjust.rope, adjust.temperature_of_positions),
    ),
    "qwen2": Family("Qwen2ForCausalLM", {**SIZES, **RMS}, names=NO_HEAD_WIDTH, adjustments=(adjust.rope,)),
    "qwen2moe": Family(
        "Qwen2MoeForCausalLM",
        {**MIXTURE, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        names=NO_HEAD_WIDTH,
        fixed={"norm_topk_prob": False},
        adjustments=(adjust.rope,),
    ),
    "qwen3": Family("Qwen3ForCausalLM", {**SIZES, **RMS}, adjustments=(adjust.rope,), biases=BIASES),
    "qwen3moe": Family("Qwen3MoeForCausalLM", MIXTURE, fixed={"norm_topk_prob": True}, adjustments=(adjust.rope,)),
    "gemma": Family(
        "GemmaForCausalLM",
        {**SIZES, **RMS},
        norm_shift=-1.0,
        adjustments=(adjust.rope,),
        uses_gelu=True,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {
            **SIZES,
            **RMS,
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        norm_shift=-1.0,
        adjustments=(adjust.rope, adjust.gemma2),
        uses_gelu=True,
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        {**SIZES, **RMS, "final_logit_softcapping": "final_logit_softcapping"},
        norm_shift=-1.0,
        adjustments=(adjust.gemma3,),
        uses_gelu=True,
    ),
    "phi2": Family(
        "PhiForCausalLM",
        {**SIZES, **EPS},
        names=NO_HEAD_WIDTH,
        partial=True,
        adjustments=(adjust.rope,),
        uses_gelu=True,
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        {**SIZES, **RMS},
        names=NO_HEAD_WIDTH,
        partial=True,
        fixed={"sliding_window": None},
        adjustments=(adjust.rope, adjust.phi3),
    ),
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        {**SIZES, "attention.layer_norm_epsilon": "norm_epsilon"},
        names=NO_HEAD_WIDTH,
        fixed={"sliding_window": None},
        biases={"attn_q.bias": "use_bias"},
        adjustments=(adjust.rope,),
        uses_gelu=True,
    ),
    "stablelm": Family(
        "StableLmForCausalLM",
        {**SIZES, **EPS, "use_parallel_residual": "use_parallel_residual"},
        names=NO_HEAD_WIDTH,
        biases={"attn_q.bias": "use_qkv_bias"},
        partial=True,
        adjustments=(adjust.rope, adjust.stablelm),
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        {**OLD_SIZES, "attention.layer_norm_epsilon": "layer_norm_epsilon"},
        names=OLD_NAMES,
        turned=True,
        uses_gelu=True,
    ),
    "starcoder": Family(
        "GPTBigCodeForCausalLM",
        {**OLD_SIZES, "attention.layer_norm_epsilon": "layer_norm_epsilon"},
        names=OLD_NAMES,
        fixed={"multi_query": True},
        adjustments=(adjust.one_kv_head,),
        uses_gelu=True,
    ),
    "gptneox": Family(
        "GPTNeoXForCausalLM",
        {**SIZES, **EPS, "use_parallel_residual": "use_parallel_residual"},
        names={"kv_heads": "", "head_width": ""},
        partial=True,
        layout="interleaved",
        adjustments=(adjust.rope,),
        uses_gelu=True,
    ),
    "falcon": Family(
        "FalconForCausalLM",
        {
            "context_length": "max_position_embeddings",
            "embedding_length": "hidden_size",
            "feed_forward_length": "ffn_hidden_size",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        names={"kv_heads": "num_kv_heads", "head_width": ""},
        fixed={"bias": False, "parallel_attn": True, "alibi": False},
        layout="grouped",
        adjustments=(adjust.rope, adjust.falcon),
        uses_gelu=True,
    ),
    "bloom": Family(
        "BloomForCausalLM",
        {"embedding_length": "hidden_size", "attention.layer_norm_epsilon": "layer_norm_epsilon"},
        names=OLD_NAMES,
        layout="interleaved",
        adjustments=(adjust.bloom,),
        uses_gelu=True,
    ),
    "mpt": Family(
        "MptForCausalLM",
        {
            "context_length": "max_seq_len",
            "embedding_length": "d_model",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        names={"layers": "n_layers", "heads": "n_heads", "kv_heads": "", "head_width": ""},
        fixed={"no_bias": True},
        adjustments=(adjust.mpt,),
        uses_gelu=True,
    ),
    "olmo": Family("OlmoForCausalLM", SIZES, names=NO_HEAD_WIDTH, halves=True, adjustments=(adjust.rope, adjust.olmo)),
    "olmo2": Family("Olmo2ForCausalLM", {**SIZES, **RMS}, names=NO_HEAD_WIDTH, adjustments=(adjust.rope,)),
    "olmo2 with windows": Family(
        "Olmo3ForCausalLM",
        {**SIZES, **RMS},
        names=NO_HEAD_WIDTH,
        adjustments=(adjust.olmo3,),
    ),
    "olmoe": Family(
        "OlmoeForCausalLM",
        {**SIZES, **RMS, **EXPERTS},
        names=NO_HEAD_WIDTH,
        fixed={"norm_topk_prob": False},
        adjustments=(adjust.rope,),
    ),
    "granite": Family(
        "GraniteForCausalLM",
        {**SIZES, **RMS},
        names=NO_HEAD_WIDTH,
        halves=True,
        biases={**BIASES, "ffn_gate.bias": "mlp_bias"},
        adjustments=(adjust.rope, adjust.granite),
    ),
    "granitemoe": Family(
        "GraniteMoeForCausalLM",
        {**SIZES, **RMS, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        names=NO_HEAD_WIDTH,
        halves=True,
        adjustments=(adjust.rope, adjust.granite),
    ),
    "granitemoe with a shared expert": Family(
        "GraniteMoeSharedForCausalLM",
        {
            **SIZES,
            **RMS,
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        names=NO_HEAD_WIDTH,
        halves=True,
        adjustments=(adjust.rope, adjust.granite),
    ),
    "command-r": Family(
        "CohereForCausalLM",
        {**SIZES, **EPS, "logit_scale": "logit_scale"},
        names=NO_HEAD_WIDTH,
        biases={**BIASES, "attn_q_norm.weight": "use_qk_norm"},
        adjustments=(adjust.rope,),
    ),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        {**SIZES, **EPS, "logit_scale": "logit_scale"},
        biases=BIASES,
        adjustments=(adjust.rope, adjust.cohere2),
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        {**SIZES, **RMS},
        names=NO_HEAD_WIDTH,
        halves=True,
        fixed={"no_rope_layers": None, "no_rope_layer_interval": 4, "use_sliding_window": False},
        biases={**BIASES, "ffn_gate.bias": "mlp_bias"},
        adjustments=(adjust.rope,),
    ),
    "arcee": Family(
        "ArceeForCausalLM",
        {**SIZES, **RMS},
        halves=True,
        biases={**BIASES, "ffn_up.bias": "mlp_bias"},
        adjustments=(adjust.rope,),
    ),
    "seed_oss": Family(
        "SeedOssForCausalLM",
        {**SIZES, **RMS},
        fixed={"attention_bias": False, "attention_out_bias": False},
        biases={**BIASES, "attn_output.bias": "attention_out_bias"},
        adjustments=(adjust.rope,),
    ),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM",
        {**SIZES, **RMS},
        fixed={"use_bias": False},
        biases={"attn_q.bias": "use_bias"},
        adjustments=(adjust.rope,),
    ),
    "ernie4_5-moe": Family(
        "Ernie4_5_MoeForCausalLM",
        {
            **SIZES,
            **RMS,
            "expert_count": "moe_num_experts",
            "expert_used_count": "moe_k",
            "expert_feed_forward_length": "moe_intermediate_size",
            "leading_dense_block_count": "moe_layer_start_index",
            "interleave_moe_layer_step": "moe_layer_interval",
            "expert_shared_count": "moe_num_shared_experts",
        },
        names=NO_HEAD_WIDTH,
        fixed={"use_bias": False},
        biases={"attn_q.bias": "use_bias"},
        adjustments=(adjust.rope, adjust.shared_width),
    ),
    "chatglm": Family(
        "GlmForCausalLM",
        {**SIZES, **RMS},
        fixed={"attention_bias": False},
        partial=True,
        biases={**BIASES, "attn_qkv.bias": "attention_bias"},
        adjustments=(adjust.rope,),
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        {**SIZES, **RMS},
        fixed={"attention_bias": False},
        biases=BIASES,
        partial=True,
        adjustments=(adjust.rope,),
    ),
    "glm4moe": Family(
        "Glm4MoeForCausalLM",
        {
            **SIZES,
            **RMS,
            "expert_count": "n_routed_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "n_shared_experts",
            "leading_dense_block_count": "first_k_dense_replace",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
        },
        fixed={"attention_bias": False},
        partial=True,
        biases={**BIASES, "attn_q_norm.weight": "use_qk_norm"},
        adjustments=(adjust.rope, adjust.sigmoid_gate),
    ),
    "hunyuan-dense": Family("HunYuanDenseV1ForCausalLM", {**SIZES, **RMS}, biases=BIASES, adjustments=(adjust.rope,)),
    "hunyuan-moe": Family(
        "HunYuanMoEV1ForCausalLM",
        {**SIZES, **RMS, "expert_count": "num_experts", "expert_used_count": "moe_topk"},
        biases=BIASES,
        adjustments=(adjust.rope, adjust.hunyuan_experts),
    ),
    "exaone4": Family(
        "Exaone4ForCausalLM", {**SIZES, **RMS}, names=NO_HEAD_WIDTH, adjustments=(adjust.rope, adjust.exaone4)
    ),
    "nemotron": Family(
        "NemotronForCausalLM",
        {**SIZES, "attention.layer_norm_epsilon": "norm_eps"},
        norm_shift=-1.0,
        partial=True,
        biases={**BIASES, "ffn_up.bias": "mlp_bias"},
        adjustments=(adjust.rope,),
    ),
    "deepseek2": Family(
        "DeepseekV2ForCausalLM",
        {
            **SIZES,
            **RMS,
            "expert_count": "n_routed_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "n_shared_experts",
            "leading_dense_block_count": "first_k_dense_replace",
        },
        names={"kv_heads": "", "head_width": ""},
        adjustments=(adjust.deepseek,),
    ),
    "deepseek2 with a sigmoid": Family(
        "DeepseekV3ForCausalLM",
        {
            **SIZES,
            **RMS,
            "expert_count": "n_routed_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "n_shared_experts",
            "leading_dense_block_count": "first_k_dense_replace",
        },
        names={"kv_heads": "", "head_width": ""},
        adjustments=(adjust.deepseek,),
    ),
    "gpt-oss": Family(
        "GptOssForCausalLM",
        {**SIZES, **RMS, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        adjustments=(adjust.rope, adjust.gpt_oss),
    ),
    "apertus": Family("ApertusForCausalLM", {**SIZES, **RMS}, biases=BIASES, adjustments=(adjust.rope,)),
    "dots1": Family(
        "Dots1ForCausalLM",
        {
            **SIZES,
            **RMS,
            "expert_count": "n_routed_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "n_shared_experts",
            "leading_dense_block_count": "first_k_dense_replace",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
        },
        fixed={"sliding_window": None},
        adjustments=(adjust.rope, adjust.full_layers, adjust.sigmoid_gate),
    ),
    "minimax-m2": Family(
        "MiniMaxM2ForCausalLM",
        {**SIZES, **RMS, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        partial=True,
        adjustments=(adjust.rope, adjust.minimax),
    ),
    "jais2": Family(
        "Jais2ForCausalLM",
        {**SIZES, **EPS},
        biases={**BIASES, "ffn_up.bias": "mlp_bias"},
        adjustments=(adjust.rope,),
    ),
    "dbrx": Family(
        "DbrxForCausalLM",
        {"context_length": "max_seq_len", "embedding_length": "d_model"},
        names={"layers": "n_layers", "heads": "n_heads", "kv_heads": "", "head_width": ""},
        adjustments=(adjust.dbrx,),
    ),
    "lfm2": Family(
        "Lfm2ForCausalLM",
        {**SIZES, "attention.layer_norm_rms_epsilon": "norm_eps"},
        names={"kv_heads": "", "head_width": ""},
        adjustments=(adjust.rope, adjust.lfm2),
    ),
}


def family_of(settings: Settings) -> Family | None:
    """Return how a file of this architecture is read; None if it is not."""
    name = settings.architecture
    kinds = {
        "llama": (
            "llama with experts",
            settings.has_tensor("ffn_gate_exps.weight") or settings.has_tensor("ffn_gate.0.weight"),
        ),
        "olmo2": ("olmo2 with windows", bool(settings.file.metadata.get("olmo2.attention.sliding_window"))),
        "granitemoe": ("granitemoe with a shared expert", settings.has_tensor("ffn_gate_shexp.weight")),
        "deepseek2": (
            "deepseek2 with a sigmoid",
            settings.file.metadata.get("deepseek2.expert_gating_func") == SIGMOID,
        ),
    }
    special, applies = kinds.get(name, (name, False))
    return FAMILIES.get(special if applies else name)


SIGMOID = 2  # expert_gating_func: the probabilities of experts are sigmoids (gguf's ExpertGatingFuncType)


def architectures() -> list[str]:
    """Return the names of `general.architecture` that are read."""
    return sorted({name.partition(" with ")[0] for name in FAMILIES})
