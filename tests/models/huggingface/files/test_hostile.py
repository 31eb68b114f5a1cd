"""Checkpoint folders that are damaged, or were made to harm: one line each, and never a number made of random weights."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from safetensors.numpy import load_file, save_file

from attnctl.api import ablate, heads
from attnctl.errors import AttnctlError
from attnctl.models import attend
from tests.tools import folders


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write(tmp_path_factory.mktemp("sound") / "llama", "llama")


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "llama")
    return tmp_path / "llama"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def reweigh(folder: Path, alter: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    alter(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "lost", ["model.embed_tokens.weight", "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"]
)
def test_weights_that_are_lacking_are_never_made_up(folder: Path, lost: str) -> None:
    reweigh(folder, lambda tensors: tensors.pop(lost))
    with pytest.raises(AttnctlError, match=rf"llama lacks 1 of its weights, {lost} first: its file is not whole"):
        attend("at", str(folder))


def test_of_a_head_that_is_lacking_or_no_number_nothing_is_predicted(folder: Path) -> None:
    whole = attend("at ate", str(folder))
    reweigh(folder, lambda tensors: tensors["lm_head.weight"].fill(np.nan))
    none = attend("at ate", str(folder))
    reweigh(folder, lambda tensors: tensors.pop("lm_head.weight"))
    lacking = attend("at ate", str(folder))
    assert whole.predictions and none.predictions == lacking.predictions == ()
    np.testing.assert_array_equal(lacking.layers[1].weights, whole.layers[1].weights)


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod."])
def test_weights_under_the_names_of_a_wrapper(folder: Path, wrapper: str) -> None:
    def rename(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[f"{wrapper}{name}"] = tensors.pop(name)

    reweigh(folder, rename)
    with pytest.raises(AttnctlError, match=rf"otherwise: {wrapper}model.embed_tokens.weight for model.embed_tokens"):
        attend("at", str(folder))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_layer_whose_numbers_are_none_is_shown_by_no_command(folder: Path, value: float) -> None:
    reweigh(folder, lambda tensors: tensors["model.layers.1.self_attn.q_proj.weight"].fill(value))
    commands: list[Callable[[], object]] = [
        lambda: attend("at ate", str(folder)),
        lambda: heads("at ate", str(folder)),
        lambda: ablate("at ate", str(folder)),
    ]
    for command in commands:
        with pytest.raises(AttnctlError, match="the queries of layer 1 of llama are no finite numbers"):
            command()


def test_an_adapter_is_no_model(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(AttnctlError, match="holds a PEFT adapter, .* merge it"):
        attend("at", str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(AttnctlError, match="holds a PEFT adapter, .* merge it"):
        attend("at", str(folder))


def test_code_of_its_own_under_a_known_class(folder: Path) -> None:
    change(folder / "config.json", auto_map={"AutoModel": "own.Own"})
    assert attend("at", str(folder)).layers, "transformers knows the architecture too"
    change(folder / "config.json", model_type="llama-of-ours")
    with pytest.raises(AttnctlError, match="llama is llama-of-ours, which transformers .* never runs code"):
        attend("at", str(folder))


def test_a_tokenizer_that_needs_what_is_not_installed(folder: Path) -> None:
    """In a process of attnctl's own, where torch is imported in part."""
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"no vocabulary")
    done = subprocess.run(
        [sys.executable, "-m", "attnctl", "explain", "at", "--model", str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 1 and "has no tokenizer that can be read" in done.stderr
    assert "partially initialized" not in done.stderr


def test_a_tokenizer_without_spans(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    with pytest.raises(AttnctlError, match="the tokenizer of llama is of type ByT5Tokenizer, which tells no spans"):
        attend("at", str(folder))


def test_a_tensor_of_another_shape(folder: Path) -> None:
    reweigh(folder, lambda tensors: tensors.update({"model.norm.weight": np.ones(7, np.float32)}))
    with pytest.raises(AttnctlError, match=r"model.norm.weight is \(7,\) in its file and \(32,\) by its config.json"):
        attend("at", str(folder))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_hidden_layers": 10**6}, "num_hidden_layers 1000000, its files hold"),
        ({"num_hidden_layers": 0}, "has no layers, by its config.json"),
        ({"num_hidden_layers": -1}, "has no layers, by its config.json"),
        ({"architectures": "LlamaForCausalLM"}, "which is no list of names"),
        ({"architectures": ["logging"]}, "is logging, which transformers .* does not know"),
        ({"architectures": ["AutoModel"]}, "is AutoModel, which transformers .* does not know"),
        ({"architectures": [""]}, "which is no list of names"),
        ({"hidden_size": 48}, "cannot read llama: "),
        ({"hidden_size": 0}, "cannot read llama: lm_head.weight is "),  # torch warns of it on several lines
    ],
)
def test_settings_that_cannot_be(folder: Path, settings: dict[str, Any], said: str) -> None:
    change(folder / "config.json", **settings)
    with pytest.raises(AttnctlError, match=said) as caught:
        attend("at", str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"vocab_size": 1 << 23}, r"lm_head.weight is \(274, 32\) in its file and \(8388608, 32\) by its config.json"),
        ({"intermediate_size": 1 << 23}, r"down_proj.weight is \(32, 48\) in its file and \(32, 8388608\) by its"),
        ({"hidden_size": 1 << 23}, r"\(274, 8388608\) by its config.json"),
    ],
)
def test_sizes_are_held_against_the_file_before_memory_is_taken(
    folder: Path, settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(folder / "config.json", **settings)
    monkeypatch.setattr("transformers.LlamaForCausalLM.from_pretrained", lambda *_, **__: pytest.fail("was loaded"))
    with pytest.raises(AttnctlError, match=said):
        attend("at", str(folder))


def test_numbers_that_no_tensor_has_the_name_of_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folders.write(tmp_path / "mixtral", "mixtral")
    assert attend("at", str(folder)).layers  # its experts lie one by one in its file
    change(folder / "config.json", num_local_experts=1 << 23)
    monkeypatch.setattr("transformers.MixtralForCausalLM.from_pretrained", lambda *_, **__: pytest.fail("was loaded"))
    with pytest.raises(AttnctlError, match=r"mixtral: config.json asks for 77,\S+ numbers that its files, with 60,960"):
        attend("at", str(folder))


def test_settings_of_another_type_do_no_harm(folder: Path) -> None:
    change(folder / "tokenizer_config.json", bos_token=5)
    assert attend("at", str(folder)).layers
    change(folder / "config.json", model_type=None)
    assert attend("at", str(folder)).layers


@pytest.mark.parametrize("name", ["../other.safetensors", "pytorch_model.bin", "/etc/passwd", 5])
def test_an_index_names_safetensors_of_its_own_folder(folder: Path, name: Any) -> None:
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    files = dict.fromkeys(load_file(folder / "part.safetensors"), name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    with pytest.raises(AttnctlError, match="attnctl reads safetensors files of the same folder"):
        attend("at", str(folder))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(files, "part.safetensors")})
    )
    assert attend("at", str(folder)).layers


@pytest.mark.parametrize(
    "part",
    [
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}},
        {"model": {"type": "WordLevel", "vocab": {"at": 0, "be": 1, "on": 2}, "unk_token": "nowhere"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    ],
)
def test_a_tokenizer_that_fails_or_panics(folder: Path, part: dict[str, Any], capfd: Any) -> None:
    change(folder / "tokenizer.json", **part)
    with pytest.raises(
        AttnctlError, match=r"(the tokenizer of llama fails on this text|no tokenizer that can be read) \("
    ):
        attend("a" * 40 + "b", str(folder))
