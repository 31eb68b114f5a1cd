"""The sources of an answer, and the needles of a haystack, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnctl.readings.effects.answer_sources import NEGLIGIBLE, AnswerSources, PartSource
from attnctl.readings.effects.needle import RETRIEVAL, HeadsOff, Needles
from attnctl.render.terminal.console import (
    ACCENT,
    DIM,
    Column,
    fitting_columns,
    has_colours,
    heat_style,
    left_out_for_width,
    share_bar,
)
from attnctl.text import percent, probability_text, shortened, visible_text

BAR = 8  # cells
NATS = 6  # cells of a change of a log-probability
NAMED = 14  # cells of a part's name below which columns give way to it
SPACE = 3  # cells between two columns
WIDE = 72  # columns, from which there is room for bars


class AnswerTable:
    """The parts of a prompt, what matters most first, as a rich renderable; `top` None is all of them."""

    def __init__(self, found: AnswerSources, top: int | None = None) -> None:
        self.found, self.top = found, top

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The answer, the table, and what it comes to in sentences."""
        found, width = self.found, options.max_width
        said = "The answer given" if found.given else "The answer"
        yield Text.assemble(
            f"{said}: ",
            (f"“{visible_text(found.answer.strip())}”", "bold"),
            f"  probability {probability_text(found.log_probability)}",
        )
        yield Text()
        columns = self._columns_behind_name(found.parts[: self.top], bars=width >= WIDE)
        kept = fitting_columns(columns, width - NAMED - SPACE - 2, SPACE)
        yield self._parts_table(kept, width)
        if out := left_out_for_width(sorted(columns, key=lambda one: one.rank or 0), kept):
            yield Text(out, style=DIM)
        apart = [f"{name} {percent(value, 1)}" for name, value in found.apart.items() if value >= 0.005]
        if apart:
            yield Text(f"looked at beside the parts: {', '.join(apart)}", style=DIM)
        yield Text()
        for sentence in sources_sentences(found):
            yield Padding(Text(sentence), (0, 0, 0, 2))
        if len(found.answer_tokens) > 1 and any(at is not None for at in found.first_sources()):
            yield Text()
            yield from self._answer_tokens(width)
        yield Text()
        yield Text(columns_explained(found), style=DIM)

    def _parts_table(self, columns: Sequence[Column], width: int) -> Table:
        """One row a part, the name in what room is left."""
        parts = self.found.parts[: self.top]
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style=DIM)
        room = width - sum(one.least_width + SPACE for one in columns) - 2
        table.add_column("part", width=max(8, room), overflow="ellipsis", no_wrap=True)
        for one in columns:
            side: Any = "left" if one.left else "right"
            table.add_column(one.heading, justify=side, no_wrap=True, min_width=one.least_width)
        for at, part in enumerate(parts):
            table.add_row(Text(visible_text(part.part.name)), *(one.cells[at] for one in columns))
        return table

    def _columns_behind_name(self, parts: Sequence[PartSource], bars: bool) -> list[Column]:
        """The columns behind the name, which may be left out where it has no room."""
        most = max((part.looks for part in parts), default=0) or 1
        worst = max((abs(part.matters) for part in parts), default=0) or 1
        total = self.found.log_probability
        columns = [Column("looks", [percent(part.looks, 1) for part in parts])]
        if bars:
            columns.append(Column("", [f"{share_bar(part.looks / most, BAR):{BAR}}" for part in parts], left=True))
        if all(part.writes is not None for part in parts):
            columns.append(Column("writes", [nats_text(part.writes) for part in parts], rank=2))
        columns.append(Column("matters", [nats_text(part.matters) if part.alone else "with others" for part in parts]))
        if bars:
            lengths = [abs(part.matters) / worst if part.alone else 0 for part in parts]
            bar_cells = [Text(f"{share_bar(length, BAR):{BAR}}", ACCENT) for length in lengths]
            columns.append(Column("", bar_cells, left=True))
        if any(part.removed is not None for part in parts):
            columns.append(Column("removed", [nats_text(part.removed) for part in parts], rank=1))
        after = [probability_text(total + part.matters) if part.alone else "·" for part in parts]
        return [*columns, Column("without it", after, rank=3)]

    def _answer_tokens(self, width: int) -> RenderResult:
        """Each token of the answer, and the part whose loss costs it most."""
        yield Text("each token of the answer, and the part whose loss costs it most", style=DIM)
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        longest = max(cell_len(visible_text(token.text)) for token in self.found.answer_tokens)
        names = max(cell_len(visible_text(part.part.name)) for part in self.found.parts)
        room = max(8, width - 2 - longest - 2 - 2 - NATS)
        table.add_column(no_wrap=True, min_width=2 + longest)
        table.add_column(no_wrap=True, overflow="ellipsis", width=min(names, room))
        table.add_column(justify="right", no_wrap=True, min_width=NATS)
        for at, (token, first) in enumerate(zip(self.found.answer_tokens, self.found.first_sources(), strict=True)):
            if first is None:
                table.add_row(Text(f"  {visible_text(token.text)}"), Text("none of them", style=DIM), Text(""))
                continue
            part = self.found.parts[first]
            table.add_row(
                Text(f"  {visible_text(token.text)}"),
                Text(visible_text(part.part.name)),
                Text(nats_text(float(part.tokens[at]))),
            )
        yield table


