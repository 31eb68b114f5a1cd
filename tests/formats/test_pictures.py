"""Every picture and page says what it came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnctl import __version__
from tests.conftest import Run

TEXT = "Alice will eat pizza"
CITED = f"attnctl {__version__}, demo: bundled with attnctl {__version__}"


@pytest.mark.grid
@pytest.mark.parametrize(
    ("arguments", "names", "said"),
    [
        (("heatmap", TEXT), ("x.png", "x.svg", "x.pdf"), CITED),
        (("heads", TEXT), ("x.png", "x.svg"), CITED),
        (("ablate", TEXT), ("x.png", "x.svg"), CITED),
        (("compare", "demo", "random", TEXT), ("x.png", "x.svg"), CITED),
        (("view", TEXT, "--no-open"), ("x.html",), CITED),
        (("explain", TEXT), ("x.svg",), CITED),
        (("batch", "in.txt", "--format", "png"), ("folder",), CITED),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_every_picture_and_page_says_what_it_came_from(
    arguments: tuple[object, ...],
    names: tuple[str, ...],
    said: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text(TEXT)
    for name in names:
        made = run(*arguments, "-o", name)
        assert made.code == 0, made.err
        path = Path(name)
        pages = sorted(path.rglob("*.png")) if path.is_dir() else [path]
        assert pages and all(said.encode("latin-1") in page.read_bytes() for page in pages), name
