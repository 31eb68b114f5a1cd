"""A command from outside: samples/plugin from its own wheel in a fresh environment, and plug-ins that are broken."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
import torch

from attnctl import plugins
from attnctl.batching.formats import known_formats
from attnctl.cli.suggestions import named_values
from attnctl.commands import batch
from tests.conftest import SAMPLES, Refused, Run
from tests.models.huggingface.conftest import Shelf

ROOT = SAMPLES.parent
PLUGIN = SAMPLES / "plugin"


def write_package(folder: Path, project: dict[str, Any]) -> Path:
    """Write the metadata of a package, as a wheel holds them, by its [project] table."""
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    said = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(said + f"Summary: {project['description']}\n")
    groups = project["entry-points"].items()
    lines = [line for group, own in groups for line in (f"[{group}]", *(f"{name} = {at}" for name, at in own.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return info


def write_wheel(folder: Path) -> Path:
    """Pack the wheel of the sample by its pyproject.toml: hatchling, which would, is no package that the tests need."""
    settings = tomllib.loads((PLUGIN / "pyproject.toml").read_text())
    info = write_package(folder, settings["project"])
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    (info / "RECORD").touch()
    wheel = folder / f"{info.name.removesuffix('.dist-info')}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for name in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["include"]:
            packed.write(PLUGIN / name, name)
        for file in info.iterdir():
            packed.write(file, f"{info.name}/{file.name}")
    return wheel


LINES = """
import json, sys
from attnctl.cli.app import run_command
from attnctl.runtime import light_import
light_import.alone = True  # as in each process that attnctl starts
for line in json.loads(sys.argv[1]):
    assert run_command(line) == 0, line
    print(end="\\0")
"""


def test_the_sample_is_installed_used_and_removed(tmp_path: Path, shelf: Shelf) -> None:
    venv.create(tmp_path / "venv", system_site_packages=True)
    python = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    site = next((tmp_path / "venv").rglob("site-packages"))
    # the packages of the environment that runs the tests, which may be one of its own
    (site / "tests.pth").write_text("\n".join([str(ROOT), *(one for one in sys.path if one.endswith("-packages"))]))

    def call(*words: str, code: int = 0) -> str:
        done = subprocess.run([python, "-m", *words], capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert done.returncode == code, done
        return done.stdout + done.stderr * bool(code)

    def answers(*lines: tuple[str, ...]) -> list[Any]:
        """What `attnctl` prints for each line, as JSON: all in one process, which imports torch once."""
        done = subprocess.run(
            [python, "-c", LINES, json.dumps(lines)], capture_output=True, text=True, cwd=tmp_path, timeout=120
        )
        assert done.returncode == 0, done
        return [json.loads(line) for line in done.stdout.split("\0")[:-1]]

    if subprocess.run([python, "-c", "import pip"], capture_output=True).returncode:
        call("ensurepip")  # takes seconds, and most Pythons have one already
    quietly = ("--no-deps", "--no-index", "--disable-pip-version-check", "--no-cache-dir")
    call("pip", "install", *quietly, str(write_wheel(tmp_path / "built")))
    listed = " ".join(call("attnctl", "--help").split("Plug-ins")[1].replace("│", "").split())
    assert "lookback whether each head looks at the context or at the model's own new words" in listed

    folder = shelf("llama")
    words = ("lookback", "Alice will eat", "--model", folder, "--generate", "6")
    explained = ("explain", "Alice will eat", "--model", folder, "--measure", "relative", "--json")
    lines = (*words, "--json"), ("schema", "lookback"), explained, ("schema", "trace")
    told, schema, trace, schema_of_trace = answers(*lines)
    jsonschema_rs.validate(schema, told)
    jsonschema_rs.validate(schema_of_trace, trace)
    expected = lookback_ratios(folder, [token["id"] for token in told["tokens"]], told["new"])
    assert told["new"] == 6
    assert {(one["layer"], one["head"]) for one in told["heads"]} == set(expected)
    for one in told["heads"]:
        assert one["ratio"] == pytest.approx(expected[one["layer"], one["head"]], abs=1e-5)

    for layer, weights in zip(
        trace["layers"], eager_weights(folder, [one["id"] for one in trace["tokens"]]), strict=True
    ):
        for one, rows in zip(layer["heads"], weights, strict=True):
            shares = rows / rows.max(0)
            expected = shares / shares.sum(-1, keepdims=True)
            np.testing.assert_allclose(one["weights"], expected, atol=1e-5)
    stored = tmp_path / "relative.json"
    stored.write_text(json.dumps(trace))

    call("pip", "uninstall", "--yes", "attnctl-lookback")
    assert "relative.json: no measure 'relative'" in call("attnctl", "heatmap", str(stored), code=1)
    assert "no such command 'lookback'" in call("attnctl", *words, code=2)


def eager_weights(folder: str, ids: list[int]) -> list[np.ndarray[Any, Any]]:
    """Return the weights of each layer (heads, n, n) as transformers gives them."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        layers = network(torch.tensor([ids]), output_attentions=True).attentions
    return [weights[0].double().numpy() for weights in layers]