def sources_sentences(found: AnswerSources) -> list[str]:
    """What the table comes to: the part that the answer rests on, the part that is looked at for nothing, agreement."""
    measured = [part for part in found.parts if part.alone]
    if not measured:
        return ["No part was measured alone: give --budget more forwards."]
    first, before = measured[0], probability_text(found.log_probability)
    said = []
    if first.matters < -NEGLIGIBLE:
        after = probability_text(found.log_probability + first.matters)
        said.append(
            f"The answer rests on {_quoted_start(first.part.name)}: without it {_quoted_start(found.answer, 30)} "
            f"falls from {before} to {after}."
        )
    else:
        said.append("The answer rests on no single part: without any one of them it is about as likely.")
    most = max(found.parts, key=lambda part: part.looks)
    if most is not first and abs(most.matters) < max(NEGLIGIBLE, 0.1 * abs(first.matters)):
        said.append(
            f"{_quoted_start(most.part.name)} is looked at most ({percent(most.looks, 1)}), and does not matter."
        )
    against = [part for part in measured if part.matters > 0.5]
    if against:
        worst = max(against, key=lambda part: part.matters)
        after = probability_text(found.log_probability + worst.matters)
        said.append(f"{_quoted_start(worst.part.name)} speaks against it: without it the answer would rise to {after}.")
    tau = found.rank_agreement().get("looks-matters")
    if tau is not None and len(measured) == len(found.parts):
        writing = found.rank_agreement().get("writes-matters")
        also = "" if writing is None else f", writing and mattering by {writing:+.2f}"
        said.append(f"Looking and mattering agree by Kendall's τ = {tau:+.2f}{also}, over {len(found.parts)} parts.")
    return said


def columns_explained(found: AnswerSources) -> str:
    """What the columns of the table are, in a sentence."""
    said = ["looks: share of the answer's attention, over all heads and layers"]
    if all(part.writes is not None for part in found.parts):
        said.append("writes: what the heads that read the part add to the answer's log-probability directly (nats)")
    said.append("matters: change of that log-probability where nothing behind the part sees it (nats; −0.69 halves p)")
    if any(part.removed is not None for part in found.parts):
        said.append("removed: the same where the prompt is rendered without the part")
    return "; ".join([*said, "without it: the probability of the answer that is left"]) + "."


def _quoted_start(text: str, most: int = 40) -> str:
    return f"“{shortened(visible_text(' '.join(text.split())), most, close=True)}”"


def nats_text(value: float | None) -> str:
    """A change of a log-probability, with its sign."""
    return "·" if value is None else f"{value:+.2f}".replace("-", "−")


def plain_table(found: AnswerSources) -> Sequence[str]:
    """The same for a pipe: tab-separated, one line a part."""
    lines = ["part\tstart\tend\tlooks\twrites\tmatters\tremoved\talone"]
    for one in found.parts:
        cells = [
            one.part.name,
            one.part.start,
            one.part.end,
            f"{one.looks:.6g}",
            _optional_cell(one.writes),
            f"{one.matters:.6g}",
        ]
        lines.append("\t".join(map(str, [*cells, _optional_cell(one.removed), str(one.alone).lower()])))
    return lines


def _optional_cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


HEADS = 12  # retrieval heads that are listed


class NeedleTable:
    """Depths × lengths, the retrieval heads, and the check with heads switched off, as a rich renderable."""

    def __init__(self, found: Needles) -> None:
        self.found = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The grid, the heads, and what it comes to."""
        found = self.found
        coloured = has_colours(console)
        yield Text(f"{visible_text(found.run.model.name)} answers {found.answered_count} of {len(found.cells)} needles")
        yield Text("✓ answered, with the share of the answer's attention that goes to the needle", style=DIM)
        yield Text()
        yield self._depth_grid(coloured)
        heads = found.retrieval_heads()
        if not found.answered_count:
            yield Text()
            yield Text(
                "No needle was answered, so nothing can be said of its heads: try shorter prompts, or a larger model."
            )
            return
        yield Text()
        yield Text(
            f"{len(heads)} retrieval heads: on at least {percent(RETRIEVAL)} of the answer's tokens they look at that"
        )
        yield Text("very token inside the needle (Wu et al. 2024)")
        if heads:
            yield self._heads_table(heads)
        for sentence in needle_sentences(found):
            yield Text()
            yield Text(sentence)

    def _depth_grid(self, coloured: bool) -> Table:
        answered, lengths, depths = self.found.depth_grid("answered")
        shares, _, _ = self.found.depth_grid("found")
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style=DIM)
        table.add_column("depth", justify="right", no_wrap=True)
        for length in lengths:
            table.add_column(f"{length:,}", justify="right", no_wrap=True)
        for row, depth in enumerate(depths):
            cells = []
            for column in range(len(lengths)):
                if answered[row, column] != answered[row, column]:  # not asked
                    cells.append(Text("·", style=DIM))
                    continue
                share = float(shares[row, column])
                style = heat_style(share) if coloured else Style()
                cells.append(Text(f"{'✓' if answered[row, column] else '✗'} {percent(share, 1):>6}", style=style))
            table.add_row(Text(percent(depth)), *cells)
        return table

    def _heads_table(self, heads: dict[tuple[int, int], float]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=DIM)
        for name in ("layer", "head", "score"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for (layer, head), score in list(heads.items())[:HEADS]:
            table.add_row(str(layer), str(head), f"{score:.2f}", Text(share_bar(score, 20)))
        if len(heads) > HEADS:
            table.add_row("", "", f"… {len(heads) - HEADS} more")
        return table


def needle_sentences(found: Needles) -> list[str]:
    """What the check says: with the best heads switched off, and with as many others."""
    said = []
    if found.off is not None:
        said.append(f"With the {len(found.off.heads)} best of them switched off, {_still_answered(found.off)}.")
    if found.random_off is not None:
        said.append(f"With {len(found.random_off.heads)} other heads at random, {_still_answered(found.random_off)}.")
    return said


def _still_answered(off: HeadsOff) -> str:
    return f"{off.answered} of the {off.asked} answered needles are still answered"
