"""A GGUF file: dequantised once, read from the cache afterwards; what is damaged is made again, and takes nothing else away."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.models import attend, open_model
from attnctl.models.huggingface import gguf
from attnctl.runtime.files import lock_file
from tests.tools import folders

VOCABULARY = list(folders.VOCABULARY)
FACTS = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64, "head_count": 4}
FACTS |= {"head_count_kv": 2, "vocab_size": len(VOCABULARY), "rope_dimension_count": 8, "layer_norm_rms_eps": 1e-5}
FACTS |= {"rope_freq_base": 10000.0, "bos_token_id": 1, "eos_token_id": 2, "file_type": 7}
SHAPES: dict[str, tuple[int, ...]] = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32)}
SHAPES |= {"attn_output": (32, 32), "ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
SHAPES |= {"attn_norm": (32,), "ffn_norm": (32,)}


def write_gguf(path: Path) -> None:
    """A random Llama of one layer, its matrices in 8 bits."""
    package = pytest.importorskip("gguf")
    generator, writer = np.random.default_rng(0), package.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    for name, value in FACTS.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3 if piece in folders.SPECIAL else 1 for piece in VOCABULARY])
    writer.add_token_merges(["Ġ e", "a t"])
    shapes = {f"blk.0.{name}": shape for name, shape in SHAPES.items()}
    for name, shape in {"token_embd": (len(VOCABULARY), 32), "output_norm": (32,), **shapes}.items():
        array, kind = generator.standard_normal(shape).astype(np.float32), package.GGMLQuantizationType.Q8_0
        if len(shape) == 2:
            writer.add_tensor(f"{name}.weight", package.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_dequantised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path, copy = tmp_path / "tiny.gguf", tmp_path / "elsewhere" / "tiny.gguf"
    write_gguf(path)
    first = attend("at é", str(path))
    assert "dequantising tiny.gguf" in capsys.readouterr().err
    again = attend("at é", str(path))
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())  # the same file in another environment
    attend("at é", str(copy))
    assert capsys.readouterr().err == ""
    assert [t.text for t in again.tokens] == ["at", " ", "é₁", "é₂"]
    np.testing.assert_array_equal(first.layers[0].weights, again.layers[0].weights)
    told = first.model
    assert (told.name, told.n_kv_heads, told.source) == ("tiny", 2, "tiny.gguf")
    assert told.quantised == "Q8_0, dequantised" and told.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    copy.write_bytes(path.read_bytes().replace(b"blk.0.attn_k.weight", b"blk.0.attn_x.weight"))
    with pytest.raises(AttnctlError, match="lacks 1 of its weights"):
        open_model(str(copy))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(AttnctlError, match=r"cannot read .*tiny.gguf"):
        open_model(str(path))
    assert not [entry for entry in (tmp_path / "cache" / "attnctl" / "gguf").iterdir() if entry.name.startswith(".")]


def test_a_damaged_name_of_a_folder_takes_no_other_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one named the cache itself, which was taken away as a whole."""
    cache, path = tmp_path / "cache", tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    dear = cache / "other-0123456789ab" / "model.safetensors"
    dear.parent.mkdir(parents=True)
    dear.write_bytes(b"dear")
    monkeypatch.setattr(gguf, "cache_folder", lambda: cache)
    monkeypatch.setattr(gguf, "_convert_file", lambda path, folder: (folder / "config.json").write_text("{}"))
    first = gguf.dequantised_folder(path)
    (place,) = cache.glob("*.place")
    for damaged in (b"", b"\xff", b"..", b"../other", b"x", b"/", b"a/b-0123456789ab", b"\0" * 12, b"x" * 5000):
        place.write_bytes(damaged)
        assert gguf.dequantised_folder(path) == first and dear.read_bytes() == b"dear"
        assert place.read_text() == f"{first.name}\n{path}"


def test_what_a_killed_conversion_left_in_the_cache_is_removed_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, path = tmp_path / "cache", tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(gguf, "cache_folder", lambda: cache)
    monkeypatch.setattr(gguf, "_convert_file", lambda path, folder: (folder / "config.json").write_text("{}"))
    names = (".converting-dead", ".converting-alive", ".converting-young", ".kept", "other-0123456789ab")
    for name in names:
        (cache / name).mkdir(parents=True)
        (cache / name / "model.safetensors").write_bytes(b"large")
        if "young" not in name:
            os.utime(cache / name, (0, 0))
    for name in (".0123.place.89abcdef.part", ".theirs.part"):
        (cache / name).touch()
        os.utime(cache / name, (0, 0))
    alive = lock_file(cache / ".converting-alive")  # by its own process
    made = gguf.dequantised_folder(path)
    alive.release()
    left = {entry.name for entry in cache.iterdir() if entry.suffix not in (".lock", ".place")}
    assert left == {*names[1:], ".theirs.part", made.name}
    assert not list(cache.glob("*.part.lock")) and (made / "config.json").exists()


def test_folders_of_files_that_are_gone_or_changed_leave_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(gguf, "cache_folder", lambda: cache)
    monkeypatch.setattr(gguf, "_convert_file", lambda path, folder: (folder / "config.json").write_text("{}"))
    names = ("gone", "changed", "copied/m", "copy/m", "unmounted/far", "stays", "new")
    files = {name: tmp_path / f"{name}.gguf" for name in names}
    for name, path in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"GGUF" + (b"copied" if "cop" in name else name.encode()))
    made = {name: gguf.dequantised_folder(path) for name, path in files.items() if name != "new"}
    assert made["copied/m"] == made["copy/m"] and len(set(made.values())) == 5
    files["gone"].unlink()
    files["copied/m"].unlink()
    files["changed"].write_bytes(b"GGUF and more")
    files["unmounted/far"].unlink()
    files["unmounted/far"].parent.rmdir()
    gguf.dequantised_folder(files["new"])
    left = {name for name, one in made.items() if one.exists()}
    assert left == {"copied/m", "copy/m", "unmounted/far", "stays"}  # a copy of one that is gone is the same folder
    assert gguf.dequantised_folder(files["stays"]) == made["stays"]
