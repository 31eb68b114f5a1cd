"""The cache of dequantised files: what is damaged in it is made again, and takes nothing else away."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from attnctl.models.huggingface import gguf


@pytest.mark.parametrize(
    "damaged", [b"", b"\xff", b"..", b"../other", b"x", b"/", b"a/b-0123456789ab", b"\0" * 12, b"x" * 5000]
)
def test_a_damaged_name_of_a_folder_takes_no_other_away(
    damaged: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one named the cache itself, which was taken away as a whole."""
    cache, path = tmp_path / "cache", tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    other = cache / "other-0123456789ab"
    other.mkdir(parents=True)
    (other / "model.safetensors").write_bytes(b"dear")
    monkeypatch.setattr(gguf, "cache_folder", lambda: cache)
    monkeypatch.setattr(gguf, "_convert_file", lambda path, folder: (folder / "config.json").write_text("{}"))
    first = gguf.dequantised_folder(path)
    place = next(cache.glob("*.place"))
    place.write_bytes(damaged)
    assert gguf.dequantised_folder(path) == first and (other / "model.safetensors").read_bytes() == b"dear"
    assert place.read_text() == first.name
