"""Needles as JSON: a line a needle (`attnctl.needle/1`), so that a run can be gone on with, and one about all of them."""

from __future__ import annotations

import numpy as np

from attnctl import __version__
from attnctl.errors import AttnctlError
from attnctl.files import parse_json
from attnctl.formats.documents.json_documents import DAMAGED, check_schema, damage_of, model_document
from attnctl.formats.validation import checked_number, checked_whole_number, finite_floats
from attnctl.readings.effects.needle import NeedleCell, NeedleRun, Needles
from attnctl.text import Document

SCHEMA, SCHEMA_OF_ALL = "attnctl.needle/1", "attnctl.needles/1"


def cell_document(cell: NeedleCell, run: NeedleRun) -> Document:
    """One needle; `scores` are layer → the retrieval score of each head."""
    return {
        "schema": SCHEMA,
        "attnctl": __version__,
        **_run_document(run),
        "length": cell.length,
        "depth": cell.depth,
        "tokens": cell.tokens,
        "answer": cell.answer,
        "answered": cell.answered,
        "found": cell.found,
        "scores": {str(layer): np.ascontiguousarray(row, np.float32) for layer, row in cell.scores.items()},
    }


def _run_document(run: NeedleRun) -> Document:
    document: Document = {"model": model_document(run.model)}
    document |= {"needle": run.needle.text, "question": run.needle.question, "expect": run.needle.expect}
    document |= {} if run.haystack is None else {"haystack": run.haystack}
    return document | {"seed": run.seed}


def cells_of(data: bytes, source: str, run: NeedleRun) -> list[NeedleCell]:
    """The needles in a file of JSON lines, all of the run.

    A last line that was cut off is left out. Raises AttnctlError for a file of something else, or of another run.
    """
    lines = data.split(b"\n")
    if lines and lines[-1]:  # a run that was stopped in the middle of a line
        lines = lines[:-1]
    wanted, cells = _run_document(run), []
    for number, line in enumerate(filter(bytes.strip, lines), 1):
        where = f"{source}, line {number}"
        said = parse_json(line, where)
        if isinstance(said, dict) and said.get("schema") == SCHEMA_OF_ALL:
            continue
        document = check_schema(said, SCHEMA, where, "a needle")
        for key in ("model", "needle", "question", "expect", "haystack", "seed"):
            if not _is_same(document.get(key), wanted.get(key)):
                raise AttnctlError(f"{where} is of another {key}: name a new file with -o")
        try:
            cells.append(_cell_of_document(document))
        except DAMAGED as error:
            raise AttnctlError(f"{where} is damaged: {damage_of(error)}") from error
    return cells


def _is_same(found: object, wanted: object) -> bool:
    """Whether two values of a run are the same; of models those that say so: name, weights file, revision."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return all(found.get(key) == wanted.get(key) for key in ("name", "sha256", "revision"))
    return found == wanted


def _cell_of_document(document: Document) -> NeedleCell:
    scores = {int(layer): finite_floats(row, "scores") for layer, row in document["scores"].items()}
    counts = (
        checked_whole_number(document["length"], "length"),
        checked_number(document["depth"], "depth"),
        checked_whole_number(document["tokens"], "tokens"),
    )
    return NeedleCell(
        *counts, str(document["answer"]), bool(document["answered"]), checked_number(document["found"], "found"), scores
    )


def needles_document(found: Needles) -> Document:
    """What all needles come to: how many were answered, the retrieval heads, and the check with heads switched off."""
    document: Document = {
        "schema": SCHEMA_OF_ALL,
        "attnctl": __version__,
        **_run_document(found.run),
        "asked": len(found.cells),
        "answered": found.answered_count,
        "retrieval_heads": [
            {"layer": layer, "head": head, "score": score} for (layer, head), score in found.retrieval_heads().items()
        ],
        "notes": list(found.notes),
    }
    for name, off in (("off", found.off), ("random_off", found.random_off)):
        if off is not None:
            heads = [{"layer": layer, "head": head} for layer, head in off.heads]
            document[name] = {"heads": heads, "answered": off.answered, "asked": off.asked}
    return document
