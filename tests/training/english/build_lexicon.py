"""Make `attnctl/training/english/words.txt` again: the words of the grammar, their forms and their classes.

    python tests/training/english/build_lexicon.py WORDNET_DICT NAMES_FOLDER > attnctl/training/english/words.txt

It needs `wordfreq` and `lemminflect`, the files of WordNet (`data.noun`, `index.noun`, …) and the lists of first and last
names of the United States census of 1990 (`dist.female.first`, …). What it writes is sorted, one entry a line.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import lemminflect
import wordfreq

NOUNS, VERBS, ADJECTIVES, ADVERBS, NAMES, SURNAMES = 2900, 1050, 950, 330, 330, 160

LEXNAMES = dict(enumerate((
    "adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition "
    "noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object noun.person "
    "noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape noun.state "
    "noun.substance noun.time verb.body verb.change verb.cognition verb.communication verb.competition "
    "verb.consumption verb.contact verb.creation verb.emotion verb.motion verb.perception verb.possession verb.social "
    "verb.stative verb.weather adj.ppl"
).split()))  # fmt: skip

# the nearest of these above a noun names its class; else its lexicographer file does
ANCHORS = {
    "beverage": "drink", "garment": "clothes", "clothing": "clothes", "footwear": "clothes", "headdress": "clothes",
    "furniture": "furniture", "container": "container", "vehicle": "vehicle", "craft": "vehicle",
    "building": "building", "room": "room", "way": "road", "bridge": "road", "implement": "tool", "tool": "tool",
    "weapon": "weapon", "musical_instrument": "instrument", "machine": "device", "electronic_equipment": "device",
    "electronic_device": "device", "telephone": "device", "computer": "device", "publication": "text",
    "writing": "text", "document": "text", "book": "text", "letter": "text", "body_of_water": "water",
    "geological_formation": "land", "land": "land", "floor_cover": "surface", "fabric": "surface",
    "edible_fruit": "food", "plaything": "toy", "game": "game", "sport": "game", "music": "song", "song": "song",
    "show": "show", "movie": "show", "structure": "building", "city": "place", "country": "place",
    "meal": "meal", "disease": "illness", "illness": "illness", "money": "money", "currency": "money",
    "animal": "animal", "tree": "plant", "flower": "plant", "work": "act", "part": "part",
}  # fmt: skip
BY_FILE = {
    "noun.act": "act", "noun.animal": "animal", "noun.artifact": "thing", "noun.attribute": "quality",
    "noun.body": "body", "noun.cognition": "idea", "noun.communication": "talk", "noun.event": "event",
    "noun.feeling": "feeling", "noun.food": "food", "noun.group": "group", "noun.location": "place",
    "noun.motive": "idea", "noun.object": "land", "noun.person": "person", "noun.phenomenon": "event",
    "noun.plant": "plant", "noun.possession": "money", "noun.process": "event", "noun.quantity": "amount",
    "noun.relation": "idea", "noun.shape": "shape", "noun.state": "state", "noun.substance": "stuff",
    "noun.time": "time", "noun.Tops": "idea",
}  # fmt: skip
# words whose first sense is not the one that people mean, or whose class matters for what is said of them
OWN = {
    "furniture": "chair sofa bed table desk bench couch armchair stool shelf cushion pillow mattress hammock cradle",
    "surface": "mat rug carpet floor blanket grass lawn towel doormat sheet quilt roof ledge wall windowsill porch",
    "container": "suitcase box bag basket drawer cupboard bucket jar bottle cup glass bowl pot backpack barrel chest "
    "crate envelope wallet purse trunk cabinet tin can tank closet fridge safe oven pocket vase plate pan",
    "food": "pizza bread cake apple banana soup cheese rice pasta egg sandwich meat fish chicken salad chocolate cookie "
    "pie potato tomato carrot orange butter honey sugar burger bacon biscuit cereal candy noodle pancake steak onion "
    "croissant sausage pear grape lemon mushroom bean nut toast yogurt cherry strawberry peach",
    "drink": "tea coffee water milk juice wine beer lemonade cocoa soda whiskey cocktail champagne",
    "vehicle": "car bus train truck bicycle bike ship boat plane van taxi tram motorcycle tractor helicopter airplane "
    "ambulance cart wagon scooter",
    "toy": "ball doll kite toy puzzle balloon puppet",
    "sports": "trophy medal prize statue sculpture crown violin piano",
    "device": "phone computer laptop radio television camera clock watch machine engine lamp heater fan printer robot "
    "battery screen alarm",
    "text": "book letter story novel newspaper poem essay magazine article report message diary note recipe email map "
    "contract paper page",
    "clothes": "shirt coat dress hat shoe sock jacket sweater scarf glove boot skirt shorts trousers pants jeans tie "
    "uniform belt sandal",
    "plant": "tree flower rose bush plant daisy tulip oak",
    "road": "road street bridge path tunnel highway lane stairs staircase",
    "tool": "knife hammer saw axe spoon fork pen pencil brush scissors needle key rope ladder shovel screw nail",
    "building": "house hotel shop store school hospital church museum library restaurant cafe castle tower factory "
    "bank barn cottage palace prison station theater",
    "room": "room kitchen bathroom bedroom office garage classroom hall cellar attic",
    "land": "hill mountain field valley beach island desert forest cliff cave garden park",
    "water": "river lake sea pond ocean pool stream",
    "animal": "cat dog mouse horse cow pig sheep goat duck hen rabbit fox wolf bear lion tiger elephant monkey bird "
    "snake frog bee spider squirrel deer puppy kitten turtle donkey camel giraffe lizard parrot pigeon owl eagle",
    "man": "man boy father son brother uncle king husband grandfather nephew prince waiter actor gentleman dad guy "
    "boyfriend grandson policeman monk priest lord sir salesman fisherman",
    "woman": "woman girl mother daughter sister aunt queen wife grandmother niece princess waitress actress lady mom "
    "girlfriend granddaughter nun mum bride",
    "person": "teacher doctor nurse student child baby friend neighbor neighbour driver lawyer judge soldier farmer "
    "baker cook chef pilot captain artist author writer singer dancer painter engineer scientist professor president "
    "minister officer manager boss worker customer guest visitor stranger thief tourist kid parent player coach guard "
    "director editor reporter musician poet carpenter plumber butcher sailor hunter gardener secretary assistant",
    "song": "song",
    "place": "city town village country world street area state",
    "meal": "breakfast lunch dinner supper meal",
}
OWN_CLASS = {word: group for group, words in OWN.items() for word in words.split()}
OWN_CLASS |= {word: "thing" for word in OWN["sports"].split()} | {"violin": "instrument", "piano": "instrument"}
# frequent words that are something else before they are a noun, verb, adjective or adverb
FUNCTION = set(
    "a an the this that these those i you he she it we they me him her us them my your his its our their mine yours hers "
    "ours theirs myself yourself himself herself itself ourselves yourselves themselves who whom whose which what where "
    "when why how and or but nor so yet if because although though while since unless until whether than as not no yes "
    "be is are was were am been being have has had having do does did doing done will would can could shall should may "
    "might must ought in on at by for with about against between into through during before after above below to from "
    "up down out off over under of near behind beside inside outside within without toward towards across along around "
    "among upon beyond despite except per via like all any both each few more most other some such only own same too "
    "very s t just don now then here there again once one two three four five six seven eight nine ten many much every "
    "either neither another several none nobody nothing everybody everything somebody something anybody anything someone "
    "everyone anyone oh ok okay hi hello hey yeah please ex vs etc de la el ma pa ha st th u re ll ve d m o x e b c f g h "
    "j k l n p q r v w y z an".split()
)
TITLES_AND_MONTHS = set(
    "january february march april may june july august september october november december monday tuesday wednesday "
    "thursday friday saturday sunday mr mrs ms dr sir will can art may".split()
)


RUDE = set(
    "fuck fucks fucking fucked fuckin shit ass bitch bullshit dick cock pussy whore slut bastard damn crap fuckin wtf lmao".split()
)


HEADER = """\
# The words of the grammar, their forms and classes: made by tests/training/english/build_lexicon.py.
# Which words: by the frequency list of wordfreq (Robyn Speer and others), CC BY-SA 4.0; this list of words is under that licence.
# Forms: LemmInflect (Brad Jascob), MIT. First and last names: United States census of 1990, public domain.
# Classes: WordNet 3.1, Copyright 2011 by Princeton University, all rights reserved. THIS SOFTWARE AND DATABASE IS PROVIDED
# \"AS IS\" AND PRINCETON UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES, EXPRESS OR IMPLIED.
"""

PLURAL_ONLY = ("scissors", "trousers", "pants", "jeans", "shorts", "stairs", "thanks", "clothes")


class WordNet:
    """Lemmas, tag counts, lexicographer files and hypernyms, as the files say them."""

    def __init__(self, folder: Path) -> None:
        self.data: dict[str, dict[str, str]] = {}
        self.index: dict[str, dict[str, list[str]]] = {}
        for pos in ("noun", "verb", "adj", "adv"):
            rows = [
                x for x in (folder / f"data.{pos}").read_text(encoding="utf-8").splitlines() if not x.startswith("  ")
            ]
            self.data[pos] = {row[:8]: row for row in rows}
            self.index[pos] = {}
            for row in (folder / f"index.{pos}").read_text(encoding="utf-8").splitlines():
                if not row.startswith("  "):
                    parts = row.split()
                    self.index[pos][parts[0]] = parts[-int(parts[2]) :]
        self.tags: dict[str, dict[str, int]] = {pos: defaultdict(int) for pos in self.data}
        kinds = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
        for row in (folder / "index.sense").read_text(encoding="utf-8").splitlines():
            key, _, _, count = row.split()
            lemma, _, rest = key.partition("%")
            self.tags[kinds[rest[0]]][lemma] += int(count)

    def lexname(self, pos: str, offset: str) -> str:
        return LEXNAMES[int(self.data[pos][offset][9:11])]

    def words(self, pos: str, offset: str) -> list[str]:
        parts = self.data[pos][offset].split("|")[0].split()
        return [parts[4 + 2 * at].lower() for at in range(int(parts[3], 16))]

    def cased(self, lemma: str) -> str:
        """The noun as its first sense writes it: London, cat."""
        parts = self.data["noun"][self.index["noun"][lemma][0]].split("|")[0].split()
        return next(part for part in parts[4 : 4 + 2 * int(parts[3], 16) : 2] if part.lower() == lemma)

    def above(self, offset: str) -> list[str]:
        """The chain of hypernyms, nearest first."""
        chain = [offset]
        while True:
            parts = self.data["noun"][chain[-1]].split("|")[0].split()
            up = [parts[at + 1] for at, part in enumerate(parts) if part in ("@", "@i") and at > 4]
            if not up or len(chain) > 25:
                return chain
            chain.append(up[0])

    def noun_class(self, lemma: str) -> str:
        if lemma in OWN_CLASS:
            return OWN_CLASS[lemma]
        offset = self.index["noun"][lemma][0]
        own = self.lexname("noun", offset)
        if own in (
            "noun.artifact",
            "noun.communication",
            "noun.food",
            "noun.object",
            "noun.act",
            "noun.state",
            "noun.possession",
            "noun.location",
        ):
            for step in self.above(offset)[:8]:
                for word in self.words("noun", step):
                    if word in ANCHORS:
                        return ANCHORS[word]
        return BY_FILE[own]

    def verb_class(self, lemma: str) -> str:
        return self.lexname("verb", self.index["verb"][lemma][0]).removeprefix("verb.")

    def frames(self, lemma: str) -> set[int]:
        found: set[int] = set()
        for offset in self.index["verb"][lemma][:2]:
            row = self.data["verb"][offset].split("|")[0]
            found |= {int(f) for f in re.findall(r"\+ (\d\d) 00", row)}
        return found


def share(wordnet: WordNet, lemma: str, pos: str) -> float:
    total = sum(wordnet.tags[p][lemma] + 0.1 * (lemma in wordnet.index[p]) for p in wordnet.tags)
    return (wordnet.tags[pos][lemma] + 0.1 * (lemma in wordnet.index[pos])) / total if total else 0.0


def inflect(lemma: str, tag: str) -> str:
    forms = [form for form in lemminflect.getInflection(lemma, tag=tag) if tag != "NNS" or form != lemma]
    return max(forms, key=lambda form: wordfreq.zipf_frequency(form, "en")) if forms else ""


def names(folder: Path, file: str, count: int, taken: set[str]) -> list[str]:
    found = []
    for row in (folder / file).read_text().splitlines():
        name = row.split()[0].capitalize()
        if name.lower() not in taken:
            found.append(name)
        if len(found) == count:
            break
    return found


def main(dictionary: str, people: str) -> None:
    wordnet = WordNet(Path(dictionary))
    frequent = [w for w in wordfreq.top_n_list("en", 30000) if re.fullmatch(r"[a-z]+", w) and len(w) > 1]
    rank = {word: at for at, word in enumerate(frequent)}
    lemmas: dict[str, list[str]] = {pos: [] for pos in wordnet.index}
    tag_of = {"noun": "NOUN", "verb": "VERB", "adj": "ADJ", "adv": "ADV"}
    wanted = {"noun": NOUNS, "verb": VERBS, "adj": ADJECTIVES, "adv": ADVERBS}
    own = [w for words in OWN.values() for w in words.split()]
    for at, word in enumerate(own + frequent):
        if word in FUNCTION or word in TITLES_AND_MONTHS:
            continue
        for pos, tag in tag_of.items():
            for lemma in lemminflect.getAllLemmas(word, upos=tag).get(tag, ()) or (word,):
                known = lemma in wordnet.index[pos] and lemma not in lemmas[pos] and lemma not in FUNCTION
                if word in RUDE or (pos == "noun" and word.endswith("ing") and wordnet.tags[pos][lemma] < 5):
                    continue
                least = 0.25 if pos == "noun" else 0.2
                chosen = at < len(own) and pos == "noun"
                fits = chosen or (at >= len(own) and share(wordnet, lemma, pos) >= least)
                if known and fits and len(lemmas[pos]) < wanted[pos] and len(lemma) > 1:
                    lemmas[pos].append(lemma)
    out: list[str] = []
    for noun in lemmas["noun"]:
        plural = inflect(noun, "NNS") or noun
        mass = (
            noun not in OWN_CLASS and wordfreq.zipf_frequency(plural, "en") < wordfreq.zipf_frequency(noun, "en") - 1.7
        )
        if noun in (
            "water",
            "milk",
            "tea",
            "coffee",
            "bread",
            "cheese",
            "rice",
            "pasta",
            "meat",
            "butter",
            "honey",
            "sugar",
            "beer",
            "wine",
            "juice",
            "grass",
            "lemonade",
            "bacon",
            "soda",
            "cocoa",
            "toast",
            "whiskey",
            "champagne",
        ):
            mass = True
        if noun + "s" in PLURAL_ONLY:
            continue
        if noun in PLURAL_ONLY:
            plural, mass = noun, False
        if plural == noun and noun not in (
            "sheep",
            "fish",
            "deer",
            "species",
            "series",
            "scissors",
            "trousers",
            "pants",
            "jeans",
            "shorts",
            "stairs",
        ):
            mass = True
        if noun not in OWN_CLASS and (cased := wordnet.cased(noun)) != noun:
            out.append(f"proper {cased} {wordnet.noun_class(noun)}")
            continue
        out.append(f"noun {noun} {'-' if mass else plural} {wordnet.noun_class(noun)}")
    for verb in lemmas["verb"]:
        forms = [inflect(verb, tag) for tag in ("VBZ", "VBD", "VBG", "VBN")]
        if not all(forms):
            continue
        frames = wordnet.frames(verb)
        kinds = "".join(
            letter for letter, some in (
                ("t", {8, 9, 10, 11, 20, 21}), ("i", {1, 2, 3, 22, 23}), ("p", {9, 10, 17, 18, 19, 20, 24, 25, 30, 31}),
                ("d", {14, 15}), ("s", {26, 34}), ("f", {28, 29, 32, 33, 35}),
            ) if frames & some
        )  # fmt: skip
        out.append(f"verb {verb} {' '.join(forms)} {wordnet.verb_class(verb)} {kinds or 'i'}")
    for word in lemmas["adj"]:
        degrees = [inflect(word, tag) for tag in ("JJR", "JJS")]
        known = [form for form in degrees if rank.get(form, 10**6) < 12000]
        out.append(" ".join(["adjective", word, *(known if len(known) == 2 else [])]))
    out += [f"adverb {word}" for word in lemmas["adv"]]
    taken = (FUNCTION | TITLES_AND_MONTHS | set(rank)) - {
        w for w in frequent if max((share(wordnet, w, p) for p in wordnet.tags), default=0) == 0 or all(wordnet.tags[p][w] < 4 for p in wordnet.tags)
    }  # fmt: skip
    taken -= {
        "mark",
        "bill",
        "jack",
        "frank",
        "grace",
        "rose",
        "bob",
        "john",
        "tom",
        "alice",
        "mary",
        "tim",
        "sue",
        "ben",
        "jean",
        "dean",
        "grant",
        "ruth",
    }
    women, men = (names(Path(people), f"dist.{sex}.first", 700, taken) for sex in ("female", "male"))
    both = {n for n in women if n in men}
    place = {n: (women.index(n), men.index(n)) for n in both}
    women = [n for n in women if n not in both or place[n][0] < 0.3 * place[n][1]][:NAMES]
    men = [n for n in men if n not in both or place[n][1] < 0.3 * place[n][0]][:NAMES]
    more = {
        "f": "Zoe Mia Ava Chloe Lily Emily Olivia Sophie Isabella Hannah Nina Lena Lucy Fatima Aisha Yuki Priya Mei Ingrid Zara Noor Leila Sofia Elena Eva Emma Nora Clara Julia Sara Ella Daisy Jane Kate Anna Alice Mary Susan",
        "m": "Liam Noah Ethan Mason Lucas Oliver Jake Max Ali Omar Ahmed Mohamed Hans Ivan Hiro Raj Dmitri Yusuf Tobias Rafael Quentin Felix Leo Tom Tim Ben Bob Bill Jim Sam Jack Peter Paul John Mark David Oscar Henry Adam Carl Harry",
    }
    women += [n for n in more["f"].split() if n not in women and n not in men]
    men += [n for n in more["m"].split() if n not in men and n not in women]
    out += [f"name {n} f" for n in sorted(set(women))] + [f"name {n} m" for n in sorted(set(men))]
    last = [n for n in names(Path(people), "dist.all.last", 400, TITLES_AND_MONTHS) if n not in women and n not in men][
        :SURNAMES
    ]
    out += [f"surname {n}" for n in sorted(last)]
    covered = set(FUNCTION) | TITLES_AND_MONTHS
    for row in out:
        covered |= {w.lower() for w in row.split()[1:6]}
    rest = [w for w in wordfreq.top_n_list("en", 5200) if w not in covered | RUDE and re.fullmatch(r"[a-z]+", w)]
    out += [f"other {w}" for w in rest]
    print(HEADER + "\n".join(out))


if __name__ == "__main__":
    main(*sys.argv[1:3])
