"""Direct contributions in a terminal: the logit as a printed sum, the parts that write most, and from which tokens."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl.readings.effects.contributions import ContributionPart, Contributions
from attnctl.readings.effects.effects import Effects
from attnctl.render.terminal.effects.effects import bare_word, sentence_percent
from attnctl.render.terminal.number_grid import DIM, change_style, padded_text, token_label
from attnctl.text import counted

SHOWN = 10  # heads and MLPs, unless told otherwise
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
