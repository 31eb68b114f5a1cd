"""Every numeric option of every command has a range, checked before any work begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer.main

from attnctl import limits
from attnctl.cli import COMMANDS, app
from attnctl.cli.command import numeric_parameters

Run = Callable[..., Any]

# what no number of any option may be, beside what lies outside its own range
NEVER = (
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "1e308",
    str(2**63),
    str(10**23),
    "9" * 5000,
    "٣",
    "1_0",
    "0x10",
    "1,5",
    "\udcff",
)
WHOLE = ("1.5", "1e3")
LARGE = {str(2**63): 2.0**63, str(10**23): 1e23}  # which a float may be

# arguments with which each command would work, were its numbers right
ARGUMENTS = {
    "explain": ("Alice will eat",),
    "heatmap": ("Alice will eat",),
    "heads": ("Alice will eat",),
    "ablate": ("Alice will eat",),
    "compare": ("Alice will eat", "Bob will eat"),
    "batch": ("-",),
    "view": ("Alice will eat",),
    "train": (),
    "evaluate": (),
    "model": ("gpt2",),
    "softmax": ("1", "2"),
    "quiz": ("Alice will eat",),
    "shell": ("Alice will eat",),
    "schema": (),
    "sources": ("Alice will eat",),
    "needle": (),
}


def command(name: str) -> Any:
    return typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]


def options() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        for parameter in numeric_parameters(command(name)):
            yield name, parameter


@pytest.mark.parametrize(("name", "parameter"), list(options()), ids=lambda x: x if isinstance(x, str) else x.name)
def test_a_number_outside_its_range_is_refused_before_any_work(
    name: str, parameter: Any, refused: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnctl.models.open_model", lambda *_, **__: pytest.fail("a model was opened"))
    allowed = limits.range_of(parameter.name, name)
    assert allowed.least <= allowed.most and allowed.reason
    outside = [str(n) for n in (0, -1) if not allowed.holds_value(n)]
    whole = WHOLE if parameter.type.name.startswith("int") else ()
    flag = parameter.opts[-1]
    large = [value for value in NEVER if whole or LARGE.get(value, math.inf) > allowed.most]
    for value in (*large, *whole, *outside):
        said = refused(name, *ARGUMENTS[name], f"{flag}={value}", code=2)
        assert said.startswith(flag) and len(said) < 200, said


@pytest.mark.parametrize("option", limits.RANGES)
def test_ends_of_a_range_are_said_as_they_are(option: str) -> None:
    allowed = limits.RANGES[option]
    assert allowed.holds_value(allowed.most) and allowed.holds_value(allowed.least) is not allowed.above
    for value in (min(-1, 2 * allowed.least), allowed.most * 2 + 1, float("nan"), float("inf"), 10**400):
        assert not allowed.holds_value(value)
    name, _, own = option.rpartition(".")
    with pytest.raises(limits.UsageError, match=r"^--[a-z-]+ .*: (it is|a number above|a probability)"):
        limits.check_range(own, allowed.most * 2 + 1, name)
    for value in (True, "1", None):
        with pytest.raises(limits.UsageError):
            limits.check_range(own, value, name)


def test_the_table_has_no_option_that_no_command_has() -> None:
    elsewhere = {
        "scale",
        "train.sentences",
        "train.min_length",
        "train.steps",
    }  # text on the command line; in a recipe alone
    found = {(name, parameter.name) for name, parameter in options()}
    for option in limits.RANGES:
        of, _, own = option.rpartition(".")
        assert option in elsewhere or any(own == name and of in ("", where) for where, name in found), option
