"""`attnctl view`: a trace, or two side by side, as one HTML page to explore."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from attnctl.cli import (
    CHANGED,
    CHECKPOINT,
    LOOK,
    MADE,
    MATHEMATICS,
    NUMBERS,
    OUTPUT,
    SHOW,
    AgainstOption,
    FileOption,
    KeyTokensOption,
    ModelOptions,
    QueryOption,
    SourceArgument,
    TellingHeadOption,
    TellingLayerOption,
    TokensOption,
    WeightOptions,
    command,
    open_source,
    output_option,
    page_notes,
    print_lines,
    put_bytes,
    refuse_unused,
    say_stage,
    show_in_browser,
    text_source,
    was_typed,
)
from attnctl.errors import UsageError
from attnctl.formats import TitleOption
from attnctl.runtime.files import check_writable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnctl.source import Source


@command(example='attnctl view "Alice will eat pizza"', more=(CHANGED, NUMBERS, MATHEMATICS, MADE, CHECKPOINT))
def view_command(
    context: Context,
    source: SourceArgument = None,
    other: Annotated[
        str | None, Argument(help="A second text or file, to show beside the first.", metavar="[TEXT|FILE]")
    ] = None,
    text: Annotated[
        str | None,
        Argument(help="A text for two models: the first two arguments are then the models.", metavar="[TEXT]"),
    ] = None,
    *,
    file: FileOption = None,
    tokens: TokensOption = None,
    key_tokens: KeyTokensOption = None,
    layer: TellingLayerOption = None,
    head: TellingHeadOption = None,
    query: QueryOption = None,
    output: Annotated[str | None, output_option('Where to write: .html, or "-".')] = None,
    no_open: Annotated[
        bool,
        Option("--no-open", help="Write the page without opening it.", rich_help_panel=OUTPUT),
    ] = False,
    log: Annotated[
        bool | None,
        Option("--log/--no-log", help="Colours on a logarithmic scale: when the page opens.", rich_help_panel=SHOW),
    ] = None,
    cmap: Annotated[
        str | None,
        Option(
            "--cmap",
            help="Colour map: viridis or cividis, when the page opens [default: heat].",
            metavar="MAP",
            rich_help_panel=SHOW,
        ),
    ] = None,
    title: TitleOption = None,
    effects: Annotated[
        bool,
        Option("--effects", help="Also shade the tokens by their effect on the prediction.", rich_help_panel=LOOK),
    ] = False,
    against: AgainstOption = None,
    weights: WeightOptions,
    model: ModelOptions,
) -> None:
    """Write one HTML page to explore attention, and open it in a browser. The page needs no network and no installation.

    Two texts or traces, or two models and a text, are shown side by side, with their difference. A long text is shown as
    an overview: pooled cells, the strongest links, and exact blocks around them. A file of an overview is shown as it is.
    The steps of a training run: attnctl film.
    """
    if output not in (None, "-"):
        if Path(str(output)).suffix.lower() not in (".html", ".htm"):
            raise UsageError(f"-o {output}: view writes one page, a file .html (for pictures see attnctl heatmap)")
        check_writable(str(output))
    if other is not None:
        refuse_unused(context, "effects", "against", because="use it with one source")
    elif not effects:
        refuse_unused(context, "against", because="use it with --effects")
    else:
        refuse_unused(context, "tokens", because="--effects reads the text as the model splits it")
    from attnctl.render import check_page_map, page_of_sources
    from attnctl.source import Changes
    from attnctl.watched import EffectRequest

    if cmap is not None and was_typed(context, "cmap"):
        check_page_map(cmap)
    ask = EffectRequest(target=model.target, against=against, every_edge=True) if effects else None
    if effects:  # --target is the watched word here, not a decoder's text
        model = replace(model, target=None)
    labels: list[str] | None = None
    shown_sources: Sequence[Source]
    if other is None:
        shown_sources = [open_source(context, source, file, model, tokens=tokens, key_tokens=key_tokens)]
    elif text is not None:
        refuse_unused(context, "file", "tokens", "key_tokens", "model", because="two models read one text")
        shown_sources, labels = _two_models((str(source), other), text, model), [str(source), other]
    else:
        shown_sources = _two_sources(context, source, other, tokens, key_tokens, model)
    if effects:
        say_stage("the text, and the effects of its edges")
    html = page_of_sources(
        shown_sources,
        Changes(weights.measure, weights.words, weights.renormalise, weights.drop),
        layer,
        head,
        query=query,
        log=bool(log),
        cmap=cmap,
        title=title,
        effects=ask,
        labels=labels,
        **page_notes(),
    )
    _write_page(html, shown_sources[0].text, output, no_open)


def _two_models(names: tuple[str, str], text: str, model: ModelOptions) -> list[Source]:
    """Return one text read by two models."""
    from attnctl import inputs

    words = inputs.text_of(text, None)
    return [text_source(replace(model, model=name), words) for name in names]


def _two_sources(
    context: Context,
    source: str | None,
    other: str,
    tokens: str | None,
    key_tokens: str | None,
    model: ModelOptions,
) -> list[Source]:
    """Return two sources: model options apply to texts, token names to files of weights."""
    from attnctl import inputs

    sides = [name for name in (source, other) if name]
    computed = [name == "-" or inputs.names_numbers(name) for name in sides]
    refuse_unused(context, "file", because="the two are named already")
    if not any(computed):
        refuse_unused(context, "tokens", "key_tokens", because="both are texts")
    if all(computed):
        refuse_unused(context, ModelOptions, because="the numbers of both are computed already")
    if source == other == "-":
        raise UsageError('only one of the two can be "-"')
    inputs.refuse_models("view", source or "", other)
    return [
        open_source(context, name, tokens=tokens, key_tokens=key_tokens)
        if is_computed
        else open_source(context, name, model=model)
        for name, is_computed in zip(sides, computed, strict=True)
    ]


def _write_page(html: str, name: str, output: str | None, no_open: bool) -> None:
    """Write a page and open it in a browser; without `output`, write it to a temporary file, and print its name."""
    named = output is not None
    if output is None:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40]
        output = str(Path(tempfile.mkdtemp(prefix="attnctl-")) / f"{slug or 'attention'}.html")
    put_bytes(html.encode(), output)
    if output != "-":
        if not named:  # as everywhere: a file that the user names is not named again
            print_lines(output)
        if not no_open:
            show_in_browser(output)
