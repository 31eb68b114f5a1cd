"""Each type of tensor as the gguf library dequantises it, whole and by rows; what a parameter is made of, by NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.models.gguf import tensors
from attnctl.models.gguf.header import BLOCKS
from attnctl.models.gguf.tensors import GgufFile
from attnctl.models.gguf.weights import (
    Interleaved,
    Joined,
    Reshaped,
    Shifted,
    Stacked,
    Turned,
    Weight,
    part_of,
    rotated_halves,
)  # fmt: skip
from attnctl.runtime.two_at_once import two_at_once

package: Any = pytest.importorskip("gguf")
torch: Any = pytest.importorskip("torch")
KINDS = [form.name for form in BLOCKS.values() if hasattr(package.quants, form.name)]
ROWS, COLUMNS = 24, 512


def written(path: Path, stored: dict[str, tuple[np.ndarray, str]], **facts: Any) -> Path:
    """A GGUF file by the library's writer: name → bytes or numbers, and the name of their type."""
    writer = package.GGUFWriter(path, "llama")
    for name, (array, kind) in stored.items():
        writer.add_tensor(name, array, raw_dtype=package.GGMLQuantizationType[kind])
    for add, value in facts.items():
        getattr(writer, add)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantised(kind: str, generator: np.random.Generator) -> np.ndarray:
    """Random numbers, quantised by the library; random bytes of a type that it only reads."""
    form, number = package.GGMLQuantizationType[kind], generator.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    try:
        return package.quantize(number, form)  # type: ignore[no-any-return]
    except NotImplementedError:
        numbers, size = package.GGML_QUANT_SIZES[form]
        return generator.integers(0, 256, (ROWS, COLUMNS // numbers * size), dtype=np.uint8)


def test_the_blocks_are_those_of_the_library() -> None:
    for kind, (numbers, size) in package.GGML_QUANT_SIZES.items():
        assert BLOCKS[int(kind)] == (kind.name, numbers, size)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # random scales overflow
@pytest.mark.parametrize("threads", [1, 3])
def test_every_type_is_dequantised_as_the_library_does(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several steps (as of a large matrix), whole, by a slice of rows, and by numbers of rows."""
    monkeypatch.setattr(tensors, "TOGETHER", 1024)
    monkeypatch.setattr(tensors, "worker_count", lambda: threads)
    tensors._workers.cache_clear()
    generator = np.random.default_rng(0)
    kinds = [*KINDS, "F32", "F16"]
    stored = {kind: (quantised(kind, generator), kind) for kind in kinds}
    file = GgufFile.open(written(tmp_path / "all.gguf", stored))
    chosen = np.array([5, 0, 23, 5])
    for kind in kinds:
        right = package.dequantize(stored[kind][0], package.GGMLQuantizationType[kind])  # (ROWS, COLUMNS)
        tensor = file.tensors[kind]
        assert (tensor.kind, tensor.shape) == (kind, (ROWS, COLUMNS)), kind
        np.testing.assert_array_equal(tensor.array(), right, err_msg=kind)
        np.testing.assert_array_equal(tensor.rows(slice(3, 7)), right[3:7], err_msg=kind)
        np.testing.assert_array_equal(tensor.rows(chosen), right[chosen], err_msg=kind)
    assert len(kinds) > 25


def test_a_type_that_the_library_cannot_dequantise_is_named(tmp_path: Path) -> None:
    raw = np.zeros((4, 40), np.uint8)
    file = GgufFile.open(written(tmp_path / "q8_1.gguf", {"x": (raw, "Q8_1")}))
    with pytest.raises(AttnctlError, match="stored as Q8_1, which the installed gguf library cannot dequantise"):
        file.tensors["x"].array()


def test_what_parameters_are_made_of(tmp_path: Path) -> None:
    """Each change against NumPy on the numbers that were written; the rows of it against the whole."""
    generator = np.random.default_rng(1)
    numbers = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in {
        "a": (12, 4), "b": (8, 4), "e": (3, 6, 4), "f": (3, 6, 4), "one": (6, 4), "two": (6, 4),
    }.items()}  # fmt: skip
    file = GgufFile.open(written(tmp_path / "m.gguf", {name: (array, "F32") for name, array in numbers.items()}))
    t, n = file.tensors, numbers
    # llama.cpp's converter: weights.reshape(heads, 2, rows / heads / 2, …).swapaxes(1, 2), applied to the right answer
    converted = n["a"].reshape(3, 2, 2, 4).swapaxes(1, 2).reshape(12, 4)
    rotated = GgufFile.open(written(tmp_path / "r.gguf", {"q": (converted, "F32")})).tensors["q"]
    cases: list[tuple[Weight, np.ndarray]] = [
        (rotated_halves(rotated, 3), n["a"]),
        (part_of(t["a"], 2, 7), n["a"][2:7]),
        (Shifted(t["a"], -1.0), n["a"] - 1),
        (Turned(t["a"]), n["a"].T),
        (Turned(t["e"]), n["e"].transpose(0, 2, 1)),
        (Reshaped(t["a"], (4, 12)), n["a"].reshape(4, 12)),
        (Reshaped(t["e"], (3, 24)), n["e"].reshape(3, 24)),
        (Joined((t["a"], t["b"])), np.concatenate([n["a"], n["b"]])),
        (Joined((t["e"], t["f"]), 1), np.concatenate([n["e"], n["f"]], 1)),
        (Stacked((t["one"], t["two"])), np.stack([n["one"], n["two"]])),
        (Interleaved((t["one"], t["two"])), np.stack([n["one"], n["two"]], 1).reshape(12, 4)),
        (Interleaved((t["e"], t["f"]), 1), np.stack([n["e"], n["f"]], 2).reshape(3, 12, 4)),
        (Turned(Joined((t["e"], t["f"]), 1)), np.concatenate([n["e"], n["f"]], 1).transpose(0, 2, 1)),
    ]
    for weight, right in cases:
        assert weight.shape == right.shape and weight.sources
        np.testing.assert_array_equal(weight.array(), right, err_msg=repr(type(weight)))
        np.testing.assert_array_equal(weight.rows(slice(1, 3)), right[1:3], err_msg=repr(type(weight)))
        chosen = np.array([1, 0, right.shape[0] - 1])
        np.testing.assert_array_equal(weight.rows(chosen), right[chosen], err_msg=repr(type(weight)))


def test_the_parts_of_a_split_file_are_one(tmp_path: Path) -> None:
    first, second = np.ones((2, 4), np.float32), np.full((2, 4), 2, np.float32)
    paths = [
        written(tmp_path / f"m-0000{number}-of-00002.gguf", {name: (array, "F32")}, add_block_count=number)
        for number, (name, array) in enumerate({"a": first, "b": second}.items(), 1)
    ]
    file = GgufFile.open(paths)
    assert file.metadata["llama.block_count"] == 1  # of the first part
    np.testing.assert_array_equal(file.tensors["b"].array(), second)
    with pytest.raises(AttnctlError, match="the tensor a stands in an earlier part too"):
        GgufFile.open([paths[0], paths[0]])


def test_a_written_tensor_changes_no_file(tmp_path: Path) -> None:
    """Numbers of float32 are mapped without a copy: somebody who trains them must not write into the file."""
    path = written(tmp_path / "m.gguf", {"a": (np.ones((2, 4), np.float32), "F32")})
    before = path.read_bytes()
    array = GgufFile.open(path).tensors["a"].array()
    array[:] = 7
    assert path.read_bytes() == before and array.sum() == 56


@pytest.mark.parametrize(("cores", "idle"), [(1, False), (2, False), (3, True)])
def test_two_forwards_at_once_leave_rows_to_a_third_core(
    cores: int, idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, a forward leaves them to a second core."""
    monkeypatch.setattr(tensors, "worker_count", lambda: cores)
    assert tensors.may_share_rows() == (cores > 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert set(two_at_once(lambda _: tensors.may_share_rows(), range(4))) == {idle}
    finally:
        torch.set_num_threads(before)
