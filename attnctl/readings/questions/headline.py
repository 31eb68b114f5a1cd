"""The headline of a text: the one link between two words to look at first, the usual role of its head, and its certainty.

If heads of the model were measured to find relations, every link that can be such a relation is a candidate: a layer, a
head, and a query with its largest key. Each has a probability of being right (certainty.py). The most probable link wins,
first among the sure links of pronouns to their antecedents, then among verbs with their subjects and objects, possessives
with their owners, and links of these kinds that are unsure; the other relations come last. Without these ranks the
relations of "the" would win: most of them are right, but they say little.

A checkpoint's measured heads are right less often, and several look for one relation. There a likely link counts as well,
one whose like were right in nine of ten marked sentences; possessives come with the pronouns, since no distance tells whom
they mean; and of links that are equally probable the strongest is shown.

For another checkpoint, and for a text in which no measured head has a likely link that says much, it is a weight that is
larger than its position explains (standing_out.py); if there is none, no head stands out. For other models it is the largest
weight on a token that is neither the query nor a sink.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnctl.layer import LayerTrace
from attnctl.readings.questions.certainty import (
    ANTECEDENT,
    DESCRIBED,
    DETERMINED,
    FAMILIES,
    GOVERNOR,
    OBJECT,
    POSSESSIVE,
    SUBJECT,
    SUBJECT_VERB,
    VERB_OBJECT,
    Certainty,
    Family,
    Sentence,
    certainty_of_model,
    evidence,
)
from attnctl.readings.questions.standing_out import EQUAL_DIGITS, standing_out
from attnctl.text import visible_text
from attnctl.text.tokens import Token
from attnctl.trace import VERB_OF_WORD, Headline, Trace, joined_word, word_groups

if TYPE_CHECKING:
    from attnctl.text import Document


LEAST = 0.6  # a head that is right on this share of held-out sentences bears the relation's name
SINK = 0.5  # a key that takes more than this mean share of the other rows' attention is a sink
LIKELY = 0.5  # a link with a smaller probability is probably wrong
USUALLY_RIGHT = (
    0.9  # of a checkpoint's links, the share of marked ones that was right, from which one is as good as sure
)
CLEAR = 0.25  # a checkpoint's link with a smaller weight is no clear sight, of a pronoun one with less than half of it
FEWEST_KEYS = 3  # keys that a query must see: of two, one has a large weight by chance

# relations of a word to another one; "she" may stand for an earlier "she", and a mark closes one like it
BETWEEN_TWO_WORDS = (SUBJECT, SUBJECT_VERB, OBJECT, VERB_OBJECT, DESCRIBED, DETERMINED, GOVERNOR)
# signs of code, paths and addresses, which no marked sentence has
CODE_SIGN = re.compile(r"[=<>{}\\|^_~`@#*+]|://|(?<=\w)\(")
FEWEST_SIGNS = 2  # in a text that is no prose; one may stand in a sentence

ROLE_OF_RELATION = {"object → verb": VERB_OF_WORD}

MEASURED = "the head was measured to find {role}"
LARGEST = "the largest weight on a token that is neither the query itself nor a sink"
NOTHING = "every large weight is at a distance that its head often looks at, or on a sink or a mark"
NO_OTHER = "no token but the query itself, or a sink, gets attention here"


def headline(
    trace: Trace,
    layer: int | None = None,
    head: int | Collection[int] | None = None,
    query: int | None = None,
) -> Headline | None:
    """Return the link to look at first, within the given layer, heads and query.

    The trace's `positions`, what the position explains of a checkpoint's weights, are read if no measured head has a likely
    link. Without them, the other rows of a text that is long enough tell that. A link with `stands_out` False says nothing
    of the text.
    Return None for a trace without weights, or a query that it does not hold.
    """
    heads = None if head is None else (head,) if isinstance(head, int) else tuple(head)
    parts = [part for part in trace.layers if layer in (None, part.layer) and _has_numbers(part)]
    places = [(part, h) for part in parts for h in part.heads if heads is None or h in heads]
    # the context of a head that is switched off is not used
    places = [(part, h) for part, h in places if h not in trace.model.heads_off_in(part.layer)] or places
    marked, says_enough = _relation_headline(trace, places, query)
    if query is not None and len(places) == 1:  # nothing is left to choose
        part, h = places[0]
        chosen = _largest_of_row(part, h, query)
        if chosen is None or marked is None or marked.key != chosen.key:
            return chosen
        return replace(marked, reason="")
    reads_text = trace.model.nature.is_network and trace.reads_itself and not any(t.is_patch for t in trace.tokens)
    if not says_enough and reads_text and trace.measure is None:
        other = standing_out(trace, places, query)
        if other is not None and (marked is None or other.tells > 0):
            return other.line
        if marked is None:
            largest = _largest_link(trace, places, query)
            return largest and replace(largest, reason=NOTHING, stands_out=False)
    largest = marked or _largest_link(trace, _without_induction(trace, places), query)
    return replace(largest, sure=False) if largest and marked is None and _certainty_of(trace).is_measured else largest


def _has_numbers(part: LayerTrace) -> bool:
    return part.weights is not None and bool(np.isfinite(part.weights).all())


# --- heads that were measured to find a relation -----------------------------------------------------------------


class Candidate(NamedTuple):
    """A link that may be the relation of its head's name, with the evidence for it."""

    family: Family
    layer: int
    head: int
    query: int
    key: int
    weight: float
    role: str
    evidence: dict[str, float]
    tells: bool  # whether both words have a meaning of their own: not "it", not "is"


