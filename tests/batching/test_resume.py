"""Whatever happens to a run, what its manifest calls done is whole, and the same command does the rest."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
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

from attnctl.batching import folder as folder_module
from attnctl.batching.folder import Folder
from attnctl.batching.items import Item
from attnctl.batching.items import Result as BatchResult
from attnctl.batching.manifest import AppendedFile
from attnctl.batching.texts import TextStream
from attnctl.cli.app import run_command_line
from attnctl.errors import AttnctlError
from tests.conftest import Refused, Result, Run, process

ATTNCTL = [sys.executable, "-m", "attnctl", "batch"]
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.batching.test_resume", "attnctl.commands.batch", "attnctl.batching.engines"])


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
    return [{k: v for k, v in json.loads(line).items() if k not in ("time", "seconds", "check")} for line in lines]


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


def run_batch(args: Sequence[str], group: int) -> None:
    """`attnctl batch ARGS…` with groups of so many texts, in a process that has its imports already."""
    folder_module.GROUP = group
    sys.argv = ["attnctl", "batch", *args]
    run_command_line()


def killed_midway(args: Sequence[str], folder: Path, draw: random.Random, group: int) -> None:
    """Start a run and kill it after a random time of getting on."""
    run = FORKING.Process(target=run_batch, args=(args, group))
    before = size(folder)
    run.start()
    while size(folder) == before and run.is_alive():
        time.sleep(0.002)
    time.sleep(draw.random() * 0.03)
    run.kill()
    run.join()


def size(folder: Path) -> int:
    file = folder / "manifest.jsonl"
    return file.stat().st_size if file.exists() else 0


@pytest.mark.parametrize(
    ("formats", "count", "kills", "group"),
    [("json,npz", 400, 6, 1), ("json,parquet,statistics", 60, 2, 16)],
)
def test_killed_again_and_again_the_outcome_is_the_same(
    formats: str, count: int, kills: int, group: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if group > 1:
        pytest.importorskip("pyarrow")
    monkeypatch.setattr(folder_module, "GROUP", group)
    file, draw, rough = sentences(tmp_path / "in.txt", count), random.Random(7), tmp_path / "rough"
    args = [str(file), "--format", formats, "--head", "0", "--jobs", "1"]
    assert run("batch", *args, "-o", tmp_path / "calm").code == 3
    reached = [0]
    for _ in range(kills):
        killed_midway([*args, "-o", str(rough)], rough, draw, group)
        reached.append(check_whole(rough))
        assert reached[-1] >= reached[-2], "a run lost what an earlier one had done"
        assert reached[-1] % group == 0 or reached[-1] == count, "what shares a file is done or not as one"
    assert 0 < reached[1] < reached[-1] and reached[kills // 2] < count, reached
    assert run("batch", *args, "-o", rough).code == 3
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


LARGE = 50_000_000  # bytes of a result: longer to hand over than its worker lives


class Large:
    """What is asked for: results that take a while to be handed over."""

    def task(self, model: object) -> Large:
        return self

    def begin(self, item: Item) -> BatchResult:
        return BatchResult(item, {"json": bytes(LARGE)})


LEFT_IN_THE_MIDDLE = """
from attnctl.batching.engines import run_in_processes
from attnctl.batching.folder import Folder
from attnctl.batching.items import Item
from tests.batching.test_resume import Large
if __name__ == "__main__":
    results = run_in_processes(Large(), ([Item(number, "")] for number in range(99)), 2)
    print(len(next(results)))
    results.close()
"""


def test_processes_that_end_while_they_hand_a_result_over_are_not_waited_for(tmp_path: Path) -> None:
    """One Ctrl-C in four of `batch --jobs 2` never came to an end."""
    (tmp_path / "left.py").write_text(LEFT_IN_THE_MIDDLE)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, tmp_path / "left.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


KILLED = """
import os, signal
from attnctl.batching.engines import run_in_processes
from attnctl.batching.items import Item, Result
from attnctl.errors import AttnctlError
class Deadly:
    def task(self, model):
        return self
    def begin(self, item):
        if item.number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return Result(item, {"json": b""})
if __name__ == "__main__":
    for first in (0, 4):
        done = []
        try:
            for some in run_in_processes(Deadly(), ([Item(number, "")] for number in range(first, first + 4)), 2):
                done += [result.item.number for result in some]
        except AttnctlError as error:
            done.append(str(error))
        print(done)
