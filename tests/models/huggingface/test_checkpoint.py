"""Checkpoints on disk, opened and read: texts, targets, options, what a run leaves out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnctl
from attnctl.errors import AttnctlError, UsageError
from attnctl.models import attend, open_model
from attnctl.models.huggingface.network import configuration_of
from attnctl.readings.rows import RowReading
from attnctl.readings.trace_reading import TraceReading
from attnctl.render.form_builders.rows import row_forms
from attnctl.render.terminal.console import Shown, as_text
from attnctl.source import TextSource, prepare, record_trace
from attnctl.trace import by_words
from tests.models.huggingface.conftest import Shelf

TEXT = "Alice eats é 🍕"


def test_weights_are_those_of_eager(shelf: Shelf) -> None:
    trace = attend(TEXT, shelf("llama"))
    family = type(open_model(shelf("llama")).network)
    eager = family.from_pretrained(shelf("llama"), attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        reference = eager(torch.tensor([[t.id for t in trace.tokens]]), output_attentions=True).attentions
    for layer, weights in zip(trace.layers, reference, strict=True):
        np.testing.assert_array_equal(layer.weights, weights[0].numpy())
        np.testing.assert_allclose(layer.scaled_scores, layer.scores * trace.model.scale, rtol=1e-6)
        assert layer.kv_heads == (0, 0, 1, 1)
    told = trace.model
    assert (told.kind, told.n_layers, told.n_heads, told.n_kv_heads, told.d_k) == ("checkpoint", 2, 4, 2, 8)
    assert told.causal and trace.embeddings.shape == (len(trace.tokens), 32)
    assert len(trace.predictions) == 5 and trace.predictions[0].position == len(trace.tokens) - 1
    half = attend(TEXT, shelf("llama"), dtype="float16")
    assert half.model.dtype == "float16"
    np.testing.assert_allclose(half.layers[0].weights, trace.layers[0].weights, atol=0.05)


def test_tokens_as_people_read_them(shelf: Shelf) -> None:
    tokens = open_model(shelf("llama")).tokenize("at é 🍕<s>\u200d")
    said = "at| |é₁|é₂| |🍕₁|🍕₂|🍕₃|🍕₄|<s>|U+200D₁|U+200D₂|U+200D₃"
    assert "|".join(token.text for token in tokens) == said
    assert [t.special for t in tokens].index(True) == 9


@pytest.mark.parametrize("case", ["bart", "t5, bias"])
@pytest.mark.parametrize(
    "configured", [{"decoder_start_token_id": 3}, {"decoder_start_token_id": None, "bos_token_id": 4}]
)
def test_a_decoder_begins_and_ends_as_generate_has_it(
    case: str, configured: dict[str, Any], shelf: Shelf, tmp_path: Path
) -> None:
    """generation_config.json decides, whatever config.json says: of the start, and of several ends."""
    folder = shutil.copytree(shelf(case, eos=True), tmp_path / "model")
    network = open_model(str(folder), attention="cross").network
    settings = network.generation_config.to_dict() | {"eos_token_id": [9, 2]} | configured
    (folder / "generation_config.json").write_text(json.dumps(settings))
    family = type(network).from_pretrained(folder).eval()
    source = torch.tensor([[token.id for token in open_model(str(folder)).tokenize("at ate")]])
    wanted = family.generate(source, do_sample=False, num_beams=1, max_new_tokens=4)[0].tolist()
    written = open_model(str(folder), attention="cross", generate=4).tokenize("at ate")
    assert [token.id for token in written] == wanted
    assert (
        wanted[0] == next(number for number in configured.values() if number) != network.config.decoder_start_token_id
    )
    given = open_model(str(folder), attention="cross", target="ta").tokenize("at ate")
    assert [token.text for token in given[1:]] == ["t", "a"] and given[0].id == wanted[0]


@pytest.mark.parametrize("start", ["x", [], -1, 10**30])
def test_a_start_of_the_decoder_that_is_no_id(start: object, shelf: Shelf, tmp_path: Path) -> None:
    folder = shutil.copytree(shelf("bart", eos=True), tmp_path / "model")
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"decoder_start_token_id": start}))
    with pytest.raises(
        AttnctlError, match=r"not the id of a token: see decoder_start_token_id in its generation_config\.json"
    ):
        open_model(str(folder), attention="cross", target="ta").tokenize("at ate")


@pytest.mark.grid
@pytest.mark.parametrize("case", ["bert", "llama", "bart"])
@pytest.mark.parametrize(
    "switches",
    [
        {"output_attentions": True},
        {"output_attentions": True, "output_hidden_states": True, "attn_implementation": "sdpa"},
        {"return_dict": False},
        {"torchscript": True},
        {"use_cache": False},
        {"_attn_implementation": "flash_attention_2"},
        {"chunk_size_feed_forward": 2},
    ],
)
def test_switches_saved_in_a_configuration(case: str, switches: dict[str, Any], shelf: Shelf, tmp_path: Path) -> None:
    """Such a checkpoint opens, and attends as without: as transformers' eager code does."""
    folder = shutil.copytree(shelf(case), tmp_path / "model")
    how = {"attention": "encoder"} if case == "bart" else {}
    family = type(open_model(str(folder), **how).network)
    eager = family.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | switches))
    trace = attend("at ate a", str(folder), **how)
    with torch.no_grad():
        found = eager(torch.tensor([[token.id for token in trace.tokens]]), output_attentions=True)
    reference = found.encoder_attentions if case == "bart" else found.attentions
    for layer, weights in zip(trace.layers, reference, strict=True):
        np.testing.assert_allclose(layer.weights, weights[0].numpy(), atol=1e-6)
    assert (len(trace.predictions) > 0) == (case == "llama")


