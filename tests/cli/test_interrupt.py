"""Ctrl-C at any moment of a start: one line at most, and never a line of Python."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("name", ["attnctl.cli", "typer", "attnctl.commands.explain", "numpy"])
def test_an_interrupt_of_the_start_is_one_line(name: str) -> None:
    """It was a traceback for the first tenth of a second."""
    command = [sys.executable, "-c", PROGRAM.format(name=name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "now\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=20)
    assert (process.returncode, told) == (130, "attnctl: interrupted\n")


READY = "import os, sys; sys.argv[0] = 'attnctl'; import attnctl.__main__ as m; os.write(1, b'now\\n'); m.main()"
COMMANDS = {
    "standard input": ["explain", "-"],
    "a checkpoint": ["explain", "Alice will eat", "--model", "checkpoint"],
    "heatmap": ["heatmap", "Alice will eat", "-o", "out.png"],
    "batch": ["batch", "in.txt", "-o", "out", "--format", "json,png", "--jobs", "1"],
    "batch of two": ["batch", "in.txt", "-o", "out", "--jobs", "2"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_at_any_time_is_one_line(name: str, tmp_path: Path) -> None:
    """One in forty ended in a fatal error of Python, from inside an import of a library in C."""
    Path("in.txt").write_text("Alice will eat.\n" * 100_000)
    Path("checkpoint").mkdir()
    Path("checkpoint/config.json").write_text('{"model_type": "llama"}')
    heard = 0
    for delay in (0.0, 0.1, 0.2, 0.6):
        command = [sys.executable, "-c", READY, *COMMANDS[name]]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, start_new_session=True, **pipes) as process:
            assert process.stdout is not None and process.stdout.read(4) == b"now\n"
            time.sleep(delay)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: its children hear it, too
            _, told = process.communicate(timeout=20)
        if process.returncode == 130:
            heard += 1
            assert re.fullmatch(rb"attnctl: interrupted(: out keeps [\d,]+ texts? of the input: .*)?\n", told), (
                delay,
                told,
            )
        else:
            assert process.returncode in (0, 1) and told.count(b"\n") <= 1, (delay, process.returncode, told)
        assert not list(tmp_path.rglob("*.part")), delay
        assert not Path("out.png").exists() or Path("out.png").read_bytes().endswith(b"IEND\xaeB`\x82")
    assert heard > 1


STARTING = """
import multiprocessing.util, os, signal
start = multiprocessing.util.spawnv_passfds
def spawn(*arguments):
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    os.write(1, b"blocked " if blocked else b"open ")
    return start(*arguments)
multiprocessing.util.spawnv_passfds = spawn
from attnctl.batching.engines import WorkerProcess
from attnctl.batching.work import Work
if __name__ == "__main__":
    WorkerProcess(Work({"name": "demo"})).process.terminate()
"""


def test_no_worker_hears_an_interrupt_while_it_starts() -> None:
    """The helper of multiprocessing that starts before the first worker unblocked the signal for it."""
    run = subprocess.run([sys.executable, "-c", STARTING], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("blocked blocked ", "")


WRITING = """
import os, signal
from attnctl.runtime.files import write_whole
def write(file):
    file.write(b"half")
    file.flush()
    SENT and os.kill(os.getpid(), SENT)
write_whole("old.json", write)
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""
# the file that is being written is taken away, once what is imported meanwhile is there
IMPORTING = """
import os, signal, sys, time
from attnctl.runtime import interrupts
from attnctl.runtime.files import write_whole
interrupts.watch_interrupts()
class Slow:
    def find_spec(self, name, *_):
        if name == "slow":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            print("imported")
def write(file):
    file.write(b"half")
    sys.meta_path.insert(0, Slow())
    try:
        import slow
    except ImportError:
        pass
    signal.pause()
try:
    write_whole("file", write)
except KeyboardInterrupt:
    print("out")
"""
# as a file that is whole is about to get its name
RENAMING = """
import os, pathlib, signal, sys
from attnctl.cli.app import run_command_line
own = pathlib.Path.replace
def replace(self, target):
    if str(target).endswith(".npz"):
        os.kill(os.getpid(), signal.SIGTERM)
    return own(self, target)
pathlib.Path.replace = replace
open("in.txt", "w").write("Alice eats")
sys.argv = ["attnctl", "batch", "in.txt", "-o", "out", "--format", "npz", "--jobs", "1"]
run_command_line()
"""
FOLDER = """
import os, pathlib, signal
from attnctl.runtime.interrupts import removed_at_end
folder = pathlib.Path("half")
folder.mkdir()
with removed_at_end(folder):
    (folder / "weights").write_text("half")
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("program", "code", "said", "left"),
    [
        (WRITING.replace("SENT", "0"), 0, "True\n", set()),
        (WRITING.replace("SENT", "signal.SIGTERM"), -signal.SIGTERM, "", set()),
        (WRITING.replace("SENT", "signal.SIGHUP"), -signal.SIGHUP, "", set()),
        (IMPORTING, 0, "imported\nout\n", set()),
        (RENAMING, -signal.SIGTERM, "", {"in.txt", "out", "out/.lock", "out/manifest.jsonl", "out/run.json"}),
        (FOLDER, -signal.SIGTERM, "", set()),
    ],
    ids=["whole", "SIGTERM", "SIGHUP", "an import", "a batch", "a folder"],
)
def test_an_end_leaves_nothing_half_written(program: str, code: int, said: str, left: set[str], tmp_path: Path) -> None:
    """A time limit or a closed terminal left .old.json.1a2b3c4d.part in the folder for ever."""
    Path("old.json").write_text("whole")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, said), done.stderr
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {"old.json"} | left
    assert Path("old.json").read_text() == ("half" if said == "True\n" else "whole")
