"""Align a source and a target by a checkpoint's attention: cross attention of an encoder-decoder, or one text with >>.

A target token is aligned by its own row, the row of the decoder as it reads the token: Shift-Att of Chen et al. 2020
(Accurate Word Alignment Induction from Neural Machine Translation). Earlier work (Garg et al. 2019, Jointly Learning to
Align and Translate with Transformer Models), and Whisper's times, take the row before, which predicts the token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnctl.checks.document_fields import HeadPlace
from attnctl.checks.model_options import RANGES
from attnctl.commands.align.pharaoh import check_words, pharaoh_line, read_gold, score_links
from attnctl.commands.align.result import (
    AUTO_HEADS,
    LISTED_HEADS,
    AlignedLink,
    AlignedText,
    AlignmentHead,
    Link,
    align_heads,
)
from attnctl.errors import UsageError, option_name
from attnctl.layer import LayerAttention
from attnctl.models import NamedKind, kind_of_name, open_named_model
from attnctl.readings import least_sink_share
from attnctl.runtime.arrays import Bools, Floats
from attnctl.source import AlignsTexts, Changes, TextSource, prepare
from attnctl.text import shortened, visible_text
from attnctl.text.tokens import Token, checked_text, unknown_words
from attnctl.trace import PIECES_NOTE, Run, Subject, joined_word, word_groups

if TYPE_CHECKING:
    from attnctl.checks.model_options import OptionValues

MARK = ">>"  # separates source and target in one text


class _Sides(NamedTuple):
    """A text, a model that reads it, and its source and target tokens."""

    source: TextSource
    text: str
    target: str
    end: int  # where the source ends in the text
    spelled: tuple[str, tuple[Token, ...]] | None = (
        None  # a decoder's text, and its tokens with their places in the text
    )
    places: tuple[int | None, ...] = ()  # where each of a decoder's tokens begins in `target`


def align_text(
    text: str,
    model: str | AlignsTexts,
    *,
    heads: str | Sequence[tuple[int, int]] = "auto",
    target: str | None = None,
    words: bool = False,
    gold: str | None = None,
    gold_from: int = 0,
    **how: Any,
) -> AlignedText:
    """Return the source of each token of a target.

    `model` is a checkpoint that is opened, or its name, for which `how` are options of `open_model`; `gold` a file with
    a human's alignment of the words, which are counted from `gold_from`. Raises UsageError for a text or a target without
    tokens, and for heads that do not exist.
    """
    if heads == "named":
        raise UsageError(
            "only Whisper checkpoints name heads; for texts it is auto, or layer.head: 4.2,5.1",
            option="heads",
            value=heads,
        )
    kind = kind_of_name(model) if isinstance(model, str) else model
    if isinstance(kind, NamedKind) and kind.settings is None:
        raise UsageError(f"{kind.name} is not a checkpoint: give one, as its folder or its Hugging Face id")
    between = kind.writes_targets()
    sides = (_two_texts if between else _one_text)(checked_text(text), model, target, how)
    info = sides.source.info
    chosen = () if heads == "auto" else align_heads(heads, info)
    prepared = prepare(sides.source, Changes(words=words))
    rows, targets = _target_rows(sides, prepared.source.tokens, words)
    keys = prepared.key_tokens
    columns = [index for index, token in enumerate(keys) if _within(token, 0, sides.end)]
    sources = tuple(keys[index] for index in columns)
    for side, indexes, given in (("source", columns, sides.text), ("target", rows, sides.target)):
        if not indexes and given.strip() and not between:  # cut off, at what the model reads at most
            count = f"{len(prepared.source.tokens)} tokens of the text"
            raise UsageError(f"{info.name} reads {count}, and none of them is in the {side}: give a shorter text")
        if not indexes:
            how_given = f" with {option_name('target')}" if between and side == "target" else ""
            raise UsageError(f"the {side} has no tokens: give at least one word{how_given}")
    weights, subject = prepared.read(AlignmentReading(rows, columns))
    sinks = _sinks(weights, sources, first=columns[0] == 0, always=bool(info.causal) and not between)
    ranked = ranked_heads(weights, targets, sources, sinks)
    used = chosen or tuple(HeadPlace(place.layer, place.head) for place in ranked[:AUTO_HEADS])
    for place in used:
        if (place.layer, place.head) not in weights:
            head = f"{place.layer}.{place.head}"
            raise UsageError(f"this head of {info.name} has no attention weights", option="heads", value=head)
    mean = np.mean([weights[place.layer, place.head] for place in used], axis=0)  # (targets, sources)
    links = aligned_links(mean, targets, sources, sinks)
    source_words = words_at((_first_letter(token, sides.text) for token in sources), sides.text)
    word_links = linked_words(mean, _target_words(sides, rows, targets), source_words, sinks)
    notes = tuple(note for note in subject.notes if note != PIECES_NOTE)
    notes += tuple(note for side in (subject.tokens, subject.key_tokens or ()) for note in unknown_words(side))
    if sinks:
        names = ", ".join(f"“{visible_text(sources[sink].text)}”" for sink in sinks)
        notes += (f"No link is made to {names}: it takes attention that no token needs (a sink).",)
    if between and target is None and not subject.tokens[-1].special:
        longer = option_name("generate", 2 * len(subject.tokens))
        notes += (f"The target is cut off: {info.name} did not end it, and {longer} lets it write more.",)
    score = None
    if gold is not None:
        (human,) = read_gold(gold, gold_from, 1)
        check_words(human, len(sides.text.split()), len(sides.target.split()), gold, gold_from)
        score = score_links([word_links], [human])
    return AlignedText(
        text=sides.text, target=sides.target, given=target is not None or not between, model=subject.model,
        sources=sources, links=links, weights=mean, pharaoh=pharaoh_line(word_links),
        chosen="given" if chosen else "auto", heads=used, found_heads=ranked[:LISTED_HEADS], sinks=sinks, score=score,
        notes=notes,
    )  # fmt: skip


def _within(token: Token, first: int, end: float = math.inf) -> bool:
    """Return whether a token belongs to the text, between two of its characters: neither special nor white space."""
    if token.special or token.start is None or token.end is None or not token.text.strip():
        return False
    return first <= token.start < token.end <= end


def _one_text(text: str, model: str | AlignsTexts, target: str | None, how: OptionValues) -> _Sides:
    """Return the two sides of a text with >> between them. Raises UsageError without >>, or if there is also a target."""
    name = kind_of_name(model).name if isinstance(model, str) else model.info.name
    advice = f'{name} reads one text: put the target behind the source, as "source {MARK} target"'
    for option, value in (("target", target), ("generate", how.get("generate"))):
        if value is not None:
            raise UsageError(f"is for encoder-decoders, and {advice}", option=option)
    end = text.rfind(MARK)
    if end < 0:
        raise UsageError(f"the text “{shortened(text, 40)}” has no {MARK}, and {advice}")
    opened = open_named_model(model, **how) if isinstance(model, str) else model
    return _Sides(TextSource(opened, text), text[:end], text[end + len(MARK) :], end)


def _two_texts(text: str, model: str | AlignsTexts, target: str | None, how: OptionValues) -> _Sides:
    """Return a source and the decoder's text, by default the model's own. Raises UsageError for an empty text."""
    if target is not None and not target.strip():
        raise UsageError("is empty: give the text that was made from the source", option="target")
    generate = how.get("generate")
    if generate is not None:
        RANGES["generate"].check_value("generate", generate)
    if isinstance(model, str):
        named = open_named_model(model, target=target, **(how if target or generate else how | {"generate": 1}))
        assert isinstance(named, AlignsTexts)  # it writes targets
        model = named
    source = TextSource(model.from_target(target, generate or 0), text)
    spelled = model.spelled_target(source.tokens)
    return _Sides(
        source, text, spelled[0] if target is None else target, len(text), spelled, _places(model, target, spelled)
    )


def _places(model: AlignsTexts, target: str | None, spelled: tuple[str, tuple[Token, ...]]) -> tuple[int | None, ...]:
    """Return where each token of a decoder begins in its target, which may be spelled otherwise than its tokens are."""
    text, tokens = spelled
    own = [_first_letter(token, text) for token in tokens]
    if target is None:
        return tuple(own)
    labels = [token for token in model.target_tokens(target) if token.start != token.end]
    ids, given = [token.id for token in tokens], [token.id for token in labels]
    for first in range(len(ids) - len(given) + 1):
        if ids[first : first + len(given)] == given:
            places = [_first_letter(label, target) for label in labels]
            return (*[None] * first, *places, *[None] * (len(ids) - first - len(given)))
    return tuple(own)


def _first_letter(token: Token, text: str) -> int | None:
    """Return where a token's first character that is not blank stands in its text; None for a token without a place."""
    if token.start is None or token.end is None:
        return None
    covered = text[token.start : token.end]
    return token.start + len(covered) - len(covered.lstrip()) if covered.strip() else None


