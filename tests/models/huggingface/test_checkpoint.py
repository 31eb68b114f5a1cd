"""Checkpoints on disk: opened, read, refused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import torch

import attnctl
from attnctl.errors import AttnctlError, UsageError
from attnctl.models import attend, open_model, open_named_model
from attnctl.models.huggingface import attention_interface, hub
from attnctl.models.huggingface.check import check_attention
from attnctl.readings.rows import RowReading
from attnctl.readings.traces.trace import by_words
from attnctl.render.terminal.console import Shown, as_text
from attnctl.render.told.rows import row_forms
from attnctl.source import TextSource, record_trace
from tests.tools import architectures as zoo
from tests.tools import folders

TEXT = "Alice eats é 🍕"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A checkpoint's folder, written once however often it is asked for."""
    root = tmp_path_factory.mktemp("checkpoints")

    def folder(case: str, **how: Any) -> Path:
        name = root / f"{case.split(',')[0]}{''.join(f'-{k}' for k in how)}"
        return name if name.exists() else folders.write(name, case, **how)

    return folder


def test_weights_are_those_of_eager(shelf: Callable[..., Path]) -> None:
    path = shelf("llama")
    trace = attend(TEXT, str(path))
    family = type(open_model(str(path)).network)
    eager = family.from_pretrained(path, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        reference = eager(torch.tensor([[t.id for t in trace.tokens]]), output_attentions=True).attentions
    for layer, weights in zip(trace.layers, reference, strict=True):
        np.testing.assert_array_equal(layer.weights, weights[0].numpy())
        assert layer.kv_heads == (0, 0, 1, 1)
        np.testing.assert_allclose(layer.scaled_scores, layer.scores * trace.model.scale, rtol=1e-6)
    assert (trace.model.kind, trace.model.n_layers, trace.model.n_heads, trace.model.n_kv_heads) == (
        "checkpoint",
        2,
        4,
        2,
    )
    assert trace.model.causal and trace.model.d_k == 8
    assert trace.embeddings.shape == (len(trace.tokens), 32)
    assert len(trace.predictions) == 5 and trace.predictions[0].position == len(trace.tokens) - 1


def test_a_selection_is_a_part_of_the_whole(shelf: Callable[..., Path]) -> None:
    model = open_model(str(shelf("gemma2, soft cap and window")))
    whole = record_trace(model, TEXT)
    part = record_trace(model, TEXT, layers=[1], heads=[3, 0], rows=[2, len(whole.tokens) - 1])
    assert [layer.layer for layer in part.layers] == [1]
    for name in ("weights", "scores", "queries", "context"):
        np.testing.assert_allclose(
            getattr(part.layers[0], name), getattr(whole.layers[1], name)[[3, 0]][:, [2, -1]], rtol=0, atol=2e-6
        )


def test_tokens_as_people_read_them(shelf: Callable[..., Path]) -> None:
    tokens = open_model(str(shelf("llama"))).tokenize("at é 🍕<s>\u200d")
    assert [t.text for t in tokens] == [
        *("at", " ", "é₁", "é₂", " "),
        *("🍕₁", "🍕₂", "🍕₃", "🍕₄"),
        *("<s>", "U+200D₁", "U+200D₂", "U+200D₃"),
    ]
    assert [t.special for t in tokens].index(True) == 9
    assert not any(mark in t.text for t in tokens for mark in "ĠÃ▁")


def test_a_beginning_of_the_text(shelf: Callable[..., Path]) -> None:
    plain, adds = str(shelf("llama")), str(shelf("llama", bos=True))
    assert open_model(plain).tokenize("at")[0].text == "at"
    assert any("adds no <s>" in note for note in attend("at", plain).notes)
    assert [t.text for t in open_model(plain, bos=True).tokenize("at")] == ["<s>", "at"]
    (sunk,) = attend("at", plain, bos=True).notes
    assert "goes to the first token, <s>" in sunk
    assert [t.text for t in open_model(adds).tokenize("at")] == ["<s>", "at"]
    assert [t.text for t in open_model(adds, bos=False).tokenize("at")] == ["at"]
    assert [t.text for t in open_model(adds).tokenize("<s>at")] == ["<s>", "<s>", "at"]
    assert any("stands twice" in note for note in attend("<s>at", adds).notes)
    assert [t.text for t in open_model(adds, bos=True).tokenize("<s>at")] == ["<s>", "at"]


def test_a_text_too_long(shelf: Callable[..., Path]) -> None:
    path = str(shelf("bert", bos=True, eos=True))
    with pytest.raises(AttnctlError, match=r"72 tokens, but .* reads 64: shorten it, or give --truncate"):
        open_model(path).tokenize("x" * 70)
    cut = open_model(path, truncate=True).tokenize("x" * 70)
    assert len(cut) == 64 and cut[-1].text == "</s>" and cut[0].text == "<s>"


@pytest.mark.parametrize("case", ["t5, bias", "bart"])
def test_encoder_decoders(shelf: Callable[..., Path], case: str) -> None:
    path = str(shelf(case))
    encoder = attend("at ate", path)
    assert encoder.layers[0].weights.shape == (4, len(encoder.tokens), len(encoder.tokens))
    assert encoder.layers[0].mask is None
    cross = attend("at ate", path, attention="cross", target="ta")
    assert [t.text for t in cross.key_axis] == [t.text for t in encoder.tokens]
    assert [t.text for t in cross.tokens[1:]] == ["t", "a"] and cross.tokens[0].special
    assert cross.layers[1].weights.shape == (4, 3, len(encoder.tokens))
    decoder = attend("at ate", path, attention="decoder", target="ta")
    assert decoder.layers[0].mask.tolist() == np.tri(3, dtype=bool).tolist()
    if case.startswith("t5"):
        assert np.abs(decoder.layers[0].bias).max() > 0.1
    own = attend("at ate", path, attention="cross", generate=3)
    assert 1 < len(own.tokens) <= 4 and any("the model's own" in note for note in own.notes)


def test_layers_without_attention(shelf: Callable[..., Path]) -> None:
    path = str(shelf("lfm2, convolutions"))
    assert [layer.layer for layer in attend("at ate", path).layers] == [1]
    with pytest.raises(UsageError, match="layer 0 of lfm2 has no attention: it is in 1"):
        attend("at ate", path, layer=0)


def test_more_than_the_memory_holds(shelf: Callable[..., Path]) -> None:
    model = open_model(str(shelf("t5, bias")))
    with pytest.raises(
        AttnctlError, match=r"2 layers × 4 heads, 20,000 × 20,000 each, takes 38 GB: choose with --layer"
    ):
        record_trace(model, "x" * 20_000)


def test_generation(shelf: Callable[..., Path]) -> None:
    path = shelf("llama")
    trace = attend("at é", str(path), generate=4)
    prompt = open_model(str(path)).tokenize("at é")
    assert [t.id for t in trace.tokens[: len(prompt)]] == [t.id for t in prompt]
    assert len(trace.tokens) > len(prompt)
    assert all(t.start is None for t in trace.tokens[len(prompt) :])
    (note,) = [note for note in trace.notes if "the model's own" in note]
    new = len(trace.tokens) - len(prompt)
    assert note.startswith(f"The last {new} tokens are the model's own, the likeliest each time: “")
    # greedy: what follows each prefix is what was predicted there
    model = open_model(str(path))
    for at in range(len(prompt), len(trace.tokens)):
        assert model.run(trace.tokens[:at], lambda *_: None).predictions[0].id == trace.tokens[at].id
    with pytest.raises(AttnctlError, match="more than .* reads: 64"):
        attend("at", str(path), generate=64)
    with pytest.raises(UsageError, match="does not continue texts"):
        attend("at", str(shelf("bert", bos=True, eos=True)), generate=3)


def test_a_blank_is_filled(shelf: Callable[..., Path]) -> None:
    folder = shelf("bert", bos=True, eos=True)
    model = zoo.build("bert", vocab_size=len(folders.VOCABULARY) + 10)
    from transformers.models.bert.modeling_bert import BertForMaskedLM

    own = folder.with_name("masked")
    shutil.copytree(folder, own, dirs_exist_ok=True)
    BertForMaskedLM(model.config).save_pretrained(own)
    trace = attend("a<mask>t", str(own))
    assert {p.position for p in trace.predictions} == {2}
    assert trace.model.causal is False and trace.layers[0].mask is None


def test_outside_the_interface(shelf: Callable[..., Path]) -> None:
    trace = attend("at ate", str(shelf("bloom, ALiBi")), layer=1, head=[0, 2])
    assert trace.layers[0].weights.shape == (2, len(trace.tokens), len(trace.tokens))
    assert trace.layers[0].queries is None
    assert any("only the weights can be shown" in note for note in trace.notes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(shelf: Callable[..., Path], dtype: str) -> None:
    trace = attend(TEXT, str(shelf("llama")), dtype=dtype)
    assert trace.model.dtype == dtype
    full = attend(TEXT, str(shelf("llama")))
    np.testing.assert_allclose(trace.layers[0].weights, full.layers[0].weights, atol=0.05)


def test_refusals(shelf: Callable[..., Path], tmp_path: Path) -> None:
    def says(pattern: str, name: Any, error: type[Exception] = AttnctlError, **options: Any) -> None:
        with pytest.raises(error, match=pattern) as caught:
            open_named_model(str(name), **options)
        assert "\n" not in str(caught.value)

    good = shelf("llama")
    for option, value in {"seed": 1, "causal": True, "n_heads": 2, "temperature": 2.0}.items():
        says(f"--{option.replace('_', '-')} does not go with --model", good, UsageError, **{option: value})
    says("--target does not go with --model dot", "dot", UsageError, target="x")
    says("--attention is for encoder-decoders", good, UsageError, attention="cross")
    says("--attention sideways", shelf("bart"), UsageError, attention="sideways")
    says("--dtype int8", good, UsageError, dtype="int8")
    says("--generate 0: it is 1 to", good, UsageError, generate=0)
    says("--target and --generate exclude", shelf("bart"), UsageError, target="a", generate=1)
    says("no model 'gtp2'", "gtp2", UsageError)
    says("cannot read .*no such file", tmp_path / "none.gguf")
    says("holds no config.json", tmp_path)

    broken = tmp_path / "broken"
    shutil.copytree(good, broken)
    (broken / "config.json").write_text("{")
    says("config.json is not JSON", broken)
    settings = json.loads((good / "config.json").read_text())
    (broken / "config.json").write_text(
        json.dumps(settings | {"architectures": ["Strange"], "auto_map": {"AutoModel": "x.Y"}})
    )
    says("is Strange, which transformers .* never runs code", broken)
    (broken / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 3}))
    says("lacks .* of its weights, model.layers.2", broken)
    (broken / "config.json").write_text(json.dumps(settings))
    (broken / "model.safetensors").write_bytes(b"x" * 100)
    says("cannot read broken", broken)
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    says(r"only pytorch_model.bin.*safetensors.*weights_only=True", broken)
    (broken / "pytorch_model.bin").unlink()
    says("holds no weights", broken)
    (tmp_path / "bad.gguf").write_bytes(b"nope")
    says("not a GGUF file", tmp_path / "bad.gguf")


