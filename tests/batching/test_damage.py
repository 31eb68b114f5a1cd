"""A folder that something else wrote to: nothing kept is lost, nothing is trusted that is not whole, every refusal is a line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnctl import models
from tests.batching.test_resume import check_whole, contents, sentences

Run = Callable[..., Any]
ARGS = ("--format", "json,npz", "--jobs", "1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("one\ntwo\nthree\nfour\n")
    return path


@pytest.fixture
def out(run: Run, file: Path, tmp_path: Path) -> Path:
    assert run("batch", file, "-o", tmp_path / "out", *ARGS).code == 0
    shutil.copytree(tmp_path / "out", tmp_path / "fresh")
    return tmp_path / "out"


def lines_of(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def write(folder: Path, entries: list[Any]) -> None:
    (folder / "manifest.jsonl").write_text(
        "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries)
    )


def again(run: Run, file: Path, out: Path) -> None:
    """Going on ends where a run of its own does."""
    result = run("batch", file, "-o", out, *ARGS)
    assert result.code == 0 and result.err.count("\n") == 1, result.err
    assert contents(out) == contents(out.parent / "fresh")
    assert check_whole(out) == 4


def changed_files(entry: Any, **changes: Any) -> Any:
    """A line of a manifest with other entries of its files."""
    return {**entry, "files": [{**file, **changes} for file in entry["files"]]}


def with_name(entry: Any, name: str, size: int = 1, **more: Any) -> Any:
    return {**entry, "files": [{"file": name, "bytes": size}], **more}


OWN = ("traces.jsonl", "run.json", "manifest.jsonl")
# manifests that something else wrote, of the four lines that were there
MANIFESTS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "a line twice": lambda e: [e[0], *e],
    "files by another name": lambda e: [
        *e,
        {**e[3], "number": 4, "files": [{**file, "file": f"./{file['file']}"} for file in e[3]["files"]]},
    ],
    **{f"{name}, past the last": lambda e, name=name: [*e, with_name(e[3], name, number=4)] for name in OWN},
    **{f"{name}, of the last": lambda e, name=name: [*e[:3], with_name(e[3], name, 900)] for name in OWN},
    **{
        f"a file elsewhere: {name[:9]}": lambda e, name=name: [*e, with_name(e[3], name, number=4)]
        for name in ("../in.txt", "/etc/hosts", "", ".", "x" * 300)
    },
    "a part that begins elsewhere": lambda e: [*e[:3], changed_files(e[3], offset=0)],
    "no files": lambda e: [*e[:2], {key: value for key, value in e[2].items() if key != "files"}, e[3]],
    "lines of other types": lambda e: [*e[:3], 5, None, ["a"]],
    "a status of another type": lambda e: [*e[:3], {**e[3], "status": []}],
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_something_else_wrote_takes_no_file_away(run: Run, file: Path, out: Path, name: str) -> None:
    write(out, MANIFESTS[name](lines_of(out)))
    again(run, file, out)


FILE = {"file": "0000001-two.npz", "bytes": 1}


@pytest.mark.parametrize(
    "files",
    [
        *(5, None, [5], ["a"], [{}], [{"file": 5}], [{**FILE, "file": "a\0b"}], [{**FILE, "file": None}], [], {}),
        *([{**FILE, "file": []}], [{"file": "a"}], [FILE]),
        *([{**FILE, name: value}] for name in ("bytes", "offset") for value in ("x", None, -1, [], 1.5, True)),
        [{"file": "run.json", "bytes": 0, "offset": 0}],
    ],
)
def test_a_line_of_wrong_types_is_not_whole(run: Run, file: Path, out: Path, files: Any) -> None:
    entries = lines_of(out)
    write(out, [entries[0], {**entries[1], "files": files}, *entries[2:]])
    again(run, file, out)
    write(out, [*entries, {**entries[1], "number": 4, "files": files}])  # past the last
    again(run, file, out)


@pytest.mark.parametrize("name", ["traces.jsonl", "0000001-two.npz"])
def test_a_file_that_is_another_cut_or_gone_is_noticed(run: Run, file: Path, out: Path, name: str) -> None:
    """Sizes alone were compared: what a bad disk or an editor had changed counted as done."""
    whole = (out / name).read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in (0, len(whole) // 2, len(whole) - 1)]
    for changed in (*flipped, whole[:-9], None):
        (out / name).unlink() if changed is None else (out / name).write_bytes(changed)
        result = run("batch", file, "-o", out, *ARGS)
        assert result.code == 0
        done = "4 done" if changed is None and name == "traces.jsonl" else "1 done, 3 there before"
        assert f"{done}, {name} damaged or gone, and made again" in result.err, result.err
        assert contents(out) == contents(out.parent / "fresh") and check_whole(out) == 4
    assert "damaged" not in run("batch", file, "-o", out, *ARGS).err


def test_a_digest_that_is_another_is_mended_in_the_manifest(run: Run, file: Path, out: Path) -> None:
    entries = lines_of(out)
    for entry in entries[1:3]:
        for part in entry["files"]:
            part["sha256"] = "0" * 64
    write(out, entries)
    result = run("batch", file, "-o", out, *ARGS)
    assert "2 done, 2 there before: see" in result.err
    assert contents(out) == contents(out.parent / "fresh") and check_whole(out) == 4
    assert "damaged" not in run("batch", file, "-o", out, *ARGS).err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_in_a_finished_file_s_place_is_replaced(run: Run, file: Path, out: Path) -> None:
    (out / "0000001-two.npz").unlink()
    os.mkfifo(out / "0000001-two.npz")
    again(run, file, out)


def test_the_last_line_of_a_group_lists_what_it_shares(run: Run, tmp_path: Path) -> None:
    file = sentences(tmp_path / "in.txt", 200)
    args = (file, "--format", "statistics", "--head", "0", "--jobs", "1")
    assert run("batch", *args, "-o", tmp_path / "out").code == 3
    shutil.copytree(tmp_path / "out", tmp_path / "fresh")
    for at in (191, 199):
        entries = lines_of(tmp_path / "out")
        write(tmp_path / "out", [*entries[:at], {**entries[at], "files": []}, *entries[at + 1 :]])
        assert run("batch", *args, "-o", tmp_path / "out").code == 3
        assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("said", [5, None, ["a"], "a"])
def test_a_damaged_run_is_one_line(refused: Run, file: Path, out: Path, said: Any) -> None:
    for document in (said, {"schema": "attnctl.batch/2", "said": said}):
        (out / "run.json").write_text(json.dumps(document))
        line = refused("batch", file, "-o", out, *ARGS)
        assert line == f"{out}/run.json is damaged: give a new folder"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["run.json", "manifest.jsonl", "traces.jsonl"])
def test_a_pipe_is_not_waited_for(name: str, file: Path, out: Path) -> None:
    from tests.conftest import process

    (out / name).unlink()
    os.mkfifo(out / name)
    done = process("batch", str(file), "-o", str(out), *ARGS)
    assert done.returncode == 1
    assert done.stderr.decode() == f"attnctl: {out}/{name} is no regular file: give a new folder\n"


@pytest.mark.parametrize("as_file", [True, False])
def test_other_weights_at_the_same_path_are_refused(
    run: Run, refused: Run, file: Path, tmp_path: Path, as_file: bool
) -> None:
    source = Path(models.__file__).parent / "builtin" / "demo.safetensors"
    model = tmp_path / "model"
    model.mkdir()
    mine = model / "weights.safetensors"
    shutil.copy(source, mine)
    (model / "notes.txt").write_text("one")
    args = (file, "-o", tmp_path / "out", "--model", mine if as_file else model, "--jobs", "1")
    assert run("batch", *args).code == 0
    (model / "notes.txt").write_text("another")
    assert "4 there before" in run("batch", *args).err
    stat = mine.stat()
    os.utime(mine, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))
    line = refused("batch", *args, code=2)
    assert line == f"{tmp_path}/out holds a batch with other files of the model: give a new folder, or --replace"
