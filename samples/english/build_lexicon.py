"""Make `samples/english/words.txt` again: the words of the grammar, their forms and their classes.

    python samples/english/build_lexicon.py WORDNET_DICT NAMES_FOLDER > samples/english/words.txt

It needs `wordfreq`, `lemminflect` and `faker` (its lists of given names), the files of WordNet (`data.noun`, `index.noun`, …)
and the list of last names of the United States census of 1990 (`dist.all.last`). What it writes is one entry a line, the
commonest of each kind first.
"""

from __future__ import annotations

import importlib
import re
import sys
import unicodedata
from collections import defaultdict
from pathlib import Path

import lemminflect
import wordfreq

NOUNS, PROPER, VERBS, ADJECTIVES, ADVERBS, NAMES, SURNAMES = 8240, 430, 1890, 2000, 600, 4050, 160

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
    "boyfriend grandson policeman monk priest lord sir salesman fisherman "
    "grandpa granddad grandad stepfather stepson godfather lad bloke butler groom landlord hero wizard monk postman policeman",
    "woman": "woman girl mother daughter sister aunt queen wife grandmother niece princess waitress actress lady mom "
    "girlfriend granddaughter nun mum bride "
    "grandma granny grandmom stepmother stepdaughter godmother lass heroine witch landlady widow bridesmaid ballerina duchess",
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


# words of every day that are rarer in print than they are at home
EVERYDAY = (
    "saucepan napkin mop raincoat pajamas hairbrush stapler eraser blackboard seesaw sandbox skateboard receptionist postman "
    "hairdresser zucchini grapefruit omelette brownie hedgehog wasp dragonfly granddad stepmother embroider mop dust sneeze yawn "
    "giggle snore tickle text type grumpy cheerful cloudy foggy snowy granny nanny babysitter toddler schoolboy schoolgirl "
    "classmate playmate roommate landlady shopkeeper greengrocer florist gardener lifeguard beekeeper shepherd chimney doorbell "
    "doorstep driveway lawnmower wheelbarrow bookshelf bookcase armchair footstool nightstand bathtub washbasin faucet dishwasher "
    "toaster teapot teacup teaspoon tablecloth lunchbox corkscrew spatula ladle sieve colander thermos flask jug pitcher mug "
    "saucer platter tray pantry larder attic cellar balcony porch patio fence hedge shed greenhouse mailbox letterbox parcel "
    "postcard envelope notepad crayon paintbrush sharpener schoolbag satchel rucksack handbag zipper button sleeve mitten earmuffs "
    "sunglasses swimsuit bathrobe nightgown slipper sneaker trainer moccasin raisin walnut hazelnut almond pistachio apricot "
    "blueberry raspberry blackberry gooseberry radish celery leek lentil chickpea cauliflower broccoli asparagus artichoke parsley "
    "basil thyme rosemary cinnamon ginger vanilla syrup marmalade porridge cornflakes noodle dumpling meatball lasagna risotto "
    "stew casserole gravy custard pudding lollipop popsicle marshmallow gingerbread bagel pretzel baguette sourdough hamster "
    "gerbil guinea canary budgie goldfish tadpole ladybug caterpillar beetle grasshopper cricket moth worm snail slug sparrow robin "
    "blackbird magpie seagull peacock flamingo penguin walrus otter beaver badger raccoon skunk mole lamb calf foal piglet chick "
    "gosling lullaby trombone flute clarinet cello accordion tambourine marble jigsaw kite seesaw trampoline hopscotch checkers "
    "dominoes backgammon badminton sled snowman snowball icicle puddle drizzle hailstorm breeze sunrise sunset rainbow picnic "
    "campfire sleepover bedtime birthday wedding honeymoon anniversary whisk knead peel mash sprinkle simmer rinse scrub wipe sweep "
    "vacuum iron knit crochet mend darn unpack unzip unlock unwrap babysit tiptoe wander stroll limp crawl gallop trot paddle row "
    "dive splash float whistle hum mumble whisper yell scold nag tease cheer applaud pout frown shiver blush wink nod shrug cuddle "
    "pat hug lick nibble chew gulp sip munch slurp squeak growl purr meow bark chirp quack moo neigh hoot sleepy drowsy "
    "chatty bossy picky fussy moody naughty clumsy messy tidy dusty greasy crumbly crispy chewy mushy fuzzy furry fluffy "
    "slimy scratchy squeaky wobbly shabby ragged chubby skinny freckled bearded barefoot homesick seasick thirsty starving "
    "soaked drenched chilly frosty breezy stormy muggy sunburned politely rudely clumsily noisily lazily greedily happily "
    "sadly angrily nervously proudly shyly bravely gently softly loudly patiently secretly upstairs downstairs indoors outdoors"
).split()
RUDE = set(
    "fuck fucks fucking fucked fuckin shit ass bitch bullshit dick cock pussy whore slut bastard damn crap fuckin wtf lmao "
    "faggot fag negro nigger nigga retard retarded gypsy oriental erotic porn cunt tit tits rape rapist slave sex sexual".split()
)


