"""The forms of a trace: its numbers, formulas and plain sentences, in the order of the computation.

For the query of the headline the arithmetic is written out: every printed number follows from the numbers before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attnctl.checks.tolerances import WHOLE_ROW
from attnctl.errors import option_name
from attnctl.layer import LayerTrace
from attnctl.readings.questions.headline import doubt_of
from attnctl.render.forms import (
    Column,
    Form,
    Grid,
    Line,
    Piece,
    Table,
    bar_columns,
    exponential_heading,
    label_fit,
    shaded_tokens,
    sum_columns,
    token_label,
)
from attnctl.runtime.arrays import Floats
from attnctl.text import counted, number_text, percent, sentence_percent
from attnctl.text.tokens import Token, is_blank
from attnctl.trace import Headline, Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import notes_of_kind
from attnctl.trace.run import Prediction
from attnctl.trace.steps import NAMES, Step, StepPart, walk_steps

SHOWN_KEYS = 8  # keys in the arithmetic of one query: more are hard to follow


class Arithmetic:
    """The arithmetic of query `query` in head `head` of `layer`, with its numbers."""

    def __init__(self, trace: Trace, layer: LayerTrace, head: int, query: int, precision: int) -> None:
        self.trace, self.layer, self.precision = trace, layer, precision
        self.number = partial(number_text, precision=precision)
        self.query, self.position, self.row = query, layer.position_of(head), layer.row_of(query)
        self.name = token_label(trace.tokens[query], 16)
        self.visible = list(range(len(trace.key_axis)))
        if layer.mask is not None:
            self.visible = [j for j in self.visible if layer.mask[self.row, j]]
        self.keys = self.visible[:SHOWN_KEYS]
        if layer.weights is not None:  # those with the largest weights, in the order of the text
            weights = layer.weights[self.position, self.row]
            self.keys = sorted(sorted(self.visible, key=lambda j: -weights[j])[:SHOWN_KEYS])
        self.names = {j: "".join(distinct_label(trace.key_axis, j, 14, trace.key_numbers[j])) for j in self.keys}

    def steps(self) -> dict[str, Callable[[], Iterator[Form]]]:
        """Return the arithmetic of each step that has any, by the name of the step."""
        return {
            "projections": self.projection, "rope": self.rotation, "scores": self.dot_products,
            "scaled": self.division, "weights": self.softmax, "context": self.weighted_values,
        }  # fmt: skip

    def _others(self) -> str:
        count = len(self.visible) - len(self.keys)
        return f"… {count} more key{'s' * (count != 1)}, of smaller weight" if count else ""

    def _terms(self, a: Floats, b: Floats) -> list[str]:
        """Return the terms of `a·b`: 0.26×0.21, + 0.72×0.44."""
        terms: list[str] = []
        for x, y in zip(map(self.number, a.tolist()), map(self.number, b.tolist()), strict=True):
            y = f"({y})" if y.startswith("-") else y
            sign = f" - {x[1:]}" if x.startswith("-") else f" + {x}"
            terms.append(f"{sign if terms else x}×{y}")
        return terms

    def projection(self) -> Iterator[Form]:
        """Yield the first number of the query as a sum over X and W_Q."""
        x = self.trace.embeddings if self.layer.input is None else self.layer.input  # (n, d_model)
        w = self.layer.parameters.get("W_Q")
        rows = self.layer.queries if self.layer.queries_before_rope is None else self.layer.queries_before_rope
        if w is None or x is None or rows is None:
            return
        terms = self._terms(x[self.query], w[self.position, :, 0])
        bias = self.layer.parameters.get("b_Q")
        extra = "" if bias is None else f" + {self.number(float(bias[self.position, 0]))}".replace("+ -", "- ")
        result = self.number(float(rows[self.position, self.row, 0]))
        yield Table(sum_columns([f"q({self.name})₀ ="], [terms], [result], extra), gap=1)

    def rotation(self) -> Iterator[Form]:
        """Yield the rotation of the first pair of the query's dimensions."""
        before, angles, after = self.layer.queries_before_rope, self.layer.rope_angles, self.layer.queries
        if before is None or angles is None or after is None:
            return
        partner = 1 if self.trace.model.rope_pairs == "interleaved" else angles.shape[1]
        (a, b), (x, y) = (
            [self.number(float(rows[self.position, self.row, d])) for d in (0, partner)] for rows in (before, after)
        )
        angle = self.number(float(angles[self.query, 0]))
        yield _equation(f"q({self.name}): ({a}, {b}) turned by {angle}", f"({x}, {y})")

    def dot_products(self) -> Iterator[Form]:
        """Yield the query's dot product with each key."""
        q, k, scores = self.layer.queries, self.layer.keys, self.layer.scores
        if q is None or k is None or scores is None:
            return
        terms = [self._terms(q[self.position, self.row], k[self.position, j]) for j in self.keys]
        results = [self.number(float(scores[self.position, self.row, j])) for j in self.keys]
        yield self._says("asks each key", "q · k")
        yield Table(sum_columns([self.names[j] for j in self.keys], terms, results), omission=self._others())

    def _says(self, action: str, formula: str) -> Line:
        return Line([(f"{self.name} ", "bold accent"), f"{action}:", (f" {formula}" * bool(formula), "dim", 0)])

    def division(self) -> Iterator[Form]:
        """Yield one score divided by the scale, and the effect of that on the row's largest weight."""
        scores, scaled, weights = self.layer.scores, self.layer.scaled_scores, self.layer.weights
        scale = self.trace.model.scale
        if scores is None or scaled is None or scale is None or scale == 1.0 or not self.keys:
            return
        if self.trace.model.caps_scores or self.layer.bias is not None:
            return
        j = (
            self.keys[0]
            if weights is None
            else max(self.keys, key=lambda j: float(weights[self.position, self.row, j]))
        )
        by = f"/ √{self.trace.model.d_k}" if self.trace.model.has_default_scale else f"× {scale:.6g}"
        division = f"{self.name} → {self.names[j]}: {self.number(float(scores[self.position, self.row, j]))} {by}"
        yield _equation(division, self.number(float(scaled[self.position, self.row, j])))
        if weights is not None and self.layer.sink_weights is None:  # a sink takes part of the row
            row = scores[self.position, self.row, self.visible].astype(np.float64) / (
                self.trace.model.temperature or 1.0
            )
            share = np.exp(row - row.max()) / np.exp(row - row.max()).sum()  # (visible,)
            unscaled = self.number(float(share[self.visible.index(j)]))
            weight = self.number(float(weights[self.position, self.row, j]))
            yield f"weight of {self.names[j]}: {weight}, and {unscaled} without the scaling", "dim"

    def softmax(self) -> Iterator[Form]:
        """Yield the exponentials, their sum, and the share of each."""
        if self.layer.weights is None:
            return
        weights = self.layer.weights[self.position, self.row]  # (n_k,)
        scores, number, measure = self.layer.scaled_scores, self.number, self.trace.measure
        names, shares = [self.names[j] for j in self.keys], [float(weights[j]) for j in self.keys]
        sink = None if self.layer.sink_weights is None else float(self.layer.sink_weights[self.position, self.row])
        if sink is not None and measure is None:
            names.append("sink")
            shares.append(sink)
        columns, foot, shift = [], [], 0.0
        # if a sink takes part of the sum, only the shares are shown
        if scores is not None and self.visible and sink is None and abs(1.0 - float(weights.sum())) <= WHOLE_ROW:
            t = self.trace.model.temperature or 1.0
            scaled = {j: float(scores[self.position, self.row, j]) / t for j in self.visible}
            top = max(scaled.values())
            shift = top if abs(top) > 8 else 0.0  # subtracted, so that the exponentials stay small
            e = {j: float(np.exp(scaled[j] - shift)) for j in self.visible}
            title = "scaled" if self.trace.model.temperature is None else "÷ T"
            for heading, values in ((title, scaled), (exponential_heading(shift, number), e)):
                columns.append(Column(heading, [values[j] for j in self.keys], format=number))
            foot = ["Σ", "", number(sum(e.values())), number(float(weights.sum()))]
        formula = "exp(score) / Σ exp(scores)" if scores is not None else ""
        if measure is not None:
            from attnctl.measures import measure_named

            formula = measure_named(measure).formula
        action = "comes from" if measure is not None else "shares out its attention"
        yield self._says(action if "no-weights" not in self.trace.noted else "has these numbers", formula)
        single = "weight" if measure is None else "share"
        columns = [
            Column("", names, "text"),
            *columns,
            Column("÷ Σ" if columns else single, shares, format=number, tone="bold"),
            Column("", shares, "bar", max_width=24, rank=0),
        ]
        yield Table(columns, foot=foot, omission=self._others())
        if shift:
            yield f"{number(shift)}, the row's largest, is taken off first: the shares stay the same.", "dim"

    def weighted_values(self) -> Iterator[Form]:
        """Yield each value times its weight, and their sum: the context."""
        used = self.layer.weights if self.layer.dropped_weights is None else self.layer.dropped_weights
        if used is None or self.layer.values is None or self.layer.context is None:
            return
        share = used[self.position, self.row]  # (n_k,)
        products = [share[j] * self.layer.values[self.position, j] for j in self.keys]  # (d_v,) each
        names = [f"{self.number(float(share[j]))} × {self.names[j]}" for j in self.keys]
        if other_keys := [j for j in self.visible if j not in self.keys]:
            products.append(share[other_keys] @ self.layer.values[self.position, other_keys])
            names.append(f"{self.number(float(share[other_keys].sum()))} × {len(other_keys)} more")
        products.append(self.layer.context[self.position, self.row])
        columns = list(map(str, range(len(products[-1]))))
        yield self._says("gathers", "weight × value, added up")
        yield Grid(np.stack(products), [*names, "Σ context"], columns, self.precision, strong=(len(names),))


