"""Numbers in files and in options that are no plain numbers: one line, before any work."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from attnctl.errors import AttnctlError
from attnctl.models import open_model
from attnctl.models.builtin.weights import reports_of
from attnctl.readings.spans import parts_of
from attnctl.tokens import split_words


@pytest.mark.parametrize("how", [{"n_heads": True}, {"d_model": 8.5}], ids=str)
def test_a_number_of_another_type_is_named(how: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"{next(iter(how))} is int, not"):
        open_model("random", **how)


@pytest.mark.parametrize("line", [b"5", b'{"step": "x"}', b"[1]", b'{"step": null}', b"\xff", b"[" * 5000])
def test_a_line_that_is_no_report_takes_no_other_away(line: bytes) -> None:
    Path("metrics.jsonl").write_bytes(b'{"step": 1, "loss": 2.0}\n' + line + b'\n{"step": 3}\n')
    assert reports_of("") == [{"step": 1, "loss": 2.0}, {"step": 3}]


@pytest.mark.parametrize("limit", [131_072, 1 << 26])  # of a field: batch raises it for its texts
def test_spans_with_bare_carriage_returns_and_a_name_as_long_as_a_text(limit: int) -> None:
    """What else is no list of spans stands in tests/refusals.txt."""
    text, path = "Alice will eat pizza", Path("spans.csv")
    path.write_bytes(b"name,start,end\rwho,0,5\rwhat,6,20\r")
    assert [part.name for part in parts_of(str(path), text, split_words(text))][:2] == ["who", "what"]
    path.write_bytes(b"name,start,end\n" + b"x" * 200_000 + b",0,5\n")
    before = csv.field_size_limit(limit)
    try:
        with pytest.raises(AttnctlError, match=r"\A.*\Z"):
            parts_of(str(path), text, split_words(text))
    finally:
        csv.field_size_limit(before)
