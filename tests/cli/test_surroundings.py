"""What stands around a run: a terminal of one column, and variables of the environment that are another program's."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pexpect
import pytest

from attnctl.cli.app import load_command, run_command
from attnctl.cli.output import say_notes
from attnctl.errors import lossy_text
from attnctl.registry import COMMANDS as ALL
from tests.conftest import SAMPLES, Refused, Run, process, spawned
from tests.tools.gguf_table import small

COMMANDS = (
    ["explain", "Alice will eat pizza"],
    ["explain", "日本 🍕 will", "--query", "2"],
    ["heatmap", "Alice will eat"],
    ["heads", "Alice will eat"],
    ["ablate", "Alice will eat", "--target", "pizza"],
    ["compare", "demo", "random", "Alice will eat"],
    ["softmax", "1", "2", "3"],
    ["model", "gpt2"],
    ["evaluate", str(SAMPLES / "sentences.conllu"), "--model", "random"],
    ["docs", "lesson"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:2])[:30])
@pytest.mark.parametrize("columns", [1, 10**12])
def test_a_terminal_of_any_width_is_written_to(columns: int, command: list[str], run: Run) -> None:
    """explain in one column was an error of ours."""
    done = run(*command, columns=columns)
    assert done.code == 0 and done.out, done


def test_a_picture_is_drawn_whatever_matplotlib_finds() -> None:
    """A back end of a notebook was a traceback, a home that cannot be written to two lines with every picture."""
    Path("file").write_text("")
    around = {"MPLBACKEND": "none.such"} | dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), "file")
    done = process("heatmap", "Alice will eat", "-o", "x.pdf", env=os.environ | around)
    assert (done.returncode, done.stderr) == (0, b"") and Path("x.pdf").exists()


WITH_NOTES = {  # command → the arguments of a run that writes notes
    "explain": ("Zebras eat",),
    "heatmap": ("Zebras eat", "-o", "x.png"),
    "heads": ("Zebras eat",),
    "mask": ("Zebras eat",),
    "ablate": ("Zebras will eat", "--target", "pizza"),
    "compare": ("demo", "random", "Zebras eat"),
    "batch": ("zebras.txt", "-o", "out", "--jobs", "1"),
    "train": ("zebras.txt", "-o", "run", "--max-steps", "1", "--d-model", "8"),
    "view": ("Zebras eat", "-o", "x.html"),
    "softmax": ("1", "2"),
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
@pytest.mark.parametrize("command", WITH_NOTES)
def test_a_note_that_cannot_be_written_costs_no_result(command: str, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Some commands printed nothing then, and ended with 1."""
    Path("zebras.txt").write_text("Zebras eat\nZebras eat pizza\n")
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("attnctl.cli.app.lossy_stderr", lambda: setattr(sys, "stderr", lossy_text(full.fileno())))
        done = run(command, *WITH_NOTES[command])
    assert done.code == 0 and all(Path(name).exists() for name in WITH_NOTES[command][2:3] if name[:2] in ("x.", "out"))
    assert done.out or "-o" in WITH_NOTES[command]


def test_standard_error_that_is_full_costs_no_result() -> None:
    """The same for the whole program, whose exit code Python made 120."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-m", "attnctl", "heads", "Zebras eat"], stdout=-1, stderr=full)
    assert done.returncode == 0 and b"entropy" in done.stdout


def test_a_training_goes_on_without_a_reader_of_its_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`train … | head -1` stopped at the fourth step, without a word, with exit code 0."""
    Path("a.txt").write_text("Alice eats pizza\n")
    end, start = os.pipe()
    os.close(end)
    with os.fdopen(start, "w") as nobody_reads:
        monkeypatch.setattr(sys, "stdout", nobody_reads)
        small = ("--max-steps", "3", "--d-model", "8", "--layers", "1", "--heads", "1")
        assert run_command(["train", "a.txt", "-o", "run", *small]) == 0
    assert "nothing reads standard output any more: the training goes on" in capsys.readouterr().err
    assert json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["step"] == 3


WITH_OUTPUT = [name for name in ALL if "output" in {one.name for one in load_command(name).params if not one.multiple}]


@pytest.mark.parametrize("name", WITH_OUTPUT)
def test_two_outputs_are_refused(name: str, refused: Refused) -> None:
    """The last one alone was written, with exit code 0."""
    words = shlex.split(load_command(name).example)[2:]
    says = "--output was given twice, and a run writes one output: run it again for the other"
    assert refused(name, *words, "-o", "a.png", "--output", "b.svg", code=2) == says
    assert not Path("a.png").exists() and not Path("b.svg").exists()


CLOSED = "/" + "x" * 300  # nothing in it can be looked at, by root either: as with permission denied, stat fails


