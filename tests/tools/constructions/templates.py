"""Write sentences of each construction from templates, in the notation of notation.py: the marks stand in the templates.

The sentences to fit and those to measure on share no noun, no verb of their slots and no name, and some templates are used
for one of them alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

FIT, MEASURE = "fit", "measure"
# actions: (past, base, third person, gerund, object): an object is a noun phrase with its head marked
ACTIONS = {
    FIT: """opened|open|opens|Opening|the window*,cleaned|clean|cleans|Cleaning|the kitchen*,sold|sell|sells|Selling|old~_furniture*,
    cooked|cook|cooks|Cooking|a stew*,carried|carry|carries|Carrying|heavy~_boxes*,visited|visit|visits|Visiting|the island*,
    painted|paint|paints|Painting|portraits*,fixed|fix|fixes|Fixing|the engine*,kicked|kick|kicks|Kicking|a ball*,
    planted|plant|plants|Planting|carrots*,followed|follow|follows|Following|the river*,found|find|finds|Finding|a coin*,
    broke|break|breaks|Breaking|the mirror*,studied|study|studies|Studying|physics*,caught|catch|catches|Catching|fish*,
    wrote|write|writes|Writing|a novel*,played|play|plays|Playing|the guitar*,burned|burn|burns|Burning|dry~_wood*""",
    MEASURE: """locked|lock|locks|Locking|the door*,washed|wash|washes|Washing|the clothes*,bought|buy|buys|Buying|new~_carpets*,
    baked|bake|bakes|Baking|a pie*,pulled|pull|pulls|Pulling|a cart*,explored|explore|explores|Exploring|the cave*,
    drew|draw|draws|Drawing|maps*,repaired|repair|repairs|Repairing|the clock*,threw|throw|throws|Throwing|a stone*,
    watered|water|waters|Watering|the flowers*,crossed|cross|crosses|Crossing|the bridge*,lost|lose|loses|Losing|a ring*,
    tore|tear|tears|Tearing|the curtain*,taught|teach|teaches|Teaching|history*,hunted|hunt|hunts|Hunting|deer*,
    read|read|reads|Reading|a poem*,practised|practise|practises|Practising|the piano*,drank|drink|drinks|Drinking|cold~_milk*""",
}  # fmt: skip
PEOPLE = {
    FIT: "teacher teachers,doctor doctors,farmer farmers,singer singers,neighbour neighbours,lawyer lawyers,nurse nurses,"
    "driver drivers,baker bakers,student students,manager managers,boy boys",
    MEASURE: "plumber plumbers,artist artists,dentist dentists,waiter waiters,tailor tailors,soldier soldiers,"
    "tourist tourists,librarian librarians,mechanic mechanics,reporter reporters,judge judges,girl girls",
}
NAMES = {
    FIT: "Anna f,Mark m,Aisha f,Diego m,Mei f,Ivan m,Priya f,Kofi m,Sofia f,Ahmed m,Lucy f,Kenji m",
    MEASURE: "Maria f,Paul m,Zainab f,Carlos m,Yuki f,Boris m,Ananya f,Kwame m,Elena f,Hassan m,Emily f,Takeshi m",
}
THINGS = {  # things, and what each does alone
    FIT: "letter arrived,cake tasted_good,car stopped,plan failed,shirt shrank,boat sank,bag fell,lamp glowed,chair broke,"
    "cheese melted,phone rang,tent collapsed",
    MEASURE: "parcel vanished,soup smelled_bad,bus waited,idea worked,jacket faded,raft drifted,box burst,candle flickered,"
    "table shook,butter dripped,alarm sounded,wall cracked",
}
MADE = {FIT: "bought sold wanted needed", MEASURE: "chose ordered borrowed described"}
PARTICIPLES = {
    FIT: "tired worried smiling retired laughing wounded trained sleeping frightened dancing",
    MEASURE: "exhausted excited shouting respected whistling injured experienced dreaming surprised kneeling",
}
ADJECTIVES = {FIT: "old young tall kind", MEASURE: "rich poor short brave"}
PLACES = {
    FIT: "in|the garden*,at|the station*,near|the church*,under|the tree*",
    MEASURE: "behind|the school*,on|the beach*,beside|the road*,in|the hotel*",
}
ANIMALS = {FIT: "dog cat horse rabbit", MEASURE: "parrot goat hamster donkey"}
EFFECTS = {  # what an activity does: third person, base, object
    FIT: "takes|take|time*,tires|tire|people*,pleases|please|Anna*,helps|help|the family*,annoys|annoy|the teacher*",
    MEASURE: "costs|cost|money*,calms|calm|children*,bores|bore|Maria*,improves|improve|the mood*,worries|worry|the judge*",
}


class Words:
    """Draws the words of one sentence; no noun twice."""

    def __init__(self, part: str, rng: random.Random) -> None:
        self.part, self.rng, self.used, self.last = part, rng, set[str](), ""

    def draw(self, table: dict[str, str], sign: str | None = None) -> str:
        """Return an entry of a table that this sentence does not have yet."""
        entries = [entry for entry in table[self.part].split(sign) if entry not in self.used]
        entry = self.rng.choice(entries)
        self.used.add(entry)
        self.last = entry.strip()
        return self.last

    def person(self) -> tuple[str, str]:
        """Return a person's noun: singular, plural."""
        singular, plural = self.draw(PEOPLE, ",").split()
        return singular, plural

    def name(self, gender: str = "") -> tuple[str, str]:
        """Return a name and its gender."""
        while True:
            name, kind = self.draw(NAMES, ",").split()
            if kind == (gender or kind):
                return name, kind

    def action(self) -> tuple[str, str, str, str, str]:
        """Return past, base, third person and gerund of a verb, and its object with {} for the verb."""
        past, base, third, gerund, thing = self.draw(ACTIONS, ",").split("|")
        return past, base, third, gerund, thing

    def place(self) -> str:
        """Return a place with {} for the verb."""
        preposition, phrase = self.draw(PLACES, ",").split("|")
        return f"{preposition}[g {{}}] {phrase}"

    def one(self, *choices: str) -> str:
        """Return one of the choices."""
        return self.rng.choice(choices)