def measured_roles(figures: Document) -> tuple[tuple[int, int, str], ...] | None:
    """Return (layer, head, role) of the figures in a weights file, the surest first; None if no head is sure.

    Raises KeyError, TypeError, ValueError for a document that holds no figures.
    """
    rows = [row for row in figures.values() if float(row["held_out"]) >= LEAST]
    sure = sorted(rows, key=lambda row: -round(row["held_out"], 2))
    # among equals the first in the file comes first: it is the simpler relation
    roles = (ROLE_OF_RELATION.get(str(row["relation"]), str(row["relation"])) for row in sure)
    return tuple((int(row["layer"]), int(row["head"]), role) for row, role in zip(sure, roles, strict=True)) or None


def candidates(trace: Trace, places: Sequence[tuple[LayerTrace, int]] | None = None) -> Iterator[Candidate]:
    """Yield the links of measured heads that their words allow, in `places` (layer and head; None: the whole trace).

    `key` is an index among the trace's keys: some keys may be left out of it, but the words of all tokens are known.
    """
    roles, keys = trace.model.roles_of_heads(), _own_keys(trace)
    if not roles or keys is None:
        return
    is_network = trace.model.nature.is_network
    words = _words(trace)
    sentence = Sentence([word.token for word in words])
    word_of_query = {word.place: number for number, word in enumerate(words)}
    place_of_key = {token: place for place, token in enumerate(keys)}
    pool = None  # (n_k, words): which keys a word is; None: each key is a word
    if is_network or len(keys) < len(words):
        pool = np.zeros((len(trace.tokens), len(words)), np.float32)
        for number, word in enumerate(words):
            pool[word.pieces, number] = 1
        pool = pool[keys]
    if places is None:
        places = [(part, h) for part in trace.layers for h in part.heads]
    for part, h in places:
        own_roles = roles.get((part.layer, h), ())
        families = [family for family in FAMILIES if any(role.startswith(family.starts) for role in own_roles)]
        if not families:
            continue
        weights = part.head_weights(h)  # (rows, n_k)
        of_words = weights if pool is None else weights @ pool  # (rows, words)
        tokens = range(len(weights)) if part.rows is None else part.rows
        queries = [(row, token, word_of_query[token]) for row, token in enumerate(tokens) if token in word_of_query]
        # the head finds the word with its largest weight, except the query itself
        others = of_words.round(EQUAL_DIGITS)
        others[[row for row, *_ in queries], [query for *_, query in queries]] = -1
        best = others.argmax(axis=1).tolist()
        largest = others.max(axis=1).tolist()
        for family in families:
            relations = [role for role in own_roles if role.startswith(family.starts)]
            for row, token, query in queries:
                key = best[row]
                place = place_of_key.get(words[key].place)
                if place is None or largest[row] <= 0 or not words[key].is_single or not sentence.asks(family, query):
                    continue
                if sentence.small[query] == sentence.small[key] and (is_network or family in BETWEEN_TWO_WORDS):
                    continue  # many heads of a checkpoint look at the same word; "Alice Alice" has no subject
                if sentence.fits(family, query, key):
                    role, whole = sentence.role_name(relations, query, key), of_words[row]  # (words,)
                    link_evidence = evidence(sentence, family, query, key, whole)
                    tells = sentence.has_meaning(query) and sentence.has_meaning(key)
                    yield Candidate(family, part.layer, h, token, place, float(whole[key]), role, link_evidence, tells)


