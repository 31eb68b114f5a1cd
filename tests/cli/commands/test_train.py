"""`attnctl train` and `evaluate` from outside: what they write, and how they stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

from attnctl.render.terminal.console import Shown, as_text
from attnctl.render.told.training import live_forms
from tests.conftest import Run, spawned

LINES = "the cat sat on the mat\nthe dog ran home\na bird sang\nthe cat ran on the mat today\n"
SMALL = ("--d-model", "8", "--heads", "2", "--batch-size", "8")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(LINES)
    return path


def test_a_run_in_a_pipe(run: Run, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run("train", corpus, "-o", out, "--max-steps", "12", *SMALL, "--watch", "the cat ran home", "-q", "ran")
    reports = [json.loads(line) for line in result.out.splitlines()]
    assert result.code == 0 and [r["step"] for r in reports] == list(range(1, 13))
    assert reports[-1]["watch"]["query"] == "ran" and len(reports[-1]["watch"]["row"]) == 4
    assert [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()] == reports
    assert json.loads((out / "recipe.json").read_text())["d_model"] == 8
    shown = run("explain", "the cat ran", "--model", out, "--json").json
    assert shown["model"]["causal"] and shown["predictions"]
    assert run("explain", "the cat ran", "--model", out / "weights.safetensors", "--json").code == 0
    assert str(out) in result.err


def test_a_folder_and_standard_input(run: Run, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(LINES)
    for at, (source, more) in enumerate((("-", {"stdin": LINES.encode()}), (tmp_path / "texts", {}), (corpus, {}))):
        assert run("train", source, "-o", tmp_path / f"r{at}", "--max-steps", "3", *SMALL, **more).code == 0
    weights = {(tmp_path / f"r{at}" / "step-000003.safetensors").stat().st_size for at in range(3)}
    assert len(weights) == 1


def test_resume_with_more_steps(run: Run, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run("train", corpus, "-o", out, "--max-steps", "5", *SMALL)
    corpus.unlink()  # the run keeps its own
    done = run("train", "-o", out, "--resume")
    assert done.code == 0 and done.out == "" and "all its 5 steps" in done.err
    more = run("train", "-o", out, "--resume", "--max-steps", "8")
    assert [json.loads(line)["step"] for line in more.out.splitlines()] == [6, 7, 8]


def test_one_gradient_step(run: Run) -> None:
    result = run("train", "--explain", "--json")
    told = result.json
    assert told["loss_after"] < told["loss"]
    assert [word for _, word, _ in told["predictions"]] == ["Alice", "will", "eat", "pizza"]
    for before, gradient, after in zip(told["weights"], told["gradient"], told["after"], strict=True):
        assert after == pytest.approx([w - told["lr"] * g for w, g in zip(before, gradient, strict=True)], abs=1e-5)
    shown = run("train", "--explain").out
    assert f"loss {told['loss']:.4f} → {told['loss_after']:.4f}" in shown and "1 is the learning rate" in shown
    added = [float(line.rpartition("−ln")[2]) for line in shown.splitlines() if "  −ln " in line]
    assert len(added) == 4 and sum(added) / 4 == pytest.approx(told["loss"], abs=1e-4)  # the loss, by hand


def test_the_fall_of_a_short_step_is_the_sum_of_its_parts(run: Run) -> None:
    told = run("train", "--explain", "--json", "--lr", "0.003").json
    assert {"embedding", "layers.0.W_Q", "layers.1.W_O"} <= set(told["falls"])
    assert sum(told["falls"].values()) == pytest.approx(told["loss"] - told["loss_after"], rel=0.1)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_live_loss_is_not_cut(width: int) -> None:
    reports = [{"step": n, "loss": 9 / (1 + n), "seconds": 1.0, "tokens_per_second": 1000} for n in range(300)]
    lines = as_text(Shown(live_forms(reports, 300, width)), width).splitlines()
    assert any(line.endswith("loss 0.030") for line in lines) and max(map(len, lines)) <= width


def test_one_gradient_step_on_a_text(run: Run, corpus: Path) -> None:
    told = run("train", corpus, "--explain", "--json", "--objective", "masked-word", *SMALL[:4]).json
    assert told["sentence"] == "the cat sat on the mat" and told["loss_after"] < told["loss"]
    assert told["predictions"][1][:2] == ["the ____ sat on the mat", "cat"]


def started(corpus: Path, out: Path) -> subprocess.Popen[bytes]:
    args = ("train", corpus, "-o", out, "--max-steps", "1000000", *SMALL)
    process = subprocess.Popen(
        [sys.executable, "-m", "attnctl", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not (out / "resume.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    return process


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGHUP], ids=["ctrl-c", "the terminal closed"])
def test_ctrl_c_saves_and_exits_130(sent: signal.Signals, run: Run, corpus: Path, tmp_path: Path) -> None:
    process = started(corpus, tmp_path / "run")
    done = run("train", "-o", tmp_path / "run", "--resume", "--max-steps", "5")
    assert done.code == 1 and "run is being written by another run: wait for it" in done.err, done
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"--resume" in err and b"Traceback" not in err
    step = int(err.split(b"step ")[1].split()[0])
    assert step > 0 and (tmp_path / "run" / f"step-{step:06d}.safetensors").exists()
    again = run("train", "-o", tmp_path / "run", "--resume", "--max-steps", str(step + 1))
    assert again.code == 0 and json.loads(again.out.splitlines()[-1])["step"] == step + 1


def test_a_kill_leaves_a_sound_run(run: Run, corpus: Path, tmp_path: Path) -> None:
    process = started(corpus, tmp_path / "run")
    process.kill()
    process.communicate()
    assert run("explain", "the cat ran", "--model", tmp_path / "run", "--json").code == 0
    assert run("train", "-o", tmp_path / "run", "--resume", "--max-steps", "100", *()).code == 0


def test_the_live_view(corpus: Path, tmp_path: Path) -> None:
    more = ("--max-steps", "20", *SMALL, "--watch", "the cat ran home")
    child = spawned("train", corpus, "-o", tmp_path / "run", *more, rows=40, columns=100)
    child.expect("step 20 of 20")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert "tokens/s" in child.before and "layer 0, head" in child.before and "{" not in child.before


def test_the_bundled_corpus_is_named_before_it_is_read(run: Run, tmp_path: Path) -> None:
    args = ("train", "-o", tmp_path / "run", "--max-steps", "1", "--batch-size", "4")
    result = run(*args)
    assert result.err.splitlines()[0] == "attnctl: note: reading the sentences of the bundled corpus"
    assert json.loads(result.out)["watch"]["tokens"] == ["Alice", "will", "eat", "pizza"]
    recipe = run("model", tmp_path / "run", "--json").json["metadata"]["recipe"]
    assert (recipe["corpus"], recipe["sentences"]) == ("grammar", 65_000)


def test_what_takes_long_is_told_beforehand(
    run: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was shown for twenty seconds."""
    for name in ("MEASURED_SECONDS", "TOLD_SECONDS"):
        monkeypatch.setattr(f"attnctl.training.train.{name}", 0.0)
    told = run("train", corpus, "-o", tmp_path / "own", "--max-steps", "4", *SMALL).err.splitlines()
    assert len(told) == 2 and told[0].startswith("attnctl: note: 3 steps to go: about 0 s (Ctrl-C saves"), told
