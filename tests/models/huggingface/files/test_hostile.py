"""Checkpoint folders that are damaged, or were made to harm: one line each, and never a number made of random weights."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from attnctl import ablate, heads
from attnctl.errors import AttnctlError
from attnctl.models import attend, open_model
from tests.models.huggingface.conftest import Shelf
from tests.tools import architectures as zoo
from tests.tools import folders

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def sound(shelf: Shelf) -> str:
    assert attend("a" * 40 + "b", shelf("llama")).layers
    return shelf("llama")


@pytest.fixture
def folder(sound: str, tmp_path: Path) -> Path:
    """A sound checkpoint of one's own."""
    return Path(shutil.copytree(sound, tmp_path / "llama"))


def settings(file: str = "config.json", /, **values: Any) -> Damage:
    """Change what a file of JSON says."""

    def damage(folder: Path) -> None:
        (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | values))

    return damage


def weights(alter: Callable[[dict[str, Any]], object]) -> Damage:
    """Change the weights by name."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        alter(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def without(name: str) -> Damage:
    return weights(lambda tensors: tensors.pop(name))


def filled(name: str, value: float) -> Damage:
    return weights(lambda tensors: tensors[name].fill(value))


def renamed(tensors: dict[str, Any]) -> None:
    for name in list(tensors):
        tensors[f"module.{name}"] = tensors.pop(name)


def files(**contents: str | bytes | None) -> Damage:
    """Write files, two underscores in a name for its dot, and take those away that are None."""

    def damage(folder: Path) -> None:
        for name, content in contents.items():
            path = folder / name.replace("__", ".")
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def index(name: Any) -> Damage:
    """Weights in a part of their own, where an index says that they are in the file of that name."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "part.safetensors")
        files = dict.fromkeys(load_file(folder / "part.safetensors"), name)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))

    return damage


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


QUERIES = "model.layers.1.self_attn.q_proj.weight"
NO_TOKENIZER = r"(the tokenizer of llama fails on this text|no tokenizer that can be read) \("
REFUSED: list[tuple[Damage, str]] = [
    (without(QUERIES), f"llama lacks 1 of its weights, {QUERIES} first: its file is incomplete"),
    (weights(renamed), r"other names for its weights \(module.model.embed_tokens.weight for model.embed_tokens"),
    (filled(QUERIES, np.nan), "the queries of layer 1 of llama are not finite numbers"),
    (weights(lambda t: t.update({"model.norm.weight": np.ones(7, np.float32)})), r"is \(7,\) in its file and \(32,\)"),
    (files(model__safetensors=b"x" * 100), "cannot read llama"),
    (files(model__safetensors=None), "holds no weights"),
    (pickled, r"only pytorch_model.bin.*safetensors.*weights_only=True"),
    (files(adapter_config__json="{}", config__json=None), "holds a PEFT adapter, .* merge it"),
    (files(config__json=None), "holds no config.json"),
    (files(config__json="{"), "config.json is not JSON"),
    (settings(model_type="llama-of-ours", auto_map={"AutoModel": "own.Own"}), "is llama-of-ours, .* never runs code"),
    (settings(architectures=["Strange"], auto_map={"AutoModel": "x.Y"}), "is Strange, .* never runs code"),
    (settings(architectures="LlamaForCausalLM"), "which is not a list of names"),
    (settings(architectures=["logging"]), "is logging, which transformers .* does not know"),
    (settings(architectures=["AutoModel"]), "is AutoModel, which transformers .* does not know"),
    (settings(num_hidden_layers=3), "lacks .* of its weights, model.layers.2"),
    (settings(num_hidden_layers=10**6), "num_hidden_layers 1000000, its files hold"),
    (settings(num_hidden_layers=0), "has no layers, by its config.json"),
    (settings(hidden_size=48), "cannot read llama: "),
    (settings(hidden_size=0), "cannot read llama: lm_head.weight is "),  # torch warns of it on several lines
    (index("../other.safetensors"), "attnctl reads safetensors files of the same folder"),
    (index(5), "attnctl reads safetensors files of the same folder"),
    (settings("tokenizer.json", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), NO_TOKENIZER),
    (settings("tokenizer.json", model={"type": "WordLevel", "vocab": {"at": 0}, "unk_token": "nowhere"}), NO_TOKENIZER),
]


