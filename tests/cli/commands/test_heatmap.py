"""`attnctl heatmap` from outside: what it reads and what it writes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pexpect
import pytest
from matplotlib import colormaps

from attnctl.formats.documents.trace_json import trace_to_json
from attnctl.models import attend
from attnctl.readings.traces.trace import Trace
from tests.conftest import SAMPLES, Result, Run, spawned

TEXT = "Alice will eat pizza"


@pytest.fixture
def trace() -> Trace:
    return attend(TEXT, model="random", causal=True)


@pytest.fixture
def grid() -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3, 5)).astype(np.float32)  # (layers, heads, n, n)


def cells(result: Result) -> np.ndarray:
    assert result.code == 0
    rows = [line.split("\t")[4:] for line in result.out.splitlines()[1:]]
    return np.array([[float(cell or "nan") for cell in row] for row in rows])


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_is_written_and_written_the_same(form: str, start: bytes, run: Run, tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.{form}"
        assert run("heatmap", TEXT, "--model", "random", "-o", str(path)) == Result(0, "", "")
        made.append(path.read_bytes())
    assert made[0] == made[1] and made[0].startswith(start)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"one.{form}", f"two.{form}"]


def test_a_trace_draws_as_its_text_does(run: Run, trace: Trace, tmp_path: Path) -> None:
    run("heatmap", TEXT, "--model", "random", "--causal", "-o", str(tmp_path / "text.png"))
    trace.save(tmp_path / "run.json")
    trace.save(tmp_path / "run.npz")
    wanted = (tmp_path / "text.png").read_bytes()
    for source, stdin in (
        (str(tmp_path / "run.json"), b""),
        (str(tmp_path / "run.npz"), b""),
        ("-", trace_to_json(trace)),
        ("-", json.dumps(json.loads(trace_to_json(trace)), indent=2).encode()),
        ("-", (tmp_path / "run.npz").read_bytes()),
    ):
        assert run("heatmap", source, "-o", str(tmp_path / "it.png"), stdin=stdin) == Result(0, "", "")
        assert (tmp_path / "it.png").read_bytes() == wanted


def test_in_a_pipe_come_numbers(run: Run, trace: Trace) -> None:
    result = run("heatmap", "-", stdin=trace_to_json(trace))
    assert result.out.splitlines()[0] == "layer\thead\tindex\tquery\t0:Alice\t1:will\t2:eat\t3:pizza"
    weights = trace.layers[0].weights
    assert weights is not None
    np.testing.assert_allclose(cells(result)[np.tri(4, dtype=bool)], weights[0][np.tri(4, dtype=bool)], rtol=1e-5)
    assert np.isnan(cells(result)[0, 1:]).all()  # masked, so empty


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), ""),
        (("--off", "1.3"), "Off (layer.head): 1.3."),
        (("--measure", "rollout"), "Shown is attention rollout"),
        (("--drop", "first", "--measure", "value-norm"), "Key “The” (0) left out"),
    ],
)
def test_what_numbers_in_a_pipe_are_is_said_beside_them(options: tuple[str, ...], said: str, run: Run) -> None:
    err = run("heatmap", "The cat sat", *options).err
    assert said in err and (bool(said) or err == "")
    story = run("heatmap", "--file", SAMPLES / "story.txt", *options).err
    assert "logarithmic" not in story  # of colours that are not there


def test_bare_matrices(run: Run, grid: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", grid)
    np.savez(tmp_path / "w.npz", weights=grid)
    np.savetxt(tmp_path / "w.csv", grid[0, 0], delimiter=",")
    flat = grid.reshape(-1, 5)
    for source, stdin in (
        (str(tmp_path / "w.npy"), b""),
        (str(tmp_path / "w.npz"), b""),
        ("-", (tmp_path / "w.npy").read_bytes()),
        ("-", (tmp_path / "w.npz").read_bytes()),
    ):
        result = run("heatmap", source, "--tokens", "a b c d e", stdin=stdin)
        np.testing.assert_allclose(cells(result), flat, rtol=1e-5)
        assert result.out.splitlines()[0].endswith("\t0:a\t1:b\t2:c\t3:d\t4:e")
    chosen = run(
        "heatmap", str(tmp_path / "w.npy"), "--layer", "1", "--head", "-1", "--tokens", '["a b","c","d","e","f"]'
    )
    np.testing.assert_allclose(cells(chosen), grid[1, 2], rtol=1e-5)
    assert "\t0:a b\t1:c" in chosen.out
    for source, stdin in ((str(tmp_path / "w.csv"), b""), ("-", (tmp_path / "w.csv").read_bytes())):
        np.testing.assert_allclose(cells(run("heatmap", source, stdin=stdin)), grid[0, 0], rtol=1e-5)


@pytest.mark.parametrize("text", ["one, two\nthree, four", "1, 2, 3", '{"a": 1}', "α β\n"])
def test_text_in_a_pipe_is_text(text: str, run: Run) -> None:
    out = run("heatmap", "-", "--model", "random", stdin=text.encode()).out
    heading, *rows = csv.reader(io.StringIO(out), delimiter="\t")
    assert [row[3] for row in rows] == [name.partition(":")[2] for name in heading[4:]]


def test_a_missing_glyph_is_said_on_stderr(run: Run, tmp_path: Path) -> None:
    result = run("heatmap", "ok \U0001fae8\U000107ff", "--model", "random", "-o", str(tmp_path / "a.svg"))
    assert result.code == 0 and result.out == ""
    assert "no installed font has" in result.err and "U+107FF" in result.err and result.err.count("\n") == 1


# --- on a terminal -----------------------------------------------------------------------------------------------


def on_a_terminal(*arguments: str, **environment: str) -> str:
    child = spawned("heatmap", *arguments, rows=60, COLORTERM="truecolor", **environment)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    return str(child.before).replace("\r\n", "\n")


def test_on_a_terminal_the_grid_is_drawn(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "run.json")
    drawn = on_a_terminal(str(tmp_path / "run.json"))
    assert "random, layer 0, head 0" in drawn and "\x1b[38;2;0;0;0;48;2;253;231;37m 1.00 " in drawn  # viridis' last
    plain = on_a_terminal(str(tmp_path / "run.json"), NO_COLOR="1")
    assert "[38;" not in plain and "1.00" in plain and "0.80" in plain
    brightest = ";".join(map(str, colormaps["magma"](1.0, bytes=True)[:3]))
    assert f"48;2;{brightest}m 1.00" in on_a_terminal(str(tmp_path / "run.json"), "--cmap", "magma")


def test_a_run_over_training(run: Run, tmp_path: Path) -> None:
    from PIL import Image
    from safetensors.numpy import save_file

    (tmp_path / "run").mkdir()
    for step in (0, 5, 40):
        w = {name: np.full((1, 4, 2), step / 10 + at, np.float32) for at, name in enumerate(("W_Q", "W_K", "W_V"))}
        save_file(w, tmp_path / "run" / f"step-{step:06d}.safetensors")
    for name in ("a.gif", "b.gif", "strip.png", "strip.svg"):
        result = run("heatmap", "Alice will eat", "--run", str(tmp_path / "run"), "-o", str(tmp_path / name))
        assert (result.code, result.out) == (0, ""), result
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 3 and gif.size[0] > 200
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
