"""attnctl docs: pages in the terminal, the site."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attnctl
from attnctl.cli.app import load_command
from attnctl.commands.docs.references import command_page
from attnctl.commands.docs.site import FOLDER, MARK, THEME, WRITTEN, PageMarkdown, all_topics, plain_source
from attnctl.formats.documents.schemas import SCHEMAS
from attnctl.registry import COMMANDS
from attnctl.render.terminal.console import SafeConsole
from tests.conftest import Refused, Run
from tests.tools.documentation.examples import ROOT
from tests.tools.documentation.python_reference import PAGE, code, python_page


def test_the_top_level_holds_what_a_stranger_expects() -> None:
    """A file that a test wrote there was committed once."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("no checkout of git")
    top = {line.partition("/")[0] for line in listed}
    folders, files = (
        {"attnctl", "tests", "samples", "findings"},
        {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"},
    )
    assert {name for name in top if not name.startswith(".")} <= folders | files


def test_every_page_is_listed() -> None:
    files = {path.stem for path in FOLDER.glob("*.md")} - {"welcome", "python"}
    assert files == {topic for pages in WRITTEN.values() for topic in pages}


@pytest.mark.grid
@pytest.mark.parametrize("topic", all_topics())
def test_a_page_in_a_pipe_and_in_a_terminal(run: Run, topic: str) -> None:
    piped = run("docs", topic)
    assert piped.code == 0 and piped.out.startswith("# ") and "<!--" not in piped.out and "\x1b" not in piped.out
    blocks = re.findall(r"^```\w*\n(.*?)^```", piped.out, re.S | re.M)
    code = {line.strip() for block in blocks for line in block.splitlines()}
    indented = {line.strip() for line in re.findall(r"^    .*", piped.out, re.M)}
    console = SafeConsole(file=io.StringIO(), width=60, theme=THEME, force_terminal=True)
    console.print(PageMarkdown(piped.out, hyperlinks=False), crop=False)
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()]
    assert code <= set(lines)  # whole: it is copied
    assert max(len(line) for line in lines if line not in code | indented) <= 60


def test_a_command_is_a_topic(run: Run) -> None:
    assert run("docs", "explain").out == run("docs", "attnctl-explain").out
    assert run("docs", "Long Prompt").out == run("docs", "long-prompt.md").out


def test_the_reference_of_a_command_has_all_of_its_help() -> None:
    for name in COMMANDS:
        page, command = command_page(name), load_command(name)
        for rows in command.help_rows(command.make_context(name, [], resilient_parsing=True)).values():
            assert all(flags in page for flags, _ in rows), name
        assert all(opt in page for parameter in command.params for opt in parameter.opts if opt.startswith("-")), name


def test_the_python_reference_has_the_whole_api() -> None:
    page = python_page()
    assert page == PAGE.read_text(encoding="utf-8"), "python -m tests.tools.documentation python"
    assert all(f"\n## {name}\n" in page for name in attnctl.__all__ if not name.startswith("__"))
    assert "attnctl.attend(\n    text: str,\n" in page and "trace.save(path: str | Path)" in page
    assert code("f", lambda a, *, b=1: None) == "```python\nf(a, *, b=1)\n```"


def test_the_formats_have_every_field(run: Run) -> None:
    page = run("docs", "formats").out
    for make in SCHEMAS.values():
        assert all(f"`{name}`" in page for name in make()["properties"])


def test_a_page_outside_the_site() -> None:
    source = (
        "a [guide](long-prompt.md#x) and [`attnctl heads`](attnctl-heads.md) ![A grid](pictures/x.png) <!-- n -->\n\nb"
    )
    said = "a guide (`attnctl docs long-prompt`) and `attnctl heads` (`attnctl docs heads`) (picture: A grid) b"
    assert plain_source(source) == said


# --- the site ----------------------------------------------------------------------------------------------------


def test_the_site_is_replaced_by_a_whole_one_alone(
    run: Run, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("material")
    site = tmp_path / "site"
    site.mkdir()
    (site / MARK).touch()
    (site / "old.html").touch()
    built = run("docs", "--site", site)
    assert (built.code, built.err) == (0, "") and built.out.strip() == str(site / "index.html")
    pages = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    assert {f"{topic}.html" for topic in all_topics()} <= set(pages) and "old.html" not in pages
    for name, page in pages.items():  # nothing is fetched from elsewhere
        fetched = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="([^"]+)"', page)
        fetched += re.findall(r'<link[^>]*\brel="(?:stylesheet|icon|preconnect)"[^>]*\bhref="([^"]+)"', page)
        assert not [address for address in fetched if "//" in address], name
    assert (site / "pictures" / "heatmap.png").is_file()
    own = tmp_path / "docs"
    shutil.copytree(FOLDER, own)
    (own / "welcome.md").write_text("see [nothing](nothing.md)\n")
    monkeypatch.setattr("attnctl.commands.docs.site.FOLDER", own)
    assert "nothing.md" in refused("docs", "--site", site)  # a warning is an error
    assert (site / "index.html").read_text(encoding="utf-8") == pages["index.html"]