def lookback_ratios(folder: str, ids: list[int], new: int) -> dict[tuple[int, int], float]:
    """Return equations 1 and 2 of the paper, token by token, from the weights that transformers gives."""
    n = len(ids) - new
    found = {}
    for layer, weights in enumerate(eager_weights(folder, ids)):
        for head, rows in enumerate(weights):
            steps = []
            for t in range(2, new + 1):  # the token t is written where the one before it looks
                row = rows[n + t - 2]
                context, own = np.mean(row[:n]), np.mean(row[n : n + t - 1])
                steps.append(context / (context + own))
            found[layer, head] = float(np.mean(steps))
    return found


def listed_modules() -> list[str]:
    return re.findall(r"^(attnctl[\w.]*) {2,}\S", plugins.__doc__ or "", re.MULTILINE)


def test_the_sample_imports_what_is_promised() -> None:
    for module in listed_modules():
        import_module(module)
    parsed = ast.parse((PLUGIN / "attnctl_lookback.py").read_text())
    used = {node.module: node.names for node in ast.walk(parsed) if isinstance(node, ast.ImportFrom)}
    ours = {module: names for module, names in used.items() if str(module).startswith("attnctl")}
    assert set(ours) <= set(listed_modules())
    for module, names in ours.items():
        package = import_module(str(module))
        public = getattr(package, "__all__", [name for name in dir(package) if name[:1] != "_"])
        assert {alias.name for alias in names} <= set(public), module


def test_the_contract_of_the_commands_lists_the_same_modules() -> None:
    """A command may import what a plug-in may, and nothing new escapes: every part of the package is forbidden to it."""
    from configparser import ConfigParser

    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    contract = contracts["importlinter:contract:public"]
    imports = [line.split(" -> ") for line in contract["ignore_imports"].splitlines() if " -> " in line]
    allowed = [module for command, module in imports if command == "attnctl.commands.**"]
    assert sorted(["attnctl", *allowed]) == sorted(listed_modules()) and len(listed_modules()) <= 40
    parts = {
        path.stem for path in (ROOT / "attnctl").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert {f"attnctl.{part}" for part in parts - {"__init__", "__main__", "commands"}} == set(
        contract["forbidden_modules"].split()
    )


def test_what_the_page_tells_to_ask_is_there() -> None:
    page = (ROOT / "attnctl/docs/plug-ins.md").read_text()
    named = []
    for _, ask in re.findall(r"^\| ([a-z][^|]*) \| ([^|]*`attnctl\.[^|]*) \|$", page, re.MULTILINE):
        waiting: list[str] = []
        for word in re.findall(r"`([\w.]+)", ask):
            if not word.startswith("attnctl."):
                waiting.append(word)
                continue
            assert word in listed_modules()
            named += [(name, hasattr(import_module(word), name)) for name in waiting if name != "isinstance"]
            waiting = []
    assert len(named) > 10 and all(there for _, there in named), named


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, group: str = "commands") -> None:
    """Put a package with one module beside the others of this process."""
    module = f"{name}_module"
    own = {f"attnctl.{group}": {name: module if group == "commands" else f"{module}:{group.upper()}"}}
    project = {"name": f"package-{name}", "version": "1", "description": "[bold]does \x1b[31mthis", "entry-points": own}
    write_package(folder, project)
    (folder / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)


GREET = """
from attnctl.cli import command

@command(example="attnctl greet")
def greet_command(*, times: int = 1) -> None:
    "Greet."
    print("hello " * times)
"""


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("lacking", "import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("unreadable", "def unreadable_command(: pass", "SyntaxError"),
        ("leaving", "raise SystemExit(7)", "SystemExit: 7"),
        ("empty", "", "empty_module has no function empty_command under @command"),
    ],
)
def test_a_broken_plugin_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, refused: Refused, name: str, code: str, why: str
) -> None:
    install(tmp_path, monkeypatch, name, code)
    told = run("--help")
    assert (told.code, told.err.count("\n")) == (0, 1)
    assert f"package-{name}" in told.err and why in told.err
    assert "explain" in told.out and "Plug-ins" not in told.out
    assert why in refused(name)
    other = run("softmax", "1", "2")
    assert (other.code, other.err) == (0, "")