def test_a_home_that_may_not_be_looked_into_holds_no_defaults(
    run: Run, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service with the home of somebody else could run no command at all."""
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, CLOSED)
    if find_spec("huggingface_hub") is not None:  # it has read its variables
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{CLOSED}/hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run("explain", "a b").code == 0
    assert "gpt2 (openai-community/gpt2) is not on this machine" in refused("explain", "a b", "--model", "gpt2")
    if find_spec("transformers") is not None and find_spec("gguf") is not None:
        header = small.headers()["llama--biases--linear-scaling"]
        assert run("explain", "a b", "--model", str(small.write_file(Path("x.gguf"), header))).code == 0


def test_a_folder_of_texts_that_may_not_be_looked_into_is_named(
    run: Run, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts were left out without a word."""
    Path("texts/closed").mkdir(parents=True)
    Path("texts/a.txt").write_text("Alice will eat")

    def scandir(path: str) -> Any:
        if Path(path).name == closed:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really(path)

    really, closed = os.scandir, "closed"
    monkeypatch.setattr(os, "scandir", scandir)
    done = run("batch", "texts", "-o", "out", "--model", "random")
    assert done.code == 3 and "texts/closed): this folder cannot be read: permission denied" in done.err, done
    if find_spec("torch") is not None:
        train = ("train", "texts", "-o", "run", "--max-steps", "1")
        assert refused(*train) == "cannot read texts/closed: permission denied"
    closed = "texts"
    assert refused("batch", "texts", "-o", "other") == "cannot read texts: permission denied"


def test_what_a_link_leads_to_is_not_written_over(refused: Refused, run: Run) -> None:
    """A grid took the place of the trace that it was drawn from, and a walk that of its text (see tests/refusals.txt)."""
    assert run("explain", "Alice will eat", "-o", "t.json").code == 0
    Path("link.json").symlink_to("t.json")
    before = Path("t.json").read_bytes()
    said = refused("explain", "t.json", "--head", "0", "-o", "link.json", code=2)
    assert "is the file that is read, which would be lost: name another" in said
    assert Path("t.json").read_bytes() == before


def test_a_note_is_said_once_a_command(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The page of a run said of each of its steps that it does not know the same word."""
    run("softmax", "1", "2")  # whose notes are forgotten with it
    for _ in range(2):
        say_notes(["Zebras are new to it"])
    assert capsys.readouterr().err == "attnctl: note: Zebras are new to it\n"
    run("softmax", "1", "2")
    say_notes(["Zebras are new to it"])
    assert capsys.readouterr().err


def test_what_is_said_on_a_terminal_is_cut_between_words() -> None:
    child = spawned("explain", "a b", "--steps", "nope", columns=40)
    child.expect(pexpect.EOF)
    lines = child.before.rpartition("\x1b[2K")[2].splitlines()  # on a busy machine "working …" stood there before
    assert len(lines) > 2 and max(map(len, lines)) <= 40 and all(line.startswith("  ") for line in lines[1:])
    piped = process("explain", "a b", "--steps", "nope").stderr.decode()
    assert " ".join(" ".join(lines).split()) == " ".join(piped.split())


LONG = ("explain", "Alice will eat pizza", "--layer", "all")
CODES = r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r"


def ended(child: pexpect.spawn) -> str:
    """All that is still to come, without what steers a terminal, or tells of waiting on a slow one; the exit code is 0."""
    child.expect(pexpect.EOF)
    child.close()
    assert (child.exitstatus, child.signalstatus) == (0, None)
    return re.sub(r"\S working …\s*", "", re.sub(CODES, "", child.before))


def test_long_output_goes_to_the_terminal_as_it_is(run: Run, refused: Refused) -> None:
    """No pager: neither $PAGER nor less, where it is installed."""
    shown = ended(spawned(*LONG, NO_COLOR="1", PAGER="cat > seen"))
    assert shown.splitlines()[-40:] == run(*LONG).out.splitlines()[-40:] and not Path("seen").exists()
    assert "--no-pager" in refused(*LONG, "--no-pager", code=2)


@pytest.mark.parametrize(
    ("given", "threads"), [({}, 1), ({"OPENBLAS_NUM_THREADS": "2"}, 2), ({"OMP_NUM_THREADS": "2"}, 2)]
)
def test_numpy_starts_no_threads_that_a_user_did_not_ask_for(given: dict[str, str], threads: int) -> None:
    """As the system counts them, at the end of a command that computes with NumPy alone."""
    if not Path("/proc/self/task").is_dir() or (os.cpu_count() or 1) < 2:
        pytest.skip("this system does not list the threads of a process, or has one core")
    code = (
        "import os, sys, threading, time; from attnctl.__main__ import main\n"
        "sys.argv = ['attnctl', 'explain', 'Alice will eat pizza', '--json']\n"
        "try: main()\nexcept SystemExit:\n"
        "    counts = []\n"
        "    for _ in range(10):  # on a slow machine a thread says what is waited for, and may be about to end\n"
        "        counts.append(len(os.listdir('/proc/self/task')) - threading.active_count() + 1)\n"
        "        time.sleep(0.01)\n"
        "    print(min(counts), file=sys.stderr)"
    )
    others = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=others | given, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == str(threads)
