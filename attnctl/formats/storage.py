"""Saving and loading: a trace or an overview to a file by its suffix, and from a file by what it holds."""

from __future__ import annotations

from pathlib import Path

from attnctl.argument_types import checked
from attnctl.errors import AttnctlError
from attnctl.files import parse_json, read_bytes, write_whole
from attnctl.formats.documents.overview_json import SCHEMA as OVERVIEW_SCHEMA
from attnctl.formats.documents.overview_json import overview_from_document, overview_to_json
from attnctl.formats.documents.trace_json import trace_from_document, trace_to_json
from attnctl.formats.trace_npz import trace_from_npz, write_trace_npz
from attnctl.readings.overview import LongRow, Overview
from attnctl.readings.traces.trace import Trace


def save_value(value: Trace | Overview | LongRow, path: str | Path) -> None:
    """Write a trace (.json, .npz) or an overview (.json) to `path`, whole or not at all.

    Raises AttnctlError for another suffix, a number that is not finite, or a path that cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        line = trace_to_json(value) if isinstance(value, Trace) else overview_to_json(value)
        write_whole(path, line + b"\n")
    elif suffix == ".npz" and isinstance(value, Trace):
        write_whole(path, lambda file: write_trace_npz(value, file))
    else:
        what, suffixes = ("a trace", ".json or .npz") if isinstance(value, Trace) else ("an overview", ".json")
        raise AttnctlError(f"{what} is saved as {suffixes}, not as {suffix or 'a name without suffix'}: {path}")


@checked
def load(path: str | Path) -> Trace | Overview | LongRow:
    """Read what `save_value`, `explain --json`, `heatmap --json` or `heads --json` wrote, or JSON from "-".

    Raises AttnctlError where the file is no trace and no overview, is damaged, or cannot be read.
    """
    data = read_bytes(path)
    source = "standard input" if str(path) == "-" else str(path)
    return trace_from_npz(data, source) if data[:2] == b"PK" else from_json(data, source)


def from_json(data: bytes, source: str = "this file") -> Trace | Overview | LongRow:
    """A trace, an overview, or the row of one query, from JSON. Raises AttnctlError where it is none, or damaged."""
    document = parse_json(data, source)
    if isinstance(document, dict) and document.get("schema") == OVERVIEW_SCHEMA:
        return overview_from_document(document, source)
    return trace_from_document(document, source)
