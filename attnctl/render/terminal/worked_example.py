"""One query's arithmetic written out, as on a blackboard: every printed number can be worked out from those before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from attnctl.arrays import Floats
from attnctl.readings.traces.trace import LayerTrace, Trace, own_numbers
from attnctl.render.forms import Column, Grid, Table, label_fit, number_text, token_label
from attnctl.render.terminal.console import (
    ACCENT,
    DIM,
    GAP,
    grid_lines,
    padded_text,
    prose_lines,
    table_lines,
)
from attnctl.steps import OTHERWISE, is_default_scale
from attnctl.text import percent
from attnctl.tokens import Token

SHOWN_KEYS = 8  # as many keys as a reader will follow


class Blackboard:
    """The arithmetic of query `query` in head `head` of `layer`, as lines of at most `width` cells."""

    def __init__(self, trace: Trace, layer: LayerTrace, head: int, query: int, precision: int, width: int) -> None:
        self.trace, self.layer, self.precision, self.width = trace, layer, precision, width
        self.query, self.at, self.row = query, layer.position_of(head), layer.row_of(query)
        self.name = token_label(trace.tokens[query], 16)
        twins = Counter(token.text for token in trace.key_axis)
        numbered = zip(trace.key_axis, trace.key_numbers, strict=True)
        self.names = [_indexed_label(token, at, 14, twins[token.text] > 1) for token, at in numbered]
        self.visible = list(range(len(self.names)))
        if layer.mask is not None:
            self.visible = [j for j in self.visible if layer.mask[self.row, j]]
        self.keys = self.visible[:SHOWN_KEYS]
        if layer.weights is not None:  # those with the largest weights, in the order of the text
            weights = layer.weights[self.at, self.row]
            self.keys = sorted(sorted(self.visible, key=lambda j: -weights[j])[:SHOWN_KEYS])

    def _others_text(self) -> str:
        left = len(self.visible) - len(self.keys)
        return f"… {left} more key{'s' * (left != 1)}, of smaller weight" if left else ""

    def _number_text(self, value: float) -> str:
        return number_text(float(value), self.precision)

    def dot_product_terms(self, a: Floats, b: Floats, room: int) -> str:
        """`a·b` term by term in at most `room` cells: 0.26×0.21 + 0.72×0.44 + … 6 more."""
        line, best = "", f"… {len(a)} products"
        for at, (x, y) in enumerate(zip(a, b, strict=True)):
            left, right = self._number_text(x), self._number_text(y)
            right = f"({right})" if right.startswith("-") else right
            if at:
                left = f" - {left[1:]}" if left.startswith("-") else f" + {left}"
            line += f"{left}×{right}"
            more = len(a) - at - 1
            abridged = line + (f" + … {more} more" if more else "")
            if len(abridged) <= room:
                best = abridged
            elif len(line) > room:
                break
        return best

    def projection_lines(self, symbol: str, x: Floats | None) -> list[Text]:
        """How the first number of the query comes about from X and W_Q; x (d_model,) is the query token's row."""
        w = self.layer.parameters.get(f"W_{symbol}")
        rows = self.layer.queries if self.layer.queries_before_rope is None else self.layer.queries_before_rope
        if w is None or x is None or rows is None:
            return []
        result = self._number_text(rows[self.at, self.row, 0])
        bias = self.layer.parameters.get(f"b_{symbol}")
        extra = "" if bias is None else f" + {self._number_text(bias[self.at, 0])}".replace("+ -", "- ")
        start = f"q({self.name})₀ = "
        room = self.width - cell_len(start) - len(result) - len(extra) - 3
        return self._equation_lines(f"{start}{self.dot_product_terms(x, w[self.at, :, 0], room)}{extra}", result)

    def _equation_lines(self, left: str, result: str) -> list[Text]:
        """`left = result`, on two lines where one is too narrow."""
        if cell_len(left) + 3 + cell_len(result) <= self.width:
            return [Text(f"{left} = ").append(result, style="bold")]
        return [Text(left), Text("  = ").append(result, style="bold")]

    def rotation_lines(self) -> list[Text]:
        """The first pair of the query's dimensions, turned."""
        before, angles, after = self.layer.queries_before_rope, self.layer.rope_angles, self.layer.queries
        if before is None or angles is None or after is None:
            return []
        other = 1 if self.trace.model.rope_pairs == "interleaved" else angles.shape[1]
        a, b = (self._number_text(before[self.at, self.row, d]) for d in (0, other))
        x, y = (self._number_text(after[self.at, self.row, d]) for d in (0, other))
        angle = self._number_text(angles[self.query, 0])
        return self._equation_lines(f"q({self.name}): ({a}, {b}) turned by {angle}", f"({x}, {y})")

    def dot_products(self) -> list[Text]:
        """The query's dot product with each key."""
        q, k, scores = self.layer.queries, self.layer.keys, self.layer.scores
        if q is None or k is None or scores is None:
            return []
        left = max(cell_len(self.names[j]) for j in self.keys)
        results = [self._number_text(scores[self.at, self.row, j]) for j in self.keys]
        right = max(map(len, results))
        room = self.width - left - right - GAP - 3
        lines = [self._says_line("asks each key", "q · k")]
        texts = [self.dot_product_terms(q[self.at, self.row], k[self.at, j], room) for j in self.keys]
        middle = max(map(len, texts))
        for j, terms, result in zip(self.keys, texts, results, strict=True):
            line = Text(
                padded_text(self.names[j], left, right=False)
                + " " * GAP
                + padded_text(terms, middle, right=False)
                + " = "
            )
            lines.append(line.append(padded_text(result, right), style="bold"))
        return self._closed_lines(lines)

    def _says_line(self, what: str, formula: str) -> Text:
        text = Text(f"{self.name} ", style=f"bold {ACCENT}").append(f"{what}:", style="not bold default")
        fits = formula and cell_len(text.plain) + 1 + cell_len(formula) <= self.width
        return text.append(f" {formula}", style="not bold dim default") if fits else text

    def _closed_lines(self, lines: list[Text]) -> list[Text]:
        return lines + ([Text(self._others_text(), style=DIM)] if self._others_text() else [])

    def division_lines(self) -> list[Text]:
        """One score scaled, with its numbers."""
        scores, scaled = self.layer.scores, self.layer.scaled_scores
        scale = self.trace.model.scale
        if scores is None or scaled is None or scale is None or scale == 1.0 or not self.keys:
            return []
        if self.trace.model.caps_scores or self.layer.bias is not None:
            return []
        weights = self.layer.weights
        j = self.keys[0] if weights is None else max(self.keys, key=lambda j: float(weights[self.at, self.row, j]))
        by = f"√{self.trace.model.d_k}" if is_default_scale(self.trace) else f"{scale:.6g}"
        sign = "/" if is_default_scale(self.trace) else "×"
        division = f"{self.name} → {self.names[j]}: {self._number_text(scores[self.at, self.row, j])} {sign} {by}"
        result = self._number_text(scaled[self.at, self.row, j])
        return [*self._equation_lines(division, result), *self._scaling_effect(j)]

    def _scaling_effect(self, key: int) -> list[Text]:
        """What the scale did to the row's largest weight, that of `key`; nothing where a sink takes part of the row."""
        scores, weights, t = self.layer.scores, self.layer.weights, self.trace.model.temperature or 1.0
        if scores is None or weights is None or self.layer.sink_weights is not None:
            return []
        row = scores[self.at, self.row, self.visible].astype(np.float64) / t  # (visible,)
        share = np.exp(row - row.max()) / np.exp(row - row.max()).sum()  # (visible,)
        unscaled = self._number_text(share[self.visible.index(key)])
        scaled = self._number_text(weights[self.at, self.row, key])
        return prose_lines(f"weight of {self.names[key]}: {scaled}, and {unscaled} without the scaling", self.width)

    def softmax_lines(self) -> list[Text]:
        """Exponentials, their sum, and each one's share."""
        if self.layer.weights is None:
            return []
        weights = self.layer.weights[self.at, self.row]  # (n_k,)
        exponents = self._shifted_exponents()
        number, names = self._number_text, [self.names[j] for j in self.keys]
        shown, columns, foot = [float(weights[j]) for j in self.keys], [], ["Σ"]
        if exponents is not None:
            scaled, shift = exponents
            e = {j: float(np.exp(scaled[j] - shift)) for j in self.visible}
            title = "scaled" if self.trace.model.temperature is None else "÷ T"
            columns = [
                Column(title, [scaled[j] for j in self.keys], told=number),
                Column(f"exp(· - {number(shift)})" if shift else "exp", [e[j] for j in self.keys], told=number),
            ]
            foot += ["", number(sum(e.values())), number(weights.sum())]
        if self.layer.sink_weights is not None and self.trace.measure is None:
            names.append("sink")
            shown.append(float(self.layer.sink_weights[self.at, self.row]))
        single = "weight" if self.trace.measure is None else "share"
        formula = "exp(score) / Σ exp(scores)" if self.layer.scaled_scores is not None else ""
        formula = OTHERWISE[self.trace.measure][0] if self.trace.measure is not None else formula
        told = "comes from" if self.trace.measure is not None else "shares out its attention"
        told = told if "no-weights" not in self.trace.noted else "has these numbers"
        columns = [
            Column("", names, "text"),
            *columns,
            Column("÷ Σ" if columns else single, shown, told=number, tone="bold"),
            Column("", shown, "bar", most=24, rank=0),
        ]
        table = Table(columns, foot=foot if exponents is not None else ())
        lines = [self._says_line(told, formula), *table_lines(table, self.width)]
        if others := self._others_text():
            lines.insert(len(self.keys) + 2, Text(others, style=DIM))
        return lines + (self._shift_lines(exponents[1]) if exponents is not None else [])

    def _shift_lines(self, shift: float) -> list[Text]:
        """Why a number is taken off each score before its exponential; nothing where none is."""
        if not shift:
            return []
        number = self._number_text(shift)
        told = f"{number}, the row's largest, is taken off each score before exp, so that none overflows: "
        told += "the shares stay the same."
        return prose_lines(told, self.width)

    def _shifted_exponents(self) -> tuple[dict[int, float], float] | None:
        """What the exponential is taken of, and what is taken off first so that it stays small."""
        if self.layer.scaled_scores is None or not self.visible:
            return None
        t = self.trace.model.temperature or 1.0
        scaled = {j: float(self.layer.scaled_scores[self.at, self.row, j]) / t for j in self.visible}
        top = max(scaled.values())
        lost = abs(1.0 - float(self.layer.weights[self.at, self.row].sum())) if self.layer.weights is not None else 0
        if lost > 1e-3:  # a sink takes part of the sum: the shares alone are shown
            return None
        return scaled, top if top > 8 or top < -8 else 0.0

    def weighted_values(self) -> list[Text]:
        """Each value times its weight, and their sum: the context."""
        used = self.layer.weights if self.layer.dropped_weights is None else self.layer.dropped_weights
        if used is None or self.layer.values is None or self.layer.context is None:
            return []
        share = used[self.at, self.row]  # (n_k,)
        products = [share[j] * self.layer.values[self.at, j] for j in self.keys]  # (d_v,) each
        names = [f"{self._number_text(share[j])} × {self.names[j]}" for j in self.keys]
        rest = [j for j in self.visible if j not in self.keys]
        if rest:
            products.append(share[rest] @ self.layer.values[self.at, rest])
            names.append(f"{self._number_text(float(share[rest].sum()))} × {len(rest)} more")
        products.append(self.layer.context[self.at, self.row])
        d_v = len(products[-1])
        grid = Grid(np.stack(products), [*names, "Σ context"], [str(d) for d in range(d_v)], self.precision)
        lines = grid_lines(grid, self.width)
        if len(lines) > len(products):
            lines[len(products)].stylize("bold")
        return [self._says_line("gathers", "weight × value, added up"), *lines]


