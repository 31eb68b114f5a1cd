"""The forms of one query of a long text: for each head its entropy, its top keys in the text, its mass by parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attnctl.readings.overview import LongRow, TextPart
from attnctl.render.forms import Column, Form, Line, Table, bar_columns, token_label
from attnctl.runtime.arrays import Floats
from attnctl.text import counted, visible_text
from attnctl.text.tokens import Token
from attnctl.trace.subject import numbers_in_text

AROUND = 40  # characters of the text on each side of a key
BAR = 12
IN_FULL = 6  # heads; with more, each has one line
BRIEF = 4  # keys in that line


def row_forms(row: LongRow, parts: Sequence[TextPart] = (), top: int = 10, whole: bool = True) -> Iterator[Form]:
    """Yield the query in its text, then the row of each head.

    If it is not the `whole` row, its keys are its strongest links, and neither its entropy nor its other keys are known.
    """
    key_numbers = numbers_in_text(row.tokens, row.key_axis)  # also where keys were left out
    numbers, text = (range(len(row.key_axis)), "") if key_numbers is None else (key_numbers, row.text)
    yield f"{row.model.name}, {counted(len(row.tokens), 'token')}", "bold"
    yield Table([Column("", [f"query {row.query}"], "text"), *_surroundings(row.text, [row.tokens[row.query]])])
    best = {
        place: [key for key in np.argsort(-weights, kind="stable")[:top].tolist() if weights[key] > 0]
        for place, weights in row.weights.items()
    }
    entropies = [row_entropy(weights) for weights in row.weights.values()]
    if len(best) > IN_FULL:
        keys = [
            Line.of_texts(
                [
                    f"{row.weights[place][key]:.3f} {numbers[key]} {token_label(row.key_axis[key], 14)}"
                    for key in keys[:BRIEF]
                ]
            )
            for place, keys in best.items()
        ]
        yield ""
        yield Table(
            [
                Column("layer", [layer for layer, _ in best]),
                Column("head", [head for _, head in best]),
                Column("entropy", entropies if whole else [None] * len(best), format=".2f"),
                Column("looks most at", keys, "text", cut="end"),
            ]
        )
        return
    for (place, weights), nats in zip(row.weights.items(), entropies, strict=True):
        yield ""
        chosen = best[place]
        if not chosen:  # every key that the query may look at was left out
            yield Line([f"layer {place[0]}, head {place[1]}", ("   looks at no key that is left", "dim")])
            continue
        entropy = f"   entropy {nats:.2f} nats, as if spread evenly over {np.exp(nats):.0f} keys"
        yield Line([f"layer {place[0]}, head {place[1]}", (entropy if whole else "", "dim")])
        yield Table(
            [
                *bar_columns([float(weights[key]) for key in chosen], ".3f", BAR),
                Column("", [str(numbers[key]) for key in chosen], tone="dim"),
                *_surroundings(text, [row.key_axis[key] for key in chosen]),
            ],
            indent=2,
        )
        if whole:
            other_mass = max(float(weights.sum()) - float(weights[chosen].sum()), 0.0)
            yield Line(f"{other_mass:.3f} on the other {len(row.key_axis) - len(chosen):,} keys", "dim", indent=2)
        if parts:
            masses = [sum(float(weights[a:b].sum()) for a, b in part.ranges) for part in parts]
            largest = sorted(range(len(parts)), key=lambda part_index: -masses[part_index])[:top]
            yield ""
            names = Column(
                "", [token_label(parts[part_index].name) for part_index in largest], "text", max_width=60, cut="end"
            )
            more = f"… {len(parts) - len(largest)} more parts" if len(parts) > len(largest) else ""
            yield Table(
                [*bar_columns([masses[part_index] for part_index in largest], ".3f", BAR), names],
                indent=2,
                omission=more,
            )


def row_entropy(weights: Floats) -> float:
    """Return the entropy of one row, in nats."""
    positive = weights[weights > 0].astype(np.float64)
    return float(-(positive * np.log(positive)).sum())


def _surroundings(text: str, tokens: Sequence[Token]) -> list[Column]:
    """Return the columns of tokens, each between the text before and after it."""
    before, names, after = [], [], []
    for token in tokens:
        name = f"‹{token_label(token, 24)}›"  # marked for terminals without colours, too
        start, end = token.start, token.end
        if not text or start is None or end is None or end <= start:
            before.append("")
            names.append(f" {name}")
            after.append("")
            continue
        covered = text[start:end]
        start += (len(covered) - len(covered.lstrip())) * bool(covered.strip())  # a piece may begin with a space
        before.append(_one_line(text[max(0, start - AROUND) : start]))
        names.append(" " * text[:start][-1:].isspace() + name)  # a table cuts spaces off the end of a cell
        after.append(" " * text[end : end + 1].isspace() + _one_line(text[end : end + AROUND]))
    lines = [Line([(name, "accent"), (text, "dim")]) for name, text in zip(names, after, strict=True)]
    return [Column("", before, "text", cut="start", tone="dim"), Column("", lines, "text", cut="end", joined=True)]


def _one_line(text: str) -> str:
    """Return the words of a range of text on one line; empty for white space."""
    words = " ".join(text.split())
    return visible_text(words) if words else ""
