"""Files that are none, or claim to hold what they cannot: refused in one line, at once, in every reader."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.conftest import Refused, Run
from tests.tools import hostile
from tests.tools.hostile import TEXT, fifo, loop, sparse, zeros

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    def too_long(*_: Any) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(120)  # by the clock, since what hangs takes no time of the processor
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("make", hostile.NO_FILES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("reader", hostile.READERS)
def test_what_is_no_file_is_refused(reader: str, make: Callable[[Path], None], run: Run) -> None:
    if needed := {"gguf": "transformers", "gguf card": "transformers", "parquet": "pyarrow"}.get(reader):
        pytest.importorskip(needed)
    arguments = hostile.READERS[reader]
    name = next(part for part in arguments if "{}" in part).format("x")
    if (reader, make) == ("batch", sparse):  # read line by line, until a line has no end: below
        return
    make(Path(name))
    result = run(*(part.format("x") for part in arguments))
    assert result.code in (1, 2) and result.out == "", result
    assert result.err.startswith("attnctl: ") and result.err.count("\n") == 1 and name in result.err, result.err


def test_a_line_without_end_is_left(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setattr("attnctl.batching.texts.LONGEST", 1 << 16)
    monkeypatch.setattr("attnctl.checks.limits.ENDLESS_BYTES", 1 << 20)
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
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60)
    assert done.returncode == 0 and b"Alice" in done.stdout, done


def test_a_batch_does_not_read_its_own_output(run: Run, refused: Refused) -> None:
    assert refused("batch", "", "-o", "out", code=2).startswith("the source is empty")
    Path("a.txt").write_text(TEXT)
    for _ in range(3):
        result = run("batch", ".", "-o", "out")
        assert result.code == 0, result
    assert len(Path("out/manifest.jsonl").read_text().splitlines()) == 1
    os.mkfifo("b.txt")
    assert run("batch", ".", "-o", "other").code == 3


@pytest.mark.parametrize("target", ["/proc/kcore", "/proc/self/mem", "/proc/kmsg", "/proc/self/environ"])
def test_files_that_the_system_makes_up(target: str, refused: Refused) -> None:
    """/proc/kmsg never ends, /proc/kcore claims 128 terabytes, /proc/self/mem cannot be read from its beginning."""
    if not Path(target).exists():
        pytest.skip(f"no {target} on this system")
    for name in ("x.txt", "x.json", "x.npy"):
        Path(name).symlink_to(target)
        assert name in refused("explain", name) and name in refused("explain", "--file", name)


def test_a_text_that_names_no_file_says_what_stands_there(refused: Refused) -> None:
    fifo(Path("x.txt"))
    loop(Path("y.txt"))
    assert refused("explain", "x.txt").startswith("cannot read x.txt: it is a named pipe")
    assert "too many levels of symbolic links" in refused("explain", "y.txt")
    assert "no such file here" in refused("explain", "z.txt")


def test_what_is_written_to_a_named_pipe_needs_a_reader(
    monkeypatch: pytest.MonkeyPatch, run: Run, refused: Refused
) -> None:
    fifo(Path("x.json"))
    reader = subprocess.Popen(["sh", "-c", "sleep 0.2; cat x.json > y.json"])
    assert run("explain", TEXT, "-o", "x.json").code == 0
    assert reader.wait(10) == 0 and json.loads(Path("y.json").read_bytes())["text"] == TEXT
    monkeypatch.setattr("attnctl.checks.limits.READER_SECONDS", 0.1)
    assert refused("explain", TEXT, "-o", "x.json") == "cannot write x.json: nothing reads from this named pipe"


def test_a_pipe_of_text_is_held_to_what_a_file_may_have(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    """It was read to four gigabytes, as a matrix may have, and held twice."""
    monkeypatch.setattr("attnctl.checks.limits.TEXT_BYTES", 3 << 20)
    for text in (b"\0" * (4 << 20), b"Alice will eat\n" * (1 << 19)):
        assert "larger than the 3.1 MB" in refused("explain", "-", stdin=text)


def test_a_packed_text_that_unpacks_to_gigabytes(run: Run) -> None:
    Path("in").mkdir()
    with gzip.open("in/a.txt.gz", "wb", compresslevel=1) as file:
        for _ in range(80):
            file.write(b"\0" * (1 << 20))
    result = run("batch", "in")
    assert result.code == 3 and "longer than 64 MB" in result.err


def test_names_that_cannot_be_written(refused: Refused) -> None:
    for command in (["explain", TEXT, "-o", "a\0b.json"], ["evaluate", "--sentences", "20", "-o", "a\0b.conllu"]):
        assert "no file has such a name" in refused(*command)
    assert "no file has" in refused("train", "a\0b", "-o", "run")
    loop(Path("x.json"))
    assert refused("explain", TEXT, "-o", "x.json") == "cannot write x.json: too many levels of symbolic links"
    assert Path("x.json").is_symlink()


# --- claims ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", hostile.KINDS, ids=lambda kind: kind.name)
def test_what_a_file_claims_is_held_against_it(kind: hostile.Kind, run: Run, refused: Refused) -> None:
    path = Path(kind.name)
    if path.suffix == ".gguf":
        pytest.importorskip("transformers")
        pytest.importorskip("gguf")
    if kind.sound is not None:
        path.write_bytes(kind.sound)
        assert [run(*reader).code for reader in kind.readers] == [0] * len(kind.readers)
    for claim in kind.claims:
        path.write_bytes(claim.data)
        for reader in kind.readers:
            said = refused(*reader)
            assert (claim.said or kind.name) in said, (claim.data[:200], said)


SHAPES = ((), (2, 8, 4), (1,), (0,), (8,), (8, 8), (1, 1, 1, 1), (2, 8, 0))


@pytest.mark.parametrize(
    ("dtype", "shapes"), [("float16", SHAPES), ("float64", SHAPES[:2]), ("int64", SHAPES[:2]), ("bool", SHAPES[:2])]
)
def test_tensors_of_any_type_and_rank(dtype: str, shapes: tuple[tuple[int, ...], ...], run: Run) -> None:
    rng = np.random.default_rng(0)
    good = {name: rng.standard_normal((2, 8, 4)).astype(dtype) for name in ("W_Q", "W_K", "W_V")}
    told = {"n_heads": "2", "tokens": '["a"]', "unknown": "a"}
    for name in ("W_Q", "W_O", "b_Q", "b_O", "embedding", "positions", "unembedding", "layers.1.W_Q"):
        for shape in shapes:
            save_file(good | {name: np.zeros(shape, dtype)}, "w.safetensors", told)
            for arguments in (["explain", TEXT, "-m"], ["model"]):
                result = run(*arguments, "w.safetensors")
                assert result.code in (0, 1), (name, shape, result)
                assert "Traceback" not in result.err and "Warning" not in result.err


def test_float8_is_read(run: Run) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save

    for kind in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16):
        save({name: torch.ones(1, 8, 4).to(kind) for name in ("W_Q", "W_K", "W_V")}, "w.safetensors")
        assert run("explain", TEXT, "-m", "w.safetensors").code == 0
        assert run("model", "w.safetensors").code == 0


@pytest.mark.parametrize("part", hostile.TOKENIZERS, ids=lambda part: str(part)[:60])
def test_tokenizers_made_to_explode(part: dict[str, Any], run: Run, capfd: Any) -> None:
    Path("t.json").write_text(hostile.tokenizer(part))
    result = run("explain", "a" * 40 + "b", "-m", "random", "--tokenizer", "t.json")
    assert result.code == (0 if "padding" in part else 1), result
    assert result.err.count("\n") <= 1
    assert capfd.readouterr().err == ""
