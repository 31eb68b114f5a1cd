"""What the tests share: running the command line in this process, and a fixed console."""

from __future__ import annotations

import gc
import io
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pexpect
import pytest

import attnctl

pytest_plugins = ["pytester"]  # the tests of this file run pytest

SAMPLES = Path(__file__).parent.parent / "samples"


def give_children_default_signals() -> None:
    """Let child processes listen to Ctrl-C and to a closed terminal, also where this process ignores them.

    `nohup` and a shell's `&` start a process that ignores these signals, and its children inherit that. A handler that does
    nothing ignores the signal as well, but is not inherited: a new program starts with the default of the system.
    """
    for number in (signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGINT)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


give_children_default_signals()
gc.set_threshold(100_000)  # a test makes little that only a collection frees


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Walk through no million objects of what the tests import, again and again: none of them is ever freed."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.unfreeze()  # they are old now, as after a collection
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --whole: without it, a run of the whole suite takes a third of each grid."""
    parser.addoption(
        "--whole", action="store_true", help="run every cell of each grid of equal tests, not a third of them"
    )


def pytest_report_header(config: pytest.Config) -> str:
    """Say which share of the grids runs."""
    return f"grids: {'all' if takes_all_cells(config) else 'a third'} of the cells{' (--whole: all)' * (not takes_all_cells(config))}"


def takes_all_cells(config: pytest.Config) -> bool:
    """Return whether every cell of a grid runs: with --whole, and where tests are named."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS or bool(config.option.keyword)
    return bool(config.option.whole or named)


def in_third(name: str) -> bool:
    """Return whether a cell of this name is among the third that always runs: the same one on every machine."""
    return zlib.crc32(name.encode()) % 3 == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out two thirds of the tests marked `grid`, but never all cells of a function."""
    if takes_all_cells(config):
        return
    grids: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("grid"):
            grids.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {cell for cells in grids.values() for cell in [c for c in cells if in_third(c.nodeid)] or cells[:1]}
    left = [cell for cells in grids.values() for cell in cells if cell not in kept]
    config.hook.pytest_deselected(items=left)
    gone = set(left)
    items[:] = [item for item in items if item not in gone]


@pytest.fixture
def takes(request: pytest.FixtureRequest) -> Callable[[str], bool]:
    """Return whether this run takes a cell, by its name, of a grid that a test walks through itself."""
    everything = takes_all_cells(request.config)
    return lambda name: everything or in_third(name)


@pytest.fixture(scope="session", autouse=True)
def _settings_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The defaults file of whoever runs the tests is neither read nor written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
        for name in [name for name in os.environ if name.startswith("ATTNCTL_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="module")
def network_kept() -> Iterator[None]:
    """Keep the last checkpoint's network for the questions of a file, as the shell does: they must not change it."""
    from attnctl.models import networks_kept

    with networks_kept():
        yield


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `attnctl ARGS…` in this process, as if its output went to a pipe 80 columns wide.

    What it reads from `stdin` is no pipe; with `pipe` it is one.
    """

    def attnctl(*args: str, stdin: bytes = b"", pipe: bytes | None = None, columns: int = 80) -> Result:
        from attnctl.cli.app import run_command_line

        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        with monkeypatch.context() as patch:
            patch.setattr("attnctl.cli.progress.EVERY", math.inf)  # however busy the machine, no line of long work
            patch.setattr("attnctl.cli.progress.LONG", math.inf)
            patch.setattr(sys, "argv", ["attnctl", *map(str, args)])
            patch.setattr(sys.modules["__main__"], "__package__", None)  # of `python -m pytest`, which help would name
            given = io.TextIOWrapper(io.BytesIO(stdin) if pipe is None else _pipe_of(pipe), "utf-8")
            patch.setattr(sys, "stdin", given)
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as exit_:
                run_command_line()
        given.close()
        out.flush()
        err.flush()
        return Result(exit_.value.code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())

    return attnctl


def _pipe_of(data: bytes) -> io.BufferedReader:
    """Return the end of a pipe from which a few bytes can be read."""
    end, start = os.pipe()
    os.write(start, data)
    os.close(start)
    return os.fdopen(end, "rb")


Refused = Callable[..., str]


@pytest.fixture
def refused(run: Run) -> Refused:
    """Run `attnctl ARGS…`, which must fail with one line on stderr and nothing on stdout; answers that line.

    A batch whose items fail (exit code 3) writes a record of each failure.
    """

    def attnctl(*args: str, code: int = 1, **more: Any) -> str:
        result = run(*args, **more)
        assert result.code == code and (code == 3 or not result.out), result
        assert all("error" in json.loads(line) for line in result.out.splitlines()), result
        assert result.err.startswith("attnctl: ") and result.err.count("\n") == 1, result.err
        assert "Traceback" not in result.err
        return result.err.removeprefix("attnctl: ").rstrip("\n")

    return attnctl


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that commands read: samples, traces, corpora, a training, small checkpoints."""
    from tests.tools.shown import fill_room

    path = tmp_path_factory.mktemp("room")
    fill_room(path)
    return path


@pytest.fixture(scope="session")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small checkpoint with a chat template, which reads 2,048 tokens."""
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    from tests.tools import folders

    made = folders.write(tmp_path_factory.mktemp("chatty"), "llama", max_position_embeddings=2048)
    (made / "chat_template.jinja").write_text(folders.CHATML)
    return made


@pytest.fixture
def at_terminal(room: Path) -> Run:
    """Run `attnctl ARGS…` in the room, as if at a terminal of that width."""
    from tests.tools.shown import run_line

    def attnctl(*args: str, columns: int = 80) -> Result:
        return Result(*run_line(shlex.join(["attnctl", *map(str, args)]), room, columns))

    return attnctl


def attend(text: str, model: str = "random", **how: Any) -> attnctl.Trace:
    """As attnctl.attend, but of random weights unless told otherwise: they take every option."""
    return attnctl.attend(text, model, **how)


@cache
def _validator(name: str) -> Any:
    from jsonschema_rs import Draft202012Validator

    from attnctl.formats.documents.schemas import SCHEMAS

    return Draft202012Validator(SCHEMAS[name]())


def check_schema(document: Any, name: str = "") -> str:
    """Hold a JSON document against the schema that it names, or that of a name; answers the name."""
    name = name or document["schema"].removeprefix("attnctl.").partition("/")[0]
    wrong = [
        f"{'.'.join(map(str, error.instance_path))}: {error.message[:200]}"
        for error in _validator(name).iter_errors(document)
    ]
    assert not wrong, (name, wrong[:3])
    return name


def process(*args: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """`attnctl ARGS…` as a process of its own."""
    return subprocess.run([sys.executable, "-m", "attnctl", *args], capture_output=True, timeout=120, **more)


def spawned(*args: str, rows: int = 24, columns: int = 80, **environment: str) -> pexpect.spawn:
    """`attnctl ARGS…` as a process at a terminal of its own."""
    here = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return pexpect.spawn(
        sys.executable,
        ["-m", "attnctl", *map(str, args)],
        dimensions=(rows, columns),
        env=here | {"TERM": "xterm-256color"} | environment,
        encoding="utf-8",
        timeout=60,
    )
