"""Show the softmax number by number: the arithmetic with bars, the scales, plain division."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from attnctl.commands.softmax.compute import Doubles, scores_times, unmasked_scores
from attnctl.commands.softmax.result import Softmax
from attnctl.render import Column, Form, Grid, Line, Table, exponential_heading, token_label
from attnctl.text import number_text

INDENT = 2
Step = tuple[str, Doubles, str]  # title, numbers, the cell below them


def softmax_forms(worked: Softmax, precision: int = 2) -> Iterator[Form]:
    """Yield the softmax with every step."""
    number = partial(_number, precision=precision)
    scores = [f"{x:g}" if np.isfinite(x) else "-∞" for x in worked.scores]
    names = scores if worked.labels is None else [token_label(name, 18) for name in worked.labels]
    table = partial(_share_table, names, "score" if worked.labels is None else "", number)
    score_steps: list[Step] = [] if worked.labels is None else [("score", worked.scores, "")]
    yield from _section("softmax", "weights = exp(scaled scores) / Σ exp(scaled scores)")
    steps, shift, shares = list(score_steps), worked.exponent_shift, np.array(worked.weights)
    if worked.scale != 1.0:
        steps.append((scale_factor(worked.scale), scores_times(worked.scores, worked.scale), ""))
    if worked.temperature != 1.0:
        steps.append((f"÷ {worked.temperature:g}", worked.scaled, ""))
    steps.append((exponential_heading(shift, number), worked.exponentials, number(worked.sum)))
    yield table([*steps, ("÷ Σ", shares, number(shares.sum()))])
    if shift:
        note = f"{number(shift)}, the largest, is taken off each score before exp, so that none overflows: "
        yield Line(f"{note}the shares stay the same.", "dim", INDENT)
    yield ""
    best = int(np.argmax(shares))
    even = f"{np.exp(worked.entropy):.1f}"
    sentence = f" takes {100 * shares[best]:.3g} %; the whole is as even as {even} equal shares would be."
    yield Line([(names[best], "bold accent"), sentence], indent=INDENT)
    over = "" if worked.temperature == 1.0 else f" / {worked.temperature:g}"
    yield from _section("scale by scale", f"weights = softmax(scores × scale{over})")
    scales = [row.scale for row in worked.scales]
    weights = np.stack([row.weights for row in worked.scales])  # (scales, n)
    yield Grid(weights, [*map(scale_factor, scales)], names, precision, heat=True, marks=(scales.index(worked.scale),))
    yield from _section("why not divide by the sum?", "scores / Σ scores")
    if worked.divided_by_sum is None:
        yield Line("The scores add up to 0: there is nothing to divide by.", indent=INDENT)
        yield Line("exp makes each score positive first.", "dim", INDENT)
        return
    divided = np.array(worked.divided_by_sum)
    yield table([*score_steps, (f"÷ {number(unmasked_scores(worked.scores).sum())}", divided, number(1))])
    yield ""
    if (divided < 0).any():
        yield Line("Shares below 0 or above 1 are not shares. exp makes each score positive first.", "dim", INDENT)
    elif change := _change_by_shift(worked.scores, divided, number):
        yield Line(f"{change} here.", "dim", INDENT)
        yield Line("The softmax stays the same: what counts is by how much a score leads.", "dim", INDENT)


def _number(x: float, precision: int) -> str:
    if not np.isfinite(x):
        return "-∞"
    return number_text(float(x), precision, tiny=0 < abs(x) < 0.5 * 10.0**-precision and precision > 3)


def _section(name: str, formula: str) -> Iterator[Form]:
    yield ""
    yield Line([(name, "bold"), f"   {formula}"], indent=INDENT)
    yield ""


def _share_table(names: Sequence[str], heading: str, number: Callable[[float], str], steps: Sequence[Step]) -> Table:
    """Return a table: names, the numbers of each step, a bar for each share of the last step, and a foot."""
    columns = [Column(title, numbers, format=number) for title, numbers, _ in steps]
    bars = Column("", steps[-1][1], "bar", max_width=32, rank=0)
    feet = ["Σ", *(foot for _, _, foot in steps)]
    return Table([Column(heading, names, "text"), *columns, bars], foot=feet, indent=INDENT)


def _change_by_shift(scores: Doubles, divided: Doubles, number: Callable[[float], str]) -> str:
    """Say how plain division changes if every score is larger or smaller; empty if no change is visible."""
    best = int(np.argmax(divided))
    before, smallest = number(divided[best]), float(scores[np.isfinite(scores)].min())
    for shift in (10.0, 1 - smallest):  # the second makes the smallest score 1
        shifted = unmasked_scores(scores + shift)  # (n,)
        total = float(shifted.sum())
        if total > 0 and (after := number(float(shifted[best]) / total)) != before:
            action = f"Adding {shift:g} to" if shift > 0 else f"Taking {-shift:g} off"
            return f"{action} every score turns {before} into {after}"
    return ""


def scale_factor(scale: float) -> str:
    """Return a scale as a factor: × 2, or ÷ 8 if that is the rounder number."""
    if 0 < abs(scale) < 1 and abs(1 / scale - round(1 / scale)) < 1e-9:
        return f"÷ {round(1 / scale)}"
    return f"× {scale:.4g}"
