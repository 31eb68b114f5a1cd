"""Effects of heads, edges and parts as tables, and what they come to in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attnctl.errors import option_name
from attnctl.layer.interventions import SENTENCES
from attnctl.readings.spans import SENTENCES as SENTENCE_PARTS
from attnctl.readings.spans import WORDS, first_words
from attnctl.render import ABSENT, Column, Form, Line, Piece, Table, shaded_tokens, token_label
from attnctl.text import bare_word, counted, number_text, sentence_percent, visible_text
from attnctl.watched import EdgeEffect, Effect, Effects, HeadEffect, SpanEffect, strongest_cuts

SHOWN = 10  # heads, words or sentences in a table by default
LINES = 40  # of a shaded text
LEAST_NUMBER = 0.05  # of the largest effect: words with less have no number behind them in a text without colours
LOOKS = 20  # cells of the key's name and weight
WHY = {
    "zero": "the default, as it needs no other text and leaves nothing of the head; it also takes a head far off its usual "
    "output, which the mean does not",
    "mean": "what the head writes on average stays, only what it tells positions apart is gone",
    "resample": "the head writes what it would write elsewhere, which keeps its output usual",
}


def effects_forms(effects: Effects, top: int | None = None) -> Iterator[Form]:
    """Yield the prediction before any change, a table of each kind of effect, and a summary in sentences.

    If `top` is None: SHOWN heads, and every edge and span.
    """
    yield from _watched_forms(effects)
    if effects.heads:
        heads = effects.strongest(top or SHOWN)
        yield ""
        yield _heads_table(effects, heads)
        yield from _omitted_line(len(effects.heads) - len(heads), "more head does", "more heads do")
    edges: Sequence[EdgeEffect | SpanEffect] = strongest_cuts(effects.edges, top)
    in_sentences = effects.parts in (WORDS, SENTENCE_PARTS)
    spans = effects.strongest_spans(top or SHOWN) if in_sentences else strongest_cuts(effects.spans, top)
    for title, rows, count in (
        ("cut", edges, len(effects.edges)),
        ("hidden" if in_sentences else "part cut", spans, len(effects.spans)),
    ):
        if rows:
            yield ""
            name = Column(title, [_cut_name(effects, cut) for cut in rows], "text", max_width=34, cut="end")
            looks = [cut.looked_at if isinstance(cut, SpanEffect) else None for cut in rows]
            yield Table(
                [name, Column("looked at", looks, format=sentence_percent, rank=1), *_effect_columns(effects, rows)]
            )
        yield from _omitted_line(count - len(rows), "more does", "more do")
        if title == "cut":
            yield from _shaded_keys(effects)
    if in_sentences:
        yield from _shaded_text(effects)
    yield ""
    yield from effects_sentences(effects)


def effects_page_forms(effects: Effects, top: int | None = None) -> Iterator[Form]:
    """Yield the forms of a page: the text first, unless it follows in shades, since nobody has just typed it there."""
    if effects.parts not in (WORDS, SENTENCE_PARTS):
        yield Line(visible_text(" ".join(effects.text.split())), "bold", lines=LINES)
    yield from effects_forms(effects, top)


def _omitted_line(count: int, singular: str, plural: str) -> Iterator[Form]:
    if count > 0:
        yield Line(
            f"{count} {singular if count == 1 else plural} less: see {option_name('top')}, or {option_name('json')}",
            "dim",
            indent=6,
        )


def _shaded_keys(effects: Effects) -> Iterator[Form]:
    """Yield the tokens, each shaded by the effect of hiding it from the watched token; nothing if other edges were cut."""
    sizes = {edge.key: edge.signed_size for edge in effects.edges if edge.key is not None and edge.query is None}
    largest = max((edge.absolute_size for edge in effects.edges), default=0.0)
    if largest and 1 < len(sizes) == sum(not edge.together for edge in effects.edges):
        shares = [sizes.get(key, 0.0) / largest for key in range(len(effects.key_axis))]
        yield from shaded_tokens(effects.key_axis, shares, "change")


def parts_in_text(effects: Effects) -> Iterator[tuple[str, SpanEffect | None]]:
    """Yield the text in its order, piece by piece: each part with its effect, and what lies between parts with None."""
    begun = 0
    for span in effects.spans:
        places = [(token.start, token.end) for token in effects.key_axis[span.start : span.end] if not token.special]
        starts, ends = [a for a, _ in places if a is not None], [b for _, b in places if b is not None]
        if not starts or not ends:
            continue
        part = effects.text[max(min(starts), begun) : max(ends)]
        start = max(ends) - len(part.lstrip())
        yield effects.text[begun:start], None
        yield effects.text[start : max(ends)], span
        begun = max(ends)
    yield effects.text[begun:], None


def effect_number(effects: Effects, effect: Effect) -> str:
    """Return the size of an effect with its sign, as the tables write it."""
    if effect.distance is not None:
        return f"{effect.distance:.4f}"
    text = f"{effect.signed_size:+.{2 if effect.number is None else 4}f}"
    return text if text.strip("+-0.") else text[1:]


def _shaded_text(effects: Effects) -> Iterator[Form]:
    """Yield the text, each part shaded by the effect of hiding it, or without colours with the number behind it."""
    largest = max((span.absolute_size for span in effects.spans), default=0.0) or 1.0
    shaded: list[Piece] = []
    numbered: list[Piece] = []
    for text, span in parts_in_text(effects):
        text = " ".join(visible_text(word) if word else "" for word in re.split(r"\s+", text))
        shaded.append(text if span is None else (text, f"change {span.signed_size / largest:.3f}"))
        number = "" if span is None else effect_number(effects, span)
        stands_out = span is not None and span.absolute_size > LEAST_NUMBER * largest
        numbered.append(f"{text}({number})" if stands_out and number.strip("+-0.") else text)
    yield ""
    yield Line(shaded, lines=LINES, uncoloured=tuple(numbered))
    if effects.target is not None:
        what = "number" if effects.baseline.probability is None else bare_word(effects.target.text)
        legend: list[Piece] = ["Hidden, it makes", what, ("fall", "change -1.000"), "or", ("rise", "change 1.000")]
        yield Line(legend, between=" ", shaded=True)


def _heads_table(effects: Effects, heads: Sequence[HeadEffect]) -> Table:
    def looked_at(head: HeadEffect) -> str:
        key, weight = head.looks.key, head.looks.weight
        return f"{weight:.2f} {token_label(effects.key_axis[key], LOOKS - 11 - len(str(key)))} ({key})"

    return Table(
        [
            Column("layer", [head.layer for head in heads]),
            Column("head", [head.head for head in heads]),
            Column("looks at", [looked_at(head) for head in heads], "text", rank=2),
            Column("writes", [head.writes for head in heads], format="+.2f", rank=1),
            *_effect_columns(effects, heads),
        ]
    )


def _effect_columns(all_effects: Effects, effects: Sequence[Effect]) -> list[Column]:
    """Return the columns of the effects; the last one has the word that becomes the likeliest, if it is another."""
    largest = max((effect.absolute_size for effect in effects), default=0.0) or 1.0
    if all_effects.target is None:
        shares = [effect.absolute_size / largest for effect in effects]
        return [Column("distance", [effect.distance for effect in effects], "change", ".4f", shade=shares)]
    shares = [effect.signed_size / largest for effect in effects]
    by_logits = all_effects.against is not None
    instead = [_said_instead(all_effects, effect) for effect in effects]
    return [
        Column(
            "Δ log p",
            [effect.log_probability for effect in effects],
            "change",
            "+.2f",
            shade=[] if by_logits else shares,
        ),
        Column(
            "Δ logits",
            [effect.logit_difference if by_logits else None for effect in effects],
            "change",
            "+.2f",
            shade=shares,
        ),
        Column("Δ", [None if by_logits else effect.number for effect in effects], "change", "+.4f", shade=shares),
        Column("p without", [effect.probability for effect in effects], format=sentence_percent),
        Column("", instead, "text", rank=0, tone="dim", cut="end"),
    ]


def _said_instead(effects: Effects, effect: Effect) -> str | None:
    before, after = effects.baseline.best, effect.best
    if before is None or after is None or after.text == before.text:
        return None
    return f"says {token_label(visible_text(after.text.strip() or after.text), 14)} ({sentence_percent(after.probability)})"


def _cut_name(effects: Effects, cut: EdgeEffect | SpanEffect) -> str:
    if isinstance(cut, SpanEffect):
        whole = cut.token_count == cut.end - cut.start
        last = f"–{cut.end - 1}" * (cut.token_count > 1)
        place = f"{cut.start}{last}" if whole else counted(cut.token_count, "token")
        return f"{visible_text(cut.name)} ({place})"
    if cut.key is None:
        return "all of these together"
    position = effects.query if cut.query is None else cut.query
    query = f"{token_label(effects.tokens[position], 12)} ({position})"
    return f"{query} → {token_label(effects.key_axis[cut.key], 12)} ({cut.key})"


def _watched_forms(effects: Effects) -> Iterator[Form]:
    watched_token = f"{token_label(effects.tokens[effects.query], 24)} ({effects.query})"
    heading = (f"{effects.model.name}, {counted(len(effects.tokens), 'token')}", "bold")
    if effects.target is None:
        yield heading
        return
    if effects.target.is_class:
        yield Line([heading, f"   its label, read at {watched_token}"])
    else:
        follows = "what follows " * bool(effects.model.causal)
        yield Line([heading, f"   watched: {follows}{watched_token}"])
    target, base = bare_word(effects.target.text), effects.baseline
    if base.probability is None:
        yield f"{target} is {number_text(base.logit or 0.0, 4)}."
        return
    exact = ABSENT if base.log_probability is None else number_text(base.log_probability, 2)
    line = f"{target} has {sentence_percent(base.probability)} (log-probability {exact})"
    if effects.against is not None and base.logit_difference is not None:
        more = "above" if base.logit_difference >= 0 else "below"
        line += f", {abs(base.logit_difference):.2f} logits {more} {bare_word(effects.against.text)}"
    yield f"{line}."
    if effects.model.causal is False and effects.target.text.strip() == effects.tokens[effects.query].text:
        yield f"{target} is visible to the model: put ____ (or the model's mask) in its place, so that it is predicted."
    if base.best is not None and bare_word(base.best.text) != target:
        yield f"The model itself would say {bare_word(base.best.text)} ({sentence_percent(base.best.probability)})."


def effects_sentences(effects: Effects) -> Iterator[str]:
    """Yield a summary of the effects in sentences."""
    for measured, unit in _measured_in_turn(effects):
        yield _without_what(effects, measured[0])
        before = effects.baseline.best
        answers = [best for effect in measured if (best := effect.best) is not None]
        turned = [best for best in answers if before is not None and best.text != before.text]
        if turned:
            count = counted(len(measured), unit)
            yield f"{len(turned)} of {count} alone lead{'s' * (len(turned) == 1)} to another answer."
    if effects.agreement is not None and (tau := effects.agreement.kendall_tau) is not None:
        yield (
            f"Do the heads that look hardest also matter most? Over {counted(len(effects.heads), 'head')} the two orders "
            f"agree by {tau:+.2f} (Kendall's τ of a head's largest weight and the size of its effect: 1 is the same order, "
            "0 no relation, -1 the reverse)."
        )
    if (parts := effects.contributions) is not None and effects.target is not None:
        name, choices = bare_word(effects.target.text), "labels" if effects.target.is_class else "words"
        logit = f"the logit of {name}, its score"
        if effects.against is not None:
            logit = f"the logit difference of {name} and {bare_word(effects.against.text)}, of their scores"
        yield (
            f"Writes: what the head itself adds to {logit} before the softmax over all {choices}{_norm_note(effects)}; what "
            f"later layers make of it is not counted. All parts of the model together add up to {parts.sum_of_parts:.4f}; "
            f"the model's own is {parts.summed_logit:.4f}"
            f"{'' if parts.logit_before_cap is None else f', which its cap brings to {parts.logit:.4f}'}."
        )
    if (approximation := effects.approximation) is not None:
        yield (
            "Approximate: gradient × activation, one forward and backward for everything. Rank correlation with exact "
            f"ablation of the {counted(approximation.heads, 'head')} it puts first: {approximation.rank_correlation:+.2f}."
        )
    if effects.heads:
        yield f"Ablated: {SENTENCES[effects.how]} ({option_name('how', effects.how)}: {WHY[effects.how]})."
    if effects.spans:
        yield "Looked at: the part's share of the watched position's attention, a mean over all layers and heads."
    if effects.spans and effects.parts in (WORDS, SENTENCE_PARTS):
        from_whom = "every token outside it" if effects.reads_itself else "the watched token"
        yield (
            f"Hidden: its keys are left out of the softmax of {from_whom}, and the other keys share their weight. It is not "
            "deleted, and no mask takes its place."
        )
    elif effects.edges or effects.spans:
        yield "Cut: the key is hidden before the softmax, so the rest of the row shares its weight."


def _norm_note(effects: Effects) -> str:
    """Return how the normalisation before the scores is treated; empty for a built-in model, which has none."""
    return " (the last normalisation kept as it is on this text)" if effects.model.nature.is_network else ""


def _measured_in_turn(effects: Effects) -> Iterator[tuple[Sequence[HeadEffect | SpanEffect], str]]:
    """Yield the effects of heads, and of words or sentences, the largest first, each with the name of one of them."""
    if effects.heads:
        yield effects.strongest(), "head"
    if effects.spans and effects.parts in (WORDS, SENTENCE_PARTS):
        yield effects.strongest_spans(), effects.parts.removesuffix("s")


def _without_what(effects: Effects, effect: HeadEffect | SpanEffect) -> str:
    if isinstance(effect, SpanEffect):
        number, _, sentence = effect.name.partition(" ")
        name = (
            bare_word(effect.name)
            if effects.parts == WORDS
            else f"sentence {number} ({bare_word(first_words(sentence))})"
        )
        without = f"Without {name},"
    else:
        without = f"Without head {effect.head} of layer {effect.layer},"
    if effects.target is None:
        return f"{without} the final states turn furthest: cosine distance {effect.distance:.4f}."
    before, after = effects.baseline.probability, effect.probability
    if effect.number is not None:
        after_number = number_text((effects.baseline.logit or 0.0) + effect.number, 4)
        return f"{without} {bare_word(effects.target.text)} is {after_number}."
    if before is None or after is None:  # to first order
        quantity = "logit difference" if effect.logit_difference is not None else "log-probability"
        size = effect.signed_size
        return (
            f"{without} the {quantity} of {bare_word(effects.target.text)} would move by {size:+.2f}, to first order."
        )
    word, was, now = bare_word(effects.target.text), sentence_percent(before), sentence_percent(after)
    lead = effects.baseline.logit_difference
    if was == now and effects.against is not None and lead is not None and effect.logit_difference is not None:
        moved = f"{lead:.2f} to {lead + effect.logit_difference:.2f}"
        return f"{without} {word} stays at {was}; its logits above {bare_word(effects.against.text)} go from {moved}."
    if was == now:
        return f"{without} {word} stays at {was}."
    return f"{without} {word} {'falls' if after < before else 'rises'} from {was} to {now}."