class _Word(NamedTuple):
    """A word of a text: its token, the tokens that it is in pieces, and the one that may be a query or a key."""

    token: Token
    pieces: list[int]
    place: int

    @property
    def is_single(self) -> bool:
        """Return whether the word is one token, so that its weight is that of a link."""
        return len(self.pieces) == 1


def _words(trace: Trace) -> list[_Word]:
    """Return the words of a text: its tokens, or for a checkpoint its tokens joined to words, without special ones."""
    if not trace.model.nature.is_network:
        return [_Word(token, [i], i) for i, token in enumerate(trace.tokens)]
    words = []
    for pieces in word_groups(trace.tokens, trace.text):
        token = joined_word([trace.tokens[i] for i in pieces], trace.text)
        if not token.special and token.start is not None:
            spelling = trace.text[token.start : token.end].strip() or token.text.strip()
            words.append(_Word(Token(spelling, unknown=False), pieces, pieces[0] if len(pieces) == 1 else -1))
    return words


def _own_keys(trace: Trace) -> list[int] | None:
    """Return the number of each key among the text's tokens; None for keys that are another text's."""
    if trace.reads_itself:
        return list(range(len(trace.tokens)))
    return list(trace.key_numbers) if "left-out" in trace.noted else None


def _relation_headline(
    trace: Trace, places: Sequence[tuple[LayerTrace, int]], query: int | None
) -> tuple[Headline | None, bool]:
    """Return the candidate to show, None where no measured head has one; and whether it needs no other link beside it."""
    certainty = _certainty_of(trace)
    links = [link for link in candidates(trace, places) if query in (None, link.query)]
    if not links:
        return None, False
    is_network = trace.model.nature.is_network
    rank, line = max((_judged(link, certainty, is_network) for link in links), key=lambda judged: judged[0])
    # the demo has a head for each relation; of a checkpoint's many heads, one that is probably wrong is no answer
    if is_network and rank.place <= PLACES.index("is probably wrong"):
        return None, False
    return line, rank.place > PLACES.index("an unsure pronoun, subject, object or possessive")


class Rank(NamedTuple):
    """The rank of a link among others: the largest is shown. A later field counts where the earlier ones are equal."""

    place: int  # its number in PLACES
    sure: bool  # of a checkpoint alone: a sure link comes before a likely one
    probability: float  # in hundredths: their own uncertainty is larger
    weight: float  # of a checkpoint alone, in hundredths
    is_subject: bool
    exact_probability: float


# what a link must be to be shown before others, the last first
PLACES = (
    "keeps more for the query itself",
    "is probably wrong",
    "a sure determiner",
    "another sure link",
    "an unsure pronoun, subject, object or possessive",
    "a sure possessive",
    "a sure subject or object",
    "a sure pronoun, or one with a rival of the same kind",
)


