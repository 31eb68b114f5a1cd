"""Tables of numbers as people's tools write them: the numbers, and the names of rows and columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.formats.arrays import read_array

CELLS = ((0.7, 0.2, 0.1), (0.1, 0.1, 0.8))
EN, FR, NUMBERED = ("the", "black"), ("le", "chat", "noir"), ("0", "1", "2")


@pytest.mark.parametrize(
    ("text", "rows", "columns"),
    [
        ("0.7,0.2,0.1\n0.1,0.1,0.8\n", (), ()),
        (",le,chat,noir\nthe,0.7,0.2,0.1\nblack,0.1,0.1,0.8\n", EN, FR),  # pandas
        ("english,le,chat,noir\nthe,0.7,0.2,0.1\nblack,0.1,0.1,0.8\n", EN, FR),  # pandas, its index named
        ("le,chat,noir\n0.7,0.2,0.1\n0.1,0.1,0.8\n", (), FR),  # pandas, index=False
        ("the,0.7,0.2,0.1\nblack,0.1,0.1,0.8\n", EN, ()),
        (",0,1,2\n0,0.7,0.2,0.1\n1,0.1,0.1,0.8\n", ("0", "1"), NUMBERED),  # pandas, without names
        (",0,1,2\nthe,0.7,0.2,0.1\nblack,0.1,0.1,0.8\n", EN, NUMBERED),
        (",le,chat,noir\n0,0.7,0.2,0.1\n1,0.1,0.1,0.8\n", ("0", "1"), FR),
        (",1984,le,3.5\nthe,0.7,0.2,0.1\n2024,0.1,0.1,0.8\n", ("the", "2024"), ("1984", "le", "3.5")),
        ('"le"\t"chat"\t"noir"\n"the"\t0.7\t0.2\t0.1\n"black"\t0.1\t0.1\t0.8\n', EN, FR),  # R: no corner
        ('"le"\t"2"\t"noir"\n"the"\t0.7\t0.2\t0.1\n"black"\t0.1\t0.1\t0.8\n', EN, ("le", "2", "noir")),
        (';"le;la";\t;noir\nthe;0.7;0.2;0.1\n"\n";0.1;0.1;0.8\n', ("the", "\n"), ("le;la", "\t", "noir")),
        ("\ufeff,le,chat,noir\r\nthe,0.7,0.2,0.1\r\nblack,0.1,0.1,0.8\r\n", EN, FR),  # Excel
    ],
)  # fmt: skip
def test_a_table_keeps_its_names(text: str, rows: Any, columns: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    read = read_array(str(path))
    assert (read.rows, read.columns) == (rows, columns)
    np.testing.assert_array_equal(read.array, np.float32(CELLS))


def test_an_archive_keeps_its_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", weights=np.array(CELLS), tokens=EN, key_tokens=FR)
    assert read_array(str(tmp_path / "w.npz"))[1:] == (EN, FR)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (",0.5\n0.2,0.8\n", "row 0 of numbers holds ''"),  # a lost number is no corner
        ("0.7,abc\n0.2,0.8\n", "row 0 of numbers holds 'abc', which is not a number (a line of names begins with an empty cell)"),
        ("1,2\n1,2,3\n4,5,6\n", "row 1 has 3 numbers, the first has 2"),  # nor is a shorter line
        (",le,chat\nthe,0.7\nblack,0.1\n", "the first line names 2 columns, but a row has 1"),
        (",le,chat\nthe,0.7,x\nblack,0.1,0.9\n", "row 0 of numbers holds 'x', which is not a number"),
        (";le;chat\nthe;0,7;0,3\n", "decimal commas (0,7)"),
        ("1;0\n0,5;0,5\n", "decimal commas (0,5)"),  # as for a whole number in the first row
    ],
)  # fmt: skip
def test_a_damaged_table_is_no_table_with_names(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(AttnctlError) as error:
        read_array(str(tmp_path / "t.csv"))
    assert says in str(error.value)
