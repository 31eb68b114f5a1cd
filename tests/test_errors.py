"""Messages: one line each, short enough to read, and their end is there."""

from __future__ import annotations

from typing import Any

import pytest

from attnctl.errors import LONGEST, print_complaint


@pytest.mark.parametrize("value", ["9" * 5000, "x y " * 3000, "9" * 299, "\u202e" * 5000, ""])
def test_a_long_value_leaves_room_for_what_to_do(value: str, capsys: Any) -> None:
    """The value took all the room, and the sentence on what is wanted was cut off."""
    print_complaint(f"--size {value!r}: it is WIDTHxHEIGHT in inches, like 6x4")
    said = capsys.readouterr().err
    assert said.startswith("attnctl: --size") and said.endswith(": it is WIDTHxHEIGHT in inches, like 6x4\n")
    assert said.count("\n") == 1 and len(said) < 7 * LONGEST
