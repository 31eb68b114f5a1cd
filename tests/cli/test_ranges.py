"""Every numeric option of every command has a range, checked before any work begins."""

from __future__ import annotations

import inspect
import math
import shlex
from functools import partial
from typing import Any

import pytest

from attnctl.checks import limits
from attnctl.checks.limits import Range
from attnctl.cli.app import load_command
from attnctl.registry import COMMANDS
from tests.conftest import Refused

# what no number of any option may be, beside what lies outside its own range
NEVER = ("", " ", "nan", "-inf", "1e308", str(2**63), str(10**23), "9" * 5000, "٣", "1_0", "0x10", "1,5", "\udcff")
WHOLE = ("1.5", "1e3")
LARGE = {str(2**63): 2.0**63, str(10**23): 1e23}  # which a float may be
# every number with its range, in the first command that takes it
OPTIONS = {
    (tuple(option.opts), option.type.name): pytest.param(name, option, id=f"{name} {option.opts[0]}")
    for name in reversed(COMMANDS)
    for option in load_command(name).params
    if option.param_type_name == "option" and option.type.name in ("int", "float")
}


def range_of(option: Any) -> Range:
    """The range of an option: the parser holds it, or the converter of a command of the old kind."""
    if isinstance(option.type.convert, partial):
        allowed = option.type.convert.args[0].range
    else:
        allowed = inspect.getclosurevars(option.type.func).nonlocals["allowed"]
    assert isinstance(allowed, Range)
    return allowed


@pytest.mark.parametrize(("name", "option"), OPTIONS.values())
def test_a_number_outside_its_range_is_refused_before_any_work(
    name: str, option: Any, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnctl.models.open_model", lambda *_, **__: pytest.fail("a model was opened"))
    allowed = range_of(option)
    assert allowed.lowest <= allowed.highest
    outside = [str(n) for n in (0, -1) if not allowed.holds_value(n)]
    whole = WHOLE if option.type.name == "int" else ()
    flag = option.opts[0]
    large = [value for value in NEVER if whole or LARGE.get(value, math.inf) > allowed.highest]
    for value in (*large, *whole, *outside):
        said = refused(name, *shlex.split(load_command(name).example)[2:], f"{flag}={value}", code=2)
        assert said.startswith(flag) and len(said) < 200, said


@pytest.mark.parametrize("name", [name for name, value in vars(limits).items() if isinstance(value, limits.Range)])
def test_ends_of_a_range_are_said_as_they_are(name: str) -> None:
    allowed = getattr(limits, name)
    assert allowed.holds_value(allowed.highest) and allowed.holds_value(allowed.lowest) is not allowed.above
    for value in (min(-1, 2 * allowed.lowest), allowed.highest * 2 + 1, float("nan"), float("inf"), 10**400):
        assert not allowed.holds_value(value)
    with pytest.raises(limits.UsageError, match=r"^d_k=.*: (it is|a number above|a probability)"):
        allowed.check_value("d_k", allowed.highest * 2 + 1)
    for value in (True, "1", None):
        with pytest.raises(limits.UsageError):
            allowed.check_value("d_k", value)
