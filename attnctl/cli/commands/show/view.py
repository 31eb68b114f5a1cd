"""`attnctl view`: a trace, or two side by side, as one HTML page to explore."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from attnctl.cli import options as o
from attnctl.cli.commands.show import long_view
from attnctl.cli.inputs.sources import SourceName, TokenNames, is_file, open_source, refuse_models
from attnctl.cli.inputs.weights import WeightChoice, chosen_of, chosen_trace
from attnctl.cli.output import print_lines, put_bytes
from attnctl.errors import AttnctlError, UsageError

if TYPE_CHECKING:
    from attnctl.models.option_types import OptionValues
    from attnctl.readings.exact_blocks import ExactBlock
    from attnctl.readings.overview import Overview
    from attnctl.readings.traces.trace import Trace
    from attnctl.source import Source
    from attnctl.text import Document

MOST_NUMBERS = 400_000_000  # weights in a page: beyond, no browser would open it


@o.with_model_options
def view_command(
    source: SourceName = None,
    other: Annotated[
        str | None,
        typer.Argument(help="A second one, to be seen beside the first.", show_default=False, metavar="[TEXT|FILE]"),
    ] = None,
    text: Annotated[
        str | None,
        typer.Argument(
            help="A text for both: the two before it are models then.", show_default=False, metavar="[TEXT]"
        ),
    ] = None,
    *,
    file: o.File = None,
    tokens: TokenNames = None,
    layer: o.ShownLayer = None,
    head: o.ShownHead = None,
    query: o.Query = None,
    run: Annotated[
        str | None,
        typer.Option("--run", help="Folder of a training run: the text at every step of it.", show_default=False),
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", help='Where to write: .html, or "-".', show_default=False)
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Write the page, do not open it.")] = False,
    log: Annotated[
        bool | None, typer.Option("--log/--no-log", help="Colours on a logarithmic scale: the page begins so.")
    ] = None,
    drop: o.Drop = None,
    renormalise: o.Renormalise = False,
    words: o.Words = False,
    measure: o.Measure = None,
    effects: Annotated[
        bool, typer.Option("--effects", help="Shade the tokens by what they do for the prediction, too.")
    ] = False,
    sources: Annotated[
        bool, typer.Option("--sources", help="Of a prompt: the parts that the model's answer to it came from.")
    ] = False,
    **options: object,
) -> None:
    """Make one HTML file to explore attention in a browser, and open it: no network, nothing to install.

    With two texts or traces, or two models and a text, both are there side by side, with their difference. A long text is
    pooled to an overview, with its strongest links and exact blocks around them; an overview's file is shown as it is.
    """
    target = target_of(output)
    if sources:
        if other is not None or effects or measure is not None or run is not None or query is not None:
            raise UsageError("--sources is of one prompt and its checkpoint, and nothing beside it")
        from attnctl.cli.commands.effects.sources import answer_page

        target = target or temporary_page("sources")
        put_bytes(answer_page(source, file, options).encode(), target)
        _shown(target, no_open)
        return
    look = page_look(drop or (), renormalise, bool(log), words=words)
    choice = Choice(layer, head, measure)
    if measure is not None:
        from attnctl.readings.measures import check_measure

        check_measure(measure, head is not None)
    labels: list[str] | None = None
    exact: list[ExactBlock] = []
    matters: Document | None = None
    traces: Sequence[Trace | Overview]
    if run is not None:
        if other is not None:
            raise UsageError("--run takes one text, and shows it at every step of the run")
        traces, labels = over_training(run, o.text_of(source, file), choice, options)
    elif text is not None:
        traces, labels = two_models(source or "", other or "", text, choice, options)
    elif other is not None:
        if file is not None or source == other == "-":
            raise UsageError('give two sources as arguments; only one of them can be "-", and none --file')
        refuse_models("view", source or "", other)
        traces = [of_two(part, tokens, choice, options) for part in (source, other) if part]
    else:
        opened_source = open_source(source, file, tokens, options)
        shown, exact = of_one(opened_source, choice)
        traces = [shown]
        if effects:
            matters = page_effects(opened_source, shown, query)
            query = str(matters["query"])
    if effects and matters is None:
        raise UsageError("--effects is of one text and its model")
    check_pooled(traces, look, measure)
    target = target or temporary_page(traces[0].text)
    write_page(
        traces,
        target,
        query=query,
        look=look,
        labels=labels,
        over_training=run is not None,
        exact=exact,
        effects=matters,
    )
    _shown(target, no_open)


def _shown(target: str, no_open: bool) -> None:
    """Say where the page is, and open it in a browser."""
    if target == "-":
        return
    print_lines(target)
    if not no_open and not opened_in_browser(target):
        o.say_notes([f"no browser was found here: open {target} in one"])


def page_effects(source: Source, shown: Trace | Overview, query: str | None) -> Document:
    """What each head and each edge of the watched token does, as a document of attnctl.effects/1.

    Raises UsageError where nothing is predicted, or the text is too long for a page of single tokens.
    """
    from attnctl.formats.documents.effects_json import effects_document
    from attnctl.models.watching import watched_text
    from attnctl.readings.effects.ablation import EffectRequest
    from attnctl.readings.effects.effect_sweep import measure_effects
    from attnctl.readings.traces.trace import Trace
    from attnctl.source import TextSource

    if not isinstance(source, TextSource) or not isinstance(shown, Trace):
        raise UsageError("--effects needs a text and its model, short enough that the page shows its single tokens")
    watched = watched_text(source.model, source.text, query)
    if not watched.predicts or watched.key_tokens is not None:
        raise UsageError(f"--effects follows a prediction, and {watched.info.name} makes none here")
    found = measure_effects(watched, EffectRequest(every_edge=True))
    return effects_document(found)


class Choice(NamedTuple):
    """What of a source is shown: --layer, --head and --measure."""

    layer: str | None = None
    head: str | None = None
    measure: str | None = None

    def narrowed_trace(self, source: Source) -> Trace:
        """The trace of a source, narrowed to this choice."""
        given = chosen_of(source, self.layer, self.head)
        trace = chosen_trace(WeightChoice(measure=self.measure), given)
        o.say_unknown(source.tokens, source.key_tokens, notes=trace.notes)
        return trace


def of_one(source: Source, choice: Choice) -> tuple[Trace | Overview, list[ExactBlock]]:
    """The trace of a source; where its weights are too many for a page an overview, and blocks of it exactly."""
    if (overview := overview_in(source)) is not None:
        return overview, []
    given = chosen_of(source, choice.layer, choice.head)
    if given.head_count * len(source.tokens) * len(source.key_tokens) <= long_view.MOST_WEIGHTS:
        return choice.narrowed_trace(source), []
    return long_view.survey_text(given)


def overview_in(source: Source) -> Overview | None:
    """The overview that a source is; None for another. Raises AttnctlError for the row of one query."""
    from attnctl.readings.overview import LongRow

    found: Overview | LongRow | None = getattr(source, "overview", None)
    if isinstance(found, LongRow):
        raise AttnctlError(f"{source.name} holds the row of query {found.query} alone: there is no grid to show")
    return found


def check_pooled(traces: Sequence[Trace | Overview], look: OptionValues, measure: str | None) -> None:
    """Raise UsageError where an overview is to be shown in a way that needs every single weight."""
    from attnctl.readings.overview import Overview

    if not any(isinstance(trace, Overview) for trace in traces):
        return
    options = {"drop": "--drop", "renorm": "--renormalise", "words": "--words"}
    lost = [option for name, option in options.items() if name in look] + ["--measure"] * (measure is not None)
    if len(traces) > 1:
        raise UsageError("an overview is shown alone: give one source")
    if lost:
        raise UsageError(
            f"{lost[0]} needs every weight, and a long text is pooled: shorten it, or choose --layer and --head"
        )


def page_look(
    drop: Sequence[str], renormalise: bool, log: bool, *, cmap: str | None = None, words: bool = False
) -> OptionValues:
    """Options of a picture as a page begins with them; all can be changed there. Raises UsageError for other keys."""
    if len(drop) > 1 or not set(drop) <= {"first", "special"}:
        raise UsageError(
            f"--drop {' '.join(drop)} does not go with a page: it leaves out the first or the special tokens"
        )
    look: OptionValues = {"drop": drop[0]} if drop else {}
    look |= {"renorm": True} if renormalise else {}
    look |= {"colour": "log"} if log else {}
    look |= {"words": "merged"} if words else {}
    return look | ({"map": cmap} if cmap in ("viridis", "cividis") else {})


def of_two(source: str, tokens: str | None, choice: Choice, options: OptionValues) -> Trace | Overview:
    """One of two sources. Model options are for the texts among them: a trace has its numbers already."""
    given = source == "-" or is_file(source)
    one = open_source(source, None, tokens if given else None, {} if given else options)
    return overview_in(one) or choice.narrowed_trace(one)


def two_models(a: str, b: str, text: str, choice: Choice, options: OptionValues) -> tuple[list[Trace], list[str]]:
    """The same text through two models, and their names."""
    if options.get("model") is not None:
        raise UsageError("--model does not go with a text after A and B, which are the models then")
    from attnctl.source import TextSource

    words = o.text_of(text, None)
    return [choice.narrowed_trace(TextSource(o.model_of(options | {"model": name}), words)) for name in (a, b)], [a, b]


def over_training(folder: str, text: str, choice: Choice, options: OptionValues) -> tuple[list[Trace], list[str]]:
    """The text under the weights of every kept step of a run, and the steps' names."""
    from attnctl.models.builtin.weights import steps_of
    from attnctl.source import TextSource
    from attnctl.training.run import TrainingRun

    if options.get("model") is not None:
        raise UsageError("--model does not go with --run, whose steps are the models then")
    losses = {
        report["step"]: report["loss"] for report in TrainingRun(folder).reports() if report.get("loss") is not None
    }
    traces, labels = [], []
    for step, path in steps_of(folder).items():
        traces.append(choice.narrowed_trace(TextSource(o.model_of(options | {"model": str(path)}), text)))
        labels.append(f"step {step:,}" + (f", loss {losses[step]:.2f}" if step in losses else ""))
    return traces, labels


