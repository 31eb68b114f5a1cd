"""`attnctl film`: how the attention of a text changes while a model is trained, as a moving picture, a strip or a page."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context

from attnctl.cli import (
    CHANGED,
    MADE,
    MATHEMATICS,
    NUMBERS,
    PICTURE,
    DeviceOption,
    FileOption,
    MathematicsOptions,
    OffOption,
    SeedOption,
    TellingHeadOption,
    TellingLayerOption,
    TokenizerOption,
    WeightOptions,
    command,
    model_of,
    option_values,
    output_option,
    page_notes,
    print_lines,
    put_bytes,
    refuse_unused,
    say_notes,
    was_typed,
    write_drawing,
)
from attnctl.errors import UsageError
from attnctl.formats import FIGURE_ALONE, Look, picture_format, suffixes_listed
from attnctl.runtime.files import check_writable

if TYPE_CHECKING:
    from attnctl.readings import Evolution
    from attnctl.source import Changes, Source
    from attnctl.trace import Trace


@dataclass(frozen=True)
class StepOptions(MathematicsOptions):
    """How a step of a training run reads a text."""

    device: DeviceOption = None
    off: OffOption = None
    seed: SeedOption = None
    tokenizer: TokenizerOption = None


@command(
    example='attnctl film run "Alice will eat pizza" -o evolution.gif',
    more=(CHANGED, PICTURE, NUMBERS, MATHEMATICS, MADE),
)
def film_command(
    context: Context,
    run: Annotated[str, Argument(help="Folder of a training run: attnctl train -o run.", metavar="RUN")],
    text: Annotated[
        str | None, Argument(help="The text, read with the weights of each step.", metavar="[TEXT]")
    ] = None,
    *,
    layer: TellingLayerOption = None,
    head: TellingHeadOption = None,
    weights: WeightOptions,
    look: Look,
    file: FileOption = None,
    model: StepOptions,
    output: Annotated[
        str, output_option(f"Where to write: .gif, a moving picture; .html, a page; {suffixes_listed()}, a strip.")
    ] = "film.gif",
) -> None:
    """Draw one head at every saved step of a training run: as a moving picture, or side by side.

    The head is the one that says most after the last step, unless --layer and --head choose it. A page (-o film.html) has
    every head at each step, to explore in a browser.
    """
    from attnctl import inputs
    from attnctl.render import draw_strip, moving_picture
    from attnctl.source import Changes

    form = picture_format(output, "figure", "frames", "page")
    if form is None:
        raise UsageError(f"-o {output}: a film is written as .gif or .html, a strip as {suffixes_listed()}")
    if form == "html":
        refuse_unused(context, "values", *FIGURE_ALONE, because="a page is written")
    check_writable(output)
    words = inputs.text_of(text, file)
    steps, labels = inputs.sources_of_run(run, words, lambda path: model_of(option_values(model) | {"model": path}))
    changes = Changes(weights.measure, weights.words, weights.renormalise, weights.drop)
    if form == "html":
        html = _page_of_run(steps, labels, changes, layer, head, look, of_page=was_typed(context, "cmap"))
        put_bytes(html.encode(), output)
        print_lines(output)
        return
    evolution = _evolution_of_run(steps, labels, run, changes, layer, head)
    if form != "gif":
        write_drawing(draw_strip(evolution, look), form, output)
    else:
        drawn, notes = moving_picture(evolution, look)
        put_bytes(drawn, output)
        say_notes(notes)
    print_lines(output)


def _page_of_run(
    steps: Iterable[Source],
    labels: dict[int, str],
    changes: Changes,
    layer: str | None,
    head: str | None,
    look: Look,
    of_page: bool,
) -> str:
    """Return a page of the text at every saved step; `of_page`: the colour map is one that a page must have."""
    from attnctl.render import check_page_map, page_of_sources

    if of_page:
        check_page_map(look.cmap)
    notes = page_notes()
    read: deque[Trace] = deque(maxlen=1)
    page = page_of_sources(
        steps,
        changes,
        layer,
        head,
        log=bool(look.log),
        cmap=look.cmap,
        title=look.title,
        labels=list(labels.values()),
        over_training=True,
        **notes | {"on_trace": read.append},
    )
    notes["on_trace"](read[-1])  # the steps of a run know the same words: notes on one are enough
    return page


def _evolution_of_run(
    steps: Iterable[Source], labels: dict[int, str], folder: str, changes: Changes, layer: str | None, head: str | None
) -> Evolution:
    """Return the weights of one head at every saved step of a run: of the chosen heads, the most telling one.

    Raises UsageError for a layer or head that does not exist.
    """
    from attnctl.measures import head_text
    from attnctl.readings import Evolution
    from attnctl.source import prepare, read_heatmap

    traces = [
        prepare(step, changes, range(step.counts[0]) if layer is None else layer, head, say=say_notes).trace(
            predictions=False
        )
        for step in steps
    ]
    best = traces[-1].headline()
    assert best is not None
    model = traces[-1].model
    name = Path(folder).resolve().name + model.name.removeprefix(model.card_name)  # with the heads that are off
    name += f", layer {best.layer}" if (model.n_layers or 1) > 1 else ""
    name += f", {head_text(traces[-1].measure, best.head)}"
    grids = [read_heatmap(trace, layers=[best.layer], heads=[best.head]) for trace in traces]
    return Evolution(grids, list(labels), name)
