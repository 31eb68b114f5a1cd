"""Align a source and a target by a checkpoint's attention: cross attention of an encoder-decoder, or one text with >>.

A target token is aligned by its own row, the row of the decoder as it reads the token: Shift-Att of Chen et al. 2020
(Accurate Word Alignment Induction from Neural Machine Translation). Earlier work (Garg et al. 2019, Jointly Learning to
Align and Translate with Transformer Models), and Whisper's times, take the row before, which predicts the token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnctl.checks.model_options import RANGES
from attnctl.commands.align.result import (
    AUTO_HEADS,
    LISTED_HEADS,
    AlignedLink,
    AlignedText,
    AlignmentHead,
    align_heads,
)
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.layer import LayerAttention
from attnctl.models.huggingface.hub import checkpoint_settings, is_checkpoint
from attnctl.models.huggingface.opening import open_checkpoint, short_name
from attnctl.models.huggingface.tokenizer import Pieces
from attnctl.readings.head_place import HeadPlace
from attnctl.runtime.arrays import Bools, Floats
from attnctl.source import Changes, TextSource, prepare
from attnctl.text import shortened
from attnctl.text.tokens import Token, checked_text, unknown_words
from attnctl.trace import PIECES_NOTE, joined_word, word_groups
from attnctl.trace.run import Run
from attnctl.trace.subject import Subject

if TYPE_CHECKING:
    from attnctl.checks.model_options import OptionValues

MARK = ">>"  # separates source and target in one text
CHARACTER_BYTES = 4  # bytes of the longest character


class _Sides(NamedTuple):
    """A text, a model that reads it, and its source and target tokens."""

    source: TextSource
    text: str
    target: str
    end: int  # where the source ends in the text
    spelled: tuple[str, tuple[Token, ...]] | None = (
        None  # a decoder's text, and its tokens with their places in the text
    )


def align_text(
    text: str, name: str, *, heads: str = "auto", target: str | None = None, words: bool = False, **how: Any
) -> AlignedText:
    """Return the source of each token of a target; `how` are options of `open_checkpoint`.

    Raises UsageError for a text or a target without tokens, and for heads that do not exist.
    """
    if heads == "named":
        raise UsageError(
            "only Whisper checkpoints name heads; for texts it is auto, or layer.head: 4.2,5.1",
            option="heads",
            value=heads,
        )
    if not is_checkpoint(name):
        raise UsageError(f"{short_name(name)} is not a checkpoint: give one, as its folder or its Hugging Face id")
    between = bool(checkpoint_settings(name).get("is_encoder_decoder"))
    sides = (_two_texts if between else _one_text)(checked_text(text), name, target, how)
    info = sides.source.info
    chosen = () if heads == "auto" else align_heads(heads, info)
    prepared = prepare(sides.source, Changes(words=words))
    rows, targets = _target_rows(sides, prepared.source.tokens, words)
    keys = prepared.key_tokens
    columns = [index for index, token in enumerate(keys) if _within(token, 0, sides.end)]
    sources = tuple(keys[index] for index in columns)
    for side, indexes in (("source", columns), ("target", rows)):
        if not indexes:
            how_given = f" with {option_name('target')}" if between and side == "target" else ""
            raise UsageError(f"the {side} has no tokens: give at least one word{how_given}")
    weights, subject = prepared.read(AlignmentReading(rows, columns))
    ranked = ranked_heads(weights, targets, sources)
    used = chosen or tuple(HeadPlace(place.layer, place.head) for place in ranked[:AUTO_HEADS])
    for place in used:
        if (place.layer, place.head) not in weights:
            head = f"{place.layer}.{place.head}"
            raise UsageError(f"this head of {info.name} has no attention weights", option="heads", value=head)
    mean = np.mean([weights[place.layer, place.head] for place in used], axis=0)  # (targets, sources)
    links = aligned_links(mean, targets, sources)
    notes = tuple(note for note in subject.notes if note != PIECES_NOTE)
    notes += tuple(note for side in (subject.tokens, subject.key_tokens or ()) for note in unknown_words(side))
    if between and target is None and not subject.tokens[-1].special:
        longer = option_name("generate", 2 * len(subject.tokens))
        notes += (f"The target is cut off: {info.name} did not end it, and {longer} lets it write more.",)
    return AlignedText(
        text=sides.text, target=sides.target, given=target is not None or not between, model=subject.model,
        sources=sources, links=links, weights=mean, chosen="given" if chosen else "auto", heads=used,
        found_heads=ranked[:LISTED_HEADS], notes=notes,
    )  # fmt: skip


def _within(token: Token, first: int, end: float = math.inf) -> bool:
    """Return whether a token belongs to the text, between two of its characters: neither special nor white space."""
    if token.special or token.start is None or token.end is None or not token.text.strip():
        return False
    return first <= token.start < token.end <= end


def _one_text(text: str, name: str, target: str | None, how: OptionValues) -> _Sides:
    """Return the two sides of a text with >> between them. Raises UsageError without >>, or if there is also a target."""
    advice = f'{short_name(name)} reads one text: put the target behind the source, as "source {MARK} target"'
    for option, value in (("target", target), ("generate", how.get("generate"))):
        if value is not None:
            raise UsageError(f"is for encoder-decoders, and {advice}", option=option)
    end = text.rfind(MARK)
    if end < 0:
        raise UsageError(f"the text “{shortened(text, 40)}” has no {MARK}, and {advice}")
    return _Sides(TextSource(open_checkpoint(name, **how), text), text[:end], text[end + len(MARK) :], end)


def _two_texts(text: str, name: str, target: str | None, how: OptionValues) -> _Sides:
    """Return a source and the decoder's text, by default the model's own. Raises UsageError for an empty text."""
    if target is not None and not target.strip():
        raise UsageError("is empty: give the text that was made from the source", option="target")
    generate = how.get("generate")
    if generate is not None:
        RANGES["generate"].check_value("generate", generate)
    model = open_checkpoint(name, target=target, **(how if target or generate else how | {"generate": 1}))
    if model.kind != "cross":
        raise AttnctlError(f"{model.info.name} attends to source and target in one softmax: it has no cross attention")
    source = TextSource(replace(model, generate=generate or 0), text)  # 0: as long as its generation_config says
    spelled = _spelled(model.pieces, source.tokens)
    return _Sides(source, text, spelled[0] if target is None else target, len(text), spelled)


def _spelled(pieces: Pieces, tokens: Sequence[Token]) -> tuple[str, tuple[Token, ...]]:
    """Return the text that a decoder's tokens spell, and these with their places in it and their words.

    Tokens that are single bytes have the place of their character.
    """
    ids, placed = [token.id or 0 for token in tokens], list[Token]()
    text, length = "", 0
    for count in range(1, len(ids) + 1):
        text = pieces.tokenizer.decode(ids[:count])
        waits = text.endswith("\ufffd") and count - len(placed) < CHARACTER_BYTES
        if not waits or count == len(ids):
            placed += [replace(token, start=length, end=len(text)) for token in tokens[len(placed) : count]]
            length = len(text)
    encoded = pieces.tokens_of_encoding(text, pieces.tokenizer.encode(text, add_special_tokens=False))
    word_at = {character: token.word for token in encoded for character in range(token.start or 0, token.end or 0)}
    for index, token in enumerate(placed):
        start, end = token.start or 0, token.end or 0
        first = start + len(text[start:end]) - len(text[start:end].lstrip())
        placed[index] = replace(token, word=word_at.get(first))
    return text, tuple(placed)


def _target_rows(sides: _Sides, tokens: Sequence[Token], words: bool) -> tuple[list[list[int]], list[Token]]:
    """Return the rows of each token (or word) of the target, and these tokens; `tokens` are the tokens of the rows."""
    if sides.spelled is None:  # one text: its pieces are merged already
        rows = [index for index, token in enumerate(tokens) if _within(token, sides.end + len(MARK))]
        return [[index] for index in rows], [tokens[index] for index in rows]
    text, placed = sides.spelled
    groups = word_groups(placed, text) if words else [[index] for index in range(len(placed))]
    visible_groups = [group for group in groups if any(_within(placed[index], 0) for index in group)]
    return visible_groups, [joined_word([placed[index] for index in group], text) for group in visible_groups]


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


def ranked_heads(weights: HeadWeights, targets: Sequence[Token], sources: Sequence[Token]) -> tuple[AlignmentHead, ...]:
    """Return all heads with their scores, best first; punctuation does not count, since it looks at the ends of phrases."""
    rows, columns = _worded(targets), _worded(sources)
    scores = {place: head_score(of_head[rows][:, columns]) for place, of_head in weights.items()}
    return tuple(AlignmentHead(*place, scores[place]) for place in sorted(scores, key=lambda place: -scores[place]))


def _worded(tokens: Sequence[Token]) -> Bools:
    """Return which tokens have a letter or digit; all of them if none has one → (tokens,)."""
    has_letter = np.array([any(letter.isalnum() for letter in token.text) for token in tokens])
    return has_letter if has_letter.any() else ~has_letter


def head_score(weights: Floats) -> float:
    """Return how well a head aligns by its weights (targets, sources): mean maximum × share of distinct sources."""
    distinct = len(set(weights.argmax(axis=1).tolist())) / len(weights)
    return float(weights.max(axis=1).mean()) * distinct


def aligned_links(weights: Floats, targets: Iterable[Token], sources: Sequence[Token]) -> tuple[AlignedLink, ...]:
    """Return the largest weight of each row (targets, sources)."""
    best = weights.argmax(axis=1)
    return tuple(
        AlignedLink(token.text, int(source), sources[source].text, float(row[source]))
        for token, source, row in zip(targets, best, weights, strict=True)
    )