def test_a_folder_without_a_vocabulary_is_refused(shelf: Callable[..., Path], tmp_path: Path) -> None:
    for family in ("gpt2", "bert"):  # what model.save_pretrained writes, and no tokenizer's
        folder = tmp_path / family
        shutil.copytree(shelf(family), folder)
        (folder / "tokenizer.json").unlink()
        with pytest.raises(AttnctlError, match=f"{family} has no vocabulary .*tokenizer.json"):
            open_model(str(folder))


def test_a_tokenizer_much_smaller_than_its_network_is_said(shelf: Callable[..., Path], tmp_path: Path) -> None:
    zoo.build("llama", vocab_size=2000).save_pretrained(tmp_path)
    shutil.copy(shelf("llama") / "tokenizer.json", tmp_path)
    known = len(folders.VOCABULARY) - 2  # its tokenizer has no "Ġwill", "lic"
    assert any(
        f"has {known:,} tokens, its network rows for 2,000" in note for note in attend(TEXT, str(tmp_path)).notes
    )
    assert not any("rows for" in note for note in attend(TEXT, str(shelf("llama"))).notes)


def test_pickled_weights_are_converted_as_it_is_said(shelf: Callable[..., Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = tmp_path / "pickled"
    shutil.copytree(shelf("llama"), folder)
    before = attend("at ate", str(folder)).layers[0].weights
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    torch.save({}, folder / "optimizer.pt")
    with pytest.raises(AttnctlError) as caught:
        open_model(str(folder))
    exec(re.search('python -c "(.*)"$', str(caught.value))[1], {})
    np.testing.assert_array_equal(attend("at ate", str(folder)).layers[0].weights, before)


def test_no_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(AttnctlError, match="owner/name is not on this machine, and HF_HUB_OFFLINE forbids"):
        open_model("owner/name")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for proxy in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    with pytest.raises(AttnctlError, match="cannot be fetched: the hub cannot be reached"):
        open_model("owner/name")
    assert hub.is_checkpoint("owner/name") and not hub.is_checkpoint("nothing")


COMMIT = "0123456789" * 4


def test_of_several_revisions_in_the_cache_main_is_read_and_no_other(
    shelf: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, main = tmp_path / "models--owner--tiny", "f" * 40
    shutil.copytree(shelf("llama"), cache / "snapshots" / COMMIT)
    shutil.copytree(shelf("gpt2"), cache / "snapshots" / main)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(AttnctlError, match="owner/tiny is not whole on this machine"):  # neither is known to be main
        open_model("owner/tiny")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(main)
    assert hub.find_checkpoint("owner/tiny").name == main
    (cache / "snapshots" / main / "model.safetensors").unlink()  # as `attnctl model owner/tiny` leaves it
    assert hub.find_checkpoint("owner/tiny", weights=False).name == main
    with pytest.raises(AttnctlError, match="owner/tiny is not whole on this machine, and HF_HUB_OFFLINE forbids"):
        open_model("owner/tiny")


@pytest.mark.parametrize("lost", ["model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"])
def test_an_interrupted_download_is_not_taken_for_a_whole_one(
    lost: str, shelf: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub._tree_cache import TreeCacheEntry, write_tree_cache
    from safetensors.torch import load_file, save_file

    snapshot = tmp_path / "models--owner--tiny" / "snapshots" / COMMIT
    shutil.copytree(shelf("llama"), snapshot)
    (tmp_path / "models--owner--tiny" / "refs").mkdir()
    (tmp_path / "models--owner--tiny" / "refs" / "main").write_text(COMMIT)
    tensors = load_file(snapshot / "model.safetensors")
    (snapshot / "model.safetensors").unlink()
    parts = {f"model-0000{at + 1}-of-00002.safetensors": list(tensors)[at::2] for at in range(2)}
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, snapshot / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, names in parts.items() for name in names}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    files = sorted(path.name for path in snapshot.iterdir())
    listed = {file: TreeCacheEntry(1, "b", None, None, None) for file in files}
    write_tree_cache(str(tmp_path / "models--owner--tiny"), COMMIT, listed)  # as a download keeps it
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(hub, "_download_checkpoint", lambda *_: pytest.fail("looked at the network"))
        assert attend("at", "owner/tiny").model.name == "tiny"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (snapshot / lost).unlink()
    with pytest.raises(AttnctlError, match="owner/tiny is not whole on this machine"):
        open_model("owner/tiny")


def printed(code: str, *args: str) -> str:
    """What code prints in a process of its own, silent on stderr."""
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_a_process_of_its_own_imports_no_compiler_and_no_other_architecture(shelf: Callable[..., Path]) -> None:
    code = (
        "import sys; from attnctl import light_import; from attnctl.models import attend; light_import.alone = sys.argv[1] == 'alone';"
        "weights = [layer.weights.tolist() for path in sys.argv[2:] for layer in attend('at', path).layers];"
        "compilers = ('torch._dynamo', 'torch.distributed.tensor', 'scipy', 'sympy'); other = ('bert', 'qwen2', 'gemma');"
        "print(weights, *(name in sys.modules for name in (*compilers, *(f'transformers.models.{name}' for name in other))))"
    )
    paths = [str(shelf(case)) for case in ("mixtral", "t5, bias", "llama")]
    lean, whole = (printed(code, how, *paths) for how in ("alone", "in company"))
    assert lean.endswith("] False False False False False False False\n")
    assert lean.rpartition("]")[0] == whole.rpartition("]")[0]


def test_the_quick_listing_is_the_same_list() -> None:
    code = (
        "import hashlib, sys; from attnctl import light_import; from attnctl.models.huggingface.hub import import_extra\n"
        "light_import.alone = sys.argv[1] == 'alone'; listed = import_extra('transformers')\n"
        "names = sorted((key, value) for key, value in listed._class_to_module.items())\n"
        "print(listed.__version__, len(names), hashlib.sha256(repr(names).encode()).hexdigest())"
    )
    lean, whole = (printed(code, how) for how in ("alone", "in company"))
    assert lean == whole and int(lean.split()[1]) > 4000


LOADS = {
    "an operation whose shape is known in Python alone": (
        "    tries.append(light_import.SHAPES in sys.modules)\n"
        "    row = torch.ones(3, device='meta')\n"
        "    return tuple(row.dot(row).shape)\n",
        "() [False, True]\n",
    ),
    "a version that wants the compiler": (
        "    import transformers.utils as utils\n"
        "    tries.append(utils.is_torch_distributed_available())\n"
        "    from torch._dynamo import config\n"
        "    return config.__name__\n",
        "torch._dynamo.config [False, True]\n",
    ),
}


@pytest.mark.parametrize("needs", LOADS)
def test_what_needs_more_than_a_light_import_gets_it(needs: str) -> None:
    body, wanted = LOADS[needs]
    code = (
        "import sys; from attnctl import light_import; from attnctl.models.huggingface.hub import import_extra\n"
        f"light_import.alone = True; torch = import_extra('torch'); tries = []\ndef load():\n{body}print(light_import.import_lightly(load), tries)"
    )
    assert printed(code) == wanted


def test_versions_that_were_not_tested_are_imported_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnctl import light_import

    monkeypatch.setattr(light_import, "version", lambda name: {"transformers": "5.23.1", "torch": "2.13.0+cpu"}[name])
    assert light_import.are_tested()
    for newer in ({"transformers": "5.24.0", "torch": "2.13.0"}, {"transformers": "5.23.0", "torch": "2.14.0"}):
        monkeypatch.setattr(light_import, "version", newer.__getitem__)
        assert not light_import.are_tested()


@pytest.mark.parametrize(("layers", "ran"), [([0], 0), (None, 1)])
def test_without_predictions_nothing_runs_after_the_last_layer(
    shelf: Callable[..., Path], layers: list[int] | None, ran: int
) -> None:
    model: Any = open_model(str(shelf("llama")))
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


def test_a_network_that_fails_is_one_line(shelf: Callable[..., Path]) -> None:
    model: Any = open_model(str(shelf("llama")))
    model.network.model.norm.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(AttnctlError, match=r"llama fails on this text, in test_checkpoint.py:\d+: ZeroDivisionError: "):
        record_trace(model, TEXT)
    with pytest.raises(AttnctlError, match=r"'at' the id 263, but its network has embeddings for 64 ids"):
        attend("at", str(shelf("t5gemma, two halves")))


def test_the_command_line(shelf: Callable[..., Path], run: Callable[..., Any], refused: Callable[..., str]) -> None:
    path = shelf("llama")
    done = run("explain", "at ate", "--model", path, "--layer", "1", "--head", "2", "--json")
    assert done.code == 0
    assert done.json["model"]["kind"] == "checkpoint"
    assert [(part["layer"], part["heads"][0]["head"]) for part in done.json["layers"]] == [(1, 2)]
    assert refused("explain", "at", "--model", path, "--layer", "9", code=2).startswith("no layer 9 in llama")
    assert "does not go with" in refused("explain", "at", "--model", "random", "--bos", code=2)


def test_a_gguf_file_is_dequantised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    gguf = pytest.importorskip("gguf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "tiny.gguf"
    generator = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, 32),
        (writer.add_feed_forward_length, 64),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_vocab_size, len(folders.VOCABULARY)),
        (writer.add_rope_dimension_count, 8),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_freq_base, 10000.0),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
    ):
        add(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(folders.VOCABULARY))
    writer.add_token_types([3 if piece in folders.SPECIAL else 1 for piece in folders.VOCABULARY])
    writer.add_token_merges(["Ġ e", "a t"])
    shapes = {"token_embd": (len(folders.VOCABULARY), 32), "output_norm": (32,)}
    layer = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32), "attn_norm": (32,)}
    layer |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64), "ffn_norm": (32,)}
    for name, shape in (shapes | {f"blk.0.{key}": shape for key, shape in layer.items()}).items():
        array = generator.standard_normal(shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        if len(shape) == 2:
            writer.add_tensor(f"{name}.weight", gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first = attend("at é", str(path))
    assert "dequantising tiny.gguf" in capsys.readouterr().err
    again = attend("at é", str(path))
    assert capsys.readouterr().err == ""
    assert [t.text for t in again.tokens] == ["at", " ", "é₁", "é₂"]
    assert (first.model.name, first.model.n_kv_heads) == ("tiny", 2)
    np.testing.assert_array_equal(first.layers[0].weights, again.layers[0].weights)
    copy = tmp_path / "elsewhere" / "tiny.gguf"  # the same file in another environment
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    attend("at é", str(copy))
    assert capsys.readouterr().err == ""
    copy.write_bytes(path.read_bytes().replace(b"blk.0.attn_k.weight", b"blk.0.attn_x.weight"))
    with pytest.raises(AttnctlError, match="lacks 1 of its weights"):
        open_model(str(copy))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(AttnctlError, match=r"cannot read .*tiny.gguf"):
        open_model(str(path))
    assert not [entry for entry in (tmp_path / "cache" / "attnctl" / "gguf").iterdir() if entry.name.startswith(".")]


@pytest.mark.parametrize(
    ("case", "options", "unknown"),
    [
        ("llama", {}, 0),
        ("t5, bias", {"attention": "cross", "target": "ta"}, 0),
        ("bloom, ALiBi", {}, 2),
        ("llama", {"dtype": "bfloat16"}, 0),
    ],
)
def test_check_finds_nothing_off(shelf: Callable[..., Path], case: str, options: dict[str, Any], unknown: int) -> None:
    findings = check_attention(open_model(str(shelf(case)), **options), "at ate e")
    assert [finding for finding in findings if finding.holds is False] == []
    assert sum(finding.holds is None for finding in findings) == unknown


def test_check_finds_dropout_and_wrong_weights(shelf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from attnctl import attention

    model = open_model(str(shelf("llama")))
    plain = attention.softmax
    monkeypatch.setattr(attention, "softmax", lambda x, *more: plain(x * 1.01, *more))
    with pytest.raises(AttnctlError, match=r"layer 0 of LlamaForCausalLM attends otherwise than by the softmax"):
        record_trace(model, "at ate e")  # found while it runs
    monkeypatch.setattr(attention_interface, "context_disagreement", lambda *_: None)
    marks = {finding.what.split()[0]: finding.holds for finding in check_attention(model, "at ate e")}
    assert marks["weights"] is False and marks["context"] is False and marks["row"] is True
    assert marks["layer"] is False


def test_a_missing_extra_is_named_before_any_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "transformers" else found(name, *a)
    )
    for name in ("gpt2", "nobody/has-this"):
        with pytest.raises(AttnctlError, match=r"checkpoints need transformers: pip install 'attnctl\[hf\]'"):
            open_model(name)


def test_a_target_has_no_place_in_the_source(shelf: Callable[..., Path]) -> None:
    """Its tokens are named by themselves: not by what stands at their places in another text."""
    for kind in ("cross", "decoder"):
        trace = attend("Il était une fois un petit garçon", str(shelf("bart")), attention=kind, target="at ate")
        own = [token for token in trace.tokens if not token.special]
        assert "".join(token.text.strip() for token in own) == "atate" and all(token.start is None for token in own)
        words = by_words(trace)
        assert [token.text for token in words.tokens] == [token.text for token in trace.tokens]
        assert any("stay pieces" in note for note in words.notes)
    source = TextSource(open_model(str(shelf("bart")), attention="cross", target="at ate"), "Il était une fois")
    shown = as_text(Shown(row_forms(source.read(RowReading(2)), top=1))).splitlines()
    assert len(shown[1].split()) == 3, "and stands in no surroundings of the source's"


@pytest.mark.parametrize("off", [None, "0.1"])
def test_a_text_of_a_batch_has_a_target_of_its_own(shelf: Callable[..., Path], off: str | None) -> None:
    folder, own = str(shelf("t5, bias")), {"text": "the cat", "options": {"target": "at the"}}
    found = next(attnctl.batch([own], folder, attention="cross", target="cat", off=off))
    alone = attend("the cat", folder, attention="cross", target="at the", off=off)
    assert found.model == alone.model and found.tokens == alone.tokens
    np.testing.assert_array_equal(found.layers[0].weights, alone.layers[0].weights)
    for case, options, says in (
        ("llama", {}, "a target is for decoder and cross attention, and .* shows self attention"),
        ("t5, bias", {}, "shows encoder attention"),
        ("t5, bias", {"generate": 2}, "a target does not go with generate"),
    ):
        with pytest.raises(AttnctlError, match=says):
            next(attnctl.batch([own], str(shelf(case)), off=off, **options))
