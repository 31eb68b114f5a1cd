"""The walk through a trace for a terminal: numbers, formulas and plain sentences, in the order of the mathematics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from textwrap import wrap

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from attnctl.arrays import Bools, Floats
from attnctl.readings.questions.focus import Focus, may_stand_for, other_name, relation_of_pronoun, roles_of_heads
from attnctl.readings.traces.trace import LayerTrace, ModelInfo, Trace, notes_of_kind
from attnctl.render.forms import Column, Grid, Table, label_fit, token_label
from attnctl.render.terminal.console import (
    ACCENT,
    DIM,
    cropped_line,
    grid_lines,
    table_lines,
    wrapped_line,
)
from attnctl.render.terminal.worked_example import Blackboard, summary_line, told_apart
from attnctl.steps import Part, Step, walk_steps
from attnctl.text import counted, visible_text
from attnctl.tokens import BLANKS

INDENT = 5
LINKED = 60  # cells of each end of a link that is named in a sentence
NARROWEST = 24  # cells of a line below which grids are cut at the edge


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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines of the walk, none wider than the console."""
        self._console, self._width = console, options.max_width
        width = self._width
        if self.only is None:
            yield from self._title_lines(width)
        yield from self._chosen()
        place = (-1, -1)
        steps = [
            step
            for step in walk_steps(self.trace, None, self.only)
            if step.layer is None or step.head is None or step.head in self.heads.get(step.layer, ())
        ]
        for number, step in enumerate(steps, 1):
            if (
                step.layer is not None
                and self._many_heads()
                and (step.layer, step.head) != place
                and step.head is not None
            ):
                place = (step.layer, step.head)
                yield from self._place_lines(step.layer, step.head, width)
            yield from self._step_lines(number, step, width)

    def _many_heads(self) -> bool:
        model = self.trace.model
        return (model.n_layers or 1) > 1 or (model.n_heads or 1) > 1

    def _wrapped_prose(self, text: str, style: str = "", indent: int = INDENT) -> Iterator[Text]:
        """Wrapped to the width, without trailing spaces."""
        return wrapped_line(Text(text, style), self._console, self._width, indent)

    # --- the parts of the page -----------------------------------------------------------------------------------

    def _title_lines(self, width: int) -> Iterator[Text]:
        yield Text("")
        text = token_label(" ".join(self.trace.text.split() or self.queries))
        yield from self._wrapped_prose(label_fit(text, 4 * (width - 4)), "bold", 2)
        yield from self._wrapped_prose(self._model_line(), DIM, 2)
        for note in self.trace.notes:
            if not notes_of_kind([note], "guess"):  # that is the last line of all
                yield from self._wrapped_prose(note, indent=2)
        if any(token.unknown for token in self.trace.tokens):
            yield from self._wrapped_prose(
                "† not among the words the model knows: read by its shape, or as its unknown word", indent=2
            )

    def _chosen(self) -> Iterator[Text]:
        """By which rule the places were chosen that are looked at most closely; nothing where they were asked for."""
        for at, focus in enumerate(focus for focus in self.focuses if focus.reason):
            where = place_name(self.trace.model, focus.layer, focus.head)
            query = told_apart(self.trace.tokens, focus.query, LINKED)
            link = f"{query} → {told_apart(self.trace.key_axis, focus.key, LINKED)}"
            shown = f"Shown: {where + ', ' if where else ''}{link}: {focus.reason} (--layer, --head, --query)."
            if self.only is not None and not at:
                yield Text("")
            yield from self._wrapped_prose(shown, DIM, 2)

    def _model_line(self) -> str:
        m = self.trace.model
        parts = [f"model {m.name}{f' ({token_label(m.origin)})' if m.origin else ''}"]
        for count, what in ((m.n_layers, "layer"), (m.n_heads, "head")):
            if count:
                parts.append(f"{count} {what}{'s' * (count != 1)}")
        if m.n_kv_heads and m.n_kv_heads != m.n_heads:
            parts.append(f"{m.n_kv_heads} key/value head{'s' * (m.n_kv_heads != 1)}")
        parts += [f"{name} {value}" for name, value in (("d_model", m.d_model), ("d_k", m.d_k)) if value]
        parts += ["causal"] if m.causal else []
        parts += [f"seed {m.seed}"] if m.seed is not None else []
        parts += [m.device] if m.device != "cpu" else []
        return " · ".join(parts)

    def _place_lines(self, layer: int, head: int, width: int) -> Iterator[Text]:
        model = self.trace.model
        line = place_name(self.trace.model, layer, head)
        left = {"head": (model.n_heads or 1) - len(self.heads.get(layer, ())), "layer": self.more_layers}
        finds = ", ".join(roles_of_heads(self.trace.model).get((layer, head), ()))
        line += f": {finds}" if finds else ""
        others = [f"{n} more {what}{'s' * (n != 1)}: --{what} all" for what, n in left.items() if n > 0]
        while others and cell_len(line) + 8 + len(", ".join(others)) > width:
            del others[-1]
        more = "   " + ", ".join(others) if others else ""
        yield Text("")
        parts = list(wrapped_line(Text(line, style=f"bold {ACCENT}"), self._console, width, INDENT - 1))
        parts[0] = Text(" ── ", style=f"bold {ACCENT}").append(parts[0].plain.lstrip())
        if cell_len(parts[-1].plain) + cell_len(more) <= width:
            parts[-1].append(more, style=f"not bold {DIM} default")
        yield from parts

    def _step_lines(self, number: int, step: Step, width: int) -> Iterator[Text]:
        yield Text("")
        yield from _step_heading(number, step, width)
        yield from self._wrapped_prose(step.sentence, DIM)
        if self.story and step.story:
            yield from self._wrapped_prose(step.story, "italic")
        room = width - INDENT
        for at, line in enumerate(self._step_body(step, room)):
            if at == 0:
                yield Text("")
            if cell_len(line.plain) > room >= NARROWEST:
                yield from wrapped_line(line, self._console, room + INDENT, INDENT)
            else:
                yield cropped_line(Text(" " * INDENT).append_text(line), room + INDENT)

    def _step_body(self, step: Step, width: int) -> Iterator[Text]:
        if step.name == "tokens":
            yield from self._token_lines(width)
        elif step.name == "prediction":
            yield from self._prediction_lines(width)
        elif step.name == "summary":
            yield from self._summary_lines(width)
        else:
            for at, part in enumerate(step.parts):
                if at:
                    yield Text("")
                if len(step.parts) > 1:
                    yield Text(f"{part.symbol}", style="bold").append(f"  {_shape_text(part)}", style=f"not bold {DIM}")
                yield from grid_lines(self._step_grid(step, part), width)
            if step.layer is not None and step.head is not None:
                yield from self._worked_lines(step, width)

    def _step_grid(self, step: Step, part: Part) -> Grid:
        layer = None if step.layer is None else self.trace.layer(step.layer)
        rows, marks = self.queries, [focus.query for focus in self.focuses]
        if part.rows == "keys":
            rows, marks = self.keys, []
        if part.rows == "dimensions":
            rows, marks = [str(d) for d in range(len(part.array))], []
        if layer is not None and layer.rows is not None and part.rows == "queries":
            rows = [self.queries[i] for i in layer.rows]
            marks = [layer.rows.index(mark) for mark in marks if mark in layer.rows]
        square = part.columns == "keys"
        columns = self.keys if square else [str(d) for d in range(part.array.shape[1])]
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

    def _worked_lines(self, step: Step, width: int) -> Iterator[Text]:
        assert step.layer is not None and step.head is not None
        layer = self.trace.layer(step.layer)
        for query in dict.fromkeys(focus.query for focus in self.focuses):
            if layer.rows is None or query in layer.rows:
                board = Blackboard(self.trace, layer, step.head, query, self.precision, width)
                yield from self._arithmetic(step, layer, board)

    def _arithmetic(self, step: Step, layer: LayerTrace, board: Blackboard) -> Iterator[Text]:
        x = self.trace.embeddings if layer.input is None else layer.input
        row = None if x is None else x[board.query]  # (d_model,)
        written = {
            "projections": lambda: board.projection_lines("Q", row),
            "rope": board.rotation_lines,
            "scores": board.dot_products,
            "scaled": board.division_lines,
            "weights": board.softmax_lines,
            "context": board.weighted_values,
        }
        lines = written[step.name]() if step.name in written else []
        if lines:
            yield Text("")
            yield from lines

    def _token_lines(self, width: int) -> Iterator[Text]:
        tokens = self.trace.tokens
        shown = tokens if len(tokens) <= 24 else tokens[:23]
        columns = [
            Column("index", range(len(shown)), tone="dim"),
            Column("token", [token_label(token, 24) for token in shown], "text", tone="bold"),
            Column("id", ["" if token.id is None else str(token.id) for token in shown]),
            Column("", ["special" if token.special else "" for token in shown], "text", tone="dim"),
        ]
        yield from table_lines(Table(columns), width)
        if len(shown) < len(tokens):
            yield Text(f"    … {counted(len(tokens) - len(shown), 'more token')}", style=DIM)

    def _prediction_lines(self, width: int) -> Iterator[Text]:
        for position in dict.fromkeys(p.position for p in self.trace.predictions):
            blank = self.trace.tokens[position]
            fills = blank.text in BLANKS or not self.trace.model.causal
            yield Text("in the place of " if fills else "after ", style=DIM).append(
                token_label(blank), style="bold not dim"
            )
            mine = [p for p in self.trace.predictions if p.position == position]
            shares = [p.probability for p in mine]
            columns = [
                Column("", [token_label(p.text, 20) for p in mine], "text"),
                Column("", shares, "share"),
                Column("", shares, "bar", most=24, tone="accent", rank=0),
            ]
            yield from table_lines(Table(columns, indent=2), width)

    def _summary_lines(self, width: int) -> Iterator[Text]:
        for layer in self.trace.layers:
            if layer.weights is None:
                continue
            for head in self.heads.get(layer.layer, layer.heads):
                if self._many_heads():
                    yield Text(place_name(self.trace.model, layer.layer, head), style=DIM)
                rows = list(layer.rows) if layer.rows is not None else list(range(len(self.trace.tokens)))
                for query in rows[:24]:
                    yield Text("  " + summary_line(self.trace, layer, head, query, width - 2))
                if len(rows) > 24:
                    yield Text(f"  … {counted(len(rows) - 24, 'more token')}", style=DIM)
        yield from self._last_line(width)

    def _last_line(self, width: int) -> Iterator[Text]:
        # what is said instead of shares where the model cannot read the sentence well
        guess = next((f"{note}." for note in notes_of_kind(self.trace.notes, "guess")), None)
        for focus in self.focuses[:1] if guess else self.focuses:
            yield Text("")
            said = Text(guess or focus_sentence(self.trace, focus, width), f"bold {ACCENT}")
            yield from wrapped_line(said, self._console, width)
            if not guess and (conclusion := conclusion_of(self.trace, focus)):
                yield from wrapped_line(Text(conclusion, DIM), self._console, width)


