"""Which files make a GGUF model: any name, all parts of a split file, Ollama's own layout; what is no model is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.models import attend, open_model
from attnctl.models.gguf.files import gguf_parts
from tests.conftest import Run
from tests.tools import tiny_gguf
from tests.tools.tiny_gguf import TEXT

LAYOUTS = np.load(Path(__file__).parent / "llamacpp_layouts.npz")


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss"])
@pytest.mark.parametrize("ollama", [False, True])
def test_ollamas_own_layout_is_read_as_llama_cpps(family: str, ollama: bool, tmp_path: Path) -> None:
    """The right weights are llama.cpp's, of the file in its own layout; Gemma's gelu comes from a table there."""
    write = {"gemma3": tiny_gguf.write_gemma3, "gpt_oss": tiny_gguf.write_gpt_oss}[family]
    trace = attend(TEXT, str(write(tmp_path / "tiny.gguf", ollama=ollama)))
    assert [token.id for token in trace.tokens] == LAYOUTS[f"{family}_ids"].tolist()
    weights = np.stack([np.asarray(layer.weights) for layer in trace.layers])
    tolerance = 4e-3 if family == "gemma3" else 1e-4
    np.testing.assert_allclose(weights, LAYOUTS[f"{family}_weights"], atol=tolerance, rtol=0)
    assert any("reads pictures" in note for note in trace.notes) == (ollama and family == "gemma3")


def test_a_split_file_is_opened_whole_from_any_part(tmp_path: Path, run: Run) -> None:
    whole = tiny_gguf.write_llama(tmp_path / "whole.gguf")
    tiny_gguf.write_llama(tmp_path / "tiny.gguf", split_max_tensors=8)
    parts = sorted(tmp_path.glob("tiny-*.gguf"))
    assert [path.name for path in parts] == [f"tiny-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    right = attend("the rain", str(whole)).layers[1].weights
    for part in parts:
        assert gguf_parts(part) == tuple(parts)
        np.testing.assert_array_equal(attend("the rain", str(part)).layers[1].weights, right)
    folder = tmp_path / "folder"  # as LM Studio and llama.cpp keep them
    folder.mkdir()
    for part in parts:
        part.rename(folder / part.name)
    (folder / "mmproj-F16.gguf").write_bytes(b"GGUF")
    np.testing.assert_array_equal(attend("the rain", str(folder)).layers[1].weights, right)
    (folder / parts[1].name).rename(tmp_path / "part.gguf")
    refused = run("explain", "a b", "--model", folder / parts[0].name)
    assert refused.code == 1 and "tiny-00002-of-00003.gguf is not beside it" in refused.err
    refused = run("explain", "a b", "--model", tmp_path / "part.gguf")
    assert refused.code == 1 and "is part 2 of 3" in refused.err and "-00002-of-00003.gguf" in refused.err


def test_a_file_of_any_name_is_read_if_it_begins_with_gguf(tmp_path: Path, run: Run) -> None:
    plain = tiny_gguf.write_llama(tmp_path / "sha256-0123")
    assert json.loads(run("explain", "the rain", "--model", plain, "--json").out)["model"]["name"] == "sha256-0123"
    told = run("explain", plain)
    assert told.code == 2 and "holds a model's weights" in told.err
    (tmp_path / "text").write_text("hello")
    assert "no model" in run("explain", "a b", "--model", tmp_path / "text").err


@pytest.mark.parametrize(
    ("kind", "says"),
    [("mmproj", "reads pictures or sounds"), ("adapter", "an adapter (LoRA)"), ("imatrix", "an importance matrix")],
)
def test_what_only_belongs_to_a_model_is_named(kind: str, says: str, tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    writer = package.GGUFWriter(tmp_path / "other.gguf", "clip" if kind == "mmproj" else "llama")
    writer.add_type(kind)
    writer.add_tensor("a", np.ones((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(AttnctlError) as refused:
        open_model(str(tmp_path / "other.gguf"))
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_an_early_llama_3_of_ollama_has_its_rules_for_words() -> None:
    """Held to Ollama's own rule: a file with <|eot_id|> at 128,009 and no name of rules is Llama 3."""
    from attnctl.models.gguf.header import Metadata
    from attnctl.models.gguf.ollama_layout import CHANGES, RenamedMetadata, _Draft

    class Header(RenamedMetadata):
        def array(self, name: str) -> tuple[str, ...]:
            return (*["x"] * 128_009, "<|eot_id|>", "x")

    for pre, becomes in (("default", "llama-bpe"), ("smaug-bpe", "smaug-bpe")):
        header = Header(
            Path("x"), {"general.architecture": "llama", "tokenizer.ggml.pre": pre}, {"tokenizer.ggml.tokens": 128_256}
        )
        CHANGES["llama"](_Draft(header, {}))
        assert header.entries["tokenizer.ggml.pre"] == becomes
        assert header.entries["tokenizer.ggml.eos_token_id"] == 128_009
    assert issubclass(RenamedMetadata, Metadata)
