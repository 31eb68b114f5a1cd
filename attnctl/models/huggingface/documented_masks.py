"""Tell what the masks of a network should let through, by its configuration and the documentation of its family.

Nothing here looks at a mask that the network made, nor at what its modules say of themselves: both may be what is wrong.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnctl.models.exchange import Reach
from attnctl.models.huggingface.optional_fields import config_value
from attnctl.runtime.arrays import Bools

# configurations in which a layer's kind is one of these words hide keys by what the text says, or carry a state
BY_CONTENT = ("index", "sparse", "compress", "linear", "mamba", "conv", "recurrent", "hybrid", "ssm", "moba")

# families that hide keys by what the text says (Doge, BLT), or mix neighbours besides attention (convolution, hashes)
LOOSE = ("blt", "convbert", "cpmant", "doge", "funnel", "nystromformer", "rwkv", "yoso")
# families whose embedding of a token holds its neighbours
TRIGRAMS = ("mobilebert",)

# families whose pictures see themselves both ways, within one picture, or as a prefix with the prompt
PICTURE_BLOCKS = ("gemma3", "gemma4", "gemma4_unified", "molmo2", "step3p7")
PICTURE_PREFIX = ("paligemma", "git", "pi0", "deepseek_ocr2", "unlimited_ocr")

IF_IT_WRITES = "can_generate"  # of the class, not of the configuration
# Model types whose direction the mappings of transformers' tasks do not tell: a fact of the paper, or a setting's name.
DIRECTION: dict[str, bool | str] = {
    "xlnet": False,  # without perm_mask every token sees every other one
    "xlm": "causal",
    "flaubert": "causal",
    "reformer": "is_decoder",
    "bert-generation": "is_decoder",
    "cpmant": False,  # it reads the text given to it both ways, and only what follows from left to right
    # the text encoder of CLIP uses "masked self-attention" (Radford et al. 2021, section 2.4); these are built on it
    **dict.fromkeys(
        ("clip_text_model", "clipseg_text_model", "metaclip_2_text_model", "xclip_text_model", "owlvit_text_model"),
        True,
    ),
    **dict.fromkeys(("owlv2_text_model", "groupvit_text_model", "aimv2_text_model", "videoprism_text_model"), True),
    # BLIP has one network for both, and is a decoder only in the class that writes (Li et al. 2022, section 3.1)
    "blip_text_model": IF_IT_WRITES,
    "clvp_encoder": False,  # an encoder of text and of speech beside a decoder (Betker 2023)
    "openai_privacy_filter": False,  # a classifier of tokens, whose window has two sides
    # picture and prompt both ways, the answer from left to right (Beyer et al. 2024, section 3.1)
    "paligemma": True,
    "decision_transformer": True,  # "a causally masked Transformer" (Chen et al. 2021)
    **dict.fromkeys(("t5gemma2_decoder", "voxtral_realtime_text"), True),  # the parts that write, alone
}


def documented_direction(network: Any) -> bool:
    """Return whether the text of a network is read from left to right, by its configuration and transformers' tasks.

    A family that has a class for causal language models alone is causal; one that has a class for masked words, too, is so
    if its configuration says `is_decoder`. A text encoder is what its paper says, a part of a family what the family is.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    )

    config = network.config
    if config.is_encoder_decoder:
        return bool(config.decoder.is_decoder) if config.model_type == "encoder-decoder" else True
    text = config.get_text_config()
    for part in (config, text):
        if config_value(part, "is_causal") is False:
            return False
        setting = DIRECTION.get(part.model_type)
        if setting == IF_IT_WRITES:
            return bool(network.can_generate())
        if setting is not None:
            return bool(config_value(part, setting)) if isinstance(setting, str) else setting
        if config_value(part, "use_bidirectional_attention") in (True, "all"):
            return False
    kinds = {config.model_type, text.model_type}
    if kinds & set(MODEL_FOR_MASKED_LM_MAPPING_NAMES):
        return bool(config_value(config, "is_decoder") or config_value(text, "is_decoder"))
    generating = (
        set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        | set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
        | set(MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)
    )
    return bool(kinds & generating) or bool(network.can_generate()) or _is_part_of_generator(config, text)


