"""`attnctl compare`: models, traces and texts side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Result

TEXT = "Alice will eat pizza"
Run = Callable[..., Result]


def test_two_models_on_one_text(run: Run) -> None:
    result = run("compare", "random", "dot", TEXT)
    assert result.code == 0
    for piece in ("A  random", "B  dot", "B - A", "the largest change of all"):
        assert piece in result.out


def test_the_numbers_are_those_of_the_two_traces(run: Run) -> None:
    pair = run("compare", "random", "dot", TEXT, "--json").json
    a, b = (
        np.asarray(run("explain", TEXT, "--model", model, "--json").json["layers"][0]["heads"][0]["weights"])
        for model in ("random", "dot")
    )
    (head,) = pair["layers"][0]["heads"]
    np.testing.assert_array_equal(head["a"], a)
    np.testing.assert_array_equal(head["b"], b)
    np.testing.assert_allclose(head["difference"], b - a, atol=1e-7)
    largest = pair["largest"]
    assert abs(largest["difference"]) == pytest.approx(np.abs(b - a).max(), abs=1e-6)
    assert largest["b"] - largest["a"] == pytest.approx((b - a)[largest["query"], largest["key"]], abs=1e-6)


def test_traces_from_files_and_pipes(run: Run, tmp_path: Path) -> None:
    run("explain", TEXT, "--model", "random", "-o", str(tmp_path / "a.json"))
    other = run("explain", TEXT, "--model", "random", "--seed", "5", "--json").out
    direct = run("compare", str(tmp_path / "a.json"), "-", "--json", stdin=other.encode())
    assert direct.code == 0 and direct.json["b"]["name"] == "-"
    same = run("compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"))
    assert "the same, to the last bit" in same.out


def test_two_texts_whose_tokens_align(run: Run) -> None:
    pair = run("compare", "Alice will eat pizza", "Bob will eat soup", "--model", "random", "--json").json
    assert pair["tokens"] == ["Alice/Bob", "will", "eat", "pizza/soup"]


def test_pictures(run: Run, tmp_path: Path) -> None:
    for form, magic in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        files = [tmp_path / f"{name}.{form}" for name in "ab"]
        for file in files:
            assert run("compare", "random", "dot", "$x$ 比 <b> will", "--causal", "-o", str(file)).code == 0
        assert files[0].read_bytes().startswith(magic)
        assert files[0].read_bytes() == files[1].read_bytes()


def test_places(run: Run) -> None:
    every = run("compare", "random", "random", TEXT, "--heads", "2", "--layers", "2", "--layer", "all", "--head", "all")
    assert every.out.count("B - A") == 4
    assert (
        run("compare", "random", "random", TEXT, "--heads", "2", "--head", "1", "--layer", "0").out.count("B - A") == 1
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["Alice will", "Alice"], 1, "leaves no difference to take: attnctl view shows"),
        (["-", "-"], 2, "only one of the two"),
        (["random", "dot", TEXT, "--model", "random"], 2, "--model does not go with a text"),
        (["random", "nonsense", TEXT], 2, "no model 'nonsense'"),
        (["gone.json", "gone.json"], 1, "cannot read gone.json"),
        (["random", "dot", TEXT, "--head", "7"], 2, "no head 7"),
        (["random", "dot", TEXT, "-o", "x.docx"], 2, ".json, .txt, .png"),
        (["random"], 2, "B"),
    ],
    ids=str,
)
def test_bad_input(arguments: list[str], code: int, says: str, refused: Callable[..., str]) -> None:
    assert says in refused("compare", *arguments, code=code)


def test_a_comparison_is_documented_by_its_schema_name(run: Run) -> None:
    document = json.loads(run("compare", "random", "dot", TEXT, "--json").out)
    assert document["schema"] == "attnctl.comparison/1"
    assert set(document) == {"schema", "a", "b", "tokens", "key_tokens", "largest", "layers"}
