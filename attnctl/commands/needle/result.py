"""Needles: facts planted in filler at several depths and lengths, the answers to them, and the heads that fetch them.

The retrieval score of a head is that of Wu et al. 2024 (Retrieval Head Mechanistically Explains Long-Context Factuality):
the share of the answer's tokens for which the head attends most to the same token inside the needle, over all answered
needles. Wu et al. call heads with 0.1 or more retrieval heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import field
from msgspec.structs import asdict

from attnctl.checks.document_fields import ALWAYS, HeadPlace, Index, Part, Portion, Sha256, Share, Vector, Whole, about
from attnctl.errors import AttnctlError
from attnctl.formats import JsonDocument, ResultModel, document_read, flat_records
from attnctl.runtime.arrays import Floats
from attnctl.runtime.files import parse_json, read_bytes, write_whole
from attnctl.text import counted, percent

if TYPE_CHECKING:
    from attnctl.attention import Array

RETRIEVAL = 0.1  # a head with this score or more is a retrieval head


class NeedleRun(JsonDocument, kw_only=True):
    """The settings that the needles of one run share."""

    model: ResultModel
    needle: Annotated[str, about("The fact that was planted.")]
    question: str
    expect: Annotated[str, about("Text that a right answer contains, in any letter case.")]
    haystack: Annotated[Sha256 | None, about("SHA-256 of the haystack's text; absent: generated sentences.")] = None
    seed: Annotated[Whole, about("Seed of generated sentences, and of the heads switched off at random."), ALWAYS] = (
        field(default_factory=int)
    )


Length = Annotated[Index, about("Requested length of the prompt in tokens.")]
Depth = Annotated[Portion, about("Position of the needle: 0 first, 1 last.")]
TokenCount = Annotated[Index, about("Actual length of the prompt in tokens.")]
Found = Annotated[Share, about("Share of the answer's attention on the needle, over all heads and layers.")]
Scores = Annotated[
    dict[str, Vector],
    about(
        "Each head's retrieval score on this needle, by layer (Wu et al. 2024); empty if it was not answered.",
        propertyNames={"pattern": "^[0-9]+$"},
    ),
]


class PlantedNeedle(Part, kw_only=True):
    """A fact planted in a prompt, and the model's answer."""

    length: Length
    depth: Depth
    tokens: TokenCount
    answer: str
    answered: bool
    found: Found
    scores: Scores


class NeedleCell(NeedleRun, kw_only=True, tag="attnctl.needle/1"):
    """A fact planted in a prompt, and the model's answer; a run writes one on each line."""

    length: Length
    depth: Depth
    tokens: TokenCount
    answer: str
    answered: bool
    found: Found
    scores: Scores

    @property
    def planted(self) -> PlantedNeedle:
        """Return the needle without what all needles of the run share."""
        return PlantedNeedle(**{name: value for name, value in asdict(self).items() if name in PLANTED})

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record of the needle: length, depth, tokens, answer, answered, found."""
        return flat_records((self.planted,))

    def __repr__(self) -> str:
        answered = "answered" if self.answered else "not answered"
        return f"Needle of {self.model.name}: {counted(self.length, 'token')}, depth {percent(self.depth)}, {answered}"


PLANTED = PlantedNeedle.__struct_fields__


class HeadsOff(Part):
    """The number of needles that are still answered with these heads switched off."""

    heads: tuple[HeadPlace, ...]
    answered: Index
    asked: Index


class RetrievalHead(HeadPlace):
    """A head that fetches the answer."""

    score: Share


class Needles(NeedleRun, kw_only=True, tag="attnctl.needles/1"):
    """The summary of one run: the answers and the heads that fetch them; the last line of `--json`, or a .json file."""

    asked: Index
    answered: Index
    needles: Annotated[tuple[PlantedNeedle, ...], about("Every needle, in a file of -o x.json.")] = ()
    retrieval_heads: Annotated[
        tuple[RetrievalHead, ...],
        about(
            "Heads that look at the same token inside the needle for 10 % of the answers' tokens or more, best first."
        ),
    ]
    notes: tuple[str, ...]
    off: Annotated[
        HeadsOff | None, about("Answered needles asked again with the best of these heads switched off.")
    ] = None
    random_off: Annotated[HeadsOff | None, about("The same with as many other heads, drawn at random.")] = None

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each needle of the file: length, depth, tokens, answer, answered, found."""
        return flat_records(self.needles)

    def __repr__(self) -> str:
        heads = counted(len(self.retrieval_heads), "retrieval head")
        return f"Needles of {self.model.name}: {self.answered} of {self.asked} answered, {heads}"


