"""The trace: every array of a text's attention, its pieces merged into words, and the options of its figure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np

from attnctl.checks.argument_types import (
    check_options,
    check_types,
    checked_selection,
    naming_options,
    plain_number,
    require_type,
)
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer import LayerTrace
from attnctl.text import counted, number_list, quoted_beginning
from attnctl.text.tokens import Token, joins_within_word, word_numbers
from attnctl.trace.model_info import ModelInfo as ModelInfo
from attnctl.trace.run import Prediction
from attnctl.trace.run import Run as Run
from attnctl.trace.run import StopForward as StopForward
from attnctl.trace.subject import HoldsSubject
from attnctl.trace.subject import Subject as Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnctl.checks.argument_types import Types
    from attnctl.runtime.arrays import Bools, Floats, Ints


class FigureOptions(TypedDict, total=False):
    """The options of `attnctl heatmap` with the same names; None, or left out, is the default."""

    layer: int | Sequence[int] | None
    head: int | Sequence[int] | None
    drop: str | tuple[str, ...] | list[str] | None
    renormalise: bool | None
    cmap: str | None
    size: tuple[float, float] | None
    dpi: float | None
    title: str | None
    values: bool | None
    log: bool | None
    font_size: float | None
    vmin: float | None
    vmax: float | None
    colorbar: bool | None
    picture: Any
    query: int | str | None


FIGURE_TYPES: dict[str, Types] = {
    **dict.fromkeys(("layer", "head"), object),  # checked by `checked_selection`
    "picture": object,  # checked by `photograph_of`
    "query": int | str,
    **dict.fromkeys(("renormalise", "values", "log", "colorbar"), bool),
    **dict.fromkeys(("dpi", "font_size", "vmin", "vmax"), int | float),
    **dict.fromkeys(("cmap", "title"), str),
    "drop": str | tuple | list,
    "size": tuple | list,
}


def checked_figure_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Return the options that are not None, `layer` and `head` as indices.

    Raises TypeError for an option, or an item of a list, of a wrong type.
    """
    check_options("figure", options, FIGURE_TYPES)
    chosen = {name: plain_number(value) for name, value in options.items() if value is not None}
    for name in {"layer", "head"} & chosen.keys():
        chosen[name] = checked_selection("figure", name, chosen[name])
    for key in chosen.get("drop", ()):
        require_type("figure", "a key to drop", key, str)
    if "size" in chosen:
        if len(chosen["size"]) != 2:
            raise TypeError(f"figure(): size is (width, height) in inches, not {chosen['size']!r}")
        for side in chosen["size"]:
            require_type("figure", "size", side, int, float)
    return chosen


WORDS_NOTE = (
    "Pieces are merged into words: weights to a split word are added up, those from it averaged (Clark et al. 2019, "
    "section 4.1)."
)
PIECES_NOTE = "Tokens that are not of the text, as a decoder's, stay pieces."


# the head that was measured to find the verb of an object was trained for subjects, auxiliaries and adverbs as well
VERB_OF_WORD = "word → its verb"
# role of a head → the end of a sentence that begins with "links"
ROLES = {
    "verb → subject": "a verb to its subject",
    "verb → subject past others": "a verb to its subject, past other nouns",
    VERB_OF_WORD: "a word to its verb",
    "subject → verb": "a subject to its verb",
    "object → verb": "an object to its verb",
    "verb → object": "a verb to its object",
    "pronoun → antecedent": "a pronoun to what it stands for",
    "it → its noun, by meaning": "“it” to the noun that it means",
    "adjective → noun": "an adjective to its noun",
    "determiner → noun": "a determiner to its noun",
    "preposition → what it belongs to": "a preposition to the word that it belongs to",
    "closing mark → opening mark": "a closing mark to the opening one",
    "induction": "a word to what followed the same word before",
}


