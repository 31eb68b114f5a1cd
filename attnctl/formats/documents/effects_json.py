"""Effects as JSON: schema `attnctl.effects/1`."""

from __future__ import annotations

from collections.abc import Sequence

from attnctl.formats.documents.json_documents import document_opening, write_json
from attnctl.readings.effects.contributions import Contributions
from attnctl.readings.effects.effects import EdgeEffect, Effect, Effects, HeadEffect, Outcome, Word, strongest_cuts
from attnctl.text import Document

SCHEMA = "attnctl.effects/1"


def effects_to_json(effects: Effects, top: int | None = None) -> bytes:
    """One line of JSON, without the newline; heads strongest first, `top` of them (None: all)."""
    return write_json(effects_document(effects, top), "table of effects")


def effects_document(effects: Effects, top: int | None = None) -> Document:
    """Effects as a JSON object. Δ is after minus before, in nats; what was not measured is absent."""
    document = document_opening(SCHEMA, effects.text, effects.tokens, effects.model, effects.key_tokens)
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
