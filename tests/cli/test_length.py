"""Long texts on the command line: overviews, zooms, parts, statistics of heads, single rows, strongest links."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from attnctl import models
from attnctl.models import attend
from attnctl.models.builtin.matrix import trace_of_matrix
from attnctl.readings.heatmap import GridReading, OverviewReading, labelled_grid, weight_span
from attnctl.readings.overview import TextPart
from attnctl.readings.spans import parts_of
from attnctl.source import TraceSource, prepare
from attnctl.source.model import TextModel
from attnctl.source.probe import ProbeReading, probe_text
from attnctl.text.tokens import Token, split_words
from attnctl.trace.subject import Subject

MODEL = (
    "--model",
    "random",
    "--d-model",
    "16",
    "--heads",
    "2",
    "--layers",
    "2",
    "--causal",
    "--positions",
    "rope",
    "--scale",
    "1",
)


@pytest.fixture(scope="module")
def text():
    rng = random.Random(4)
    vocabulary = [f"{a}{b}" for a in ("ka", "lo", "mi", "ne", "pu") for b in ("ta", "ri", "so", "ne", "du", "vi")]
    return "\n\n".join(" ".join(rng.choices(vocabulary, k=99)) + "." for _ in range(8))


@pytest.fixture
def file(text, _here):
    Path("long.txt").write_text(text)
    return "long.txt"


@pytest.fixture(scope="module")
def weights(text):
    how = {"d_model": 16, "n_heads": 2, "n_layers": 2, "causal": True, "rope_theta": 10000.0, "scale": 1.0}
    return np.stack([layer.weights for layer in attend(text, "random", **how).layers])  # (layers, heads, n, n)


def table(out):
    """The tab-separated grid: names of the columns, and (layer, head) → rows."""
    lines = [line.split("\t") for line in out.splitlines()]
    grids = {}
    for layer, head, _, _, *cells in lines[1:]:
        grids.setdefault((int(layer), int(head)), []).append([float(cell or "nan") for cell in cells])
    return [name.partition(":")[2] for name in lines[0][4:]], {at: np.array(rows) for at, rows in grids.items()}


@pytest.fixture
def asked(run, file):
    """A command about the long text."""
    return lambda command, *options, **more: run(command, "--file", file, *MODEL, *options, **more)


def pooled(some):
    return lambda w: some(w.reshape(200, 4, 200, 4), axis=(1, 3))


def rescaled(w):
    return w[700:702, 1:10] / w[700:702, 1:].sum(-1, keepdims=True)


# options → the cells that a head's weights (n, n) come to
GRIDS = {
    "--pool mean": pooled(np.mean),
    "--pool max": pooled(np.max),
    "--rows 700-719 --columns 5-104": lambda w: w[700:720, 5:105],
    "--rows 700-701 --columns 0-9 --drop first": lambda w: w[700:702, 1:10],
    "--rows 700-701 --columns 0-9 --drop first --renormalise": rescaled,
    "--spans paragraphs": lambda w: w.reshape(8, 100, 8, 100).sum(3).mean(1),
}


@pytest.mark.parametrize("options", GRIDS)
def test_cells_of_a_long_text_are_those_of_the_matrix(asked, weights, options):
    out = asked("heatmap", *options.split()).out
    names, grids = table(out)
    for at, grid in grids.items():
        wanted = GRIDS[options](weights[at])
        assert np.array_equal(np.isnan(grid), np.triu(np.ones(wanted.shape, bool), 1) & (len(wanted) in (8, 200)))
        np.testing.assert_allclose(np.nan_to_num(grid), wanted, rtol=2e-5, atol=1e-8)
    assert len(grids) == 4 and len(names) == wanted.shape[1]
    assert "--pool" not in options or out.split("\t")[5].startswith("4:")
    assert "--spans" not in options or names[3].startswith("3 ")


def named(kind, text, tokens=None):
    return {part.name: part.ranges for part in parts_of(kind, text, tokens or split_words(text))}


def test_parts_of_a_text_and_the_rest():
    marked = "intro\n# One\na b\n## Two #\nc\n"
    assert named("headings", marked) == {"(before)": ((0, 1),), "One": ((1, 5),), "Two": ((5, 10),)}
    assert list(named("documents", "[a.txt]\none two\n[b.txt] three\n")) == ["a.txt", "b.txt"]
    words = "one two three four"
    Path("spans.csv").write_text("name,start,end\nmiddle,4,11\n")
    assert named("spans.csv", words) == {"middle": ((1, 2),), "(rest)": ((0, 1), (2, 4))}
    special = (Token("<s>", 0, special=True), *split_words(words))
    Path("all.json").write_text('[{"name": "all", "start": 0, "end": 18}]')
    assert named("all.json", words, special) == {"all": ((1, 5),), "(special)": ((0, 1),)}


def test_statistics_of_heads_equal_the_matrix(asked, weights):
    document = asked("heads", "--json").json
    tokens = [token["text"] for token in document["tokens"]]
    n = len(tokens)
    i, j = np.ogrid[:n, :n]
    same = np.array([[a == b for b in tokens] for a in tokens]) & (j < i)
    after = np.pad(same, ((0, 0), (1, 0)))[:, :-1] & (j < i)
    for head in document["heads"]:
        w = weights[head["layer"], head["head"]].astype(np.float64)
        entropy = -(w * np.log(np.where(w > 0, w, 1))).sum(-1)
        wanted = {
            "entropy": entropy.mean(),
            "entropy_share": (entropy[1:] / np.log(np.arange(2, n + 1))).mean(),
            "first": w[:, 0].mean(),
            "self": w.diagonal().mean(),
            "previous": w.diagonal(-1).mean(),
            "punctuation": w[:, [t == "." for t in tokens]].sum(-1).mean(),
            "distance": (w * (i - j)).sum(-1).mean(),
            "duplicate": (w * same).sum(-1)[same.any(-1)].mean(),
            "induction": (w * after).sum(-1)[after.any(-1)].mean(),
        }
        for name, value in wanted.items():
            assert head[name] == pytest.approx(value, rel=2e-5), name
        assert "special" not in head and "next" not in head


def test_the_probe_finds_an_induction_head():
    """Keys that carry the token before, queries that carry the token itself: an induction head by construction."""

    class Induction(TextModel):
        info = models.open_model("random", causal=True).info

        def tokenize(self, text):
            return split_words(text)

        def run(self, tokens, visit, text=""):
            from attnctl.attention import Call
            from attnctl.layer.computed import ComputedLayer
            from attnctl.trace.run import Run, StopForward

            ids = np.array([token.id for token in tokens])
            row = np.eye(ids.max() + 1, dtype=np.float32)[ids]
            before = np.vstack([np.zeros_like(row[:1]), row[:-1]])
            with contextlib.suppress(StopForward):
                visit(ComputedLayer.of_call(0, Call(row[None] * 30, before[None], row[None], scale=1.0, causal=True)))
            return Run(Subject(text, tuple(tokens), self.info))

    induction, duplicate = prepare(probe_text(Induction(), 40)).read(ProbeReading(40))[0, 0]
    assert induction > 0.99 and duplicate < 0.01


def test_where_one_query_looks(asked, weights):
    result = asked("explain", "--layer", "1", "--head", "0", "--query", "640", columns=100)
    best = int(weights[1, 0, 640].argmax())
    lines = result.out.splitlines()
    assert lines[1].startswith("query 640") and "layer 1, head 0   entropy" in lines[3]
    assert lines[4].split()[0] == f"{weights[1, 0, 640, best]:.3f}" and f" {best} " in lines[4]
    assert max(map(len, lines)) <= 100
    mass = weights[1, 0, 640].reshape(8, 100).sum(1)
    assert f"{mass.max():.3f}" in result.out.split("on the other")[1]
    last = asked("explain")
    assert "query 799" in last.out and "the last one looks" in last.err


def test_exact_rows_and_the_strongest_links_as_json(asked, weights):
    for head in asked("explain", "--query", "640", "--json").json["heads"]:
        np.testing.assert_allclose(head["weights"], weights[head["layer"], head["head"], 640], rtol=2e-5, atol=1e-12)
    for head in asked("explain", "--json", "--top", "3").json["heads"]:
        w = weights[head["layer"], head["head"]]
        strongest = -np.sort(-w, axis=1)[:, :3]
        assert head["coverage"] == pytest.approx(strongest.sum(1).mean(), rel=2e-5)
        assert [len(links) for links in head["links"][:4]] == [1, 2, 3, 3]
        for links, row, best in zip(head["links"], w, strongest, strict=True):
            for (key, weight), value in zip(links, best, strict=False):
                assert weight == pytest.approx(row[key], rel=2e-5) and weight == pytest.approx(value, rel=2e-5)


def test_a_few_cells_that_hold_most_are_shown_by_a_logarithm(run):
    weights = np.full((520, 520), 1e-6, np.float32)
    weights[:, 0] = 1 - 519e-6  # a first token that takes all
    np.save("w.npy", weights)
    for more, log in (([], True), (["--no-log"], False), (["--vmin", "0"], False)):
        made = run("heatmap", "w.npy", "-o", "w.svg", "--size=4x4", *more)
        assert ("--no-log" in made.err) is log, made.err
        assert ("logarithmic" in Path("w.svg").read_text()) is log
    assert "logarithmic" not in run("heatmap", "w.npy").err  # of colours that are not there


def test_a_last_cell_of_fewer_tokens_does_not_set_the_scale():
    n, cell = 10, 4
    np.save("w.npy", np.eye(n, dtype=np.float32))
    parts = tuple(TextPart(str(a), ((a, min(a + cell, n)),)) for a in range(0, n, cell))
    source = TraceSource(trace_of_matrix("w.npy"))
    reading = labelled_grid(prepare(source).read(OverviewReading(GridReading(parts, parts, "mean"))))
    (grid,) = reading.weights.values()
    assert grid[-1, -1] > grid[0, 0] and weight_span(reading) == (0.0, float(grid[0, 0]))


def test_a_long_run_of_explain_is_asked_again_by_heads(run, asked):
    assert asked("explain", "-o", "run.json").code == 0
    again = run("heads", "run.json", "--top", "3")
    assert again.code == 0 and again.out == asked("heads", "--top", "3").out
    assert "query 700" in run("explain", "run.json", "--query", "700").out
    assert run("explain", "run.json", "-o", "copy.json").code == 0  # with what it holds


def test_steps_of_one_query_of_a_long_text_keep_its_row_alone(asked, weights, monkeypatch):
    monkeypatch.setattr("attnctl.checks.limits.TRACE_BYTES", 100_000)  # 800 tokens: the whole is 30 MB, a row 10 kB
    assert "choose layers, heads and queries" in asked("explain", "--steps", "weights").err
    shown = asked("explain", "--steps", "weights", "--query", "700", "--layer", "1", "--head", "0")
    assert shown.code == 0, shown.err
    row = weights[1, 0, 700]
    for key in np.argsort(-row)[:3]:
        assert re.search(rf"^ +\S+ \({key}\) .*  {row[key]:.2f}\b", shown.out, re.MULTILINE), (key, shown.out)


def test_what_would_be_huge_is_refused_before_any_work(run, refused, asked, file, monkeypatch):
    long = ("--file", file, *MODEL)
    assert asked("heatmap", "-o", "overview.json").code == 0
    assert "whole matrices" not in asked("heatmap", "--words", "--layer", "0").err
    monkeypatch.setattr("attnctl.source.prepared.NOTED_BYTES", 1e7)
    assert "note: whole matrices, 800 × 800: they take 0.0 GB" in asked("heatmap", "--words").err
    assert "a trace of 800 tokens" in refused("explain", *long, "-o", "t.npz")
    monkeypatch.setattr("attnctl.checks.limits.ROWS_JSON_BYTES", 1000)
    assert "choose layers, heads" in refused("explain", *long, "--json")
    monkeypatch.setattr("attnctl.checks.limits.TRACE_BYTES", 100_000)
    assert "compare needs them all" in refused("compare", "random", "dot", "--file", file)
    monkeypatch.setattr("attnctl.source.prepared.NOTED_BYTES", 0)
    for option in ("--words", "--measure rollout"):
        said = f"{option} needs them all: leave it out, or take a shorter text"
        assert said in refused("heatmap", *long, *option.split())
        # no size of what it does not hold is said beside it
        assert "overview.json holds an overview" in refused("heatmap", "overview.json", *option.split())
    monkeypatch.setattr("attnctl.checks.limits.free_memory", lambda: 1e6)
    said = refused("heatmap", *long)
    assert "800 tokens needs" in said and "1 MB are free" in said


def test_what_stands_before_a_key_is_cut_where_that_can_be_seen(run):
    """ "r that the room" began in the middle of a word without a sign; of a wide script twice the cells were taken."""
    Path("text.txt").write_text("The woman said that the room was taken\n吾輩は猫である名前はまだ無いどこで生れたか\n")
    asked = "explain --file text.txt --spans lines --query 20 --head 1 --layer 0"
    for columns in (50, 80):
        lines = [line for line in run(*asked.split(), columns=columns).out.splitlines() if "‹" in line]
        assert lines and all(cell_len(line) <= columns for line in lines)
        assert len({cell_len(line.partition("‹")[0]) for line in lines[1:]}) == 1
    assert any("…" in line.partition("‹")[0] for line in lines)
