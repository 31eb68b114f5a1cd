"""`attnctl heatmap` from outside: what it reads and what it writes."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pexpect
import pytest
from matplotlib import colormaps
from PIL import Image
from safetensors.numpy import save_file

from attnctl.formats.documents.trace_json import trace_to_json
from attnctl.models import attend
from attnctl.trace import Trace
from tests.conftest import Refused, Result, Run, spawned
from tests.tools.screen import cells as cells_of
from tests.tools.screen import told

TEXT = "Alice will eat pizza"


@pytest.fixture
def trace(_here: None) -> Trace:
    """Of random weights, and in run.json and run.npz."""
    made = attend(TEXT, model="random", causal=True)
    for form in ("json", "npz"):
        made.save(Path(f"run.{form}"))
    return made


def cells(result: Result) -> np.ndarray:
    assert result.code == 0
    rows = [line.split("\t")[4:] for line in result.out.splitlines()[1:]]
    return np.array([[float(cell or "nan") for cell in row] for row in rows])


def test_a_trace_draws_as_its_text_does(run: Run, trace: Trace) -> None:
    run("heatmap", TEXT, "--model", "random", "--causal", "-o", "text.png")
    for source, stdin in (
        ("run.json", b""),
        ("run.npz", b""),
        ("-", json.dumps(json.loads(trace_to_json(trace)), indent=2).encode()),
        ("-", Path("run.npz").read_bytes()),
    ):
        assert run("heatmap", source, "-o", "it.png", stdin=stdin) == Result(0, "", "")
        assert Path("it.png").read_bytes() == Path("text.png").read_bytes()


def test_in_a_pipe_come_numbers(run: Run, trace: Trace) -> None:
    result = run("heatmap", "-", stdin=trace_to_json(trace))
    assert result.out.splitlines()[0] == "layer\thead\tindex\tquery\t0:Alice\t1:will\t2:eat\t3:pizza"
    weights = trace.layers[0].weights
    assert weights is not None
    # what is masked is empty
    np.testing.assert_allclose(cells(result), np.where(np.tri(4, dtype=bool), weights[0], np.nan), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), ""),
        (("--off", "1.3"), "Off (layer.head): 1.3."),
        (("--drop", "first", "--measure", "value-norm"), "Key “The” (0) left out"),
    ],
)
def test_what_numbers_in_a_pipe_are_is_said_beside_them(options: tuple[str, ...], said: str, run: Run) -> None:
    err = run("heatmap", "The cat sat", *options).err
    assert said in err and (bool(said) or err == "")


def test_bare_matrices(run: Run) -> None:
    grid = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3, 5)).astype(np.float32)  # (layers, heads, n, n)
    np.save("w.npy", grid)
    np.savez("w.npz", weights=grid)
    np.savetxt("w.csv", grid[0, 0], delimiter=",")
    for name in ("w.npy", "w.npz", "w.csv"):
        for source, stdin in ((name, b""), ("-", Path(name).read_bytes())):
            result = run("heatmap", source, "--tokens", "a b c d e", stdin=stdin)
            np.testing.assert_allclose(
                cells(result), (grid[0, 0] if name == "w.csv" else grid).reshape(-1, 5), rtol=1e-5
            )
            assert result.out.splitlines()[0].endswith("\t0:a\t1:b\t2:c\t3:d\t4:e")
    chosen = run("heatmap", "w.npy", "--layer", "1", "--head", "-1", "--tokens", '["a b","c","d","e","f"]')
    np.testing.assert_allclose(cells(chosen), grid[1, 2], rtol=1e-5)
    assert "\t0:a b\t1:c" in chosen.out


@pytest.mark.parametrize(("query", "shown"), [("eat", [2]), ("-1", [3]), ("will,eat", [1, 2]), ("1-3", [1, 2, 3])])
def test_a_query_is_its_row_of_the_grid(query: str, shown: list[int], run: Run) -> None:
    grid = np.random.default_rng(0).dirichlet(np.ones(4), (2, 4))
    np.save("w.npy", grid)
    named = ("heatmap", "w.npy", "--tokens", "Alice will eat pizza", "--query", query)
    np.testing.assert_allclose(cells(run(*named)), grid[:, shown].reshape(-1, 4), rtol=1e-5)
    assert run(*named, "-o", "one.csv").code == 0
    assert {int(row["query"]) for row in csv.DictReader(io.StringIO(Path("one.csv").read_text()))} == set(shown)


@pytest.mark.parametrize("text", ["one, two\nthree, four", "1, 2, 3", '{"a": 1}', "α β\n"])
def test_text_in_a_pipe_is_text(text: str, run: Run) -> None:
    out = run("heatmap", "-", "--model", "random", stdin=text.encode()).out
    heading, *rows = csv.reader(io.StringIO(out), delimiter="\t")
    assert [row[3] for row in rows] == [name.partition(":")[2] for name in heading[4:]]


def test_a_missing_glyph_is_said_on_stderr(run: Run) -> None:
    result = run("heatmap", "ok \U0001fae8\U000107ff", "--model", "random", "-o", "a.svg")
    assert result.code == 0 and result.out == ""
    assert "no installed font has" in result.err and "U+107FF" in result.err and result.err.count("\n") == 1


def on_a_terminal(*arguments: str, **environment: str) -> str:
    child = spawned("heatmap", *arguments, rows=60, COLORTERM="truecolor", **environment)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    return str(child.before).replace("\r\n", "\n")


def test_on_a_terminal_the_grid_is_drawn(trace: Trace) -> None:
    brightest = ";".join(map(str, colormaps["magma"](1.0, bytes=True)[:3]))
    drawn = on_a_terminal("run.json", "--cmap", "magma")
    assert "random, layer 0, head 0" in drawn and f"\x1b[38;2;0;0;0;48;2;{brightest}m 1.00 " in drawn
    plain = on_a_terminal("run.json", NO_COLOR="1")
    assert "[38;" not in plain and "1.00" in plain and "0.80" in plain


def test_the_head_of_the_headline(run: Run) -> None:
    line = attend(TEXT, model="demo").headline()
    assert line is not None
    rows = list(csv.reader(io.StringIO(run("heatmap", TEXT, "--head", "telling").out), delimiter="\t"))[1:]
    assert {(row[0], row[1]) for row in rows} == {(str(line.layer), str(line.head))}
    result = run("heatmap", TEXT, "--head", "telling", "-o", "it.svg")
    assert result == Result(0, "", "") and "eat → Alice 1.00 (sure)" in on_a_terminal(TEXT, "--head", "telling")
    plain = run("heatmap", TEXT, "--layer", str(line.layer), "--head", str(line.head), "-o", "plain.svg")
    assert plain.code == 0 and Path("plain.svg").read_bytes() != Path("it.svg").read_bytes()  # no cell is ringed
    only = list(csv.reader(io.StringIO(run("heatmap", TEXT, "--layer", "0", "--head", "telling").out), delimiter="\t"))
    assert {row[0] for row in only[1:]} == {"0"}
    long = run("heatmap", "word " * 600, "--head", "telling")
    assert (long.code, long.out) == (2, "") and "--head telling: it needs every weight" in long.err
    for command in ("explain", "heads"):
        assert run(command, TEXT, "--head", "telling").code == 2


def test_cells_of_a_measure_are_read_back_as_that_measure(run: Run, refused: Refused) -> None:
    """They were refused, though the file names the measure."""
    attend(TEXT, "random", n_heads=2, output_projection=False).save("run.json")
    assert run("heatmap", "run.json", "--measure", "value-norm", "-o", "cells.json").code == 0
    assert json.loads(Path("cells.json").read_text())["measure"] == "value-norm"
    heads = json.loads(Path("run.json").read_text())["layers"][0]["heads"]
    lengths = [
        np.array(head["weights"]) * np.linalg.norm(head["values"], axis=-1) for head in heads
    ]  # ‖weight × value‖
    wanted = np.concatenate([rows / rows.sum(-1, keepdims=True) for rows in lengths])
    np.testing.assert_allclose(cells(run("heatmap", "cells.json")), wanted, rtol=1e-4)
    assert "leave it out when the file is read" in refused("heatmap", TEXT, "--drop", "first", "-o", "c.json", code=2)


def test_a_run_over_training(run: Run) -> None:
    Path("run").mkdir()
    for step in (0, 5, 40):
        w = {name: np.full((1, 4, 2), step / 10 + at, np.float32) for at, name in enumerate(("W_Q", "W_K", "W_V"))}
        save_file(w, f"run/step-{step:06d}.safetensors")
    for name in ("a.gif", "b.gif", "strip.png", "strip.svg"):
        result = run("film", "run", "Alice will eat", "-o", name)
        assert (result.code, result.out) == (0, f"{name}\n"), result
    with Image.open("a.gif") as gif:
        assert gif.n_frames == 3 and gif.size[0] > 200
    assert Path("a.gif").read_bytes() == Path("b.gif").read_bytes()


@pytest.mark.parametrize(
    ("asked", "shown", "says"),
    [
        ((TEXT, "--causal"), ("--values",), ["· or blank: masked"]),
        ((TEXT, "--causal", "--drop", "first", "--renormalise"), ("--log",), ["key “Alice” (0) left out", "rows rescaled to sum to 1", "logarithmic"]),
        ((TEXT, "--causal", "--temperature", "0.01"), ("--log",), ["all below 1e-6 alike", "weight 1e-06"]),
        (("a b c d e f g h i j k l m n", "--causal", "--drop", "b"), (), ["key “b” (1) left out"]),
        (("--file", "samples/story.txt", "--spans", "lines"), (), ["share of its attention", "weight 0"]),
    ],
)  # fmt: skip
def test_the_grid_at_a_terminal_holds_the_numbers_of_the_pipe(
    asked: tuple[str, ...], shown: tuple[str, ...], says: list[str], run: Run, at_terminal: Run, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(room)
    heading, *rows = csv.reader(io.StringIO(run("heatmap", *asked, "-m", "random").out), delimiter="\t")
    screen = at_terminal("heatmap", *asked, "-m", "random", *shown, columns=120).out
    lines = cells_of(screen)
    names = [name.partition(":")[2] for name in heading[4:]]
    if "--spans" not in asked:  # whose names are cut
        assert [line for line in lines if line == names] == [names]
    wanted = [[row[3], *told(float(x) if x else None for x in row[4:])] for row in rows]
    found = [line for line in lines if len(line) == 1 + len(names)]
    assert [line[1:] for line in found] == [line[1:] for line in wanted]
    assert all(line[0].startswith(label.rstrip("…")) for line, (label, *_) in zip(wanted, found, strict=True))
    assert all(words in screen for words in says)


@pytest.mark.parametrize(
    ("asked", "rows", "cell"),
    [
        (("--file", "long.txt", "-m", "random", "--layers", "2", "--heads", "2", "--d-model", "8", "--layer", "1", "--head", "0"),
         [str(at) for at in range(0, 540, 9)], "each cell of 9 tokens × 9 tokens: the mean"),
        (("grid.json", "--layer", "0", "--head", "1"), [str(at) for at in range(0, 540, 9)], "each cell of 3 tokens × 3 tokens: the mean"),
        (("--file", "long.txt", "-m", "random", "--d-model", "8", "--rows", "100-119", "--columns", "0-199"),
         [str(at) for at in range(100, 120)], "each cell of 1 token × 4 tokens: the mean"),
    ],
)  # fmt: skip
def test_a_long_text_is_pooled_and_says_so(
    asked: tuple[str, ...], rows: list[str], cell: str, at_terminal: Run
) -> None:
    screen = at_terminal("heatmap", *asked).out
    assert [
        line.split()[0] for line in screen.splitlines() if re.search("[▁░▒▓█]{10}", line) and line[0].isdigit()
    ] == rows
    layer, head = (asked[asked.index(name) + 1] if name in asked else "0" for name in ("--layer", "--head"))
    assert cell in screen and f"layer {layer}, head {head}" in screen


def test_a_darker_sign_stands_for_a_larger_weight(at_terminal: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.tile([0.0, 0.2, 0.3, 0.5], (2, 3, 4, 1)))  # of two layers, three heads
    screen = at_terminal("heatmap", str(tmp_path / "w.npy"), "--no-values").out
    grids = [line for line in screen.splitlines() if re.search("^[▁░▒▓█ ]+$", line)]
    assert grids and all(set(line.split()) == {"▁▒▓█"} and len(line.split()) == 3 for line in grids)