"""


def test_a_process_that_is_killed_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, tmp_path / "killed.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    advice = "run the same again to go on, perhaps with fewer jobs"
    killed = f"a worker process was killed (out of memory?): {advice}"
    assert done.stdout.splitlines() == [str([0, 1, 2, killed]), str([4, 5, 6, 7])]
    assert (done.returncode, done.stderr) == (0, "")


def test_several_processes_make_what_one_makes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnctl.batching.engines.FEW", {True: 24, False: 24})  # texts that are not worth their start
    file = sentences(tmp_path / "in.txt", 300)
    for jobs in ("1", "2"):
        assert run("batch", file, "-o", tmp_path / jobs, "--jobs", jobs).code == 3
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert len(manifest(tmp_path / "2")) == 300


def test_a_full_disk_is_one_line_and_the_rest_is_done_later(run: Run, tmp_path: Path) -> None:
    args = ["batch", str(sentences(tmp_path / "in.txt", 600)), "--jobs", "1", "--steps", "weights"]
    run(*args, "-o", tmp_path / "calm")
    limit = (tmp_path / "calm" / "traces.jsonl").stat().st_size // 2 + 17
    out = tmp_path / "out"
    full = process(*args, "-o", str(out), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert full.returncode == 1
    assert full.stderr.decode().splitlines()[-1] == f"attnctl: cannot write {out}/traces.jsonl: file too large"
    assert 10 < check_whole(out) < 500
    lines = (out / "traces.jsonl").read_bytes()
    assert lines.endswith(b"}\n") and all(json.loads(line) for line in lines.splitlines())
    assert run(*args, "-o", out).code == 3
    assert contents(out) == contents(tmp_path / "calm")


def begun(out: Path, text: bytes) -> subprocess.Popen[bytes]:
    """A run whose input is a pipe that stays open, once what came through it is done."""
    command = [*ATTNCTL, "-", "-o", str(out), "--jobs", "1"]
    run = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdin is not None
    run.stdin.write(text)
    run.stdin.flush()
    while size(out) == 0 or check_whole(out) < text.count(b"\n"):
        assert run.poll() is None
        time.sleep(0.01)
    return run


def test_ctrl_c_leaves_what_is_done_usable(run: Run, tmp_path: Path) -> None:
    first = begun(tmp_path / "out", b"Alice eats\nBob sleeps\n")
    first.send_signal(signal.SIGINT)
    kept = f"{tmp_path}/out keeps 2 texts of the input: the same command goes on from there"
    assert first.communicate(timeout=10)[1].decode() == f"attnctl: interrupted: {kept}\n"
    assert first.returncode == 130 and check_whole(tmp_path / "out") == 2
    more = run("batch", "-", "-o", tmp_path / "out", stdin=b"Alice eats\nBob sleeps\nCarol reads\n")
    assert more.code == 0 and "1 done, 2 finished before" in more.err


def test_progress_counts_what_a_run_has_to_do_and_not_what_it_reads(tmp_path: Path, run: Run) -> None:
    """After a resume it began at "90 %, about 1 s left": the input was read ahead, and its finished part was counted."""
    texts = [f"Alice eats {number}\n" for number in range(9)] + ["Bob sleeps 9"]
    source = tmp_path / "in.txt"
    source.write_text("".join(texts[:6]))
    run("batch", source, "-o", tmp_path / "out")
    source.write_text("".join(texts))
    stream = TextStream(str(source))
    request = json.loads((tmp_path / "out" / "run.json").read_text())["said"] | {"input": [str(source)]}
    with Folder(tmp_path / "out", request, ("json",)) as folder:
        items = list(stream.items_left(folder.items_to_do))
        assert [item.number for item in items] == [6, 7, 8, 9] and stream.share_done() == 0
        stream.note_done(items[:1])
        assert stream.share_done() == pytest.approx(len(texts[6]) / sum(map(len, texts[6:])))
        stream.note_done(items[1:])
        assert stream.share_done() == pytest.approx(1)


def test_a_second_run_into_the_folder_stops(refused: Refused, tmp_path: Path) -> None:
    first = begun(tmp_path / "out", b"Alice eats\n")
    said = refused("batch", "-", "-o", tmp_path / "out", stdin=b"Alice eats\n")
    assert said == f"{tmp_path}/out is being written by another run: wait for it, or give another folder"
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


def run_texts(run: Run, folder: Path, *lines: str) -> Result:
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    return run("batch", folder / "a.txt", "-o", folder / "out", "--jobs", "1", "--format", "json,npz")


def texts_there(folder: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / "out" / "traces.jsonl").read_text().splitlines()]


def test_another_input_is_refused_and_deletes_nothing(run: Run, refused: Refused, tmp_path: Path) -> None:
    run_texts(run, tmp_path, "one", "two", "three")
    before, out, other = contents(tmp_path / "out"), tmp_path / "out", tmp_path / "b.csv"
    other.write_text("x,y\nfour,five\n")
    args = ("batch", other, "-o", out, "--format", "json,npz", "--jobs", "1", "--column")
    said = f"{out} holds results of {tmp_path}/a.txt: give a new folder, or --replace"
    assert refused(*args, "x", code=2) == said
    assert contents(out) == before
    (out / "notes.txt").write_text("mine")
    assert run(*args, "x", "--replace").err.startswith("attnctl: 1 done: see")
    assert texts_there(tmp_path) == ["four"] and (out / "notes.txt").exists()
    assert len(list(out.glob("*.npz"))) == 1 and check_whole(out) == 1
    assert refused(*args, "y", code=2).endswith("differs in column: give a new folder, or --replace")
    assert run(*args, "x", "--format", "npz", "--replace").code == 0
    assert not (out / "traces.jsonl").exists()


MOVED = "with another number than their place in the input"


def test_lines_of_the_input_come_go_and_change_places(run: Run, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    run_texts(run, here, "one", "two", "two", "three")
    here.rename(there)  # the folder may be moved with its input
    out = there / "out"
    before = contents(out)
    for lines, said in (
        (("three", "two"), f"0 done, 2 finished before, 2 kept for texts that are no longer in the input, 1 {MOVED}"),
        (("three", "one", "two", "two"), f"0 done, 4 finished before, 4 {MOVED}"),
        ((), "0 done, 4 kept for texts that are no longer in the input"),
    ):
        assert run_texts(run, there, *lines).err.startswith(f"attnctl: {said}: see")
        assert contents(out) == before
    result = run_texts(run, there, "four", "one", "two", "five", "two", "two")
    assert result.err.startswith(
        f"attnctl: 3 done, 3 finished before, 1 kept for texts that are no longer in the input, 6 {MOVED}: see"
    )
    assert texts_there(there) == ["one", "two", "two", "three", "four", "five", "two"]
    assert [entry["number"] for entry in manifest(out)] == list(range(7))
    after = contents(out)
    assert {name: after[name] for name in before if name.endswith(".npz")}.items() <= before.items()
    assert check_whole(out) == 7
    (out / "0000001-two.npz").unlink()
    (out / "0000003-three.npz").unlink()  # of a text that is not in the input
    result = run_texts(run, there, "four", "one", "two", "five", "two", "two")
    said = "0000001-two.npz damaged or gone, and made again, 0000003-three.npz damaged or gone: see"
    assert result.err.startswith(f"attnctl: 1 done, 5 finished before, 5 {MOVED}, {said}")
    assert texts_there(there) == ["one", "two", "two", "four", "five", "two"]
    assert (out / "0000001-two.npz").read_bytes() == before["0000001-two.npz"]


@pytest.mark.parametrize("name", ["traces.jsonl", "manifest.jsonl", "run.json", ".lock", "0000000", "0000000-one.png"])
def test_no_link_in_the_folder_is_followed(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one two\nthree four\n")
    asked = (
        "batch",
        tmp_path / "in.txt",
        "-o",
        tmp_path / "out",
        "-m",
        "random",
        "--format",
        "json,png",
        "--jobs",
        "1",
    )
    assert run(*asked).code == 0
    victim, place = tmp_path / "victim", tmp_path / "out" / name
    place.rename(victim) if place.exists() else victim.write_text("dear")
    place.symlink_to(victim)
    before = victim.read_bytes()
    again = run(*asked, "--replace") if name.endswith(".png") else run(*asked)
    assert victim.read_bytes() == before, name
    if not name.endswith(".png"):
        assert again.code == 1 and f"{name} is a link, which is not followed: give a new folder" in again.err


def test_only_temporary_files_of_its_own_are_removed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one two\n")
    asked = ("batch", tmp_path / "in.txt", "-o", tmp_path / "out", "-m", "random", "--jobs", "1")
    assert run(*asked).code == 0
    own = [".traces.jsonl.0123abcd.part", ".manifest.jsonl.0123abcd.part", ".0000000-one.png.0123abcd.part"]
    theirs = [".download.part", ".notes.txt.0123abcd.part", ".traces.jsonl.part"]
    for name in (*own, *theirs):
        (tmp_path / "out" / name).touch()
    assert run(*asked).code == 0
    assert {path.name for path in (tmp_path / "out").glob(".*.part")} == set(theirs)