FAILING = """
from attnctl.cli import command

@command(example="attnctl failing")
def failing_command(*, deep: bool = False) -> None:
    "Fail."
    {}["key"] if not deep else int("x")
"""


def test_a_plugin_that_raises_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    """It was a traceback of forty lines."""
    install(tmp_path, monkeypatch, "failing", FAILING)
    says = "the command failing of package-failing failed: KeyError: 'key' (failing_module.py:7); tell its authors"
    assert refused("failing") == says
    assert "ValueError: invalid literal for int() with base 10: 'x' (failing_module.py:7)" in refused(
        "failing", "--deep"
    )


def test_a_measure_that_raises_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, run: Run
) -> None:
    """In a batch it was "a bug in attnctl"; a fault of attnctl itself stays one."""
    install(
        tmp_path,
        monkeypatch,
        "raising",
        MEASURE.format(name="raising").replace("layer.n_k", "layer.nothing"),
        "measures",
    )
    says = "the measure raising of package-raising failed: AttributeError: "
    for command in ("explain", "heatmap"):
        assert refused(command, "Alice eats", "--measure", "raising").startswith(says)
    (tmp_path / "in.txt").write_text("Alice eats\nBob sleeps\n")
    told = run("batch", tmp_path / "in.txt", "--measure", "raising", "--jobs", "2")
    assert told.code == 3 and says in told.err and "a bug in attnctl" not in told.err
    monkeypatch.setattr("attnctl.inputs.text_of", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("explain", "Alice eats")


def test_a_broken_plugin_beside_defaults_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, config_file: Path
) -> None:
    install(tmp_path, monkeypatch, "halting", "raise ValueError('halt')")
    config_file.write_text('precision = 3\ncmap = "magma"\n')  # softmax has no cmap: another command may
    told = run("softmax", "1", "2")
    assert told.code == 0 and "0.731" in told.out
    assert told.err.count("\n") == 1 and "the command halting of package-halting cannot be imported" in told.err


def test_a_document_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    install(tmp_path, monkeypatch, "result", "", "documents")
    assert "the document result of package-result cannot be imported" in refused("schema", "result")


def test_a_name_that_exists_stays_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    install(tmp_path, monkeypatch, "softmax", "raise SystemExit(7)")
    told = run("--help")
    assert told.err == "attnctl: package-softmax gives a command softmax, which exists already: it is left out\n"
    assert run("softmax", "1", "2").code == 0


def test_a_plugin_among_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, refused: Refused, config_file: Path
) -> None:
    install(tmp_path, monkeypatch, "greet", GREET)
    told = run("--help").out
    assert "[bold]does" in told and "\x1b" not in told
    assert run("greet", "--times", "2").out == "hello hello \n"
    assert "did you mean 'greet'" in refused("gret", code=2).casefold()
    assert "(see attnctl greet --help)" in refused("greet", "--tims", code=2)
    config_file.write_text("[greet]\n")
    assert run("softmax", "1", "2").code == 0
    config_file.write_text("[greets]\nquiet = true\n")
    assert "did you mean greet?" in refused("softmax", "1", "2")


MEASURE = """
import numpy as np
from attnctl.measures import Measure

def squares(layer):
    return layer.reweighted(np.ones((len(layer.heads), layer.n_k)))

MEASURES = Measure("{name}", "Same", "As they are.", "weight", "w", "The weights as they are.", "values", squares)
"""


def test_a_measure_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, refused: Refused, config_file: Path
) -> None:
    install(tmp_path, monkeypatch, "same", MEASURE.format(name="same"), "measures")
    assert "value-zeroing, same." in " ".join(run("heatmap", "--help-all").out.replace("│", "").split())
    plain, same = (run("explain", "Alice eats", "--json", *more).json for more in ((), ("--measure", "same")))
    assert same["measure"] == "same"
    np.testing.assert_allclose(*(one["layers"][0]["heads"][0]["weights"] for one in (same, plain)), rtol=1e-5)
    assert "did you mean same?" in refused("heatmap", "Alice eats", "--measure", "sam", code=2)
    assert run("config", "--set", "measure=same").code == 0 and "same" in config_file.read_text()
    (tmp_path / "in.txt").write_text("Alice eats\nBob sleeps\n")
    told = run("batch", tmp_path / "in.txt", "--measure", "same", "--jobs", "2")
    assert [json.loads(line)["measure"] for line in told.out.splitlines()] == ["same", "same"]


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("gone", "import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("three", "MEASURES = 3", "three_module:MEASURES is not a Measure"),
        ("renamed", MEASURE.format(name="another"), "renamed_module:MEASURES is called 'another'"),
    ],
)
def test_a_broken_measure_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, refused: Refused, name: str, code: str, why: str
) -> None:
    install(tmp_path, monkeypatch, name, code, "measures")
    told = run("heatmap", "--help-all")
    assert (told.code, told.err.count("\n")) == (0, 1) and f"the measure {name} of package-{name}" in told.err
    assert name not in told.out
    assert why in refused("heatmap", "Alice eats", "--measure", name)
    unknown = refused("heatmap", "Alice eats", "--measure", "unknown", code=2)
    assert name not in unknown and name not in named_values(["weights", "{attnctl.measures}"])
    other = run("heatmap", "Alice eats", "--measure", "value-norm", "--quiet")
    assert (other.code, other.err) == (0, "")


