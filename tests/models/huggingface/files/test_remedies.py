"""What a checkpoint's folder lacks is said with the remedy that helps."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

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


def test_a_folder_of_sentence_transformers_names_its_transformer(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    shutil.copytree(shelf("bert"), tmp_path / "m" / "0_Transformer")
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "m" / "modules.json").write_text(json.dumps(modules))
    told = [run("heatmap", "at eat", "--quiet", "-m", str(one)) for one in (tmp_path / "m", shelf("bert"))]
    assert told[0].code == 0 and told[0].out == told[1].out
