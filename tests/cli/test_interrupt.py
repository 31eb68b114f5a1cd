"""Ctrl-C at any moment of a start: one line at most, and never a line of Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# also where the tests themselves run with Ctrl-C ignored, as a shell's background jobs do
LISTEN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"

# says when it begins to read the program, and sleeps where the program would import something
PROGRAM = """
import sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == {name!r}:
            print("now", flush=True)
            time.sleep(20)
sys.meta_path.insert(0, Slow())
sys.argv = ["attnctl", "explain", "Alice will eat"]
from attnctl.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["attnctl.cli", "typer", "attnctl.cli.commands.explain", "numpy"])
def test_an_interrupt_of_the_start_is_one_line(name: str) -> None:
    """It was a traceback for the first tenth of a second."""
    command = [sys.executable, "-c", LISTEN + PROGRAM.format(name=name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "now\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (130, "attnctl: interrupted\n")


READY = "import os, sys; sys.argv[0] = 'attnctl'; import attnctl.__main__ as m; os.write(1, b'now\\n'); m.main()"
COMMANDS = {
    "explain": ["explain", "Alice will eat"],
    "explain a checkpoint": ["explain", "Alice will eat", "--model", "checkpoint"],
    "heatmap": ["heatmap", "Alice will eat", "-o", "out.png"],
    "batch": ["batch", "in.txt", "-o", "out", "--format", "json,png", "--jobs", "1"],
    "batch of two": ["batch", "in.txt", "-o", "out", "--jobs", "2"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_at_any_time_is_one_line(name: str, tmp_path: Path) -> None:
    """One in forty ended in a fatal error of Python, from inside an import of a library in C."""
    (tmp_path / "in.txt").write_text("Alice will eat.\n" * 100_000)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text('{"model_type": "llama"}')
    heard = 0
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8):
        command = [sys.executable, "-c", LISTEN + READY, *COMMANDS[name]]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            assert process.stdout is not None and process.stdout.read(4) == b"now\n"
            time.sleep(delay)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: its children hear it, too
            _, told = process.communicate(timeout=20)
        if process.returncode == 130:
            heard += 1
            assert told == b"attnctl: interrupted\n", (delay, told)
        else:
            assert process.returncode in (0, 1) and told.count(b"\n") <= 1, (delay, process.returncode, told)
        assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part")], delay
        if (tmp_path / "out.png").exists():
            assert (tmp_path / "out.png").read_bytes().endswith(b"IEND\xaeB`\x82")
    assert heard > 1


def test_an_import_is_not_interrupted_where_something_is_to_be_tidied_up(tmp_path: Path) -> None:
    """The file that is being written is taken away, once what is imported meanwhile is there."""
    program = """
import os, sys, time
from attnctl import interrupts
from attnctl.files import write_whole
interrupts.watch_interrupts()
class Slow:
    def find_spec(self, name, *_):
        if name == "slow":
            os.write(1, b"now\\n")
            time.sleep(0.5)
            os.write(1, b"done\\n")
def write(file):
    file.write(b"half")
    sys.meta_path.insert(0, Slow())
    try:
        import slow
    except ImportError:
        pass
    time.sleep(20)
try:
    write_whole("file", write)
except KeyboardInterrupt:
    os.write(1, b"out\\n")
"""
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN + program], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == (b"done\nout\n", b"")
    assert list(tmp_path.iterdir()) == []


# ends itself while it writes a file, and says what listens afterwards
WRITING = """
import os, signal, sys
from attnctl.files import write_whole
def write(file):
    file.write(b"half")
    file.flush()
    if sys.argv[1] != "0":
        os.kill(os.getpid(), int(sys.argv[1]))
write_whole("old.json", write)
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, 0])
def test_an_end_while_a_file_is_written_leaves_nothing_half_written(sent: int, tmp_path: Path) -> None:
    """A time limit or a closed terminal left .old.json.1a2b3c4d.part in the folder for ever."""
    (tmp_path / "old.json").write_text("whole")
    command = [sys.executable, "-c", WRITING, str(int(sent))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"], done.stderr
    if sent:
        assert (done.returncode, (tmp_path / "old.json").read_text()) == (-sent, "whole")
    else:
        assert (done.stdout, (tmp_path / "old.json").read_text()) == ("True\n", "half")


# ends itself as a file that is whole is about to get its name
RENAMING = """
import os, pathlib, signal, sys
from attnctl.cli import run_command_line
own = pathlib.Path.replace
def replace(self, target):
    if str(target).endswith(".npz"):
        os.kill(os.getpid(), signal.SIGTERM)
    return own(self, target)
pathlib.Path.replace = replace
sys.argv = ["attnctl", "batch", "in.txt", "-o", "out", "--format", "npz", "--jobs", "1"]
run_command_line()
"""


def test_an_end_while_a_batch_writes_a_file_leaves_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("Alice eats\n")
    done = subprocess.run([sys.executable, "-c", RENAMING], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".lock", "manifest.jsonl", "run.json"]


FOLDER_REMOVED = """
import os, pathlib, signal
from attnctl.interrupts import removed_at_end
folder = pathlib.Path("half")
folder.mkdir()
with removed_at_end(folder):
    (folder / "weights").write_text("half")
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_an_end_takes_a_folder_that_is_half_written_with_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FOLDER_REMOVED], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == -signal.SIGTERM and list(tmp_path.iterdir()) == []