@pytest.mark.parametrize(("damage", "said"), REFUSED)
def test_a_damaged_folder_is_refused_in_one_line(folder: Path, damage: Damage, said: str, capfd: Any) -> None:
    damage(folder)
    for command in (attend, heads, ablate):
        with pytest.raises(AttnctlError, match=said) as caught:
            command("a" * 40 + "b", str(folder))
        assert "\n" not in str(caught.value)


READ: list[Damage] = [
    settings(auto_map={"AutoModel": "own.Own"}),  # code of its own beside a class that transformers knows too
    settings("tokenizer_config.json", bos_token=5),
    settings(model_type=None),
    index("part.safetensors"),
]


@pytest.mark.parametrize("change", READ)
def test_what_does_no_harm_is_read(folder: Path, change: Damage) -> None:
    change(folder)
    assert attend("at", str(folder)).layers


def test_of_a_head_that_is_lacking_or_no_number_nothing_is_predicted(folder: Path) -> None:
    whole = attend("at ate", str(folder))
    filled("lm_head.weight", np.nan)(folder)
    none = attend("at ate", str(folder))
    without("lm_head.weight")(folder)
    lacking = attend("at ate", str(folder))
    assert whole.predictions and none.predictions == lacking.predictions == ()
    np.testing.assert_array_equal(lacking.layers[1].weights, whole.layers[1].weights)


def test_what_is_saved_without_a_tokenizer_has_no_vocabulary(shelf: Shelf, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(shelf("gpt2"), tmp_path / "gpt2"))
    files(tokenizer__json=None)(folder)
    with pytest.raises(AttnctlError, match="gpt2 has no vocabulary .*tokenizer.json"):
        open_model(str(folder))


def test_a_tokenizer_that_needs_what_is_not_installed(folder: Path) -> None:
    """In a process of attnctl's own, where torch is imported in part."""
    files(tokenizer__json=None, tokenizer__model="no vocabulary")(folder)
    command = [sys.executable, "-m", "attnctl", "explain", "at", "--model", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "has no tokenizer that can be read" in done.stderr
    assert "partially initialized" not in done.stderr


@pytest.mark.parametrize(
    ("case", "sizes", "said"),
    [
        (
            "llama",
            {"intermediate_size": 96},
            r"down_proj.weight is \(32, 48\) in its file and \(32, 96\) by its config.json",
        ),
        # experts lie one by one in its file, and no tensor has the name of all
        ("mixtral", {"num_local_experts": 64}, r"cannot read mixtral: |lacks \d+ of its weights"),
    ],
)
def test_sizes_that_differ_from_the_file_are_said_in_one_line(
    shelf: Shelf, tmp_path: Path, case: str, sizes: dict[str, Any], said: str
) -> None:
    folder = Path(shutil.copytree(shelf(case), tmp_path / case))
    assert attend("at", str(folder)).layers
    settings(**sizes)(folder)
    with pytest.raises(AttnctlError, match=said) as refused:
        attend("at", str(folder))
    assert "\n" not in str(refused.value)


def test_a_tokenizer_of_another_network_is_said(folder: Path, shelf: Shelf) -> None:
    """Much smaller than its network: told. With more ids than the network has rows: refused."""
    assert not any("rows for" in note for note in attend("at", str(folder)).notes)
    zoo.build("llama", vocab_size=2000).save_pretrained(folder)
    known = len(folders.VOCABULARY) - 2  # its tokenizer has no "Ġwill", "lic"
    said = f"has {known:,} tokens, its network rows for 2,000"
    assert any(said in note for note in attend("at", str(folder)).notes)
    with pytest.raises(AttnctlError, match=r"'at' the id 263, but its network has embeddings for 64 ids"):
        attend("at", shelf("t5gemma, two halves"))


def test_pickled_weights_are_converted_as_it_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder.rename(folder.with_name('it\'s [a];$(touch stolen) "folder"'))
    before = attend("at ate", str(folder)).layers[0].weights
    tensors = {name: torch.from_numpy(array) for name, array in load_file(folder / "model.safetensors").items()}
    torch.save(tensors, folder / "pytorch_model.bin")
    torch.save({}, folder / "optimizer.pt")
    files(model__safetensors=None)(folder)
    with pytest.raises(AttnctlError) as caught:
        open_model(str(folder))
    python, option, code, *words = shlex.split(str(caught.value).partition("Convert it once: ")[2])
    assert (python, option, words) == ("python", "-c", [str(folder)])
    monkeypatch.setattr(sys, "argv", [option, *words])
    exec(code, {"__name__": "__main__"})  # here, where torch is imported
    np.testing.assert_array_equal(attend("at ate", str(folder)).layers[0].weights, before)
