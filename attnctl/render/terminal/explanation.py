"""The walk through a trace for a terminal: numbers, formulas and plain sentences, in the order of the mathematics.

Of the query that tells most the arithmetic is written out: every printed number can be worked out from those before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl.arrays import Bools, Floats
from attnctl.readings.questions.focus import Focus, may_stand_for, other_name, relation_of_pronoun, roles_of_heads
from attnctl.readings.traces.trace import LayerTrace, ModelInfo, Trace, notes_of_kind, own_numbers
from attnctl.render.forms import (
    Column,
    Form,
    Grid,
    Line,
    Piece,
    Table,
    bar_columns,
    label_fit,
    number_text,
    token_label,
)
from attnctl.render.terminal.console import (
    GAP,
    Shown,
    cropped_line,
    grid_lines,
    lines_of,
    table_lines,
)
from attnctl.steps import Part, Step, is_default_scale, walk_steps
from attnctl.text import counted, percent, visible_text
from attnctl.tokens import BLANKS, Token

SHOWN_KEYS = 8  # as many keys as a reader will follow


class Blackboard:
    """The arithmetic of query `query` in head `head` of `layer`, as forms of at most `width` cells."""

    def __init__(self, trace: Trace, layer: LayerTrace, head: int, query: int, precision: int, width: int) -> None:
        self.trace, self.layer, self.width = trace, layer, width
        self.precision, self.number = precision, partial(number_text, precision=precision)
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

    def steps(self) -> dict[str, Callable[[], Iterable[Form | Text]]]:
        """The arithmetic of each step that has any, by the step's name."""
        return {
            "projections": self.projection, "rope": self.rotation, "scores": self.dot_products,
            "scaled": self.division, "weights": self.softmax, "context": self.weighted_values,
        }  # fmt: skip

    def _others(self) -> list[Form]:
        left = len(self.visible) - len(self.keys)
        return [(f"… {left} more key{'s' * (left != 1)}, of smaller weight", "dim")] if left else []

    def dot_product_terms(self, a: Floats, b: Floats, room: int) -> str:
        """`a·b` term by term in at most `room` cells: 0.26×0.21 + 0.72×0.44 + … 6 more."""
        line, best = "", f"… {len(a)} products"
        for at, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
            left, right = self.number(x), self.number(y)
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

    def projection(self) -> Iterator[Form]:
        """How the first number of the query comes about from X and W_Q."""
        x = self.trace.embeddings if self.layer.input is None else self.layer.input  # (n, d_model)
        w = self.layer.parameters.get("W_Q")
        rows = self.layer.queries if self.layer.queries_before_rope is None else self.layer.queries_before_rope
        if w is None or x is None or rows is None:
            return
        result = self.number(float(rows[self.at, self.row, 0]))
        bias = self.layer.parameters.get("b_Q")
        extra = "" if bias is None else f" + {self.number(float(bias[self.at, 0]))}".replace("+ -", "- ")
        start = f"q({self.name})₀ = "
        room = self.width - cell_len(start) - len(result) - len(extra) - 3
        yield _equation(f"{start}{self.dot_product_terms(x[self.query], w[self.at, :, 0], room)}{extra}", result)

    def rotation(self) -> Iterator[Form]:
        """The first pair of the query's dimensions, turned."""
        before, angles, after = self.layer.queries_before_rope, self.layer.rope_angles, self.layer.queries
        if before is None or angles is None or after is None:
            return
        other = 1 if self.trace.model.rope_pairs == "interleaved" else angles.shape[1]
        (a, b), (x, y) = (
            [self.number(float(rows[self.at, self.row, d])) for d in (0, other)] for rows in (before, after)
        )
        angle = self.number(float(angles[self.query, 0]))
        yield _equation(f"q({self.name}): ({a}, {b}) turned by {angle}", f"({x}, {y})")

    def dot_products(self) -> Iterator[Form]:
        """The query's dot product with each key."""
        q, k, scores = self.layer.queries, self.layer.keys, self.layer.scores
        if q is None or k is None or scores is None:
            return
        names = [self.names[j] for j in self.keys]
        results = [self.number(float(scores[self.at, self.row, j])) for j in self.keys]
        room = self.width - max(map(cell_len, names)) - max(map(len, results)) - GAP - 3
        terms = [self.dot_product_terms(q[self.at, self.row], k[self.at, j], room) for j in self.keys]
        yield self._says("asks each key", "q · k")
        columns = [Column("", names, "text"), Column("", terms, "text")]
        equals = Column("", [" = "] * len(names), joined=True)
        yield Table([*columns, equals, Column("", results, tone="bold", joined=True)])
        yield from self._others()

    def _says(self, what: str, formula: str) -> Line:
        fits = cell_len(f"{self.name} {what}: {formula}") <= self.width
        return Line([(f"{self.name} ", "bold accent"), f"{what}:", (f" {formula}" * bool(formula and fits), "dim")])

    def division(self) -> Iterator[Form]:
        """One score scaled, with its numbers, and what that did to the row's largest weight."""
        scores, scaled, weights = self.layer.scores, self.layer.scaled_scores, self.layer.weights
        scale = self.trace.model.scale
        if scores is None or scaled is None or scale is None or scale == 1.0 or not self.keys:
            return
        if self.trace.model.caps_scores or self.layer.bias is not None:
            return
        j = self.keys[0] if weights is None else max(self.keys, key=lambda j: float(weights[self.at, self.row, j]))
        by = f"/ √{self.trace.model.d_k}" if is_default_scale(self.trace) else f"× {scale:.6g}"
        division = f"{self.name} → {self.names[j]}: {self.number(float(scores[self.at, self.row, j]))} {by}"
        yield _equation(division, self.number(float(scaled[self.at, self.row, j])))
        if weights is not None and self.layer.sink_weights is None:  # a sink takes part of the row
            row = scores[self.at, self.row, self.visible].astype(np.float64) / (self.trace.model.temperature or 1.0)
            share = np.exp(row - row.max()) / np.exp(row - row.max()).sum()  # (visible,)
            unscaled = self.number(float(share[self.visible.index(j)]))
            weight = self.number(float(weights[self.at, self.row, j]))
            yield f"weight of {self.names[j]}: {weight}, and {unscaled} without the scaling", "dim"

    def softmax(self) -> Iterator[Form | Text]:
        """Exponentials, their sum, and each one's share."""
        if self.layer.weights is None:
            return
        weights = self.layer.weights[self.at, self.row]  # (n_k,)
        scores, number, measure = self.layer.scaled_scores, self.number, self.trace.measure
        names, shown = [self.names[j] for j in self.keys], [float(weights[j]) for j in self.keys]
        of_sink: list[str] = []  # cells of its line: it has neither score nor exponential
        if self.layer.sink_weights is not None and measure is None:
            names.append("sink")
            shown.append(float(self.layer.sink_weights[self.at, self.row]))
            of_sink.append("")
        columns, foot, shift = [], [], 0.0
        # where a sink takes part of the sum the shares alone are shown
        if scores is not None and self.visible and abs(1.0 - float(weights.sum())) <= 1e-3:
            t = self.trace.model.temperature or 1.0
            scaled = {j: float(scores[self.at, self.row, j]) / t for j in self.visible}
            top = max(scaled.values())
            shift = top if abs(top) > 8 else 0.0  # so that what is raised stays small
            e = {j: float(np.exp(scaled[j] - shift)) for j in self.visible}
            title = "scaled" if self.trace.model.temperature is None else "÷ T"
            for heading, values in ((title, scaled), (f"exp(· - {number(shift)})" if shift else "exp", e)):
                columns.append(Column(heading, [*(values[j] for j in self.keys), *of_sink], told=number))
            foot = ["Σ", "", number(sum(e.values())), number(float(weights.sum()))]
        formula = "exp(score) / Σ exp(scores)" if scores is not None else ""
        if measure is not None:
            from attnctl.measures import measure_named

            formula = measure_named(measure).formula
        told = "comes from" if measure is not None else "shares out its attention"
        yield self._says(told if "no-weights" not in self.trace.noted else "has these numbers", formula)
        single = "weight" if measure is None else "share"
        columns = [
            Column("", names, "text"),
            *columns,
            Column("÷ Σ" if columns else single, shown, told=number, tone="bold"),
            Column("", shown, "bar", most=24, rank=0),
        ]
        lines = list(table_lines(Table(columns, foot=foot), self.width))
        yield from lines[: len(self.keys) + 1]
        yield from self._others()
        yield from lines[len(self.keys) + 1 :]
        if shift:
            told = f"{number(shift)}, the row's largest, is taken off each score before exp, so that none overflows: "
            yield told + "the shares stay the same.", "dim"

    def weighted_values(self) -> Iterator[Form | Text]:
        """Each value times its weight, and their sum: the context."""
        used = self.layer.weights if self.layer.dropped_weights is None else self.layer.dropped_weights
        if used is None or self.layer.values is None or self.layer.context is None:
            return
        share = used[self.at, self.row]  # (n_k,)
        products = [share[j] * self.layer.values[self.at, j] for j in self.keys]  # (d_v,) each
        names = [f"{self.number(float(share[j]))} × {self.names[j]}" for j in self.keys]
        if rest := [j for j in self.visible if j not in self.keys]:
            products.append(share[rest] @ self.layer.values[self.at, rest])
            names.append(f"{self.number(float(share[rest].sum()))} × {len(rest)} more")
        products.append(self.layer.context[self.at, self.row])
        grid = Grid(np.stack(products), [*names, "Σ context"], list(map(str, range(len(products[-1])))), self.precision)
        lines = grid_lines(grid, self.width)
        lines[len(products)].stylize("bold")
        yield self._says("gathers", "weight × value, added up")
        yield from lines


