"""Training for a terminal: the live view, the table of what the heads learned, and one gradient step in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from attnctl.render.terminal.number_grid import ACCENT, DIM, padded_text, share_bar, token_label

if TYPE_CHECKING:
    from attnctl.training.lesson import Lesson

BLOCKS = " ▁▂▃▄▅▆▇█"
CURVE_HEIGHT = 6


def live_view(reports: Sequence[dict[str, Any]], steps: int, width: int) -> Group:
    """The state of a training: progress, loss curve, and where the watched word looks."""
    last = reports[-1]
    parts: list[RenderableType] = [Text(), _progress_line(last, steps, width), Text()]
    parts += _loss_curve([r["loss"] for r in reports if r["loss"] is not None], width)
    if "watch" in last:
        parts += [Text(), *_watched_lines(last["watch"], width)]
    return Group(*parts)


def _progress_line(report: dict[str, Any], steps: int, width: int) -> Text:
    done = report["step"] / steps
    left = report["seconds"] / max(done, 1e-9) * (1 - done)
    line = Text("  ", no_wrap=True, overflow="crop").append(padded_text(share_bar(done, 20), 20, right=False), ACCENT)
    line.append(f"  step {report['step']} of {steps}")
    line.append(f"   {report['tokens_per_second']:,} tokens/s   {_clock_time(left)} left", DIM)
    return line


def _clock_time(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _loss_curve(losses: Sequence[float], width: int) -> list[Text]:
    """The loss over the steps, as columns of blocks."""
    if not losses:
        return []
    columns = max(min(width - 14, 60), 10)
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
    lines[0].append(f"   loss {losses[-1]:.3f}", "bold")
    return lines


def watch_line(watch: dict[str, Any]) -> str:
    """Where the watched word looked before training, and now: "eat → Alice 0.26 → 0.98"."""
    return f"{token_label(watch['query'])} → {token_label(watch['key'])} {watch['before']:.2f} → {watch['weight']:.2f}"


def _watched_lines(watch: dict[str, Any], width: int) -> list[Text]:
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


def lesson_view(step: Lesson) -> Group:
    """One step of gradient descent, number by number."""
    shown = min(4, step.weights.shape[0]), min(6, step.weights.shape[1])
    parts: list[RenderableType] = [
        Text(),
        Text(f"  One step of gradient descent on: {token_label(step.sentence)}", "bold"),
        Text(),
        Text("  1  predict    the probability that the network gives to each true word"),
        *_probability_lines(step),
        Text(),
        Text(f"     loss = mean of −ln(probability) = {step.loss:.4f}"),
        Text(
            f"     a network that knows nothing gives every word 1/{step.vocabulary}: ln {step.vocabulary} =", DIM
        ).append(f" {math.log(step.vocabulary):.4f}", DIM),
        Text(),
        Text(f"  2  gradient   how the loss changes with each number of W_Q, layer {step.layer}, head {step.head}"),
        Text(
            f"     its length over all of W_Q is {step.gradient_norm:.4f}; the first {shown[0]} × {shown[1]} numbers:",
            DIM,
        ),
        *_number_lines(step.gradient[: shown[0], : shown[1]]),
        Text(),
        Text(f"  3  step       W_Q ← W_Q − {step.lr:g} × gradient"),
        Text("     before", DIM),
        *_number_lines(step.weights[: shown[0], : shown[1]]),
        Text("     after", DIM),
        *_number_lines(step.after[: shown[0], : shown[1]]),
        Text(),
        Text(f"  4  again      loss {step.loss:.4f} → {step.loss_after:.4f}"),
        Text(f"     {watch_line(step.watch)} in layer {step.layer}, head {step.head}", "bold"),
    ]
    for part in parts:
        if isinstance(part, Text):
            part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)


def _probability_lines(step: Lesson) -> list[Text]:
    wide = max(cell_len(token_label(given, 40)) for given, _, _ in step.predictions)
    return [
        Text(f"     {padded_text(token_label(given, 40), wide, right=False)} → {token_label(word, 20)}  ").append(
            f"{p:.4f}", ACCENT
        )
        for given, word, p in step.predictions
    ]


def _number_lines(array: Any) -> list[Text]:
    return [Text("       " + " ".join(f"{number:9.5f}" for number in row)) for row in array]
