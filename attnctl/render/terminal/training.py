"""Training for a terminal: the live view, the table of what the heads learned, and one gradient step in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from attnctl.render.forms import token_label
from attnctl.render.terminal.console import ACCENT, DIM, padded_text, share_bar
from attnctl.text import percent

if TYPE_CHECKING:
    from attnctl.arrays import Floats
    from attnctl.text import Document
    from attnctl.training.lesson import Lesson


BLOCKS = " ▁▂▃▄▅▆▇█"
CURVE_HEIGHT = 6
CURVE_LEFT = 10  # cells left of the curve: the largest and the smallest loss
SHOWN_TENSORS = 8  # of those that a step changes, the ones that lower the loss most


def live_view(reports: Sequence[Document], steps: int, width: int) -> Group:
    """The state of a training: progress, loss curve, and where the watched word looks."""
    last = reports[-1]
    parts: list[RenderableType] = [Text(), _progress_line(last, steps), Text()]
    parts += _loss_curve([r["loss"] for r in reports if r["loss"] is not None], width)
    if "watch" in last:
        parts += [Text(), *_watched_lines(last["watch"], width)]
    return Group(*parts)


def _progress_line(report: Document, steps: int) -> Text:
    done = report["step"] / steps
    left = int(report["seconds"] / max(done, 1e-9) * (1 - done))
    line = Text("  ", no_wrap=True, overflow="crop").append(padded_text(share_bar(done, 20), 20, right=False), ACCENT)
    line.append(f"  step {report['step']} of {steps}")
    line.append(f"   {report['tokens_per_second']:,} tokens/s   {left // 60}:{left % 60:02d} left", DIM)
    return line


def _loss_curve(losses: Sequence[float], width: int) -> list[Text]:
    """The loss over the steps, as columns of blocks."""
    if not losses:
        return []
    label = f"   loss {losses[-1]:.3f}"
    columns = max(min(width - CURVE_LEFT - len(label), 60), 10)
    if len(losses) > columns:  # the mean of each stretch
        cuts = [at * len(losses) // columns for at in range(columns + 1)]
        shown = [sum(losses[a:b]) / (b - a) for a, b in zip(cuts, cuts[1:], strict=False)]
    else:
        shown = list(losses)
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    heights = [1 + round((loss - low) / span * (8 * CURVE_HEIGHT - 1)) for loss in shown]
    lines = []
    for row in range(CURVE_HEIGHT - 1, -1, -1):
        blocks = "".join(BLOCKS[max(0, min(8, height - 8 * row))] for height in heights)
        mark = f"{high:.2f}" if row == CURVE_HEIGHT - 1 else f"{low:.2f}" if row == 0 else ""
        lines.append(
            Text(no_wrap=True, overflow="crop").append(padded_text(mark, 8), DIM).append("  ").append(blocks, ACCENT)
        )
    lines[0].append(label, "bold")
    return lines


def watch_line(watch: Document) -> str:
    """Where the watched word looked before training, and now: "eat → Alice 0.26 → 0.98"."""
    return f"{token_label(watch['query'])} → {token_label(watch['key'])} {watch['before']:.2f} → {watch['weight']:.2f}"


def _watched_lines(watch: Document, width: int) -> list[Text]:
    lines = [
        Text("  ", no_wrap=True, overflow="crop")
        .append(watch_line(watch), "bold")
        .append(f"   layer {watch['layer']}, head {watch['head']}", DIM)
    ]
    names = [token_label(text, 20) for text in watch["tokens"]]
    wide = max(map(len, names))
    for name, weight in zip(names, watch["row"], strict=True):
        line = Text("     ", no_wrap=True, overflow="crop").append(padded_text(name, wide)).append(f"  {weight:.2f}  ")
        lines.append(line.append(share_bar(weight, max(8, min(30, width - wide - 16))), ACCENT))
    return lines


def lesson_view(step: Lesson, width: int = 80) -> Group:
    """One step of gradient descent, number by number, in lines of at most `width` cells."""
    shown = min(4, step.weights.shape[0]), min(6, step.weights.shape[1])
    parts: list[Text] = [
        Text(),
        Text(f"  One step of gradient descent on: {token_label(step.sentence)}", "bold"),
        Text(),
        Text("  1  predict    the probability that the network gives to each true word"),
        *_probability_lines(step, width),
        Text(),
        Text(f"     loss = mean of −ln(probability) = {step.loss:.4f}"),
        Text(
            f"     a network that knows nothing gives every word 1/{step.vocabulary}: "
            f"ln {step.vocabulary} = {math.log(step.vocabulary):.4f}",
            DIM,
        ),
        Text(),
        Text(f"  2  gradient   how the loss changes with each number of W_Q, layer {step.layer}, head {step.head}"),
        Text(
            f"     its length over all of W_Q is {step.gradient_norm:.4f}; the first {shown[0]} × {shown[1]} numbers:",
            DIM,
        ),
        *_number_lines(step.gradient[: shown[0], : shown[1]]),
        Text(),
        Text(f"  3  step       matrix ← matrix − {step.lr:g} × its gradient; {step.lr:g} is the learning rate"),
        Text(f"     All {len(step.falls)} matrices step so at once; here the same numbers of W_Q:", DIM),
        Text("     before", DIM),
        *_number_lines(step.weights[: shown[0], : shown[1]]),
        Text("     after", DIM),
        *_number_lines(step.after[: shown[0], : shown[1]]),
        Text(),
        Text(f"  4  again      loss {step.loss:.4f} → {step.loss_after:.4f}"),
        Text(f"     {watch_line(step.watch)} in layer {step.layer}, head {step.head}", "bold"),
        Text(),
        *_fall_lines(step, width),
    ]
    return Group(*(line for part in parts for line in _fitted_lines(part, width)))


def _fitted_lines(line: Text, width: int) -> list[Text]:
    """A line of prose wrapped under its own indent; a line of numbers, which has a style of its own in parts, cut."""
    if cell_len(line.plain) <= width or line.spans or line.no_wrap:
        line.no_wrap, line.overflow = True, "ellipsis"
        return [line]
    indent = " " * (len(line.plain) - len(line.plain.lstrip()))
    hanging = " " * 5 if line.plain.lstrip()[:1].isdecimal() else indent
    return [
        Text(one, line.style)
        for one in wrap(line.plain.strip(), width, initial_indent=indent, subsequent_indent=hanging)
    ]


def _fall_lines(step: Lesson, width: int) -> list[Text]:
    """How much of the loss's fall each tensor's own step promises: to first order the learning rate × |gradient|²."""
    order = sorted(step.falls, key=lambda name: -step.falls[name])
    total, names = sum(step.falls.values()) or 1.0, order[:SHOWN_TENSORS]
    wide = max(map(len, [*names, "together"]))
    lines = [
        Text("  5  whose      the part of each matrix: learning rate × |gradient|²"),
        Text("     What a matrix's own small step takes off the loss, and its share of all:", DIM),
    ]
    rows = [(name, step.falls[name]) for name in names]
    if rest := order[SHOWN_TENSORS:]:
        rows.append((f"{len(rest)} more", sum(step.falls[name] for name in rest)))
    for name, fall in rows:
        line = Text(f"     {padded_text(name, wide, right=False)}  {fall:8.4f}  {percent(fall / total, 1):>6}")
        room = min(20, width - cell_len(line.plain) - 2)
        bar = share_bar(fall / total, room) if room > 3 else ""
        lines.append(line.append(f"  {bar}", ACCENT) if bar else line)
    lines.append(Text(f"     {padded_text('together', wide, right=False)}  {sum(step.falls.values()):8.4f}", "bold"))
    fell = step.loss - step.loss_after
    said = f"     The loss fell by {fell:.4f}"
    if abs(fell - total) > 0.1 * total:
        said += f", not by {total:.4f}: the step is so long that the gradient changes on the way"
    said += "."
    return [*lines, Text(said, DIM)]


def _probability_lines(step: Lesson, width: int) -> list[Text]:
    """Each hidden word, its probability, and where there is room what it adds to the loss."""
    words = [token_label(word, min(20, width // 4)) for _, word, _ in step.predictions]
    most, roomy = max(map(cell_len, words)), width >= 60
    labels = [token_label(given, min(40, width - most - (32 if roomy else 18))) for given, _, _ in step.predictions]
    wide = max(map(cell_len, labels))
    lines = []
    for label, word, (_, _, p) in zip(labels, words, step.predictions, strict=True):
        line = Text(f"     {padded_text(label, wide, right=False)} → {padded_text(word, most, right=False)}  ")
        line.append(f"{p:.6f}", ACCENT)
        lines.append(line.append(f"   −ln {-math.log(max(p, 1e-45)):7.4f}", DIM) if roomy else line)
    return lines


def _number_lines(array: Floats) -> list[Text]:
    return [Text("       " + " ".join(f"{number:9.5f}" for number in row), no_wrap=True) for row in array]
