"""What stands around a run: a terminal of one column, and variables of the environment that are another program's."""

from __future__ import annotations

import errno
import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pexpect
import pytest

from attnctl.cli.output import say_notes
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
    lines = child.before.splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 40 and all(line.startswith("  ") for line in lines[1:])
    piped = process("explain", "a b", "--steps", "nope").stderr.decode()
    assert " ".join(child.before.split()) == " ".join(piped.split())


LONG = ("explain", "Alice will eat pizza", "--all")
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