def _is_part_of_generator(*configs: Any) -> bool:
    """Return whether a class of transformers generates text with one of these configurations, alone or as its text part."""
    return any(_generates_with(type(config)) for config in configs)


def _generates_with(config_class: type) -> bool:
    name = config_class.__module__
    if not name.startswith("transformers.models."):
        return False
    try:
        module = importlib.import_module(name.replace("configuration_", "modeling_"))
    except ImportError:
        return False
    classes: list[Any] = [
        part for _, part in inspect.getmembers(module, inspect.isclass) if hasattr(part, "can_generate")
    ]
    return any(
        config_class in (part.config_class, (getattr(part.config_class, "sub_configs", None) or {}).get("text_config"))
        for part in classes
        if part.config_class is not None and part.can_generate()
    )


# --- how far a layer sees ---


def _config_of(network: Any, kind: str) -> Any:
    config = network.config
    if kind in ("encoder", "decoder"):
        config = config_value(config, kind, f"{kind}_config") or config
    return config.get_text_config()


# bidirectional windows that transformers counts without the query itself: w tokens to each side
INCLUSIVE = ("modernbert", "t5gemma", "t5_gemma", "ultrabert", "neomme", "openai_privacy_filter", "embedding_gemma2")


def documented_reach(network: Any, kind: str, layer: int, causal: bool) -> Reach:
    """Return how far a layer of a network sees, by `layer_types`, `sliding_window` and the like."""
    config = _config_of(network, kind)
    if network.config.model_type in LOOSE:
        return Reach(exact=False)
    kinds = config_value(config, "layer_types", "layers_block_type")
    kind = str(kinds[layer]) if isinstance(kinds, Sequence) and layer < len(kinds) else ""
    if not kind and isinstance(local := config_value(config, "attention_layers"), Sequence) and layer < len(local):
        return Reach(config.window_size) if local[layer] == "local" else Reach()  # GPT-Neo
    if any(word in kind for word in BY_CONTENT):
        return Reach(exact=False)
    if "chunk" in kind:
        return Reach(chunk=int(config.attention_chunk_size))
    window = (
        _setting(config, "sliding_window", layer) if config_value(config, "use_sliding_window") is not False else None
    )
    if not isinstance(window, int) or (kind and "sliding" not in kind):
        return Reach()
    if not causal and config.model_type.startswith("t5gemma2"):
        return Reach((window + 1) // 2, ahead=window // 2 + 1)  # a window of both sides together
    return Reach(window + (not causal and config.model_type.startswith(INCLUSIVE)))


def _setting(config: Any, name: str, layer: int) -> Any:
    """Return a setting of a configuration, or of its layer if layers differ; None without it."""
    try:
        return getattr(config, name, None)
    except Exception:  # transformers raises: "is a per-layer attribute"
        return getattr(config.per_layer_config[layer], name, None)


def documented_pictures(network: Any, ids: Any, types: Any) -> Any:
    """Return the number of each token's picture (batch, n), -1 for text; None for a family without such pictures."""
    config = network.config
    if config.model_type not in PICTURE_BLOCKS:
        return None
    text = config.get_text_config()
    if "bidirectional" in str(vars(text)) and config_value(text, "use_bidirectional_attention") is None:
        return None  # Gemma 4: only if its configuration asks for it
    token = config_value(config, "image_token_id", "image_token_index")
    inside = types > 0 if types is not None else ids == token
    begins = inside & np.pad(~inside[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    numbers = np.where(inside, np.cumsum(begins, 1), -1)
    return numbers if bool(inside.any()) else None


def documented_prefix(network: Any, real: Bools, types: Any) -> tuple[Bools | None, bool]:
    """Return the prefix (batch, n) that its family reads both ways: PaliGemma's picture and prompt; None without one.

    Also return whether there may be one, of which nothing says where it ends.
    """
    if network.config.model_type not in PICTURE_PREFIX:
        return None, False
    if network.config.model_type == "paligemma":  # its processor marks the prefix by 0, and what is to be written by 1
        return (None, True) if types is None else (types == 0, False)
    return np.ones_like(real), False