def target_of(output: str | None) -> str | None:
    """Where the page goes; None for a temporary file. Raises, before any work, where it cannot be written."""
    if output is None or output == "-":
        return output
    if Path(output).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {output}: view writes .html (for pictures see attnctl heatmap)")
    from attnctl.files import check_writable

    check_writable(output)
    return output


def temporary_page(text: str) -> str:
    """A file in a fresh temporary folder, named after the text."""
    import re
    import tempfile

    slug = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:40]
    return str(Path(tempfile.mkdtemp(prefix="attnctl-")) / f"{slug or 'attention'}.html")


def write_page(
    traces: Sequence[Trace | Overview],
    target: str,
    *,
    query: str | None = None,
    look: OptionValues | None = None,
    **how: Any,
) -> None:
    """Write the page of `traces` to `target` ("-": standard output).

    `query` names the token that is chosen at first, `look` how the page looks then; other keywords are those of `page`.
    """
    from attnctl.files import write_whole
    from attnctl.readings.traces.trace import Trace
    from attnctl.render.page.document import page_html

    layers = [layer for trace in traces if isinstance(trace, Trace) for layer in trace.layers]
    size = sum(layer.weights.size for layer in layers if layer.weights is not None)
    if size > MOST_NUMBERS:
        raise AttnctlError(
            f"{size:,} weights are too many for a page: choose layers and heads with --layer and --head, or a shorter text"
        )
    first = traces[0] if len(traces) == 2 and not how.get("over_training") else traces[-1]
    html = page_html(traces, start=start_of(first, query) | (look or {}), **how)
    if target == "-":
        put_bytes(html.encode())
        return
    write_whole(target, html.encode())


def start_of(trace: Trace | Overview, query: str | None) -> dict[str, int | str]:
    """What the page has chosen at first, where a query was named."""
    if query is None:
        return {}
    from attnctl.readings.questions.focus import focus
    from attnctl.readings.traces.trace import Trace
    from attnctl.tokens import find_token

    at = find_token(trace.tokens, query)
    if not isinstance(trace, Trace):
        return {"query": at}
    found = focus(trace, query=at)
    if found is None:
        return {"query": at}
    return {"layer": found.layer, "head": found.head, "query": at, "key": found.key, "reason": found.reason}


def opened_in_browser(target: str) -> bool:
    """Whether a browser took the page. One that would take over the terminal is not asked."""
    import webbrowser

    windows = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME")
    )
    return windows and webbrowser.open(Path(os.path.realpath(target)).as_uri())