def is_answered(answer: str, expect: str) -> bool:
    """Return whether an answer holds what is expected."""
    return " ".join(expect.casefold().split()) in " ".join(answer.casefold().split())


def mean_scores(cells: Sequence[NeedleCell]) -> dict[tuple[int, int], float]:
    """Return (layer, head) → retrieval score, the mean over the needles that were answered, highest first."""
    answered = [cell for cell in cells if cell.answered and cell.scores]
    if not answered:
        return {}
    mean = {int(layer): np.mean([cell.scores[layer] for cell in answered], axis=0) for layer in answered[0].scores}
    every = {(layer, head): float(score) for layer, row in mean.items() for head, score in enumerate(row)}
    return dict(sorted(every.items(), key=lambda item: -item[1]))


def depth_grid(cells: Sequence[NeedleCell], numbers: Sequence[float]) -> tuple[Floats, list[int], list[float]]:
    """Return the numbers of cells as (depths, lengths), NaN for needles that were not asked; the lengths; the depths."""
    lengths = sorted({cell.length for cell in cells})
    depths = sorted({cell.depth for cell in cells})
    values = np.full((len(depths), len(lengths)), np.nan, np.float32)  # (depths, lengths)
    for cell, number in zip(cells, numbers, strict=True):
        values[depths.index(cell.depth), lengths.index(cell.length)] = number
    return values, lengths, depths


def retrieval_scores(
    strongest: Mapping[int, Array], prompt: Sequence[int], answer: Sequence[int], needle: tuple[int, int]
) -> dict[int, Floats]:
    """Return layer → each head's retrieval score on one answer: (heads,).

    `strongest` is layer → the key that each head attends to most when it predicts each answer token (heads, m); `prompt`
    and `answer` are ids, `needle` the prompt's tokens [a, b).
    """
    a, b = needle
    ids = np.asarray([*prompt, *answer])  # (n + m,)
    scores = {}
    for layer, keys in strongest.items():
        inside = (keys >= a) & (keys < b)  # (heads, m)
        same = ids[keys] == np.asarray(answer)  # (heads, m)
        scores[layer] = (inside & same).mean(-1).astype(np.float32)  # (heads,)
    return scores


def known_needles(path: str, run: NeedleRun) -> list[NeedleCell]:
    """Return the needles in the file of JSON lines of an earlier run; [] if it has none.

    An incomplete last line is removed from the file. Raises AttnctlError for a file of something else, or of another run.
    """
    data = read_bytes(path) if Path(path).is_file() else b""
    whole = data[: data.rfind(b"\n") + 1]
    cells = []
    for number, line in enumerate(filter(bytes.strip, whole.split(b"\n")), 1):
        where = f"{path}, line {number}"
        document = parse_json(line, where)
        if isinstance(document, dict) and document.get("schema") == Needles.__struct_config__.tag:
            continue
        with document_read(NeedleCell, document, where, "a needle", "damaged") as cell:
            cells.append(cell)
        for key in NeedleRun.__struct_fields__:
            earlier, current = asdict(cell)[key], asdict(run)[key]
            if key == "model":  # models are equal if these are
                earlier, current = (
                    [model.name, model.sha256, model.revision, model.dtype] for model in (earlier, current)
                )
            if key != "attnctl" and earlier != current:
                raise AttnctlError(f"{where} is of another {key}: name a new file with -o")
    if whole != data:  # the run was stopped in the middle of a line
        write_whole(path, whole)
    return cells
