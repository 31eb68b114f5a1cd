"""The documentation as a site of HTML pages: MkDocs with the Material theme, offline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from attnctl.cli.documentation.topics import FOLDER, all_topics
from attnctl.errors import AttnctlError, UsageError
from attnctl.interrupts import tidied_up

CONFIGURATION = "mkdocs.yml"
COPIED = ("pictures", "web")  # folders beside the pages
SAID_LINES = 3  # of what MkDocs says where it fails
MARK = ".attnctl-site"  # the file that tells a folder with a site of ours, which may be replaced


def index_page() -> str:
    """The Markdown of the first page: every topic, a line each."""
    sections: dict[str, list[str]] = {}
    for topic in all_topics().values():
        sections.setdefault(topic.section, []).append(f"- [{topic.name}]({topic.name}.md): {topic.about}")
    parts = ["# attnctl", (FOLDER / "welcome.md").read_text(encoding="utf-8").strip()]
    parts += ["\n\n".join((f"## {section}", "\n".join(lines))) for section, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def navigation() -> list[dict[str, str] | dict[str, list[str]]]:
    """The `nav` of MkDocs: sections in reading order, each with its pages."""
    sections: dict[str, list[str]] = {}
    for topic in all_topics().values():
        sections.setdefault(topic.section, []).append(f"{topic.name}.md")
    return [{"Home": "index.md"}, *[dict([entry]) for entry in sections.items()]]


def stage(folder: Path, target: Path) -> Path:
    """Put every page and the configuration into `folder`, so that MkDocs builds into `target`; answers the configuration."""
    pages = folder / "pages"
    pages.mkdir()
    (pages / "index.md").write_text(index_page(), encoding="utf-8")
    for topic in all_topics().values():
        (pages / f"{topic.name}.md").write_text(topic.markdown(), encoding="utf-8")
    for name in COPIED:
        shutil.copytree(FOLDER / name, pages / name)
    settings = {"docs_dir": str(pages), "site_dir": str(target), "nav": navigation()}
    added = "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())  # JSON is YAML
    configuration = folder / CONFIGURATION
    configuration.write_text((FOLDER / CONFIGURATION).read_text(encoding="utf-8") + added, encoding="utf-8")
    return configuration


def build_site(target: Path) -> Path:
    """Build the site into the folder `target`, whole or not at all; answers its first page.

    Raises UsageError where MkDocs is not installed or `target` holds something else, AttnctlError for any warning of MkDocs.
    """
    if find_spec("material") is None or find_spec("mkdocs") is None:
        raise UsageError('the site is built by MkDocs: pip install "attnctl[docs]" (attnctl docs TOPIC needs nothing)')
    if target.exists() and not (target / MARK).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} holds other files: name a new folder for the site")
    with tidied_up(), tempfile.TemporaryDirectory() as temporary:
        built = Path(temporary) / "site"
        run_mkdocs(stage(Path(temporary), built))
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True, exist_ok=True)
        (target / MARK).touch()
        shutil.copytree(built, target, dirs_exist_ok=True)
    return target / "index.html"


def run_mkdocs(configuration: Path) -> None:
    """Run MkDocs. Raises AttnctlError with what it says where it warns or fails."""
    silenced = {"NO_MKDOCS_2_WARNING": "1"}  # which is about the theme's next version, not about these pages
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(configuration)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | silenced, check=False)
    if done.returncode:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        wrong = [line for line in said if line.startswith(("WARNING", "ERROR"))] or said
        raise AttnctlError(f"the site was not built: {' '.join(' '.join(wrong[:SAID_LINES]).split())}")
