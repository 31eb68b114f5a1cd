"""Coreference over documents: sentences read together, antecedents in earlier ones, against plain loops. About 5 s."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnctl
from attnctl.batching.treebank import DOCUMENT, Treebank, sentence_of
from attnctl.errors import AttnctlError
from attnctl.readings.census.census import windows_of_sizes
from attnctl.tokens import split_words
from tests.conftest import SAMPLES, Result

Run = Callable[..., Result]
MODEL = ("--model", "random", "--heads", "2", "--layers", "2")
# words with their tags and entities, a sentence a line; e1 of the second document is not that of the first
DOCUMENTS = (
    (
        "Anna/PROPN/e1 has/VERB a/DET dog/NOUN/e2",
        "She/PRON/e1 loves/VERB it/PRON/e2",
        "The/DET dog/NOUN/e2 barks/VERB at/ADP Anna/PROPN/e1",
    ),
    ("Bob/PROPN/e3 sleeps/VERB", "He/PRON/e3 dreams/VERB of/ADP Anna/PROPN/e1"),
)
SIZES = {12: ([[0, 1], [2]], [[0, 1]]), 512: ([[0, 1, 2]], [[0, 1]])}  # --max-tokens → the windows of each document


def words_of(line: str) -> list[tuple[str, str, str]]:
    return [(word, tag, (*entity, "")[0]) for word, tag, *entity in (part.split("/") for part in line.split())]


def conllu(documents: tuple[tuple[str, ...], ...]) -> str:
    lines = []
    for number, sentences in enumerate(documents):
        for at, sentence in enumerate(sentences):
            words = words_of(sentence)
            lines += [f"# newdoc id = d{number}"] if at == 0 else []
            lines += [f"# text = {' '.join(word for word, *_ in words)}"]
            for place, (word, tag, entity) in enumerate(words, 1):
                head, relation = ("0", "root") if place == 1 else ("1", "dep")
                misc = f"Entity=({entity}-x-1-)" if entity else "_"
                lines.append("\t".join((str(place), word, "_", tag, "_", "_", head, relation, "_", misc)))
            lines.append("")
    return "\n".join(lines)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "documents.conllu"
    path.write_text(f"{conllu(DOCUMENTS)}\n")
    return path


# of samples/documents.conllu: the head of each mention as nth of its word in the document, its entity, what it is
MILL = (
    "Anna/0/e1/proper Anna/0/e3/proper her/0/e1/pronoun brother/0/e2/nominal mill/0/e4/nominal Brno/0/e5/proper "
    "They/0/e3/pronoun roof/0/e6/nominal it/0/e6/pronoun mill/1/e4/nominal she/0/e1/pronoun him/0/e2/pronoun "
    "Brno/1/e5/proper bargain/0/e7/nominal mill/2/e4/nominal its/0/e4/pronoun wheel/0/e8/nominal"
)
BOAT = "Eva/0/e1/proper boat/0/e2/nominal Her/0/e1/pronoun boat/1/e2/nominal she/0/e1/pronoun it/0/e2/pronoun"
MILL_TEXT = (
    "Anna Novak and her brother Tom bought the old mill in Brno. They repaired the roof, and it doesn't leak. "
    "The mill, she told him, in Brno was a bargain. Never sold the mill and kept its wheel."
)


Counts = tuple[Counter[str], Counter[tuple[str, int, int]]]


def mentions_of(text: str, said: str) -> list[tuple[int, str, str]]:
    """Mentions as NTH of a WORD, ENTITY and what it is → their token, entity, kind; random's tokens are words."""
    words = [token.text for token in split_words(text)]
    places = {word: [at for at, other in enumerate(words) if other == word] for word in words}
    parts = (mention.split("/") for mention in said.split())
    return [(places[word][int(nth)], entity, kind) for word, nth, entity, kind in parts]


def found_by_hand(run: Run, parts: list[tuple[str, list[tuple[int, str, str]]]]) -> Counts:
    """Cases of each kind of mention of some texts, and which of them each head finds: the one before that it looks at most."""
    cases: Counter[str] = Counter()
    right: Counter[tuple[str, int, int]] = Counter()
    for text, said in parts:
        trace = run("explain", text, *MODEL, "--json").json
        for at, entity, kind in said:
            before = {place for place, _, _ in said if place < at}
            good = {place for place, other, _ in said if place < at and other == entity}
            cases[kind] += bool(good)
            for layer in trace["layers"] if good else ():
                for head in layer["heads"]:
                    found = max(sorted(before), key=lambda place: head["weights"][at][place])
                    right[kind, layer["layer"], head["head"]] += found in good
    return +cases, right


def check_rows(document: Any, counts: Counts) -> None:
    """Hold every row of mentions to the counts by hand."""
    cases, right = counts
    rows = {row["relation"]: row for row in document["relations"] if row["direction"] == "mention→antecedent"}
    assert {name.partition(":")[2]: row["cases"] for name, row in rows.items()} == cases | {"": cases.total()}
    for name, row in rows.items():
        kinds = [name.partition(":")[2]] if ":" in name else list(cases)
        wanted = [[sum(right[kind, layer, head] for kind in kinds) for head in range(2)] for layer in range(2)]
        assert row["correct"] == wanted, name


