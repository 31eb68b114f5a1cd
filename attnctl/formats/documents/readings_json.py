"""Effects, sources of an answer and needles as JSON, and read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attnctl import __version__
from attnctl.errors import AttnctlError
from attnctl.files import parse_json, read_bytes, write_whole
from attnctl.formats.documents.json_documents import (
    DAMAGED,
    check_schema,
    damage_of,
    document_opening,
    model_document,
    token_document,
    write_json,
)
from attnctl.formats.validation import checked_number, checked_whole_number, finite_floats
from attnctl.readings.effects.answer_sources import AnswerSources
from attnctl.readings.effects.effects import (
    Contributions,
    EdgeEffect,
    Effect,
    Effects,
    HeadEffect,
    Outcome,
    Word,
    strongest_cuts,
)
from attnctl.readings.effects.needle import NeedleCell, NeedleRun, Needles
from attnctl.text import Document

EFFECTS_SCHEMA = "attnctl.effects/1"


def effects_to_json(effects: Effects, top: int | None = None) -> bytes:
    """One line of JSON, without the newline; heads strongest first, `top` of them (None: all)."""
    return write_json(effects_document(effects, top), "table of effects")


def effects_document(effects: Effects, top: int | None = None) -> Document:
    """Effects as a JSON object. Δ is after minus before, in nats; what was not measured is absent."""
    document = document_opening(EFFECTS_SCHEMA, effects.text, effects.tokens, effects.model, effects.key_tokens)
    document |= {"how": effects.how, "query": effects.query}
    if effects.target is not None:
        document["target"] = _word_document(effects.target)
    if effects.against is not None:
        document["against"] = _word_document(effects.against)
    numbers = ("log_probability", "probability", "logit", "logit_difference", "distance")
    document["baseline"] = _present_values(numbers, effects.baseline) | _best_document(effects.baseline)
    if effects.heads:
        document["heads"] = [_head_effect(one) for one in effects.strongest(top)]
    if effects.edges:
        document["edges"] = [_edge_effect(one, effects.query) for one in strongest_cuts(effects.edges, top)]
    if effects.spans:
        document["spans"] = [
            {"name": one.name, "start": one.start, "end": one.end} | _change_document(one.effect)
            for one in strongest_cuts(effects.spans, top)
        ]
    if effects.heads:
        document["agreement"] = {} if effects.kendall_tau is None else {"kendall_tau": effects.kendall_tau}
    if effects.approximation is not None:
        rank, count = effects.approximation
        document["approximation"] = {"rank_correlation": rank, "heads": count}
    if effects.contributions is not None:
        document["contributions"] = contributions_document(effects.contributions)
    return document | {"notes": list(effects.notes)}


def _word_document(word: Word) -> Document:
    """The word; `id` of its first token, `ids` of all where it has several."""
    return {"text": word.text, "id": word.ids[0]} | ({"ids": list(word.ids)} if len(word.ids) > 1 else {})


def _present_values(names: Sequence[str], values: object) -> Document:
    return {name: value for name in names if (value := getattr(values, name)) is not None}


def _best_document(outcome: Outcome) -> Document:
    if outcome.best is None:
        return {}
    return {"best": {"text": outcome.best[0], "probability": outcome.best[1]}}


def _change_document(effect: Effect) -> Document:
    document = _present_values(("log_probability", "logit_difference", "distance"), effect)
    if effect.after.probability is not None:
        document["probability"] = effect.after.probability
    return document | _best_document(effect.after)


def _head_effect(one: HeadEffect) -> Document:
    document: Document = {"layer": one.layer, "head": one.head, "looks": {"key": one.key, "weight": one.weight}}
    return document | ({} if one.writes is None else {"writes": one.writes}) | _change_document(one.effect)


def _edge_effect(one: EdgeEffect, watched: int) -> Document:
    """An edge; its query where that is not the watched one, and no key where all edges named are cut together."""
    document: Document = {} if one.key is None else {"key": one.key}
    if one.key is not None and one.query != watched:
        document["query"] = one.query
    return document | ({"together": True} if one.key is None else {}) | _change_document(one.effect)


def contributions_document(contributions: Contributions) -> Document:
    """The logit taken apart: what the model says, what the parts add up to, and the parts."""
    parts = []
    for part in contributions.parts:
        document: Document = {"part": part.part}
        document |= {} if part.layer is None else {"layer": part.layer}
        document |= {} if part.head is None else {"head": part.head}
        document["value"] = part.value
        if part.keys is not None:
            document["keys"] = list(part.keys)
        parts.append(document)
    return {"logit": contributions.logit, "sum": contributions.sum_of_parts, "parts": parts}


SOURCES_SCHEMA = "attnctl.sources/1"


def sources_document(found: AnswerSources, top: int | None = None) -> Document:
    """The JSON document, of so many parts (None: all); start and end are characters of the rendered prompt."""
    parts: list[Document] = []
    for one in found.parts[:top]:
        entry: Document = {
            "name": one.part.name,
            "start": one.part.start,
            "end": one.part.end,
            "looks": one.looks,
            "matters": one.matters,
            "alone": one.alone,
        }
        entry |= {} if one.writes is None else {"writes": one.writes}
        entry |= {} if one.removed is None else {"removed": one.removed}
        parts.append(entry)
    tokens = []
    for index, (token, first) in enumerate(zip(found.answer_tokens, found.first_sources(), strict=True)):
        entry = token_document(index, token) | {"log_probability": float(found.log_probabilities[index])}
        tokens.append(entry | ({} if first is None else {"source": first}))
    return {
        "schema": SOURCES_SCHEMA,
        "attnctl": __version__,
        "prompt": found.prompt,
        "model": model_document(found.model),
        "answer": {
            "text": found.answer,
            "given": found.given,
            "tokens": tokens,
            "log_probability": found.log_probability,
        },
        "parts": parts,
        "apart": found.apart,
        "agreement": found.rank_agreement(),
        "forwards": found.forwards,
        "notes": list(found.notes),
    }


def sources_to_json(found: AnswerSources, top: int | None = None) -> bytes:
    """One line of JSON, without the newline."""
    return write_json(sources_document(found, top), "result")


NEEDLES_SCHEMA, SCHEMA_OF_ALL = "attnctl.needle/1", "attnctl.needles/1"


def cell_document(cell: NeedleCell, run: NeedleRun) -> Document:
    """One needle; `scores` are layer → the retrieval score of each head."""
    return {
        "schema": NEEDLES_SCHEMA,
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


def known_needles(path: str, run: NeedleRun) -> list[NeedleCell]:
    """The needles that the file of JSON lines of an earlier run holds; [] where there is none.

    A last line that was cut off is taken out of the file. Raises AttnctlError for a file of something else, or of another
    run.
    """
    data = read_bytes(path) if Path(path).is_file() else b""
    whole = data[: data.rfind(b"\n") + 1]
    wanted, cells = _run_document(run), []
    for number, line in enumerate(filter(bytes.strip, whole.split(b"\n")), 1):
        where = f"{path}, line {number}"
        said = parse_json(line, where)
        if isinstance(said, dict) and said.get("schema") == SCHEMA_OF_ALL:
            continue
        document = check_schema(said, NEEDLES_SCHEMA, where, "a needle")
        for key in ("model", "needle", "question", "expect", "haystack", "seed"):
            if not _is_same(document.get(key), wanted.get(key)):
                raise AttnctlError(f"{where} is of another {key}: name a new file with -o")
        try:
            cells.append(_cell_of_document(document))
        except DAMAGED as error:
            raise AttnctlError(f"{where} is damaged: {damage_of(error)}") from error
    if whole != data:  # the run was stopped in the middle of a line
        write_whole(path, whole)
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