@dataclass(frozen=True)
class Headline:
    """One link: the query's largest weight in one head, and the reason to show it.

    `role` names what the head was measured to find. `probability`, from 0 to 1, is the probability that the link is
    right; None for a model whose links were never marked. `reason` is empty if the user chose layer, head and query.
    """

    layer: int
    head: int
    query: int
    key: int
    weight: float
    role: str = ""
    probability: float | None = None
    sure: bool | None = None
    reason: str = ""
    stands_out: bool = True  # False: the largest weight, which says nothing of this text, as `reason` tells

    @property
    def role_in_words(self) -> str:
        """Return the role as the end of a sentence that begins with "links": "a verb to its subject"."""
        return ROLES.get(self.role, self.role)

    @property
    def certainty(self) -> Literal["sure", "unsure"] | None:
        """Return "sure" or "unsure"; None for a model whose links were never marked."""
        return None if self.sure is None else "sure" if self.sure else "unsure"


@dataclass(frozen=True)
class CheckFinding:
    """One check: a sentence, whether it holds (None: it could not be checked), and the number that came out."""

    sentence: str
    holds: bool | None
    result: str


@dataclass(frozen=True, eq=False)
class Trace(HoldsSubject):
    """One text through one model: tokens, embeddings, and each layer from queries to context."""

    subject: Subject
    layers: tuple[LayerTrace, ...]
    embeddings: Floats | None = None  # (n, d_model)
    predictions: tuple[Prediction, ...] = ()
    id: str | int | None = None  # the name of the text in a batch
    number: int | None = None  # the place of the text in the input of its batch, from 0
    # returns what the position explains of a checkpoint's weights (readings/questions/positions.py), which runs the model
    positions: Callable[[], Any] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        heads = sum(len(layer.heads) for layer in self.layers)
        counts = (("token", len(self.tokens)), ("layer", len(self.layers)), ("head", heads))
        contents = ", ".join(counted(count, name) for name, count in counts)
        return f"Trace of {quoted_beginning(self.text)} by {self.model.name}: {contents}"

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process has: all but the model behind `positions`."""
        return self.__dict__ | {"positions": None}

    def __str__(self) -> str:
        layers = [f"  {layer!r}" for layer in self.layers[:4]]
        more = [f"  … {len(self.layers) - 4} more layers"] if len(self.layers) > 4 else []
        return "\n".join([repr(self), *layers, *more])

    @property
    def cited(self) -> str:
        """Return the source of the numbers for the metadata of a picture: program, model, and the text's id."""
        return super().cited + ("" if self.id is None else f"; text {self.id}")

    def layer(self, index: int) -> LayerTrace:
        """Return the trace of layer `index`. Raises AttnctlError if it was not stored."""
        check_types("layer", int, index=index)
        for layer in self.layers:
            if layer.layer == index:
                return layer
        numbers = number_list(layer.layer for layer in self.layers)
        raise AttnctlError(f"layer {index} is not in this trace: it holds {numbers}")

    def headline(self, layer: int | None = None, head: int | None = None, query: int | None = None) -> Headline | None:
        """Return the link to look at first, for a layer, a head or a query's index; None for a trace without weights.

        Raises AttnctlError for a layer, a head or a query that the trace does not hold.
        """
        check_types("headline", int | None, layer=layer, head=head, query=query)
        if layer is not None:
            self.layer(layer)
        heads = sorted({number for part in self.layers for number in part.heads})
        if head is not None and head not in heads:
            raise UsageError(f"this trace holds heads {number_list(heads)}", option="head", value=head)
        if query is not None and not 0 <= query < len(self.tokens):
            raise UsageError(f"the text has tokens 0 to {len(self.tokens) - 1}", option="query", value=query)
        line: Headline | None = resolve_name("attnctl.readings.questions.headline:headline")(self, layer, head, query)
        return line

    def to_json(self) -> str:
        """Return this trace as a line of JSON (schema `attnctl.trace/1`). Raises AttnctlError if a number is not finite."""
        text: bytes = resolve_name("attnctl.formats.documents.trace_json:trace_to_json")(self, self.headline())
        return text.decode()

    def save(self, path: str | Path) -> None:
        """Write to `path`, .json or .npz, completely or not at all; `attnctl.load` reads it back."""
        line = self.headline() if str(path).lower().endswith(".json") else None  # an archive has none
        resolve_name("attnctl.formats.storage:save_value")(self, path, line)

    @naming_options(FigureOptions)
    def figure(self, **options: Unpack[FigureOptions]) -> Figure:
        """Return a matplotlib Figure of the weights.

        The options are those of `attnctl heatmap`; `layer` and `head` select (None: all), `size` is width and height in
        inches. With a `picture`, a file or an image of Pillow, the weights of one `query` (None: CLS) in the last layer are
        drawn over it, if the trace has the places of its patches. Raises TypeError, naming the option, for an unknown option
        or a wrong type, UsageError for an impossible value.
        """
        chosen = checked_figure_options(options)
        if "query" in chosen and "picture" not in chosen:
            raise UsageError("is for weights over a picture: give the picture, too", option="query")
        module = "photograph:figure_over_picture" if "picture" in chosen else "heatmap:figure_of_trace"
        figure: Figure = resolve_name(f"attnctl.render.figure.{module}")(self, **chosen)
        return figure

    def _repr_html_(self) -> str:
        """Return the page of this trace for a notebook."""
        page: str = resolve_name("attnctl.render.page.trace_page:page_in_frame")(self)
        return page