def _target_rows(sides: _Sides, tokens: Sequence[Token], words: bool) -> tuple[list[list[int]], list[Token]]:
    """Return the rows of each token (or word) of the target, and these tokens; `tokens` are the tokens of the rows."""
    if sides.spelled is None:  # one text: its pieces are merged already
        rows = [index for index, token in enumerate(tokens) if _within(token, sides.end + len(MARK))]
        return [[index] for index in rows], [tokens[index] for index in rows]
    text, placed = sides.spelled
    groups = word_groups(placed, text) if words else [[index] for index in range(len(placed))]
    visible_groups = [group for group in groups if any(_within(placed[index], 0) for index in group)]
    return visible_groups, [joined_word([placed[index] for index in group], text) for group in visible_groups]


def _target_words(sides: _Sides, rows: Sequence[Sequence[int]], targets: Sequence[Token]) -> list[int]:
    """Return the number of the word between blanks of the target in which each of its rows begins."""
    if sides.spelled is None:
        start = sides.end + len(MARK)
        letters = (_first_letter(token, sides.source.text) for token in targets)
        return words_at((None if place is None else place - start for place in letters), sides.target)
    placed = [[sides.places[index] for index in group] for group in rows]
    return words_at((next((place for place in of if place is not None), None) for of in placed), sides.target)


