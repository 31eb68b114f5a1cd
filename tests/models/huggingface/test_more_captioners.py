"""Pix2Struct, BLIP and GIT: the words of a caption over the picture, held against eager transformers and its generate."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import attnctl
from attnctl.api.capturing import capture
from tests.conftest import Refused, Run
from tests.tools import folders

pytestmark = pytest.mark.usefixtures("no_gradients", "quiet")

VOCABULARY = len(folders.VOCABULARY) + 10
SEEING: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
    "intermediate_size": 48,
}  # fmt: skip
WRITING: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
CROPPED = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}


def built(family: str) -> tuple[Any, Any]:
    if family == "pix2struct":
        sizes = {"d_kv": 8, "d_ff": 48, "hidden_size": 32}
        seeing = {"patch_embed_hidden_size": 3 * 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = transformers.Pix2StructConfig(
            text_config={"vocab_size": VOCABULARY, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 1} | sizes,
            vision_config=seeing | sizes, is_encoder_decoder=True, decoder_start_token_id=1,
        )  # fmt: skip
        resized = transformers.Pix2StructImageProcessorPil(patch_size={"height": 8, "width": 8}, max_patches=20)
        return transformers.Pix2StructForConditionalGeneration(config), resized
    if family == "blip":
        config = transformers.BlipConfig(text_config=WRITING | {"encoder_hidden_size": 32}, vision_config=SEEING)
        resized = transformers.BlipImageProcessorPil(size={"height": 32, "width": 32})
        return transformers.BlipForConditionalGeneration(config), resized
    config = transformers.GitConfig(vision_config=SEEING, **{k: v for k, v in WRITING.items() if k != "sep_token_id"})
    return transformers.GitForCausalLM(config), transformers.CLIPImageProcessorPil(**CROPPED)


def written(folder: Path, family: str) -> Path:
    torch.manual_seed(2)
    model, processor = built(family)
    for parameter in model.parameters():
        # Pix2Struct does not divide its scores
        parameter.mul_(1 if parameter.ndim < 2 else 1.5 if family == "pix2struct" else 3)
    model.generation_config.update(max_length=12, max_new_tokens=None)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    folders.tokenizer(bos=True, eos=True).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("picture") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (37, 50, 3), dtype=np.uint8)).save(path)
    return str(path)


def eager(folder: Path, family: str, picture: str, ids: list[int] | None) -> tuple[dict[str, Any], list[int]]:
    """What transformers' own eager model puts out as attention for these ids (None: those it writes), and the ids."""
    kind = "GitForCausalLM" if family == "git" else f"{family.title()}ForConditionalGeneration".replace("2s", "2S")
    model = getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager").eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    given = processor(Image.open(picture).convert("RGB"), return_tensors="pt")
    if ids is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the length by default
            ids = model.generate(**given, **({"input_ids": torch.tensor([[1]])} if family == "git" else {}))[0].tolist()
    row = torch.tensor([ids])
    if family == "pix2struct":
        out = model(**given, decoder_input_ids=row, output_attentions=True)
        return {name: out[f"{name}_attentions"] for name in ("cross", "decoder", "encoder")}, ids
    if family == "git":
        return {"self": model(**given, input_ids=row, output_attentions=True).attentions}, ids
    seen = model.vision_model(**given, output_attentions=True)
    out = model.text_decoder(row, encoder_hidden_states=seen[0], output_attentions=True)
    return {"cross": out.cross_attentions, "encoder": seen.attentions}, ids


@pytest.mark.grid
@pytest.mark.parametrize("family", ["pix2struct", "blip", "git"])
@pytest.mark.parametrize("target", [None, "at eat"])
def test_words_look_at_patches_as_in_eager_attention(
    family: str, target: str | None, photograph: str, tmp_path: Path
) -> None:
    folder = written(tmp_path / "m", family)
    ids = None if target is None else folders.tokenizer(bos=True).encode(target).ids
    right, ids = eager(folder, family, photograph, ids)
    for kind, weights in right.items():
        chosen: dict[str, Any] = {} if kind == "self" else {"attention": kind}
        trace = attnctl.attend(photograph, str(folder), **chosen, **({} if kind == "encoder" else {"target": target}))
        assert np.abs(np.stack([layer.weights for layer in trace.layers]) - torch.cat(weights).numpy()).max() < 1e-6
        if kind != "encoder":
            assert [token.id for token in trace.tokens if not token.is_patch][-len(ids) :] == ids
        if kind == "decoder":
            continue
        boxes = [token.box for token in trace.key_axis if token.box is not None]
        if family == "git":  # pixels 5 to 37 of 43, which 50 became
            assert len(boxes) == 16 and boxes[0][:2] == (6, 0) and boxes[-1][2:] == (43, 37)
        else:
            assert boxes[0][:2] == (0, 0) and boxes[-1][2:] == (50, 37)
        if family == "pix2struct":  # 3 × 5 patches, and padding
            assert len(boxes) == 15 and [key.text for key in trace.key_axis[15:]] == [f"padding-{n}" for n in range(5)]


@pytest.mark.parametrize("family", ["pix2struct", "blip", "git"])
def test_each_word_is_drawn_over_the_picture(
    family: str, photograph: str, run: Run, refused: Refused, tmp_path: Path
) -> None:
    folder = written(tmp_path / "m", family)
    right, _ = eager(folder, family, photograph, folders.tokenizer(bos=True).encode("at eat").ids)
    cross = () if family == "git" else ("--attention", "cross")
    command = ("heatmap", photograph, "--model", str(folder), "--target", "at eat", *cross)
    assert run(*command, "-o", str(tmp_path / "x.png")).code == 0 and (tmp_path / "x.png").stat().st_size > 3000
    lines = [line.split("\t") for line in run(*command, "--head", "1").out.splitlines()[1:]]
    weights = right["self" if family == "git" else "cross"][1][0, 1]  # of the last layer: (n_q, n_k)
    assert {line[2] for line in lines} == {"at", "e"}
    told = np.array([float(line[-1]) for line in lines]).reshape(3, -1)
    assert np.abs(told - weights[-3:].numpy()).max() < 1e-5
    assert "cannot be combined with --generate" in refused(*command, "--generate", "2", code=2)
    assert "give a file's name" in refused("heatmap", "at eat", "--model", str(folder), *cross)


def test_cross_attention_of_pix2struct_is_told_from_the_decoders() -> None:
    model, processor = built("pix2struct")
    given = processor(Image.new("RGB", (50, 37), "red"), return_tensors="pt")
    with capture(model.eval()) as traces:
        model(**given, decoder_input_ids=torch.tensor([[1, 5, 6]]))
    assert traces.trace(kind="cross").layers[1].weights.shape == (4, 3, 20)
    assert traces.trace(kind="decoder").layers[1].weights.shape == (4, 3, 3)
