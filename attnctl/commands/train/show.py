"""Show a training live, and one gradient step in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnctl.render import Column, Form, Line, Table, bar_columns, token_label

if TYPE_CHECKING:
    from attnctl.commands.train.result import Lesson, WatchedWord
    from attnctl.runtime.arrays import Floats
    from attnctl.text import Document

BLOCKS = " ▁▂▃▄▅▆▇█"
CURVE_HEIGHT = 6
CURVE_LEFT = 10  # cells left of the curve, for the largest and the smallest loss
SHOWN_TENSORS = 8  # tensors that are listed: those that lower the loss most


def live_forms(reports: Sequence[Document], steps: int, width: int) -> Iterator[Form]:
    """Return the state of a training: progress, loss curve, and where the watched word looks."""
    last = reports[-1]
    share = last["step"] / steps
    seconds = int(last["seconds"] / max(share, 1e-9) * (1 - share))
    speed = f"{last['tokens_per_second']:,} tokens/s   {seconds // 60}:{seconds % 60:02d} left"
    bar, step = (
        Column("", [share], "bar", max_width=20, tone="accent"),
        Column("", [f"step {last['step']} of {steps}"], "text"),
    )
    yield ""
    yield Table([bar, step, Column("", [speed], "text", tone="dim", cut="end")], indent=2)
    yield ""
    yield from _loss_curve([report["loss"] for report in reports if report["loss"] is not None], width)
    if watch := last.get("watch"):
        place = f"   layer {watch['layer']}, head {watch['head']}"
        yield ""
        yield Line([(_watched(watch), "bold"), (place, "dim")], indent=2, cut=True)
        names = [token_label(text, 20) for text in watch["tokens"]]
        yield Table(
            [Column("", names), *bar_columns(watch["row"], ".2f", 30, "accent")],
            indent=5,
        )


def _loss_curve(losses: Sequence[float], width: int) -> Iterator[Form]:
    """Return the loss over the steps, as columns of blocks."""
    if not losses:
        return
    label = f"   loss {losses[-1]:.3f}"
    columns = max(min(width - CURVE_LEFT - len(label), 60, len(losses)), min(10, len(losses)))
    cuts = [index * len(losses) // columns for index in range(columns + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in zip(cuts, cuts[1:], strict=False)]  # the mean of each stretch
    low, high = min(means), max(means)
    heights = [1 + round((loss - low) / ((high - low) or 1.0) * (8 * CURVE_HEIGHT - 1)) for loss in means]
    for row in range(CURVE_HEIGHT - 1, -1, -1):
        blocks = "".join(BLOCKS[max(0, min(8, height - 8 * row))] for height in heights)
        top = row == CURVE_HEIGHT - 1
        mark = f"{high:.2f}" if top else f"{low:.2f}" if row == 0 else ""
        yield Line(
            [(blocks, "accent"), (label if top else "", "bold")],
            hanging=CURVE_LEFT,
            mark=(f"{mark:>8}", "dim"),
            cut=True,
        )


def _watched(watch: WatchedWord) -> str:
    """Return where the watched word looked before, and looks now: "eat → Alice 0.26 → 0.98"."""
    return f"{token_label(watch['query'])} → {token_label(watch['key'])} {watch['before']:.2f} → {watch['weight']:.2f}"


def _digits(p: float) -> str:
    """Return a probability with five digits that count, so that its logarithm can be checked."""
    return np.format_float_positional(p, precision=5, fractional=False, min_digits=5)


def lesson_forms(step: Lesson) -> Iterator[Form]:
    """Return one step of gradient descent, number by number."""
    yield ""
    yield Line(f"One step of gradient descent on: {token_label(step.sentence)}", "bold", 2)
    yield from _headed("1  predict    the probability that the network gives to each true word")
    words = [f"→ {token_label(word)}" for _, word, _ in step.predictions]
    chances = [chance for *_, chance in step.predictions]
    yield Table(
        [
            Column("", [token_label(context) for context, *_ in step.predictions], "text", cut="end", max_width=40),
            Column("", words, "text", max_width=22, cut="end"),
            Column("", chances, format=".6f", tone="accent"),
            Column("", [f"−ln {_digits(p)} = {-math.log(max(p, 1e-45)):7.4f}" for p in chances], rank=0, tone="dim"),
        ],
        indent=5,
    )
    yield ""
    yield Line(f"loss = mean of −ln(probability) = {step.loss:.4f}", indent=5)
    uniform = f"ln {step.vocabulary} = {math.log(step.vocabulary):.4f}"
    yield Line(f"a network that knows nothing gives every word 1/{step.vocabulary}: {uniform}", "dim", 5)
    yield from _headed(
        f"2  gradient   how the loss changes with each number of W_Q, layer {step.layer}, head {step.head}"
    )
    high, wide = (min(limit, size) for limit, size in zip((4, 6), step.weights.shape, strict=True))
    yield Line(f"its length over all of W_Q is {step.gradient_norm:.4f}; the first {high} × {wide} numbers:", "dim", 5)
    yield _numbers(step.gradient[:high, :wide])
    yield from _headed(f"3  step       matrix ← matrix − {step.lr:g} × its gradient; {step.lr:g} is the learning rate")
    yield Line(f"All {len(step.falls)} matrices make this step together; here the same numbers of W_Q:", "dim", 5)
    for name, array in (("before", step.weights), ("after", step.after)):
        yield Line(name, "dim", 5)
        yield _numbers(array[:high, :wide])
    yield from _headed(f"4  again      loss {step.loss:.4f} → {step.loss_after:.4f}")
    yield Line(f"{_watched(step.watch)} in layer {step.layer}, head {step.head}", "bold", 5)
    yield from _headed("5  share      the part of each matrix: learning rate × |gradient|²")
    yield from _fall_forms(step)


def _headed(heading: str) -> Iterator[Form]:
    yield ""
    yield Line(heading, indent=2, hanging=3)


def _numbers(array: Floats) -> Table:
    return Table([Column("", column, format=".5f", rank=-index) for index, column in enumerate(array.T)], indent=7)


def _fall_forms(step: Lesson) -> Iterator[Form]:
    """Return the share of each tensor in the fall of the loss: to first order the learning rate × |gradient|²."""
    yield Line("How much the small step of each matrix lowers the loss, and its share of the total:", "dim", 5)
    order = sorted(step.falls, key=lambda name: -step.falls[name])
    total, smaller = sum(step.falls.values()), order[SHOWN_TENSORS:]
    rows = [(name, step.falls[name]) for name in order[:SHOWN_TENSORS]]
    if smaller:
        rows.append((f"{len(smaller)} more", sum(step.falls[name] for name in smaller)))
    falls = [fall for _, fall in rows]
    shares = [fall / (total or 1.0) for fall in falls]
    yield Table(
        [
            Column("", [name for name, _ in rows], "text"),
            Column("", falls, format=".4f"),
            *bar_columns(shares, tone="accent"),
        ],
        foot=["together", f"{total:.4f}"],
        indent=5,
    )
    fell = step.loss - step.loss_after
    sentence = f"The loss fell by {fell:.4f}"
    if abs(fell - total) > 0.1 * (total or 1.0):
        sentence += f", not by {total:.4f}: the step is so long that the gradient changes on the way"
    yield Line(f"{sentence}.", "dim", 5)