# --- weights of heads -------------------------------------------------------------------------------------------------

HeadWeights = dict[tuple[int, int], Floats]  # (layer, head) → (target tokens, source tokens)


class AlignmentReading:
    """The weights of every head from target tokens to source tokens, and the notes of the run.

    `targets` are the queries of each target token; their weights are averaged. `sources` are keys.
    """

    predicts = False

    def __init__(self, targets: Sequence[Sequence[int]], sources: Sequence[int]) -> None:
        self._rows, self._sources = [row for rows in targets for row in rows], sources
        self._counts = np.array([len(rows) for rows in targets], np.float32)
        self._starts = np.cumsum([0, *map(len, targets)])[:-1]
        self._weights: HeadWeights = {}

    def take(self, layer: LayerAttention) -> None:
        """Keep the weights of a layer's heads."""
        rows = layer.rows_of(self._rows)[..., self._sources]  # (heads, rows, sources)
        summed: Floats = np.add.reduceat(rows, self._starts, axis=1)  # (heads, targets, sources)
        means = summed / self._counts[:, None]
        self._weights |= {(layer.layer, head): of_head for head, of_head in zip(layer.heads, means, strict=True)}

    def value(self, run: Run) -> tuple[HeadWeights, Subject]:
        """Return the weights of all heads, and what they are about."""
        return self._weights, run.subject


