"""The result of `attnctl mask`: the mask of each layer in words and as a matrix, and what crosses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np

from attnctl.checks.document_fields import NOT_EMPTY, Amount, Count, Index, MaskLists, Part, Whole, about
from attnctl.commands.mask.intervals import IntervalMask, checked_intervals
from attnctl.commands.mask.sentence import ranges
from attnctl.formats import JsonDocument, ResultModel, read_as
from attnctl.runtime.arrays import Bools
from attnctl.text import counted, visible_text

Kind = Annotated[
    str, about("self; encoder, decoder, cross of an encoder-decoder; vision, audio beside a text; state: no attention.")
]
How = Literal["sees", "misses", "reaches", "mixes"]
What = Literal["masks", "outputs", "rows", "model", "model-rows"]
Heads = Annotated[tuple[Index, ...] | None, about("Some heads of the layers; absent if it is all of them.")]


class MaskGroup(Part, kw_only=True):
    """Layers with the same mask, as their calls of attention use it."""

    kind: Kind
    layers: Annotated[tuple[Index, ...], NOT_EMPTY]
    heads: Heads = None
    rows: Annotated[tuple[Index, ...], NOT_EMPTY, about("Rows of the batch with this mask.")]
    sentence: Annotated[str, about("What the mask lets through.")]
    expected: Annotated[str | None, about("What it should let through; absent if that is not known.")] = None
    holds: Annotated[bool, about("Whether the layers keep to what is expected.")] = True
    mask: Annotated[
        MaskLists | IntervalMask,
        about(
            "A row for each query, a column for each key; true where the query sees the key. Intervals if there are more "
            "than 512 × 512 pairs."
        ),
    ]
    wrong: Annotated[
        MaskLists | IntervalMask | None,
        about("As mask: true where the mask shows or hides a key and should not; absent if it is as expected."),
    ] = None

    def __post_init__(self) -> None:
        """Turn the masks of a document into arrays. Raises ValueError if they are damaged."""
        self.mask, self.wrong = _read_mask(self.mask), None if self.wrong is None else _read_mask(self.wrong)


def _read_mask(mask: object) -> Bools | IntervalMask:
    """Return a mask, or the mask that lists, or intervals, of a document hold. Raises ValueError if they are damaged."""
    if isinstance(mask, np.ndarray | IntervalMask):
        return mask
    if isinstance(mask, dict):
        return checked_intervals(read_as(IntervalMask, mask))
    matrix = read_as(Bools, mask)
    if matrix.ndim != 2:
        raise ValueError(f"the mask has {matrix.ndim} axes, not 2")
    return matrix


class MaskViolation(Part, kw_only=True):
    """A query that sees a key that it should not see, or misses one that it should see; the worst one of its layer."""

    how: Annotated[
        How,
        about(
            "sees: the mask lets the key through, or the layer's output changes with it; misses: the mask hides the key; "
            "reaches: a token changes an output that it should not reach, through no single layer; mixes: the output "
            "changes with another row of the batch."
        ),
    ]
    kind: Kind
    layer: Annotated[
        Index | None, about("For reaches: the first layer whose output changes; absent if it is outside of the layers.")
    ] = None
    heads: Heads = None
    row: Annotated[Index, about("Of the batch.")]
    query: Index
    key: Annotated[Index | None, about("Absent for mixes.")] = None
    other_row: Annotated[Index | None, about("For mixes: the row of the batch that the output changes with.")] = None
    padding: Annotated[bool, about("Whether the key is padding.")] = False
    pairs: Annotated[Count | None, about("How many pairs of tokens of the layer and row break the expectation.")] = None
    change: Annotated[
        Amount | None,
        about("Largest change of the query's output when the key is exchanged, relative to its largest number."),
    ] = None
    expected: str


class Tested(Part, kw_only=True):
    """What was compared with the expectation."""

    what: Annotated[
        What,
        about(
            "masks: what the layers show and hide, by the masks that their kernel gets; outputs: what the layers show, by "
            "exchanging tokens; rows: whether rows of the batch mix in the layers; model, model-rows: the same of the whole."
        ),
    ]
    kind: Kind
    layers: Annotated[tuple[Index, ...], about("Empty for the model as a whole.")]


class MaskCheck(JsonDocument, kw_only=True, eq=False, tag="attnctl.mask/1"):
    """What the masks of a model let through, and whether its outputs keep to what is expected."""

    model: ResultModel
    tokens: Annotated[tuple[str, ...], about("The tokens of the first row, if they are known.")] = ()
    kernel: Annotated[str, about("The kernel with which the outputs were computed.")]
    expect: Annotated[str, about("What the user expects, or family: the configuration and its documentation.")]
    holds: Annotated[
        bool | None,
        about(
            "Whether every layer keeps to what is expected; null if nothing breaks it, but a layer may hide too much, since "
            "its mask cannot be read."
        ),
    ]
    attends: Annotated[
        bool, about("Whether the model has attention; without it, as in a model of states (Mamba), there is no mask.")
    ] = True
    groups: tuple[MaskGroup, ...]
    violations: tuple[MaskViolation, ...]
    exchanges: Annotated[Whole, about("How often a layer or the model ran with exchanged tokens.")]
    tested: tuple[Tested, ...]
    unchecked: Annotated[tuple[str, ...], about("What could not be checked by exchanging tokens, and why.")] = ()
    floor: Annotated[Amount, about("Largest relative change of an output between two runs of the same input.")]
    limit: Annotated[Amount, about("Largest relative change that rounding may cause.")]
    notes: tuple[str, ...] = ()

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each layer of each group: kind, layer, heads, rows, sentence, expected, holds."""
        return [
            {
                "kind": group.kind,
                "layer": layer,
                "heads": None if group.heads is None else ranges(group.heads),
                "rows": ranges(group.rows),
                "sentence": group.sentence,
                "expected": group.expected,
                "holds": group.holds,
            }
            for group in self.groups
            for layer in group.layers
        ]

    def __repr__(self) -> str:
        masks = f"{counted(len(self.groups), 'mask')}, " if self.groups else ""
        return f"MaskCheck of {self.model.name}: {masks}{outcome(self)}"

    def __str__(self) -> str:
        lines = [
            f"{visible_text(self.model.name)}: {outcome(self)}",
            *(group_line(self, group) for group in self.groups),
        ]
        return "\n".join([*lines, *violation_lines(self)])


