"""Which way a text is read: every text encoder of transformers, with what its paper says of it."""

from __future__ import annotations

import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
import torch
import transformers

import attnctl
from attnctl.models.huggingface.documented_masks import documented_direction
from tests.tools.sweep.families import SPECIAL, _small
from tests.tools.sweep.modes import N, ids

CLIP = "Radford et al. 2021, section 2.4: masked self-attention in the text encoder"
# class → whether it reads from left to right, and the source
SOURCES: dict[str, tuple[bool, str]] = {
    "CLIPTextModel": (True, CLIP),
    "CLIPTextModelWithProjection": (True, CLIP),
    "CLIPSegTextModel": (True, "Lüddecke and Ecker 2022: the text transformer of CLIP"),
    "MetaClip2TextModel": (True, "Chuang et al. 2025: the architecture of CLIP"),
    "MetaClip2TextModelWithProjection": (True, "Chuang et al. 2025: the architecture of CLIP"),
    "XCLIPTextModel": (True, "Ni et al. 2022: the text encoder of CLIP"),
    "OwlViTTextModel": (True, "Minderer et al. 2022: the text encoder of CLIP"),
    "OwlViTTextTransformer": (True, "Minderer et al. 2022: the text encoder of CLIP"),
    "Owlv2TextModel": (True, "Minderer et al. 2023: as OWL-ViT"),
    "Owlv2TextTransformer": (True, "Minderer et al. 2023: as OWL-ViT"),
    "GroupViTTextModel": (True, "Xu et al. 2022: the text encoder of CLIP; build_attention_mask of its code"),
    "GroupViTTextTransformer": (True, "Xu et al. 2022: the text encoder of CLIP; build_attention_mask of its code"),
    "Aimv2TextModel": (True, "Fini et al. 2024; its code builds a causal mask"),
    "VideoPrismTextModel": (True, "Zhao et al. 2024: a text encoder as of CoCa, which is causal"),
    "AlignTextModel": (False, "Jia et al. 2021: BERT"),
    "AltCLIPTextModel": (False, "Chen et al. 2022: XLM-R"),
    "BridgeTowerTextModel": (False, "Xu et al. 2022: RoBERTa"),
    "ChineseCLIPTextModel": (False, "Yang et al. 2022: RoBERTa-wwm"),
    "ClapTextModel": (False, "Wu et al. 2022: RoBERTa"),
    "ClapTextModelWithProjection": (False, "Wu et al. 2022: RoBERTa"),
    "Data2VecTextModel": (False, "Baevski et al. 2022: RoBERTa"),
    "FlavaTextModel": (False, "Singh et al. 2022: a ViT for words, trained on masked words"),
    "SiglipTextModel": (False, "Zhai et al. 2023: a transformer without a mask"),
    "Siglip2TextModel": (False, "Tschannen et al. 2025: as SigLIP"),
    "Sam3LiteTextTextModel": (False, "MobileCLIP's text encoder, Vasu et al. 2023: causal_masking is false"),
    "Sam3LiteTextModel": (False, "its text encoder is the one above"),
    "Tipsv2TextModel": (False, "Maninis et al. 2024: a transformer without a mask"),
    "EmbeddingGemma2TextModel": (False, "an embedding model: use_bidirectional_attention"),
    "BlipTextModel": (False, "Li et al. 2022, section 3.1: a text encoder as BERT"),
    "BlipTextLMHeadModel": (True, "Li et al. 2022, section 3.1: a text decoder with causal self-attention"),
}
# named so, but no encoder of a text by its ids: speech, pictures, two halves of a translator, a part of the above
OTHERS = r"Speech|TextNet|ToUnit|DetrEncoder|VisionText|T5Gemma2TextEncoder|Evolla|PP"


@cache
def encoders() -> dict[str, Any]:
    """Return name → class of every text encoder, in the files of families that do not write texts."""
    folder = Path(transformers.__file__).parent / "models"
    names: dict[str, Any] = {}
    for file in sorted(folder.glob("*/modeling_*.py")):
        text = file.read_text(encoding="utf-8")
        if "GenerationMixin" in text and file.stem not in ("modeling_blip_text",):
            continue
        for name in re.findall(
            r"^class (\w*Text\w*(?:Model|WithProjection|Transformer|Encoder))\(\w*PreTrained", text, re.M
        ):
            if not re.search(OTHERS, name) and "PreTrained" not in name:
                names[name] = f"transformers.models.{file.parent.name}.{file.stem}"
    return names