def by_words(trace: Trace) -> Trace:
    """Return `trace` with its pieces merged into words; rows still sum to 1. Only weights and mask remain.

    Weights to a split word are added, weights from it averaged (Clark et al. 2019). Special and generated tokens are not
    merged.
    """
    keys = word_groups(trace.key_axis, trace.text)
    queries = keys if trace.key_tokens is None else word_groups(trace.tokens, trace.text)
    layers = []
    for layer in trace.layers:
        row_tokens = list(range(len(trace.tokens))) if layer.rows is None else list(layer.rows)
        rows = [[row_tokens.index(i) for i in group if i in row_tokens] for group in queries]
        words = [(word, places) for word, places in enumerate(rows) if places]
        merged = None
        if layer.weights is not None:
            columns = np.add.reduceat(layer.weights, [group[0] for group in keys], axis=-1)  # (heads, rows, words)
            merged = np.stack([columns[:, places].mean(axis=1) for _, places in words], axis=1)  # (heads, words, words)
        mask = layer.mask
        if mask is not None:
            visible = np.logical_or.reduceat(mask, [group[0] for group in keys], axis=-1)  # (rows, words)
            mask = np.stack([visible[places].any(axis=0) for _, places in words])  # (words, words)
        layers.append(
            LayerTrace(
                layer.layer,
                layer.heads,
                layer.kv_heads,
                weights=merged,
                mask=mask,
                rows=None if layer.rows is None else tuple(word for word, _ in words),
            )
        )
    place = {i: word for word, group in enumerate(queries) for i in group}
    subject = replace(
        trace.subject,
        tokens=tuple(joined_word([trace.tokens[i] for i in group], trace.text) for group in queries),
        key_tokens=None
        if trace.key_tokens is None
        else tuple(joined_word([trace.key_tokens[j] for j in group], trace.text) for group in keys),
        # tokens without a place in the text were generated, or belong to a decoder's own text
        notes=(
            *trace.notes,
            WORDS_NOTE,
            *(PIECES_NOTE,) * any(t.start is None and not t.special for t in trace.tokens),
        ),
    )
    predictions = tuple(replace(p, position=place[p.position]) for p in trace.predictions)
    return replace(trace, subject=subject, layers=tuple(layers), embeddings=None, predictions=predictions)


WORD_AFTER = re.compile(r" *\S")


