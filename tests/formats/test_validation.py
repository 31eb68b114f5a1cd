"""Files from outside that are damaged or made to harm: one line each, whatever command reads them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.formats.documents.overview_json import overview_from_document
from attnctl.formats.documents.trace_json import trace_from_document
from attnctl.formats.storage import from_json, trace_from_npz, trace_to_npz
from attnctl.formats.validation import read_npy, read_npz
from attnctl.trace import word_groups
from tests.conftest import attend, process


def document() -> Any:
    return json.loads(attend("Alice will eat", causal=True, n_heads=2).to_json())


def put(into: Any, path: str, value: Any) -> None:
    *way, last = path.split(".")
    for key in way:
        into = into[int(key)] if key.isdigit() else into[key]
    into[int(last) if last.isdigit() else last] = value


def test_a_token_that_stands_beyond_the_text_costs_no_more_than_the_text() -> None:
    """Tokens of another text (a decoder's) may stand there; a span of a thousand million characters is not walked."""
    damaged = document()
    put(damaged, "tokens.0.end", 10**9)
    trace = trace_from_document(damaged, "x.json")
    assert word_groups(trace.tokens, trace.text) == [[0, 1], [2]]  # what lies over each other is a word


def test_an_archive_of_complex_numbers_is_refused() -> None:
    arrays = dict(np.load(io.BytesIO(trace_to_npz(attend("Alice will eat")))))
    arrays["layers.0.weights"] = arrays["layers.0.weights"] + 1j
    file = io.BytesIO()
    np.savez(file, **arrays)
    with pytest.raises(AttnctlError, match="complex"):
        trace_from_npz(file.getvalue(), "x.npz")


def test_json_with_a_lone_surrogate_and_more_wrong() -> None:
    for tail in ("", "[" * 5000, ": Infinity}", "9" * 5000):
        with pytest.raises(AttnctlError, match="is not JSON|is not a trace"):
            from_json('{"schema": "\\ud800", "x"' + tail, "x.json")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_one_line_however_it_was_packed(method: int) -> None:
    array = io.BytesIO()
    np.save(array, np.random.default_rng(0).random((2, 20, 20)).round(2))
    data = zipped("weights.npy", array.getvalue(), method)
    assert read_npz(data, "x")["weights"].shape == (2, 20, 20)
    for at in range(30, len(data) // 2, 11):
        broken = bytes([*data[:at], data[at] ^ 0x55, *data[at + 1 :]])
        with suppress(AttnctlError):
            read_npz(broken, "x")


def zipped(name: str, data: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr(name, data)
    return out.getvalue()


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "data",
    [
        header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,), }\n"),
        header("(" * 300),
        header("{'descr': 'O', 'fortran_order': False, 'shape': (1,), }\n"),
        header(""),
        b"\x93NUMPY",
    ],
)
def test_hostile_npy_headers(data: bytes) -> None:
    for read, raw in ((read_npy, data), (read_npz, zipped("W_Q.npy", data))):
        with pytest.raises(AttnctlError, match="not a sound"):
            read(raw, "x")  # type: ignore[operator]


def test_an_archive_of_no_arrays_and_an_array_that_is_no_archive() -> None:
    with pytest.raises(AttnctlError, match="W_Q is not an array"):
        read_npz(zipped("W_Q", b"text"), "x")
    single = io.BytesIO()
    np.save(single, np.zeros(3))
    with pytest.raises(AttnctlError, match="single array"):
        read_npz(single.getvalue(), "x")


def test_old_encodings_and_closed_streams() -> None:
    for arguments in (["explain", "é 你 b"], ["schema"]):
        done = process(*arguments, env=os.environ | {"PYTHONIOENCODING": "ascii"})
        assert done.returncode == 0 and done.stdout.isascii(), done.stderr
    full = ("--help >/dev/full",) if Path("/dev/full").exists() else ()
    for shell in ("schema >&-", "softmax 1 2 >&-", "heatmap - <&- >&-", "--help >&-", *full):
        done = subprocess.run(["bash", "-c", f"{sys.executable} -m attnctl {shell}"], capture_output=True, timeout=60)
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 1) and done.stderr.startswith(b"attnctl: "), done


@pytest.mark.parametrize("value", ["0.5", True, None])
def test_a_text_or_true_is_no_number_in_any_document(value: Any) -> None:
    """They were read as 0.5 and 1."""
    overview = {
        "schema": "attnctl.overview/1",
        "text": "a b",
        "tokens": [{"index": at, "text": name, "special": False} for at, name in enumerate("ab")],
        "model": {"name": "m", "kind": "demo"},
    }
    for head in (
        {"links": [[[0, value]], [[1, 0.5]]]},
        {"entropy": value or "", "first": value},
        {"query": 0, "weights": [value, 0.5]},
    ):
        with pytest.raises(AttnctlError, match="^x is a damaged overview: .*number"):
            overview_from_document(overview | {"heads": [{"layer": 0, "head": 0} | head]}, "x")


def test_one_query_with_very_many_links_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other query is given as many: of a file of 8 MB a table of 100 GB."""
    monkeypatch.setattr("attnctl.checks.limits.ALWAYS_FREE_BYTES", 0)
    monkeypatch.setattr("attnctl.checks.limits.free_memory", lambda: 100_000.0)
    document: dict[str, Any] = {
        "schema": "attnctl.overview/1",
        "text": "a",
        "tokens": [{"text": "a", "special": False}] * 100,
        "model": {"name": "m", "kind": "demo"},
        "heads": [{"layer": 0, "head": 0, "links": [[[at, 0.01] for at in range(100)], *[[]] * 99]}],
    }
    with pytest.raises(AttnctlError, match=r"^a table of 100 links for 100 tokens needs 400 kB of memory"):
        overview_from_document(document, "x")
    document["heads"][0]["links"][0] = [[3, 0.5]]
    assert overview_from_document(document, "x").links[0, 0].keys.shape == (100, 1)