def plural_possessive(w: Words) -> str:
    """Write "The boys' teacher opened the window ."."""
    owner, (single, several) = w.person()[1], w.person()
    past, base, third, _, thing = w.action()
    start = w.one("The", "My", "Our", "Those", "These two", "Some")
    adjective = f"{w.draw(ADJECTIVES)}~ " if w.rng.random() < 0.3 else ""
    shape = w.rng.randrange(6 if w.part == MEASURE else 4)
    if shape == 0:
        return f"{start} {owner}'* {adjective}{single}* {past}[s {single}] {thing}[o {past}] ."
    if shape == 1:
        return f"{start} {owner}'* {adjective}{single}* {third}[s {single}] {thing}[o {third}] ."
    if shape == 2:
        return f"{start} {owner}'* {adjective}{several}* {past}[s {several}] {thing}[o {past}] ."
    if shape == 3:
        return f"{start} {owner}'* {w.draw(ANIMALS)}* ran[s {w.last}] away ."
    if shape == 4:
        return f"{start} {owner}'* {adjective}{single}* will {base}[s {single}] {thing}[o {base}] {w.place().format(base)} ."
    name = w.name()[0]
    return f"{name}* met[s {name}] {start.lower()} {owner}'* {adjective}{single}*[o met] ."


def object_question(w: Words) -> str:
    """Write "Who did the teacher visit ?"."""
    single, several = w.person()
    name = w.name()[0]
    who, singular = w.rng.choice([(f"the {single}*", True), (f"the {several}*", False), (f"{name}*", True)])
    head = who.replace("*", "").split()[-1]
    base = w.draw(ASKED)
    asks = w.one("Who", "What", f"Which {w.draw(THINGS, ',').split()[0]}*", f"Which {w.person()[1]}*", "Whom")
    helper = w.one("did", "will", "does" if singular else "do", "can", "should")
    tail = w.one("", "", " yesterday" if helper == "did" else " today", f" {w.place().format(base)}")
    return f"{asks} {helper} {who} {base}[s {head}]{tail} ?"


ASKED = {FIT: "visit see follow call draw invite describe", MEASURE: "meet watch help paint hear choose forget"}


