"""A census in files: what is damaged is named, and spreadsheets read no formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnctl import __version__
from attnctl.commands.evaluate.result import read_census
from attnctl.errors import AttnctlError
from tests.conftest import SAMPLES, Run
from tests.formats.test_formulas import check_cells
from tests.formats.test_validation import put


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("uuas.correct.0.0", None, r"uuas.correct\[0\]\[0\] is 'None', not a whole number$"),
        ("uuas.correct.0", [1], "uuas.correct: the counts are not a table of layers and heads$"),
        ("relations.0.correct", [[-1]], r"relations\[0\].correct\[0\]\[0\] is '-1', not a whole number from 0 up$"),
        ("relations.0.best", 5, r"relations\[0\].best is '5', not an object$"),
        ("heads.0.syntactic", [{"relation": "a"}], r"heads\[0\].syntactic\[0\]: 'direction' is missing$"),
        (
            "model_info.rope_pairs",
            " - at `$.x`",
            r"model_info.rope_pairs is ' - at `\$.x`', which is not an allowed value$",
        ),
        ("sentences.skipped", {"long": 0}, r"sentences.skipped\[...\]: not a whole number from 1 up$"),
    ],
)
def test_a_damaged_census_says_where(path: str, value: Any, says: str, tmp_path: Path, run: Run) -> None:
    """Rows of different lengths, and counts that are none, were errors of ours."""
    small = ["--model", "random", "--layers", "2", "--heads", "2", "--d-model", "8"]
    assert run("evaluate", SAMPLES / "sentences.conllu", *small, "-o", tmp_path / "c.json").code == 0
    damaged = json.loads((tmp_path / "c.json").read_text())
    put(damaged, path, value)
    (tmp_path / "c.json").write_text(json.dumps(damaged))
    with pytest.raises(AttnctlError, match=f"c.json is damaged: {says}"):
        read_census(str(tmp_path / "c.json"))


def test_labels_of_a_corpus_are_no_formulas(run: Run) -> None:
    tree = "1\t=a()\t_\t=PR\t_\t_\t2\t=cmd()\t_\t_\n2\t+eats\t_\t@V\t_\t_\t0\troot\t_\t_\n3\t-x\t_\t-N\t_\t_\t2\t@obj:=x\t_\t_\n\n"
    Path("f.conllu").write_text(tree * 30)
    assert run("evaluate", "f.conllu", "-m", "random", "-o", "f.csv").code == 0
    assert "'=cmd()" in Path("f.csv").read_text()
    check_cells(Path("f.csv").read_text(), ",")


@pytest.mark.parametrize("name", ["x.png", "x.html"])
def test_every_picture_and_page_says_what_it_came_from(name: str, run: Run) -> None:
    made = run("evaluate", SAMPLES / "sentences.conllu", "-o", name)
    assert made.code == 0, made.err
    assert f"attnctl {__version__}, demo on sentences".encode() in Path(name).read_bytes()