@pytest.mark.parametrize("name", ["rollout", "weights", "mean"])
def test_a_measure_of_attnctls_own_stays_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, name: str
) -> None:
    install(tmp_path, monkeypatch, name, MEASURE.format(name=name), "measures")
    left_out = f"attnctl: package-{name} gives a measure {name}, which exists already: it is left out\n"
    assert run("heatmap", "--help-all").err == left_out
    if name == "rollout":
        assert "residual" in run("heatmap", "Alice eats", "--measure", name).err  # of attnctl's own


LENGTHS = """
from attnctl.batching.formats import MeanFormat, tally_of_values

class BATCH_FORMATS(MeanFormat):
    form, measures = "{name}", ("tokens",)

    @staticmethod
    def make(item, trace, model):
        if item.id == "bad":
            raise ValueError("no lengths")
        return tally_of_values(
            (layer.layer, head, "tokens", len(trace.tokens)) for layer in trace.layers for head in layer.heads
        )
"""


def test_a_batch_format_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, refused: Refused
) -> None:
    install(tmp_path, monkeypatch, "lengths", LENGTHS.format(name="lengths"), "batch_formats")
    assert ", lengths: json,png." in " ".join(run("batch", "--help-all").out.replace("│", "").split())
    file, out = tmp_path / "in.jsonl", tmp_path / "out"
    file.write_text('{"text": "a b"}\n{"text": "a b c d"}\n{"text": "e", "id": "bad"}\n{"text": "a b c d e f"}\n')
    args = ("batch", file, "-o", out, "--model", "random", "--heads", "2", "--jobs", "2", "--layer", "0")
    told = run(*args, "--format", "lengths,json")
    assert told.code == 3 and "3 done, 1 failed" in told.err
    assert "--format lengths, which a package gives, failed: ValueError: no lengths (lengths_module.py:" in told.err
    assert (out / "lengths.csv").read_text().splitlines() == [
        "layer,head,measure,mean,spread,n", "0,0,tokens,4,2,3", "0,1,tokens,4,2,3"
    ]  # fmt: skip
    again = run(*args, "--format", "lengths,json")
    assert "0 done, 4 finished before (1 of them failed)" in again.err
    (out / ".lengths" / "0000000.json").unlink()
    assert "made again" in run(*args, "--format", "lengths,json").err
    assert "use it with --format json" in refused(*args, "--format", "lengths", "--steps", "weights", code=2)
    assert run(*args, "--format", "json", "--replace").code == 0
    assert {path.name for path in out.rglob("*") if path.is_file()} <= {
        ".lock",
        "manifest.jsonl",
        "run.json",
        "traces.jsonl",
    }


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("goneformat", "import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("threeformat", "BATCH_FORMATS = 3", "is not a class below BatchFormat"),
        ("renamedformat", LENGTHS.format(name="another"), "is called 'another'"),
        ("sources", "", ""),
    ],
)
def test_a_broken_batch_format_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, refused: Refused, name: str, code: str, why: str
) -> None:
    install(tmp_path, monkeypatch, name, code, "batch_formats")
    (tmp_path / "in.txt").write_text("a b\n")
    told = run("batch", "--help-all")
    assert (told.code, told.err.count("\n")) == (0, 1) and f"package-{name}" in told.err
    if why:
        assert why in refused("batch", tmp_path / "in.txt", "-o", tmp_path / "out", "--format", name)
    assert run("batch", tmp_path / "in.txt").err == ""


def test_names_of_formats_are_the_same_in_the_help() -> None:
    assert known_formats() == batch.FORMATS


UNREAD = """
import sys
from attnctl.cli.app import run_command
for words in sys.argv[1:]:
    assert run_command(words.split()) == 0
    assert "attnctl.plugins" not in sys.modules, words
"""


def test_a_start_without_plugins_reads_no_metadata(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("Alice eats\n")
    lines = ("softmax 1 2", "explain Alice", "heatmap Alice --measure value-norm", "batch in.txt --measure rollout")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", UNREAD, *lines]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout, done.stderr
