"""Readings as JSON: effects, sources, needles (which are read back), comparisons."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import field
from msgspec.structs import asdict

from attnctl.document_fields import Correlation, Index, Mask, Matrix, Part, Share, Vector, about
from attnctl.errors import AttnctlError
from attnctl.files import parse_json, read_bytes, write_whole
from attnctl.formats.documents.json_documents import (
    DocumentModel,
    DocumentToken,
    JsonDocument,
    TextDocument,
    document_of,
    document_read,
    fields_from,
    fields_of,
    reading_of,
    token_documents,
    write_json,
)
from attnctl.formats.validation import finite_floats
from attnctl.readings.comparison import AlignedTokens, Comparison
from attnctl.readings.effects import ContributionPart, Effects, strongest_cuts
from attnctl.readings.effects.answer_sources import AnswerSources, PartSource
from attnctl.readings.effects.needle import HeadsOff, NeedleCell, NeedleRun, Needles
from attnctl.readings.head_place import HeadPlace

# --- effects -----------------------------------------------------------------------------------------------------


class ContributionsEntry(Part):
    """The logit taken apart: what the model says, what the parts add up to, and the parts."""

    logit: Annotated[float, about("The model's own, as in baseline.")]
    sum_of_parts: float = field(name="sum")
    parts: tuple[ContributionPart, ...]
    logit_before_cap: Annotated[float | None, about("Where the model caps its logits: what the parts add up to.")] = (
        None
    )


_TEXT = TextDocument.__struct_fields__


@fields_from(own for own in fields_of(Effects, contributions=ContributionsEntry | None) if own[0] not in _TEXT)
class EffectsDocument(TextDocument, tag="attnctl.effects/1"):
    """What the attention over one text does for one prediction.

    Each head ablated in turn, each edge cut, parts of the text cut off. Δ is after minus before, in nats. What was not
    measured is absent.
    """


def effects_to_json(effects: Effects, top: int | None = None) -> bytes:
    """One line of JSON, without the newline; heads strongest first, `top` of them (None: all)."""
    return write_json(effects_document(effects, top), "table of effects")


def effects_document(effects: Effects, top: int | None = None) -> EffectsDocument:
    """Effects as a document, `top` heads, edges and spans of them (None: all)."""
    parts = effects.contributions and document_of(ContributionsEntry, effects.contributions)
    edges, spans = strongest_cuts(effects.edges, top), strongest_cuts(effects.spans, top)
    return document_of(
        EffectsDocument, effects, heads=effects.strongest(top), edges=edges, spans=spans, contributions=parts
    )


# --- sources of an answer ----------------------------------------------------------------------------------------


class AnswerToken(DocumentToken, kw_only=True):
    """A token of the answer."""

    log_probability: float
    source: Annotated[Index | None, about("The part, by its place in parts, whose loss costs this token most.")] = None


class Answer(Part):
    """The answer whose sources are looked for."""

    text: str
    given: Annotated[bool, about("False: the model's own, the likeliest token each time.")]
    tokens: tuple[AnswerToken, ...]
    log_probability: Annotated[float, about("Of the whole answer, nats.")]


class SourcesDocument(JsonDocument, kw_only=True, tag="attnctl.sources/1"):
    """Which part of a prompt an answer came from: what is looked at, and what matters."""

    id: Annotated[str | int | None, about("The item's own name, in a batch.")] = None
    prompt: Annotated[str, about("The prompt as the model read it.")]
    model: DocumentModel
    answer: Answer
    parts: Annotated[tuple[PartSource, ...], about("What matters most first.")]
    apart: Annotated[dict[str, Share], about("Attention that no part has, by name.")]
    agreement: Annotated[dict[str, Correlation], about("Kendall's τ between two columns.")]
    forwards: Annotated[Index, about("Passes through the network beside the first.")]
    notes: tuple[str, ...]


def sources_document(found: AnswerSources, top: int | None = None) -> SourcesDocument:
    """Its document, of so many parts (None: all); start and end are characters of the rendered prompt."""
    each = zip(token_documents(found.answer_tokens), found.log_probabilities, found.first_sources(), strict=True)
    tokens = tuple(
        AnswerToken(**asdict(token), log_probability=float(value), source=first) for token, value, first in each
    )
    answer = Answer(found.answer, found.given, tokens, found.log_probability)
    return document_of(SourcesDocument, found, answer=answer, parts=found.parts[:top], agreement=found.rank_agreement())


# --- needles -----------------------------------------------------------------------------------------------------


@fields_from(fields_of(NeedleRun, model=DocumentModel))
class RunDocument(JsonDocument):
    """What the needles of one run share."""


_SCORES = Annotated[
    dict[str, Vector],
    about(
        "Of each layer, each head's retrieval score on this needle (Wu et al. 2024); empty where it was not answered.",
        propertyNames={"pattern": "^[0-9]+$"},
    ),
]


@fields_from(fields_of(NeedleCell, scores=_SCORES))
class NeedleDocument(RunDocument, tag="attnctl.needle/1"):
    """A fact planted in a prompt, and what came of it; a run writes one a line."""


class RetrievalHead(HeadPlace):
    """A head that fetches the answer."""

    score: Share


class NeedlesDocument(RunDocument, kw_only=True, tag="attnctl.needles/1"):
    """What the needles of one run come to: which heads fetch them; the last line of the JSON of `attnctl needle`."""

    asked: Index
    answered: Index
    retrieval_heads: Annotated[
        tuple[RetrievalHead, ...],
        about(
            "Heads that on 10 % of the answers' tokens or more look at that very token inside the needle, best first."
        ),
    ]
    notes: tuple[str, ...]
    off: Annotated[
        HeadsOff | None, about("Answered needles asked again with the best of these heads switched off.")
    ] = None
    random_off: Annotated[HeadsOff | None, about("The same with as many other heads, drawn at random.")] = None


def cell_document(cell: NeedleCell, run: NeedleRun) -> NeedleDocument:
    """One needle; `scores` are layer → the retrieval score of each head."""
    scores = {str(layer): np.ascontiguousarray(row, np.float32) for layer, row in cell.scores.items()}
    return document_of(NeedleDocument, run, cell, scores=scores)


def needles_document(found: Needles) -> NeedlesDocument:
    """What all needles come to: how many were answered, the retrieval heads, and the check with heads switched off."""
    heads = tuple(RetrievalHead(*at, score) for at, score in found.retrieval_heads().items())
    made = {"asked": len(found.cells), "answered": found.answered_count, "retrieval_heads": heads}
    return document_of(NeedlesDocument, found.run, found, **made)


def known_needles(path: str, run: NeedleRun) -> list[NeedleCell]:
    """The needles that the file of JSON lines of an earlier run holds; [] where there is none.

    A last line that was cut off is taken out of the file. Raises AttnctlError for a file of something else, or of another
    run.
    """
    data = read_bytes(path) if Path(path).is_file() else b""
    whole = data[: data.rfind(b"\n") + 1]
    wanted, cells = document_of(RunDocument, run), []
    for number, line in enumerate(filter(bytes.strip, whole.split(b"\n")), 1):
        where = f"{path}, line {number}"
        said = parse_json(line, where)
        if isinstance(said, dict) and said.get("schema") == NeedlesDocument.__struct_config__.tag:
            continue
        with document_read(NeedleDocument, said, where, "a needle", "damaged") as told:
            cell = reading_of(NeedleCell, told)
            scores = {int(layer): finite_floats(row, "scores") for layer, row in cell.scores.items()}
            cells.append(replace(cell, scores=scores))
        for key in (own.name for own in fields(run)):
            if not _is_same(getattr(told, key), getattr(wanted, key)):
                raise AttnctlError(f"{where} is of another {key}: name a new file with -o")
    if whole != data:  # the run was stopped in the middle of a line
        write_whole(path, whole)
    return cells


def _is_same(found: object, wanted: object) -> bool:
    """Whether two values of a run are the same; of models those that say so: name, weights file, revision."""
    if isinstance(found, DocumentModel):
        return all(getattr(found, key) == getattr(wanted, key) for key in ("name", "sha256", "revision"))
    return found == wanted


# --- comparisons -------------------------------------------------------------------------------------------------


class ComparedRun(Part):
    """One side of a comparison."""

    name: str
    text: str
    model: DocumentModel


class LargestDifference(Part):
    """Where the two differ most."""

    layer: Index
    head: Index
    query: Index
    key: Index
    a: float
    b: float
    difference: float


class ComparedHead(Part):
    """The weights of one head on both sides."""

    head: Index
    a: Annotated[Matrix, about("Weights of A (rows, columns).")]
    b: Annotated[Matrix, about("Weights of B.")]
    difference: Annotated[Matrix, about("B minus A.")]
    hidden_in_one: Annotated[Mask | None, about("True where one of the two alone hides the key.")] = None


class ComparedLayer(Part):
    """The heads of a layer that both have."""

    layer: Index
    heads: tuple[ComparedHead, ...]


class ComparisonDocument(JsonDocument, kw_only=True, tag="attnctl.comparison/1"):
    """The weights of two runs, and their difference: B minus A, for each head that both have."""

    a: ComparedRun
    b: ComparedRun
    aligned: Annotated[
        AlignedTokens | None,
        about("Which tokens are compared, where some are not with the one at their own place."),
    ] = None
    tokens: Annotated[tuple[str, ...], about("What a row of a grid is: the token, or A's/B's where they differ.")]
    key_tokens: Annotated[tuple[str, ...], about("What its columns are.")]
    largest: LargestDifference
    layers: tuple[ComparedLayer, ...]


def comparison_to_json(pair: Comparison) -> bytes:
    """Two runs side by side as one line of JSON, without the newline."""
    layer, head, i, j = pair.largest_difference()
    x, y = (float(weights[i, j]) for weights in pair.both_weights(layer, head))
    layers: dict[int, list[ComparedHead]] = {}
    for at_layer, at_head in pair.places:
        u, v = pair.both_weights(at_layer, at_head)
        a, b, difference = (np.ascontiguousarray(grid, np.float32) for grid in (u, v, v - u))
        compared = ComparedHead(at_head, a, b, difference, pair.hidden_in_one(at_layer))
        layers.setdefault(at_layer, []).append(compared)
    rows, columns = pair.axis_labels()
    document = document_of(
        ComparisonDocument,
        pair,
        a=document_of(ComparedRun, pair.a, name=pair.names[0]),
        b=document_of(ComparedRun, pair.b, name=pair.names[1]),
        tokens=tuple(rows),
        key_tokens=tuple(columns),
        largest=LargestDifference(layer, head, i, j, x, y, y - x),
        layers=tuple(ComparedLayer(at, tuple(heads)) for at, heads in layers.items()),
    )
    return write_json(document, "comparison")
