"""`attnctl explain --steps contributions`: the logit of the next word as a sum over the parts of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnctl.cli import arguments
from attnctl.cli.output import put_bytes, write_renderable
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from attnctl.cli.commands.explain import LongChoice
    from attnctl.models.option_types import OptionValues


def explain_contributions(
    text: str,
    options: OptionValues,
    names: list[str],
    wanted: LongChoice,
    against: str | None,
    form: str,
    output: str | None,
) -> None:
    """Write the sum for the word of --target, else for the model's own best. Raises UsageError for other steps beside it."""
    if names != ["contributions"]:
        raise UsageError("--steps contributions stands by itself: it is a sum over the whole model")
    if form == "npz":
        raise UsageError("--steps contributions is written as .json, .txt or .svg")
    from attnctl.models.watching import watched_text
    from attnctl.readings.effects.ablation import EffectRequest, Gauge, baseline_of
    from attnctl.tokens import checked_text

    ask = EffectRequest(target=options.pop("target", None), against=against)
    watched = watched_text(arguments.model_of(options), checked_text(text), wanted.query)
    gauge = Gauge.of_request(watched, ask)
    if gauge.target is None:
        raise UsageError(f"{watched.info.name} predicts no words: there is no logit to take apart")
    parts = watched.contributions(gauge.target, gauge.against)
    found = replace(baseline_of(watched, ask, gauge), contributions=parts)
    arguments.say_notes((*watched.notes, *parts.notes))
    if form == "json":
        from attnctl.formats.documents.effects_json import effects_to_json

        put_bytes(effects_to_json(found) + b"\n", output)
        return
    from attnctl.render.terminal.effects.contributions import ContributionsTable

    write_renderable(ContributionsTable(found, wanted.top), form, output, "attnctl explain", found.model.citation)
