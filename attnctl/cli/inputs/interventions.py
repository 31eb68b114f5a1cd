"""What the command line says about interventions: heads off, edges, spans, references; and the measuring of effects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from attnctl.cli import arguments
from attnctl.errors import UsageError
from attnctl.source.changes import selected_indices

if TYPE_CHECKING:
    from attnctl.interventions import Intervention
    from attnctl.models.option_types import OptionValues
    from attnctl.readings.effects.ablation import EffectRequest, Tick, Watched
    from attnctl.readings.effects.effects import Effects
    from attnctl.readings.traces.trace import ModelInfo
    from attnctl.source import Model

_ARROW = re.compile(r"\s*(?:→|->|>)\s*")


class AblationChoice(NamedTuple):
    """What `attnctl ablate` takes away, of which layers and heads, and which prediction it watches."""

    target: str | None = None
    against: str | None = None
    query: str | None = None
    layer: str | None = None
    head: str | None = None
    how: str = "zero"
    reference: str | None = None
    edges: bool = False
    edge: list[str] | None = None
    spans: str | None = None
    off: str | None = None
    approximate: bool = False
    batch_size: int | None = None


def measured_effects(text: str, options: OptionValues, choice: AblationChoice, opened: Model | None = None) -> Effects:
    """The effects over a text, as the options of `attnctl ablate` ask; `opened` is the model where it is open already.

    Raises UsageError for what does not go together.
    """
    from attnctl.interventions import Intervention
    from attnctl.models.watching import by_cross_attention, reference_contexts, watched_text
    from attnctl.readings.effects.effect_sweep import measure_effects
    from attnctl.tokens import checked_text

    _check_choice(choice)
    model = arguments.model_of(options) if opened is None else opened
    if options.get("attention") is None:
        model = by_cross_attention(model)
    text = checked_text(text)
    replaced = Intervention(how=choice.how, reference=reference_contexts(model, text, choice.how, choice.reference))
    request = _effect_request(choice, model.info)
    watched = watched_text(model, text, choice.query, heads_named_off(model.info, choice.off, replaced))
    request = replace(
        request,
        edges=[_named_edge(one, watched) for one in choice.edge or ()],
        spans=[] if choice.spans is None else _span_tokens(choice.spans, text, watched),
    )
    _check_cost_of(request, watched)
    with _sweep_bar() as tick:
        return measure_effects(watched, request, tick)


def _effect_request(choice: AblationChoice, info: ModelInfo) -> EffectRequest:
    """What is measured, but for the edges and spans, which are known by the tokens."""
    from attnctl.readings.effects.ablation import EffectRequest

    return EffectRequest(
        target=choice.target,
        against=choice.against,
        how=choice.how,
        sweep_heads=not (choice.edges or choice.edge or choice.spans),
        layers=selected_indices(choice.layer, info.n_layers or 1, "layer", info.name),
        heads=selected_indices(choice.head, info.n_heads or 1, "head", info.name),
        every_edge=choice.edges,
        approximate=choice.approximate,
        batch_size=choice.batch_size,
    )


def _span_tokens(kind: str, text: str, watched: Watched) -> list[tuple[str, tuple[int, ...]]]:
    """The parts of --spans, each with its tokens; what no span holds is not one."""
    from attnctl.readings.spans import REST, SPECIAL, parts_of

    keys = watched.tokens if watched.key_tokens is None else watched.key_tokens
    return [
        (part.name, tuple(at for a, b in part.ranges for at in range(a, b)))
        for part in parts_of(kind, text, keys)
        if part.name not in (REST, SPECIAL)
    ]


def _check_choice(choice: AblationChoice) -> None:
    """Raise UsageError for options that do not go together."""
    from attnctl.interventions import HOW

    how, reference = choice.how, choice.reference
    if how not in HOW:
        raise UsageError(f"--how {how}: it is {', '.join(HOW)}")
    if how == "resample" and reference is None:
        raise UsageError("--how resample takes each head's output from another text: name one with --reference FILE")
    cuts = {"--edges": choice.edges, "--edge": choice.edge, "--spans": choice.spans is not None}
    modes = {name: wanted for name, wanted in cuts.items() if name != "--edges"}
    modes |= {"--how zero": how == "zero", "cuts, without --off": choice.off is None and any(cuts.values())}
    for mode, wanted in modes.items():
        if wanted:
            arguments.check_mode("ablate", mode)


def heads_named_off(info: ModelInfo, off: str | None, how: Intervention | None = None) -> Intervention:
    """The heads of --off as an intervention; nothing where it is not given. Raises UsageError for one not there."""
    from attnctl.interventions import Intervention
    from attnctl.models.switched_off import off_heads

    how = Intervention() if how is None else how
    return how if off is None else Intervention(off_heads(info, off), how.cuts, how.how, how.reference)


def _named_edge(spec: str, watched: Watched) -> tuple[int, int]:
    """(query, key) of "gave→Mary", "11>2": what looks, and what is looked at. Raises UsageError where it reads otherwise."""
    from attnctl.tokens import find_token

    parts = _ARROW.split(spec)
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise UsageError(f'--edge {spec!r}: it reads QUERY→KEY, as "gave→Mary" or "11>2"')
    keys = watched.tokens if watched.key_tokens is None else watched.key_tokens
    return find_token(watched.tokens, parts[0]), find_token(keys, parts[1])


def _check_cost_of(request: EffectRequest, watched: Watched) -> None:
    """Say what the passes asked for will take, where that is much. Raises AttnctlError where memory will not do."""
    from attnctl.cli.progress import LESS_HEADS, check_sweep_cost
    from attnctl.readings.effects.ablation import chosen_heads

    if request.approximate:
        return
    passes = len(chosen_heads(watched, request)) if request.sweep_heads else 0
    cuts = len(request.edges) + len(request.spans) + (len(watched.tokens) if request.every_edge else 0)
    fewer = LESS_HEADS if not cuts else "longer parts take fewer" if request.spans else "--edge and --spans take fewer"
    check_sweep_cost(watched.info, len(watched.tokens), passes + cuts, cuts=cuts > 0, fewer=fewer)


@contextmanager
def _sweep_bar() -> Iterator[Tick]:
    """A bar on stderr with the time left."""
    from attnctl.cli.progress import items_progress

    state = [0, 1]
    with items_progress(lambda: state[0] / max(state[1], 1)) as tick:

        def move_bar(done: int, of: int) -> None:
            more, state[0], state[1] = done - state[0], done, of
            tick(more)

        yield move_bar
