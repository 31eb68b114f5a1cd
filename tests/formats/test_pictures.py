"""The one table of picture formats: a new format is a line in it and a writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnctl import __version__, find_named
from attnctl.formats import pictures
from attnctl.formats.pictures import PictureFormat
from tests.conftest import SAMPLES, Refused, Run


def written(figure: Any) -> bytes:
    width, height = figure.get_size_inches()
    return f"a figure of {width:.2f} x {height:.2f}".encode()


@pytest.fixture
def invented(monkeypatch: pytest.MonkeyPatch) -> None:
    form = PictureFormat("fig", "figure", f"{__name__}:written")
    monkeypatch.setitem(pictures.PICTURE_FORMATS, "fig", form)


@pytest.mark.usefixtures("invented")
@pytest.mark.parametrize(
    "arguments",
    [("heatmap", "a b"), ("heads", "a b"), ("compare", "random", "dot", "a b"), ("heatmap", "a b", "--log")],
)
def test_a_new_format_is_written_by_every_command(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    result = run(*arguments, "-o", str(tmp_path / "x.fig"))
    assert result.code == 0, result.err
    assert (tmp_path / "x.fig").read_bytes().startswith(b"a figure of ")


@pytest.mark.usefixtures("invented")
def test_the_errors_name_a_new_format(refused: Refused) -> None:
    for command in (("heatmap", "a b"), ("heads", "a b"), ("compare", "random", "dot", "a b")):
        assert ".svg, .pdf or .fig" in refused(*command, "-o", "x.nope", code=2)


def test_every_writer_is_there() -> None:
    for form in pictures.PICTURE_FORMATS.values():
        for reference in (form.writer, form.heatmap_writer):
            assert reference is None or callable(find_named(reference))


@pytest.mark.parametrize("command", ["heatmap", "heads", "ablate", "compare", "view", "explain", "evaluate", "batch"])
def test_every_picture_and_page_says_what_it_came_from(command: str, run: Run, tmp_path: Path) -> None:
    cited = f"attnctl {__version__}, demo: bundled with attnctl {__version__}"
    text = "Alice will eat pizza"
    (tmp_path / "in.txt").write_text(text)
    asked: dict[str, tuple[tuple[object, ...], tuple[str, ...], str]] = {
        "heatmap": ((text,), ("x.png", "x.svg", "x.pdf", "x.html"), cited),
        "heads": ((text,), ("x.png", "x.svg"), cited),
        "ablate": ((text,), ("x.png", "x.svg"), cited),
        "compare": (("demo", "random", text), ("x.png", "x.svg"), cited),
        "view": ((text, "--no-open"), ("x.html",), cited),
        "explain": ((text,), ("x.svg",), cited),
        "evaluate": ((SAMPLES / "sentences.conllu",), ("x.png", "x.html"), f"attnctl {__version__}, demo on sentences"),
        "batch": ((tmp_path / "in.txt", "--format", "contact-sheet"), ("folder",), f"attnctl {__version__}, "),
    }
    arguments, names, said = asked[command]
    for name in names:
        made = run(command, *arguments, "-o", tmp_path / name)
        assert made.code == 0, made.err
        path = tmp_path / name
        pages = sorted(path.rglob("*.png")) if path.is_dir() else [path]
        assert pages and all(said.encode("latin-1") in page.read_bytes() for page in pages), name
