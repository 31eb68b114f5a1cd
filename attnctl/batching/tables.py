"""Write what a batch finds as CSV: a row for the headline of each text, or a row for each weight."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from attnctl.batching.formats import BatchFormat, NamedFiles
from attnctl.batching.items import Item
from attnctl.errors import AttnctlError
from attnctl.formats.tables import Block, table_writer, weight_blocks
from attnctl.models import Model
from attnctl.readings.questions.headline import headline
from attnctl.runtime.files import write_whole
from attnctl.trace import Headline, Trace

LARGEST = 64 << 20  # bytes of rows in memory


class TextRows(BatchFormat):
    """The format `FORM.csv`: rows of each text, below one heading; `make` returns the rows of a text as CSV."""

    columns: Sequence[str] = ()

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._bytes = 0

    @classmethod
    def heading(cls) -> bytes:
        """Return the first line of the table."""
        return ",".join(cls.columns).encode() + b"\n"

    def add(self, made: bytes) -> NamedFiles | None:
        """Add the rows of a text; return a file if there are many rows."""
        self._rows.append(made)
        self._bytes += len(made)
        return self.end() if self._bytes > LARGEST else None

    def rest(self) -> NamedFiles:
        """Return the file of the remaining rows."""
        rows, self._rows, self._bytes = self._rows, [], 0
        return [(self.name_of_part(".csv"), b"".join(rows))]

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        """Write the heading and all rows as one table."""

        def write_rows(out: IO[bytes]) -> None:
            out.write(self.heading())
            for part in parts:
                out.write(part)

        write_whole(folder / f"{self.form}.csv", write_rows, inside=folder)


class Headlines(TextRows):
    """The format `headlines.csv`: the headline of each text, or why the text failed."""

    form = "headlines"
    columns = (
        "number", "id", "text", "layer", "head", "query", "key", "query_text", "key_text", "role", "weight", "certainty",
        "error",
    )  # fmt: skip

    @staticmethod
    def make(item: Item, trace: Trace, model: Model) -> bytes:
        """Return the row of a text; the fields of a headline are empty if no link stands out."""
        line = headline_of(trace)
        fields: dict[str, object] = {}
        if line is not None:
            number = trace.key_numbers[line.key]
            fields = {
                "layer": line.layer,
                "head": line.head,
                "query": line.query,
                "key": number,
                "query_text": trace.tokens[line.query].text,
                "key_text": trace.key_axis[line.key].text,
                "role": line.role or None,
                "weight": np.float32(line.weight),
                "certainty": line.certainty,
            }
        return csv_rows([_row(Headlines.columns, number=item.number, id=trace.id, text=trace.text, **fields)])

    @staticmethod
    def failed(item: Item, why: str) -> bytes:
        """Return the row of a text that failed: its number, its id, and the reason."""
        return csv_rows([_row(Headlines.columns, number=item.number, id=item.id, error=why)])


class Weights(TextRows):
    """The format `weights.csv`: a row for each weight of each text, as `heatmap -o` writes them; none for a failed text."""

    form = "weights"
    columns = ("number", "id", "layer", "head", "query", "key", "query_text", "key_text", "weight")

    @staticmethod
    def make(item: Item, trace: Trace, model: Model) -> bytes:
        """Return the rows of a text. Raises AttnctlError for a trace without weights."""
        return csv_rows(blocks_of_text(item, trace))


def blocks_of_text(item: Item, trace: Trace) -> Iterator[Block]:
    """Yield the weights of each layer and head of a text, each row with the text's number and id."""
    if not any(layer.weights is not None for layer in trace.layers):
        raise AttnctlError("this trace holds no weights: write it without narrowing its steps")
    name = None if trace.id is None else str(trace.id)
    for block in weight_blocks(trace):
        count = len(block["weight"])
        yield {"number": np.full(count, item.number, np.int64), "id": [name] * count, **block}


def headline_of(trace: Trace) -> Headline | None:
    """Return the headline of a text: of its query, if the trace holds the row of a single one; None if none stands out."""
    rows = trace.layers[0].rows if trace.layers else None
    line = headline(trace, query=rows[0] if rows is not None and len(rows) == 1 else None)
    return line if line is None or line.stands_out else None


def csv_rows(blocks: Iterable[Block]) -> bytes:
    """Return the rows of a table as CSV, without its heading."""
    out = io.BytesIO()
    table_writer(blocks, "csv")(out)
    return out.getvalue().partition(b"\n")[2]


def _row(columns: Sequence[str], **fields: object) -> Block:
    values = map(fields.get, columns)
    return dict(zip(columns, map(_column, values), strict=True))


def _column(value: object) -> Sequence[str | None] | np.ndarray:
    if isinstance(value, int | np.floating):
        return np.array([value])
    return [None if value is None else str(value)]
