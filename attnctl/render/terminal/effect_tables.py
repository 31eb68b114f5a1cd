"""Effects of heads and edges, and what heads and MLPs add to a logit, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl.interventions import TOLD
from attnctl.readings.effects.effects import (
    ContributionPart,
    Contributions,
    EdgeEffect,
    Effect,
    Effects,
    HeadEffect,
    SpanEffect,
    strongest_cuts,
)
from attnctl.render.forms import number_text, token_label
from attnctl.render.terminal.console import DIM, change_style, padded_text
from attnctl.text import counted, sentence_percent, visible_text

SHOWN = 10  # heads, or heads and MLPs, in a table, unless told otherwise
LOOKS = 20  # cells of the key's name and weight
WHY = {
    "zero": "the default, as it needs no other text and leaves nothing of the head; it also takes a head far off its usual "
    "output, which --how mean does not",
    "mean": "what the head writes on average stays, only what it tells positions apart is gone",
    "resample": "the head writes what it would write elsewhere, which keeps its output usual",
}


class EffectsTable:
    """Effects as a rich renderable: the prediction, the heads that do most, edges, spans, and what it comes to in words."""

    def __init__(self, effects: Effects, top: int | None = None) -> None:
        self.effects, self.top = effects, top  # None: SHOWN heads, and every edge and span

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The prediction as it stands, then a table for each thing that was measured."""
        found, width = self.effects, options.max_width
        yield from _effect_prediction(found)
        if found.heads:
            yield Text("")
            yield from self._head_lines(width)
        cuts = (("cut", found.edges, strongest_cuts(found.edges, self.top)),)
        parts = (("part cut", found.spans, strongest_cuts(found.spans, self.top)),)
        for title, every, rows in (*cuts, *parts):
            if rows:
                yield Text("")
                yield from self._cut_lines(title, rows, width)
            if len(rows) < len(every):
                left = len(every) - len(rows)
                yield Text(f"      {left} more {'does' if left == 1 else 'do'} less: see --top, or --json", style=DIM)
        yield Text("")
        for sentence in effects_sentences(found):
            yield Text(sentence)

    def _head_lines(self, width: int) -> Iterator[Text]:
        found = self.effects
        rows = found.strongest(self.top or SHOWN)
        columns = _column_titles(found)
        room = width - 12 - 11 * len(columns)  # what a narrow terminal has beside what each head does
        looks = room >= LOOKS
        writes = any(one.writes is not None for one in rows) and room >= LOOKS + 8
        header = Text("layer head  ", style=DIM, no_wrap=True).append(
            padded_text("looks at", LOOKS, right=False) * looks
        )
        header.append(padded_text("writes", 8) if writes else "")
        yield header.append("".join(padded_text(name, 11) for name in columns))
        largest = max((one.effect.absolute_size for one in rows), default=0.0) or 1.0
        for one in rows:
            line = Text(f"{one.layer:>5} {one.head:>4}  ", no_wrap=True)
            if looks:
                key = token_label(found.key_axis[one.key], LOOKS - 11 - len(str(one.key)))
                line.append(padded_text(f"{one.weight:.2f} {key} ({one.key})", LOOKS, right=False))
            if writes:
                line.append(padded_text("·" if one.writes is None else f"{one.writes:+.2f}", 8))
            yield _effect_numbers(line, found, one.effect, largest, width)
        left = len(found.heads) - len(rows)
        if left > 0:
            more = "head does" if left == 1 else "heads do"
            yield Text(f"      {left} more {more} less: see --top, or --json", style=DIM)

    def _cut_lines(self, title: str, rows: Sequence[EdgeEffect | SpanEffect], width: int) -> Iterator[Text]:
        found = self.effects
        names = [_cut_name(found, one) for one in rows]
        room = max(12, width - 11 * len(_column_titles(found)))
        wide = min(max(map(cell_len, names), default=8) + 1, 34, room)
        header = Text(padded_text(title, wide, right=False), style=DIM, no_wrap=True)
        yield header.append("".join(padded_text(name, 11) for name in _column_titles(found)))
        largest = max((one.effect.absolute_size for one in rows), default=0.0) or 1.0
        for name, one in zip(names, rows, strict=True):
            line = Text(padded_text(token_label(name, wide - 1), wide, right=False), no_wrap=True)
            yield _effect_numbers(line, found, one.effect, largest, width)


def _column_titles(found: Effects) -> list[str]:
    if found.target is None:
        return ["distance"]
    exact = found.approximation is None
    return ["Δ log p", *(["Δ logits"] if found.against is not None else []), *(["p without"] if exact else [])]


