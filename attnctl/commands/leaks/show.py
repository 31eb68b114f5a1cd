"""Leaks between the segments of a batch: a sentence for each pair that is wrong, and tables of segment × segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnctl.commands.leaks.result import LeakPair, Leaks
from attnctl.render.forms import Column, Form, Line, Table
from attnctl.text import counted, number_list, percent, visible_text

MOST, WIDEST = 12, 12  # sentences, and segments of a row in a table
CAUSES = {
    "padding": "attention_mask is left out, or lets the padding through",
    "prefix": "a bidirectional prefix of {prefix} tokens (meant so? expect “prefix {prefix}”)",
    "token-types": "token_type_ids mark parts, and hide nothing: some models let them look at each other both ways",
    "no-causal-mask": "no mask hides the future",
    "given-mask": "the four-dimensional attention_mask of the batch lets it through",
    "added-mask": "eager attention adds a mask of true and false to the scores: make it 0 and the lowest number",
    "mask-of-ids": "a 2-D attention_mask of segment numbers, of which transformers reads only which are 0",
    "mask-given": "position_ids restart, but with a 2-D attention_mask transformers does not look at them: leave it out",
    "cache": "position_ids restart, but with a cache transformers does not look at them: call with use_cache=False",
    "positions-unread": "this model makes no mask of position_ids: give a four-dimensional mask, which stands for the "
    "windows of its layers too, or use FlashAttention, which reads the positions itself",
    "positions-in-planes": "this model makes a mask only of position_ids with four planes, (4, batch, tokens): first the "
    "places of the tokens in their documents, then time, height and width",
    "kernel": "only FlashAttention reads cu_seq_lens: give position_ids that restart",
    "nothing-given": "nothing in the batch tells the model where a segment ends: let position_ids restart",
    "relayed": "by way of a segment that sees it, which passes it on in the next layer",
    "state": "no attention lets it through: a state is carried from token to token (Mamba, convolution)",
}


def leaks_forms(found: Leaks) -> Iterator[Form]:
    """What was measured, what is wrong, and how each pair stands."""
    yield Line(headline(found), "bold")
    yield from (Line(sentence, indent=2, hanging=2, mark="✗ ") for sentence in sentences(found)[:MOST])
    if len(found.wrong) > MOST:
        yield f"  … {len(found.wrong) - MOST} more: all are in JSON"
    rows = sorted({found.segments[pair.query].row for pair in found.wrong}) or [0]
    for row in rows[:3]:
        pairs = [pair for pair in found.pairs if found.segments[pair.query].row == row]
        if len({pair.key for pair in pairs}) <= WIDEST:
            yield from row_tables(found, pairs, f", row {row} of the batch" * (found.segments[-1].row > 0))
    yield ""
    noise = "the same to the last bit" if not found.floor else f"up to {found.floor:.1e} apart"
    yield Line(
        f"The diagonal is a segment's own future. Two runs of the same input are {noise}; changes of {found.outputs} by "
        f"up to {found.limit:.1e} are rounding.",
        "dim",
    )


def headline(found: Leaks) -> str:
    """What was measured and how it ended, in one line."""
    several = sum(not segment.padding for segment in found.segments)
    rows = f" in {found.segments[-1].row + 1} rows" if found.segments[-1].row else ""
    ended = (
        f"{counted(len(found.wrong), 'leak')}" if found.wrong else "all are apart" if several > 1 else "nothing leaks"
    )
    expected = {"segments": "apart", "causal": "causal"}.get(found.expect, f"with {found.expect}")
    return f"{visible_text(found.model.name)}: {counted(several, 'segment')}{rows}, expected {expected}: {ended}"


def segment_name(found: Leaks, at: int) -> str:
    """How a segment is called: by its number, in a batch of several rows behind that of its row."""
    segment = found.segments[at]
    row = f"{segment.row}." if found.segments[-1].row else ""
    return f"{row}padding" if segment.padding else f"{row}{segment.number}"


def sentences(found: Leaks) -> list[str]:
    """One for each pair that leaks: what crosses, where first, how far it moves the outputs, and the likely cause."""
    return [_sentence(found, pair) for pair in found.wrong]


def _sentence(found: Leaks, pair: LeakPair) -> str:
    query, key = (f"segment {segment_name(found, at)}" for at in (pair.query, pair.key))
    looked = "its own future" if query == key else key.replace("segment padding", "padding")
    parts = [f"{query} sees {looked}" if any(pair.visible) else f"{looked} reaches {query}"]
    if pair.first_layer is not None:
        parts[0] += f" from layer {pair.first_layer} on"
    if pair.largest:
        parts.append(f"up to {percent(pair.largest, 1)} of a token's weight (layer {pair.layer}, head {pair.head})")
    if pair.change is not None and pair.change > found.limit:
        parts.append(f"{found.outputs} move by {pair.change:.3g}")
        parts += [] if pair.divergence is None else [f"KL {pair.divergence:.2g} nats"]
        parts += [] if pair.loss is None else [f"loss {pair.loss:+.3f}"]
    elif pair.change is not None:
        parts.append(f"{found.outputs} do not move")
    cause = CAUSES[pair.cause or "state"].format(prefix=pair.prefix)
    said = ", ".join(parts)
    return f"{said[0].upper()}{said[1:]}. Likely cause: {cause}."


def row_tables(found: Leaks, pairs: Sequence[LeakPair], where: str) -> Iterator[Form]:
    """The tables of one row of the batch: what may be seen, what is, and what it moves."""
    for at, group in enumerate(found.layers):
        layers = f"layer{'s' * (len(group) > 1)} {number_list(group)}" if len(found.layers) > 1 else "every layer"
        yield from _table(
            found, pairs, f"may: share of pairs visible, {layers}{where}", [one.visible[at] for one in pairs], True
        )
    if found.layers:
        yield from _table(found, pairs, f"does: largest weight of a token{where}", [one.largest for one in pairs], True)
    title = f"matters: largest change of {found.outputs}{where}"
    yield from _table(found, pairs, title, [one.change for one in pairs], False)


def _table(
    found: Leaks, pairs: Sequence[LeakPair], title: str, values: Sequence[float | None], shares: bool
) -> Iterator[Form]:
    """Numbers of pairs as a table, a row a segment that looks, on the diagonal those of its own future."""
    queries, keys = dict.fromkeys(pair.query for pair in pairs), dict.fromkeys(pair.key for pair in pairs)
    of_pair = {(pair.query, pair.key): value for pair, value in zip(pairs, values, strict=True)}
    top = 1.0 if shares else max([found.limit, *(value or 0 for value in values)])
    yield ""
    yield Line(title, "accent")
    columns = [Column("looks ↓ at →", [segment_name(found, query) for query in queries], "text")]
    for key in keys:
        own = [of_pair[query, key] for query in queries]
        shade = [None if value is None else value / top for value in own]
        columns.append(Column(segment_name(found, key), own, "heat", told=_number, shade=shade))
    yield Table(columns, indent=2)


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2f}" if value >= 0.005 else f"{value:.0e}"


def leaks_text(found: Leaks) -> str:
    """The headline and every sentence, a line each."""
    return "\n".join([headline(found), *sentences(found)])
