"""What the command line says about interventions: heads off, edges, spans, references; and the measuring of effects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnctl.cli import options as o
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from attnctl.interventions import Intervention
    from attnctl.models.option_types import OptionValues
    from attnctl.readings.effects.ablation import Tick, Watched
    from attnctl.readings.effects.effects import Effects
    from attnctl.readings.traces.trace import ModelInfo

_ARROW = re.compile(r"\s*(?:→|->|>)\s*")


def measured_effects(
    text: str,
    options: OptionValues,
    opened: Any = None,
    *,
    target: str | None,
    against: str | None,
    query: str | None,
    layer: str | None,
    head: str | None,
    how: str,
    reference: str | None,
    edges: bool,
    edge: Sequence[str],
    spans: str | None,
    answer: bool,
    off: str | None,
    pooled: bool,
    approximate: bool,
    batch_size: int | None,
) -> Effects:
    """The effects over a text, as the options of `attnctl ablate` ask; `opened` is the model where it is open already.

    Raises UsageError for what does not go together.
    """
    from attnctl.interventions import Intervention
    from attnctl.models.watching import by_cross_attention, reference_contexts, watched_text
    from attnctl.readings.effects.ablation import EffectRequest
    from attnctl.readings.effects.effect_sweep import measure_effects
    from attnctl.tokens import checked_text

    _check_options(how, reference, edges, edge, spans, answer, approximate)
    model = o.model_of(options) if opened is None else opened
    if options.get("attention") is None:
        model = by_cross_attention(model)
    info = model.info
    layers = o.select_indices(layer, info.n_layers or 1, "layer", info.name)
    heads = o.select_indices(head, info.n_heads or 1, "head", info.name)
    text = checked_text(text)
    replaced = Intervention(how=how, reference=reference_contexts(model, text, how, reference))
    base = heads_named_off(info, off, replaced)
    watched = watched_text(model, text, query, base)
    pairs = [_named_edge(one, watched) for one in edge]
    parts = []
    if spans is not None:
        from attnctl.readings.spans import REST, SPECIAL, parts_of

        keys = watched.tokens if watched.key_tokens is None else watched.key_tokens
        found = parts_of(spans, text, keys)
        parts = [
            (part.name, tuple(at for a, b in part.ranges for at in range(a, b)))
            for part in found
            if part.name not in (REST, SPECIAL)  # what no span holds
        ]
    ask = EffectRequest(
        target=target,
        against=against,
        how=how,
        sweep_heads=not (edges or edge or spans),
        layers=layers,
        heads=heads,
        every_edge=edges,
        edges=pairs,
        spans=parts,
        only_answer=answer,
        pooled=pooled,
        approximate=approximate,
        batch_size=batch_size,
    )
    with _sweep_bar() as tick:
        return measure_effects(watched, ask, tick)


def _check_options(
    how: str,
    reference: str | None,
    edges: bool,
    edge: Sequence[str],
    spans: str | None,
    answer: bool,
    approximate: bool,
) -> None:
    from attnctl.interventions import HOW

    if how not in HOW:
        raise UsageError(f"--how {how}: it is {', '.join(HOW)}")
    if how == "resample" and reference is None:
        raise UsageError("--how resample takes each head's output from another text: name one with --reference FILE")
    if reference is not None and how == "zero":
        raise UsageError("--reference is for --how mean or --how resample; zero needs no other text")
    if answer and spans is None:
        raise UsageError("--last-only says what --spans are cut from: give --spans")
    if approximate and (edge or spans is not None):
        raise UsageError("--approximate is of every head and every edge: give no --edge and no --spans")


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
