"""Whatever happens to a run, what its manifest calls done is whole, and the same command does the rest."""

from __future__ import annotations

import hashlib
import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from attnctl.batching.manifest import AppendedFile
from attnctl.errors import AttnctlError
from tests.conftest import process

ATTNCTL = [sys.executable, "-m", "attnctl", "batch"]


def sentences(path: Path, count: int, seed: int = 0) -> Path:
    draw = random.Random(seed)
    who, does, what = ("Alice", "Bob", "The cat", "日本"), ("eats", "sees", "will paint"), ("pizza", "a book", "it")
    lines = [f"{draw.choice(who)} {draw.choice(does)} {draw.choice(what)} {at}." for at in range(count)]
    lines[count // 3] = ""  # one that fails
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def manifest(folder: Path) -> list[dict[str, Any]]:
    """The manifest without what time puts into it; a last line that is not whole does not count."""
    lines = (folder / "manifest.jsonl").read_bytes().split(b"\n")[:-1]
    return [{k: v for k, v in json.loads(line).items() if k not in ("time", "seconds")} for line in lines]


def check_whole(folder: Path) -> int:
    """Hold every file in the manifest to its size and hash. → how many items there are."""
    entries = manifest(folder)
    for entry in entries:
        for file in entry.get("files", ()):
            with (folder / file["file"]).open("rb") as data:
                data.seek(file.get("offset", 0))
                assert hashlib.sha256(data.read(file["bytes"])).hexdigest() == file["sha256"], entry
    return len(entries)


def contents(folder: Path) -> dict[str, Any]:
    """Everything in a folder, byte for byte."""
    found: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
    assert found.pop("manifest.jsonl") is not None
    return found | {"manifest": manifest(folder)}


def killed_midway(args: Sequence[str], folder: Path, draw: random.Random) -> None:
    """Start a run and kill it after a random time of getting on."""
    run = subprocess.Popen([*ATTNCTL, *args], stderr=subprocess.PIPE)
    before = size(folder)
    while size(folder) == before and run.poll() is None:
        time.sleep(0.002)
    time.sleep(draw.random() * 0.03)
    run.kill()
    run.communicate()


def size(folder: Path) -> int:
    file = folder / "manifest.jsonl"
    return file.stat().st_size if file.exists() else 0


@pytest.mark.parametrize("formats, count, kills", [("json,npz", 2500, 20)])
def test_killed_again_and_again_the_outcome_is_the_same(tmp_path: Path, formats: str, count: int, kills: int) -> None:
    file, draw = sentences(tmp_path / "in.txt", count), random.Random(7)
    args = [str(file), "--format", formats, "--jobs", "1"]
    assert process("batch", *args, "-o", str(tmp_path / "calm")).returncode == 3
    rough = tmp_path / "rough"
    reached = [0]
    for _ in range(kills):
        killed_midway([*args, "-o", str(rough)], rough, draw)
        reached.append(check_whole(rough))
        assert reached[-1] >= reached[-2], "a run lost what an earlier one had done"
    assert reached[-1] > reached[1] > 0 and reached[kills // 2] < count, reached
    assert process("batch", *args, "-o", str(rough)).returncode == 3
    assert contents(rough) == contents(tmp_path / "calm")


def test_workers_go_when_the_run_is_killed(tmp_path: Path) -> None:
    file = sentences(tmp_path / "in.txt", 6000)
    run = subprocess.Popen([*ATTNCTL, str(file), "-o", str(tmp_path / "out"), "--jobs", "2"])
    while size(tmp_path / "out") == 0:
        assert run.poll() is None
        time.sleep(0.01)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    if not children.exists():
        run.kill()
        pytest.skip("this system does not say which processes a process started")
    pids = [pid for pid in children.read_text().split() if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(pids) == 2
    run.kill()
    run.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)
    assert check_whole(tmp_path / "out") > 0


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_several_processes_make_what_one_makes(tmp_path: Path) -> None:
    file = sentences(tmp_path / "in.txt", 1500)
    for jobs in ("1", "2"):
        assert process("batch", str(file), "-o", str(tmp_path / jobs), "--jobs", jobs).returncode == 3
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(manifest(tmp_path / "2")) == 1500


def test_a_full_disk_is_one_line_and_the_rest_is_done_later(tmp_path: Path) -> None:
    file = sentences(tmp_path / "in.txt", 200)
    args = ["batch", str(file), "--jobs", "1"]
    process(*args, "-o", str(tmp_path / "calm"))
    limit = (tmp_path / "calm" / "traces.jsonl").stat().st_size // 2 + 17
    full = process(
        *args, "-o", str(tmp_path / "out"), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    assert full.returncode == 1
    assert full.stderr.decode().splitlines()[-1] == f"attnctl: cannot write {tmp_path}/out/traces.jsonl: file too large"
    assert 10 < check_whole(tmp_path / "out") < 150
    lines = (tmp_path / "out" / "traces.jsonl").read_bytes()
    assert lines.endswith(b"}\n") and all(json.loads(line) for line in lines.splitlines())
    assert process(*args, "-o", str(tmp_path / "out")).returncode == 3
    assert contents(tmp_path / "out") == contents(tmp_path / "calm")


def test_ctrl_c_leaves_what_is_done_usable(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [*ATTNCTL, "-", "-o", str(tmp_path / "out"), "--jobs", "1"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert run.stdin is not None
    run.stdin.write(b"Alice eats\nBob sleeps\n")
    run.stdin.flush()  # and stays open
    while size(tmp_path / "out") == 0 or check_whole(tmp_path / "out") < 2:
        assert run.poll() is None
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    assert run.communicate(timeout=10)[1] == b"attnctl: interrupted\n"
    assert run.returncode == 130
    assert check_whole(tmp_path / "out") == 2
    more = process("batch", "-", "-o", str(tmp_path / "out"), input=b"Alice eats\nBob sleeps\nCarol reads\n")
    assert more.returncode == 0 and b"1 done, 2 there before" in more.stderr


def test_a_second_run_into_the_folder_stops(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [*ATTNCTL, "-", "-o", str(tmp_path / "out")], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert first.stdin is not None
    first.stdin.write(b"Alice eats\n")
    first.stdin.flush()
    while size(tmp_path / "out") == 0:
        time.sleep(0.01)
    second = process("batch", "-", "-o", str(tmp_path / "out"), input=b"Alice eats\n")
    assert second.returncode == 1
    assert second.stderr.decode() == (
        f"attnctl: {tmp_path}/out is being written by another run: wait for it, or give another folder\n"
    )
    assert first.communicate(b"Bob sleeps\n")[1].startswith(b"attnctl: 2 done") and first.returncode == 0


def test_a_file_removed_while_it_grows_is_said(tmp_path: Path) -> None:
    """A batch whose folder was removed meanwhile said that all of it was done, and to see its manifest."""
    path = tmp_path / "traces.jsonl"
    file = AppendedFile(path)
    file.append_bytes(b"1\n")
    path.unlink()
    with pytest.raises(AttnctlError, match=r"cannot write .*traces.jsonl: no such file or directory"):
        file.append_bytes(b"2\n")
    file.close_file()
