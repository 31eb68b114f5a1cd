"""Effects of heads, edges and parts as tables, and what they come to in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnctl.errors import option_name
from attnctl.interventions import TOLD
from attnctl.render.forms import ABSENT, Column, Form, Line, Table, shaded_tokens, token_label
from attnctl.text import bare_word, counted, number_text, sentence_percent, visible_text
from attnctl.watched.effects import EdgeEffect, Effect, Effects, HeadEffect, SpanEffect, strongest_cuts

SHOWN = 10  # heads in a table by default
LOOKS = 20  # cells of the key's name and weight
WHY = {
    "zero": "the default, as it needs no other text and leaves nothing of the head; it also takes a head far off its usual "
    "output, which the mean does not",
    "mean": "what the head writes on average stays, only what it tells positions apart is gone",
    "resample": "the head writes what it would write elsewhere, which keeps its output usual",
}


def effects_forms(found: Effects, top: int | None = None) -> Iterator[Form]:
    """Yield the prediction before any change, a table of each kind of effect, and a summary in sentences.

    If `top` is None: SHOWN heads, and every edge and span.
    """
    yield from _watched_forms(found)
    if found.heads:
        heads = found.strongest(top or SHOWN)
        yield ""
        yield _heads_table(found, heads)
        yield from _omitted_line(len(found.heads) - len(heads), "more head does", "more heads do")
    edges: Sequence[EdgeEffect | SpanEffect] = strongest_cuts(found.edges, top)
    for title, rows, count in (
        ("cut", edges, len(found.edges)),
        ("part cut", strongest_cuts(found.spans, top), len(found.spans)),
    ):
        if rows:
            yield ""
            name = Column(title, [_cut_name(found, one) for one in rows], "text", most=34, cut="end")
            looks = [one.looked_at if isinstance(one, SpanEffect) else None for one in rows]
            yield Table(
                [name, Column("looked at", looks, told=sentence_percent, rank=1), *_effect_columns(found, rows)]
            )
        yield from _omitted_line(count - len(rows), "more does", "more do")
        if title == "cut":
            yield from _shaded_keys(found)
    yield ""
    yield from effects_sentences(found)


def _omitted_line(count: int, one: str, many: str) -> Iterator[Form]:
    if count > 0:
        yield Line(
            f"{count} {one if count == 1 else many} less: see {option_name('top')}, or {option_name('json')}",
            "dim",
            indent=6,
        )


def _shaded_keys(found: Effects) -> Iterator[Form]:
    """Yield the tokens, each shaded by the effect of hiding it from the watched token; nothing if other edges were cut."""
    sizes = {one.key: one.signed_size for one in found.edges if one.key is not None and one.query is None}
    largest = max((one.absolute_size for one in found.edges), default=0.0)
    if largest and 1 < len(sizes) == sum(not one.together for one in found.edges):
        shares = [sizes.get(at, 0.0) / largest for at in range(len(found.key_axis))]
        yield from shaded_tokens(found.key_axis, shares, "change")


def _heads_table(found: Effects, heads: Sequence[HeadEffect]) -> Table:
    def looked_at(one: HeadEffect) -> str:
        key, weight = one.looks.key, one.looks.weight
        return f"{weight:.2f} {token_label(found.key_axis[key], LOOKS - 11 - len(str(key)))} ({key})"

    return Table(
        [
            Column("layer", [one.layer for one in heads]),
            Column("head", [one.head for one in heads]),
            Column("looks at", [looked_at(one) for one in heads], "text", rank=2),
            Column("writes", [one.writes for one in heads], told="+.2f", rank=1),
            *_effect_columns(found, heads),
        ]
    )


def _effect_columns(found: Effects, effects: Sequence[Effect]) -> list[Column]:
    """Return the columns of the effects; the last one has the word that becomes the likeliest, if it is another."""
    largest = max((one.absolute_size for one in effects), default=0.0) or 1.0
    if found.target is None:
        shares = [one.absolute_size / largest for one in effects]
        return [Column("distance", [one.distance for one in effects], "change", ".4f", shade=shares)]
    shares = [one.signed_size / largest for one in effects]
    by_logits = found.against is not None
    instead = [_said_instead(found, one) for one in effects]
    return [
        Column(
            "Δ log p", [one.log_probability for one in effects], "change", "+.2f", shade=[] if by_logits else shares
        ),
        Column(
            "Δ logits", [one.logit_difference if by_logits else None for one in effects], "change", "+.2f", shade=shares
        ),
        Column("p without", [one.probability for one in effects], told=sentence_percent),
        Column("", instead, "text", rank=0, tone="dim", cut="end"),
    ]


def _said_instead(found: Effects, effect: Effect) -> str | None:
    before, after = found.baseline.best, effect.best
    if before is None or after is None or after.text == before.text:
        return None
    return f"says {token_label(visible_text(after.text.strip() or after.text), 14)} ({sentence_percent(after.probability)})"


def _cut_name(found: Effects, one: EdgeEffect | SpanEffect) -> str:
    if isinstance(one, SpanEffect):
        whole = one.token_count == one.end - one.start
        place = f"{one.start}–{one.end - 1}" if whole else counted(one.token_count, "token")
        return f"{visible_text(one.name)} ({place})"
    if one.key is None:
        return "all of these together"
    at = found.query if one.query is None else one.query
    query = f"{token_label(found.tokens[at], 12)} ({at})"
    return f"{query} → {token_label(found.key_axis[one.key], 12)} ({one.key})"


def _watched_forms(found: Effects) -> Iterator[Form]:
    at = f"{token_label(found.tokens[found.query], 24)} ({found.query})"
    head = (f"{found.model.name}, {counted(len(found.tokens), 'token')}", "bold")
    if found.target is None:
        yield head
        return
    yield Line([head, f"   watched: what follows {at}" if found.model.causal else f"   watched: {at}"])
    target, base = bare_word(found.target.text), found.baseline
    exact = ABSENT if base.log_probability is None else number_text(base.log_probability, 2)
    line = f"{target} has {sentence_percent(base.probability)} (log-probability {exact})"
    if found.against is not None and base.logit_difference is not None:
        more = "above" if base.logit_difference >= 0 else "below"
        line += f", {abs(base.logit_difference):.2f} logits {more} {bare_word(found.against.text)}"
    yield f"{line}."
    if found.model.causal is False and found.target.text.strip() == found.tokens[found.query].text:
        yield f"{target} stands there to be seen: put ____ (or the model's mask) in its place to have it predicted."
    if base.best is not None and bare_word(base.best.text) != target:
        yield f"The model itself would say {bare_word(base.best.text)} ({sentence_percent(base.best.probability)})."


def effects_sentences(found: Effects) -> Iterator[str]:
    """Yield a summary of the effects in sentences."""
    if found.heads:
        yield _without_what(found, found.strongest(1)[0])
        before = found.baseline.best
        others = [best for one in found.heads if (best := one.best) is not None]
        turned = [best for best in others if before is not None and best.text != before.text]
        if turned:
            heads = counted(len(found.heads), "head")
            yield f"{len(turned)} of {heads} alone lead{'s' * (len(turned) == 1)} to another answer."
    if found.agreement is not None and (tau := found.agreement.kendall_tau) is not None:
        yield (
            f"Looking and mattering agree by Kendall's τ {tau:+.2f} over {counted(len(found.heads), 'head')} "
            "(largest weight from the watched token against size of the effect; 1 is the same order, 0 none)."
        )
    if (parts := found.contributions) is not None:
        what = "logit difference" if found.against is not None else "logit"
        yield (
            f"Writes: what the head adds to the {what} directly, any final norm held at its scale on this text. All parts "
            f"of the model together add up to {parts.sum_of_parts:.4f}; the model's own is {parts.summed_logit:.4f}"
            f"{'' if parts.logit_before_cap is None else f', which its cap brings to {parts.logit:.4f}'}."
        )
    if (approximation := found.approximation) is not None:
        yield (
            "Approximate: gradient × activation, one forward and backward for everything. Rank correlation with exact "
            f"ablation of the {counted(approximation.heads, 'head')} it puts first: {approximation.rank_correlation:+.2f}."
        )
    if found.heads:
        yield f"Ablated: {TOLD[found.how]} ({option_name('how', found.how)}: {WHY[found.how]})."
    if found.spans:
        yield "Looked at: the part's share of the watched position's attention, a mean over all layers and heads."
    if found.edges or found.spans:
        yield "Cut: the key is hidden before the softmax, so the rest of the row shares its weight."


def _without_what(found: Effects, one: HeadEffect) -> str:
    head = f"Without head {one.head} of layer {one.layer},"
    if found.target is None:
        return f"{head} the final states turn furthest: cosine distance {one.distance:.4f}."
    before, after = found.baseline.probability, one.probability
    if before is None or after is None:  # to first order
        what = "logit difference" if one.logit_difference is not None else "log-probability"
        size = one.signed_size
        return f"{head} the {what} of {bare_word(found.target.text)} would move by {size:+.2f}, to first order."
    word, was, now = bare_word(found.target.text), sentence_percent(before), sentence_percent(after)
    if was == now:
        return f"{head} {word} stays at {was}."
    return f"{head} {word} {'falls' if after < before else 'rises'} from {was} to {now}."
