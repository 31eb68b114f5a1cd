"""The forms of contributions: what heads and MLPs add to a logit."""

from __future__ import annotations

from collections.abc import Iterator

from attnctl.errors import option_name
from attnctl.render import Column, Form, Line, Table, token_label
from attnctl.text import bare_word, counted, sentence_percent
from attnctl.watched import ContributionPart, Effects

SHOWN = 10  # heads and MLPs in a table by default
TOKENS = 4  # source tokens that are named for a head
KINDS = (("embedding", "embedding"), ("head", "heads"), ("mlp", "MLPs"), ("bias", "biases"))


def contributions_forms(effects: Effects, top: int | None = None) -> Iterator[Form]:
    """Yield the logit as a sum: a line for each kind of part, the total beside the model's logit, the strongest parts."""
    parts = effects.contributions
    assert parts is not None and effects.target is not None
    yield f"{effects.model.name}, {counted(len(effects.tokens), 'token')}", "bold"
    above = "" if effects.against is None else f", above that of {bare_word(effects.against.text)},"
    place = f"{token_label(effects.tokens[effects.query], 24)} ({effects.query})"
    yield (
        f"The logit of {bare_word(effects.target.text)} ({sentence_percent(effects.baseline.probability)}){above} "
        f"{'after' if effects.model.causal else 'at'} {place}, as a sum."
    )
    yield ""
    sums = []
    for kind, name in KINDS:
        values = [part.value for part in parts.parts if part.part == kind]
        if values and (kind != "bias" or any(values)):
            sums.append((f"{name} ({len(values)})" if kind in ("head", "mlp") else name, f"{sum(values):+.4f}"))
    model_value = f"the model's own {'difference' if effects.against else 'logit'}"
    sums += [("sum", f"{parts.sum_of_parts:.4f}")]
    if parts.logit_before_cap is not None:
        sums.append((f"{model_value}, before its cap", f"{parts.logit_before_cap:.4f}"))
    sums.append((model_value, f"{parts.logit:.4f}"))
    columns = [Column("", [name for name, _ in sums], "text"), Column("", [number for _, number in sums])]
    yield Table(columns, strong=[name == "sum" for name, _ in sums])
    yield ""
    strongest = sorted(
        (part for part in parts.parts if part.part in ("head", "mlp")), key=lambda part: -abs(part.value)
    )
    rows, largest = strongest[: top or SHOWN], abs(strongest[0].value) if strongest else 1.0
    names = [f"head {part.head}" if part.part == "head" else "MLP" for part in rows]
    layers = ["" if part.layer is None else f" of layer {part.layer}" for part in rows]
    yield Table(
        [
            Column("strongest parts", list(map("{}{}".format, names, layers)), "text"),
            Column(
                "writes",
                [part.value for part in rows],
                "change",
                "+.3f",
                shade=[part.value / (largest or 1) for part in rows],
            ),
            Column("from", [_source_tokens(effects, part) for part in rows], "text", rank=0, cut="end", tone="dim"),
        ]
    )
    if len(strongest) > len(rows):
        yield (
            f"{len(strongest) - len(rows)} more parts write less: see {option_name('top')}, or {option_name('json')}",
            "dim",
        )
    yield ""
    along = "the word's row" if effects.against is None else "the difference of the two words' rows"
    yield (
        f"Each part is what it added to the residual stream, along {along} of the unembedding, any final norm "
        "held at its scale on this text. A head's is Σ weight · value · W_O over the tokens that it looks at."
    )


def _source_tokens(effects: Effects, part: ContributionPart) -> Line:
    values = part.keys or ()
    keys = sorted(range(len(values)), key=lambda index: -abs(values[index]))[:TOKENS]
    texts = [f"{token_label(effects.key_axis[key], 12)} {values[key]:+.2f}" for key in keys]
    return Line.of_texts(texts)