NO_MASK = "no attention, so no mask to measure"  # of a model whose layers carry states


# --- in words --------------------------------------------------------------------------------------------------------


def outcome(check: MaskCheck) -> str:
    """Return in a few words whether the masks hold."""
    if check.holds is False:
        return f"{counted(len(check.violations), 'violation')}"
    if not check.attends:
        return f"{NO_MASK}; no output changes" if check.exchanges else NO_MASK
    if check.holds is None and not check.groups:
        tested = "no violation in what was tested" if check.exchanges else "nothing had to be hidden"
        return f"{tested}; the masks could not be read"
    if check.holds is None:
        return "no violation in what was tested"
    return "the masks hold" if check.exchanges else "the masks are as expected; nothing had to be hidden"


def kind_words(kind: str, plural: bool = False) -> str:
    """Return "layer" with its kind before it, if it is not plain self-attention."""
    noun = "layers" if plural else "layer"
    return noun if kind in ("self", "state") else f"{kind} {noun}"


def place_of(check: MaskCheck, group: MaskGroup) -> str:
    """Return the layers of a group, its heads, and its rows of the batch if there are several: "layers 0–4, rows 1–2"."""
    layers = f"{kind_words(group.kind, len(group.layers) > 1)} {ranges(group.layers)}{heads_words(group.heads)}"
    several = len({row for other in check.groups for row in other.rows}) > 1
    return layers + (f", row{'s' * (len(group.rows) > 1)} {ranges(group.rows)}" if several else "")


def heads_words(heads: Heads) -> str:
    """Return ", heads 0–2" for some heads, "" for all."""
    return "" if heads is None else f", head{'s' * (len(heads) > 1)} {ranges(heads)}"


def group_line(check: MaskCheck, group: MaskGroup) -> str:
    """Return the place of a group with its mask: "layers 0–4: causal, window 512"."""
    return f"{place_of(check, group)}: {group.sentence}"


def token_name(check: MaskCheck, kind: str, row: int, position: int) -> str:
    """Return a token's position, and its text in quotation marks if it is known."""
    named = kind in ("self", "state") and row == 0 and position < len(check.tokens)
    return f"{position} “{visible_text(check.tokens[position])}”" if named else str(position)


def violation_lines(check: MaskCheck) -> list[str]:
    """Return a line for each violation, and one for the same violation of several layers."""
    alike: dict[tuple[object, ...], list[MaskViolation]] = {}
    for one in check.violations:
        layer = one.layer if one.how == "reaches" else None
        place = one.kind, one.heads, one.row, one.query, one.key, one.other_row
        key = one.how, *place, one.pairs, one.expected, bool(one.change), layer
        alike.setdefault(key, []).append(one)
    return [_violation_line(check, same) for same in alike.values()]


def _violation_line(check: MaskCheck, alike: Sequence[MaskViolation]) -> str:
    """Return one line about a violation: the layers, the position, what it sees, and how far its output moves."""
    first, layers = alike[0], [one.layer for one in alike if one.layer is not None]
    query = token_name(check, first.kind, first.row, first.query)
    key = "" if first.key is None else f"token {token_name(check, first.kind, first.row, first.key)}"
    key += " of the source" if first.kind == "cross" else ""
    where = f"{kind_words(first.kind, len(layers) > 1)} {ranges(layers)}{heads_words(first.heads)}" if layers else ""
    rows = f", row {first.row}" if first.row or first.how == "mixes" else ""
    is_future = first.key is not None and first.key > first.query and first.kind != "cross"
    place = where or "outside of the layers"
    if first.how == "misses":
        text = f"{where}{rows}: token {query} does not see {key}"
    elif first.how == "sees":
        what = "padding, " if first.padding else "its future, " if is_future else ""
        text = f"{where}{rows}: token {query} sees {what}{key}"
    elif first.how == "mixes":
        text = f"{place}{rows}: token {query} changes with row {first.other_row} of the batch"
    else:
        place = f"from {where} on" if where else place
        text = f"{place}{rows}: {key} reaches the output at token {query}" + ", before it" * is_future
    text += f" ({counted(first.pairs, 'pair')} of tokens)" if first.pairs and first.pairs > 1 else ""
    changes = [one.change for one in alike if one.change is not None]
    if changes:
        text += f", its output moves by {max(changes):.2g}" if max(changes) else ", its output does not move"
    return f"{text[0].upper()}{text[1:]}; expected {first.expected}"