def _equation(left: str, result: str) -> Line:
    """Return `left = result`, which takes two lines if one is too narrow."""
    return Line([left, (f"= {result}", "bold")], hanging=2, between=" ")


def distinct_label(tokens: Sequence[Token], index: int, width: int, number: int | None = None) -> tuple[str, str]:
    """Return a token's label in `width` cells, and its index, or `number`, if its text occurs twice: "the" and " (4)"."""
    twins = sum(token.text == tokens[index].text for token in tokens) > 1
    suffix = f" ({index if number is None else number})" * twins
    return label_fit(token_label(tokens[index]), width - len(suffix)), suffix


def summary_pieces(trace: Trace, layer: LayerTrace, head: int, query: int, heading: bool = True) -> list[Piece]:
    """Return where one query's attention goes: "eat pays 70 % of its attention to Alice"; smaller shares if there is room.

    `heading`: a heading above names the attention already. For a measure other than weights: "eat comes 70 % from Alice".
    """
    assert layer.weights is not None
    verb, of_attention, to = ("pays", " of its attention", "to") if trace.measure is None else ("comes", "", "from")
    if trace.noted >= {"left-out", "rescaled"} and of_attention:
        of_attention = " of the rest of its attention"
    row = layer.weights[layer.position_of(head), layer.row_of(query)]  # (n_k,)
    name, index = distinct_label(trace.tokens, query, NAMED)
    if not row.any():
        return [name, f"{index} {'looks' if layer.mask is None else 'may look'} at nothing"]
    numbers, pieces, own_key = trace.key_numbers, list[Piece]([name, f"{index} {verb} "]), trace.own_key(query)
    order = np.argsort(-row, kind="stable")[:SHARES].tolist()
    for rank, j in enumerate(order):
        whom = ("itself", "") if j == own_key else distinct_label(trace.key_axis, j, NAMED, numbers[j])
        if not rank:
            pieces += [percent(row[j]), (of_attention, "", 0 if heading else None), f" {to} ", *whom]
        elif row[j] >= 0.05:
            pieces += [(piece, "", -rank) for piece in (f", {percent(row[j])} {to} ", *whom)]
    return [*pieces, _kept_back(layer, head, query) if trace.measure is None else ""]


