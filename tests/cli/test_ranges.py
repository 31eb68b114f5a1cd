"""Every numeric option of every command has a range, checked before any work begins."""

from __future__ import annotations

import math
import shlex

import pytest

from attnctl import limits
from attnctl.cli.command_table import ENTRIES
from attnctl.cli.options import Option
from tests.conftest import Refused

# what no number of any option may be, beside what lies outside its own range
NEVER = ("", " ", "nan", "-inf", "1e308", str(2**63), str(10**23), "9" * 5000, "٣", "1_0", "0x10", "1,5", "\udcff")
WHOLE = ("1.5", "1e3")
LARGE = {str(2**63): 2.0**63, str(10**23): 1e23}  # which a float may be
# every number with its range, in the first command that takes it
OPTIONS = {
    (option.flags, option.range): pytest.param(name, option, id=f"{name} {option.flags}")
    for name in reversed(ENTRIES)
    for option in ENTRIES[name].options.values()
    if option.kind in (int, float)
}


@pytest.mark.parametrize(("name", "option"), OPTIONS.values())
def test_a_number_outside_its_range_is_refused_before_any_work(
    name: str, option: Option, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnctl.models.open_model", lambda *_, **__: pytest.fail("a model was opened"))
    allowed = option.range
    assert allowed is not None and allowed.least <= allowed.most and allowed.reason
    outside = [str(n) for n in (0, -1) if not allowed.holds_value(n)]
    whole = WHOLE if option.kind is int else ()
    flag = option.flags.split()[0]
    large = [value for value in NEVER if whole or LARGE.get(value, math.inf) > allowed.most]
    for value in (*large, *whole, *outside):
        said = refused(name, *shlex.split(ENTRIES[name].example)[2:], f"{flag}={value}", code=2)
        assert said.startswith(flag) and len(said) < 200, said


@pytest.mark.parametrize("name", [name for name, value in vars(limits).items() if isinstance(value, limits.Range)])
def test_ends_of_a_range_are_said_as_they_are(name: str) -> None:
    allowed = getattr(limits, name)
    assert allowed.holds_value(allowed.most) and allowed.holds_value(allowed.least) is not allowed.above
    for value in (min(-1, 2 * allowed.least), allowed.most * 2 + 1, float("nan"), float("inf"), 10**400):
        assert not allowed.holds_value(value)
    with pytest.raises(limits.UsageError, match=r"^--d-k .*: (it is|a number above|a probability)"):
        allowed.check_value("d_k", allowed.most * 2 + 1)
    for value in (True, "1", None):
        with pytest.raises(limits.UsageError):
            allowed.check_value("d_k", value)
