"""Coreference over documents: sentences read together, antecedents in earlier ones, against plain loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnctl
from attnctl.batching import TreebankStream, sentence_of, sentences_of_document
from attnctl.commands.evaluate.counting import windows_of_sizes
from attnctl.errors import AttnctlError
from attnctl.text.tokens import split_words
from tests.conftest import SAMPLES, Run

CORPUS = SAMPLES / "documents.conllu"
MODEL = ("--model", "random", "--heads", "2", "--layers", "2", "--json")
# its sentences, and of each the head words of its mentions, with their entity and what they are
DOCUMENTS = (
    (
        (
            "Anna Novak and her brother Tom bought the old mill in Brno.",
            "Anna/e1/proper Anna/e3/proper her/e1/pronoun brother/e2/nominal mill/e4/nominal Brno/e5/proper",
        ),
        ("They repaired the roof, and it doesn't leak.", "They/e3/pronoun roof/e6/nominal it/e6/pronoun"),
        (
            "The mill, she told him, in Brno was a bargain.",
            "mill/e4/nominal she/e1/pronoun him/e2/pronoun Brno/e5/proper bargain/e7/nominal",
        ),
        ("Never sold the mill and kept its wheel.", "mill/e4/nominal its/e4/pronoun wheel/e8/nominal"),
    ),
    (
        ("Eva owns a boat.", "Eva/e1/proper boat/e2/nominal"),
        ("Her boat is red, and she loves it.", "Her/e1/pronoun boat/e2/nominal she/e1/pronoun it/e2/pronoun"),
    ),
)

Counts = tuple[Counter[str], Counter[tuple[str, int, int]]]


def found_by_hand(run: Run, windows: list[list[tuple[str, str]]]) -> Counts:
    """Cases of each kind of mention, and which of them each head finds: the mention before that it looks at most."""
    cases: Counter[str] = Counter()
    right: Counter[tuple[str, int, int]] = Counter()
    for window in windows:
        words: list[str] = []
        said: list[tuple[int, str, str]] = []  # the token of each mention, its entity, what it is
        for text, mentions in window:
            own = [token.text for token in split_words(text)]  # as random's tokens are
            parts = [mention.split("/") for mention in mentions.split()]
            said += [(len(words) + own.index(word), entity, kind) for word, entity, kind in parts]
            words += own
        trace = run("explain", " ".join(text for text, _ in window), *MODEL).json
        for at, entity, kind in said:
            before = {place for place, _, _ in said if place < at}
            good = {place for place, other, _ in said if place < at and other == entity}
            cases[kind] += bool(good)
            for layer in trace["layers"] if good else ():
                for head in layer["heads"]:
                    found = max(sorted(before), key=lambda place: head["weights"][at][place])
                    right[kind, layer["layer"], head["head"]] += found in good
    return +cases, right


@pytest.mark.parametrize(
    ("most", "windows", "counts"),
    [
        (512, ([[0, 1, 2, 3]], [[0, 1]]), {"windows": 2, "new": 10, "outside": 0, "unread": 0}),
        (24, ([[0, 1], [2, 3]], [[0, 1]]), {"windows": 3, "new": 10, "outside": 4, "unread": 0}),
        (12, ([[1], [3]], [[0], [1]]), {"windows": 4, "new": 4, "outside": 4, "unread": 11}),
    ],
)
def test_a_realistic_treebank_is_counted_as_by_hand(
    run: Run, most: int, windows: tuple[list[list[int]], ...], counts: dict[str, int]
) -> None:
    """Nested mentions and some in two pieces, bridging, split antecedents, zeros, words written as one."""
    result = run("evaluate", CORPUS, *MODEL, "--max-tokens", most)
    skipped = {"too long": 2} if most == 12 else {}
    assert result.json["sentences"] == {"read": 6, "used": 6 - len(skipped) * 2, "skipped": skipped}
    assert result.code == (3 if skipped else 0)
    assert result.json["mentions"] == {"documents": 2, "mentions": 23, **counts}
    pairs = zip(DOCUMENTS, windows, strict=True)
    cases, right = found_by_hand(run, [[document[at] for at in window] for document, some in pairs for window in some])
    if most == 512:
        assert cases == {"pronoun": 9, "nominal": 3, "proper": 1}
    rows = {row["relation"]: row for row in result.json["relations"] if row["direction"] == "mention→antecedent"}
    assert {name.partition(":")[2]: row["cases"] for name, row in rows.items()} == cases | {"": cases.total()}
    for name, row in rows.items():
        kinds = [name.partition(":")[2]] if ":" in name else list(cases)
        wanted = [[sum(right[kind, layer, head] for kind in kinds) for head in range(2)] for layer in range(2)]
        assert row["correct"] == wanted, name


def test_a_sentence_that_a_tokenizer_fails_on_is_not_called_too_long(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(text: str) -> None:
        raise AttnctlError("the tokenizer of no-tokens fails on this text")

    model = replace(attnctl.open_model("random"), tokenize=failing)
    monkeypatch.setattr("attnctl.commands.evaluate.compute.open_named_model", lambda **options: model)
    assert "(no tokens 6)" in run("evaluate", CORPUS, *MODEL).err


def test_a_run_in_a_folder_and_in_processes_gives_the_same(run: Run, tmp_path: Path) -> None:
    wanted = run("evaluate", CORPUS, *MODEL).out
    for more in (["-o", tmp_path / "out"], ["-o", tmp_path / "out"], ["--jobs", "2"]):  # the second goes on
        assert run("evaluate", CORPUS, *MODEL, *more).out == wanted


def test_documents_are_read_as_they_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(path: Path) -> list[int]:
        return [len(sentences_of_document(item)) for item in TreebankStream([str(path)])]

    items = list(TreebankStream([str(CORPUS)]))
    assert [(item.number, item.id) for item in items if sentences_of_document(item)] == [(4, "mill"), (7, "boat")]
    assert not any(sentence_of(item).mentions for item in items if not sentences_of_document(item))
    assert sizes(CORPUS) == [0, 0, 0, 0, 4, 0, 0, 2]
    alone = tmp_path / "alone.conllu"  # without newdoc each sentence stands for itself
    alone.write_text("\n".join(line for line in CORPUS.read_text().splitlines() if "newdoc" not in line) + "\n")
    found: Any = [len(sentence_of(item).mentions) for item in TreebankStream([str(alone)])]
    assert found == [len(mentions.split()) for document in DOCUMENTS for _, mentions in document]
    monkeypatch.setattr("attnctl.checks.limits.DOCUMENT_WORDS", 15)  # a long document is several
    assert sizes(CORPUS) == [0, 0, 2, 0, 0, 2, 0, 0, 2]


def test_windows() -> None:
    assert windows_of_sizes([3, 3, 3, 9, 2, 2], 6) == [range(2), range(2, 3), range(4, 6)]
    assert windows_of_sizes([7, 7], 6) == [] and windows_of_sizes([6], 6) == [range(1)]
