"""Checkpoints of the hub and of its cache: found whole or refused in one line; what a checkpoint is cited by."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub._tree_cache import TreeCacheEntry, write_tree_cache
from safetensors.torch import load_file, save_file

import attnctl
from attnctl.errors import AttnctlError
from attnctl.models import attend, open_model
from attnctl.models.builtin.weights import path_of
from attnctl.models.huggingface import hub, network
from attnctl.trace.model_info import ModelInfo
from tests.conftest import Run
from tests.models.huggingface.conftest import Shelf

COMMIT = "0123456789" * 4


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The hub's cache of owner/tiny, empty, on a machine that is offline."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "models--owner--tiny"


def name_main(cache: Path, commit: str) -> None:
    (cache / "refs").mkdir(exist_ok=True)
    (cache / "refs" / "main").write_text(commit)


def test_no_network_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_missing_extra_is_named_before_any_network(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else found(name))
    for name in ("gpt2", "nobody/has-this"):
        with pytest.raises(AttnctlError, match=r"checkpoints need transformers: pip install 'attnctl\[hf\]'"):
            open_model(name)


def test_of_several_revisions_in_the_cache_main_is_read_and_no_other(shelf: Shelf, cache: Path) -> None:
    main = "f" * 40
    shutil.copytree(shelf("llama"), cache / "snapshots" / COMMIT)
    shutil.copytree(shelf("gpt2"), cache / "snapshots" / main)
    with pytest.raises(AttnctlError, match="owner/tiny is incomplete on this machine"):  # neither is known to be main
        open_model("owner/tiny")
    name_main(cache, main)
    assert hub.find_checkpoint("owner/tiny").name == main
    (cache / "snapshots" / main / "model.safetensors").unlink()  # as `attnctl model owner/tiny` leaves it
    assert hub.find_checkpoint("owner/tiny", weights=False).name == main
    with pytest.raises(AttnctlError, match="owner/tiny is incomplete on this machine, and HF_HUB_OFFLINE forbids"):
        open_model("owner/tiny")


@pytest.mark.parametrize("lost", ["model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"])
def test_an_interrupted_download_is_not_taken_for_a_whole_one(
    lost: str, shelf: Shelf, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Path(shutil.copytree(shelf("llama"), cache / "snapshots" / COMMIT))
    name_main(cache, COMMIT)
    tensors = load_file(snapshot / "model.safetensors")
    (snapshot / "model.safetensors").unlink()
    parts = {f"model-0000{at + 1}-of-00002.safetensors": list(tensors)[at::2] for at in range(2)}
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, snapshot / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, names in parts.items() for name in names}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    listed = {path.name: TreeCacheEntry(1, "b", None, None, None) for path in snapshot.iterdir()}
    write_tree_cache(str(cache), COMMIT, listed)  # as a download keeps it
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with monkeypatch.context() as patch:
        patch.setattr(hub, "_download_checkpoint", lambda *_: pytest.fail("looked at the network"))
        assert attend("at", "owner/tiny").model.name == "tiny"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (snapshot / lost).unlink()
    with pytest.raises(AttnctlError, match="owner/tiny is incomplete on this machine"):
        open_model("owner/tiny")


def test_a_snapshot_is_named_by_its_commit_and_a_folder_by_the_digest_of_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "cached_fact", lambda path, what: tmp_path / "kept" / f"{path.name}.{what}")
    folder = tmp_path / "models--HuggingFaceTB--SmolLM2-135M" / "snapshots" / COMMIT
    assert network.origin_of(folder) == {"source": "HuggingFaceTB/SmolLM2-135M", "revision": COMMIT}
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    told = {"source": "mine", "sha256": hashlib.sha256(b"weights").hexdigest()}
    assert network.origin_of(folder) == told
    assert (tmp_path / "kept" / "model.safetensors.sha256").read_text() == told["sha256"]
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *_: 1 / 0)  # it is not made a second time
        assert network.origin_of(folder) == told
    assert network.origin_of(folder, "minilm")["source"] == "sentence-transformers/all-MiniLM-L6-v2"
    (folder / "more.safetensors").write_bytes(b"x")
    assert network.origin_of(folder) == {"source": "mine"}  # no one file is the weights
    monkeypatch.setattr(network, "cached_fact", lambda path, what: folder / "more.safetensors" / what)
    digest = {"sha256": told["sha256"]}
    assert network.digest_of(folder / "model.safetensors") == digest  # what cannot be kept is said all the same
    monkeypatch.setattr("attnctl.checks.limits.DIGEST_BYTES", 3)
    assert network.digest_of(folder / "model.safetensors") == {}


def test_the_line_to_cite() -> None:
    info = ModelInfo("m", "checkpoint", source="a/b", revision="12fd25f77366fa6b", quantised="Q8_0, dequantised")
    assert info.citation == f"attnctl {attnctl.__version__}, m: a/b, Q8_0, dequantised, revision 12fd25f77366"
    assert ModelInfo("random", "random").citation == f"attnctl {attnctl.__version__}, random"


def test_json_says_version_and_source(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weights = Path(shutil.copy(path_of("demo"), tmp_path / "w.safetensors"))
    told = run("explain", "Alice will eat", "--model", weights, "--json").json
    assert told["attnctl"] == attnctl.__version__
    assert told["model"]["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    bundled = run("explain", "Alice will eat", "--json").json["model"]
    assert bundled["source"] == f"bundled with attnctl {attnctl.__version__}" and "sha256" not in bundled