def _equation(left: str, result: str) -> Line:
    """`left = result`, on two lines where one is too narrow."""
    return Line([left, (f"= {result}", "bold")], hanging=2, between=" ")


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


INDENT = 5
LINKED = 60  # cells of each end of a link that is named in a sentence
MOST_ROWS = 24  # of tokens, of a summary


class Explanation:
    """A trace as a rich renderable: every step, for one head a layer, the arithmetic of one query or more written out.

    `focuses` name the layers, heads and queries that are looked at most closely, the one that the walk ends on first;
    `heads` the heads whose steps are shown; `more_layers` counts the layers with attention that are not.
    """

    def __init__(
        self,
        trace: Trace,
        *focuses: Focus,
        heads: Mapping[int, Sequence[int]] | None = None,
        only: Collection[str] | None = None,
        precision: int = 2,
        story: bool = False,
        more_layers: int = 0,
    ) -> None:
        self.trace, self.focuses, self.only, self.precision, self.story = trace, focuses, only, precision, story
        self.more_layers = more_layers
        self.heads = heads or {layer.layer: layer.heads for layer in trace.layers}
        self.queries = [token_label(token) for token in trace.tokens]
        self.keys = [token_label(token) for token in trace.key_axis]
        self.many_heads = (trace.model.n_layers or 1) > 1 or (trace.model.n_heads or 1) > 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the walk, none wider than the console."""
        width = options.max_width
        yield Shown([*(self._title_forms(width) if self.only is None else ()), *self._chosen()])
        place = None
        steps = [
            step
            for step in walk_steps(self.trace, None, self.only)
            if step.layer is None or step.head is None or step.head in self.heads.get(step.layer, ())
        ]
        for number, step in enumerate(steps, 1):
            here = (step.layer, step.head)
            if step.layer is not None and step.head is not None and self.many_heads and here != place:
                place = here
                yield Shown(self._place_forms(step.layer, step.head, width))
            yield Shown(self._heading_forms(number, step, width))
            room = width - INDENT
            for at, form in enumerate(self._step_body(step, room)):
                if at == 0:
                    yield Text("")
                for line in [form] if isinstance(form, Text) else lines_of(form, room):
                    yield cropped_line(Text(" " * INDENT).append_text(line), width)

    # --- the parts of the page -----------------------------------------------------------------------------------

    def _title_forms(self, width: int) -> Iterator[Form]:
        yield ""
        text = token_label(" ".join(self.trace.text.split() or self.queries))
        yield Line(label_fit(text, 4 * (width - 4)), "bold", 2)
        yield Line(self._model_line(), "dim", 2)
        for note in self.trace.notes:
            if not notes_of_kind([note], "guess"):  # that is the last line of all
                yield Line(note, indent=2)
        if any(token.unknown for token in self.trace.tokens):
            said = "† not among the words the model knows: read by its shape, or as its unknown word"
            yield Line(said, indent=2)

    def _chosen(self) -> Iterator[Form]:
        """By which rule the places were chosen that are looked at most closely; nothing where they were asked for."""
        for at, focus in enumerate(focus for focus in self.focuses if focus.reason):
            where = place_name(self.trace.model, focus.layer, focus.head)
            query = told_apart(self.trace.tokens, focus.query, LINKED)
            link = f"{query} → {told_apart(self.trace.key_axis, focus.key, LINKED)}"
            if self.only is not None and not at:
                yield ""
            said = f"Shown: {where + ', ' if where else ''}{link}: {focus.reason} (--layer, --head, --query)."
            yield Line(said, "dim", 2)

    def _model_line(self) -> str:
        m = self.trace.model
        parts = [f"model {m.name}{f' ({token_label(m.origin)})' if m.origin else ''}"]
        parts += [counted(count, what) for count, what in ((m.n_layers, "layer"), (m.n_heads, "head")) if count]
        if m.n_kv_heads and m.n_kv_heads != m.n_heads:
            parts.append(counted(m.n_kv_heads, "key/value head"))
        parts += [f"{name} {value}" for name, value in (("d_model", m.d_model), ("d_k", m.d_k)) if value]
        parts += ["causal"] * bool(m.causal)
        parts += [f"seed {m.seed}"] if m.seed is not None else []
        parts += [m.device] * (m.device != "cpu")
        return " · ".join(parts)

    def _place_forms(self, layer: int, head: int, width: int) -> Iterator[Form]:
        model = self.trace.model
        line = place_name(model, layer, head)
        left = {"head": (model.n_heads or 1) - len(self.heads.get(layer, ())), "layer": self.more_layers}
        finds = ", ".join(roles_of_heads(model).get((layer, head), ()))
        line += f": {finds}" if finds else ""
        others = [f"{n} more {what}{'s' * (n != 1)}: --{what} all" for what, n in left.items() if n > 0]
        while others and cell_len(line) + 8 + len(", ".join(others)) > width:
            del others[-1]
        yield ""
        more = "   " + ", ".join(others) if others else ""
        yield Line([(line, "bold accent"), (more, "dim")], mark=(" ──", "bold accent"), hanging=INDENT - 1)

    def _heading_forms(self, number: int, step: Step, width: int) -> Iterator[Form]:
        """Number, title, formula and shape of a step, the formula below where there is no room; what the step does."""
        shape = _shape_text(step.parts[0]) if len(step.parts) == 1 else ""
        formula = step.formula and f"   {step.formula}"
        below = INDENT + cell_len(step.title) + len(formula) + 2 + len(shape) > width
        told = step.title + ("" if below else formula)
        space = " " * (width - INDENT - cell_len(told) - len(shape))
        said: list[Piece] = [(step.title, "bold"), "" if below else formula, (space + shape if shape else "", "dim")]
        yield ""
        yield Line(said, mark=(f" {number:>2}", "bold accent"), hanging=INDENT, cut=True)
        if formula and below:
            yield Line([*step.formula.split("   ")], indent=INDENT, between="   ")
        yield Line(step.sentence, "dim", INDENT)
        if self.story and step.story:
            yield Line(step.story, "italic", INDENT)

    def _step_body(self, step: Step, width: int) -> Iterator[Form | Text]:
        if step.name == "tokens":
            yield from self._token_forms()
        elif step.name == "prediction":
            yield from self._prediction_forms()
        elif step.name == "summary":
            yield from self._summary_forms(width)
        else:
            for at, part in enumerate(step.parts):
                if at:
                    yield ""
                if len(step.parts) > 1:
                    yield Line([(part.symbol, "bold"), (f"  {_shape_text(part)}", "dim")])
                yield self._step_grid(step, part)
            if step.layer is None or step.head is None:
                return
            layer = self.trace.layer(step.layer)
            for query in dict.fromkeys(focus.query for focus in self.focuses):
                if layer.rows is None or query in layer.rows:
                    board = Blackboard(self.trace, layer, step.head, query, self.precision, width)
                    arithmetic = list(board.steps()[step.name]() if step.name in board.steps() else ())
                    yield from [""] * bool(arithmetic)
                    yield from arithmetic

    def _step_grid(self, step: Step, part: Part) -> Grid:
        layer = None if step.layer is None else self.trace.layer(step.layer)
        numbers = [[str(d) for d in range(size)] for size in part.array.shape]
        rows = {"keys": self.keys, "dimensions": numbers[0]}.get(part.rows, self.queries)
        marks = [focus.query for focus in self.focuses] if rows is self.queries else []
        if layer is not None and layer.rows is not None and part.rows == "queries":
            rows = [self.queries[i] for i in layer.rows]
            marks = [layer.rows.index(mark) for mark in marks if mark in layer.rows]
        square = part.columns == "keys"
        columns = self.keys if square else numbers[1]
        weights, signed = part.name in ("weights", "dropped_weights"), part.name == "signed_weights"
        array, mask = part.array, layer.mask if square and (weights or signed) and layer is not None else None
        if part.name == "index_scores" and layer is not None:
            mask = self._scored_keys(layer, part.array)
        must = [focus.key for focus in self.focuses] if square else []
        if part.name == "weights" and layer is not None and layer.sink_weights is not None and step.head is not None:
            taken = layer.sink_weights[layer.position_of(step.head)][:, None]  # (rows, 1)
            array, columns, must = np.concatenate([array, taken], axis=1), [*columns, "sink"], [*must, len(columns)]
            mask = None if mask is None else np.concatenate([mask, np.ones_like(taken, dtype=bool)], axis=1)
        return Grid(
            array,
            rows,
            ["open"] if part.name == "gate" else columns,
            self.precision,
            mask=mask,
            heat=weights or part.name == "gate",
            change=signed,
            sums=weights,
            marks=tuple(marks),
            must=(*must, *(focus.query for focus in self.focuses)) if square else (),
            max_rows=10 if part.rows == "dimensions" else 24,
        )

    def _scored_keys(self, layer: LayerTrace, scores: Floats | Bools) -> Bools | None:
        """Which keys an indexer scored (rows, n_k): compressed slots alone where there are any, else what is not later."""
        n, n_k = len(self.trace.tokens), scores.shape[1]
        if n_k > n:
            return np.asarray((np.arange(n_k) >= n) & (scores != 0))  # the slots stand after the tokens
        rows = np.arange(n) if layer.rows is None else np.asarray(layer.rows)  # (rows,)
        return np.arange(n_k) <= rows[:, None] if self.trace.model.causal else None

    def _token_forms(self) -> Iterator[Form]:
        tokens = self.trace.tokens
        shown = tokens if len(tokens) <= MOST_ROWS else tokens[: MOST_ROWS - 1]
        yield Table(
            [
                Column("index", range(len(shown)), tone="dim"),
                Column("token", [token_label(token, 24) for token in shown], "text", tone="bold"),
                Column("id", ["" if token.id is None else str(token.id) for token in shown]),
                Column("", ["special" if token.special else "" for token in shown], "text", tone="dim"),
            ]
        )
        if len(shown) < len(tokens):
            yield f"    … {counted(len(tokens) - len(shown), 'more token')}", "dim"

    def _prediction_forms(self) -> Iterator[Form]:
        for position in dict.fromkeys(p.position for p in self.trace.predictions):
            blank = self.trace.tokens[position]
            fills = blank.text in BLANKS or not self.trace.model.causal
            yield Line([("in the place of " if fills else "after ", "dim"), (token_label(blank), "bold")])
            mine = [p for p in self.trace.predictions if p.position == position]
            shares = [p.probability for p in mine]
            names = Column("", [token_label(p.text, 20) for p in mine], "text")
            yield Table([names, *bar_columns(shares, most=24, tone="accent")], indent=2)

    def _summary_forms(self, width: int) -> Iterator[Form]:
        for layer in self.trace.layers:
            if layer.weights is None:
                continue
            for head in self.heads.get(layer.layer, layer.heads):
                if self.many_heads:
                    yield place_name(self.trace.model, layer.layer, head), "dim"
                rows = list(layer.rows) if layer.rows is not None else list(range(len(self.trace.tokens)))
                for query in rows[:MOST_ROWS]:
                    yield Line(summary_line(self.trace, layer, head, query, width - 2), indent=2, cut=True)
                if len(rows) > MOST_ROWS:
                    yield f"  … {counted(len(rows) - MOST_ROWS, 'more token')}", "dim"
        # what is said instead of shares where the model cannot read the sentence well
        guess = next((f"{note}." for note in notes_of_kind(self.trace.notes, "guess")), None)
        for focus in self.focuses[:1] if guess else self.focuses:
            yield ""
            yield guess or focus_sentence(self.trace, focus, width), "bold accent"
            if not guess and (conclusion := conclusion_of(self.trace, focus)):
                yield conclusion, "dim"


def _shape_text(part: Part) -> str:
    return "(" + " × ".join(str(size) for size in part.array.shape) + ")"


PARKED = 0.5  # weight on itself, or of most words on the first token, above which that is called a place to park
PARKED_HERE = "What it keeps for itself is parked there: nothing better to look at was found."
OFTEN_PARKED = "Attention that stays on the token itself is often parked there, and then says little."
UNTRAINED = ("random", "dot")  # kinds of models that can have learned nothing, nor to park attention


def place_name(model: ModelInfo, layer: int, head: int) -> str:
    """A layer and head by their numbers, each where the model has several: "layer 1, head 2"."""
    where = [f"layer {layer}"] if (model.n_layers or 1) > 1 else []
    return ", ".join(where + [f"head {head}"] * ((model.n_heads or 1) > 1))


def focus_sentence(trace: Trace, focus: Focus, width: int) -> str:
    """Where the query of a focus looks, in a sentence."""
    where = place_name(trace.model, focus.layer, focus.head)
    place = f"In {where}, " if where else ""
    about = trace, trace.layer(focus.layer), focus.head, focus.query
    line = summary_line(*about, width - len(place) - 1)
    if "…" in line:  # on two lines, then
        line = summary_line(*about, max(width, 60))
    return f"{place}{line}."


def conclusion_of(trace: Trace, focus: Focus) -> str:
    """What a reader may conclude of the strongest link, in a sentence; empty where it speaks for itself."""
    finds = roles_of_heads(trace.model).get((focus.layer, focus.head), ())
    trained, layer = trace.model.kind not in UNTRAINED, trace.layer(focus.layer)
    weights = layer.head_weights(focus.head)  # (rows, n_k)
    if trace.reads_itself and focus.key == focus.query and focus.weight > PARKED:
        if weights.shape[1] == 1 or layer.mask is not None and layer.mask[layer.row_of(focus.query)].sum() == 1:
            return "It sees no other token: the softmax of one score is 1."
        return (PARKED_HERE if finds else OFTEN_PARKED) if trained else ""
    # most words from the fourth on
    parked = len(weights) > 3 and float((weights[3:, 0] > PARKED).mean()) > 0.5
    if trained and focus.key == 0 and focus.query > 3 and parked:
        return "Most words look at the first token here: attention is parked there, and says little about it."
    if not finds or not may_stand_for(trace.tokens, focus.query, focus.key):
        return ""
    fitting = relation_of_pronoun(finds, trace.tokens[focus.query].text)
    if not fitting:
        return ""
    other = other_name(trace.tokens, focus.query, focus.key)
    if other is not None:
        pronoun, found = (visible_text(trace.tokens[at].text) for at in (focus.query, focus.key))
        return f"By their usual genders {pronoun} may be {found} or {visible_text(other)}: which of them is a guess."
    return f"This head was measured to find {fitting}; how often it is right: attnctl model {trace.model.card_name}."
