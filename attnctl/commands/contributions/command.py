"""`attnctl contributions`: the logit of the next word as a sum over the parts of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from typer import Context, Option

from attnctl.checks import limits
from attnctl.cli import (
    CHANGED,
    CHECKPOINT,
    LOOK,
    MADE,
    MATHEMATICS,
    NUMBERS,
    AgainstOption,
    FileOption,
    JsonOption,
    QueryOption,
    TargetOption,
    TextArgument,
    WatchedModelOptions,
    command,
    model_of,
    output_format,
    output_option,
    put_bytes,
    refuse_unused,
    say_notes,
    whole,
    write_forms,
)


@dataclass(frozen=True)
class ContributingModelOptions(WatchedModelOptions):
    """The options of a model whose prediction is split into parts."""

    target: TargetOption = None


@command(
    example='attnctl contributions "Alice will eat" --target pizza --against soup',
    more=(CHANGED, NUMBERS, MATHEMATICS, MADE, CHECKPOINT),
)
def contributions_command(
    context: Context,
    text: TextArgument = None,
    *,
    file: FileOption = None,
    query: QueryOption = None,
    top: Annotated[
        int | None,
        Option(
            help="Show only the N strongest: contributions by size.",
            metavar="N",
            parser=whole(limits.TOP),
            rich_help_panel=LOOK,
        ),
    ] = None,
    against: AgainstOption = None,
    json: JsonOption = False,
    output: Annotated[str | None, output_option("Where to write: .json, .txt or .svg.")] = None,
    model: ContributingModelOptions,
) -> None:
    """Show the logit of the next word as a sum over the parts of the model: embedding, heads, MLPs.

    The word is that of --target, else the likeliest. This tells what a part writes directly, not what happens without
    it: for that see attnctl ablate.
    """
    from attnctl import inputs
    from attnctl.commands.contributions.show import contributions_forms
    from attnctl.text.tokens import checked_text
    from attnctl.watched import EffectRequest, effects_to_json, measure_contributions, watched_text

    form = output_format("contributions", output, ("json", "txt", "svg"), "json" if json else "")
    if form == "json":
        refuse_unused(context, "top", because="the output is JSON")
    words = checked_text(inputs.text_of(text, file))
    watched = watched_text(model_of(replace(model, target=None)), words, query)
    effects = measure_contributions(watched, EffectRequest(target=model.target, against=against))
    say_notes(effects.notes)
    if form == "json":
        put_bytes(effects_to_json(effects) + b"\n", output)
    else:
        write_forms(contributions_forms(effects, top), form, output, "attnctl contributions", effects.model.citation)
