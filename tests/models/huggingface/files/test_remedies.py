"""What a checkpoint's folder lacks is said with the remedy that helps."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from tests.conftest import Refused, Run
from tests.models.huggingface.conftest import Shelf


@pytest.mark.parametrize("weights", ["tf_model.h5", "flax_model.msgpack"])
def test_weights_of_other_libraries_name_the_version_that_reads_them(
    weights: str, shelf: Shelf, refused: Refused, tmp_path: Path
) -> None:
    shutil.copytree(shelf("llama"), tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / weights)
    line = refused("heatmap", "a b", "--model", str(tmp_path / "m"))
    assert "transformers reads before version 5 only" in line and weights in line


def test_a_part_of_a_gguf_file_is_said_to_be_one(refused: Refused, tmp_path: Path) -> None:
    part = tmp_path / "m-00001-of-00002.gguf"
    part.write_bytes(b"GGUF" + bytes(100))
    assert "a part of a GGUF file in 2 parts: m-00002-of-00002.gguf is not beside it" in refused(
        "heatmap", "a b", "--model", str(part)
    )


def test_a_tokenizer_of_sentencepiece_names_it(
    shelf: Shelf, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for tiktoken, which does not help."""
    shutil.copytree(shelf("llama"), tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").rename(tmp_path / "m" / "tokenizer.model")
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name == "sentencepiece" else real(name))
    line = refused("heatmap", "a b", "--model", str(tmp_path / "m"))
    assert "tokenizer.model" in line and "pip install sentencepiece" in line and "tiktoken" not in line


def test_sentencepiece_needs_protobuf_too(
    shelf: Shelf, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sentencepiece alone, transformers asks for tiktoken."""
    shutil.copytree(shelf("llama"), tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").rename(tmp_path / "m" / "tokenizer.model")
    real = importlib.util.find_spec
    without = ("google.protobuf", "google")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name in without else real(name))
    line = refused("heatmap", "a b", "--model", str(tmp_path / "m"))
    assert "tokenizer.model needs protobuf: pip install protobuf" in line and "tiktoken" not in line


def test_the_printed_command_converts_weights_that_were_saved_on_a_gpu(
    shelf: Shelf, refused: Refused, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(shelf("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    with monkeypatch.context() as patched:  # the place that torch.save notes for each tensor
        patched.setattr("torch.serialization.location_tag", lambda storage: "cuda:0")
        torch.save(weights, folder / "pytorch_model.bin")
    command = refused("heatmap", "a b", "--model", str(folder)).partition("Convert it once: python ")[2]
    subprocess.run([sys.executable, *shlex.split(command)], check=True)
    assert run("heatmap", "a b", "-m", str(folder)).out == run("heatmap", "a b", "-m", shelf("llama")).out


def test_a_checkpoint_reads_another_tokenizer(shelf: Shelf, run: Run, refused: Refused, tmp_path: Path) -> None:
    """Its vocabulary alone says nothing of how a text is split, as for SMILES."""
    folder = tmp_path / "m"
    shutil.copytree(shelf("albert, one layer shared"), folder)
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    (folder / "vocab.txt").write_text("[UNK]\nC\nO\n")
    line = refused("align", "at >> eat", "--model", str(folder))
    assert "its vocab.txt does not say how a text is split" in line and "--tokenizer" in line
    other = ("--model", str(folder), "--tokenizer", str(tmp_path / "tokenizer.json"))
    for command in (("align", "at >> eat"), ("heatmap", "at eat")):
        right = run(*command, "--model", shelf("albert, one layer shared"))
        found = run(*command, *other)
        assert found.code == right.code == 0 and found.out[-300:] == right.out[-300:]
    assert "a checkpoint reads a tokenizer.json" in refused("heatmap", "at", *other[:3], "words", code=2)


def test_align_says_what_was_read_as_the_unknown_token(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(shelf("bert"), folder)
    words = Tokenizer(WordLevel({"<pad>": 0, "<s>": 1, "[UNK]": 2, "CC": 3, ">>": 4, "O": 5}, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    printed = [run("align", text, "--model", str(folder)).err for text in ("CC [O:1] >> O CC", "CC O >> O CC")]
    assert "unknown word (†): [O:1]" in printed[0] and "†" not in printed[1]


def test_a_folder_of_sentence_transformers_names_its_transformer(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    shutil.copytree(shelf("bert"), tmp_path / "m" / "0_Transformer")
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "m" / "modules.json").write_text(json.dumps(modules))
    told = [run("heatmap", "at eat", "--quiet", "-m", str(one)) for one in (tmp_path / "m", shelf("bert"))]
    assert told[0].code == 0 and told[0].out == told[1].out
