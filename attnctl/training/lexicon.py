"""The words of the grammar, and who likes, does and owns what."""

from __future__ import annotations

from dataclasses import dataclass

Forms = tuple[str, str, str, str, str]  # base, third person, past, -ing, participle

FEMALE = ["Alice", "Clara", "Emma", "Eva", "Grace", "Julia", "Lucy", "Maria", "Nora", "Olivia", "Ruth", "Sara"]
MALE = ["Adam", "Bob", "Carl", "David", "Felix", "Henry", "Ivan", "Jack", "Leo", "Mark", "Oscar", "Paul"]
WOMEN = {"girl": "girls", "queen": "queens", "woman": "women"}
MEN = {"boy": "boys", "king": "kings", "man": "men"}
ANIMALS = {
    "cat": "cats",
    "dog": "dogs",
    "fox": "foxes",
    "horse": "horses",
    "rabbit": "rabbits",
    "bird": "birds",
    "bear": "bears",
    "wolf": "wolves",
    "duck": "ducks",
    "monkey": "monkeys",
    "pig": "pigs",
    "goat": "goats",
}
# names and nouns that the grammar never makes: what a trained model has not seen
UNSEEN_NAMES = ["Zara", "Quentin", "Yusuf", "Priya", "Mei", "Tobias", "Ingrid", "Rafael", "Noor", "Dmitri"]
UNSEEN_NOUNS = ["croissant", "lizard", "turnip", "captain", "mango", "giraffe", "nurse", "sonnet", "lemonade", "pirate"]


def _forms(line: str) -> Forms:
    base, third, past, ing, participle = line.split()
    return base, third, past, ing, participle


@dataclass(frozen=True)
class Verb:
    """A transitive verb: its forms, the kind of thing it takes, and the words that tend to follow that thing."""

    forms: Forms
    takes: str
    then: tuple[str, ...] = ()


# one entry a taste: what someone of that taste has of each kind
THINGS = {
    "food": [["pizza", "pasta"], ["a cake", "chocolate"], ["an apple", "a banana"], ["fish", "rice"]]
    + [["bread", "a sandwich"], ["soup", "an egg"]],
    "drink": [["tea"], ["milk"], ["juice"], ["water"], ["coffee"], ["wine"]],
    "text": [["a letter"], ["poetry"], ["a book"], ["news"], ["an essay"], ["a story"]],
}
VERBS = [
    Verb(_forms(line), takes, tuple(then.split()))
    for line, takes, then in [
        ("eat eats ate eating eaten", "food", "with a fork"),
        ("cook cooks cooked cooking cooked", "food", "in the kitchen"),
        ("buy buys bought buying bought", "food", "at the market"),
        ("share shares shared sharing shared", "food", "between friends"),
        ("drink drinks drank drinking drunk", "drink", "from a cup"),
        ("make makes made making made", "drink", "for a guest"),
        ("pour pours poured pouring poured", "drink", "into a glass"),
        ("order orders ordered ordering ordered", "drink", "by phone"),
        ("read reads read reading read", "text", "about love"),
        ("write writes wrote writing written", "text", "without help"),
        ("send sends sent sending sent", "text", "to school"),
        ("sell sells sold selling sold", "text", "near town"),
    ]
]
LIKINGS = [  # one a taste: Alice likes tea, Bob loves milk
    _forms(line)
    for line in (
        "like likes liked liking liked",
        "love loves loved loving loved",
        "want wants wanted wanting wanted",
        "enjoy enjoys enjoyed enjoying enjoyed",
        "prefer prefers preferred preferring preferred",
        "need needs needed needing needed",
    )
]
# between two people, and the word that tends to join what comes after
SOCIAL = [
    Verb(_forms("thank thanks thanked thanking thanked"), "person", ("because",)),
    Verb(_forms("help helps helped helping helped"), "person", ("when",)),
    Verb(_forms("call calls called calling called"), "person", ("while",)),
    Verb(_forms("meet meets met meeting met"), "person", ("before",)),
    Verb(_forms("visit visits visited visiting visited"), "person", ("after",)),
]
CHASES = [
    Verb(_forms("chase chases chased chasing chased"), "anyone", ("around", "the", "house")),
    Verb(_forms("see sees saw seeing seen"), "anyone", ("through", "the", "fence")),
    Verb(_forms("follow follows followed following followed"), "anyone", ("along", "the", "river")),
    Verb(_forms("catch catches caught catching caught"), "anyone", ("behind", "the", "hill")),
]
MOVES = [
    _forms(line)
    for line in (
        "run runs ran running run",
        "walk walks walked walking walked",
        "sleep sleeps slept sleeping slept",
        "wait waits waited waiting waited",
        "play plays played playing played",
        "sing sings sang singing sung",
    )
]
WHERE = ["home", "outside", "upstairs", "away", "downstairs", "inside"]  # one a taste
SITS = [
    _forms("sit sits sat sitting sat"),
    _forms("lie lies lay lying lain"),
    _forms("rest rests rested resting rested"),
]
# a place, its plural or None, what is said of it; what is said of an animal is said by its taste
PLACES = [("mat", "mats", "warm"), ("sofa", None, "soft"), ("roof", None, "high"), ("bench", "benches", "clean")] + [
    ("grass", None, "dry"),
    ("cushion", "cushions", "round"),
]
MOODS = ["hungry", "tired", "sleepy", "thirsty", "cold", "ill"]  # one a taste