def test_every_text_encoder_has_a_source() -> None:
    assert set(encoders()) <= set(SOURCES), set(encoders()) - set(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_text_encoder_reads_as_its_source_says(name: str) -> None:
    """What `mask` expects is what the source says, and a model of transformers does it: the second token moves the first."""
    if name not in encoders():
        pytest.skip("this version of transformers does not have it")
    causal, _ = SOURCES[name]
    made = getattr(__import__(encoders()[name], fromlist=[name]), name)
    default = made.config_class()
    if name == "Sam3LiteTextModel":
        assert documented_direction(type("Named", (), {"config": default, "can_generate": lambda _: False})()) == causal
        return
    network, inputs = built(made, default)
    assert documented_direction(network) == causal
    with torch.no_grad():
        found = attnctl.mask(network, **inputs)
        changed = inputs | {"input_ids": torch.where(torch.arange(N) == 1, ids()[:, :1], inputs["input_ids"])}
        states = [rows_of(network(**one))[:, 0] for one in (inputs, changed)]
    assert not found.violations, str(found)
    assert bool((states[0] == states[1]).all()) == causal


def rows_of(output: Any) -> torch.Tensor:
    """Return the first answer with a row for each token: (1, n, …)."""
    return next(part for part in output.to_tuple() if isinstance(part, torch.Tensor) and part.ndim == 3)


def built(made: Any, default: Any) -> tuple[Any, dict[str, Any]]:
    """Return a tiny encoder, and a text for it; eager, as sdpa of AIMv2 reads both ways in transformers 5.24."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = _small(type(default), default) | {name: SPECIAL[name] for name in SPECIAL if hasattr(default, name)}
        torch.manual_seed(0)
        network = made._from_config(type(default)(**small), attn_implementation="eager").eval()
    return network, {"input_ids": ids(), "attention_mask": torch.ones(1, N, dtype=torch.long)}


@pytest.mark.parametrize("kind", ["gemma", "gemma2"])
def test_the_suffix_of_paligemma_is_read_from_left_to_right(kind: str) -> None:
    """Beyer et al. 2024, section 3.1: picture and prompt see each other, the answer sees what is before it."""
    from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = sizes | {"model_type": kind, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 128}
    text |= {"sliding_window": 4, "query_pre_attn_scalar": 8} if kind == "gemma2" else {}
    picture = sizes | {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8, "projection_dim": 32}
    config = PaliGemmaConfig(text_config=text, vision_config=picture, projection_dim=32, image_token_id=127)
    torch.manual_seed(0)
    network = PaliGemmaForConditionalGeneration(config).eval()
    given = {"input_ids": torch.tensor([[127] * 4 + list(range(5, 12))]), "pixel_values": torch.randn(1, 3, 16, 16)}
    types = torch.tensor([[0] * 7 + [1] * 4])
    with torch.no_grad():
        found = attnctl.mask(network, **given, token_type_ids=types)
        bare = [attnctl.mask(network, **given)]
        network.set_attn_implementation("eager")
        bare.append(attnctl.mask(network, **given))
    assert found.holds is True, str(found)
    prefix = torch.arange(11) < 7
    expected = torch.ones(11, 11).tril().bool() | (prefix[:, None] & prefix)
    groups = {group.layers[-1]: group for group in found.groups if group.kind == "self"}
    assert torch.equal(torch.tensor(groups[1].mask), expected)
    for check in bare:  # transformers 5.24: full by sdpa, causal by eager
        assert check.holds is True and any("no token_type_ids" in note for note in check.notes), str(check)


def test_parts_of_a_family_that_writes_read_as_it_does() -> None:
    """A text model of Qwen2-VL alone, and the whole of CLIP, whose table of words is in its text half."""
    from transformers import CLIPConfig, CLIPModel, Qwen2VLTextModel

    network, inputs = built(Qwen2VLTextModel, Qwen2VLTextModel.config_class())
    assert documented_direction(network)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = sizes | {"vocab_size": 128, "eos_token_id": 2}
    clip = CLIPModel(CLIPConfig(text_config=text, vision_config=sizes | {"image_size": 16, "patch_size": 8})).eval()
    with torch.no_grad():
        found = attnctl.mask(clip, input_ids=ids(2), pixel_values=torch.randn(2, 3, 16, 16))
    assert found.holds is True and found.groups[0].sentence == "causal", str(found)