def test_switches_saved_in_a_part_of_a_configuration(tmp_path: Path) -> None:
    """Of a model of text and pictures the text's part too."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    LlavaConfig().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    for part in ("text_config", "vision_config"):
        settings[part] |= {"output_attentions": True, "return_dict": False}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config = configuration_of(LlavaForConditionalGeneration, tmp_path)
    for part in (config.text_config, config.vision_config):
        assert (part.output_attentions, part.return_dict) == (False, True)
    config._attn_implementation = "sdpa"
    config.validate()


@pytest.mark.parametrize("case", ["llama", "bart"])
def test_switches_saved_in_generation_config(case: str, shelf: Shelf, tmp_path: Path) -> None:
    """What `generate` puts out beside the ids, and how it searches, changes nothing that is written."""
    folder = shutil.copytree(shelf(case), tmp_path / "model")
    how = {"attention": "cross"} if case == "bart" else {}
    wanted = open_model(str(folder), generate=3, **how).tokenize("at ate")
    settings = json.loads((folder / "generation_config.json").read_text())
    settings |= {"output_attentions": True, "output_scores": True, "return_dict_in_generate": True, "num_beams": 3}
    (folder / "generation_config.json").write_text(json.dumps(settings | {"num_return_sequences": 2}))
    assert open_model(str(folder), generate=3, **how).tokenize("at ate") == wanted


def test_a_beginning_of_the_text(shelf: Shelf) -> None:
    plain, adds = shelf("llama"), shelf("llama", bos=True)

    def words(path: str, text: str = "at", **how: Any) -> str:
        return " ".join(token.text for token in open_model(path, **how).tokenize(text))

    assert (words(plain), words(plain, bos=True)) == ("at", "<s> at")
    assert (words(adds), words(adds, bos=False)) == ("<s> at", "at")
    assert (words(adds, "<s>at"), words(adds, "<s>at", bos=True)) == ("<s> <s> at", "<s> at")
    assert any("There is no <s> at the start" in note for note in attend("at", plain).notes)
    (sunk,) = attend("at", plain, bos=True).notes
    assert "goes to the first token, <s>" in sunk
    assert any("is twice at the start" in note for note in attend("<s>at", adds).notes)


def test_a_text_too_long(shelf: Shelf) -> None:
    path = shelf("bert", bos=True, eos=True)
    with pytest.raises(AttnctlError, match=r"72 tokens, but .* reads 64: shorten it, or give truncate=True"):
        open_model(path).tokenize("x" * 70)
    cut = open_model(path, truncate=True).tokenize("x" * 70)
    assert len(cut) == 64 and cut[-1].text == "</s>" and cut[0].text == "<s>"
    notes = [
        note for note in attend("x" * 62 + "at ate", path, truncate=True).notes if "reads only the first 64" in note
    ]
    assert len(notes) == 1 and "leaves out the text from 'at ate' on" in notes[0]
    assert not any("reads only" in note for note in attend("x" * 62, path, truncate=True).notes)


def test_encoder_decoders(shelf: Shelf) -> None:
    path = shelf("t5, bias")
    encoder = attend("at ate", path)
    assert encoder.layers[0].weights.shape == (4, len(encoder.tokens), len(encoder.tokens))
    assert encoder.layers[0].mask is None
    cross = attend("at ate", path, attention="cross", target="ta")
    assert [t.text for t in cross.key_axis] == [t.text for t in encoder.tokens]
    assert [t.text for t in cross.tokens[1:]] == ["t", "a"] and cross.tokens[0].special
    assert cross.layers[1].weights.shape == (4, 3, len(encoder.tokens))
    decoder = attend("at ate", path, attention="decoder", target="ta")
    assert decoder.layers[0].mask.tolist() == np.tri(3, dtype=bool).tolist()
    assert np.abs(decoder.layers[0].bias).max() > 0.1
    own = attend("at ate", path, attention="cross", generate=3)
    assert 1 < len(own.tokens) <= 4 and any("the model's own" in note for note in own.notes)


def test_more_than_the_memory_holds(shelf: Shelf) -> None:
    said = r"2 layers × 4 heads, 20,000 × 20,000 each, takes 38 GB: choose layers"
    with pytest.raises(AttnctlError, match=said):
        record_trace(open_model(shelf("t5, bias")), "x" * 20_000)


def test_generation(shelf: Shelf) -> None:
    trace, model = attend("at é", shelf("llama"), generate=4), open_model(shelf("llama"))
    prompt = len(model.tokenize("at é"))
    assert [t.id for t in trace.tokens[:prompt]] == [t.id for t in model.tokenize("at é")]
    assert len(trace.tokens) > prompt and all(t.start is None for t in trace.tokens[prompt:])
    (note,) = [note for note in trace.notes if "the model's own" in note]
    assert f"The last {len(trace.tokens) - prompt} tokens are the model's own, the likeliest each time: “" in note
    for at in range(prompt, len(trace.tokens)):  # greedy: what follows each prefix is what was predicted there
        assert model.run(trace.tokens[:at], lambda *_: None).predictions[0].id == trace.tokens[at].id


def test_a_blank_is_filled(shelf: Shelf) -> None:
    trace = attend("w10 <mask> w20", shelf("bert masked"))
    assert {p.position for p in trace.predictions} == {1} and trace.layers[0].mask is None


def test_layers_without_attention_and_code_outside_the_interface(shelf: Shelf) -> None:
    assert [layer.layer for layer in attend("at ate", shelf("lfm2, convolutions")).layers] == [1]
    with pytest.raises(UsageError, match="layer 0 of lfm2 has no attention: it is in 1"):
        attend("at ate", shelf("lfm2, convolutions"), layer=0)
    trace = attend("at ate", shelf("bloom, ALiBi"), layer=1, head=[0, 2])
    assert trace.layers[0].weights.shape == (2, len(trace.tokens), len(trace.tokens))
    assert trace.layers[0].queries is None and any("only the weights can be shown" in note for note in trace.notes)


@pytest.mark.parametrize(("layers", "ran"), [([0], 0), (None, 1)])
def test_without_predictions_nothing_runs_after_the_last_layer(shelf: Shelf, layers: Any, ran: int) -> None:
    model: Any = open_model(shelf("llama"))
    network, met = model.network, []
    network.model.layers[1].input_layernorm.register_forward_hook(lambda *_: met.append("layer 1"))
    network.model.norm.register_forward_hook(lambda *_: met.append("norm"))
    short = record_trace(model, TEXT, layers=layers, heads=[2], predictions=False)
    assert (met, short.predictions) == (["layer 1"] * ran, ())
    whole = record_trace(model, TEXT, layers=layers, heads=[2])
    assert "norm" in met and whole.predictions
    assert whole.model.final_norm and short.model == replace(whole.model, final_norm=None)  # it got to no norm
    for mine, theirs in zip(short.layers, whole.layers, strict=True):
        np.testing.assert_allclose(mine.weights, theirs.weights, rtol=0, atol=1e-6)


def test_a_network_that_fails_is_one_line(shelf: Shelf) -> None:
    model: Any = open_model(shelf("llama"))
    model.network.model.norm.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(AttnctlError, match=r"llama fails on this text, in test_checkpoint.py:\d+: ZeroDivisionError: "):
        record_trace(model, TEXT)


def test_a_target_has_no_place_in_the_source(shelf: Shelf) -> None:
    """Its tokens are named by themselves: not by what stands at their places in another text."""
    source = TextSource(open_model(shelf("bart"), attention="cross", target="at ate"), "Il était une fois")
    trace = prepare(source).read(TraceReading())
    own = [token for token in trace.tokens if not token.special]
    assert "".join(token.text.strip() for token in own) == "atate" and all(token.start is None for token in own)
    words = by_words(trace)
    assert [token.text for token in words.tokens] == [token.text for token in trace.tokens]
    assert any("stay pieces" in note for note in words.notes)
    shown = as_text(Shown(row_forms(prepare(source).read(RowReading(2)), top=1))).splitlines()
    assert len(shown[1].split()) == 3, "and stands in no surroundings of the source's"


@pytest.mark.parametrize("off", [None, "0.1"])
def test_a_text_of_a_batch_has_a_target_of_its_own(shelf: Shelf, off: str | None) -> None:
    folder, own = shelf("t5, bias"), {"text": "the cat", "options": {"target": "at the"}}
    found = next(attnctl.batch([own], folder, attention="cross", target="cat", off=off))
    alone = attend("the cat", folder, attention="cross", target="at the", off=off)
    assert found.model == alone.model and found.tokens == alone.tokens
    np.testing.assert_array_equal(found.layers[0].weights, alone.layers[0].weights)
    for case, options, says in (
        ("llama", {}, "a target is for decoder and cross attention, and .* shows self attention"),
        ("t5, bias", {}, "shows encoder attention"),
        ("t5, bias", {"generate": 2}, "a target cannot be combined with generate"),
    ):
        with pytest.raises(AttnctlError, match=says):
            next(attnctl.batch([own], shelf(case), off=off, **options))


class BrokenReading:
    """A reading with a bug."""

    predicts = False

    def take(self, layer: Any) -> None:
        layer.no_such_attribute  # noqa: B018

    def value(self, run: Any) -> None:
        raise AssertionError


def test_a_bug_of_a_reading_is_not_told_as_the_models_failure(shelf: Shelf) -> None:
    """It said that llama fails on this text, and lost the traceback, which says where to mend it."""
    for options in ({}, {"attention": "cross"}):
        model = open_model(shelf("bart" if options else "llama"), **options)
        with pytest.raises(AttributeError, match="no_such_attribute"):
            prepare(TextSource(model, TEXT)).read(BrokenReading())


@pytest.mark.parametrize(
    ("version", "told"), [("5.0.1", False), ("5.24.3", False), ("5.25.0.dev0", True), ("6.0", True)]
)
def test_a_newer_transformers_gets_one_note(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, version: str, told: bool
) -> None:
    model = open_model(shelf("llama"))
    monkeypatch.setattr("transformers.__version__", version)
    notes = [note for note in record_trace(model, "at ate").notes if f"transformers {version} is newer" in note]
    assert len(notes) == told
