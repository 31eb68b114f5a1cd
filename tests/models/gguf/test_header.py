"""The header of a GGUF file, as the library's writer and reader have it; what claims more than the file holds is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.models.gguf.header import read_header

package: Any = pytest.importorskip("gguf")
TEMPLATE = "{{ messages }}" * 1000  # a text of 14,000 bytes
PIECES = [f"piece {number} é" for number in range(5000)]
SCORES = [number / 8 for number in range(5000)]


def written(path: Path, endian: str = "LITTLE") -> Path:
    """A file with every kind of value, long and short, and two tensors."""
    writer = package.GGUFWriter(path, "llama", endianess=package.GGUFEndian[endian])
    writer.add_block_count(3)
    writer.add_rope_freq_base(2.5)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(PIECES)
    writer.add_token_scores(SCORES)
    writer.add_array("llama.rope.dimension_sections", [1, 2, 3])
    writer.add_array("general.tags", ["a", "b"])
    writer.add_tensor("a", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("b", np.ones((2, 3, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_value_is_read_short_or_long(tmp_path: Path) -> None:
    """What was handed to the library's writer comes back; long ones only when they are asked for."""
    header = read_header(written(tmp_path / "m.gguf"))
    assert header.entries == {
        "general.architecture": "llama",
        "llama.block_count": 3,
        "llama.rope.freq_base": 2.5,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.model": "gpt2",
        "llama.rope.dimension_sections": (1, 2, 3),
    }
    assert header.lengths["tokenizer.ggml.tokens"] == 5000
    assert header.array("tokenizer.ggml.tokens") == tuple(PIECES)
    assert header.array("tokenizer.ggml.scores") == tuple(SCORES)
    assert header.array("general.tags") == ("a", "b") and header.array("llama.rope.dimension_sections") == (1, 2, 3)
    assert header.text("tokenizer.chat_template") == TEMPLATE and header.text("tokenizer.ggml.model") == "gpt2"
    assert header.array("absent") == () and header.text("absent") is None
    assert header.array("tokenizer.ggml.model") == () and header.text("general.tags") is None


def test_tensors_lie_where_the_librarys_reader_has_them(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf")
    tensors = read_header(path).tensors
    right = package.GGUFReader(path).tensors
    assert list(tensors) == [tensor.name for tensor in right]
    for tensor in right:
        place = tensors[tensor.name]
        assert place.shape == tuple(map(int, tensor.shape[::-1])) and place.form.name == tensor.tensor_type.name
        assert (place.begin, place.size) == (int(tensor.data_offset), int(tensor.n_bytes))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf")
    assert read_header(path) is read_header(path)
    path.write_bytes(path.read_bytes().replace(struct.pack("<f", 2.5), struct.pack("<f", 3.5)) + bytes(64))
    assert read_header(path).entries["llama.rope.freq_base"] == 3.5


def test_a_big_endian_file_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(AttnctlError, match="it is a big-endian GGUF file") as raised:
        read_header(written(tmp_path / "m.gguf", "BIG"))
    assert "\n" not in str(raised.value) and "gguf-convert-endian" in str(raised.value)


def test_a_file_that_is_cut_short_is_refused_in_one_line(tmp_path: Path) -> None:
    whole = written(tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (0, 3, 4, 8, 20, 24, 30, 60, 200, 20_000, len(whole) - 100):
        cut.write_bytes(whole[:length])
        with pytest.raises(AttnctlError, match=r"cannot read .*cut.gguf: it is not a valid GGUF file") as raised:
            read_header(cut)
        assert "\n" not in str(raised.value), length


def header_of(path: Path, **arrays: tuple[int, int]) -> Path:
    """A GGUF file with arrays of so many empty texts (8) or of so many whole numbers (5), and nothing else."""
    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(arrays))
    for name, (kind, count) in arrays.items():
        data += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<IIQ", 9, kind, count)
        data += bytes((8 if kind == 8 else 4) * count)
    path.write_bytes(data)
    return path


def test_the_memory_that_a_header_would_take_is_counted(tmp_path: Path) -> None:
    """Five million empty texts are 40 MB in the file; the vocabulary of gpt-oss is read."""
    for arrays in ({"x": (8, 5_000_000)}, {"x": (8, 500_000), "y": (8, 4_000_000)}):
        with pytest.raises(AttnctlError, match="of memory, more than 500 MB"):
            read_header(header_of(tmp_path / "many.gguf", **arrays))
    largest = {"tokens": (8, 201_088), "token_type": (5, 201_088), "merges": (8, 446_189)}
    header = read_header(header_of(tmp_path / "large.gguf", **largest))
    assert header.lengths["merges"] == 446_189 and len(header.array("tokens")) == 201_088


def test_lengths_beyond_the_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    begin = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1) + b"x"
    for rest in (
        struct.pack("<IQ", 8, 2**63),  # a text
        struct.pack("<IQ", 8, 2**64 - 1),
        struct.pack("<IIQ", 9, 8, 2) + struct.pack("<Q", 2**62) + bytes(64),  # an array of texts
        struct.pack("<IIQ", 9, 4, 2**61),
        struct.pack("<I", 77),
    ):
        path.write_bytes(begin + rest)
        with pytest.raises(AttnctlError, match=r"cannot read .*m.gguf: it is not a valid GGUF file"):
            read_header(path)
    tensor = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + struct.pack("<Q", 1) + b"t"
    path.write_bytes(tensor + struct.pack("<IQIQ", 1, 100, 12, 0) + bytes(5000))  # 100 numbers are no blocks of 256
    with pytest.raises(AttnctlError, match="the tensor t has rows of 100, no whole blocks of Q4_K"):
        read_header(path)