def _sinks(weights: HeadWeights, sources: Sequence[Token], *, first: bool, always: bool) -> tuple[int, ...]:
    """Return the source tokens that are sinks: no token has them as its source; () if all would be.

    The first token of a text (`first`: it is that of the source) is one in a causal model `always`, otherwise, like a mark,
    if it has `least_sink_share` or more of the attention of all heads. In a short target a word may rightly have as much.
    """
    shares = np.mean([of_head.mean(axis=0) for of_head in weights.values()], axis=0)  # (sources,)
    least = least_sink_share(np.full(len(sources), 1 / len(sources)), len(next(iter(weights.values()))))  # (sources,)
    taking = (shares >= least).tolist()
    marks = [not any(letter.isalnum() for letter in token.text) for token in sources]
    sinks = [
        index
        for index in range(len(sources))
        if (first and always and index == 0) or (taking[index] and (marks[index] or (first and index == 0)))
    ]
    return tuple(sinks) if len(sinks) < len(sources) else ()


def ranked_heads(
    weights: HeadWeights, targets: Sequence[Token], sources: Sequence[Token], sinks: Sequence[int] = ()
) -> tuple[AlignmentHead, ...]:
    """Return all heads with their scores, best first; neither sinks nor punctuation count: it looks at ends of phrases."""
    rows, columns = _worded(targets), _worded(sources, without=sinks)
    scores = {place: head_score(of_head[rows][:, columns]) for place, of_head in weights.items()}
    return tuple(AlignmentHead(*place, scores[place]) for place in sorted(scores, key=lambda place: -scores[place]))


def _worded(tokens: Sequence[Token], without: Sequence[int] = ()) -> Bools:
    """Return which tokens, without some, have a letter or digit; all of these if none has one → (tokens,)."""
    is_kept = np.isin(np.arange(len(tokens)), without, invert=True)
    has_letter = np.array([any(letter.isalnum() for letter in token.text) for token in tokens]) & is_kept
    return has_letter if has_letter.any() else is_kept


def head_score(weights: Floats) -> float:
    """Return how well a head aligns by its weights (targets, sources): mean maximum × share of distinct sources."""
    distinct = len(set(weights.argmax(axis=1).tolist())) / len(weights)
    return float(weights.max(axis=1).mean()) * distinct


def aligned_links(
    weights: Floats, targets: Iterable[Token], sources: Sequence[Token], sinks: Sequence[int] = ()
) -> tuple[AlignedLink, ...]:
    """Return the largest weight of each row (targets, sources), not that of a sink."""
    best = _without_columns(weights, sinks).argmax(axis=1)
    return tuple(
        AlignedLink(token.text, int(source), sources[source].text, float(row[source]))
        for token, source, row in zip(targets, best, weights, strict=True)
    )


def _without_columns(weights: Floats, columns: Sequence[int]) -> Floats:
    """Return weights (rows, columns) in which some columns are below every weight."""
    kept = weights.copy()
    kept[:, list(columns)] = -1
    return kept


# --- words between blanks ---------------------------------------------------------------------------------------------


def words_at(places: Iterable[int | None], text: str) -> list[int]:
    """Return the number of the word between blanks at each place in a text; without a place, that of the place before."""
    numbers = (
        np.cumsum([not letter.isspace() and (not i or text[i - 1].isspace()) for i, letter in enumerate(text)]) - 1
    )
    words = [0]
    for place in places:
        words.append(words[-1] if place is None else int(numbers[place]))
    return words[1:]


def linked_words(
    weights: Floats, target_words: Sequence[int], source_words: Sequence[int], sinks: Sequence[int] = ()
) -> list[Link]:
    """Return the source word of each target word, by weights of tokens (targets, sources) and the words that these are of.

    Weights are summed over the tokens of a source word, without sinks, and averaged over those of a target word.
    """
    places = [index for index in range(len(source_words)) if index not in sinks]
    names = sorted({source_words[index] for index in places})
    links = []
    for word in dict.fromkeys(target_words):
        mean = weights[[index for index, of in enumerate(target_words) if of == word]].mean(axis=0)  # (sources,)
        sums = [float(sum(mean[index] for index in places if source_words[index] == name)) for name in names]
        links.append((names[int(np.argmax(sums))], word))
    return links
