"""The words of the grammar: their forms and classes, read from `words.txt`, and who has which habit."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

HABITS = 8  # every subject has one, every verb belongs to one: what someone does tells who did it


def number_of(word: str, salt: str, modulus: int) -> int:
    """A number below `modulus` that the word alone decides, the same on every machine."""
    return zlib.crc32(f"{salt}/{word}".encode()) % modulus


@dataclass(frozen=True)
class Noun:
    """A noun: singular, plural (None for what is not counted), its class, and the gender of a person (f, m, n)."""

    singular: str
    plural: str | None
    group: str
    gender: str = "n"

    @property
    def habit(self) -> int:
        """Which verbs are its own."""
        return number_of(self.singular, "habit", HABITS)


@dataclass(frozen=True)
class Verb:
    """A verb: base, third person, past, -ing, participle; its class; how it is used (t, i, p, d, s, f)."""

    forms: tuple[str, str, str, str, str]
    group: str
    frames: str

    @property
    def habit(self) -> int:
        """Whose verb it is."""
        return number_of(self.forms[0], "habit", HABITS)


# verbs that are also little words, and so are not in the list
HAVE = Verb(("have", "has", "had", "having", "had"), "possession", "t")
LIKE = Verb(("like", "likes", "liked", "liking", "liked"), "emotion", "tp")


@dataclass(frozen=True)
class Lexicon:
    """All words by class."""

    nouns: dict[str, tuple[Noun, ...]]  # by class
    names: dict[str, tuple[str, ...]]  # "f", "m", "x" for either, the commonest first
    surnames: tuple[str, ...]
    places: tuple[str, ...]  # proper names of places
    proper: tuple[str, ...]  # other proper names
    verbs: tuple[Verb, ...]
    adjectives: tuple[tuple[str, ...], ...]  # the word, and where it has them comparative and superlative
    adverbs: tuple[str, ...]
    other: tuple[str, ...]

    @property
    def capitalized(self) -> tuple[str, ...]:
        """All proper names: of people, families, places and others."""
        given = (name for some in self.names.values() for name in some)
        return (*given, *self.surnames, *self.places, *self.proper)

    @cached_property
    def by_verb(self) -> dict[str, Verb]:
        """Verbs by their base."""
        return {verb.forms[0]: verb for verb in self.verbs}


@cache
def lexicon() -> Lexicon:
    """The words of `words.txt`."""
    rows: dict[str, list[list[str]]] = {}
    for line in files("attnctl.training.english").joinpath("words.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            kind, *rest = line.split()
            rows.setdefault(kind, []).append(rest)
    nouns: dict[str, list[Noun]] = {}
    for singular, plural, group in rows["noun"]:
        gender = {"man": "m", "woman": "f"}.get(group, "n")
        group = "person" if gender != "n" else group
        nouns.setdefault(group, []).append(Noun(singular, None if plural == "-" else plural, group, gender))
    places = [word for word, group in rows["proper"] if group in ("place", "land", "water")]
    names = {sex: tuple(name for name, own in rows["name"] if own == sex) for sex in "fmx"}
    taken = {name for some in names.values() for name in some} | set(places)
    return Lexicon(
        nouns={group: tuple(words) for group, words in nouns.items()},
        names=names,
        surnames=tuple(word for (word,) in rows["surname"]),
        places=tuple(places),
        proper=tuple(word for word, _ in rows["proper"] if word not in taken),
        verbs=(HAVE, LIKE, *(Verb((row[0], *row[1:5]), row[5], row[6]) for row in rows["verb"])),  # type: ignore[arg-type]
        adjectives=tuple(tuple(row) for row in rows["adjective"]),
        adverbs=tuple(word for (word,) in rows["adverb"]),
        other=tuple(word for (word,) in rows["other"]),
    )
