"""A measure takes the place of the weights; each file in this folder defines one, value_norm.py for "value-norm".

A file holds one `MEASURE`. Everything that shows, names, checks or writes a measure uses this registry, which imports a
file when its measure is needed. An installed package adds measures as entry points, `attnctl.measures`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from attnctl.errors import UsageError, option_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

RESERVED = ("weights", "mean", "max", "mass", "given")  # names of other numbers that a cell may hold


@dataclass(frozen=True)
class Measure:
    """One measure: its `function` makes the numbers of a layer, rows that sum to 1, from what it `needs`.

    - "values": from a LayerAttention it makes a LayerAttention, head by head, at any length.
    - "layers": from all layers from 0 on, in order, stored and whole, it makes the same number of layers.
    - "network": it makes a LayerAttention from a LayerAttention, the output of that layer (n_q, d_model), and an
      iterator of its outputs with the value of one key zeroed in every head (keys, n_q, d_model), some keys at a
      time, in order.
    """

    name: str  # as of --measure; its file's
    title: str  # the heading of a page
    note: str  # for the reader of the numbers, with the source
    unit: str  # of a cell, at a colour bar
    formula: str  # of its step
    sentence: str  # of its step
    needs: Literal["values", "layers", "network"]
    function: Callable[..., Any]
    joins_heads: bool = False  # one map a layer
    note_without_w_o: str = ""  # instead of `note` where W_O is not known, and changes the numbers

    def check_heads(self, chosen: bool) -> None:
        """Raise UsageError if heads are `chosen`, and the measure has one map for all heads."""
        if chosen and self.joins_heads:
            why = f"it is of all heads together: give no {option_name('head')}"
            raise UsageError(why, option="measure", value=self.name)


@cache
def measure_names() -> tuple[str, ...]:
    """Return the names of attnctl's own measures, by their files."""
    from pkgutil import iter_modules

    return tuple(sorted(module.name.replace("_", "-") for module in iter_modules(__path__)))


def measures_of_packages() -> dict[str, EntryPoint]:
    """Return the measures of installed packages, by name."""
    from attnctl.plugins import entries

    return entries("attnctl.measures", (*RESERVED, *measure_names()))


@cache
def measure_named(name: str) -> Measure:
    """Return the measure with this name.

    Raises UsageError if there is none, AttnctlError if its package cannot be imported.
    """
    if name in measure_names():
        measure: Measure = import_module(f"{__name__}.{name.replace('-', '_')}").MEASURE
        return measure
    from attnctl.plugins import load_entry

    packaged = measures_of_packages()
    if name not in packaged:
        raise UsageError(f"no measure {name!r}: it is {', '.join(('weights', *measure_names(), *packaged))}")
    return load_entry(packaged[name], load_measure)


def load_measure(entry: EntryPoint) -> Measure:
    """Return the measure of an entry point. Raises TypeError for any other object, ValueError for another name."""
    measure = entry.load()
    if not isinstance(measure, Measure):
        raise TypeError(f"{entry.value} is not a Measure")
    if measure.name != entry.name:
        raise ValueError(f"{entry.value} is called {measure.name!r}")
    return measure


def chosen_measure(name: str | None) -> Measure | None:
    """Return the measure with this name; None for the weights themselves. Raises UsageError if there is none."""
    return None if name in (None, "weights") else measure_named(str(name))


def check_measure(name: str | None, chosen_heads: bool = False) -> None:
    """Raise UsageError for an unknown measure, or for one that cannot be combined with chosen heads."""
    if measure := chosen_measure(name):
        measure.check_heads(chosen_heads)


def joins_heads(name: str | None) -> bool:
    """Return whether the measure `name` has one map for all heads of a layer."""
    measure = chosen_measure(name)
    return measure is not None and measure.joins_heads


def measure_text(name: str | None) -> str:
    """Return what the numbers of a map are, within a line: "weights", "value norms", "rollout"."""
    measure = chosen_measure(name)
    return "weights" if measure is None else measure.title.lower()


def head_text(name: str | None, head: int) -> str:
    """Return what a map holds, for a title: "head 3", "head 3, value norms", "rollout of all heads"."""
    if joins_heads(name):
        return f"{measure_text(name)} of all heads"
    return f"head {head}" if chosen_measure(name) is None else f"head {head}, {measure_text(name)}"


def needs_of(name: str | None) -> str | None:
    """Return what the measure `name` needs, as in `Measure`; None for the weights themselves."""
    measure = chosen_measure(name)
    return None if measure is None else measure.needs
