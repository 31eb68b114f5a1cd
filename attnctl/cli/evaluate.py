"""`attnctl evaluate`: what the heads of a model have learned of sentences, beside rules that need no learning."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attnctl.cli.output import console, put_json


def evaluate(
    model: Annotated[str, typer.Argument(help="A model's name, its file, or the folder of a run.")] = "demo",
    *,
    sentences: Annotated[int, typer.Option("--sentences", help="Sentences in each of the three sets.")] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Write one line of JSON per relation.")] = False,
) -> None:
    """Measure which word each head finds: verb → subject, object → verb, pronoun → antecedent, past distractors."""
    from attnctl.models import open_model
    from attnctl.training.relations import evaluate as measure

    opened = open_model(model)
    table = measure(opened, count=sentences)
    if json:
        for measured in table:
            put_json({"model": opened.info.name} | measured._asdict())
    else:
        show_table(table, opened.info)


def show_table(table: list[Any], info: Any) -> None:
    """Print the table of relations and how to read it."""
    from shutil import get_terminal_size

    from attnctl.render.terminal.model_card import NOTE, relations_lines

    page = console()
    wide = get_terminal_size((120, 24)).columns
    page.print(*relations_lines([measured._asdict() for measured in table], wide), sep="\n", soft_wrap=True)
    page.print()
    page.print(NOTE, style="bright_black", width=min(wide, 80))
