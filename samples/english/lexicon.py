"""Read the words of the grammar from `words.txt` and `tables.txt`: lists, classes and forms."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

WORD_LIST, TABLES = (Path(__file__).with_name(name) for name in ("words.txt", "tables.txt"))


@cache
def _tables() -> dict[str, tuple[str, ...]]:
    """Return the lines of each table by its name."""
    tables: dict[str, list[str]] = {}
    name = ""
    for line in TABLES.read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]") and len(line) > 2 and " ]" not in line:
            name = line[1:-1]
        elif line and not line.startswith("# "):
            tables.setdefault(name, []).append(line)
    return {name: tuple(lines) for name, lines in tables.items()}


def lines_of(table: str) -> tuple[str, ...]:
    """Return the lines of a table."""
    return _tables()[table]


def words_of(table: str) -> list[str]:
    """Return the words of a table in order; a word that is listed twice is drawn twice as often."""
    return [word for line in _tables()[table] for word in line.split()]


def pairs_of(table: str) -> dict[str, str]:
    """Return a table of keys and their words; the key - is the empty word."""
    pairs = (line.partition(": ") for line in _tables()[table])
    return {"" if key == "-" else key: words for key, _, words in pairs}


HABITS = 8  # every subject has one, every verb belongs to one: what someone does tells who did it


def number_of(word: str, salt: str, modulus: int) -> int:
    """Return a number below `modulus` that depends on the word alone, the same on every machine."""
    return zlib.crc32(f"{salt}/{word}".encode()) % modulus


@dataclass(frozen=True)
class Noun:
    """A noun: singular, plural (None for an uncountable one), its class, and the gender of a person (f, m, n)."""

    singular: str
    plural: str | None
    group: str
    gender: str = "n"

    @property
    def habit(self) -> int:
        """Return the number that chooses its own verbs."""
        return number_of(self.singular, "habit", HABITS)


@dataclass(frozen=True)
class Verb:
    """A verb: base, third person, past, -ing, participle; its class; its uses (t, i, p, d, s, f)."""

    forms: tuple[str, str, str, str, str]
    group: str
    frames: str

    @property
    def habit(self) -> int:
        """Return the number that chooses the nouns whose verb it is."""
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
        """Return all proper names: of people, families, places and others."""
        first_names = (name for names in self.names.values() for name in names)
        return (*first_names, *self.surnames, *self.places, *self.proper)

    @cached_property
    def by_verb(self) -> dict[str, Verb]:
        """Return verbs by their base."""
        return {verb.forms[0]: verb for verb in self.verbs}


@cache
def lexicon() -> Lexicon:
    """Return the words of `words.txt`."""
    rows: dict[str, list[list[str]]] = {}
    for line in WORD_LIST.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            kind, *fields = line.split()
            rows.setdefault(kind, []).append(fields)
    nouns: dict[str, list[Noun]] = {}
    for singular, plural, group in rows["noun"]:
        gender = {"man": "m", "woman": "f"}.get(group, "n")
        group = "person" if gender != "n" else group
        nouns.setdefault(group, []).append(Noun(singular, None if plural == "-" else plural, group, gender))
    places = [word for word, group in rows["proper"] if group in ("place", "land", "water")]
    names = {sex: tuple(name for name, gender in rows["name"] if gender == sex) for sex in "fmx"}
    used = {name for several in names.values() for name in several} | set(places)
    return Lexicon(
        nouns={group: tuple(words) for group, words in nouns.items()},
        names=names,
        surnames=tuple(word for (word,) in rows["surname"]),
        places=tuple(places),
        proper=tuple(word for word, _ in rows["proper"] if word not in used),
        verbs=(HAVE, LIKE, *(Verb((row[0], *row[1:5]), row[5], row[6]) for row in rows["verb"])),  # type: ignore[arg-type]
        adjectives=tuple(tuple(row) for row in rows["adjective"]),
        adverbs=tuple(word for (word,) in rows["adverb"]),
        other=tuple(word for (word,) in rows["other"]),
    )


# what is said of a thing of each class
QUALITIES = pairs_of("qualities")
BIG = words_of("big")
SMALL = words_of("small")
FRAGILE = frozenset(words_of("fragile"))

OBJECTS = pairs_of("objects")
OWN_OBJECTS = pairs_of("own objects")

PREPOSITIONS = words_of("prepositions")
OWN_PREPOSITIONS = pairs_of("own prepositions")
NOUN_PREPOSITIONS = pairs_of("noun prepositions")


@cache
def qualities(group: str) -> tuple[str, ...]:
    """Return the qualities of nouns of this class: the table's words and some adjectives, drawn once."""
    listed = QUALITIES.get(group, "").split()
    return tuple(listed * 3 + [word for word, groups in _drawn_adjectives() if group in groups])


@cache
def _drawn_adjectives() -> tuple[tuple[str, frozenset[str]], ...]:
    """Return each adjective of the lexicon with four classes of nouns that it goes with."""
    lex = lexicon()
    listed = {word for words in QUALITIES.values() for word in words.split()} | {
        f for verb in lex.verbs for f in verb.forms
    }
    groups = sorted(lex.nouns)
    return tuple(
        (row[0], frozenset(groups[number_of(row[0], f"class{index}", len(groups))] for index in range(4)))
        for row in lex.adjectives
        if row[0] not in listed
    )


@cache
def objects_of(verb: Verb) -> tuple[Noun, ...]:
    """Return the objects that this verb takes: nouns of its own classes, or else of three that its class allows."""
    lex, base = lexicon(), verb.forms[0]
    groups = OWN_OBJECTS.get(base, "").split()
    if not groups:
        nouns = OBJECTS[verb.group].split()
        groups = [nouns[number_of(base, f"object{index}", len(nouns))] for index in range(2)]
    return tuple(noun for group in groups for noun in lex.nouns[group])


@cache
def prepositions_of(base: str) -> tuple[str, ...]:
    """Return the prepositions that go with this verb, by its base."""
    listed = OWN_PREPOSITIONS.get(base, "").split()
    return tuple(listed) or tuple(
        PREPOSITIONS[number_of(base, f"preposition{index}", len(PREPOSITIONS))] for index in range(2)
    )


@cache
def noun_prepositions(noun: str) -> tuple[str, ...]:
    """Return the prepositions that go with this noun."""
    listed = NOUN_PREPOSITIONS.get(noun, "").split()
    return tuple(listed) or (
        "of",
        "of",
        ("for", "from", "with", "in", "near", "about", "behind", "on")[number_of(noun, "noun", 8)],
    )


@cache
def verbs_by(frame: str, habit: int | None) -> tuple[Verb, ...]:
    """Return the verbs with this use, of one habit or of any."""
    return tuple(v for v in lexicon().verbs if frame in v.frames and habit in (None, v.habit))
