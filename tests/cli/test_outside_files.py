"""Files that are none, or claim to hold what they cannot: refused in one line, at once, in every reader."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.conftest import Refused, Run

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")

TEXT = "Alice will eat"

# every command line that reads a file; {} is its name
READERS = {
    "text": ["explain", "--file", "{}"],
    "trace": ["heatmap", "{}.json"],
    "npz": ["heatmap", "{}.npz"],
    "matrix": ["view", "{}.npy", "--no-open"],
    "table": ["heatmap", "{}.csv"],
    "compared": ["compare", "{}.json", "{}.json"],
    "weights": ["explain", TEXT, "-m", "{}.safetensors"],
    "weights in npz": ["explain", TEXT, "-m", "{}.npz"],
    "gguf": ["explain", TEXT, "-m", "{}.gguf"],
    "gguf card": ["model", "{}.gguf"],
    "embeddings": ["explain", TEXT, "-m", "dot", "--embeddings", "{}.npy"],
    "qkv": ["explain", TEXT, "--qkv", "{}.npz"],
    "qkv in safetensors": ["explain", TEXT, "--qkv", "{}.safetensors"],
    "tokenizer": ["explain", TEXT, "-m", "random", "--tokenizer", "{}.json"],
    "spans": ["heatmap", TEXT, "--spans", "./{}.csv"],
    "corpus": ["train", "{}", "-o", "run"],
    "batch": ["batch", "{}.txt"],
    "rows": ["batch", "{}.csv"],
    "parquet": ["batch", "{}.parquet"],
}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(40 << 30)


@pytest.fixture(autouse=True)
def in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def too_long(*_: Any) -> None:
        raise AssertionError("it hangs")

    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("make", [fifo, zeros, loop, folder, sparse], ids=lambda make: make.__name__)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused(reader: str, make: Callable[[Path], None], run: Run) -> None:
    if reader in ("gguf", "gguf card"):
        pytest.importorskip("transformers")
    if reader == "parquet":
        pytest.importorskip("pyarrow")
    arguments = READERS[reader]
    name = next(part for part in arguments if "{}" in part).format("x")
    if (reader, make) == ("batch", sparse):  # read line by line, until a line has no end: below
        return
    make(Path(name))
    result = run(*(part.format("x") for part in arguments))
    assert result.code in (1, 2) and result.out == "", result
    assert result.err.startswith("attnctl: ") and result.err.count("\n") == 1 and name in result.err, result.err


def test_a_line_without_end_is_left(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setattr("attnctl.batching.texts.LONGEST", 1 << 16)
    monkeypatch.setattr("attnctl.limits.ENDLESS_BYTES", 1 << 20)
    sparse(Path("x.txt"))
    assert "has no end in" in refused("batch", "x.txt")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
@pytest.mark.parametrize("make", [fifo, zeros, sparse], ids=lambda make: make.__name__)
def test_checkpoint_folders(name: str, make: Callable[[Path], None], run: Run, refused: Refused, room: Path) -> None:
    pytest.importorskip("transformers")
    shutil.copytree(room / "llama", "c")
    assert run("explain", TEXT, "-m", "c").code == 0
    Path(f"c/{name}").unlink(missing_ok=True)
    make(Path(f"c/{name}"))
    assert name in refused("explain", TEXT, "-m", "c")


def test_a_pipe_of_the_shell_is_read() -> None:
    command = f"{sys.executable} -m attnctl explain --file <(echo Alice will eat) --steps weights"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, cwd=Path(__file__).parents[2])
    assert done.returncode == 0 and b"Alice" in done.stdout, done


def test_standard_input_that_never_ends_is_left(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setattr("attnctl.limits.TEXT_BYTES", 1 << 20)
    assert "larger than" in refused("explain", "-", stdin=b"a " * (1 << 20))


def test_a_batch_does_not_read_its_own_output(run: Run, refused: Refused) -> None:
    assert refused("batch", "", "-o", "out", code=2).startswith("the source is empty")
    Path("a.txt").write_text(TEXT)
    for _ in range(3):
        result = run("batch", ".", "-o", "out")
        assert result.code == 0, result
    assert len(Path("out/manifest.jsonl").read_text().splitlines()) == 1
    os.mkfifo("b.txt")
    assert run("batch", ".", "-o", "other").code == 3


@pytest.mark.parametrize("name", ["x.txt", "x.json", "x.npy"])
@pytest.mark.parametrize("target", ["/proc/kcore", "/proc/self/mem", "/proc/kmsg", "/proc/self/environ"])
def test_files_that_the_system_makes_up(name: str, target: str, refused: Refused) -> None:
    """/proc/kmsg never ends, /proc/kcore claims 128 terabytes, /proc/self/mem cannot be read from its beginning."""
    if not Path(target).exists():
        pytest.skip(f"no {target} on this system")
    Path(name).symlink_to(target)
    for arguments in (["explain", name], ["explain", "--file", name]):
        assert name in refused(*arguments)


def test_a_text_that_names_no_file_says_what_stands_there(refused: Refused) -> None:
    fifo(Path("x.txt"))
    loop(Path("y.txt"))
    assert refused("explain", "x.txt").startswith("cannot read x.txt: it is a named pipe")
    assert "too many levels of symbolic links" in refused("explain", "y.txt")
    assert "no such file is here" in refused("explain", "z.txt")


def test_a_named_pipe_that_nobody_reads_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setattr("attnctl.limits.READER_SECONDS", 0.1)
    fifo(Path("x.json"))
    assert refused("explain", TEXT, "-o", "x.json") == "cannot write x.json: nothing reads from this named pipe"


def test_a_named_pipe_with_a_reader_is_written_to(run: Run) -> None:
    fifo(Path("x.json"))
    reader = subprocess.Popen(["sh", "-c", "sleep 0.2; cat x.json > y.json"])
    assert run("explain", TEXT, "-o", "x.json").code == 0
    assert reader.wait(10) == 0 and json.loads(Path("y.json").read_bytes())["text"] == TEXT


def test_a_pipe_of_text_is_held_to_what_a_file_may_have(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    """It was read to four gigabytes, as a matrix may have, and held twice."""
    monkeypatch.setattr("attnctl.limits.TEXT_BYTES", 3 << 20)
    for text in (b"\0" * (4 << 20), b"Alice will eat\n" * (1 << 19)):
        assert "larger than the 3.1 MB" in refused("explain", "-", stdin=text)


def test_a_packed_text_that_unpacks_to_gigabytes(run: Run) -> None:
    import gzip

    Path("in").mkdir()
    with gzip.open("in/a.txt.gz", "wb", compresslevel=1) as file:
        for _ in range(80):
            file.write(b"\0" * (1 << 20))
    result = run("batch", "in")
    assert result.code == 3 and "longer than 64 MB" in result.err


@pytest.mark.parametrize("command", [["explain", TEXT, "-o"], ["heatmap", TEXT, "-o"], ["evaluate", "--write-corpus"]])
def test_a_name_that_no_file_can_have(command: list[str], refused: Refused) -> None:
    assert "no file has" in refused("train", "a\0b", "-o", "run")
    name = "a\0b.json" if command[0] == "explain" else "a\0b.png"
    assert "no file has such a name" in refused(
        *command, name, *(["--sentences", "20"] if command[0] == "evaluate" else [])
    )


def test_links_in_a_loop_are_not_written(refused: Refused) -> None:
    loop(Path("x.json"))
    assert refused("explain", TEXT, "-o", "x.json") == "cannot write x.json: too many levels of symbolic links"
    assert Path("x.json").is_symlink()


# --- claims ------------------------------------------------------------------------------------------------------


def zipped(array: bytes, name: str = "weights.npy") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(name, array)
    return out.getvalue()


def npy(shape: tuple[int, ...], data: bytes = b"", descr: str = "<f4") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue() + data


def test_arrays_that_are_not_there(run: Run, refused: Refused) -> None:
    whole = npy((2, 2), np.eye(2, dtype=np.float32).tobytes())
    Path("a.npz").write_bytes(zipped(whole))
    Path("a.npy").write_bytes(whole)
    assert run("heatmap", "a.npz").code == run("heatmap", "a.npy").code == 0
    Path("a.npz").write_bytes(zipped(npy((400_000, 1000), bytes(200 << 20))))
    assert "would unpack to 210 MB" in refused("heatmap", "a.npz")
    for shape in ((10**12,), (10**6, 10**6), (2**40, 2**40), (0, 10**18, 10**18), (1,) * 40, (-1, 5)):
        Path("a.npz").write_bytes(zipped(npy(shape)))
        Path("a.npy").write_bytes(npy(shape))
        assert "a.npz" in refused("heatmap", "a.npz") and "a.npy" in refused("heatmap", "a.npy")
        assert "a.npz" in refused("explain", TEXT, "-m", "a.npz")
    Path("a.npy").write_bytes(npy((1,), b"\0", "<U1000000000"))
    assert "a.npy" in refused("heatmap", "a.npy")


def tensors(**entries: Any) -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"null",
        struct.pack("<Q", 10**5) + b"[" * 10**5,
        tensors(W_Q=5),
        tensors(W_Q={"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}),
        tensors(W_Q={"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]}) + bytes(16),
        tensors(W_Q={"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}) + bytes(4),
        tensors(W_Q={"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}) + bytes(8),
        tensors(W_Q={"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}) + bytes(2),
        tensors(W_Q={"dtype": "F8_E8M0", "shape": [2, 2], "data_offsets": [0, 4]}) + bytes(4),
        tensors(W_Q={"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}) + bytes(4),
        tensors(W_Q={"dtype": "F32", "shape": [], "data_offsets": [0, 4]}) + bytes(4),
        tensors(__metadata__={"a": 5}, W_Q={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}) + bytes(4),
        b"",
        b"\0" * 7,
    ],
)
def test_headers_of_safetensors(data: bytes, run: Run, refused: Refused) -> None:
    path = Path("w.safetensors")
    save_file({name: np.ones((3, 4), np.float32) for name in ("Q", "K", "V", "W_Q", "W_K", "W_V")}, path)
    assert run("explain", TEXT, "--qkv", path).code == 0
    save_file({name: np.ones((1, 8, 4), np.float32) for name in ("W_Q", "W_K", "W_V")}, path)
    assert run("explain", TEXT, "-m", path).code == run("model", path).code == 0
    path.write_bytes(data)
    for arguments in (("explain", TEXT, "-m", path), ("explain", TEXT, "--qkv", path), ("model", path)):
        assert path.name in refused(*arguments)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int32", "uint8", "bool"])
def test_tensors_of_any_type_and_rank(dtype: str, run: Run) -> None:
    rng = np.random.default_rng(0)
    good = {name: rng.standard_normal((2, 8, 4)).astype(dtype) for name in ("W_Q", "W_K", "W_V")}
    shapes = ((), (1,), (0,), (8,), (8, 8), (2, 8, 4), (1, 1, 1, 1), (2, 8, 0))
    for name in ("W_Q", "W_V", "W_O", "b_Q", "b_O", "embedding", "positions", "unembedding", "layers.1.W_Q"):
        for shape in shapes:
            save_file(
                good | {name: np.zeros(shape, dtype)},
                "w.safetensors",
                {"n_heads": "2", "tokens": '["a"]', "unknown": "a"},
            )
            for arguments in (["explain", TEXT], ["model"]):
                result = run(arguments[0], *arguments[1:], *(["-m"] if arguments[1:] else []), "w.safetensors")
                assert result.code in (0, 1), (name, shape, result)
                assert "Traceback" not in result.err and "Warning" not in result.err


def test_float8_is_read(run: Run) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save

    for kind in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16):
        save({name: torch.ones(1, 8, 4).to(kind) for name in ("W_Q", "W_K", "W_V")}, "w.safetensors")
        assert run("explain", TEXT, "-m", "w.safetensors").code == 0
        assert run("model", "w.safetensors").code == 0


def gguf(entries: int, body: bytes, tensors: int = 0) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, entries) + body


def entry(kind: int, value: bytes, key: bytes = b"general.architecture") -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    "data",
    [
        gguf(2**62, b""),
        gguf(0, b"", 2**40),
        gguf(1, entry(9, struct.pack("<IQ", 8, 10**9))) + bytes(1 << 20),
        gguf(1, entry(9, struct.pack("<IQ", 4, 2**61))),
        gguf(1, entry(9, struct.pack("<IQ", 9, 100)) + struct.pack("<IQ", 9, 100) * 100),
        gguf(1, entry(8, struct.pack("<Q", 2**63))),
        gguf(1, entry(77, b"")),
        gguf(1, b"\xff" * 8),
        gguf(0, struct.pack("<Q", 1) + b"x" + struct.pack("<I", 2**31), 1),
        gguf(0, b""),
        b"GGUF",
    ],
)
def test_headers_of_gguf(data: bytes, refused: Refused) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    Path("m.gguf").write_bytes(data)
    with Path("m.gguf").open("ab") as file:  # room, for those who only look at the size
        file.truncate(len(data) + (1 << 12))
    assert "m.gguf" in refused("model", "m.gguf")


LLAMA = entry(8, struct.pack("<Q5s", 5, b"llama"))


def tensor(shape: tuple[int, ...], kind: int, start: int) -> bytes:
    return struct.pack(f"<Q1sI{len(shape)}QIQ", 1, b"t", len(shape), *shape, kind, start)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (gguf(1, LLAMA + tensor((4, 4), 0, 2**40), 1), "the tensor t ends 1,099,5.* bytes beyond the file"),
        (gguf(1, LLAMA + tensor((2**40, 2**20), 12, 0), 1), "the tensor t ends .* bytes beyond the file"),
        (gguf(1, LLAMA + tensor((4097,), 24, 0), 1), "the tensor t ends .* bytes beyond the file"),
        (gguf(1, LLAMA + tensor((4, 4), 999, 0), 1), "the tensor t has the type 999"),
        (gguf(2, LLAMA + entry(4, struct.pack("<I", 0), b"general.alignment")), "its alignment is 0"),
        (gguf(1, entry(8, struct.pack("<Q5s", 5, b"llama"), b"another")), "it does not say its architecture"),
        (gguf(2, LLAMA + entry(9, struct.pack("<IQ2I", 4, 2, 4, 8), b"llama.block_count")), "num_hidden_layers is"),
    ],
)
def test_what_a_gguf_header_says_of_its_tensors(data: bytes, why: str, refused: Refused) -> None:
    """Held against the file without any library: a tensor that lies beyond its end would be read as a crash."""
    Path("m.gguf").write_bytes(data + bytes(4096))
    assert re.search(why, refused("model", "m.gguf"))


@pytest.mark.parametrize(
    "part",
    [
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40,
            }
        },
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x" * 1000}] * 20000}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 10**6}},
        {
            "padding": {
                "strategy": {"Fixed": 10**9},
                "direction": "Right",
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "a",
            }
        },
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"normalizer": 5},
        {"added_tokens": "x"},
    ],
    ids=str,
)
def test_tokenizers_made_to_explode(part: dict[str, Any], run: Run, capfd: Any) -> None:
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }
    Path("t.json").write_text(json.dumps(tokenizer | part))
    result = run("explain", "a" * 40 + "b", "-m", "random", "--tokenizer", "t.json")
    assert result.code == (0 if "padding" in part else 1), result
    assert result.err.count("\n") <= 1
    assert capfd.readouterr().err == ""
