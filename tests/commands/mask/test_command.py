"""`attnctl mask`: what it writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import attnctl
from attnctl.commands.mask.result import MaskCheck
from tests.conftest import Run, check_schema

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

IDS = np.arange(20, 31)[None]


@pytest.fixture
def model(room: Path) -> str:
    return str(room / "llama")


def test_text_and_batch_tell_the_same_mask(run: Run, model: str) -> None:
    Path("a.json").write_text(json.dumps({"input_ids": IDS.tolist()}))
    np.savez("a.npz", input_ids=IDS)
    for source in ("a.json", "a.npz", "Alice will eat pizza"):
        made = run("mask", source, "--model", model, "--json")
        assert made.code == 0 and check_schema(made.json) == "mask" and made.json["holds"]
        (group,) = made.json["groups"]
        n = len(group["mask"])
        assert group["sentence"] == "causal" and group["mask"] == np.tril(np.ones((n, n), bool)).tolist()


def test_long_mask_is_written_as_intervals(run: Run, tmp_path: Path) -> None:
    """The pairs are those of a matrix by the definition of a window, and of what is wrong with it."""
    n, words = 600, ["mask", "pizza " * 600, "--model", "demo", "--json"]
    gap = np.arange(n)[:, None] - np.arange(n)
    made = run(*words, "--expect", "window 10")
    assert made.code == 4 and check_schema(made.json) == "mask"
    for group, mask in zip(made.json["groups"], (abs(gap) < 4, abs(gap) >= 0), strict=True):
        for name, pairs in (("mask", mask), ("wrong", mask ^ (abs(gap) < 10))):
            assert group[name]["shape"] == [n, n]
            shown = np.zeros((n, n), bool)
            for query, first, last in zip(*(group[name][key] for key in ("query", "first", "last")), strict=True):
                shown[query, first : last + 1] = True
            np.testing.assert_array_equal(shown, pairs)
    assert [one["pairs"] for one in made.json["violations"]] == [
        int(((abs(gap) < 10) & (abs(gap) >= 4)).sum()),
        int((abs(gap) >= 10).sum()),
    ]


def test_expectation_decides_on_the_exit_code(run: Run, model: str) -> None:
    n = len(run("mask", "Alice will eat", "--model", model, "--json").json["groups"][0]["mask"])
    np.save("causal.npy", np.tril(np.ones((n, n))))
    Path("full.json").write_text(json.dumps(np.ones((n, n)).tolist()))
    for expect, code in (
        ("causal", 0),
        ("causal.npy", 0),
        ("bidirectional", 4),
        ("full.json", 4),
        (f"window {n}", 0),
        ("window 1", 4),
    ):
        assert run("mask", "Alice will eat", "--model", model, "--expect", expect).code == code, expect


def test_violation_is_one_line_with_layer_and_position(run: Run) -> None:
    made = run("mask", "Alice will eat", "--model", "demo", "--expect", "causal", columns=200)
    assert made.code == 4
    assert (
        "✗ Layers 0–1: token 0 “Alice” sees its future, token 1 “will” (3 pairs of tokens), its output moves by"
        in made.out
    )
    document = run("mask", "Alice will eat", "--model", "demo", "--expect", "causal", "--json").json
    assert check_schema(document) == "mask" and not document["holds"]
    (first, _), groups = document["violations"], document["groups"]
    assert (first["how"], first["layer"], first["query"], first["key"], first["pairs"]) == ("sees", 0, 0, 1, 3)
    assert [group["holds"] for group in groups] == [False]


@pytest.mark.parametrize("kind", ["png", "svg", "txt", "html", "json"])
@pytest.mark.parametrize("text", ["Alice will eat", "Alice will eat pizza. " * 20])
def test_a_file_of_each_kind_is_written(kind: str, text: str, run: Run) -> None:
    made = run("mask", text, "--model", "demo-causal", "-o", f"a.{kind}")
    assert made.code == 0 and made.out == "" and Path(f"a.{kind}").stat().st_size > 300


@pytest.mark.parametrize("kind", ["png", "txt", "html", "json"])
def test_a_violation_is_told_beside_a_file(kind: str, run: Run) -> None:
    words = ["mask", "Alice will eat", "--model", "demo", "--expect", "causal", "-o", f"a.{kind}"]
    made, quiet = run(*words), run(*words, "--quiet")
    assert made.code == quiet.code == 4 and not made.out and not quiet.err
    assert "demo: 2 violations" in made.err and "Layers 0–1: token 0 “Alice” sees its future" in made.err


@pytest.mark.parametrize("text", ["a", "😀 👨‍👩‍👧", "שלום עולם", "\u202eabc", "x " * 200])
@pytest.mark.parametrize("name", ["demo", "random", "llama", "bert", "t5"])
def test_any_text_through_any_model(text: str, name: str, run: Run, room: Path) -> None:
    made = run("mask", text, "--model", str(room / name) if (room / name).exists() else name)
    assert made.code == 0 or made.err.count("\n") == 1, made.err


def test_encoder_decoder_has_three_kinds(run: Run, room: Path) -> None:
    made = run("mask", "Alice will eat", "--model", str(room / "t5"), "--json")
    assert made.code == 0
    assert {group["kind"]: group["sentence"] for group in made.json["groups"]}.keys() == {"encoder", "decoder", "cross"}


def test_records_have_a_row_for_each_layer_of_each_mask(model: str) -> None:
    from transformers import LlamaForCausalLM

    shown = np.ones((2, 11), int)
    shown[1, :3] = 0  # padding
    network = LlamaForCausalLM.from_pretrained(model).eval()
    check = attnctl.mask(network, input_ids=np.repeat(IDS, 2, 0), attention_mask=shown, expect="bidirectional")
    records = check.to_records()
    assert [(record["rows"], record["layer"]) for record in records] == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
    for record in records:
        (group,) = [group for group in check.groups if record["rows"] == str(group.rows[0])]
        assert (record["sentence"], record["expected"], record["holds"]) == (
            group.sentence,
            group.expected,
            group.holds,
        )
    assert not any(record["holds"] for record in records)


def test_one_token_of_a_decoder_tests_nothing_and_a_target_does(run: Run, room: Path) -> None:
    words = ["mask", "Alice will eat", "--model", str(room / "t5")]
    made = run(*words, "--json")
    sentences = {group["kind"]: group["sentence"] for group in made.json["groups"]}
    assert sentences["decoder"] == "one token: nothing to hide" and sentences["encoder"] == "full"
    assert "The decoder has one token, which tests no mask: give a longer target (--target" in made.err
    made = run(*words, "--target", "Alice eats", "--json")
    assert made.code == 0 and "one token" not in made.err
    assert "causal" in {group["sentence"] for group in made.json["groups"] if group["kind"] == "decoder"}
    assert run("mask", "Alice", "--model", "demo", "--target", "eats").code == 2


def test_one_token_of_a_text_tests_nothing(run: Run) -> None:
    made = run("mask", "Alice", "--model", "demo-causal")
    assert made.code == 0 and "one token: nothing to hide" in made.out and "which tests no mask" in made.err


def test_page_names_the_model(run: Run) -> None:
    run("mask", "Alice will eat", "--model", "demo-causal", "-o", "a.html")
    assert "<title>masks of demo-causal · attnctl</title>" in Path("a.html").read_text()


def test_picture_outlines_every_wrong_pair() -> None:
    """The pairs are those of the mask without what is expected; a mask of one token a cell has no numbers and no bar."""
    from attnctl.commands.mask.show import mask_panels
    from attnctl.render.figure.drawing import outline
    from attnctl.render.figure.heatmap import drawing_of

    document = run_document(expect="causal")
    (group,) = document.groups
    assert group.wrong is not None
    np.testing.assert_array_equal(group.wrong, ~np.tril(np.ones_like(group.mask)))
    assert len(outline(group.wrong)) == 4 * (len(group.mask) - 1)  # a staircase
    assert outline(np.zeros((2, 2), bool)) == [] and len(outline(np.ones((2, 3), bool))) == 10
    panels, look = mask_panels(document)
    assert all(note[0].islower() for note in panels.notes), "parts of one sentence below the title"
    words = {text.get_text() for text in drawing_of(panels, look).figure.texts}
    assert "dark: the query sees the key; outlined: not as expected" in words and "share of pairs visible" not in words


def test_sentences_over_panels_are_whole(model: str) -> None:
    """A picture of few tokens is narrower than its sentences; one of a single mask has its sentence below the title."""
    from transformers import LlamaForCausalLM

    from attnctl.commands.mask.show import mask_panels
    from attnctl.render.figure.heatmap import drawing_of

    network, shown = LlamaForCausalLM.from_pretrained(model).eval(), np.ones((3, 4), int)
    shown[1, :1] = shown[2, :2] = 0  # padding
    for rows in (3, 1):
        check = attnctl.mask(network, input_ids=np.repeat(IDS[:, :4], rows, 0), attention_mask=shown[-rows:])
        texts = [text.get_text() for text in drawing_of(*mask_panels(check)).figure.texts]
        assert len(check.groups) == rows and not any("…" in text for text in texts)
        assert all(group.sentence in " ".join(texts[::-1]) + " ".join(texts) for group in check.groups), texts


def run_document(expect: str) -> MaskCheck:
    """Return the check of the demo."""
    import attnctl
    from attnctl.commands.mask.compute import StackSearch

    model = attnctl.open_model("demo")
    return StackSearch(model, model.tokenize("Alice will eat"), expect).measure()
