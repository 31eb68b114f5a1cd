"""What the tests of the command line share: each stands in an empty folder of its own, with defaults of nobody."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the defaults of a user's own are kept."""
    monkeypatch.setenv("ATTNCTL_CONFIG", str(tmp_path / "own" / "config.toml"))
    (tmp_path / "own").mkdir()
    return tmp_path / "own" / "config.toml"