def _step_heading(number: int, step: Step, width: int) -> Iterator[Text]:
    shape = _shape_text(step.parts[0]) if len(step.parts) == 1 else ""
    line = Text(f" {number:>2}  ", style=f"bold {ACCENT}")
    line.append(step.title, style="bold default")
    used = cell_len(line.plain)
    formula = step.formula
    below = used + 3 + len(formula) + 2 + len(shape) > width
    if formula and not below:
        line.append("   " + formula, style="not bold default")
    if shape:
        line.append(" " * (width - cell_len(line.plain) - len(shape)) + shape, style=f"not bold {DIM} default")
    yield cropped_line(line, width)
    for part in _formula_lines(formula, width - INDENT) if formula and below else ():
        yield Text(" " * INDENT + part)


def _formula_lines(formula: str, width: int) -> Iterator[str]:
    """A formula in lines of at most `width` cells, broken between its equations before it is within one."""
    line = ""
    for equation in formula.split("   "):
        if line and cell_len(line) + 3 + cell_len(equation) > width:
            yield line
            line = ""
        line = f"{line}   {equation}" if line else equation
        if cell_len(line) > width:
            *whole, line = wrap(line, max(width, 8), subsequent_indent="  ")
            yield from whole
    yield line


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
    trained = trace.model.kind not in UNTRAINED
    if trace.reads_itself and focus.key == focus.query and focus.weight > PARKED:
        if _keys_seen(trace.layer(focus.layer), focus) == 1:
            return "It sees no other token: the softmax of one score is 1."
        return (PARKED_HERE if finds else OFTEN_PARKED) if trained else ""
    if trained and focus.key == 0 and focus.query > 3 and _most_on_first(trace.layer(focus.layer), focus.head):
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


def _keys_seen(layer: LayerTrace, focus: Focus) -> int:
    """How many keys the query of a focus may look at."""
    assert layer.weights is not None
    return layer.weights.shape[-1] if layer.mask is None else int(layer.mask[layer.row_of(focus.query)].sum())


def _most_on_first(layer: LayerTrace, head: int) -> bool:
    """Whether most words from the fourth on give the first token more than PARKED of their attention."""
    rows = layer.head_weights(head)[3:]  # (n - 3, n_k)
    return len(rows) > 0 and float((rows[:, 0] > PARKED).mean()) > 0.5
