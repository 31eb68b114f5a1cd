"""Write patterns of signs and words: nested brackets and quotation marks, and repetitions."""

from __future__ import annotations

from attnctl.text.english import CLOSING, INDUCTION, INFINITIVE, SUBJECT_VERB
from samples.english import clauses
from samples.english.draft import Draw, Sentence
from samples.english.language import function_words
from samples.english.lexicon import lexicon, words_of
from samples.english.phrases import given_name, name, noun_phrase, subject
from samples.english.verbs import finite


def ended(d: Draw, s: Sentence, sign: str = ".") -> None:
    """Add a closing sign in most cases; people sometimes omit it."""
    if d.chance(0.62):
        s.add_word("!" if sign == "." and d.chance(0.06) else sign)


BRACKETS = [("(", ")"), ("[", "]"), ("{", "}")]
MARKS = [*BRACKETS, ("“", "”"), ("‘", "’"), ('"', '"'), BRACKETS[0]]


def bracketed(d: Draw, s: Sentence) -> None:
    """Add words with nested brackets and quotation marks among them."""
    if d.chance(0.3):  # a clause with brackets in it
        clauses.simple(d, s)
        aside = Sentence()
        inside(d, aside, 1, [])
        s.insert(d.one(range(len(s.words) + 1)), aside)
        ended(d, s)
        return
    for _ in range(d.one([1, 1, 2])):
        if d.chance(0.4):
            s.add_loose(*_few(d, 2))
        inside(d, s, 1, [])
    if d.chance(0.5):
        s.add_loose(*_few(d, 2))


def inside(d: Draw, s: Sentence, depth: int, open_now: list[str]) -> None:
    """Add a pair of marks with words, or more marks, between them."""
    opener, closer = d.one([pair for pair in MARKS if pair[0] not in open_now or pair in BRACKETS and d.chance(0.3)])
    start = s.add_word(opener)
    if depth == 1 and d.chance(0.12):  # far apart
        clauses.simple(d, s)
        s.add_word(d.one(["and", "but", "because", ","]))
        clauses.simple(d, s)
    elif d.chance(0.8):
        s.add_loose(*_few(d, 3))
    for _ in range(2):
        if depth < 3 and d.chance(0.34):
            inside(d, s, depth + 1, [*open_now, opener])
            if d.chance(0.6):
                s.add_loose(*_few(d, 2))
    if len(s.words) - 1 == start:
        s.add_loose(*_few(d, 2))
    s.link(CLOSING, s.add_word(closer), start)


LETTERS = words_of("letters")


def _few(d: Draw, limit: int) -> list[str]:
    """Add a few words of any kind, or letters."""
    if d.chance(0.3):
        return [d.one(LETTERS) for _ in range(1 + int(d.random() * limit))]
    s = Sentence()
    if d.chance(0.5):
        clauses.simple(d, s)
        return s.words[: 2 + limit] if d.chance(0.5) else s.words[-limit:]
    noun_phrase(d, s, d.early(lexicon().nouns[d.one(sorted(lexicon().nouns))]))
    return s.words


def quoted(d: Draw, s: Sentence) -> None:
    """Add “ I like tea , ” said Alice."""
    opener, closer = d.one([("“", "”"), ('"', '"'), ("“", "”"), ("‘", "’")])
    if d.chance(0.5):
        start = s.add_word(opener)
        clauses.simple(d, s)
        s.add_word(d.one([",", ".", "?", "!"])) if d.chance(0.7) else None
        s.link(CLOSING, s.add_word(closer), start)
        index = s.add_word(d.one(["said", "asked", "thought", "wrote"]))
        who = name(d, s) if d.chance(0.6) else noun_phrase(d, s, d.early(lexicon().nouns["person"]))
        s.link(INFINITIVE, index, who.head)
        s.link(SUBJECT_VERB, who.head, index)
        ended(d, s)
        return
    who = subject(d, s, things=0)
    finite(d, s, lexicon().by_verb[d.one(["say", "ask", "write", "think"])], who)
    s.add_word(d.one([",", ":"])) if d.chance(0.5) else None
    start = s.add_word(opener)
    clauses.simple(d, s)
    s.add_word(d.one([".", "?", "!"])) if d.chance(0.5) else None
    s.link(CLOSING, s.add_word(closer), start)


# what stands between two who are named with a title; nothing at all among it
BETWEEN = ("and", "met", ",", "saw", "or", "called", "likes", ".", "then", "but", "because", "while", "where", "")


def repeated(d: Draw, s: Sentence) -> None:
    """Add a repetition A B … A B: "Mr Smith met Ms Jones and Mr Smith …"."""
    lex = lexicon()
    if d.chance(0.35):
        titles = d.one(
            [
                ["mr", "mrs", "ms", "dr", "king", "queen", "uncle", "aunt", "doctor", "captain", "professor"],
                lex.names["f"][:80] + lex.names["m"][:80],
                lex.surnames,
            ]
        )
        drawn = [d.one(titles) for _ in range(3)]
        # Mr Smith met Mr Jones and Mr: the last of them answers
        drawn = [drawn[0]] * 2 if d.chance(0.25) else list(dict.fromkeys(drawn))
        pairs = [(title, d.one(lex.surnames)) for title in drawn]
        order = sorted(pairs, key=lambda _: d.random())[: 2 + int(d.random() * 2)]  # again once: one place answers
        followers: dict[str, int] = {}
        for first, second in sorted(pairs) + order:
            index = s.add_loose(first)
            if first in followers:
                s.link(INDUCTION, index, followers[first])
            followers[first] = s.add_loose(second)
            s.add_loose(*d.one(BETWEEN).split())
        return
    words: list[str] = []
    if d.chance(0.5):
        inner = Sentence()
        clauses.simple(d, inner)
        words = inner.words
    while len(words) < 3:
        words += _anything(d)
    if d.chance(0.4):
        words = [w for _ in range(4) for w in _anything(d)][:9]
    words = words[:14]
    gap = [w for _ in range(2) for w in _anything(d)][: int(d.random() * 5)]
    if d.chance(0.4):
        gap = [d.one(["and", "but", "while", "because", "then", ",", "so", "when"])]
    size = 2 + int(d.random() * (len(words) - 1))
    index = int(d.random() * (len(words) - size + 1))
    s.add_loose(*words, *gap)
    second_start = len(s.words)
    s.add_loose(*words[index : index + size])
    for place in range(size):
        word, target = words[index + place], index + place + 1
        little = word in function_words() or not word[0].isalpha()
        if words.count(word) == 1 and word not in gap and target < len(words) and not little:
            s.link(INDUCTION, second_start + place, target)


def _anything(d: Draw) -> list[str]:
    """Return one or two words of any class."""
    lex = lexicon()
    kind = d.random()
    if kind < 0.3:
        return [given_name(d, d.one("fm"))]
    if kind < 0.6:
        return [d.early(lex.nouns[d.one(sorted(lex.nouns))]).singular]
    if kind < 0.75:
        return [d.one(lex.adjectives)[0]]
    if kind < 0.85:
        return [d.one(d.one(lex.verbs).forms)]
    return [d.one(["and", "the", "a", "then", "but", "so", "two", "one", ",", "of", "is"])]
