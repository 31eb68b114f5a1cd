"""Tell whether a model reads its text from left to right, by the documentation and the source of its family.

Nothing here looks at a mask that the network made, nor at what its modules say of themselves: both may be what is wrong.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from attnctl.models.huggingface.optional_fields import config_value

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


def is_causal_by_documentation(network: Any) -> bool:
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