def told_apart(tokens: Sequence[Token], at: int, width: int, number: int | None = None) -> str:
    """A token's label in `width` cells, with its index, or `number`, where another token reads the same: "the (4)"."""
    twins = sum(token.text == tokens[at].text for token in tokens) > 1
    return _indexed_label(tokens[at], at if number is None else number, width, twins)


def _indexed_label(token: Token, at: int, width: int, twins: bool) -> str:
    """A token's label in `width` cells, with its index `at` where it has `twins`: "the (4)"."""
    index = f" ({at})" if twins else ""
    return label_fit(token_label(token), width - len(index)) + index


def summary_line(trace: Trace, layer: LayerTrace, head: int, query: int, width: int, most: int = 3) -> str:
    """Where one query's attention went, in `width` cells at most: "eat pays 70 % of its attention to Alice".

    Of another measure than the weights: "eat comes 70 % from Alice".
    """
    assert layer.weights is not None
    verb, what, to = ("pays", " of its attention", "to") if trace.measure is None else ("comes", "", "from")
    if trace.noted >= {"left-out", "rescaled"} and what:
        what = " of the rest of its attention"
    row = layer.weights[layer.position_of(head), layer.row_of(query)]  # (n_k,)
    longest = max(6, min(24, (width - len(f" {verb} 100 %{what} {to} ")) // 2))  # cells, so that the names fit
    name = told_apart(trace.tokens, query, longest)
    if not row.any():
        return f"{name} {'looks' if layer.mask is None else 'may look'} at nothing"
    order = [int(j) for j in np.argsort(-row, kind="stable")[:most]]
    shares: list[str] = []
    numbers = trace.key_numbers
    own = trace.reads_itself or "left-out" in trace.noted and own_numbers(trace.tokens, trace.key_axis) is not None
    for j in order:
        whom = "itself" if own and numbers[j] == query else told_apart(trace.key_axis, j, longest, numbers[j])
        if row[j] >= 0.05 or not shares:
            shares.append(f"{percent(row[j])}{'' if shares else what} {to} {whom}")
    kept = _kept_back(layer, head, query) if trace.measure is None else ""
    if cell_len(f"{name} {verb} {shares[0]}{kept}") > width:  # that it is attention, the heading says
        shares[0] = shares[0].replace(what, "", 1)
    while len(shares) > 1 and cell_len(f"{name} {verb} {', '.join(shares)}{kept}") > width:
        shares.pop()
    return label_fit(f"{name} {verb} {', '.join(shares)}{kept}", width)


def _kept_back(layer: LayerTrace, head: int, query: int) -> str:
    """What a learned sink takes of a row, and how far its gate is shut, for a summary line; empty where there are none."""
    at, row = layer.position_of(head), layer.row_of(query)
    told = ""
    if layer.sink_weights is not None and layer.sink_weights[at, row] >= 0.05:
        told += f", {percent(layer.sink_weights[at, row])} to the sink"
    if layer.gate is not None:
        shut = 100 * (1 - float(layer.gate[at, row]))
        told += f"; its gate is {shut:.0f} % shut" if shut >= 0.5 else ""
    return told
