"""Files: written whole, seen by nobody else while they are, and no link in a folder of the program's own followed."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import IO

import pytest

from attnctl.batching.manifest import AppendedFile
from attnctl.errors import AttnctlError
from attnctl.runtime.files import lock_file, lock_folder, write_whole
from tests.conftest import Refused

posix = pytest.mark.skipif(sys.platform == "win32", reason="modes and links of POSIX")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("w.npy", ("heatmap", "w.npy")),
        ("m.gguf", ("explain", "a b", "--model", "m.gguf")),
        ("w.safetensors", ("explain", "a b", "--model", "w.safetensors")),
    ],
)
def test_a_pointer_of_git_lfs_is_called_one(
    name: str, command: tuple[str, ...], refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The text is that of the specification, v1: what a clone holds where git-lfs is not installed."""
    monkeypatch.chdir(tmp_path)
    oid = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
    Path(name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 12345\n")
    assert "it is a pointer of Git LFS, not the file itself: git lfs pull fetches it" in refused(*command)


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_private_file_is_private_while_it_is_written(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "private.json"
    path.write_text("before")
    path.chmod(mode)
    seen = list[int]()

    def write(file: IO[bytes]) -> None:
        (temporary,) = tmp_path.glob(".*.part")
        seen.append(stat.S_IMODE(temporary.stat().st_mode))
        file.write(b"after")

    write_whole(path, write)
    assert [one & ~mode for one in seen] == [0] and stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"after"


@posix
def test_a_link_is_written_through_where_a_user_named_it_and_gives_way_in_a_folder_of_ours(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "out"
    folder.mkdir()
    victim.write_text("dear")
    (folder / "a.png").symlink_to("../victim")
    write_whole(folder / "a.png", b"drawn", inside=folder)
    assert victim.read_text() == "dear" and not (folder / "a.png").is_symlink()
    assert (folder / "a.png").read_bytes() == b"drawn"
    (folder / "0000000").symlink_to(tmp_path)
    with pytest.raises(AttnctlError, match="0000000 is a link, which is not followed: give a new folder"):
        write_whole(folder / "0000000" / "victim", b"drawn", inside=folder)
    (folder / "traces.jsonl").symlink_to("../victim")
    with pytest.raises(AttnctlError, match=r"traces.jsonl is a link"):
        AppendedFile(folder / "traces.jsonl")
    assert victim.read_text() == "dear"
    (tmp_path / "link").symlink_to("victim")
    write_whole(tmp_path / "link", b"meant")
    assert victim.read_text() == "meant" and (tmp_path / "link").is_symlink()


@posix
def test_a_lock_is_of_the_file_and_follows_no_link_in_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    held = lock_file(tmp_path / "a.jsonl")
    with pytest.raises(AttnctlError, match="is being written by another run: wait for it, or give another file"):
        lock_file(tmp_path / "b.jsonl")
    held.release()
    lock_file(tmp_path / "b.jsonl").release()
    folder = tmp_path / "out"
    folder.mkdir()
    (tmp_path / "victim").write_text("dear")
    (folder / ".lock").symlink_to("../victim")
    with pytest.raises(AttnctlError, match="cannot lock"):
        lock_folder(folder)
    assert (tmp_path / "victim").read_text() == "dear" and list(folder.iterdir()) == [folder / ".lock"]
