"""Words that must be true: what is said beside the numbers is what they show."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnctl.commands.compare.result import comparison_to_json
from attnctl.readings.comparison import compare_traces
from attnctl.trace.run import Prediction
from attnctl.trace.steps import walk_steps
from tests.conftest import Refused, Run, attend

UNKNOWN = "not among the words the model knows, read by their shape or as its unknown word (†): Wugs"


@pytest.mark.parametrize(
    "arguments",
    ["heatmap|Wugs will eat|--rows|0-1", "heads|Wugs will eat", "view|Wugs will eat|-o|-", "quiz|Wugs will eat",
     "compare|Wugs will eat|Alice will eat", "compare|demo|demo-causal|Wugs will eat", "explain|Wugs will eat|--steps|weights"],
)  # fmt: skip
def test_unknown_words_are_mentioned(arguments: str, run: Run) -> None:
    result = run(*arguments.split("|"))
    assert result.code == 0 and UNKNOWN in result.err, result.err
    assert "unknown word" not in run(*arguments.replace("Wugs", "Alice").split("|")).err


def test_what_one_side_hides_is_not_compared_as_a_weight_of_nothing() -> None:
    whole, causal = attend("Alice will eat"), attend("Alice will eat", causal=True)
    pair = compare_traces(whole, causal)
    hidden = pair.hidden_in_one(0)
    assert hidden is not None and hidden.tolist() == np.triu(np.ones((3, 3), bool), 1).tolist()
    *_, i, j = pair.largest_difference()
    assert j <= i
    written = json.loads(comparison_to_json(pair))["layers"][0]["heads"][0]["hidden_in_one"]
    np.testing.assert_array_equal(written, hidden)
    assert all(compare_traces(one, one).hidden_in_one(0) is None for one in (causal, whole))
    assert compare_traces(causal, whole).hidden_in_one(0).tolist() == hidden.tolist()  # type: ignore[union-attr]
    narrow = compare_traces(causal, attend("Alice will eat", causal=True, window=2)).hidden_in_one(0)
    assert narrow is not None and np.argwhere(narrow).tolist() == [[2, 0]]


def test_after_the_last_token_of_a_long_text_stands_nothing(run: Run) -> None:
    text = " ".join(f"word{i}" for i in range(600))
    told = run("explain", text, "-m", "random", "--query", "599")
    assert told.code == 0 and "∅" not in told.out, told.out


@pytest.mark.parametrize(
    ("kind", "norm", "formula"),
    [
        ("demo", None, "softmax(residual stream × unembedding)"),
        ("checkpoint", True, "softmax(head(norm(residual stream)))"),
        ("checkpoint", False, "softmax(head(residual stream))"),
    ],
)
def test_the_prediction_of_a_checkpoint_names_its_own_head(kind: str, norm: bool | None, formula: str) -> None:
    trace: Any = attend("Alice will eat")
    model = replace(trace.model, kind=kind, final_norm=norm)
    steps = walk_steps(replace(trace.about(model=model), predictions=(Prediction(2, "pizza", 0, 0.5),)))
    assert [step.formula for step in steps if step.name == "prediction"] == [formula]


@pytest.mark.parametrize("command", ["heatmap", "quiz"])
def test_a_text_of_words_that_the_model_does_not_know_is_called_a_guess(command: str, run: Run) -> None:
    """Of tokens, as it counts marks too; German, French or Japanese is no sentence that its heads were measured on."""
    result = run(command, "Le chat noir dort sur le canapé")
    told = "demo does not know 4 of these 7 tokens (noir†, dort†, sur†, …): what its heads find here is a guess"
    assert f"attnctl: note: {told}\n" in result.err
    assert "is a guess" not in run(command, "The cat sat on the canapé").err  # one word alone
    assert "† not among the words the model knows" in run("explain", "The cat sat on the canapé").out


def test_a_tokenizer_file_without_its_library_says_what_to_install(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was "is not a tokenizer.json (No module named 'tokenizers')", of a sound file."""
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as where it is not installed: its import fails
    line = refused("explain", "a b", "--tokenizer", str(tmp_path / "tokenizer.json"))
    assert line.endswith("tokenizer.json needs tokenizers: pip install tokenizers")


TWINS = "The king saw the queen and the prince"


def test_keys_keep_their_numbers_where_others_are_left_out(run: Run) -> None:
    """“the (5)” stood for the sixth token, and a table's columns were counted anew."""
    told = run(
        "explain", TWINS, "--drop", "king", "--query", "prince", "--layer", "1", "--head", "3", "--steps", "all"
    ).out
    assert "the (3)" in told and "the (6)" in told and "the (2)" not in told and "the (5)" not in told
    assert re.search(r"^ +saw pays \d+ % of its attention to ", told, re.MULTILINE)
    table = run("heatmap", TWINS, "--drop", "king", "--layer", "1", "--head", "3").out
    assert table.split("\n")[0].split("\t")[4:7] == ["0:The", "2:saw", "3:the"]
    rows = run("explain", TWINS, "--query", "3-4", "--json").out
    table = run("heatmap", "-", "--layer", "1", "--head", "3", stdin=rows.encode()).out
    assert [line.split("\t")[2:4] for line in table.splitlines()[1:]] == [["3", "the"], ["4", "queen"]]
