"""`attnctl model`: the size of a model's attention from its configuration alone; the card of a trained model."""

from __future__ import annotations

from json import dumps
from typing import Annotated

from typer import Argument, Context, Option

from attnctl.checks import limits
from attnctl.cli import MODEL, JsonOption, command, completing, print_lines, put_bytes, refuse_unused, show_forms, whole


@command(example="attnctl model gpt2")
def model_command(
    context: Context,
    model: Annotated[
        str | None,
        Argument(
            help="A known name, owner/name, a checkpoint's folder or .gguf file; for a card: demo, a weights file or a run.",
            metavar="[NAME]",
            autocompletion=completing("attnctl.commands.model.compute:known_configurations"),
        ),
    ] = None,
    *,
    length: Annotated[
        int | None,
        Option(
            help="Tokens of the text [default: the longest that the model reads].",
            metavar="N",
            parser=whole(limits.LENGTH),
            rich_help_panel=MODEL,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show how large a model's attention is: heads, parameters, n × n matrices, and cache. No weights are read.

    For a model that attnctl trained, show its card: data, objective, and what its heads have learned. Without a name, list
    the configurations that are known offline.
    """
    from attnctl.commands.model.compute import known_configurations, model_card, model_sizes, sizes_document
    from attnctl.commands.model.show import card_forms, sizes_forms
    from attnctl.formats import json_object, write_json
    from attnctl.models import trained_weights

    if model is None:
        refuse_unused(context, "length", "json", because="without a name the known configurations are listed")
        width = max(map(len, known_configurations()))
        print_lines(*(f"{key:{width}}  {entry['title']}" for key, entry in known_configurations().items()))
    elif (file := trained_weights(model)) is not None:
        refuse_unused(context, "length", because=f"{model} is a trained model, whose card is printed")
        if json:
            put_bytes(write_json(model_card(model, file.shapes, file.metadata), "card") + b"\n")
            return
        show_forms(card_forms(model, file.metadata, file.shapes, file.size), soft_wrap=True)
    else:
        sizes = model_sizes(model)
        n = length or sizes.context or 1024
        if json:
            print_lines(dumps(json_object(sizes_document(sizes, n))))  # numbers beyond 64 bits, too
            return
        show_forms(sizes_forms(sizes, n))
