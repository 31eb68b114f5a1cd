"""`attnctl shell`: the same commands without attnctl and the text, their model run once."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pexpect
import pytest
from safetensors.numpy import save_file

from attnctl.cli.app import load_command
from attnctl.cli.session import Session, kept_models
from attnctl.models import open_named_model
from attnctl.models.huggingface import network
from attnctl.source import TextSource
from tests.conftest import Run

TEXT = "Alice will eat pizza"

QUESTIONS = (
    ("explain", "--query", "eat", "--steps", "weights,summary"),
    ("explain", "--json"),
    ("heads", "--by", "previous", "--csv"),
    ("heatmap", "--layer", "1", "--head", "2"),
    ("explain", "--query", "pizza", "--layer", "0", "--steps", "prediction,weights"),
)


@pytest.mark.parametrize("model", ["demo-causal", "random"])
def test_each_line_answers_as_the_command_does(run: Run, model: str) -> None:
    questions = [(*asked, "--layers", "2", "--heads", "4") for asked in QUESTIONS] if model == "random" else QUESTIONS
    alone = "".join(run(command, TEXT, "--model", model, *rest, "--quiet").out for command, *rest in questions)
    lines = "".join(f"{' '.join(asked)} --quiet\n" for asked in questions)
    together = run("shell", TEXT, "--model", model, stdin=lines.encode())
    assert (together.code, together.err, together.out) == (0, "", alone)
    assert kept_models.get() is TextSource.runner is network.loaded_networks is None  # nothing is left behind


def test_an_error_is_one_line_and_does_not_end_it(run: Run) -> None:
    lines = "explain --steps nope\nfrobnicate\nexplain 'half\nexplain --query 99\nheatmap --head 9 --layer 0\nshell\n"
    result = run("shell", TEXT, stdin=f"{lines}heatmap --head 0 --layer 0\n".encode())
    assert result.code == 3 and result.err.count("\n") == 6 and "Traceback" not in result.err
    assert all(line.startswith("attnctl: ") for line in result.err.splitlines())
    assert result.out.startswith("layer\thead\tindex\tquery\t0:Alice")


def test_text_and_model_can_be_changed(run: Run) -> None:
    Path("other.txt").write_text("Tom's dog runs")
    lines = (
        'text\ntext "Bob likes tea"\nheatmap --layer 0 --head 0\n'
        "file other.txt\nuse random\nuse\nheatmap --quiet\n"
        "# a remark\n\nattnctl heatmap Mary runs --quiet\ntext the cat's mat\nexit\nheatmap\n"
    )
    result = run("shell", stdin=lines.encode())
    assert result.code == 0 and result.err == ""
    said = result.out.splitlines()
    assert said[0].startswith("there is no text yet") and said[1] == "Bob likes tea" and "Tom's dog runs" in said
    headings = [line.split("\t")[4:] for line in said if line.startswith("layer\t")]
    assert headings == [["0:Bob", "1:likes", "2:tea"], ["0:Tom's", "1:dog", "2:runs"], ["0:Mary", "1:runs"]]
    assert said[-1] == "the cat's mat"


def test_what_cannot_be_done_leaves_all_as_it_was(run: Run) -> None:
    result = run("shell", TEXT, stdin=b"use random\nuse nope\nuse\nexplain -o none/x.json\nheatmap --quiet\n")
    assert result.code == 3 and result.out.splitlines()[:2] == ["random", "random"] and "0:Alice" in result.out
    assert result.err.count("\n") == 2 and "no model 'nope'" in result.err


@pytest.mark.parametrize(
    ("words", "place"),
    [
        *((name, "source") for name in ("explain", "heatmap", "heads", "view")),
        *((name, "text") for name in ("ablate", "sources", "quiz", "align")),
        ("compare demo random", "text"),
        ("view demo random", "text"),
        ("compare one.npz two.npz", None),
        ("explain Bob", None),
        ("explain --file bob.txt", None),
        *((name, None) for name in ("batch", "train", "evaluate", "model")),
    ],
)
def test_the_parameter_that_takes_the_text(words: str, place: str | None) -> None:
    name, *rest = words.split()
    context = load_command(name).make_context(name, rest, resilient_parsing=True)
    Session(TEXT).fill_in(context)
    assert [key for key, value in context.params.items() if value == TEXT] == ([place] if place else [])


def test_a_typed_model_is_asked_without_the_options_of_the_sessions_own(run: Run) -> None:
    lines = "heatmap --model demo --quiet\nheatmap --quiet\ncompare demo random --json --quiet\nmodel"
    result = run("shell", TEXT, "--model", "random", "--heads", "2", "--seed", "3", stdin=lines.encode())
    assert result.code == 3 and result.err.count("\n") == 1  # random has no card
    assert result.out.count("layer\thead") == 2 and '"attnctl' in result.out


def test_every_command_that_reads_a_text_reads_that_of_the_shell(run: Run, room: Path) -> None:
    """A list of commands stood beside them: `align` was not in it. A batch reads a file, and takes no text for its name."""
    asked = ("align", "--target", "at will", "--json", "--quiet")
    result = run("shell", "a will eat", "--model", room / "t5", stdin=f"{shlex.join(asked)}\nbatch --quiet\n".encode())
    assert json.loads(result.out)["links"] == run(*asked, "a will eat", "--model", room / "t5").json["links"]
    assert result.code == 3 and "give a file or folder of texts" in result.err


def terminal(*blocked: str, preexec_fn: Any = None, columns: int = 100) -> pexpect.spawn:
    """The shell at a terminal, where some libraries are not installed; its prompt has come."""
    here = {name: str(Path.cwd()) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    start = "".join(f"sys.modules[{name!r}] = None; " for name in blocked)
    child = pexpect.spawn(
        sys.executable,
        ["-c", f"import sys; {start}from attnctl.__main__ import main; main()", "shell", TEXT],
        env=os.environ | here | {"COLUMNS": str(columns), "TERM": "xterm"},
        encoding="utf-8",
        timeout=60,
        dimensions=(30, columns),
        preexec_fn=preexec_fn,
    )
    child.expect("demo>")
    return child


def left(child: pexpect.spawn) -> None:
    """Ctrl-D ends it, with 0."""
    child.expect("demo>")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def _interrupt(child: pexpect.spawn) -> None:
    """Press Ctrl-C until the prompt comes: Python's input() misses one that comes just before it waits for a key.

    What was typed must have been read. Ctrl-C lets the terminal forget what was not: if input() has seen a key of it and not
    yet read it, it waits for another key, and no Ctrl-C ends that (CPython's Modules/readline.c with GNU readline's rl_getc).
    """
    for _ in range(5):
        child.sendcontrol("c")
        if child.expect(["demo> ", pexpect.TIMEOUT], timeout=5) == 0:
            return
    raise AssertionError(child.before)


def test_at_a_terminal_ctrl_c_goes_back_and_ctrl_d_leaves() -> None:
    pytest.importorskip("readline")
    child = terminal()
    child.send("half a line")
    child.expect("half a line")
    _interrupt(child)
    child.send("expl\t")
    child.expect("ain")
    child.send(" --query piz\t")
    child.expect("za")
    child.send(" --steps summary\r")
    child.expect("pays .* of its attention")
    left(child)
    history = Path("attnctl/shell_history")
    assert "explain --query pizza --steps summary" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0  # what was asked about may be private


@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN])  # ignored by what scripts start with &
def test_without_readline_it_asks_plainly(inherited: signal.Handlers) -> None:
    child = terminal("readline", preexec_fn=lambda: signal.signal(signal.SIGINT, inherited))
    _interrupt(child)
    child.sendline("heatmap --layer 0 --head 0 --no-values")
    left(child)


def test_what_the_shell_says_of_itself_is_cut_between_words() -> None:
    child = terminal("readline", columns=40)
    welcome = child.before
    child.sendline("help")
    child.expect("demo> ")
    lines = [*welcome.splitlines(), *child.before.partition("In the shell:")[2].splitlines()]
    assert len(lines) > 10 and max(map(len, lines)) <= 40
    assert "                   text; text alone" in lines
    child.sendline("text")
    left(child)


def test_lines_of_a_pipe_that_are_no_text_are_told_one_by_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first byte that is no UTF-8 was an error of ours, and ended the shell."""
    lines = b"\xff\xfe\nexplain --query \xff\ntext a \xff b\nexplain\nheads --csv\n"
    asked = run("shell", "Alice will eat", stdin=lines)
    assert asked.code == 3 and "Traceback" not in asked.err and asked.out.endswith("\n"), asked
    assert asked.err.count("attnctl: ") >= 3 and not {"\xff", "\udcff"} & set(asked.err)
    monkeypatch.setattr("attnctl.checks.limits.TEXT_BYTES", 100)
    assert run("shell", stdin=b"x" * 300).err.endswith(
        "a line of standard input is larger than the 100 B that are read of such input\n"
    )