def _kept_back(layer: LayerTrace, head: int, query: int) -> str:
    """Return the share of a learned sink, and how far the gate is shut, for a summary line; empty without either."""
    position, row = layer.position_of(head), layer.row_of(query)
    text = ""
    if layer.sink_weights is not None and layer.sink_weights[position, row] >= 0.05:
        text += f", {percent(layer.sink_weights[position, row])} to the sink"
    if layer.gate is not None:
        shut = 100 * (1 - float(layer.gate[position, row]))
        text += f"; its gate is {shut:.0f} % shut" if shut >= 0.5 else ""
    return text


INDENT = 5
NAMED, LINKED = 24, 60  # cells of a token in a sentence, and of each end of a link
SHARES = 3  # keys that a summary of a row names
MOST_ROWS = 24  # rows of the list of tokens, and of the summary


@dataclass(frozen=True)
class Explanation:
    """The forms of a trace: every step for the chosen heads of each layer, and the arithmetic of one or more queries.

    `headlines` name the layers, heads and queries whose arithmetic is written out, the most important first. `heads` holds
    the heads of each layer whose steps are shown (None: all), `only` the steps (None: all but the matrices; all: with a
    title).
    """

    trace: Trace
    headlines: Sequence[Headline] = ()
    heads: Mapping[int, Sequence[int]] | None = None
    only: Collection[str] | None = None
    precision: int = 2
    story: bool = False
    brief: bool = False  # the arithmetic replaces the grids of mask and context, and a grid shows few rows

    def forms(self) -> Iterator[Form]:
        """Yield the title, the steps, and a note on how to see more."""
        if self._is_whole:
            yield from self._title_forms()
        yield from self._headline_forms()
        yield from self.step_forms()
        if self._is_whole:
            yield ""
            small = {"model": "random", "d_model": 4, "d_k": 4, "n_heads": 1}
            yield Line(
                f"Long rows are cut to the screen: {option_name('json')} has every number. A model small enough to be "
                f"worked out by hand: {' '.join(option_name(*option) for option in small.items())}.",
                "dim",
                2,
            )

    def step_forms(self) -> Iterator[Form]:
        """Yield the steps, each under its heading."""
        place, number = None, 0
        for step in walk_steps(self.trace, None, self.only):
            step_place = (step.layer, step.head)
            if step.layer is not None and step.head is not None:
                if step.head not in self._heads_of(step.layer):
                    continue
                if self._many_heads and step_place != place:
                    yield from self._place_forms(step.layer, step.head)
                    place = step_place
            number += 1
            yield from self._heading_forms(number, step)
            body = list(self._step_body(step))
            yield from [""] * bool(body)
            yield from map(_indented, body)

    @property
    def _is_whole(self) -> bool:
        return self.only is None or len(self.only) == len(NAMES)

    @property
    def _many_heads(self) -> bool:
        return (self.trace.model.n_layers or 1) > 1 or (self.trace.model.n_heads or 1) > 1

    def _heads_of(self, layer: int) -> Sequence[int]:
        return self.trace.layer(layer).heads if self.heads is None else self.heads.get(layer, ())

    def _title_forms(self) -> Iterator[Form]:
        yield ""
        yield Line(
            token_label(" ".join(self.trace.text.split() or map(token_label, self.trace.tokens))), "bold", 2, lines=4
        )
        yield Line(self._model_line(), "dim", 2)
        for note in self.trace.notes:
            if not notes_of_kind([note], "guess"):  # this one is the last line of the summary
                yield Line(note, indent=2)
        if any(token.unknown for token in self.trace.tokens):
            yield Line(UNKNOWN_LEGEND, indent=2)

    def _headline_forms(self) -> Iterator[Form]:
        """Yield the rule by which each headline was chosen; nothing for places that the user has chosen."""
        for index, line in enumerate(line for line in self.headlines if line.reason):
            where = place_name(self.trace.model, line.layer, line.head)
            query = "".join(distinct_label(self.trace.tokens, line.query, LINKED))
            key = "".join(distinct_label(self.trace.key_axis, line.key, LINKED, self.trace.key_numbers[line.key]))
            if not self._is_whole and not index:
                yield ""
            options = ", ".join(map(option_name, ("layer", "head", "query")))
            sentence = f"Shown: {where + ', ' if where else ''}{query} → {key}: {line.reason} ({options})."
            yield Line(sentence, "dim", 2)

    def _model_line(self) -> str:
        m = self.trace.model
        parts = [f"model {m.name}{f' ({token_label(m.origin)})' if m.origin else ''}"]
        parts += [counted(count, noun) for count, noun in ((m.n_layers, "layer"), (m.n_heads, "head")) if count]
        if m.n_kv_heads and m.n_kv_heads != m.n_heads:
            parts.append(counted(m.n_kv_heads, "key/value head"))
        return " · ".join([*parts, *m.settings, *[m.device] * (m.device != "cpu")])

    def _place_forms(self, layer: int, head: int) -> Iterator[Form]:
        model = self.trace.model
        finds = ", ".join(model.roles_of_heads().get((layer, head), ()))
        line = place_name(model, layer, head) + (f": {finds}" if finds else "")
        count = (model.n_heads or 1) - len(self._heads_of(layer))
        more = f"   {counted(count, 'more head')}: {option_name('head', 'all')}" if count > 0 else ""
        yield ""
        yield Line([(line, "bold accent"), (more, "dim", 0)], mark=(" ──", "bold accent"), hanging=INDENT - 1)

    def _heading_forms(self, number: int, step: Step) -> Iterator[Form]:
        """Yield the number, title, formula and shape of a step, and a sentence about it."""
        pieces: list[Piece] = (
            [(step.title, "bold"), *step.formula.split("   ")] if step.formula else [(step.title, "bold")]
        )
        shape = _shape_text(step.parts[0]) if len(step.parts) == 1 else ""
        mark = (f" {number:>2}", "bold accent")
        yield ""
        yield Line(pieces, hanging=INDENT, mark=mark, between="   ", right=(shape, "dim"))
        yield Line(step.sentence, "dim", INDENT)
        if self.story and step.story:
            yield Line(step.story, "italic", INDENT)

    def _step_body(self, step: Step) -> Iterator[Form]:
        if step.name == "tokens":
            yield from self._token_forms()
        elif step.name == "prediction":
            yield from self._prediction_forms()
        elif step.name == "summary":
            yield from self._summary_forms()
        else:
            grids = () if self.brief and step.name in ("mask", "context") else step.parts
            for number, part in enumerate(grids):
                if number:
                    yield ""
                if len(step.parts) > 1:
                    yield Line([(part.symbol, "bold"), (f"  {_shape_text(part)}", "dim")])
                yield self._step_grid(step, part)
            if step.layer is None or step.head is None:
                return
            layer = self.trace.layer(step.layer)
            for query in dict.fromkeys(line.query for line in self.headlines):
                if layer.rows is None or query in layer.rows:
                    worked = Arithmetic(self.trace, layer, step.head, query, self.precision).steps().get(step.name)
                    arithmetic = list(worked()) if worked is not None else []
                    yield from [""] * bool(arithmetic and grids)
                    yield from arithmetic

    def _step_grid(self, step: Step, part: StepPart) -> Grid:
        layer = None if step.layer is None else self.trace.layer(step.layer)
        numbers = [[str(d) for d in range(size)] for size in part.array.shape]
        queries, keys = ([token_label(token) for token in axis] for axis in (self.trace.tokens, self.trace.key_axis))
        rows = {"keys": keys, "dimensions": numbers[0]}.get(part.rows, queries)
        marks = [line.query for line in self.headlines] if rows is queries else []
        if layer is not None and layer.rows is not None and part.rows == "queries":
            rows = [queries[i] for i in layer.rows]
            marks = [layer.rows.index(mark) for mark in marks if mark in layer.rows]
        square = part.columns == "keys"
        columns = keys if square else numbers[1]
        weights = part.name in ("weights", "dropped_weights")
        array, mask = part.array, layer.mask if square and weights and layer is not None else None
        must = [line.key for line in self.headlines] if square else []
        if part.name == "weights" and layer is not None and layer.sink_weights is not None and step.head is not None:
            sink_column = layer.sink_weights[layer.position_of(step.head)][:, None]  # (rows, 1)
            array, columns, must = (
                np.concatenate([array, sink_column], axis=1),
                [*columns, "sink"],
                [*must, len(columns)],
            )
            mask = None if mask is None else np.concatenate([mask, np.ones_like(sink_column, dtype=bool)], axis=1)
        return Grid(
            array,
            rows,
            ["open"] if part.name == "gate" else columns,
            self.precision,
            mask=mask,
            heat=weights or part.name == "gate",
            sums=weights,
            marks=tuple(marks),
            must=(*must, *(line.query for line in self.headlines)) if square else (),
            max_rows=8 if self.brief else 10 if part.rows == "dimensions" else 24,
        )

    def _token_forms(self) -> Iterator[Form]:
        tokens = self.trace.tokens
        rows = tokens if len(tokens) <= MOST_ROWS else tokens[: MOST_ROWS - 1]
        columns = [
            Column("index", range(len(rows)), tone="dim"),
            Column("token", [token_label(token, 24) for token in rows], "text", tone="bold"),
            Column("id", ["" if token.id is None else str(token.id) for token in rows]),
            Column("", ["special" if token.special else "" for token in rows], "text", tone="dim"),
        ]
        more = counted(len(tokens) - len(rows), "more token")
        yield Table(columns, omission=f"    … {more}" if len(rows) < len(tokens) else "")

    def _prediction_forms(self) -> Iterator[Form]:
        for position in dict.fromkeys(p.position for p in self.trace.predictions):
            mine = [p for p in self.trace.predictions if p.position == position]
            if not mine[0].is_class:
                name = token_label(self.trace.tokens[position])
                yield Line([(f"{predicted_place(self.trace, position)} ", "dim"), (name, "bold")])
            shares = [p.probability for p in mine]
            names = Column("", [token_label(p.text, 20) for p in mine], "text")
            yield Table([names, *bar_columns(shares, max_width=24, tone="accent")], indent=2)

    def _summary_forms(self) -> Iterator[Form]:
        for layer in self.trace.layers:
            if layer.weights is None:
                continue
            for head in self._heads_of(layer.layer):
                if self._many_heads:
                    yield place_name(self.trace.model, layer.layer, head), "dim"
                rows = list(layer.rows) if layer.rows is not None else list(range(len(self.trace.tokens)))
                for query in rows[:MOST_ROWS]:
                    yield Line(summary_pieces(self.trace, layer, head, query), indent=2, cut=True)
                if len(rows) > MOST_ROWS:
                    yield f"  … {counted(len(rows) - MOST_ROWS, 'more token')}", "dim"
        # if the model cannot read the sentence well, a note replaces the shares
        guess = next((f"{note}." for note in notes_of_kind(self.trace.notes, "guess")), None)
        for line in self.headlines[:1] if guess else self.headlines:
            yield ""
            where = place_name(self.trace.model, line.layer, line.head)
            layer = self.trace.layer(line.layer)
            about = self.trace, layer, line.head, line.query
            pieces: list[Piece] = (
                [guess] if guess else [f"In {where}, " if where else "", *summary_pieces(*about, heading=False), "."]
            )
            yield Line(pieces, "bold accent")
            if not guess and self.trace.measure is None:
                yield from shaded_tokens(self.trace.key_axis, layer.head_weights(line.head)[layer.row_of(line.query)])
            if not guess and (conclusion := conclusion_of(self.trace, line)):
                yield conclusion, "dim"


