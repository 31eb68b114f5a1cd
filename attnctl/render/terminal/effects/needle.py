"""Needles in a terminal: which were answered, how much of the answer's attention found them, and which heads fetch them."""

from __future__ import annotations

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnctl.readings.effects.needle import RETRIEVAL, HeadsOff, Needles
from attnctl.render.terminal.number_grid import DIM, heat_style, share_bar
from attnctl.text import visible_text

HEADS = 12  # retrieval heads that are listed


class NeedleTable:
    """Depths × lengths, the retrieval heads, and the check with heads switched off, as a rich renderable."""

    def __init__(self, found: Needles) -> None:
        self.found = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The grid, the heads, and what it comes to."""
        found = self.found
        coloured = console.color_system is not None and not console.no_color
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
            f"{len(heads)} retrieval heads: on at least {100 * RETRIEVAL:.0f} % of the answer's tokens they look at that"
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
                cells.append(Text(f"{'✓' if answered[row, column] else '✗'} {100 * share:4.1f} %", style=style))
            table.add_row(Text(f"{100 * depth:.0f} %"), *cells)
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
