"""`attnctl shell`: the same commands without attnctl and the text, their model run once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

from attnctl.cli import arguments
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
    assert together.code == 0 and together.err == "" and together.out == alone
    assert arguments.current is TextSource.memory is network.loaded_networks is None  # nothing is left behind


def test_an_error_is_one_line_and_does_not_end_it(run: Run) -> None:
    lines = "explain --steps nope\nfrobnicate\nexplain 'half\nexplain --query 99\nheatmap --head 9 --layer 0\nshell\n"
    result = run("shell", TEXT, stdin=f"{lines}heatmap --head 0 --layer 0\n".encode())
    assert result.code == 3 and result.err.count("\n") == 6 and "Traceback" not in result.err
    assert all(line.startswith("attnctl: ") for line in result.err.splitlines())
    assert result.out.startswith("layer\thead\tindex\tquery\t0:Alice")


def test_text_and_model_can_be_changed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("Tom's dog runs")
    lines = (
        'text\ntext "Bob likes tea"\nheatmap --layer 0 --head 0\n'
        f"file {tmp_path / 'other.txt'}\nuse random\nuse\nheatmap --quiet\n"
        "# a remark\n\nattnctl heatmap Mary runs --quiet\ntext the cat's mat\nexit\nheatmap\n"
    )
    result = run("shell", stdin=lines.encode())
    assert result.code == 0 and result.err == ""
    said = result.out.splitlines()
    assert said[0].startswith("there is no text yet") and said[1] == "Bob likes tea"
    assert said[2].split("\t")[4:] == ["0:Bob", "1:likes", "2:tea"] and "Tom's dog runs" in said
    assert [line.split("\t")[4:] for line in said if line.startswith("layer\t")][1:] == [
        ["0:Tom's", "1:dog", "2:runs"], ["0:Mary", "1:runs"],
    ]  # fmt: skip
    assert said[-1] == "the cat's mat"


def test_a_model_that_is_not_there_leaves_the_one_before(run: Run) -> None:
    result = run("shell", TEXT, stdin=b"use random\nuse nope\nuse\n")
    assert (result.code, result.out.splitlines()) == (3, ["random", "random"]), result
    assert result.err.count("\n") == 1 and "no model 'nope'" in result.err


def test_a_typed_model_is_asked_without_the_options_of_the_sessions_own(run: Run) -> None:
    lines = (
        "heatmap --model demo --layer 0 --head 0 --quiet\nheatmap --quiet\ncompare demo random --json --quiet\nmodel"
    )
    result = run("shell", TEXT, "--model", "random", "--heads", "2", "--seed", "3", stdin=lines.encode())
    assert result.code == 3 and result.err.count("\n") == 1  # random has no card
    assert result.out.count("layer\thead") == 2 and '"attnctl' in result.out


def test_files_that_cannot_be_written_do_not_silence_it(run: Run, tmp_path: Path) -> None:
    lines = f"explain -o {tmp_path}/none/x.json\nheatmap --layer 0 --head 0\n"
    result = run("shell", TEXT, stdin=lines.encode())
    assert result.code == 3 and result.err.count("\n") == 1 and "Alice" in result.out


@pytest.fixture
def terminal(tmp_path: Path) -> Callable[..., pexpect.spawn]:
    def spawn(
        *blocked: str, preexec_fn: Callable[[], object] | None = None, columns: int = 100, pager: str = "cat"
    ) -> pexpect.spawn:
        more = {
            "COLUMNS": str(columns),
            "TERM": "xterm",
            "PAGER": pager,
            "XDG_STATE_HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path),
        }
        start = "".join(f"sys.modules[{name!r}] = None; " for name in blocked)
        code = f"import sys; {start}from attnctl.__main__ import main; main()"
        arguments = ["-c", code, "shell", TEXT]
        return pexpect.spawn(
            sys.executable,
            arguments,
            env={**os.environ, **more},
            encoding="utf-8",
            timeout=60,
            dimensions=(30, columns),
            preexec_fn=preexec_fn,
        )

    return spawn


def test_at_a_terminal_ctrl_c_goes_back_and_ctrl_d_leaves(
    terminal: Callable[..., pexpect.spawn], tmp_path: Path
) -> None:
    pytest.importorskip("prompt_toolkit")
    child = terminal()
    child.expect("demo>")
    child.send("half a line")
    child.sendcontrol("c")
    child.expect("demo>")
    child.send("expl\t")
    child.expect("ain")
    child.send(" --query piz\t")
    child.expect("za")
    child.send(" --steps summary\r")
    child.expect("pays .* of its attention")
    child.expect("demo>")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert "explain --query pizza --steps summary" in (tmp_path / "attnctl" / "shell_history").read_text()


@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN])  # ignored by what scripts start with &
def test_without_prompt_toolkit_it_asks_plainly(
    terminal: Callable[..., pexpect.spawn], inherited: signal.Handlers
) -> None:
    child = terminal("prompt_toolkit", preexec_fn=lambda: signal.signal(signal.SIGINT, inherited))
    child.expect("demo> ")
    child.sendcontrol("c")
    child.expect("demo> ")
    child.sendline("heatmap --layer 0 --head 0 --no-values")
    child.expect("demo> ")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_what_the_shell_says_of_itself_is_cut_between_words(terminal: Callable[..., pexpect.spawn]) -> None:
    child = terminal("prompt_toolkit", columns=40)
    child.expect("demo> ")
    welcome = child.before
    child.sendline("help")
    child.expect("demo> ")
    lines = [*welcome.splitlines(), *child.before.partition("In the shell:")[2].splitlines()]
    assert len(lines) > 10 and max(map(len, lines)) <= 40
    assert "                   text; text alone" in lines
    child.sendcontrol("d")
    child.expect(pexpect.EOF)


def test_long_output_is_paged_and_the_shell_goes_on(terminal: Callable[..., pexpect.spawn]) -> None:
    child = terminal("prompt_toolkit", pager="wc -l")
    for line, shown in (
        ("explain", r"\r\n\s*3\d\d\r\n"),
        ("heatmap --no-pager", "layer 1"),
        ("softmax 1 --json", r"\r\n\{.*\}\r\n"),
    ):
        child.expect("demo> ")
        child.sendline(line)
        child.expect(shown)
    child.expect("demo> ")
    child.sendcontrol("d")
    child.expect(pexpect.EOF)


def test_lines_of_a_pipe_that_are_no_text_are_told_one_by_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first byte that is no UTF-8 was an error of ours, and ended the shell."""
    asked = run(
        "shell", "Alice will eat", stdin=b"\xff\xfe\nexplain --query \xff\ntext a \xff b\nexplain\nheads --csv\n"
    )
    assert asked.code == 3 and "Traceback" not in asked.err and asked.out.endswith("\n"), asked
    assert asked.err.count("attnctl: ") >= 3 and not {"\xff", "\udcff"} & set(asked.err)
    monkeypatch.setattr("attnctl.limits.TEXT_BYTES", 100)
    assert run("shell", stdin=b"x" * 300).err.endswith(
        "a line of standard input is larger than the 100 B that are read of such input\n"
    )


def test_a_quiet_shell_is_quiet_for_every_line(run: Run) -> None:
    lines = b"heatmap --head 0 --layer 0\nheatmap Bob likes zzqq --quiet\nheatmap Bob likes zzqq\n"
    result = run("shell", "Alice likes zzqqy", "--quiet", stdin=lines)
    assert result.code == 0 and result.err == "" and result.out.count("layer\thead") == 3
    assert "zzqq" in run("heatmap", "Bob likes zzqq").err  # which outlives it nowhere
