"""Measure what the heads of a model find in sentences that training never read: a census of the bundled corpus.

A head finds a relation in a sentence if the largest weight that a word gives to another word goes to the right word. The
head is chosen beforehand, on other sentences. It is compared with an untrained model, and with rules that need no learning:
a head that "finds subjects" may only count positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby, islice
from typing import TYPE_CHECKING

from attnctl.commands.evaluate.counting import count_sentences, tally_shape
from attnctl.commands.evaluate.result import RelationDocument
from attnctl.commands.evaluate.tally import CensusTally, table_of_tally
from attnctl.commands.evaluate.words import HALF, HALVES, UP, AlignedSentence, TreeQuestion, align_words
from attnctl.errors import AttnctlError
from attnctl.formats import ParsedSentence
from attnctl.source import CanBeUntrained
from attnctl.text import english
from attnctl.text.english import HELD_OUT, Link, links_of_word, read_sentences

if TYPE_CHECKING:
    from attnctl.source import Model

TOGETHER = 64  # sentences of one length that share a pass
LEAST_LINKS = 5  # links of a relation that each part of the corpus needs; on fewer, no head can be chosen

NOUNS = ("NOUN", "PRON")
# tags that a relation looks for; other relations look for NOUNS
LOOKED_FOR = {english.OBJECT_VERB: ("VERB",), english.PREPOSITION: ("VERB", *NOUNS)}
OPENING = frozenset('([{“‘"')
RIGHT_KIND = "right kind"  # the tag of these words in a census


def measure_relations(model: Model, *, count: int = 1000, untrained_seed: int = 0) -> list[RelationDocument]:
    """Measure every relation on `count` sentences of each part.

    Raises AttnctlError if the model splits words of the corpus.
    """
    objective = "next-word" if model.info.causal else "masked-word"
    fresh = model.before_training(untrained_seed) if isinstance(model, CanBeUntrained) else None
    tally = _count_parts(model, fresh, [f"{half} {objective}" for half in HALVES], count)
    cases = tally.cases()
    other_cases = _count_parts(model, None, [f"unseen {objective}", "by hand"], count).cases()
    rows = {row.relation: row for row in table_of_tally(tally, "", "", untrained=fresh is not None).relations}
    documents = []
    for relation in (relation for relation in english.GOALS if relation in rows):
        row, unseen_cases = rows[relation], other_cases.get((relation, UP))
        if row.best is None or unseen_cases is None:
            continue
        unseen, by_hand = (int(links) for links in unseen_cases.count_by_half)
        if min(row.best.chosen_on, row.best.scored_on, unseen) < LEAST_LINKS:
            continue
        chosen = (row.best.layer, row.best.head)
        documents.append(
            RelationDocument(
                model=model.info.name,
                relation=relation,
                layer=row.best.layer,
                head=row.best.head,
                validation=float(cases[relation, UP].right[0][chosen]) / row.best.chosen_on,
                held_out=row.best.accuracy,
                unseen=float(unseen_cases.right[0][chosen]) / unseen,
                by_hand=float(unseen_cases.right[1][chosen]) / by_hand if by_hand else None,
                untrained=None if row.untrained is None else row.untrained.accuracy,
                offset=row.rules["offset"].offset or 0,
                by_offset=row.rules["offset"].accuracy,
                by_nearest=row.rules["nearest"].accuracy,
                by_first=row.rules["first"].accuracy,
                links=row.best.scored_on,
                links_by_hand=by_hand,
                goal=english.GOALS[relation],
            )
        )
    return documents


def _count_parts(model: Model, fresh: Model | None, parts: Sequence[str], count: int) -> CensusTally:
    """Count what the heads find in two parts of the corpus, the halves of a census.

    `fresh` is the same model before training; its counts are added beside those of the model.
    """
    tally = CensusTally(tally_shape(model))
    for half, part in zip(HALVES, parts, strict=True):
        blocks = islice(read_sentences(HELD_OUT, part), None if part == "by hand" else count)
        sentences = [sentence for block in blocks if (sentence := _read_sentence(model, block, half)).questions]
        sentences.sort(key=lambda sentence: len(sentence.tokens))
        for _, of_length in groupby(sentences, key=lambda sentence: len(sentence.tokens)):
            while together := list(islice(of_length, TOGETHER)):
                for counted in count_sentences(model, together):
                    tally.merge_tally(counted)
                for counted in count_sentences(fresh, together) if fresh is not None else ():
                    tally.merge_tally(counted.of_untrained())
    return tally


def _read_sentence(model: Model, block: str, half: str) -> AlignedSentence:
    """Return a sentence of the corpus as the model reads it, with a question for each link that the model can see."""
    columns = block.split()
    words, tags = tuple(columns[1::10]), tuple(columns[3::10])
    ends = accumulate((len(word) + 1 for word in words), initial=-1)
    spans = tuple((end + 1, end + 1 + len(word)) for end, word in zip(ends, words, strict=False))
    n = len(words)
    sentence = ParsedSentence(" ".join(words), spans, words, tags, (-1,) * n, ("root",) * n, half=half)
    aligned = align_words(sentence, model.tokenize(sentence.text))
    if aligned.unit_count != n:
        raise AttnctlError(f"{model.info.name} does not split text at words: it cannot be measured on them")
    links = [
        Link(relation, place, key) for place, text in enumerate(columns[8::10]) for relation, key in links_of_word(text)
    ]
    visible = [
        link
        for link in links
        if link.relation in english.GOALS
        # the words that tell what "it" means come after it
        and (not model.info.causal or (link.key < link.query and link.relation != english.MEANING))
    ]
    return replace(aligned, questions=tuple(_question_of(link, sentence) for link in visible))


def _question_of(link: Link, sentence: ParsedSentence) -> TreeQuestion:
    """Return the question of a link, with the answers of the rules that need no learning."""
    places = candidate_places(link.relation, sentence, link.query)
    nearest, first = places[0] == link.key, min(places) == link.key
    return TreeQuestion(link.relation, UP, link.query, link.key, RIGHT_KIND, (nearest,) * 3, first)


def candidate_places(relation: str, sentence: ParsedSentence, query: int) -> Sequence[int]:
    """Return the places of words of the right kind on the relation's side, nearest first; [-1] if there are none."""
    tags, n = LOOKED_FOR.get(relation, NOUNS), len(sentence.forms)
    after, before = range(query + 1, n), range(query - 1, -1, -1)
    if relation == english.DETERMINER:
        sides = [*after]
    elif relation == english.ADJECTIVE:
        sides = sorted([*before, *after], key=lambda place: (abs(place - query), place < query))
    else:
        sides = [*before]
    if relation == english.CLOSING:
        sides = [place for place in sides if sentence.forms[place] in OPENING]
    elif relation != english.INDUCTION:
        sides = [place for place in sides if sentence.tags[place] in tags]
    return sides or [-1]


def treebank_text(count: int, causal: bool = False) -> str:
    """Return `count` sentences to choose heads on and `count` to score them on, as CoNLL-U.

    They are the sentences of `attnctl evaluate`'s own table, for a model that sees both sides, or only what came before
    (`causal`). None was in training.
    """
    sentences = []
    for half in HALVES:
        blocks = read_sentences(HELD_OUT, f"{half} {'next-word' if causal else 'masked-word'}")
        for number, block in enumerate(islice(blocks, count)):
            text = " ".join(block.split()[1::10])
            sentences.append(f"# sent_id = {half}-{number}\n# {HALF} = {half}\n# text = {text}\n{block}\n\n")
    return "".join(sentences)