def word_groups(tokens: Sequence[Token], text: str) -> list[list[int]]:
    """Return neighbouring tokens of one word, as lists of indices that cover `tokens` in order.

    Words are those of the tokenizer if tokens know them; else those of `word_spans`. What no reader takes for a word of its
    own joins its neighbour: a mark, a digit of a number, spaces.
    """
    word_at: dict[int, int] | None = None
    groups: list[list[int]] = []
    last: tuple[bool, int] | None = None
    for i, token in enumerate(tokens):
        word = None
        if token.special or token.start is None or token.end is None:
            pass
        elif token.word is not None:
            word = (True, token.word)
        else:
            if word_at is None:
                word_at = word_numbers(text)
            covered = text[token.start : token.end]
            first = token.start + len(covered) - len(covered.lstrip())
            word = (False, word_at[first]) if first < token.end and first in word_at else None
        if word is not None and word == last:
            groups[-1].append(i)
        else:
            groups.append([i])
        last = word
    return _with_joined_parts(groups, tokens, text)


def _with_joined_parts(groups: list[list[int]], tokens: Sequence[Token], text: str) -> list[list[int]]:
    """Return the groups, those joined to the one before that a tokenizer cut inside a word, and spaces to a neighbour."""
    joins = joins_within_word(text)
    joined: list[list[int]] = []
    before: tuple[int, int] | None = None  # the span of the last joined group; None for a token without a place
    spans = [_span_of([tokens[i] for i in group]) for group in groups]
    for group, span, next_span in zip(groups, spans, [*spans[1:], None], strict=True):
        if before is None or span is None or before[1] < span[0]:
            is_part = False
        elif before[1] > span[0] or joins(span[0]):
            is_part = True
        else:  # spaces join the word that follows; at the end of a line the one before
            spaces, next_spaces = (not text[slice(*place)].strip(" ") for place in (before, span))
            follows = next_span is not None and WORD_AFTER.match(text, span[1]) is not None
            is_part = spaces and (next_spaces or bool(text[slice(*span)].strip()))
            is_part |= next_spaces and not follows and bool(text[slice(*before)].strip())
        if is_part and before is not None and span is not None:
            joined[-1].extend(group)
            before = before[0], span[1]
        else:
            joined.append(list(group))
            before = span
    return joined


def _span_of(pieces: Sequence[Token]) -> tuple[int, int] | None:
    """Return the characters of a group; None for a special token, and for one without a place in the text."""
    start, end = pieces[0].start, pieces[-1].end
    return None if pieces[0].special or start is None or end is None or start >= end else (start, end)


def joined_word(pieces: Sequence[Token], text: str) -> Token:
    """Return pieces of a text as one token; a single piece is returned unchanged."""
    if len(pieces) == 1:
        return pieces[0]
    start, end = pieces[0].start, pieces[-1].end
    return Token(text[start:end].strip(), start=start, end=end, unknown=any(piece.unknown for piece in pieces))


def visible_past(trace: Trace, layer: LayerTrace) -> tuple[Ints, Bools]:
    """Return positions of a layer's queries (n_q,), and which keys each sees without other masks (n_q, n)."""
    rows = np.arange(len(trace.tokens)) if layer.rows is None else np.asarray(layer.rows)  # (n_q,)
    keys = np.arange(len(trace.tokens))  # (n,)
    return rows, keys <= rows[:, None] if trace.model.causal else np.ones((len(rows), len(keys)), bool)  # (n_q, n)


def reach_of_mask(trace: Trace, layer: LayerTrace) -> int | None:
    """Return the distance of the farthest visible key, if only that distance hides the others; else None."""
    n = len(trace.tokens)
    if layer.mask is None or layer.mask.shape[-1] < n:
        return None
    mask, (rows, past) = layer.mask[:, :n], visible_past(trace, layer)  # (n_q, n)
    distances = np.abs(rows[:, None] - np.arange(n))  # (n_q, n)
    farthest = int(distances[mask].max(initial=0))
    within = past & (distances <= farthest)  # (n_q, n)
    return farthest if bool((mask == within).all()) and bool((within != past).any()) else None
