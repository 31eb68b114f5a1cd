"""Roles of the heads of well-known checkpoints, as a census of a treebank found them, for exactly the weights it ran on.

`python -m tests.tools.head_roles` writes head_roles.json from censuses of `attnctl evaluate`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from attnctl.trace.model_info import ModelInfo


class RoleFigure(NamedTuple):
    """A head that finds a relation in a treebank: the share of its cases, and that of the best fixed distance."""

    layer: int
    head: int
    role: str
    share: float
    by_distance: float


class MeasuredCheckpoint(NamedTuple):
    """A checkpoint with the roles of its heads; `name` is that of its measurement in certainty.json."""

    name: str
    source: str  # the repository, or the file
    corpus: str
    roles: tuple[RoleFigure, ...]


@cache
def measured_checkpoints() -> dict[str, MeasuredCheckpoint]:
    """Return the measured checkpoints by the SHA-256 of their weights."""
    text = files("attnctl.readings.questions").joinpath("head_roles.json").read_text(encoding="utf-8")
    return {
        digest: MeasuredCheckpoint(**entry | {"roles": tuple(RoleFigure(**role) for role in entry["roles"])})
        for digest, entry in json.loads(text).items()
    }


def measured_checkpoint(model: ModelInfo) -> MeasuredCheckpoint | None:
    """Return the measurement of a checkpoint with these weights; None for every other model."""
    if not model.nature.is_network or model.sha256 is None:
        return None
    return measured_checkpoints().get(model.sha256)


def with_measured_roles(model: ModelInfo) -> ModelInfo:
    """Return the facts of a checkpoint with the roles of its heads, if a census measured these weights."""
    measured = measured_checkpoint(model)
    return model if measured is None else replace(model, finds=tuple(row[:3] for row in measured.roles))


def role_figure(model: ModelInfo, layer: int, head: int, role: str) -> tuple[RoleFigure, str] | None:
    """Return what was measured of a head's role, and the name of the corpus; None for a model of no census."""
    measured = measured_checkpoint(model)
    rows = () if measured is None else measured.roles
    row = next((row for row in rows if row[:3] == (layer, head, role)), None)
    return None if row is None or measured is None else (row, measured.corpus)
