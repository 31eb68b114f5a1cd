"""Models of Ollama: found in its store by their names, read in place, and named in one line where there are no weights."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnctl.errors import AttnctlError, UsageError
from attnctl.models import attend
from attnctl.models.gguf.ollama import completions, find_model, installed_names, parse_name
from tests.conftest import Run, process
from tests.tools import tiny_gguf

TYPE = "application/vnd.ollama.image."


def blob(store: Path, data: bytes) -> dict[str, Any]:
    """Write a blob, and return its digest and size as a manifest has them."""
    digest = hashlib.sha256(data).hexdigest()
    path = store / "blobs" / f"sha256-{digest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def pull(store: Path, place: str, layers: dict[str, bytes], config: dict[str, str] | None = None) -> None:
    """Write a model into a store, as `ollama pull` does."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            **blob(store, json.dumps(config or {}).encode()),
        },
        "layers": [{"mediaType": TYPE + kind, **blob(store, data)} for kind, data in layers.items()],
    }
    path = store / "manifests" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "store"
    weights = tiny_gguf.write_llama(tmp_path / "tiny.gguf").read_bytes()
    pull(folder, "registry.ollama.ai/library/llama3.2/latest", {"model": weights, "template": b"{{ .Prompt }}"})
    pull(folder, "registry.ollama.ai/bob/tuned/v1", {"model": weights, "adapter": b"GGUF"})
    pull(folder, "hf.co/ann/Some-GGUF/Q4_K_M", {"model": weights})
    pull(folder, "registry.ollama.ai/library/gpt-oss/120b-cloud", {}, {"remote_host": "https://ollama.com:443"})
    pull(folder, "registry.ollama.ai/library/mlx/latest", {"tensor": b"a"})
    pull(folder, "registry.ollama.ai/library/old/latest", {"model": b"ggjt"})
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    return folder


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("llama3.2", ("registry.ollama.ai", "library", "llama3.2", "latest")),
        ("llama3.2:3b", ("registry.ollama.ai", "library", "llama3.2", "3b")),
        ("bob/tuned", ("registry.ollama.ai", "bob", "tuned", "latest")),
        ("hf.co/ann/Some-GGUF:Q4_K_M", ("hf.co", "ann", "Some-GGUF", "Q4_K_M")),
        ("localhost:5000/ann/x", ("localhost:5000", "ann", "x", "latest")),
        ("https://localhost:5000/ann/x:1", ("localhost:5000", "ann", "x", "1")),
    ],
)
def test_a_name_has_the_defaults_of_ollama(name: str, parts: tuple[str, ...]) -> None:
    """As types/model/name_test.go of Ollama has them."""
    assert parse_name(name) == parts


@pytest.mark.parametrize("name", ["", "a b", "../../etc/x", "/x", "a/b/c/d", "x:", "-x"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no name of a model of Ollama"):
        parse_name(name)


def test_a_model_is_read_in_its_store(store: Path, tmp_path: Path) -> None:
    """Its file's own path gives the same weights; nothing is written into the store."""
    before = sorted(path.stat().st_mtime_ns for path in store.rglob("*"))
    trace = attend("the rain", "ollama:llama3.2")
    np.testing.assert_array_equal(
        trace.layers[0].weights, attend("the rain", str(tmp_path / "tiny.gguf")).layers[0].weights
    )
    assert (trace.model.name, trace.model.source) == ("llama3.2", "ollama:llama3.2")
    assert before == sorted(path.stat().st_mtime_ns for path in store.rglob("*"))
    blob_path = find_model("LLAMA3.2").path  # Ollama's names do not differ by case alone
    np.testing.assert_array_equal(attend("the rain", str(blob_path)).layers[0].weights, trace.layers[0].weights)


def test_what_has_no_weights_here_is_named(store: Path, run: Run) -> None:
    reasons = {
        "bob/tuned:v1": "an adapter (LoRA)",
        "gpt-oss:120b-cloud": "runs on https://ollama.com:443",
        "mlx": "single tensors",
        "old": "does not begin with GGUF",
        "none": "it has: hf.co/ann/Some-GGUF:Q4_K_M, bob/tuned:v1, gpt-oss:120b-cloud, llama3.2, mlx, old",
    }
    for name, reason in reasons.items():
        refused = run("explain", "a b", "--model", f"ollama:{name}")
        assert refused.code in (1, 2) and reason in refused.err and refused.err.count("\n") == 1, name
    model = find_model("llama3.2")
    model.path.unlink()
    with pytest.raises(AttnctlError, match="ollama pull llama3.2"):
        find_model("llama3.2")


def test_a_damaged_manifest_is_one_line(store: Path) -> None:
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "llama3.2" / "latest"
    for data in ("{", "[]", '{"layers": [7, {"mediaType": 3}]}', manifest.read_text().replace("sha256:", "sha1:", 2)):
        manifest.write_text(data)
        with pytest.raises(AttnctlError):
            find_model("llama3.2")


def test_names_are_completed(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ["ollama:hf.co/ann/Some-GGUF:Q4_K_M", "ollama:llama3.2", "ollama:bob/tuned:v1"]
    assert set(names) <= set(completions())
    line = ["attnctl", "explain", "x", "--model"]
    zsh = {"_ATTNCTL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": " ".join([*line, "ollama:l"])}
    assert b"ollama\\\\:llama3.2" in process(env=os.environ | zsh).stdout
    words = {"COMP_WORDS": "\n".join([*line, "ollama", ":", "bob/tuned", ":", "v"]), "COMP_CWORD": "8"}
    # bash cuts words at colons, and replaces what follows the last one
    assert process(env=os.environ | words | {"_ATTNCTL_COMPLETE": "complete_bash"}).stdout == b"v1\n"
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert installed_names() == []
    with pytest.raises(AttnctlError, match="no store of Ollama"):
        find_model("llama3.2")


def test_the_store_of_a_user_is_found_without_a_variable(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ollama").mkdir()
    store.rename(tmp_path / ".ollama" / "models")
    assert find_model("llama3.2").path.is_relative_to(tmp_path / ".ollama" / "models" / "blobs")


def test_a_note_says_that_the_bare_text_is_read(store: Path, tmp_path: Path, run: Run) -> None:
    """Not for a text in the model's template, nor for the same file by its path."""
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps([{"role": "user", "content": "the rain"}]))
    words = "ollama run puts a text into a template"
    bare = json.loads(run("explain", "the rain", "--model", "ollama:llama3.2", "--json").out)
    assert [words in note for note in bare["notes"]].count(True) == 1
    for arguments in (
        ("--chat", str(chat), "--model", "ollama:llama3.2"),
        ("the rain", "--model", str(tmp_path / "tiny.gguf")),
    ):
        document = json.loads(run("explain", *arguments, "--json").out)
        assert not any(words in str(note) for note in document["notes"])


def test_a_name_in_the_wrong_place_says_where_it_belongs(store: Path, run: Run) -> None:
    assert "did you mean ollama:llama3.2?" in run("explain", "a b", "--model", "llama3.2").err
    assert "--model ollama:llama3.2" in run("explain", "ollama:llama3.2").err
    assert run("explain", "ollama: it runs", "--model", "random").code == 0
