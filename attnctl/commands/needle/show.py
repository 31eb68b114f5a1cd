"""Show the needles of a haystack: depths and lengths, the retrieval heads, and the check with heads switched off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnctl.commands.needle.result import RETRIEVAL, NeedleCell, Needles, depth_grid
from attnctl.render import Column, Form, Table
from attnctl.text import counted, percent, shortened, visible_text

MAX_HEADS = 12  # retrieval heads that are listed


def needles_forms(summary: Needles, cells: Sequence[NeedleCell]) -> Iterator[Form]:
    """Return the grid, the heads, and the summary."""
    yield f"{visible_text(summary.model.name)} answers {summary.answered} of {summary.asked} needles"
    yield "✓ answered, with the share of the answer's attention that goes to the needle", "dim"
    yield ""
    answered, lengths, depths = depth_grid(cells, [cell.answered for cell in cells])
    shares, _, _ = depth_grid(cells, [cell.found for cell in cells])
    columns = [Column("depth", [percent(depth) for depth in depths])]
    for index, length in enumerate(lengths):
        values = [float(share) if share == share else None for share in shares[:, index]]
        marks = ["✓" if mark == 1 else "✗" for mark in answered[:, index]]
        texts = [
            None if share is None else f"{mark} {percent(share, 1):>6}"
            for mark, share in zip(marks, values, strict=True)
        ]
        columns.append(Column(f"{length:,}", texts, "heat", shade=values, rank=index))  # rather none than half a number
    yield Table(columns)
    yield ""
    if not summary.answered:
        yield "No needle was answered, so its heads cannot be scored: try shorter prompts, or a larger model."
        return
    heads = summary.retrieval_heads
    yield (
        f"{counted(len(heads), 'retrieval head')}: on at least {percent(RETRIEVAL)} of the answer's tokens they look at the "
        "same token inside the needle (Wu et al. 2024)"
    )
    if heads:
        listed = heads[:MAX_HEADS]
        scores = [head.score for head in listed]
        yield Table(
            [
                Column("layer", [head.layer for head in listed]),
                Column("head", [head.head for head in listed]),
                Column("score", scores, format=".2f"),
                Column("", scores, "bar", max_width=20),
            ]
        )
    if len(heads) > MAX_HEADS:
        yield f"… {len(heads) - MAX_HEADS} more"
    for sentence in off_sentences(summary):
        yield ""
        yield sentence


def heads_sentence(summary: Needles) -> str:
    """Return the retrieval heads in a line, with their scores: "2 retrieval heads (Wu et al. 2024): 3.7 0.85, 4.1 0.20"."""
    heads = summary.retrieval_heads
    listed = [f"{head.layer}.{head.head} {head.score:.2f}" for head in heads[:MAX_HEADS]]
    listed += [f"… {len(heads) - MAX_HEADS} more"] if len(heads) > MAX_HEADS else []
    return f"{counted(len(heads), 'retrieval head')} (Wu et al. 2024)" + (f": {', '.join(listed)}" if listed else "")


def off_sentences(summary: Needles) -> Iterator[str]:
    """Yield what is still answered without the best heads, and without random ones; nothing if this was not asked."""
    for heads_off, template in ((summary.off, "the {} best of them"), (summary.random_off, "{} other heads at random")):
        if heads_off is not None:
            off = template.format(len(heads_off.heads))
            outcome = f"{heads_off.answered} of the {heads_off.asked} answered needles are still answered"
            yield f"With {off} switched off, {outcome}."


def needle_sentence(cell: NeedleCell) -> str:
    """Return one needle and its answer in words: "512 tokens, depth 25 %: answered, “blue flowerpot”"."""
    answer = f"“{shortened(visible_text(' '.join(cell.answer.split())), 40, close=True)}”"
    outcome = "answered" if cell.answered else "not answered"
    return f"{cell.length:,} tokens, depth {percent(cell.depth)}: {outcome}, {answer}"


def needle_cells(cells: Sequence[NeedleCell]) -> Table:
    """Return one row for each needle."""
    return Table(
        [
            Column("length", [cell.length for cell in cells]),
            Column("depth", [cell.depth for cell in cells]),
            Column("tokens", [cell.tokens for cell in cells]),
            Column("answered", [str(cell.answered).lower() for cell in cells]),
            Column("found", [cell.found for cell in cells]),
        ]
    )
