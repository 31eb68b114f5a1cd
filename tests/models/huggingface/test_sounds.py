"""Sound as a source: frames are tokens with their seconds, and the weights are those of transformers' eager functions."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from attnctl.formats.audio import read_audio
from attnctl.models import open_model
from attnctl.models.huggingface.readers import sound as sound_reader
from attnctl.source import record_trace
from tests.conftest import Run, check_schema
from tests.tools import whisper

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("network_kept")

CONVOLUTIONS: dict[str, Any] = {
    "conv_dim": (16, 16, 16), "conv_stride": (5, 4, 16), "conv_kernel": (10, 3, 3), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 32,
}
FAMILIES = {"Wav2Vec2": "Wav2Vec2ForCTC", "Hubert": "HubertModel", "WavLM": "WavLMModel", "SEW": "SEWModel"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tone of two seconds and a tiny Whisper."""
    folder = tmp_path_factory.mktemp("sounds")
    whisper.write_tiny(folder / "tiny")
    whisper.write_wave(folder / "tone.wav", whisper.sine(2.0))
    return folder


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_whispers_weights_are_those_of_eager(place: Path, kind: str) -> None:
    given = {} if kind == "encoder" else {"target": "One two"}
    model: Any = open_model(str(place / "tiny"), attention=kind, **given)
    rows = [0, 3, 7]
    trace = record_trace(model, str(place / "tone.wav"), rows=rows)
    network = deepcopy(model.network)
    network.set_attn_implementation("eager")
    features = model.reader.extractor(read_audio(str(place / "tone.wav")), sampling_rate=16_000, return_tensors="pt")
    marks = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    ids = [network.config.decoder_start_token_id]
    if kind != "encoder":
        texts = [token.text for token in trace.tokens]
        assert texts[0] == marks[0] and texts[2:4] == marks[2:] and texts[1] in ("<|en|>", "<|de|>")
        assert "".join(texts[4:]) == " One two"
        ids = [token.id for token in trace.tokens]
    with torch.inference_mode():
        output = network(features["input_features"], decoder_input_ids=torch.tensor([ids]), output_attentions=True)
    own = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}[kind]
    for layer, weights in zip(trace.layers, output[own], strict=True):
        assert np.abs(layer.weights - weights[0][:, rows].numpy()).max() < 1e-6
    if kind != "decoder":
        keys = trace.key_axis
        assert len(keys) == 1500 and keys[0].seconds == (0, 0.02) and keys[99].seconds == (1.98, 2.0)
        assert [key.special for key in keys] == [False] * 100 + [True] * 1400  # filled up with silence
        assert keys[42].text == "0.84 s"


@pytest.mark.parametrize(
    "configured",
    [
        {"decoder_start_token_id": "<|startoflm|>"},
        {"language": "German", "task": "translate"},
        {"language": "<|de|>", "task": "transcribe"},
        {"forced_decoder_ids": [[1, "<|de|>"], [2, "<|translate|>"]]},
        {"forced_decoder_ids": [[1, None], [2, "<|translate|>"]]},
    ],
)
def test_whisper_begins_as_generation_config_says(place: Path, tmp_path: Path, configured: dict[str, Any]) -> None:
    """The marks are the ids that `generate` gives the decoder first, whatever config.json says."""
    folder = shutil.copytree(place / "tiny", tmp_path / "model")
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()

    def with_ids(value: Any) -> Any:
        if isinstance(value, list):
            return [with_ids(part) for part in value]
        return vocabulary.get(value, value)

    settings = json.loads((folder / "generation_config.json").read_text())
    if "language" not in configured:
        configured = {key: with_ids(value) for key, value in configured.items()}
    (folder / "generation_config.json").write_text(json.dumps(settings | configured))
    model: Any = open_model(str(folder), attention="cross")
    first: list[list[int]] = []
    samples = model.reader.extractor(read_audio(str(place / "tone.wav")), sampling_rate=16_000, return_tensors="pt")
    hook = lambda _, args, given: first.append(given["input_ids"][0].tolist())  # noqa: E731
    with torch.no_grad():
        removable = model.network.model.decoder.register_forward_pre_hook(hook, with_kwargs=True)
        model.network.generate(samples["input_features"], max_new_tokens=1, do_sample=False)
        removable.remove()
    begun = next(ids for ids in first if len(ids) > 1)  # those of one token find the language out
    ids = [token.id for token in model.tokenize(str(place / "tone.wav"))]
    wanted = (
        begun if len(begun) == 4 else [*begun[:2], vocabulary["<|transcribe|>"], *begun[2:]]
    )  # no task: it writes down
    assert ids[:4] == wanted
    given = open_model(str(folder), attention="cross", target="One")
    assert [token.id for token in given.tokenize(str(place / "tone.wav"))][:4] == wanted