def gerund_subject(w: Words) -> str:
    """Write "Cleaning the kitchen takes time ."."""
    _, _, _, gerund, thing = w.action()
    third, base, effect = w.draw(EFFECTS, ",").split("|")
    start = f"{gerund} {thing}[o {gerund}]"
    if w.rng.random() < 0.3:
        start += f" {w.place().format(gerund)}"
    shape = w.rng.randrange(4 if w.part == MEASURE else 3)
    if shape == 0:
        return f"{start} {third}[s {gerund}] {effect}[o {third}] ."
    if shape == 1:
        return f"{start} will {base}[s {gerund}] {effect}[o {base}] ."
    if shape == 2:
        return f"{start} is[s {gerund}] {w.one('fun', 'hard', 'easy')}[a {gerund}] ."
    return f"{start} every day* {third}[s {gerund}] {effect}[o {third}] ."


def alternatives(w: Words) -> str:
    """Write "The teacher or a nurse opened the window ." or "Anna opened the window or the gate .": the first is marked."""
    first, second = w.person(), w.person()
    one, other = w.name()[0], w.name()[0]
    past, base, third, _, thing = w.action()
    shape = w.rng.randrange(6 if w.part == MEASURE else 4)
    if shape == 0:
        return f"The {first[0]}* or {w.one('the', 'a')} {second[0]}* {past}[s {first[0]}] {thing}[o {past}] ."
    if shape == 1:
        return f"{one}* or {other}* {w.one('will', 'can', 'must')} {base}[s {one}] {thing}[o {base}] ."
    if shape == 2:
        return f"{one}* or the {second[0]}* {third}[s {one}] {thing}[o {third}] ."
    if shape == 3:
        verb = w.draw(MADE)
        things = [w.draw(THINGS, ",").split()[0] for _ in range(2)]
        return f"{one}* {verb}[s {one}] a {things[0]}*[o {verb}] or a {things[1]}*[o {verb}] ."
    if shape == 4:
        return f"Either the {first[0]}* or {other}* {past}[s {first[0]}] {thing}[o {past}] ."
    return f"Will {one}* or {other}* {base}[s {one}] {thing}[o {base}] ?"


def bare_relative(w: Words) -> str:
    """Write "The letter Anna bought arrived ."."""
    thing, verb = w.draw(THINGS, ",").split(maxsplit=1)
    verb, _, quality = verb.partition("_")
    quality = f" {quality}[a {thing}]" if quality else ""
    made = w.draw(MADE)
    person, several = w.person()
    name = w.name()[0]
    who = w.one(f"{name}*", f"the {person}*", f"my {several}*", "we", "they", "you")
    head = who.replace("*", "").split()[-1]
    shape = w.rng.randrange(4 if w.part == MEASURE else 3)
    start = f"{w.one('The', 'This', 'That')} {thing}* {who} {made}[s {head}]"
    if shape == 0:
        return f"{start} {verb}[s {thing}]{quality} ."
    if shape == 1:
        return f"{start} {w.place().format(made)} {verb}[s {thing}]{quality} ."
    if shape == 2:
        return f"{start} belongs[s {thing}] to[g belongs] {w.name()[0]}* ."
    return f"{start} surprised[s {thing}] the {w.person()[0]}*[o surprised] ."


def participle(w: Words) -> str:
    """Write "The tired teacher opened the window ."."""
    word, (single, several) = w.draw(PARTICIPLES), w.person()
    past, base, third, _, thing = w.action()
    name = w.name()[0]
    shape = w.rng.randrange(6 if w.part == MEASURE else 5)
    if shape == 0:
        return f"The {word}~ {single}* {past}[s {single}] {thing}[o {past}] ."
    if shape == 1:
        return f"{w.one('Two', 'Some', 'The')} {word}~ {several}* {past}[s {several}] {thing}[o {past}] ."
    if shape == 2:
        verb = w.one("saw", "helped", "thanked")
        return f"{name}* {verb}[s {name}] the {word}~ {single}*[o {verb}] ."
    if shape == 3:
        return f"Our {word}~ {single}* will {base}[s {single}] {thing}[o {base}] ."
    if shape == 4:
        return f"{word.capitalize()}~ {several}* {base}[s {several}] {thing}[o {base}] ."
    return f"The {single}* and the {word}~ {w.draw(ANIMALS)}* waited[s {single}][s {w.last}] {w.place().format('waited')} ."


