"""Show how far two checkpoints drift apart: a summary, a table of the heads that moved most, a picture of every head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnctl.commands.drift.result import Drift, TokenPlace
from attnctl.render import Column, Form, Line, Table, token_label
from attnctl.text import counted, percent, visible_text

if TYPE_CHECKING:
    from attnctl.formats import Look
    from attnctl.render import Panels

MOST_HEADS = 20  # rows of the table


def drift_forms(drift: Drift) -> Iterator[Form]:
    """Yield what was compared, how far each part moved, and a table of the heads that moved most."""
    yield Line(headline(drift), "bold", hanging=2)
    yield ""
    yield Line([(f"{'read':<12}", "dim"), _amount_read(drift)], indent=2)
    for name, sentence in summary(drift):
        yield Line([(f"{name:<12}", "dim"), sentence], indent=2, hanging=12)
    if not any(head.largest.total_variation for head in drift.heads):
        return
    worst = [head for head in drift.worst(MOST_HEADS) if head.total_variation]
    top, rest = worst[0].total_variation, sum(head.total_variation > 0 for head in drift.heads) - len(worst)
    yield ""
    yield Table(
        [
            Column("layer", [head.layer for head in worst]),
            Column("head", [head.head for head in worst]),
            Column(
                *("moved", [head.total_variation for head in worst], "heat", small_number),
                shade=[head.total_variation / top for head in worst],
                about="moved: share of a row's weight that is on other keys in B (total variation), mean over the rows",
            ),
            Column(
                "most", [head.largest.total_variation for head in worst], format=small_number, about="most: in a row"
            ),
            Column("in the row of", [_place(drift, head.largest) for head in worst], "text", cut="end", tone="dim"),
            Column(
                *("on sinks", [head.sink for head in worst], "share"),
                rank=1,
                about="on sinks: share of A's weight on keys that have 30 % of the head's weight in a text",
            ),
            Column(
                *("change", [head.sink_change for head in worst], "number", _points),
                rank=1,
                about="change: that of the share in B, in percentage points",
            ),
        ],
        indent=2,
        legend="{}.",
        omission=f"… {rest} more: JSON has them all" if rest else "",
    )


def headline(drift: Drift) -> str:
    """Return the two models, each with what it has alone: "smollm2 float32 → smollm2 bfloat16"."""
    models = drift.a, drift.b
    facts = [[model.dtype for model in models], [model.device for model in models]]
    facts += [[(model.quantised or "").partition(",")[0] for model in models], list(drift.kernels or ("", ""))]
    differing = [values for values in facts if values[0] != values[1]]
    names = [
        " ".join([visible_text(model.name), *(values[place] for values in differing if values[place])])
        for place, model in enumerate(models)
    ]
    return " → ".join(names)


def summary(drift: Drift) -> list[tuple[str, str]]:
    """Return the name of each part, and a sentence on how far it moved."""
    if not any(head.largest.total_variation for head in drift.heads):
        lines = [("heads", f"all {len(drift.heads):,} have the same weights, to the last bit")]
    else:
        worst = drift.worst(1)[0]
        most = f"{small_number(worst.total_variation)} in layer {worst.layer}, head {worst.head}"
        lines = [("heads", f"{small_number(drift.total_variation)} of a row's weight moves on average; most, {most}")]
    if drift.layers:
        mean = sum(layer.cosine for layer in drift.layers) / len(drift.layers)
        lowest = min(drift.layers, key=lambda layer: layer.cosine)
        sentence = f"cosine {_cosine(mean)} on average"
        if lowest.cosine < 1:
            sentence += f"; lowest, {_cosine(lowest.cosine)} in layer {lowest.layer}"
            sentence += f", where {_place(drift, lowest.place)} has {_cosine(lowest.smallest)}"
        lines.append(("outputs", sentence))
    if drift.kl is not None and drift.top_token_agreement is not None and drift.largest_kl is not None:
        sentence = f"KL {small_number(drift.kl)} nats on average"
        if drift.largest_kl.kl:
            where = f"at {_place(drift, drift.largest_kl)}"
            if drift.predicted == "label":
                where = f"in text {drift.largest_kl.text}"
            sentence += f"; most, {small_number(drift.largest_kl.kl)} {where}" * (drift.predictions > 1)
        agreeing = percent(drift.top_token_agreement, 1)
        if drift.predicted == "label":
            same = f"the likeliest label is the same in {agreeing} of {counted(drift.predictions, 'text')}"
        else:
            same = f"the likeliest token is the same at {agreeing} of {counted(drift.predictions, 'position')}"
        lines.append(("label" if drift.predicted == "label" else "next token", f"{sentence}; {same}"))
    return lines


def _amount_read(drift: Drift) -> str:
    """Return how much was read: "3 texts, 120 tokens"."""
    texts = f"{counted(drift.texts, 'text')}, " if _has_several_texts(drift) else ""
    skipped = f"; {counted(len(drift.skipped), 'text')} skipped" if drift.skipped else ""
    return f"{texts}{counted(drift.tokens, 'token')}{skipped}"


def _has_several_texts(drift: Drift) -> bool:
    return drift.texts + len(drift.skipped) > 1


def _place(drift: Drift, place: TokenPlace) -> str:
    """Return a token with its number, and the number of its text if there are several."""
    text = f", text {place.text}" if _has_several_texts(drift) else ""
    return f"{token_label(place.token.strip() or place.token, 16)} ({place.query}{text})"


def small_number(value: float) -> str:
    """Return a number of 0 or more with three digits behind the point, or as a power of ten if it is smaller."""
    return "0" if value == 0 else f"{value:.3f}" if value >= 0.0005 else f"{value:.0e}".replace("e-0", "e-")


def _cosine(value: float) -> str:
    """Return a cosine; near 1 its distance from 1 is written: 1 - 3e-6."""
    gap = 1 - value
    return "1" if gap == 0 else f"{value:.4f}" if gap >= 0.00005 else f"1 - {small_number(gap)}"


def _points(value: float) -> str:
    """Return a change of a share in percentage points, with its sign."""
    points = 100 * value
    return "0" if value == 0 else f"{points:+.2f}" if abs(points) >= 0.005 else f"{points:+.0e}".replace("e-0", "e-")


def drift_panels(drift: Drift, look: Look) -> Panels:
    """Return a picture of layer × head: how far each head moved."""
    from attnctl.render import LEAST_EXTENT, Scale, colour_map, colour_norm, panel_of_heads

    largest = drift.worst(1)[0].total_variation
    values = {(head.layer, head.head): head.total_variation for head in drift.heads}
    top = look.vmax if look.vmax is not None else largest or LEAST_EXTENT
    scale = Scale(colour_norm(look.vmin or 0.0, top), colour_map(look.cmap), "total variation", small_number)
    note = "total variation: share of a row's weight that is on other keys in B, mean over the rows of each head"
    if drift.kl is not None and drift.top_token_agreement is not None:
        agreeing = percent(drift.top_token_agreement, 1)
        predicted = "label" if drift.predicted == "label" else "next token"
        note += f"; {predicted}: KL {small_number(drift.kl)} nats, the likeliest the same at {agreeing}"
    title = headline(drift) if look.title is None else look.title
    cited = f"A {drift.a.citation}; B {drift.b.citation}"
    return panel_of_heads(values, scale, title, note, "no head", cited)