@pytest.mark.parametrize(("family", "squeezed"), [*((family, 1) for family in FAMILIES), ("SEW", 2), ("SEW", 3)])
def test_frames_of_other_families(place: Path, tmp_path: Path, family: str, squeezed: int) -> None:
    more = {"squeeze_factor": squeezed} if family == "SEW" else {}
    config = getattr(transformers, f"{family}Config")(**SIZES, **CONVOLUTIONS, **more)
    torch.manual_seed(0)
    network = getattr(transformers, FAMILIES[family])(config).eval()
    for name, parameter in network.named_parameters():
        parameter.data.mul_(8 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1)
    network.save_pretrained(tmp_path / "model")
    transformers.Wav2Vec2FeatureExtractor().save_pretrained(tmp_path / "model")
    model: Any = open_model(str(tmp_path / "model"))
    trace = record_trace(model, str(place / "tone.wav"))
    network = model.network
    network.set_attn_implementation("eager")
    samples = model.reader.extractor(read_audio(str(place / "tone.wav")), sampling_rate=16_000, return_tensors="pt")
    with torch.inference_mode():
        output = network(samples["input_values"], output_attentions=True)
    for layer, weights in zip(trace.layers, output.attentions, strict=True):
        assert layer.weights.shape == weights[0].shape and np.abs(layer.weights - weights[0].numpy()).max() < 1e-6
    step = 0.02 * squeezed
    assert trace.tokens[1].seconds == pytest.approx((step, 2 * step))
    assert 95 <= len(trace.tokens) * squeezed <= 100
    assert not any(token.special for token in trace.tokens)