def test_a_realistic_treebank_is_counted_as_by_hand(run: Run) -> None:
    """Nested mentions and some in two pieces, bridging, split antecedents, zeros, words written as one."""
    found = run("evaluate", SAMPLES / "documents.conllu", *MODEL, "--json")
    assert (found.code, found.json["sentences"]) == (0, {"read": 6, "used": 6, "skipped": {}})
    assert found.json["mentions"] == {
        "documents": 2, "windows": 2, "mentions": 23, "new": 10, "outside": 0, "unread": 0
    }  # fmt: skip
    documents = ((MILL_TEXT, MILL), ("Eva owns a boat. Her boat is red, and she loves it.", BOAT))
    counts = found_by_hand(run, [(text, mentions_of(text, said)) for text, said in documents])
    assert counts[0] == {"pronoun": 9, "nominal": 3, "proper": 1}
    check_rows(found.json, counts)


@pytest.mark.parametrize("most", SIZES)
def test_antecedents_in_earlier_sentences_are_those_of_plain_loops(run: Run, corpus: Path, most: int) -> None:
    found = run("evaluate", corpus, *MODEL, "--max-tokens", most, "--json")
    assert found.code == 0, found.err
    assert found.json["sentences"] == {"read": 5, "used": 5, "skipped": {}}
    kinds = {"PRON": "pronoun", "PROPN": "proper"}
    parts = []
    for sentences, several in zip(DOCUMENTS, SIZES[most], strict=True):
        for window in several:
            words = [word for at in window for word in words_of(sentences[at])]
            said = [(at, entity, kinds.get(tag, "nominal")) for at, (_, tag, entity) in enumerate(words) if entity]
            parts.append((" ".join(word for word, *_ in words), said))
    counts = found_by_hand(run, parts)
    assert counts[0].total() == (3 if most == 12 else 5)
    check_rows(found.json, counts)
    assert found.json["mentions"] == {
        "documents": 2, "windows": 3 if most == 12 else 2, "mentions": 9, "new": 4, "outside": 2 if most == 12 else 0, "unread": 0
    }  # fmt: skip
    told = " ".join(run("evaluate", corpus, *MODEL, "--max-tokens", most).out.split())
    assert "of 9 mentions 4 are the first of their entity" in told
    listed = " ".join(run("evaluate", SAMPLES / "sentences.conllu", *MODEL, "--least", 1).out.split())
    assert (
        "the nearest with the same head word (match)" in listed
        and "mention to its head found 95 % rule match" in listed
    )


def test_a_sentence_too_long_for_a_window_is_counted(run: Run, corpus: Path) -> None:
    found = run("evaluate", corpus, *MODEL, "--max-tokens", 4, "--json")
    assert found.code == 3 and found.json["sentences"] == {"read": 5, "used": 4, "skipped": {"too long": 1}}
    assert found.json["mentions"] == {
        "documents": 2, "windows": 4, "mentions": 9, "new": 4, "outside": 3, "unread": 2
    }  # fmt: skip


def test_a_sentence_that_a_tokenizer_fails_on_is_not_called_too_long(
    run: Run, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(text: str) -> None:
        raise AttnctlError("the tokenizer of no-tokens fails on this text")

    model = replace(attnctl.open_model("random"), tokenize=failing)
    monkeypatch.setattr("attnctl.batching.census_work.open_named_model", lambda **options: model)
    assert "(no tokens 5)" in run("evaluate", corpus, *MODEL).err


def test_a_run_in_a_folder_and_in_processes_gives_the_same(run: Run, corpus: Path, tmp_path: Path) -> None:
    wanted = run("evaluate", corpus, *MODEL, "--json").out
    assert run("evaluate", corpus, *MODEL, "--json", "-o", tmp_path / "out").out == wanted
    assert run("evaluate", corpus, *MODEL, "--json", "-o", tmp_path / "out").out == wanted  # gone on with
    assert run("evaluate", corpus, *MODEL, "--json", "--jobs", "2").out == wanted


def test_documents_are_read_as_they_begin(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = list(Treebank([str(corpus)]))
    assert [item.number for item in items] == list(range(7))
    assert [item.id for item in items if item.options.get(DOCUMENT)] == ["d0", "d1"]
    assert not any(sentence_of(item).mentions for item in items if not item.options.get(DOCUMENT))
    alone = tmp_path / "alone.conllu"  # without newdoc each sentence stands for itself
    alone.write_text("\n".join(line for line in corpus.read_text().splitlines() if "newdoc" not in line) + "\n")
    assert [len(sentence_of(item).mentions) for item in Treebank([str(alone)])] == [2, 2, 2, 1, 2]
    monkeypatch.setattr("attnctl.limits.DOCUMENT_WORDS", 5)  # a long document is several
    assert [len(item.options.get(DOCUMENT, ())) for item in Treebank([str(corpus)])] == [0, 0, 2, 0, 1, 0, 0, 2]


def test_windows() -> None:
    assert windows_of_sizes([3, 3, 3, 9, 2, 2], 6) == [range(2), range(2, 3), range(4, 6)]
    assert windows_of_sizes([7, 7], 6) == [] and windows_of_sizes([6], 6) == [range(1)]
