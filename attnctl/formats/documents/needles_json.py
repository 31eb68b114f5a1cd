"""Needles as JSON: a line a needle, so that a run can be gone on with, and a last line about the heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.files import parse_json
from attnctl.formats.documents.json_documents import DAMAGED, Document, check_schema, damage_of, model_document
from attnctl.readings.effects.needle import HeadsOff, Needle, NeedleCell, Needles
from attnctl.readings.traces.trace import ModelInfo

SCHEMA = "attnctl.needle/1"


def cell_document(cell: NeedleCell, info: ModelInfo, needle: Needle, seed: int) -> Document:
    """One needle; `scores` are layer → the retrieval score of each head."""
    return {
        "schema": SCHEMA,
        "model": info.name,
        "needle": needle.text,
        "question": needle.question,
        "expect": needle.expect,
        "seed": seed,
        "length": cell.length,
        "depth": cell.depth,
        "tokens": cell.tokens,
        "answer": cell.answer,
        "answered": cell.answered,
        "found": cell.found,
        "scores": {str(layer): np.ascontiguousarray(row, np.float32) for layer, row in cell.scores.items()},
    }


def cells_of(data: bytes, source: str, info: ModelInfo, needle: Needle, seed: int) -> list[NeedleCell]:
    """The needles in a file of JSON lines that belong to the same model, needle and seed.

    A last line that was cut off is left out. Raises AttnctlError for a file of something else.
    """
    lines = data.split(b"\n")
    if lines and lines[-1]:  # a run that was stopped in the middle of a line
        lines = lines[:-1]
    cells = []
    for number, line in enumerate(filter(bytes.strip, lines), 1):
        where = f"{source}, line {number}"
        document = check_schema(parse_json(line, where), SCHEMA, where, "a needle")
        if "length" not in document:
            continue
        wanted = cell_document(NeedleCell(0, 0, 0, "", False, 0), info, needle, seed)
        for key in ("model", "needle", "question", "expect", "seed"):
            if document.get(key) != wanted[key]:
                raise AttnctlError(f"{where} is of another {key}: name a new file with -o")
        try:
            cells.append(_cell_of_document(document))
        except DAMAGED as error:
            raise AttnctlError(f"{where} is damaged: {damage_of(error)}") from error
    return cells


def _cell_of_document(document: dict[str, Any]) -> NeedleCell:
    scores = {int(layer): np.asarray(row, np.float32) for layer, row in document["scores"].items()}
    counts = int(document["length"]), float(document["depth"]), int(document["tokens"])
    return NeedleCell(*counts, str(document["answer"]), bool(document["answered"]), float(document["found"]), scores)


def needles_document(found: Needles) -> Document:
    """What all needles come to: how many were answered, the retrieval heads, and the check with heads switched off."""
    document: Document = {
        "schema": SCHEMA,
        "model": model_document(found.model),
        "asked": len(found.cells),
        "answered": found.answered_count,
        "retrieval_heads": [
            {"layer": layer, "head": head, "score": score} for (layer, head), score in found.retrieval_heads().items()
        ],
        "notes": list(found.notes),
    }
    for name, off in (("off", found.off), ("random_off", found.random_off)):
        if off is not None:
            document[name] = _off_document(off)
    return document


def _off_document(off: HeadsOff) -> Document:
    heads = [{"layer": layer, "head": head} for layer, head in off.heads]
    return {"heads": heads, "answered": off.answered, "asked": off.asked}
