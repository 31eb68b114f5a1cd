"""A command from outside: samples/plugin from its own wheel in a fresh environment, and plug-ins that are broken."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from attnctl import plugins
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

    if subprocess.run([python, "-c", "import pip"], capture_output=True).returncode:
        call("ensurepip")  # takes seconds, and most Pythons have one already
    quietly = ("--no-deps", "--no-index", "--disable-pip-version-check", "--no-cache-dir")
    call("pip", "install", *quietly, str(write_wheel(tmp_path / "built")))
    listed = " ".join(call("attnctl", "--help").split("Plug-ins")[1].replace("│", "").split())
    assert "lookback whether each head looks at the context or at the model's own new words" in listed

    folder = shelf("llama")
    words = ("attnctl", "lookback", "Alice will eat", "--model", folder, "--generate", "6")
    told = json.loads(call(*words, "--json"))
    jsonschema.validate(told, json.loads(call("attnctl", "schema", "lookback")))
    expected = lookback_ratios(folder, [token["id"] for token in told["tokens"]], told["new"])
    assert told["new"] == 6
    assert {(one["layer"], one["head"]) for one in told["heads"]} == set(expected)
    for one in told["heads"]:
        assert one["ratio"] == pytest.approx(expected[one["layer"], one["head"]], abs=1e-5)

    call("pip", "uninstall", "--yes", "attnctl-lookback")
    assert "no such command 'lookback'" in call(*words, code=2)


def lookback_ratios(folder: str, ids: list[int], new: int) -> dict[tuple[int, int], float]:
    """Return equations 1 and 2 of the paper, token by token, from the weights that transformers gives."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        layers = network(torch.tensor([ids]), output_attentions=True).attentions
    n = len(ids) - new
    found = {}
    for layer, weights in enumerate(layers):
        for head, rows in enumerate(weights[0].double().numpy()):
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
    used = {one.module: one.names for one in ast.walk(parsed) if isinstance(one, ast.ImportFrom)}
    ours = {module: names for module, names in used.items() if str(module).startswith("attnctl")}
    assert set(ours) <= set(listed_modules())
    assert not [one.name for names in ours.values() for one in names if one.name.startswith("_")]


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, group: str = "commands") -> None:
    """Put a package with one module beside the others of this process."""
    module = f"{name}_module"
    own = {f"attnctl.{group}": {name: module if group == "commands" else f"{module}:Result"}}
    project = {"name": f"package-{name}", "version": "1", "description": "[bold]does \x1b[31mthis", "entry-points": own}
    write_package(folder, project)
    (folder / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)


GREET = """
from attnctl.cli.command import command

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


def test_a_start_without_plugins_reads_no_metadata() -> None:
    code = (
        "import sys; from attnctl.cli.app import run_command; run_command(['softmax', '1', '2']);"
        "sys.exit('attnctl.plugins' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 0
