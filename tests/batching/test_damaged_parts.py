"""Files that a group shares, of their size and damaged: made anew, and said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnctl.batching import census_work
from attnctl.batching import folder as folder_module

Run = Callable[..., Any]

WORDS = (
    "1",
    "{}",
    "[5]",
    "[[0,0,0]]",
    '[[0,0,"entropy",1,1e999,0]]',
    '[[-1,0,"entropy",1,0,0]]',
    '[[0,0,"x",1,0,0]]',
    "\0",
)

TREES = "".join(
    f"# sent_id = {number}\n1\tAlice\t_\tPROPN\t_\t_\t2\tnsubj\t_\t_\n2\teats\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    for number in range(4)
)


@pytest.fixture(autouse=True)
def small_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder_module, "GROUP", 2)
    monkeypatch.setattr(census_work, "TOGETHER", 2)
    Path("in.txt").write_text("one two\nthree four\nfive six\nseven eight\n")
    Path("in.conllu").write_text(TREES)


@pytest.mark.parametrize(
    ("arguments", "parts", "made"),
    [
        (["batch", "in.txt", "--format", "statistics", "-m", "random", "--jobs", "1"], ".tallies", "statistics.csv"),
        (["batch", "in.txt", "--format", "contact-sheet", "-m", "random", "--jobs", "1"], "contact-sheet", "contact-sheet.pdf"),
        (["evaluate", "in.conllu", "-m", "random", "--least", "1"], ".tallies", "census.json"),
    ],
    ids=["statistics", "contact-sheet", "census"],
)  # fmt: skip
def test_a_damaged_part_is_named_and_made_anew(arguments: list[str], parts: str, made: str, run: Run) -> None:
    """Each ended in a traceback of the library that read it, and later in a line that asked to take the file away."""
    assert run(*arguments, "-o", "out").code == 0
    whole = (Path("out") / made).read_bytes()
    part = sorted((Path("out") / parts).iterdir())[0]
    sound = part.read_bytes()
    for damaged in (
        *(word.encode().ljust(len(sound)) for word in WORDS),
        sound[: len(sound) // 2].ljust(len(sound), b"\0"),
    ):
        part.write_bytes(damaged)
        done = run(*arguments, "-o", "out")
        assert done.code == 0 and f"{parts}/{part.name} damaged or gone, and made again" in done.err, done
        assert part.read_bytes() == sound and (Path("out") / made).read_bytes() == whole
    part.unlink()
    assert run(*arguments, "-o", "out").code == 0
    assert part.read_bytes() == sound and (Path("out") / made).read_bytes() == whole