def _judged(link: Candidate, certainty: Certainty, is_network: bool) -> tuple[Rank, Headline]:
    """Return the rank of a candidate among others, and the candidate as a headline."""
    probability = certainty.probability(link.family, link.evidence)
    measured = certainty.is_measured
    judged = Headline(
        link.layer,
        link.head,
        link.query,
        link.key,
        link.weight,
        link.role,
        probability if measured else None,
        certainty.is_sure(link.family, probability) and link.weight >= link.evidence["own"] if measured else None,
        MEASURED.format(role=link.role),
    )
    if not (is_network and measured):
        place = PLACES.index(_place(link, judged))
        return Rank(place, False, round(probability, 2), 0.0, link.family is SUBJECT, probability), judged
    place = PLACES.index(_place_in_checkpoint(link, judged, certainty))
    weight = round(link.weight, 2)
    return Rank(place, bool(judged.sure), round(probability, 2), weight, link.family is SUBJECT, probability), judged


def _place(link: Candidate, judged: Headline) -> str:
    """Return which of PLACES a link has: what says more comes first, and a determiner with its noun says least.

    A doubtful pronoun with a rival of the same kind comes first, too, so that the reader sees the doubt.
    """
    *_, wrong, determiner, other, unsure, possessive, verb, pronoun = PLACES
    if link.weight < link.evidence["own"]:
        return PLACES[0]
    sure = judged.sure is not False
    if link.family is ANTECEDENT and (sure or link.evidence["rivals_alike"]):
        return pronoun
    if link.family in (ANTECEDENT, SUBJECT, OBJECT, POSSESSIVE):
        told = {SUBJECT: verb, SUBJECT_VERB: verb, OBJECT: verb, VERB_OBJECT: verb, POSSESSIVE: possessive}
        return told.get(link.family, unsure) if sure else unsure if (judged.probability or 0.0) >= LIKELY else wrong
    return wrong if not sure else determiner if link.family is DETERMINED else other


def _place_in_checkpoint(link: Candidate, judged: Headline, certainty: Certainty) -> str:
    """Return which of PLACES a link of a checkpoint has.

    A verb with a pronoun, or with "is", says less than one with another word: it has the place of a sure possessive.
    """
    own, wrong, _determiner, other, unsure, of_pronoun, verb, pronoun = PLACES
    probability = judged.probability or 0.0
    if link.weight < link.evidence["own"]:
        return own
    if probability < LIKELY:
        return wrong
    if link.family not in (ANTECEDENT, POSSESSIVE, SUBJECT, SUBJECT_VERB, OBJECT, VERB_OBJECT):
        return other
    is_likely = judged.sure or certainty.share_right(link.family, probability) >= USUALLY_RIGHT
    refers = link.family in (ANTECEDENT, POSSESSIVE)
    if not is_likely or link.weight < (CLEAR / 2 if refers else CLEAR):
        return unsure
    if refers:
        return pronoun
    return verb if link.tells else of_pronoun if judged.sure else unsure


def _certainty_of(trace: Trace) -> Certainty:
    """Return the measurement of a trace's model; for a text that it cannot read well, one that calls no link sure."""
    measured = certainty_of_model(trace.model)
    return replace(measured, sure_from={}) if "guess" in trace.noted or _code_signs(trace) else measured


def _code_signs(trace: Trace) -> list[str]:
    """Return the signs of code in a text, an address or a path, if it has several: its words are in no sentence.

    Special tokens, "<|endoftext|>", are none of the text's own.
    """
    text = trace.text
    for token in trace.tokens:
        if token.special and token.start is not None and token.end is not None:
            text = text[: token.start] + " " * (token.end - token.start) + text[token.end :]
    signs = CODE_SIGN.findall(text)
    return signs if len(signs) >= FEWEST_SIGNS else []