OPENINGS = {
    "any": ["today", "in the morning", "on Monday", "after lunch", "at night", "now and then"],
    "past": ["yesterday", "last week", "long ago", "at the end of the day"],
    "future": ["tomorrow", "next week", "soon"],
}
ADVERBS = ["often", "never", "really", "always", "quietly"]
MODALS = [["will"], ["can"], ["should"], ["must"], ["will", "not"]]
ADJECTIVES = ["hot", "good", "small", "fresh"]
BESIDE = ["near", "behind", "with"]

TASTES = 6


@dataclass(frozen=True)
class Agent:
    """Someone who does things. `taste` says what they have, like and how they end up; `habit` which verb is theirs."""

    words: tuple[str, ...]  # ("Alice",), ("the", "cat"), ("the", "cats")
    lemma: str
    plural: bool
    gender: str  # f, m, or n
    taste: int
    habit: int


def _agents() -> list[Agent]:
    singles: list[tuple[str, str | None, str]] = [(name, None, "f") for name in FEMALE]
    singles += [(name, None, "m") for name in MALE]
    for nouns, gender in ((WOMEN, "f"), (MEN, "m"), (ANIMALS, "n")):
        singles += [(noun, plural, gender) for noun, plural in nouns.items()]
    agents: list[Agent] = []
    for at, (word, plural, gender) in enumerate(singles):
        for noun in (word,) if plural is None else (word, plural):
            words = (noun,) if plural is None else ("the", noun)
            agents.append(Agent(words, word, noun == plural, gender, at % TASTES, len(agents) % len(VERBS)))
    return agents


AGENTS = _agents()
NAMED = [agent for agent in AGENTS if len(agent.words) == 1]
NOUNS = [agent for agent in AGENTS if len(agent.words) == 2]
PEOPLE = [agent for agent in AGENTS if agent.gender != "n" and not agent.plural]
BEASTS = [agent for agent in AGENTS if agent.gender == "n"]

AGENT_WORDS = {agent.words[-1] for agent in AGENTS}
THING_WORDS = {thing.split()[-1] for kind in THINGS.values() for taste in kind for thing in taste}
PLACE_WORDS = {word for place in PLACES for word in place[:2] if word}
VERB_WORDS = {form for verb in [*VERBS, *SOCIAL, *CHASES] for form in verb.forms} | {
    form for forms in [*LIKINGS, *MOVES, *SITS] for form in forms
}
