"""Captioners and OCR: cross attention over the patches of a picture, and AST's spectrogram, held against eager transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import attnctl
from tests.conftest import Refused, Run
from tests.tools import folders

WORDS = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
PICTURES = {
    "vit": transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8
    ),
    "swin": transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4
    ),
}
VOCABULARY = len(folders.VOCABULARY) + 10
DECODERS = {
    "trocr": transformers.TrOCRConfig(
        vocab_size=VOCABULARY, max_position_embeddings=64, cross_attention_hidden_size=32, **WORDS
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, add_cross_attention=True
    ),
}


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("picture") / "photo.png"
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return str(path)


def written(folder: Path, encoder: str, decoder: str) -> Path:
    """Write a captioner of a vision encoder and a decoder of text."""
    torch.manual_seed(1)
    both = (PICTURES[encoder], DECODERS[decoder])
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(*both)
    for part in (config, config.decoder):
        part.decoder_start_token_id, part.pad_token_id, part.eos_token_id, part.bos_token_id = 1, 0, 2, 1
    model = transformers.VisionEncoderDecoderModel(config=config)
    model.generation_config.update(decoder_start_token_id=1, pad_token_id=0, eos_token_id=2, max_length=9, num_beams=2)
    model.save_pretrained(folder)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    folders.tokenizer(bos=True, eos=True).save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(("encoder", "decoder"), [("vit", "trocr"), ("vit", "gpt2"), ("swin", "gpt2")])
def test_words_look_at_patches_as_in_eager_attention(
    encoder: str, decoder: str, photograph: str, tmp_path: Path
) -> None:
    folder = written(tmp_path / "m", encoder, decoder)
    network = transformers.VisionEncoderDecoderModel.from_pretrained(folder, attn_implementation="eager").eval()
    pixels = transformers.ViTImageProcessor.from_pretrained(folder)(Image.open(photograph), return_tensors="pt")
    ids = folders.tokenizer(bos=True).encode("at eat").ids
    with torch.no_grad():
        out = network(**pixels, decoder_input_ids=torch.tensor([ids]), output_attentions=True)
        own = network.generate(**pixels)[0].tolist()
    for kind, right in (("cross", out.cross_attentions), ("decoder", out.decoder_attentions)):
        trace = attnctl.attend(photograph, str(folder), attention=kind, target="at eat")
        assert [token.id for token in trace.tokens] == ids
        weights = np.stack([layer.weights for layer in trace.layers])
        assert np.abs(weights - torch.cat(right).numpy()).max() < 1e-6
    cross = attnctl.attend(photograph, str(folder), attention="cross")
    assert [token.id for token in cross.tokens] == own  # with the length and the beams of generation_config
    boxes = [token.box for token in cross.key_axis if token.box is not None]
    assert len(boxes) == 16 and boxes[0][:2] == (0, 0) and boxes[-1][2:] == (60, 40)


def test_a_word_of_the_caption_is_drawn_over_the_picture(
    photograph: str, run: Run, refused: Refused, tmp_path: Path
) -> None:
    folder, target = str(written(tmp_path / "m", "vit", "trocr")), ("--target", "at eat")
    cross = ("heatmap", photograph, "--model", folder, "--attention", "cross", *target)
    assert run(*cross, "-o", str(tmp_path / "x.png")).code == 0 and (tmp_path / "x.png").stat().st_size > 1000
    last = run(*cross, "--layer", "0", "--head", "0", "--query", "-1").out.splitlines()
    each = run(*cross, "--layer", "0", "--head", "0").out.splitlines()  # a panel for each word by default
    assert {line.split("\t")[2] for line in each[1:]} == {"at", "e"}  # the pieces at, e, at
    n_keys = len(last) - 1
    assert len(each) == 1 + 3 * n_keys
    assert [line.replace("\tat\t", "\t", 1) for line in each[-n_keys:]] == last[1:]
    assert run(*cross, "--layer", "0", "--head", "0", "--query", "each").out.splitlines() == each
    decoder = ("heatmap", photograph, "--model", folder, "--attention", "decoder", *target)
    line = refused(*decoder, "-o", str(tmp_path / "y.png"), code=2)
    assert "words look at words, not at the picture: see --attention cross" in line
    assert "give a file's name" in refused("heatmap", "at eat", "--model", folder, "--attention", "cross")


def test_the_encoder_is_shown_without_a_target(photograph: str, run: Run, tmp_path: Path) -> None:
    folder = written(tmp_path / "m", "vit", "gpt2")
    network = transformers.VisionEncoderDecoderModel.from_pretrained(folder, attn_implementation="eager").eval()
    pixels = transformers.ViTImageProcessor.from_pretrained(folder)(Image.open(photograph), return_tensors="pt")
    with torch.no_grad():
        right = network.encoder(**pixels, output_attentions=True).attentions
    trace = attnctl.attend(photograph, str(folder))
    assert np.abs(np.stack([layer.weights for layer in trace.layers]) - torch.cat(right).numpy()).max() < 1e-6


def test_another_captioner_names_the_part_that_can_be_recorded(refused: Refused, tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.Blip2Config(
        vision_config=sizes | {"image_size": 16, "patch_size": 8},
        qformer_config=sizes | {"vocab_size": 300, "encoder_hidden_size": 32},
        text_config=transformers.OPTConfig(
            vocab_size=300,
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            word_embed_proj_dim=32,
        ),
    )
    transformers.Blip2ForConditionalGeneration(config).save_pretrained(tmp_path)
    folders.tokenizer().save(str(tmp_path / "tokenizer.json"))
    line = refused("heatmap", "at eat", "--model", str(tmp_path))
    assert "reads pixel values, not text: in Python, attnctl.capture(model.language_model) records" in line


def test_a_spectrogram_is_read_by_its_own_extractor(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    config = transformers.ASTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_length=64, num_mel_bins=64
    )
    transformers.ASTForAudioClassification(config).save_pretrained(tmp_path)
    extractor = transformers.ASTFeatureExtractor(max_length=64, num_mel_bins=64)
    extractor.save_pretrained(tmp_path)
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 6400).astype(np.float32)  # 0.4 seconds
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    trace = attnctl.attend(str(tmp_path / "a.wav"), str(tmp_path))
    network = transformers.ASTForAudioClassification.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        given = extractor(samples, sampling_rate=16000, return_tensors="pt")
        right = torch.cat(network(**given, output_attentions=True).attentions).numpy()
    assert np.abs(np.stack([layer.weights for layer in trace.layers]) - right).max() < 1e-6
    # bands and steps of 10 with a side of 16: (64 - 16) // 10 + 1 = 5 each way
    assert len(trace.tokens) == 2 + 25 and trace.tokens[3].text == "0.10 s mel 0-15"
    assert trace.tokens[7].text == "0.00 s mel 10-25" and trace.tokens[3].seconds == (0.1, 0.26)