def _effect_numbers(line: Text, found: Effects, effect: Effect, largest: float, width: int) -> Text:
    """The numbers of one effect, appended; what the model says instead where it says something else."""
    style = change_style(effect.signed_size / largest if found.target is not None else effect.absolute_size / largest)
    if effect.distance is not None:
        return line.append(padded_text(f"{effect.distance:.4f}", 11), style=style)
    line.append(padded_text(f"{effect.log_probability:+.2f}", 11), style="" if found.against is not None else style)
    if effect.logit_difference is not None:
        line.append(padded_text(f"{effect.logit_difference:+.2f}", 11), style=style)
    if effect.after.probability is not None:
        line.append(padded_text(sentence_percent(effect.after.probability), 11))
    before, after = found.baseline.best, effect.after.best
    if before is not None and after is not None and after[0] != before[0]:
        line.append(
            _said_instead(visible_text(after[0].strip() or after[0]), after[1], width - cell_len(line.plain)), style=DIM
        )
    return line


def _said_instead(word: str, probability: float, room: int) -> str:
    """What the model says instead, in `room` cells: without its probability, or with its word cut, where it must be."""
    said = f"  says {token_label(word, 14)}"
    whole = f"{said} ({sentence_percent(probability)})"
    if cell_len(whole) <= room:
        return whole
    return said if cell_len(said) <= room else f"  says {token_label(word, room - 7)}" if room >= 11 else ""


def _cut_name(found: Effects, one: EdgeEffect | SpanEffect) -> str:
    if isinstance(one, SpanEffect):
        return f"{visible_text(one.name)} ({one.start}–{one.end - 1})"
    if one.key is None:
        return "all of these together"
    query = f"{token_label(found.tokens[one.query], 12)} ({one.query})"
    return f"{query} → {token_label(found.key_axis[one.key], 12)} ({one.key})"


def _effect_prediction(found: Effects) -> Iterator[Text]:
    at = f"{token_label(found.tokens[found.query], 24)} ({found.query})"
    head = Text(f"{found.model.name}, {counted(len(found.tokens), 'token')}", style="bold")
    if found.target is None:
        yield head
        return
    yield head.append(f"   watched: what follows {at}" if found.model.causal else f"   watched: {at}", style="not bold")
    target, base = bare_word(found.target.text), found.baseline
    exact = "·" if base.log_probability is None else number_text(base.log_probability, 2)
    line = f"{target} has {sentence_percent(base.probability)} (log-probability {exact})"
    if found.against is not None and base.logit_difference is not None:
        more = "above" if base.logit_difference >= 0 else "below"
        line += f", {abs(base.logit_difference):.2f} logits {more} {bare_word(found.against.text)}"
    yield Text(line + ".")
    if found.model.causal is False and found.target.text.strip() == found.tokens[found.query].text:
        yield Text(
            f"{target} stands there to be seen: put ____ (or the model's mask) in its place to have it predicted."
        )
    if base.best is not None and bare_word(base.best[0]) != target:
        yield Text(f"The model itself would say {bare_word(base.best[0])} ({sentence_percent(base.best[1])}).")


def effects_sentences(found: Effects) -> Iterator[str]:
    """What the numbers come to, in words."""
    if found.heads:
        yield _without_what(found, found.strongest(1)[0])
        before = found.baseline.best
        others = [best for one in found.heads if (best := one.effect.after.best) is not None]
        turned = [best for best in others if before is not None and best[0] != before[0]]
        if turned:
            heads = counted(len(found.heads), "head")
            yield f"{len(turned)} of {heads} alone turn{'s' * (len(turned) == 1)} the answer to another word."
    if found.kendall_tau is not None:
        yield (
            f"Looking and mattering agree by Kendall's τ {found.kendall_tau:+.2f} over {counted(len(found.heads), 'head')} "
            "(largest weight from the watched token against size of the effect; 1 is the same order, 0 none)."
        )
    if (parts := found.contributions) is not None:
        what = "logit difference" if found.against is not None else "logit"
        yield (
            f"Writes: what the head adds to the {what} directly, any final norm held at its scale on this text. All parts "
            f"of the model together add up to {parts.sum_of_parts:.4f}; the model's own is {parts.logit:.4f}."
        )
    if found.approximation is not None:
        rank, count = found.approximation
        yield (
            "Approximate: gradient × activation, one forward and backward for everything. Rank correlation with exact "
            f"ablation of the {counted(count, 'head')} it puts first: {rank:+.2f}."
        )
    if found.heads:
        yield f"Ablated: {TOLD[found.how]} (--how {found.how}: {WHY[found.how]})."
    if found.edges or found.spans:
        yield "Cut: the key is hidden before the softmax, so the rest of the row shares its weight."


