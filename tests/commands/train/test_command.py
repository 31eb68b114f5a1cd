"""`attnctl train` and `evaluate` from outside: what they write, and how they stop."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pexpect
import pytest

from attnctl.commands.train.recipe import DEFAULTS
from attnctl.commands.train.run import TrainingRun
from attnctl.commands.train.show import live_forms
from attnctl.render.terminal.console import Shown, as_text
from tests.conftest import Refused, Run, spawned
from tests.tools.screen import cells

LINES = "the cat sat on the mat\nthe dog ran home\na bird sang\nthe cat ran on the mat today\n"
SMALL = ("--d-model", "8", "--heads", "2", "--batch-size", "8")


@pytest.fixture(autouse=True)
def _corpus(_here: None) -> None:
    Path("corpus.txt").write_text(LINES)


def trained(run: Run, steps: int, *more: str, out: str = "run") -> Any:
    result = run("train", "corpus.txt", "-o", out, "--max-steps", str(steps), *SMALL, *more)
    assert result.code == 0, result
    return result


def test_a_run_in_a_pipe(run: Run) -> None:
    result = trained(run, 12, "--watch", "the cat ran home", "-q", "ran")
    reports = [json.loads(line) for line in result.out.splitlines()]
    assert [r["step"] for r in reports] == list(range(1, 13))
    assert reports[-1]["watch"]["query"] == "ran" and len(reports[-1]["watch"]["row"]) == 4
    assert [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()] == reports
    assert json.loads(Path("run/recipe.json").read_text())["d_model"] == 8
    shown = run("explain", "the cat ran", "--model", "run", "--json").json
    assert shown["model"]["causal"] and shown["predictions"]
    assert run("explain", "the cat ran", "--model", "run/weights.safetensors", "--json").code == 0
    assert "run" in result.err


def test_a_folder_and_standard_input(run: Run) -> None:
    Path("texts").mkdir()
    Path("texts/a.txt").write_text(LINES)
    for at, (source, stdin) in enumerate((("-", LINES.encode()), ("texts", b""), ("corpus.txt", b""))):
        assert run("train", source, "-o", f"r{at}", "--max-steps", "3", *SMALL, stdin=stdin).code == 0
    assert len({Path(f"r{at}/step-000003.safetensors").read_bytes() for at in range(3)}) == 1


def test_resume_with_more_steps(run: Run) -> None:
    trained(run, 5)
    Path("corpus.txt").unlink()  # the run keeps its own
    done = run("train", "-o", "run", "--resume")
    assert done.code == 0 and done.out == "" and "all its 5 steps" in done.err
    more = run("train", "-o", "run", "--resume", "--max-steps", "8")
    assert [json.loads(line)["step"] for line in more.out.splitlines()] == [6, 7, 8]


def test_one_gradient_step(run: Run) -> None:
    asked = ("train", "corpus.txt", "--explain", *SMALL[:4], "--layers", "2")
    told = run(*asked, "--json").json
    assert told["loss_after"] < told["loss"]
    assert [word for _, word, _ in told["predictions"]] == ["cat", "sat", "on", "the", "mat"]
    for before, gradient, after in zip(told["weights"], told["gradient"], told["after"], strict=True):
        assert after == pytest.approx([w - told["lr"] * g for w, g in zip(before, gradient, strict=True)], abs=1e-5)
    shown = run(*asked).out
    assert f"loss {told['loss']:.4f} → {told['loss_after']:.4f}" in shown and "1 is the learning rate" in shown
    logs = re.findall(r"  −ln (\d\.\d+) = +(\d+\.\d+)", shown)
    assert all(-math.log(float(p)) == pytest.approx(float(log), abs=2e-4) for p, log in logs)  # each with its p
    added = [float(log) for _, log in logs]
    assert len(added) == 5 and sum(added) / 5 == pytest.approx(told["loss"], abs=1e-4)  # the loss, by hand
    lines = cells(shown)
    for name in ("gradient", "weights", "after"):  # the first numbers of each
        wanted = [[f"{np.float32(x):.5f}" for x in row] for row in told[name][:4]]
        assert [line for line in lines if line in wanted] == wanted, name
    shares = {
        name: (f"{fall:.4f}", f"{100 * fall / sum(told['falls'].values()):.1f} %")
        for name, fall in told["falls"].items()
    }
    listed = [line for line in lines if line[0] in shares]
    assert [line[0] for line in listed] == sorted(shares, key=lambda name: -told["falls"][name])[: len(listed)]
    assert len(listed) >= 8 and all(tuple(line[1:3]) == shares[line[0]] for line in listed)
    told = run(*asked, "--json", "--objective", "masked-word", "--lr", "0.003").json
    assert told["predictions"][1][:2] == ["the ____ sat on the mat", "cat"]
    # the fall of a short step is the sum of its parts
    assert {"embedding", "layers.0.W_Q", "layers.1.W_O"} <= set(told["falls"])
    assert sum(told["falls"].values()) == pytest.approx(told["loss"] - told["loss_after"], rel=0.1)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_live_loss_is_not_cut(width: int) -> None:
    reports = [{"step": n, "loss": 9 / (1 + n), "seconds": 1.0, "tokens_per_second": 1000} for n in range(300)]
    lines = as_text(Shown(live_forms(reports, 300, width)), width).splitlines()
    assert any(line.endswith("loss 0.030") for line in lines) and max(map(len, lines)) <= width


def started() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "attnctl", "train", "corpus.txt", "-o", "run", "--max-steps", "1000000", *SMALL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not Path("run/resume.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    return process


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGHUP], ids=["ctrl-c", "the terminal closed"])
def test_ctrl_c_saves_and_exits_130(sent: signal.Signals, run: Run) -> None:
    process = started()
    done = run("train", "-o", "run", "--resume", "--max-steps", "5")
    assert done.code == 1 and "run is being written by another run: wait for it" in done.err, done
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"--resume" in err and b"Traceback" not in err
    step = int(err.split(b"step ")[1].split()[0])
    assert step > 0 and Path(f"run/step-{step:06d}.safetensors").exists()
    again = run("train", "-o", "run", "--resume", "--max-steps", str(step + 1))
    assert again.code == 0 and json.loads(again.out.splitlines()[-1])["step"] == step + 1


def test_the_live_view() -> None:
    more = ("--max-steps", "20", *SMALL, "--watch", "the cat ran home")
    child = spawned("train", "corpus.txt", "-o", "run", *more, rows=40, columns=100)
    child.expect("step 20 of 20")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert "tokens/s" in child.before and "layer 0, head" in child.before and "{" not in child.before


def test_what_takes_long_is_told_beforehand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was shown for twenty seconds."""
    result = run("train", "-o", "bundled", "--max-steps", "1", "--batch-size", "4")
    assert result.err.splitlines()[0] == "attnctl: note: reading the sentences of the bundled corpus"
    assert json.loads(result.out)["watch"]["tokens"] == ["Alice", "will", "eat", "pizza"]
    recipe = run("model", "bundled", "--json").json["metadata"]["recipe"]
    assert (recipe["corpus"], recipe["sentences"]) == ("grammar", 65_000)
    for name in ("MEASURED_SECONDS", "ANNOUNCED_SECONDS"):
        monkeypatch.setattr(f"attnctl.commands.train.compute.{name}", 0.0)
    told = trained(run, 4).err.splitlines()
    assert len(told) == 2 and told[0].startswith("attnctl: note: 3 steps to go: about 0 s (Ctrl-C saves"), told


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("steps", 2**70), ("steps", "8000"), ("layers", 10**12), ("lr", None), ("bias", 5),
     ("objective", ["next-word"]), ("objective", "odd"), ("batch_size", 1.5), ("min_length", -4), ("corpus", 7)],
)  # fmt: skip
def test_a_recipe_of_other_types_is_damaged(name: str, value: Any, refused: Refused) -> None:
    TrainingRun(Path("run")).create(DEFAULTS["next-word"], None)
    recipe = Path("run/recipe.json")
    told = json.loads(recipe.read_text())
    recipe.write_text(json.dumps(told | {name: value}))
    assert "recipe.json is damaged: " in refused("train", "-o", "run", "--resume")
    recipe.write_text(json.dumps({key: told[key] for key in told if key != name}))
    assert refused("train", "-o", "run", "--resume").endswith(f"recipe.json is damaged: {name} is missing")
