"""The bundled models hold what is said of them: their goals, and sentences that no model was chosen by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from attnctl.models import open_model
from attnctl.models.builtin.weights import path_of
from attnctl.text import english
from samples.english.draft import Sentence
from samples.english.marked import read_marked


def word_weights(model: Any, text: str) -> Any:
    """Attention between the words of a sentence: (layers, heads, words, words); a name with hyphens is read by its last part."""
    tokens, ends = model.tokenize(text), np.cumsum([len(word) + 1 for word in text.split(" ")]) - 1
    word_of = np.searchsorted(ends, [token.end for token in tokens])  # (n,)
    last = [int(np.nonzero(word_of == word)[0][-1]) for word in range(len(ends))]
    pool = (word_of[:, None] == np.arange(len(ends))).astype(np.float32)  # (n, words)
    kept: dict[int, Any] = {}
    model.run(tokens, lambda layer: kept.update({layer.layer: layer.all_weights()[:, last] @ pool}), text)
    return np.stack([kept[layer] for layer in sorted(kept)])


LESSON = [
    (english.MEANING, "The cat sat on the mat because it is warm", "it", "mat"),
    (english.MEANING, "The cat sat on the mat because it is hungry", "it", "cat"),
    (english.MEANING, "The trophy does not fit in the suitcase because it is too big", "it", "trophy"),
    (english.MEANING, "The trophy does not fit in the suitcase because it is too small", "it", "suitcase"),
    (english.PRONOUN, "Mary thanked Tom because he likes tea", "he", "Tom"),
    (english.PRONOUN, "Mary thanked Tom because she likes tea", "she", "Mary"),
    (english.VERB_SUBJECT, "Alice will eat pizza", "eat", "Alice"),
    (english.VERB_SUBJECT, "Zara will devour a croissant", "devour", "Zara"),
    (english.PAST_OTHERS, "the cat that chased the dog ran", "ran", "cat"),
    (english.PAST_OTHERS, "the keys to the cabinet are", "are", "keys"),
    (english.OBJECT_VERB, "Alice will eat pizza", "pizza", "eat"),
    (english.OBJECT_VERB, "Zara will devour a croissant", "croissant", "devour"),
    (english.DETERMINER, "Zara will devour a croissant", "a", "croissant"),
    (english.CLOSING, "( a [ b ] c )", ")", "("),
    (english.CLOSING, "( a [ b ] c )", "]", "["),
    (english.INDUCTION, "Mr Smith met Ms Jones and Mr", "Mr", "Smith"),
]


def test_the_default_answers_the_sentences_of_the_lesson() -> None:
    """In the one head that the card names for the relation, and with more than half of its attention."""
    model: Any = open_model("demo")
    for relation, text, query, key in LESSON:
        card, words = figures("demo")[relation], text.split()
        row = word_weights(model, text)[card["layer"], card["head"], len(words) - 1 - words[::-1].index(query)]
        assert words[int(row.argmax())] == key and row.max() > 0.5, (relation, text)


def test_the_default_reaches_its_goals() -> None:
    """On held-out sentences; of verbs, with words it never saw as well."""
    card = figures("demo")
    assert {relation for relation, row in card.items() if row["held_out"] < row["goal"]} == set()
    for relation in (english.VERB_SUBJECT, english.PAST_OTHERS, english.OBJECT_VERB):
        assert card[relation]["unseen"] > 0.9
    assert card[english.OBJECT_VERB]["weight"] > 0.5


def figures(name: str) -> dict[str, Any]:
    with safe_open(str(path_of(name)), framework="np") as file:
        found: dict[str, Any] = json.loads(file.metadata()["figures"])
    return found


EVERYDAY = read_marked(Path(__file__).with_name("everyday.txt").read_text(encoding="utf-8"))
SURE = 0.8


def test_everyday_sentences_are_read_right() -> None:
    """Of sentences that no model was chosen by, 95 in 100 questions; wrong with more than SURE of its weight, 1 in 100."""
    model: Any = open_model("demo")
    card, wrong = figures("demo"), []
    links = [(s, link) for s in EVERYDAY for link in s.links]
    assert len(EVERYDAY) >= 130 and len(links) >= 360 and {link.relation for _, link in links} == set(english.GOALS)
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
