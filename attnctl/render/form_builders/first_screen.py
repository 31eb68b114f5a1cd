"""The first screen of `attnctl explain`: the headline of a text, its row as bars, and the steps of that one head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnctl.errors import option_name
from attnctl.readings.questions.head_roles import role_figure
from attnctl.readings.questions.headline import LEAST, other_headlines
from attnctl.render.form_builders.explanation import (
    NAMED,
    UNKNOWN_LEGEND,
    Arithmetic,
    Explanation,
    conclusion_of,
    distinct_label,
    place_name,
    prediction_lines,
)
from attnctl.render.forms import Column, Form, Line, Table, token_label
from attnctl.text import number_text, percent
from attnctl.trace import Headline, Trace

STEPS = ("scores", "scaled", "mask", "weights", "context")
MOST_OTHERS = 2  # other links, named below the bars


@dataclass(frozen=True)
class FirstScreen:
    """The forms of a trace and its headline, for a reader who sees them for the first time."""

    trace: Trace
    headline: Headline
    precision: int = 2
    story: bool = False
    asked: bool = False  # the user named a row, a head or a way to walk: it is shown even if no head stands out

    def forms(self) -> Iterator[Form]:
        """Yield the sentence, the headline, the row as bars, the steps of the head, and where to go on."""
        yield from self._answer_forms()
        line = self.headline
        if not self._shows_link:
            yield ""
            one, every = f"{option_name('query')}, {option_name('head')}", option_name("layer", "all")
            yield Line(
                "Where each head looks: attnctl heads. Which heads a prediction needs: attnctl ablate. "
                f"One row, or one head: {one}. Every layer: {every}.",
                "dim",
                2,
            )
            return
        part = self.trace.layer(line.layer)
        only = replace(self.trace, layers=(part,))
        steps = Explanation(only, [line], {line.layer: (line.head,)}, STEPS, self.precision, self.story, brief=True)
        yield from steps.step_forms()
        yield ""
        yield Line(
            f"Every layer from word to context: {option_name('layer', 'all')}. As a picture: attnctl heatmap. "
            "As a page: attnctl view. From the beginning: attnctl docs lesson.",
            "dim",
            2,
        )

    @property
    def _shows_link(self) -> bool:
        return self.headline.stands_out or self.asked

    def _answer_forms(self) -> Iterator[Form]:
        trace = self.trace
        yield ""
        yield Line(token_label(" ".join(trace.text.split() or map(token_label, trace.tokens))), "bold", 2, lines=4)
        for note in trace.notes:
            yield Line(note, "dim", 2)
        if "guess" not in trace.noted and any(token.unknown for token in trace.tokens):  # that note names such words
            yield Line(UNKNOWN_LEGEND, "dim", 2)
        yield ""
        yield from self._headline_forms() if self._shows_link else self._no_headline_forms()
        if predictions := list(prediction_lines(trace)):
            yield ""
            yield from predictions

    def _no_headline_forms(self) -> Iterator[Form]:
        yield Line([("No head stands out in this text", "bold accent")], indent=2)
        yield Line(f"{self.trace.model.name}: {self.headline.reason}", "dim", 2)

    def _headline_forms(self) -> Iterator[Form]:
        trace, line = self.trace, self.headline
        yield Line([(self._sentence(), "bold accent")], indent=2, right=(line.certainty or "", "dim"))
        yield Line(self._head_sentence(), "dim", 2)
        if doubt := conclusion_of(trace, line):
            yield Line(doubt, indent=2)
        yield ""
        yield self._row_table()
        links = other_headlines(trace, line)[:MOST_OTHERS]
        if links:
            yield ""
            yield Line("also: " + ", ".join(map(self._short_link, links)), "dim", 2)

    def _sentence(self) -> str:
        trace, line = self.trace, self.headline
        query = "“{}”{}".format(*distinct_label(trace.tokens, line.query, NAMED))
        number = trace.key_numbers[line.key]
        key = "“{}”{}".format(*distinct_label(trace.key_axis, line.key, NAMED, number))
        if line.key == trace.own_key(line.query):
            key = "itself"
        if not line.weight:
            return f"{query} looks at nothing"
        if "no-weights" in trace.noted:
            return f"{query} has its largest number, {number_text(line.weight, self.precision)}, at {key}"
        if trace.measure is not None:
            return f"{query} gets most from {key}: {percent(line.weight)} by {trace.measure}"
        of_what = "what is left of its attention" if trace.noted >= {"left-out", "rescaled"} else "its attention"
        return f"{query} looks at {key}: {percent(line.weight)} of {of_what}"

    def _head_sentence(self) -> str:
        line, model = self.headline, self.trace.model
        where = place_name(model, line.layer, line.head)
        place = f"{where} of {model.name}" if where else model.name
        if line.role:
            links = f"links {line.role_in_words}"
            measured = role_figure(model, line.layer, line.head, line.role) if model.nature.is_network else None
            if measured is None:
                return f"{place}: usually {links}"
            figure, corpus = measured
            often = "usually" if figure.share >= LEAST else "often"
            return (
                f"{place}: {often} {links} ({percent(figure.share)} of them in {corpus}; by distance alone "
                f"{percent(figure.by_distance)})"
            )
        return f"{place}: {line.reason}" if line.reason else place

    def _short_link(self, line: Headline) -> str:
        query, key = (
            token_label(tokens[i], NAMED)
            for tokens, i in ((self.trace.tokens, line.query), (self.trace.key_axis, line.key))
        )
        where = place_name(self.trace.model, line.layer, line.head)
        return f"{query} → {key} {number_text(line.weight, self.precision)}" + (f" ({where})" if where else "")

    def _row_table(self) -> Table:
        """Return the headline's row: its dot products, the scaled scores, their softmax, and a bar for each key."""
        trace, line = self.trace, self.headline
        row = Arithmetic(trace, trace.layer(line.layer), line.head, line.query, self.precision)
        layer = row.layer
        assert layer.weights is not None
        weights = layer.weights[row.position, row.row]  # (n_k,)
        keys = row.keys
        columns = [Column("", [row.names[j] for j in keys], "text")]
        if layer.scores is not None:
            columns.append(
                Column("q · k", [float(layer.scores[row.position, row.row, j]) for j in keys], format=row.number)
            )
        if layer.scaled_scores is not None:
            scaled = [float(layer.scaled_scores[row.position, row.row, j]) for j in keys]
            columns.append(Column(self._scaling(), scaled, format=row.number))
        shares = [float(weights[j]) for j in keys]
        columns.append(
            Column(
                trace.measure or "softmax" if layer.scaled_scores is not None else "weight",
                shares,
                format=row.number,
                tone="bold",
            )
        )
        if "no-weights" not in trace.noted:
            columns.append(Column("", shares, "bar", max_width=24, rank=0, tone="accent"))
        other_keys = sorted(set(range(len(weights))) - set(keys))
        omission = (
            f"… {len(other_keys)} more, together {row.number(float(weights[other_keys].sum()))}" if other_keys else ""
        )
        return Table(columns, indent=4, omission=omission)

    def _scaling(self) -> str:
        model = self.trace.model
        if self.trace.model.has_default_scale and not model.caps_scores:
            return f"÷ √{model.d_k}"
        return "scaled"
