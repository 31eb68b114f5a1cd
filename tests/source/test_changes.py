"""An option that changes the weights means the same on a text, its stored trace, a matrix of it, a long text, and in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.models import open_model
from attnctl.readings.heatmap import OverviewReading
from attnctl.readings.trace_reading import TraceReading
from attnctl.source import Changes, TextSource, TraceSource, prepare
from attnctl.source.zoom import cells_to_read, labelled_cells
from tests.conftest import Run

TEXT = "Alice will eat pizza"
MODEL = {"d_model": 16, "n_heads": 2, "n_layers": 2, "seed": 3}
CHANGES: dict[str, dict[str, Any]] = {
    "measure": {"measure": "value-norm"},
    "words": {"words": True},
    "drop": {"drop": ["first"]},
    "renormalised": {"drop": ["first"], "renormalise": True},
    "all": {"measure": "value-norm", "words": True, "drop": ["eat"], "renormalise": True},
    "rollout": {"measure": "rollout", "drop": ["first"], "renormalise": True},
}


def command_options(changes: dict[str, Any]) -> list[str]:
    """The changes as a command line has them."""
    values = {
        name: [] if value is True else [value] if isinstance(value, str) else value for name, value in changes.items()
    }
    return [part for name, value in values.items() for part in (f"--{name}", *value)]


def table(out: str) -> tuple[list[str], np.ndarray]:
    """Names of the columns, and all the numbers, of what heatmap writes to a pipe."""
    head, *lines = (line.split("\t") for line in out.splitlines())
    return head[4:], np.array([[float(cell) for cell in line[4:]] for line in lines])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The trace of the text in each of its formats."""
    folder, trace = tmp_path_factory.mktemp("traces"), attnctl.attend(TEXT, "random", **MODEL)
    paths = {form: folder / f"run.{form}" for form in ("json", "npz")}
    for path in paths.values():
        trace.save(path)
    return paths


@pytest.mark.parametrize("name", CHANGES)
def test_text_trace_and_python_agree(name: str, run: Run, stored: dict[str, Path]) -> None:
    changes, options = CHANGES[name], command_options(CHANGES[name])
    model = ["--model", "random", "--d-model", "16", "--heads", "2", "--layers", "2", "--seed", "3"]
    sources = [[TEXT, *model], *([str(path)] for path in stored.values())]
    given = prepare(TextSource(open_model("random", **MODEL), TEXT), Changes(**changes))
    grid = labelled_cells(given, given.read(OverviewReading(cells_to_read(given))))
    wanted = np.concatenate(list(grid.weights.values()))
    trace = given.trace()
    np.testing.assert_allclose(np.concatenate([w for layer in trace.layers for w in layer.weights]), wanted, rtol=1e-6)
    for source in sources:
        names, numbers = table(run("heatmap", *source, *options).out)
        assert names == [f"{at}:{key.text}" for at, key in zip(grid.numbers[1], grid.keys, strict=True)]
        np.testing.assert_allclose(numbers, wanted, rtol=1e-4, atol=1e-7)
        for asked, rows in (([], slice(None)), (["--query", "pizza"], slice(-1, None))):
            written = run("explain", *source, *options, "--json", *asked).json
            heads = np.array([head["weights"] for layer in written["layers"] for head in layer["heads"]])
            np.testing.assert_allclose(heads, wanted.reshape(-1, 4, len(names))[:, rows], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "drop"])
def test_heads_of_text_trace_and_python_agree(name: str, run: Run, stored: dict[str, Path]) -> None:
    changes = CHANGES[name]
    wanted = attnctl.heads(TEXT, "random", **changes, **MODEL)
    unchanged = attnctl.heads(TEXT, "random", **MODEL)
    assert [one.values for one in wanted] != [one.values for one in unchanged] or name == "words"
    for one, other in zip(wanted, attnctl.heads(attnctl.load(stored["npz"]), **changes), strict=True):
        known = {name: value for name, value in one.values.items() if value is not None}
        assert known == pytest.approx({name: other[name] for name in known}, rel=1e-4, abs=1e-6)
    written = run("heads", stored["json"], *command_options(changes), "--json").json["heads"]
    assert [head["first"] for head in written] == pytest.approx([one["first"] for one in wanted], rel=1e-4, abs=1e-6)


def test_drop_needs_no_renormalising_where_rows_are_told(run: Run) -> None:
    """It was refused of rows and links, which now have fewer keys, by the numbers that these have in the text."""
    told = run("explain", TEXT, "--top", "3", "--drop", "first", "--query", "pizza", "--layer", "1", "--head", "0")
    assert told.code == 0 and "query 3  Alice will eat ‹pizza›" in told.out and "‹Alice›" not in told.out


def test_a_long_text_narrowed_is_its_whole_without_columns() -> None:
    text = " ".join(f"w{at % 90}" for at in range(520))
    source = TextSource(open_model("random", d_model=16, n_heads=2, causal=True), text)
    whole = prepare(source).read(TraceReading())
    given = prepare(source, Changes(drop=["7", "first"]))
    kept = [at for at in range(520) if at not in (0, 7)]
    np.testing.assert_allclose(
        given.trace().layers[0].weights, whole.layers[0].weights[..., kept], rtol=1e-5, atol=1e-8
    )
    cells, same = (prepare(one, Changes(drop=["7", "first"])) for one in (source, TraceSource(whole)))
    read = [given.read(OverviewReading(cells_to_read(given))).grid.weights.values() for given in (cells, same)]
    for one, other in zip(*read, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-7)


def test_rollout_of_all_layers_is_that_of_each(run: Run) -> None:
    """--layer all gave the last layer alone."""
    options = ("--model", "random", "--layers", "3", "--measure", "rollout", "--quiet")
    each = [run("heatmap", TEXT, *options, "--layer", str(layer)).out.splitlines()[1:] for layer in range(3)]
    assert run("heatmap", TEXT, *options, "--layer", "all").out.splitlines()[1:] == [
        line for one in each for line in one
    ]
    assert run("heatmap", TEXT, *options).out.splitlines()[1:] == each[-1]
    weights = np.stack([layer.weights.mean(0) for layer in attnctl.attend(TEXT, "random", n_layers=3).layers])
    wanted, reached = [], np.eye(weights.shape[-1])
    for layer in weights:
        reached = (layer + np.eye(len(layer))) / 2 @ reached
        wanted.append(reached)
    numbers = table(run("heatmap", TEXT, *options, "--layer", "all").out)[1]
    np.testing.assert_allclose(numbers, np.concatenate(wanted), rtol=1e-4, atol=1e-6)