UNKNOWN_LEGEND = "† not among the words the model knows: read by its shape, or as its unknown word"


def _indented(form: Form) -> Form:
    if form == "":
        return form
    form = form if isinstance(form, Line | Table | Grid) else Line(form)
    return replace(form, indent=form.indent + INDENT)


def _shape_text(part: StepPart) -> str:
    return "(" + " × ".join(str(size) for size in part.array.shape) + ")"


PARKED = 0.5  # a larger weight on itself, or of most words on the first token, is called parked
PARKED_HERE = "What it keeps for itself is parked there: nothing better to look at was found."
OFTEN_PARKED = "Attention that stays on the token itself is often parked there, and then says little."


LIKELIEST = 3  # words or labels that a sentence about a prediction names
SMALL = 0.1  # a smaller probability needs a comparison
MANY = 100  # words: among as many, a small probability may be a good guess
MOST_PLACES = 3  # positions whose prediction has a sentence


def prediction_lines(trace: Trace) -> Iterator[Line]:
    """Yield what the model predicts, with probabilities, a line a position: the next word, a blank's, a classifier's label.

    Yield nothing for a model that predicts nothing, or whose run ended before its last layer.
    """
    positions = list(dict.fromkeys(p.position for p in trace.predictions))
    for position in positions[:MOST_PLACES]:
        likeliest = [p for p in trace.predictions if p.position == position][:LIKELIEST]
        where = predicted_place(trace, position)
        if likeliest[0].is_class:
            what = "label"
        elif where == "after" and position == len(trace.tokens) - 1:
            what = "next"
        else:
            what = "{} “{}”{}".format(where, *distinct_label(trace.tokens, position, NAMED))
        words = ", ".join(f"“{token_label(p.text, NAMED)}” {sentence_percent(p.probability)}" for p in likeliest)
        yield Line([(f"predicted {what}: ", "dim"), words], indent=2, hanging=2)
        if (by_chance := _chance_sentence(trace, likeliest[0])) is not None:
            yield Line(by_chance, "dim", 2, hanging=2)
    if len(positions) > MOST_PLACES:
        more = counted(len(positions) - MOST_PLACES, "more position")
        yield Line(f"… {more}: {option_name('steps', 'prediction')}", "dim", 2)