def test_a_sound_is_read_heard_and_written_down_once(place: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed file is read again, and a model with another target hears for itself."""
    from transformers.models.whisper import modeling_whisper as library

    done: list[str] = []

    def counted(of: Any, name: str) -> None:
        method = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *values, **named: (done.append(name), method(*values, **named))[1])

    counted(sound_reader, "read_audio")
    counted(library.WhisperForConditionalGeneration, "generate")
    counted(library.WhisperEncoder, "forward")
    how = (
        str(place / "tone.wav"),
        "--model",
        str(place / "tiny"),
        "--attention",
        "cross",
        "--layer",
        "0",
        "--head",
        "0",
    )
    for command, options in (("explain", ("--query", "4", "--top", "1")), ("heatmap", ()), ("check", ())):
        done.clear()
        made = run(command, *how, *options)
        assert made.code == 0, made.err
        assert sorted(done) == ["forward", "generate", "read_audio"], command
    path = whisper.write_wave(place / "changing.wav", whisper.sine(1.0))
    model: Any = open_model(str(place / "tiny"), attention="cross", target="One")
    sound_in = partial(model.reader.sound_in, model, str(path))
    assert sound_in() is sound_in() and sound_in().seconds == 1
    whisper.write_wave(path, whisper.sine(2.0))
    assert sound_in().seconds == 2
    assert replace(model, target="Two").tokenize(str(path)) != model.tokenize(str(path))


def test_commands_take_a_sound(run: Run, place: Path, tmp_path: Path) -> None:
    tone, model = str(place / "tone.wav"), ("--model", str(place / "tiny"))
    cross = (*model, "--attention", "cross", "--target", "One two")
    assert check_schema(run("explain", tone, *cross, "--json").json) == "overview"
    (tmp_path / "list.txt").write_text(f"{tone}\n{tone}\n")
    lines = run("batch", str(tmp_path / "list.txt"), *cross, "--format", "json", "--layer", "1").out.splitlines()
    document, again = map(json.loads, lines)
    assert check_schema(document) == "trace" and document["layers"] == again["layers"]
    assert document["key_tokens"][2]["seconds"] == [0.04, 0.06] and "seconds" not in document["tokens"][0]
    (tmp_path / "t.json").write_text(json.dumps(document))
    again = json.loads(run("batch", str(tmp_path / "t.json"), "--format", "json").out)
    assert again["key_tokens"] == document["key_tokens"]
    for words in (
        ("heads", tone, *model),
        ("heatmap", tone, *cross, "--columns", "0-99", "-o", str(tmp_path / "a.png")),
        ("ablate", tone, *cross[:4]),
        ("ablate", tone, *model, "--attention", "decoder"),
        ("compare", tone, tone, *cross),
        ("view", tone, *cross, "-o", str(tmp_path / "a.html"), "--no-open"),
        ("check", tone, *model),
    ):
        found = run(*words)
        assert found.code == 0, (words, found.err)
    effects = run("ablate", tone, *model, "--attention", "decoder", "--json").json
    shown = run("explain", tone, *model, "--attention", "decoder", "--target", "One", "--json").json
    assert effects["tokens"] == shown["tokens"][:4]  # the marks, after which the first word is watched


def test_a_heatmap_names_the_options_that_leave_out_the_silence(run: Run, place: Path, tmp_path: Path) -> None:
    """Frames of 20 ms: two seconds are frames 0 to 99, and the 28 seconds that Whisper adds fill the picture."""
    tone, model, output = str(place / "tone.wav"), ("--model", str(place / "tiny")), ("-o", str(tmp_path / "a.json"))
    cross = ("--attention", "cross", "--target", "One two")
    behind = "the sound without the silence behind it"
    for options, note in {
        (): f"--rows 0-99 --columns 0-99 show {behind}",
        cross: f"--columns 0-99 shows {behind}",
        ("--rows", "0-99"): f"--columns 0-99 shows {behind}",
    }.items():
        assert note in run("heatmap", tone, *model, *options, *output).err
    for options in (("--rows", "0-99", "--columns", "0-99"), (*cross, "--columns", "0-99")):
        assert behind not in run("heatmap", tone, *model, *options, *output).err
    assert json.loads((tmp_path / "a.json").read_bytes())["columns"][-1]["ranges"][-1][1] == 100
    whisper.write_wave(tmp_path / "long.wav", whisper.sine(30.0))
    assert behind not in run("heatmap", str(tmp_path / "long.wav"), *model, *output).err


def test_frames_are_compared_by_when_they_begin(run: Run, place: Path) -> None:
    tone, model = str(place / "tone.wav"), ("--model", str(place / "tiny"), "--attention", "cross", "--target", "One")
    found = run("compare", tone, tone, *model)
    assert found.code == 0 and "A and B are the same, to the last bit" in found.out


def test_sounds_that_cannot_be_heard_are_refused_in_one_line(run: Run, place: Path, tmp_path: Path) -> None:
    tone, model = str(place / "tone.wav"), ("--model", str(place / "tiny"))
    (tmp_path / "cut.wav").write_bytes((place / "tone.wav").read_bytes()[:20])
    long = whisper.write_wave(tmp_path / "long.wav", whisper.sine(31.0))
    for words, said in {
        ("explain", tone): "is a sound, and demo reads text",
        ("explain", "hello", *model): "no sound 'hello'",
        ("explain", "none.wav", *model): "no file none.wav",
        ("explain", str(tmp_path / "cut.wav"), *model): "cannot read the sound of",
        ("explain", tone, *model, "--no-bos"): "--bos is for models of text",
        ("explain", tone, *model, "--attention", "cross", "--generate", "3"): "--generate is for models of text",
        ("sources", tone, *model): "reads sound, and answers no prompts",
    }.items():
        refused = run(*words)
        assert refused.code in (1, 2) and not refused.out and said in refused.err, (words, refused.err)
        assert refused.err.count("\n") == 1
    heard = run("heads", str(long), *model)
    assert heard.code == 0 and "Of 31.0 seconds the first 30 are heard" in heard.err