def _without_what(found: Effects, one: HeadEffect) -> str:
    head = f"Without head {one.head} of layer {one.layer},"
    if found.target is None:
        return f"{head} the final states turn furthest: cosine distance {one.effect.distance:.4f}."
    before, after = found.baseline.probability, one.effect.after.probability
    if before is None or after is None:  # to first order
        what = "logit difference" if one.effect.logit_difference is not None else "log-probability"
        size = one.effect.signed_size
        return f"{head} the {what} of {bare_word(found.target.text)} would move by {size:+.2f}, to first order."
    word, was, now = bare_word(found.target.text), sentence_percent(before), sentence_percent(after)
    if was == now:
        return f"{head} {word} stays at {was}."
    return f"{head} {word} {'falls' if after < before else 'rises'} from {was} to {now}."


def bare_word(text: str) -> str:
    """A predicted word for a sentence, without the space before it."""
    return f"“{visible_text(text.strip() or text)}”"


TOKENS = 4  # that a head writes from
NAME, VALUE = 26, 10  # cells
KINDS = (("embedding", "embedding"), ("head", "heads"), ("mlp", "MLPs"), ("bias", "biases"))


class ContributionsTable:
    """The sum as a rich renderable: a line for each kind of part, the strongest parts, the total beside the model's own."""

    def __init__(self, effects: Effects, top: int | None = None) -> None:
        self.effects, self.top = effects, top or SHOWN

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The word, the sum, the strongest parts."""
        found, parts = self.effects, self.effects.contributions
        assert parts is not None and found.target is not None
        at = f"{token_label(found.tokens[found.query], 24)} ({found.query})"
        yield Text(f"{found.model.name}, {counted(len(found.tokens), 'token')}", style="bold")
        above = "" if found.against is None else f", above that of {bare_word(found.against.text)},"
        yield Text(
            f"The logit of {bare_word(found.target.text)} ({sentence_percent(found.baseline.probability)}){above} "
            f"{'after' if found.model.causal else 'at'} {at}, as a sum."
        )
        yield Text("")
        yield from _printed_sum(parts, "difference" if found.against else "logit")
        yield Text("")
        yield from self._strongest_parts(parts, options.max_width)
        yield Text("")
        along = "the word's row" if found.against is None else "the difference of the two words' rows"
        yield Text(
            f"Each part is what it added to the residual stream, along {along} of the unembedding, any final norm "
            "held at its scale on this text. A head's is Σ weight · value · W_O over the tokens that it looks at."
        )

    def _strongest_parts(self, parts: Contributions, width: int) -> Iterator[Text]:
        several = sorted(
            (part for part in parts.parts if part.part in ("head", "mlp")), key=lambda part: -abs(part.value)
        )
        largest = abs(several[0].value) if several else 1.0
        head = Text(padded_text("strongest parts", NAME, right=False), style=DIM, no_wrap=True)
        yield head.append(padded_text("writes", VALUE)).append("   from")
        for part in several[: self.top]:
            name = f"head {part.head}" if part.part == "head" else "MLP"
            name += "" if part.layer is None else f" of layer {part.layer}"
            line = Text(padded_text(name, NAME, right=False), no_wrap=True)
            line.append(
                padded_text(f"{part.value:+.3f}", VALUE), style=change_style(part.value / largest if largest else 0.0)
            )
            for text in self._source_tokens(part):
                if cell_len(line.plain) + cell_len(text) + 3 <= width:
                    line.append(f"   {text}", style=DIM)
            yield line
        if len(several) > self.top:
            yield Text(f"{len(several) - self.top} more parts write less: see --top, or --json", style=DIM)

    def _source_tokens(self, part: ContributionPart) -> Iterator[str]:
        if part.keys is None:
            return
        tokens = self.effects.key_axis
        for key in sorted(range(len(part.keys)), key=lambda at: -abs(part.keys[at] if part.keys else 0.0))[:TOKENS]:
            yield f"{token_label(tokens[key], 12)} {part.keys[key]:+.2f}"


def _printed_sum(parts: Contributions, what: str) -> Iterator[Text]:
    for kind, name in KINDS:
        several = [part.value for part in parts.parts if part.part == kind]
        if not several or (kind == "bias" and not any(several)):
            continue
        many = f"{name} ({len(several)})" if kind in ("head", "mlp") else name
        yield Text(padded_text(many, NAME, right=False) + padded_text(f"{sum(several):+.4f}", VALUE))
    yield Text(padded_text("sum", NAME, right=False) + padded_text(f"{parts.sum_of_parts:.4f}", VALUE), style="bold")
    yield Text(padded_text(f"the model's own {what}", NAME, right=False) + padded_text(f"{parts.logit:.4f}", VALUE))
