"""Defaults of a user's own: written without touching anything else, read from files alone, and named where they are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from attnctl.cli.app import all_commands
from tests.conftest import Refused, Run
from tests.tools import hostile

AT_ONCE = """
import os, sys
from attnctl.cli.app import all_commands, run_command
list(all_commands())  # imported once: the processes begin at the same moment
children = []
for setting in sys.argv[1:]:
    child = os.fork()
    if not child:
        os._exit(run_command(["config", "--set", setting]))
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forks of one")
def test_processes_that_set_defaults_at_once_lose_none(config_file: Path) -> None:
    names = ("explain", "heatmap", "heads", "ablate", "batch", "view")
    settings = [f"{name}.layer={layer}" for layer, name in enumerate(names)]
    done = subprocess.run([sys.executable, "-c", AT_ONCE, *settings], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    kept = tomllib.loads(config_file.read_text())
    assert {f"{name}.layer={table['layer']}" for name, table in kept.items()} == set(settings)


def test_defaults_are_kept_and_a_typed_option_comes_before_them(
    run: Run, refused: Refused, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file.parent.rmdir()  # which is made with the file
    assert "is not UTF-8" in refused("config", "--set", "title=\udcff", code=2) and not config_file.exists()
    assert "no defaults are set" in run("config").out and run("config", "--path").out.strip() == str(config_file)
    assert run("config", "--set", "model=random", "--set", "heatmap.cmap=magma", "--set", "seed=3").code == 0
    assert config_file.read_text() == 'model = "random"\nseed = 3\n\n[heatmap]\ncmap = "magma"\n'
    shown = run("config").out
    assert "model = random" in shown and "heatmap.cmap = magma" in shown and str(config_file) in shown
    assert run("explain", "a b", "-o", "run.json").code == 0
    model = run("explain", "a b", "--json").json["model"]
    assert (model["name"], model["seed"]) == ("random", 3)
    # what another model's default has does not stand in the way, nor does a model in that of a trace
    assert run("config", "--set", "n_heads=2").code == 0 == run("explain", "a b", "--model", "demo").code
    assert run("explain", "a b", "--json", "--model", "dot").json["model"]["name"] == "dot"
    assert run("heatmap", "run.json").code == 0 == run("config", "--unset", "n_heads").code
    assert run("config", "--unset", "model").code == 0 and "model" not in config_file.read_text()
    monkeypatch.setenv("ATTNCTL_MODEL", "dot")
    assert run("explain", "a b", "--json").json["model"]["name"] == "dot" and "$ATTNCTL_MODEL" in run("config").out
    config_file.write_text("model = 'random'\ncausal = true\nwords = false\n")
    monkeypatch.delenv("ATTNCTL_MODEL")
    assert run("explain", "a b", "--json").json["model"]["causal"] is True


@pytest.mark.parametrize("value", ["nan", "1e400", "9" * 5000, "\x7f\x1b", 'a\t"\\', "[1]", "\u2028", " "])
def test_any_value_is_kept_as_it_was(value: str, run: Run, config_file: Path) -> None:
    """nan and infinity were written as JSON has them, which no TOML reader takes: every command failed from then on."""
    assert run("config", "--set", f"title={value}", "--set", "heatmap.dpi=100").code == 0
    assert tomllib.loads(config_file.read_text()) == {"title": value, "heatmap": {"dpi": 100}}
    assert run("config", "--unset", "title", "--unset", "heatmap.dpi").code == 0
    assert "title" not in config_file.read_text()


def test_a_default_has_the_name_of_its_flag(run: Run, config_file: Path) -> None:
    """--format was kept as formats, --questions as count: a name that no help tells."""
    own = [one for command in all_commands() for one in command.params if getattr(one, "envvar", None)]
    assert [one.name for one in own if f"--{(one.name or '').replace('_', '-')}" not in one.opts] == []
    assert [one.name for one in own if one.envvar != f"ATTNCTL_{(one.name or '').upper()}"] == []
    assert run("config", "--set", "questions=2").code == 0
    assert len(run("quiz", "Alice will eat pizza", "--json").json["questions"]) == 2


OWN = """# mine
model = "demo" # the best
since = 2020-01-01
list = [1,
  2]

[heatmap]
# of a paper
cmap = "magma"
font-size = 9
[view]
log = true
"""


def test_the_rest_of_a_file_stays_as_it_is(run: Run, config_file: Path) -> None:
    """It was written anew: comments were lost, and a date ended in a traceback."""
    config_file.write_text(OWN)
    changes = ["model=dot", "heatmap.font_size=8", "heatmap.dpi=100", "explain.layer=2", "seed=3"]
    assert run("config", *(part for change in changes for part in ("--set", change))).code == 0
    wanted = OWN.replace('"demo" # the best', '"dot" # the best').replace("font-size = 9", "font-size = 8\ndpi = 100")
    wanted = wanted.replace("  2]\n", "  2]\nseed = 3\n") + "\n[explain]\nlayer = 2\n"
    assert config_file.read_text() == wanted


@pytest.mark.parametrize(
    ("own", "changed"),
    [
        ('heatmap.dpi = "3"', "heatmap.dpi = 100"),
        ("[heatmap]\ndpi = '''\n3''' # three", "[heatmap]\ndpi = 100 # three"),
        ("heatmap = {dpi = 3}", "heatmap = {dpi = 100}"),
        ("[view]\r\n\n[heatmap] # of a paper\n", "[view]\r\n\n[heatmap] # of a paper\ndpi = 100\n"),
        ("[heatmap.x]\na = 1\n", "[heatmap]\ndpi = 100\n\n[heatmap.x]\na = 1\n"),
    ],
)
def test_every_form_of_a_table_takes_a_default(own: str, changed: str, run: Run, config_file: Path) -> None:
    """What does not stand on one line was to be changed by hand."""
    config_file.write_bytes(own.encode())
    assert run("config", "--set", "heatmap.dpi=100").code == 0
    assert config_file.read_bytes().decode() == changed


def nested(path: Path) -> None:
    path.write_text("a = " + "[" * 100_000)


@pytest.mark.parametrize("make", [*hostile.NO_FILES, nested], ids=lambda make: make.__name__)
def test_a_defaults_file_that_is_none(make: Callable[[Path], None], refused: Refused, config_file: Path) -> None:
    """A named pipe was waited for, and /dev/zero read into memory."""
    make(config_file)
    for arguments in (["explain", "a b"], ["config"], ["config", "--set", "seed=1"]):
        said = refused(*arguments)
        assert "config.toml" in said and len(said) < 300


def test_what_does_something_has_no_default(
    run: Run, config_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`attnctl config`, to look, wrote the file where the environment had ATTNCTL_SETTING."""
    for name in ("SETTING", "UNSET", "SITE"):
        monkeypatch.setenv(f"ATTNCTL_{name}", str(tmp_path / "seed=4"))
    assert run("config").code == run("docs").code == 0
    assert not any(tmp_path.rglob("*.*"))


@pytest.mark.parametrize(
    ("own", "place"),
    [('modle = "dot"', "modle"), ("[explain]\nfoo-bar = 3", "explain.foo-bar"), ("[heatmp]\ndpi = 3", "heatmp.dpi")],
)
def test_a_name_that_is_no_option_can_be_taken_out(own: str, place: str, run: Run, config_file: Path) -> None:
    """`modle = "dot"` was passed over: every command ran demo (see tests/refusals.txt)."""
    config_file.write_text(f"{own}\n")
    assert run("config").code == run("config", "--unset", place).code == run("heatmap", "a b").code == 0


def test_a_variable_that_is_no_option_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNCTL_MODLE", "dot")
    monkeypatch.setenv("ATTNCTL_OUTPUT", "x.png")
    told = run("heatmap", "a b", "--layer", "0")
    assert told.code == 0 and told.err.splitlines() == [
        "attnctl: note: $ATTNCTL_MODLE: there is no such option: did you mean model?",
        "attnctl: note: $ATTNCTL_OUTPUT: it takes no default: give it on the command line",
    ]
    assert run("heatmap", "a b", "--layer", "0", "--quiet").err == ""


def test_a_default_of_several_values_is_one_of_them_or_a_list(
    run: Run, refused: Refused, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """drop=first was kept, and every heatmap said that it is no iterable."""
    line = ("heatmap", "a b c", "--model", "random", "--quiet")
    wanted = run(*line, "--drop", "first")
    assert run("config", "--set", "drop=first").code == 0 and run(*line) == wanted
    config_file.write_text('drop = ["first", "c"]\n')
    assert run(*line) == run(*line, "--drop", "first", "--drop", "c") != wanted
    config_file.write_text("drop = [{}]\n")
    assert "drop is a list of values, or one value" in refused(*line)
    config_file.write_text("layer = [0]\n")
    assert "layer is one value" in refused(*line)
    config_file.write_text("")
    monkeypatch.setenv("ATTNCTL_DROP", "first")
    assert run(*line) == wanted