def test_other_files_are_not_written_over(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("material")
    for name in ("mine.txt", "index.html"):
        file = tmp_path / name.partition(".")[0] / name
        file.parent.mkdir()
        file.write_text("x")
        assert "holds other files" in refused("docs", "--site", file.parent, code=2)
        assert "holds other files" in refused("docs", "--site", file, code=2)
        assert file.read_text() == "x"
    monkeypatch.setattr("attnctl.commands.docs.site.find_spec", lambda name: None)  # MkDocs is not installed
    for asked in (("--site", tmp_path / "site"), ("lesson", "--open")):
        assert 'pip install "attnctl[docs]"' in refused("docs", *asked, code=2)


def test_open(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("attnctl.commands.docs.site.build_site", lambda target: target / "index.html")
    monkeypatch.setattr("attnctl.cli.browser.show_in_browser", seen.append)
    assert run("docs", "lesson", "--open").code == 0 and seen[0].endswith("lesson.html")
    assert seen[0].startswith(str(tmp_path))


def test_the_page_of_the_architecture_names_what_there_is() -> None:
    page = (ROOT / "attnctl/docs/architecture.md").read_text()
    for name, path in re.findall(r"`(\w+)`\s+(?:in|of)\s+`((?:attnctl|tests)/[\w/.]+\.\w+)`", page):
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text()), (name, path)


def test_the_engine_has_at_most_22_concepts_each_with_its_file() -> None:
    page = (ROOT / "attnctl/docs/architecture.md").read_text()
    table = page.partition("## The engine")[2].partition("\nWhat is inside")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| `([^`]+)` \|$", table, re.MULTILINE)
    assert 15 < len(rows) <= 22 and len(rows) == table.count("\n| `")
    inside = (ROOT / "attnctl/docs/models-inside.md").read_text()
    rows += re.findall(r"^\| `(\w+)` \| [^|]+ \| `([^`]+)` \|$", inside, re.MULTILINE)
    assert len(rows) > 40
    for name, path in rows:
        assert re.search(rf"^(class|def) {name}\b", (ROOT / path).read_text(), re.MULTILINE), (name, path)


def test_the_page_of_the_architecture_names_places_that_exist() -> None:
    """Each name before "in FILE" is defined there, and each file beside another one stands in its folder."""
    table = (ROOT / "attnctl/docs/architecture.md").read_text().partition("## Where is")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| (.+) \|$", table, re.MULTILINE)[2:]  # below the head
    assert len(rows) > 40
    for row in rows:
        paths = [ROOT / path for path in re.findall(r"`(attnctl/[\w/.-]+)`", row)]
        assert all(path.exists() for path in paths), row
        for name in set(re.findall(r"`(\w+\.py)`", row)) - {"result.py"}:  # of each command
            assert any((path if path.is_dir() else path.parent).joinpath(name).is_file() for path in paths), (name, row)
        for names, path in re.findall(r"((?:`[\w.]+`(?:,? and |, )?)+)(?: in|:) `(attnctl/[\w/]+\.py)`", row):
            text = (ROOT / path).read_text()
            for name in re.findall(r"`([\w.]+)`", names):
                last = name.rpartition(".")[2]
                assert re.search(rf"^ *(?:class |def )?{last}\b[ :=(]", text, re.MULTILINE), (name, path)


FILES_OF_A_RUN = """
import os, sys
seen = set()
def note(frame, event, argument):
    if frame.f_code.co_name != "<module>" and not frame.f_code.co_name[:1].isupper():  # no import, no body of a class
        seen.add(frame.f_code.co_filename)
sys.settrace(note)
import attnctl
from attnctl.cli.app import run_command_line
sys.argv = ["attnctl", "explain", "Alice will eat pizza"]
try:
    run_command_line()
except SystemExit:
    pass
sys.settrace(None)
here = os.path.dirname(attnctl.__file__)
print(*(os.path.relpath(path, here)[:-3] for path in seen if path.startswith(here + os.sep)), file=sys.stderr)
"""


def test_the_page_of_the_architecture_names_the_files_that_explain_passes_through() -> None:
    page = (ROOT / "attnctl/docs/architecture.md").read_text().partition("passes through these files, ")[2]
    table = page.partition("A file is one subject")[0]
    done = subprocess.run([sys.executable, "-c", FILES_OF_A_RUN], capture_output=True, text=True, check=True)
    seen = set(done.stderr.split())
    assert int(table.split()[0]) == len(seen)
    named = re.findall(r"`([\w/]+[^/`])`", table)
    assert len(named) == len(seen)
    assert {path.rpartition("/")[2] for path in seen} == {name.rpartition("/")[2] for name in named}


def test_the_samples_of_the_pages(run: Run, refused: Refused, tmp_path: Path) -> None:
    target = tmp_path / "new" / "samples"
    written = run("docs", "--samples", target)
    names = {path.name for path in (ROOT / "samples").iterdir() if path.is_file()} | {"own_model/tiny.py"}
    assert written.code == 0 and {Path(path) for path in written.out.splitlines()} == {target / name for name in names}
    assert all((target / name).read_bytes() == (ROOT / "samples" / name).read_bytes() for name in names)
    assert run("docs", "--samples", target).code == 0  # once more: they are the same
    (target / "mat.txt").write_text("mine")
    assert "mat.txt is another file" in refused("docs", "--samples", target, code=2)
    assert (target / "mat.txt").read_text() == "mine"