def _chance_sentence(trace: Trace, likeliest: Prediction) -> str | None:
    """Return what a small probability of one word among many means; None for a large one, and for few classes."""
    if likeliest.among is None or likeliest.among < MANY or likeliest.probability >= SMALL:
        return None
    words = "words" if trace.model.nature.is_built_in else "tokens"
    times = likeliest.probability * likeliest.among
    return (
        f"of {likeliest.among:,} {words}, each has {sentence_percent(1 / likeliest.among)} by chance; "
        f"“{token_label(likeliest.text, NAMED)}” {f'{times:,.0f}' if times >= 9.5 else f'{times:.1f}'} times that"
    )


def predicted_place(trace: Trace, position: int) -> str:
    """Return where a predicted word stands: after a token, or in place of it; "at" if the model does not say which."""
    if is_blank(trace.tokens[position].text) or trace.model.causal is False:
        return "in place of"
    return "after" if trace.model.causal else "at"


def place_name(model: ModelInfo, layer: int, head: int) -> str:
    """Return a layer and head by their numbers, each only if the model has several: "layer 1, head 2"."""
    where = [f"layer {layer}"] if (model.n_layers or 1) > 1 else []
    return ", ".join(where + [f"head {head}"] * ((model.n_heads or 1) > 1))


def conclusion_of(trace: Trace, line: Headline) -> str:
    """Return a sentence on what the strongest link means; empty if no remark is needed."""
    finds = trace.model.roles_of_heads().get((line.layer, line.head), ())
    trained, layer = trace.model.nature.is_trained, trace.layer(line.layer)
    weights = layer.head_weights(line.head)  # (rows, n_k)
    if line.key == trace.own_key(line.query) and line.weight > PARKED:
        if weights.shape[1] == 1 or layer.mask is not None and layer.mask[layer.row_of(line.query)].sum() == 1:
            return "It sees no other token: the softmax of one score is 1."
        return (PARKED_HERE if finds else OFTEN_PARKED) if trained else ""
    # whether most words, from the fourth on, look at the first token
    parked = len(weights) > 3 and float((weights[3:, 0] > PARKED).mean()) > 0.5
    if trained and line.key == 0 and line.query > 3 and parked:
        return "Most words look at the first token here: attention is parked there, and says little about it."
    return doubt_of(trace, line)
