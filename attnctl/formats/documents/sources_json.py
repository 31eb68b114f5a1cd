"""Where an answer came from, as JSON: schema `attnctl.sources/1`."""

from __future__ import annotations

from attnctl import __version__
from attnctl.formats.documents.json_documents import model_document, token_document, write_json
from attnctl.readings.effects.answer_sources import AnswerSources
from attnctl.text import Document

SCHEMA = "attnctl.sources/1"


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
        "schema": SCHEMA,
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
