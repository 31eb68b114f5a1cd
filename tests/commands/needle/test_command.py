"""`attnctl needle`: the command around the needles, its resumption, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import numpy as np

import attnctl
from attnctl.commands.needle.compute import NeedleAsker
from attnctl.runtime.files import lock_file
from tests.conftest import Run, check_schema
from tests.tools.screen import rows_below

OWN = ("--needle", "The cat is red.", "--question", "What is the cat?", "--expect", "red")


@pytest.fixture
def folder(room: Path) -> Path:
    return room / "llama"


def test_a_model_that_answers_none(run: Run, folder: Path) -> None:
    asked = ("--lengths", "200,300", "--depths", "0,100", *OWN, "--json")
    made = run("needle", "--model", folder, *asked)
    assert made.code == 1 and "answers none of the 4 needles" in made.err
    *cells, last = map(json.loads, made.out.splitlines())
    assert [(cell["length"], cell["depth"]) for cell in cells] == [(200, 0), (200, 1), (300, 0), (300, 1)]
    assert all(0 <= cell["found"] <= 1 and not cell["answered"] for cell in cells)
    assert (last["asked"], last["answered"], last["retrieval_heads"]) == (4, 0, [])
    for line, name in (*((cell, "needle") for cell in cells), (last, "needles")):
        check_schema(line, name)
        assert len(line["model"]["sha256"]) == 64 and line["model"]["name"]


def test_a_run_is_gone_on_with(run: Run, folder: Path) -> None:
    out, hay = Path("n.jsonl"), Path("hay.txt")
    asked = ("needle", "--model", folder, *OWN, "-o", out)
    run(*asked, "--depths", "0,50", "--lengths", "200")
    first = out.read_bytes()
    out.write_bytes(first + first[:50])  # stopped in the middle of a line
    made = run(*asked, "--depths", "0,50", "--lengths", "200,300")
    assert "n.jsonl has 2 needles already" in made.err
    cells = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(cell["length"], cell["depth"]) for cell in cells] == [(200, 0), (200, 0.5), (300, 0), (300, 0.5)]
    hay.write_text("It rains. The sun shines. A dog barks. ")
    for other, said in (
        (("--seed", "1"), "is of another seed"),
        (("--haystack", hay), "is of another haystack"),
        (("--dtype", "bfloat16"), "is of another model"),
    ):
        refused = run(*asked, "--lengths", "200", *other)
        assert refused.code == 1 and said in refused.err
    held = lock_file(out)  # by another run
    before = out.read_bytes()
    refused = run(*asked, "--lengths", "400")
    assert refused.code == 1 and "n.jsonl is being written by another run" in refused.err and out.read_bytes() == before
    held.release()
    drawn = run(*asked[:-1], "n.png", "--lengths", "200", "--haystack", hay)
    assert "answers none" in drawn.err and Path("n.png").stat().st_size > 1000


def test_a_needle_is_asked_once_at_each_place(run: Run, folder: Path) -> None:
    made = run("needle", "--model", folder, *OWN, "--lengths", "200,200", "--depths", "50,0,50", "--json")
    *cells, _ = map(json.loads, made.out.splitlines())
    assert [(cell["length"], cell["depth"]) for cell in cells] == [(200, 0.5), (200, 0)]


def test_the_table_has_a_row_for_each_depth_and_a_column_for_each_length(
    at_terminal: Run, run: Run, folder: Path
) -> None:
    asked = ("needle", "--model", str(folder), *OWN, "--lengths", "200,300", "--depths", "0,50,100")
    *found, _ = map(json.loads, run(*asked, "--json").out.splitlines())
    shares = {(one["depth"], one["length"]): f"{100 * one['found']:.1f} %" for one in found}
    table = rows_below(at_terminal(*asked).out, ["depth", "200", "300"])[:3]
    assert table == [
        [f"{100 * depth:.0f} %", *(part for length in (200, 300) for part in ("✗", shares[depth, length]))]
        for depth in (0, 0.5, 1)
    ]


def test_a_narrow_terminal_leaves_out_lengths_and_cuts_no_number(at_terminal: Run, run: Run, folder: Path) -> None:
    """It had "50…" and "7…"."""
    asked = ("needle", "--model", str(folder), *OWN, "--lengths", "200,250,300,350,400", "--depths", "50")
    *cells, _ = map(json.loads, run(*asked, "--json").out.splitlines())
    shares = {cell["length"]: f"{100 * cell['found']:.1f} %" for cell in cells}
    shown = at_terminal(*asked, columns=40).out
    heading = next(line.split() for line in shown.splitlines() if line.startswith("depth"))
    (row,) = rows_below(shown, heading)[:1]
    assert row == ["50 %", *(part for length in heading[1:] for part in ("✗", shares[int(length)]))]
    left_out = ", ".join(str(length) for length in shares if str(length) not in heading)
    assert 1 < len(heading) < 6 and f"left out for width: {left_out}" in shown


def test_a_json_file_holds_the_summary_with_every_needle(run: Run, folder: Path) -> None:
    asked = ("needle", "--model", folder, *OWN, "--lengths", "200", "--depths", "0,100")
    *cells, last = map(json.loads, run(*asked, "--json").out.splitlines())
    made = run(*asked, "-o", "n.json")
    document = json.loads(Path("n.json").read_text())
    assert check_schema(document) == "needles"
    planted = [{name: cell[name] for name in document["needles"][0]} for cell in cells]
    assert document == {**last, "needles": planted} and made.out == ""
    assert {"length", "depth", "answer", "answered", "found"} <= document["needles"][0].keys()
    loaded: Any = attnctl.load("n.json")
    records = [{name: cell[name] for name in cell if name != "scores"} for cell in planted]
    assert loaded.to_records() == records and repr(loaded) == "Needles of llama: 0 of 2 answered, 0 retrieval heads"
    Path("one.json").write_text(json.dumps(cells[1]))
    one: Any = attnctl.load("one.json")
    assert one.to_records() == records[1:] and repr(one) == "Needle of llama: 200 tokens, depth 100 %, not answered"
    assert [line.split(":")[1] for line in made.err.splitlines()[:2]] == [
        " 200 tokens, depth 0 %",
        " 200 tokens, depth 100 %",
    ]


def test_in_a_pipe_each_needle_has_its_row_at_once(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after the first needle: its row is printed already."""
    asked_first = NeedleAsker._asked_needle

    def asked_once(self: NeedleAsker, length: int, depth: float, haystack: Any) -> Any:
        if depth:
            raise KeyboardInterrupt
        return asked_first(self, length, depth, haystack)

    monkeypatch.setattr(NeedleAsker, "_asked_needle", asked_once)
    made = run("needle", "--model", folder, *OWN, "--lengths", "200", "--depths", "0,100")
    assert made.code == 130 and [row.split("\t")[0] for row in made.out.splitlines()] == ["length", "200"]


def test_a_pipe_and_a_picture_name_the_heads_and_switch_them_off_if_asked(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {1: np.array([0.0, 0.875, 0.25, 0.05], np.float32)}
    monkeypatch.setattr("attnctl.commands.needle.compute.retrieval_scores", lambda *_: scores)
    asked = ("needle", "--model", folder, "--lengths", "200", "--depths", "0,100")
    answer = json.loads(run(*asked, *OWN, "--json").out.splitlines()[0])["answer"]
    own = (*OWN[:-1], answer.strip()[:3])
    for output in ((), ("-o", "n.png")):
        made = run(*asked, *own, *output)
        assert "2 retrieval heads (Wu et al. 2024): 1.1 0.88, 1.2 0.25\n" in made.err
        assert "--switch-off 10" in made.err and "switched off" not in made.err
        without = run(*asked, *own, *output, "--switch-off", "1").err
        assert without.count("switched off") == 2 and "--switch-off 10" not in without
