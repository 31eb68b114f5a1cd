"""The sentences marked by hand: there are two hundred, of every relation, and training meets none of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from attnctl.models import open_model
from attnctl.training import english
from attnctl.training.english import SENTENCES, blocks_of
from attnctl.training.relations import GOALS
from samples.english import grammar
from samples.english.draft import Draw, Sentence
from samples.english.grammar import sentences
from samples.english.marked import content_words, kept_out, marked_sentences, read_marked
from tests.training.test_relations import figures, word_weights

EVERYDAY = read_marked(Path(__file__).with_name("everyday.txt").read_text(encoding="utf-8"))
SURE = 0.8


def test_there_are_two_hundred_of_every_relation() -> None:
    marked = marked_sentences()
    assert len(marked) >= 200 and len({s.text for s in marked}) == len(marked)
    counts = Counter(link.relation for s in marked for link in s.links)
    assert set(counts) == set(GOALS) and min(counts.values()) >= 15
    for text in (
        "The cat sat on the mat because it is warm",
        "The trophy does not fit in the suitcase because it is too small",
        "Mary thanked Tom because he likes tea",
        "Zara will devour a croissant",
        "The cat that chased the dog ran",
        "( a [ b ] c )",
    ):
        assert text in {s.text for s in marked}


def test_near_copies_are_kept_out() -> None:
    for near in (
        "the cat sat on the mat because it was warm .",
        "today a cat sat near the mat , since it is very warm",
        "Mary thanked Tom so that she likes his tea !",
    ):
        words = near.split()
        assert (content_words(words) in kept_out()) == ("today" not in words)
    assert content_words(["the", "dog", "sat", "on", "the", "mat", "because", "it", "was", "warm"]) not in kept_out()


def test_the_grammar_makes_none_of_them(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A grammar that makes little else than one of them is asked again until it makes something else."""
    made: list[str] = []

    def same(d: Draw, s: Sentence) -> None:
        made.append(d.one(["the cat sat on the mat because it is warm", "the dog ran home"]))
        s.add_word(*made[-1].split())

    monkeypatch.setattr(grammar, "KINDS", ((same, 1.0),))
    assert {s.text for s in sentences(30, 1)} == {"the dog ran home"} and len(set(made)) == 2


def test_no_sentence_of_the_corpus_is_one_of_them() -> None:
    parts = ("both", "masked-word", "next-word")
    made = {content_words(block.split()[1::10]) for block in blocks_of(SENTENCES, *parts)}
    assert len(made) > 60_000 and not made & kept_out() and not made & {content_words(s.words) for s in EVERYDAY}


def test_everyday_sentences_are_read_right() -> None:
    """Of sentences that no model was chosen by, 95 in 100 questions; wrong with more than SURE of its weight, 1 in 100."""
    model: Any = open_model("demo")
    card, wrong = figures("demo"), []
    links = [(s, link) for s in EVERYDAY for link in s.links]
    assert len(EVERYDAY) >= 130 and len(links) >= 360 and {link.relation for _, link in links} == set(GOALS)
    for s, link in links:
        row = _row_of_head(model, s, card[link.relation], link.query)
        if row.argmax() != link.key:
            wrong.append((float(row.max()), s.text, s.words[link.query], s.words[int(row.argmax())]))
    assert len(wrong) <= 0.05 * len(links), sorted(wrong)
    assert sum(weight >= SURE for weight, *_ in wrong) <= 0.01 * len(links), sorted(wrong)


PEOPLE = {
    "Anglo": "Emily:Jack Charlotte:Henry Susan:Robert Megan:Kevin Grace:William Hannah:Peter",
    "Arabic": "Fatima:Omar Layla:Hassan Zainab:Khalid Salma:Tariq Amina:Yusuf Rania:Bilal",
    "Slavic": "Olga:Ivan Svetlana:Dmitri Katya:Boris Agnieszka:Wojciech Milena:Zoran Ludmila:Pavel",
    "East Asian": "Yuki:Kenji Sakura:Hiroshi Mei:Wei Ji-woo:Min-jun Akiko:Takeshi Xiu:Jian",
    "Spanish": "Sofia:Diego Lucia:Javier Carmen:Pablo Guadalupe:Alejandro Ximena:Mateo Pilar:Andres",
    "Indian": "Priya:Arjun Ananya:Rohan Lakshmi:Sanjay Deepa:Vikram Kavita:Rahul Shreya:Suresh",
    "West African": "Abena:Kwame Ngozi:Chidi Adaeze:Emeka Folake:Tunde Ama:Kofi Aminata:Mamadou",
}


@pytest.mark.parametrize("group", PEOPLE)
def test_pronouns_find_people_by_names_of_every_group(group: str) -> None:
    """Of both genders, in both orders: 20 of 24 at least."""
    model: Any = open_model("demo")
    card, right = figures("demo")[english.PRONOUN], 0
    for number, pair in enumerate(PEOPLE[group].split()):
        she, he = pair.split(":")
        for first, second in ((she, he), (he, she)):
            for pronoun, meant in (("she", she), ("he", he)):
                said = ("thanked", "was kind") if number % 2 else ("called", "needed help")
                s = Sentence(f"{first} {said[0]} {second} because {pronoun} {said[1]}".split())
                right += s.words[int(_row_of_head(model, s, card, 4).argmax())] == meant
    assert right >= 20


def _row_of_head(model: Any, s: Sentence, place: dict[str, Any], query: int) -> Any:
    """What one word's row in a head gives the other words of a sentence (words,)."""
    row = word_weights(model, s.text)[place["layer"], place["head"], query].copy()
    row[query] = -1
    return row
