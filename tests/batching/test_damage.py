"""A folder that something else wrote to: nothing kept is lost, nothing is trusted that is not whole, every refusal is a line."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnctl import models
from attnctl.batching import folder as folder_module
from tests.batching.test_resume import check_whole, contents
from tests.conftest import Refused, Run

ARGS = ("in.txt", "-o", "out", "--format", "json,npz", "--jobs", "1")


@pytest.fixture
def out(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a batch of four texts; `fresh` is as it was."""
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("one\ntwo\nthree\nfour\n")
    assert run("batch", *ARGS).code == 0
    shutil.copytree("out", "fresh")
    return Path("out")


def again(run: Run, said: str = "") -> None:
    """Going on ends where a run of its own does."""
    result = run("batch", *ARGS)
    assert result.code == 0 and result.err.count("\n") == 1 and said in result.err, result.err
    assert contents(Path("out")) == contents(Path("fresh"))
    assert check_whole(Path("out")) == 4


# manifests that something else wrote, of the four lines that were there
MANIFESTS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "a line twice": lambda e: [e[0], *e],
    "a line that lists no files": lambda e: [*e[:2], {**e[2], "files": []}, e[3]],
    "a file elsewhere, past the last": lambda e: [*e, {**e[3], "number": 4, "files": [{"file": "../in.txt"}]}],
    "a part that begins elsewhere": lambda e: [*e[:3], {**e[3], "files": [{**e[3]["files"][0], "offset": 0}]}],
    "lines of other types": lambda e: [*e[:3], 5, None, ["a"]],
}


def test_a_manifest_that_something_else_wrote_takes_no_file_away(run: Run, out: Path) -> None:
    for change in MANIFESTS.values():
        entries = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
        lines = (json.dumps(entry, separators=(",", ":")) for entry in change(entries))
        (out / "manifest.jsonl").write_text("".join(f"{line}\n" for line in lines))
        again(run)
    lines = (out / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (out / "manifest.jsonl").write_bytes(lines[0] + b"x" * 9 + b"\n" + lines[2] + b'{"number":')
    again(run, "2 done, 2 finished before: see")


@pytest.mark.parametrize("name", ["traces.jsonl", "0000001-two.npz"])
def test_a_file_that_is_another_cut_or_gone_is_noticed(run: Run, out: Path, name: str) -> None:
    """Sizes alone were compared: what a bad disk or an editor had changed counted as done."""
    whole = (out / name).read_bytes()
    middle = len(whole) // 2
    for changed in (whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], whole[:-9], None):
        (out / name).unlink() if changed is None else (out / name).write_bytes(changed)
        done = "4 done" if changed is None and name == "traces.jsonl" else "1 done, 3 finished before"
        again(run, f"{done}, {name} damaged or gone, and made again")
    assert "damaged" not in run("batch", *ARGS).err


def test_a_pipe_is_replaced_where_it_is_a_text_s_and_not_waited_for(run: Run, refused: Refused, out: Path) -> None:
    (out / "0000001-two.npz").unlink()
    os.mkfifo(out / "0000001-two.npz")
    signal.alarm(60)
    again(run)
    for name in ("run.json", "manifest.jsonl", "traces.jsonl"):
        (out / name).rename("kept")
        os.mkfifo(out / name)
        assert refused("batch", *ARGS) == f"out/{name} is not a regular file: give a new folder"
        Path("kept").rename(out / name)
    signal.alarm(0)


def test_a_damaged_run_is_one_line(refused: Refused, out: Path) -> None:
    for said in (5, ["a"], {"schema": "attnctl.batch/2", "said": None}, {"schema": "attnctl.batch/2", "said": ["a"]}):
        (out / "run.json").write_text(json.dumps(said))
        assert refused("batch", *ARGS) == "out/run.json is damaged: give a new folder"


def test_other_weights_at_the_same_path_are_refused(run: Run, refused: Refused, out: Path) -> None:
    mine = Path("model/weights.safetensors")
    mine.parent.mkdir()
    shutil.copy(Path(models.__file__).parent / "builtin" / "demo.safetensors", mine)
    for model in (mine, mine.parent):
        args = ("batch", "in.txt", "-o", f"of-{model.name}", "--model", model, "--jobs", "1")
        assert run(*args).code == 0
        (mine.parent / "notes.txt").write_text("another file")
        assert "4 finished before" in run(*args).err
        stat = mine.stat()
        os.utime(mine, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))
        said = f"of-{model.name} holds a batch with other files of the model: give a new folder, or --replace"
        assert refused(*args, code=2) == said


def test_a_damaged_part_is_named_and_made_anew(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ended in a traceback of the library that read it, and later in a line that asked to take the file away."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder_module, "GROUP", 2)
    Path("in.txt").write_text("one two\nthree four\nfive six\nseven eight\n")
    check_a_damaged_part("batch in.txt --format statistics -m random --jobs 1", ".tallies", "statistics.csv", run)


def check_a_damaged_part(command: str, parts: str, made: str, run: Run) -> None:
    """Assert that a run which goes on in a folder names a damaged part, and makes it anew."""
    assert run(*command.split(), "-o", "out").code == 0
    wanted = contents(Path("out"))
    part = sorted(Path("out", parts).iterdir())[0]
    for damaged in (b"{}".ljust(part.stat().st_size), None):
        part.unlink() if damaged is None else part.write_bytes(damaged)
        done = run(*command.split(), "-o", "out")
        assert done.code == 0 and f"{parts}/{part.name} damaged or gone, and made again" in done.err, done
        assert contents(Path("out")) == wanted and made in wanted
    manifest = Path("out/manifest.jsonl")
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(
        b"".join([*lines[:3], lines[3].replace(b'"files":[', b'"files":[ ')])
    )  # it lists what they share
    assert run(*command.split(), "-o", "out").code == 0 and contents(Path("out")) == wanted