HEADER = """\
# The words of the grammar, their forms and classes: made by samples/english/build_lexicon.py.
# Which words: by the frequency list of wordfreq (Robyn Speer and others), CC BY-SA 4.0; this list of words is under that licence.
# Forms: LemmInflect (Brad Jascob), MIT. Given names: Faker (Daniele Faraglia and others), MIT, those of other scripts in Latin
# letters, and some more by hand. Last names: United States census of 1990, public domain.
# Classes: WordNet 3.1, Copyright 2011 by Princeton University, all rights reserved. THIS SOFTWARE AND DATABASE IS PROVIDED
# \"AS IS\" AND PRINCETON UNIVERSITY MAKES NO REPRESENTATIONS OR WARRANTIES, EXPRESS OR IMPLIED.
"""

PLURAL_ONLY = ("scissors", "trousers", "pants", "jeans", "shorts", "stairs", "thanks", "clothes")


class WordNet:
    """Lemmas, tag counts, lexicographer files and hypernyms of WordNet's files."""

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
            lemma, _, sense = key.partition("%")
            self.tags[kinds[sense[0]]][lemma] += int(count)

    def lexname(self, pos: str, offset: str) -> str:
        return LEXNAMES[int(self.data[pos][offset][9:11])]

    def words(self, pos: str, offset: str) -> list[str]:
        parts = self.data[pos][offset].split("|")[0].split()
        return [parts[4 + 2 * index].lower() for index in range(int(parts[3], 16))]

    def cased(self, lemma: str) -> str:
        """Return the noun in the spelling of its first sense: London, cat."""
        parts = self.data["noun"][self.index["noun"][lemma][0]].split("|")[0].split()
        return next(part for part in parts[4 : 4 + 2 * int(parts[3], 16) : 2] if part.lower() == lemma)

    def above(self, offset: str) -> list[str]:
        """Return the chain of hypernyms, nearest first."""
        chain = [offset]
        while True:
            parts = self.data["noun"][chain[-1]].split("|")[0].split()
            up = [parts[index + 1] for index, part in enumerate(parts) if part in ("@", "@i") and index > 4]
            if not up or len(chain) > 25:
                return chain
            chain.append(up[0])

    def noun_class(self, lemma: str) -> str:
        if lemma in OWN_CLASS:
            return OWN_CLASS[lemma]
        offset = self.index["noun"][lemma][0]
        file_name = self.lexname("noun", offset)
        if file_name in (
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
        return BY_FILE[file_name]

    def verb_class(self, lemma: str) -> str:
        return self.lexname("verb", self.index["verb"][lemma][0]).removeprefix("verb.")

    def frames(self, lemma: str) -> set[int]:
        numbers: set[int] = set()
        for offset in self.index["verb"][lemma][:2]:
            row = self.data["verb"][offset].split("|")[0]
            numbers |= {int(f) for f in re.findall(r"\+ (\d\d) 00", row)}
        return numbers


def share(wordnet: WordNet, lemma: str, pos: str) -> float:
    total = sum(wordnet.tags[p][lemma] + 0.1 * (lemma in wordnet.index[p]) for p in wordnet.tags)
    return (wordnet.tags[pos][lemma] + 0.1 * (lemma in wordnet.index[pos])) / total if total else 0.0


def inflect(lemma: str, tag: str) -> str:
    forms = [form for form in lemminflect.getInflection(lemma, tag=tag) if tag != "NNS" or form != lemma]
    forms = [form for form in forms if re.fullmatch("[a-z]+", form)]
    return max(forms, key=lambda form: wordfreq.zipf_frequency(form, "en")) if forms else ""


def last_names(folder: Path, count: int, used: set[str]) -> list[str]:
    rows = (folder / "dist.all.last").read_text().splitlines()
    names = [row.split()[0].capitalize() for row in rows[: 3 * count]]
    return [name for name in names if name not in used and name.lower() not in used][:count]


# languages → locales of Faker, and how many of their names are taken at most
LOCALES = {
    "English": ("en_US en_GB en_IE en_NZ en", 1520), "Spanish": ("es_ES es_MX es_AR es_CL es_CO", 620),
    "Portuguese": ("pt_BR pt_PT", 240), "French": ("fr_FR fr_CA fr_CH fr_BE", 340), "Italian": ("it_IT", 250),
    "German": ("de_DE de_CH", 320), "Dutch": ("nl_NL", 160), "Scandinavian": ("sv_SE da_DK no_NO is_IS", 290),
    "Finnish": ("fi_FI", 100), "Hungarian": ("hu_HU", 100), "Romanian": ("ro_RO", 110), "Polish": ("pl_PL", 130),
    "Czech, Slovak": ("cs_CZ sk_SK", 160), "South Slavic": ("hr_HR sl_SI bg_BG", 220), "Russian": ("ru_RU uk_UA", 290),
    "Turkish": ("tr_TR az_AZ", 290), "Arabic": ("fr_DZ ha_NG", 180), "Indian": ("en_IN", 670),
    "West African": ("yo_NG ig_NG tw_GH en_NG", 620), "Swahili": ("sw en_KE", 240), "Zulu": ("zu_ZA", 90),
    "Indonesian": ("id_ID", 240), "Japanese": ("ja_JP", 90), "Korean": ("ko_KR", 160), "Chinese": ("zh_TW", 180),
}  # fmt: skip
# common names that those lists lack in Latin letters
MORE_NAMES = {
    "f": "Fatima Aisha Layla Leila Noor Nour Zainab Mariam Maryam Khadija Salma Samira Yasmin Yasmine Huda Amira Rania Dina "
    "Hanan Nadia Rana Lina Farah Jamila Latifa Safiya Sumaya Zahra Hala Maha Reem Rima Soraya Asma Hiba Iman Nawal Malak Aya "
    "Yuki Yumi Sakura Akiko Keiko Haruka Naomi Emi Hana Aoi Yui Rin Mika Miyuki Kaori Tomoko Yoko Michiko Sachiko Ayumi Mei "
    "Noriko Chiyo Kiko Natsuki Misaki Mio Reiko Etsuko Li-Na Xiu Ying Fang Xiaomei Meiling Ling Hui Jing Xia Yue Hong "
    "Lihua Xiaoling Yun Qian Jia Lili Mingxia Shu Zhen Min-ji Ji-woo Seo-yeon Ji-yeon Soo-jin Eun-ji Hye-jin Ha-eun "
    "Su-bin Yuna Minji Jiwoo Sooyoung Eunji Hyejin Jiyeon Soojin Mina Yeon Sora Linh Thuy Huong Ngoc Mai Trang Hoa Phuong Lan "
    "Ama Abena Akua Yaa Afia Efua Esi Adwoa Akosua Ngozi Chioma Adaeze Amara Ifeoma Nneka Chiamaka Folake Yetunde Funmilayo "
    "Bolanle Titilayo Temitope Aminata Fatou Awa Mariama Kadiatou Oumou Ndeye Adama Hauwa Halima Zuwaira Binta Ife Ebele "
    "Olga Svetlana Natasha Katya Tatiana Irina Ludmila Galina Oksana Anastasia Yelena Yulia Nadezhda Vera Larisa Zofia Milena "
    "Jelena Dragana Ivana Snezana Priya Ananya Deepa Lakshmi Kavita Sunita Anjali Pooja Neha Meera Divya Aditi Shreya Lata Usha "
    "Sofia Lucia Carmen Elena Isabel Pilar Consuelo Guadalupe Ximena Valentina Camila Daniela Gabriela Mariana Paula Ines "
    "Zoe Mia Ava Chloe Lily Emily Olivia Sophie Isabella Hannah Nina Lena Lucy Mei Ingrid Zara Eva Emma Nora Clara Julia Sara "
    "Ella Daisy Jane Kate Anna Alice Mary Susan Rose Grace Ruby Amber Pearl Iris Ivy Violet Holly Dawn "
    "Sue Penny Ruth Jean",
    "m": "Ahmed Mohamed Mohammed Muhammad Omar Ali Hassan Hussein Khalid Tariq Yusuf Youssef Ibrahim Ismail Karim Rashid Samir "
    "Mustafa Mahmoud Bilal Jamal Faisal Abdullah Hamza Nasser Salim Walid Ziad Anwar Amir Imran Hakim Kamal Majid Nabil Rami "
    "Sami Waleed Zaid Fadi Adel Hiroshi Takeshi Kenji Haruto Satoshi Kenta Daiki Yuto Ren Sota Riku Takashi Makoto Shinji "
    "Akira Kazuo Ichiro Jiro Taro Hideo Koji Yoshi Naoki Ryo Daisuke Hiroto Kenichi Masao Shota Tadashi Toshiro Hiro Wei Jun "
    "Jian Feng Chen Bo Ming Qiang Tao Peng Jie Yong Guang Liang Xiaoming Zhiwei Haoran Guowei Jianguo "
    "Weiming Cheng Chao Yichen Min-jun Seo-jun Ji-hoon Hyun-woo Dong-hyun Sung-min Jae-hyun Joon Minjun Jihoon Hyunwoo Donghyun "
    "Sungmin Jaehyun Seojun Young-ho Sang-woo Minho Jinwoo Hyun Seung Minh Tuan Duc Khanh Quang Dung Thanh Hai Long Kwame "
    "Kofi Kojo Kwaku Kwabena Kwasi Yaw Kwesi Ekow Chidi Emeka Obinna Chukwudi Ikenna Uche Nnamdi Chinedu Okechukwu Tunde Segun "
    "Femi Oluwaseun Babatunde Olumide Kayode Ayodele Wale Adewale Sekou Mamadou Ousmane Moussa Cheikh Amadou Ibrahima Boubacar "
    "Modou Lamine Abdou Musa Sani Garba Aliyu Ivan Dmitri Dmitry Boris Vladimir Sergei Sergey Alexei Nikolai Mikhail Yuri Igor "
    "Oleg Viktor Pavel Andrei Anton Maxim Konstantin Stanislav Bogdan Miroslav Zoran Goran Dragan Milan Slobodan Nikola Wojciech "
    "Raj Arjun Sanjay Vijay Rahul Amit Ravi Suresh Ramesh Anil Sunil Rohan Vikram Krishna Ashok Deepak Manoj Rajesh Aditya Kiran "
    "Diego Carlos Javier Miguel Juan Pedro Luis Pablo Alejandro Rodrigo Fernando Santiago Mateo Andres Jorge Ramon Enrique "
    "Liam Noah Ethan Mason Lucas Oliver Jake Max Hans Hiro Tobias Rafael Quentin Felix Leo Tom Tim Ben Bob Bill Jim Sam Jack "
    "Peter Paul John Mark David Oscar Henry Adam Carl Harry Frank Grant Dean Rob Nick Chuck Gene Ray Drew",
}
# read as a word where they begin a sentence
NO_NAMES = set("said long dung semen guy art ate firs fed wale fella spas per else fares acts rebel imam long".split())
_CYRILLIC = dict(zip("абвгдежзийклмнопрстуфхцчшщъыьэюяіїєґ", (
    "a b v g d e zh z i y k l m n o p r s t u f kh ts ch sh shch a y - e yu ya i yi ye g".split()), strict=True))  # fmt: skip
_HANGUL = (
    "g kk n d tt r m b pp s ss - j jj ch k t p h".split(),
    "a ae ya yae eo e yeo ye o wa wae oe yo u wo we wi yu eu ui i".split(),
    "- k k k n n n t l k m l l l p l m p p t t ng t t k t p t".split(),
)


def in_latin_letters(name: str) -> str:
    """Return a name in Latin letters without accents; empty if that is not possible."""
    letters = []
    for letter in name.strip().replace("’", "'").lower():
        syllable = ord(letter) - 0xAC00
        if 0 <= syllable < 11172:
            parts = (syllable // 588, syllable % 588 // 28, syllable % 28)
            letters.append(
                "".join(letters_of_part[index] for letters_of_part, index in zip(_HANGUL, parts, strict=True)).replace(
                    "-", ""
                )
            )
        else:
            letters.append(_CYRILLIC.get(letter, letter).replace("-", "") if letter != "-" else "-")
    plain = unicodedata.normalize("NFKD", "".join(letters)).translate(
        {ord("ı"): "i", ord("ł"): "l", ord("ø"): "o", ord("ə"): "a"}
    )
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    plain = plain.replace("ß", "ss").replace("æ", "ae").replace("đ", "d")
    return plain.capitalize() if re.fullmatch(r"[a-z]{2,}(-[a-z]+)?", plain) else ""


def names_of_locale(locale: str) -> dict[str, set[str]]:
    """Return the given names of a locale of Faker, each with its genders."""
    provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
    sexes: dict[str, set[str]] = defaultdict(set)
    for gender, sex in (("female", "f"), ("male", "m")):
        names = getattr(provider, f"first_romanized_names_{gender}", None) or getattr(provider, f"first_names_{gender}")
        for name in names:
            if plain := in_latin_letters(name):
                sexes[plain].add(sex)
    return sexes


def given_names(used: set[str]) -> list[tuple[str, str]]:
    """Return given names with their usual gender (f, m, or x for both), the most common first; `used` are words."""
    by_hand = {name: sex for sex, words in MORE_NAMES.items() for name in words.split()}
    genders: dict[str, list[str]] = defaultdict(list)  # one entry a locale
    of_language: dict[str, list[str]] = {language: [] for language in LOCALES}
    for language, (locales, _) in LOCALES.items():
        for locale in locales.split():
            for name, sexes in names_of_locale(locale).items():
                genders[name].append("x" if len(sexes) > 1 else min(sexes))
                of_language[language].append(name)

    def commonness(name: str) -> float:
        return len(genders[name]) + 2 * (name in by_hand) + min(3.5, wordfreq.zipf_frequency(name, "en"))

    def usual_gender(name: str) -> str:
        counts = [genders[name].count(sex) for sex in "fm"]
        return (
            "x"
            if max(counts) < 3 * (min(counts) + genders[name].count("x")) or not any(counts)
            else "fm"[counts[1] > counts[0]]
        )

    chosen = dict(by_hand)
    for language, (_, limit) in LOCALES.items():
        candidates = {name for name in of_language[language] if name not in by_hand}
        candidates -= {name for name in candidates if name.lower() in used and len(genders[name]) < 6}
        candidates -= {name for name in candidates if name.lower() in FUNCTION | TITLES_AND_MONTHS | NO_NAMES}
        candidates -= {name for name in candidates if "-" in name and language not in ("Chinese", "Korean")}
        candidates -= {
            name for name in candidates if wordfreq.zipf_frequency(name, "en") > 3.7 and len(genders[name]) < 5
        }
        some_ranked = sorted(candidates, key=lambda name: (-commonness(name), name))
        chosen |= {name: usual_gender(name) for name in some_ranked[:limit]}
    ranked = sorted(chosen, key=lambda name: (-commonness(name), name))[:NAMES]
    return [(name, chosen[name]) for name in ranked]


def main(dictionary: str, people: str) -> None:
    wordnet = WordNet(Path(dictionary))
    frequent = [w for w in wordfreq.top_n_list("en", 60000) if re.fullmatch(r"[a-z]+", w) and len(w) > 1]
    frequent = list(dict.fromkeys([*frequent[:5000], *EVERYDAY, *frequent[5000:]]))
    rank = {word: position for position, word in enumerate(frequent)}
    lemmas: dict[str, list[str]] = {pos: [] for pos in wordnet.index}
    tag_of = {"noun": "NOUN", "verb": "VERB", "adj": "ADJ", "adv": "ADV"}
    limits = {"noun": NOUNS, "verb": VERBS, "adj": ADJECTIVES, "adv": ADVERBS}
    by_hand = [w for words in OWN.values() for w in words.split()]
    for position, word in enumerate(by_hand + frequent):
        if word in FUNCTION or word in TITLES_AND_MONTHS:
            continue
        for pos, tag in tag_of.items():
            for lemma in lemminflect.getAllLemmas(word, upos=tag).get(tag, ()) or (word,):
                is_new = lemma in wordnet.index[pos] and lemma not in lemmas[pos] and lemma not in FUNCTION
                if {word, lemma} & RUDE or (pos == "noun" and word.endswith("ing") and wordnet.tags[pos][lemma] < 5):
                    continue
                minimum = 0.25 if pos == "noun" else 0.2
                chosen = position < len(by_hand) and pos == "noun"
                fits = chosen or (position >= len(by_hand) and share(wordnet, lemma, pos) >= minimum)
                if is_new and fits and len(lemmas[pos]) < limits[pos] and len(lemma) > 1:
                    lemmas[pos].append(lemma)
    out: list[str] = []
    proper: list[str] = []
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
            proper.append(f"proper {cased} {wordnet.noun_class(noun)}")
            continue
        out.append(f"noun {noun} {'-' if mass else plural} {wordnet.noun_class(noun)}")
    out += proper[:PROPER]
    for verb in lemmas["verb"]:
        forms = [inflect(verb, tag) for tag in ("VBZ", "VBD", "VBG", "VBN")]
        if not all(forms):
            continue
        frames = wordnet.frames(verb)
        kinds = "".join(
            letter for letter, choices in (
                ("t", {8, 9, 10, 11, 20, 21}), ("i", {1, 2, 3, 22, 23}), ("p", {9, 10, 17, 18, 19, 20, 24, 25, 30, 31}),
                ("d", {14, 15}), ("s", {26, 34}), ("f", {28, 29, 32, 33, 35}),
            ) if frames & choices
        )  # fmt: skip
        out.append(f"verb {verb} {' '.join(forms)} {wordnet.verb_class(verb)} {kinds or 'i'}")
    for word in lemmas["adj"]:
        degrees = [inflect(word, tag) for tag in ("JJR", "JJS")]
        is_new = [form for form in degrees if rank.get(form, 10**6) < 12000]
        out.append(" ".join(["adjective", word, *(is_new if len(is_new) == 2 else [])]))
    out += [f"adverb {word}" for word in lemmas["adv"]]
    used = {lemma for choices in lemmas.values() for lemma in choices if rank.get(lemma, 0) < 9000} - set(EVERYDAY)
    used -= {lemma for lemma in lemmas["noun"] if wordnet.cased(lemma) != lemma}
    tables = Path("samples/english/tables.txt").read_text(encoding="utf-8")
    unseen = set(re.search(r"\[unseen names\]\n(.*?)\n\[unseen nouns\]", tables, re.S)[1].split())  # type: ignore[index]
    people_known = given_names(used | {name.lower() for name in unseen})
    out += [f"name {name} {sex}" for name, sex in people_known]
    last = last_names(Path(people), SURNAMES, TITLES_AND_MONTHS | {name for name, _ in people_known})
    out += [f"surname {n}" for n in last]
    covered = set(FUNCTION) | TITLES_AND_MONTHS
    for row in out:
        covered |= {w.lower() for w in row.split()[1:6]}
    remaining = [w for w in wordfreq.top_n_list("en", 5200) if w not in covered | RUDE and re.fullmatch(r"[a-z]+", w)]
    out += [f"other {w}" for w in remaining]
    print(HEADER + "\n".join(out))


if __name__ == "__main__":
    main(*sys.argv[1:3])