def several_sentences(w: Words) -> str:
    """Write "Anna has a dog . She feeds it .", with two or three sentences."""
    single, several = w.person()
    name, gender = w.name()
    pronoun, own = ("She", "her") if gender == "f" else ("He", "his")
    past, base, third, _, thing = w.action()
    second = w.action()
    animal = w.draw(ANIMALS)
    verb, other_verb = w.draw(MADE), w.draw(MADE)
    shape = w.rng.randrange(7 if w.part == MEASURE else 5)
    if shape == 0:
        return f"{name}* {verb}[s {name}] a {animal}*[o {verb}] . {pronoun}[p {name}] {past}[s {pronoun}] {thing}[o {past}] ."
    if shape == 1:
        return f"{name}* {past}[s {name}] {thing}[o {past}] . The {several}* {second[0]}[s {several}] {second[4]}[o {second[0]}] ."
    if shape == 2:
        return (
            f"The {single}* {verb}[s {single}] a {animal}*[o {verb}] . {name}* {other_verb}[s {name}] "
            f"it[o {other_verb}][p {animal}] ."
        )
    if shape == 3:
        return (
            f"The {several}* {past}[s {several}] {thing}[o {past}] . Then they[p {several}] {second[0]}[s they] "
            f"{second[4]}[o {second[0]}] ."
        )
    if shape == 4:
        return f"{name}* {past}[s {name}] {thing}[o {past}] . {pronoun}[p {name}] lives[s {pronoun}] {w.place().format('lives')} ."
    if shape == 5:
        return (
            f"A {animal}* ran[s {animal}] {w.place().format('ran')} . {name}* {past}[s {name}] {thing}[o {past}] . "
            f"{pronoun}[p {name}] {verb}[s {pronoun}] {own}[p {name}] lunch*[o {verb}] ."
        )
    return (
        f"{name}* {past}[s {name}] {thing}[o {past}] . The {single}* {second[0]}[s {single}] {second[4]}[o {second[0]}] . "
        f"Nobody {verb}[s Nobody] the {w.person()[1]}*[o {verb}] ."
    )


def long_sentence(w: Words) -> str:
    """Write a sentence of five to eight clauses: 40 to 70 words."""
    clauses = [_clause(w) for _ in range(w.rng.randrange(6, 9))]
    joins = [w.one(" , ", " , and ", " , but ", " while ", " , so ", " because ") for _ in clauses[1:]]
    start = w.one("", "When ", "Although ", "Because ")
    if start:
        joins[0] = " , "
    text = start + clauses[0] + "".join(join + clause for join, clause in zip(joins, clauses[1:], strict=True))
    return text[0].upper() + text[1:] + " ."


def _clause(w: Words) -> str:
    adjective = (
        f"{w.draw(ADJECTIVES)}~ " if w.rng.random() < 0.2 and len(w.used & set(ADJECTIVES[w.part].split())) < 3 else ""
    )
    past, base, _, _, thing = w.action()
    single, several = w.person()
    head = w.one(single, several)
    verb, helper = w.rng.choice([(past, ""), (past, ""), (base, "will ")])
    place = (
        f" {w.place().format(verb)}"
        if w.rng.random() < 0.4 and len(w.used & set(PLACES[w.part].split(","))) < 3
        else ""
    )
    return f"{w.one('the', 'the', 'my', 'our')} {adjective}{head}* {helper}{verb}[s {head}] {thing}[o {verb}]{place}"


KINDS: dict[str, Callable[[Words], str]] = {
    "plural possessive": plural_possessive,
    "object question": object_question,
    "gerund subject": gerund_subject,
    "or": alternatives,
    "relative clause without that": bare_relative,
    "participle before a noun": participle,
    "several sentences": several_sentences,
    "long sentence": long_sentence,
}


def written(part: str, kind: str, count: int, seed: int = 0) -> Iterator[str]:
    """Yield `count` different sentences of a kind."""
    rng, lines = random.Random(f"{seed} {part} {kind}"), set[str]()
    while len(lines) < count:
        line = KINDS[kind](Words(part, rng)).replace("_", " ")
        if line not in lines:
            lines.add(line)
            yield line