def other_headlines(trace: Trace, line: Headline) -> list[Headline]:
    """Return the sure links of other measured heads about subjects and objects, the most probable first, one for a head."""
    certainty = _certainty_of(trace)
    ranked = sorted(
        (_judged(link, certainty, trace.model.nature.is_network) for link in candidates(trace)),
        key=lambda judged: judged[0],
        reverse=True,
    )
    places = {(line.layer, line.head)}
    headlines = []
    least = PLACES.index("a sure possessive")
    for rank, candidate in ranked:
        if rank.place >= least and candidate.sure and (candidate.layer, candidate.head) not in places:
            places.add((candidate.layer, candidate.head))
            headlines.append(candidate)
    return headlines


def doubt_of(trace: Trace, line: Headline) -> str:
    """Return one sentence on why a headline is unsure; empty for a sure headline, and for a model without a measurement."""
    key = trace.key_numbers[line.key]
    if line.sure is not False or "guess" in trace.noted:  # a note says why
        return ""
    if not line.role:
        return "Nothing was measured of this link: no head finds here what it was measured to find."
    words = _words(trace)
    sentence = Sentence([word.token for word in words])
    number_of = {word.place: number for number, word in enumerate(words)}
    query_word, key_word = number_of[line.query], number_of[key]
    family = sentence.family_of(line.role, query_word)
    assert family is not None
    unknown = [visible_text(trace.tokens[i].text) for i in (line.query, key) if trace.tokens[i].unknown]
    rivals = [visible_text(sentence.words[j]) for j in sentence.rivals(family, query_word, key_word)]
    if family is ANTECEDENT and rivals:
        return f"“{visible_text(sentence.words[query_word])}” may stand for “{rivals[-1]}” as well."
    if unknown:
        return f"The model does not know “{'” and “'.join(dict.fromkeys(unknown))}”: it reads only the letters."
    if signs := dict.fromkeys(_code_signs(trace)):
        return f"The text looks like code or an address ({', '.join(signs)}), and sentences were measured."
    right, of = _spoken_share(_certainty_of(trace).share_right(family, line.probability or 0.0))
    needed = "; “sure” needs 99 of 100" if right / of >= USUALLY_RIGHT else ""
    return f"Links like this one were right in {right} of {of} marked sentences{needed}."


def _spoken_share(share: float) -> tuple[int, int]:
    """Return a share as a number of tenths, or of twentieths close to none and to all."""
    return (round(10 * share), 10) if 0.075 <= share < 0.925 else (min(max(round(20 * share), 1), 19), 20)


# --- models without a measurement --------------------------------------------------------------------------------


def _largest_of_row(part: LayerTrace, head: int, query: int) -> Headline | None:
    """Return the largest weight of one row; None if the layer does not hold the row."""
    if part.weights is None:
        return None
    rows = part.rows or range(part.weights.shape[1])
    if query not in rows:
        return None
    row = part.head_weights(head)[rows.index(query)]  # (n_k,)
    key = int(np.argmax(row.round(EQUAL_DIGITS)))
    return Headline(part.layer, head, query, key, float(row[key]))