def test_a_quiet_shell_is_quiet_for_every_line(run: Run) -> None:
    lines = b"heatmap --head 0 --layer 0\nheatmap Bob likes zzqq --quiet\nheatmap Bob likes zzqq\n"
    result = run("shell", "Alice likes zzqqy", "--quiet", stdin=lines)
    assert result.code == 0 and result.err == "" and result.out.count("layer\thead") == 3
    assert "zzqq" in run("heatmap", "Bob likes zzqq").err  # which outlives it nowhere


def test_a_model_whose_files_changed_is_opened_anew(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell answered with the weights of before."""
    rng, asked = np.random.default_rng(0), "explain --json --model w.safetensors --quiet"

    def write(at: int) -> None:
        tokens = json.dumps(["a", "b"])
        parts = {name: rng.normal(size=(1, 4, 4)).astype(np.float32) for name in ("W_Q", "W_K", "W_V")}
        save_file(
            parts | {"embedding": rng.normal(size=(2, 4)).astype(np.float32)}, "w.safetensors", {"tokens": tokens}
        )
        os.utime("w.safetensors", (at, at))

    write(1)
    before = run("explain", "a b", *asked.split()[1:]).json
    lines = iter([asked, asked, "change", asked])
    opened = []

    def changing(here: object) -> Iterator[str]:
        for line in lines:
            if line == "change":
                write(2)
            else:
                yield line

    def counted(**how: Any) -> Any:
        opened.append(how["name"])
        return open_named_model(**how)

    monkeypatch.setattr("attnctl.commands.shell._lines", changing)
    monkeypatch.setattr("attnctl.models.open_named_model", counted)
    first, second, third = (json.loads(line) for line in run("shell", "a b").out.splitlines())
    assert first == second == before != third and opened == ["w.safetensors"] * 2
    assert third == run("explain", "a b", *asked.split()[1:]).json


def test_a_shell_about_a_conversation(run: Run, room: Path) -> None:
    """Every text, typed or set by `text`, was refused beside the conversation; `use` forgot it."""
    folder = room / "llama"
    Path("chat.json").write_text(json.dumps([{"role": "user", "content": "Who?"}]))
    Path("other.txt").write_text("Rome is old.")
    grid = "heatmap --layer 0 --head 0 --quiet"
    lines = f"text\n{grid}\n{grid} Paris\nuse {folder}\n{grid}\nfile other.txt\n{grid}\ntext Hello there\n{grid}\n"
    made = run("shell", "--chat", "chat.json", "--model", folder, stdin=lines.encode())
    assert (made.code, made.err) == (0, ""), made
    sources = (("--chat", "chat.json"), ("Paris",), ("--file", "other.txt"), ("Hello there",))
    conversation, paris, rome, hello = (run(*grid.split(), *of, "--model", folder).out for of in sources)
    told = f"the conversation in chat.json\n{conversation}{paris}{folder}\n{conversation}"
    assert made.out == f"{told}Rome is old.\n{rome}Hello there\n{hello}"