def _largest_link(trace: Trace, places: Sequence[tuple[LayerTrace, int]], query: int | None) -> Headline | None:
    """Return the largest weight on a token that is neither the query nor a sink; without such a weight, the largest."""
    best: tuple[tuple[bool, float], Headline] | None = None
    special = [j for j, token in enumerate(trace.key_axis) if token.special]
    parked = trace.model.nature.is_network and trace.reads_itself
    own_key = cache(trace.own_key)  # every head has the same queries
    for part, h in places:
        weights = part.head_weights(h).astype(np.float64)  # (rows, n_k)
        queries = list(range(len(weights)) if part.rows is None else part.rows)
        chosen_rows = [row for row, i in enumerate(queries) if query in (None, i)]
        if not chosen_rows:
            continue
        telling = weights > 0
        telling[:, special] = False
        telling[:, : int(parked)] = False  # checkpoints park attention on their first token
        telling[:, _sinks(weights)] = False
        own_keys = [(row, own) for row, i in enumerate(queries) if (own := own_key(i)) is not None]
        telling[tuple(np.array(own_keys, int).reshape(-1, 2).T)] = False
        visible_keys = (
            np.full(len(queries), weights.shape[1]) if part.mask is None else part.mask.sum(axis=1)
        )  # (rows,)
        of_words = np.array([not trace.tokens[i].special for i in queries])  # (rows,)
        of_words &= visible_keys >= min(FEWEST_KEYS, weights.shape[1])
        ranked = np.subtract(weights, 2, out=weights, where=~telling)  # (rows, n_k)
        ranked -= 2.0 * ~of_words[:, None]
        ranked = ranked.round(EQUAL_DIGITS, out=ranked)[chosen_rows]  # (chosen rows, n_k)
        row, key = np.unravel_index(int(np.argmax(ranked)), ranked.shape)
        place = chosen_rows[int(row)]
        i, weight = queries[place], float(part.head_weights(h)[place, key])
        rank = (bool(ranked[row, key] > -1), float(ranked[row, key]))
        reason = LARGEST if rank[0] else NO_OTHER
        if best is None or rank > best[0]:
            best = rank, Headline(part.layer, h, i, int(key), weight, reason=reason)
    return None if best is None else best[1]


def _without_induction(trace: Trace, places: Sequence[tuple[LayerTrace, int]]) -> list[tuple[LayerTrace, int]]:
    """Return the places without induction heads if no word is repeated: such a head has nothing to find then."""
    words = [token.text.lower() for token in trace.tokens]
    roles = trace.model.roles_of_heads()
    idle = (
        [place for place, relations in roles.items() if relations == ("induction",)]
        if len({*words}) == len(words)
        else []
    )
    return [(part, h) for part, h in places if (part.layer, h) not in idle] or list(places)


def _sinks(weights: np.ndarray) -> list[int]:
    """Return the keys that take more than SINK of the other rows' attention on average; none for a text of few rows."""
    rows, n_k = weights.shape
    if rows <= FEWEST_KEYS or rows != n_k:
        return []
    mean_shares = (weights.sum(axis=0) - weights.diagonal()) / (rows - 1)  # (n_k,)
    return np.flatnonzero(mean_shares > SINK).tolist()


WALKED_LAYERS = 2  # a model with more layers shows only those of its headlines by default


def walked_heads(
    trace: Trace,
    any_layer: bool,
    any_head: bool,
    heads: Sequence[int] | None,
    queries: Sequence[int | None],
    alone: bool = False,
) -> tuple[Trace, list[Headline], dict[int, tuple[int, ...]]]:
    """Return the layers to show, the headline of each query, and layer → heads: the chosen ones, or the headlines'.

    `alone`: without a chosen layer, show only those of the headlines, unless several heads are chosen.
    """
    only = trace.layers[0].layer if len(trace.layers) == 1 else None
    lines = [line for query in queries if (line := headline(trace, layer=only, head=heads, query=query)) is not None]
    alone = alone and (any_head or heads is not None and len(heads) == 1)
    if any_layer and lines and (alone or len(trace.layers) > WALKED_LAYERS):
        trace = replace(trace, layers=tuple(trace.layer(layer) for layer in sorted({line.layer for line in lines})))
    heads_of_layer: dict[int, tuple[int, ...]] = {}
    for part in trace.layers:
        if not any_head:
            heads_of_layer[part.layer] = part.heads if heads is None else tuple(heads)
        elif chosen := tuple(sorted({line.head for line in lines if line.layer == part.layer})):
            heads_of_layer[part.layer] = chosen
        else:
            best = headline(trace, layer=part.layer, query=lines[0].query if lines else None)
            heads_of_layer[part.layer] = (best.head,) if best else part.heads[:1]
    return trace, lines, heads_of_layer
