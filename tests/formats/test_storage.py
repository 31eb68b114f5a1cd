"""What is saved loads again: traces and overviews, by suffix and by content; the public API shows itself."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import attnctl
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.arrays import map_weights, readable_tensors
from attnctl.formats.documents.json_documents import write_json
from attnctl.formats.documents.overview_json import overview_from_document, overview_to_json
from attnctl.measures import measure_named
from attnctl.models import open_model
from attnctl.readings.heatmap import GridReading, OverviewReading, labelled_grid
from attnctl.readings.overview import LongRow, Overview, TextPart
from attnctl.readings.rows import LinksReading, RowReading
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.source import Changes, OverviewSource, TextSource, prepare
from tests.conftest import attend, check_schema
from tests.formats.test_validation import put

TEXT = "the cat sat on the mat because the cat was warm"


def surveyed(**asked: Any) -> Overview:
    parts = tuple(TextPart(f"{a}", ((a, a + 4),)) for a in (0, 4))
    source = TextSource(open_model("random", causal=True, n_heads=2), TEXT)
    readings = {
        "grid": GridReading(parts, parts),
        "statistics": HeadStatisticsReading(source.tokens),
        "links": LinksReading(3),
    }
    return prepare(source).read(OverviewReading(**readings | asked))


def test_an_overview_and_a_row_load_as_they_were_saved(tmp_path: Path) -> None:
    overview = surveyed()
    overview.save(tmp_path / "run.json")
    back = attnctl.load(tmp_path / "run.json")
    assert isinstance(back, Overview)
    assert overview_to_json(back) == overview_to_json(overview)
    assert check_schema(json.loads(overview_to_json(overview))) == "overview"
    assert back.head_statistics == overview.head_statistics and back.grid is not None and overview.grid is not None
    assert back.grid.rows == overview.grid.rows and back.grid.masks.keys() == overview.grid.masks.keys() == {0}
    np.testing.assert_array_equal(back.grid.masks[0], [[True, False], [True, True]])
    row = prepare(TextSource(open_model("random", causal=True, n_heads=2), TEXT)).read(RowReading(4))
    row.save(tmp_path / "row.json")
    back = attnctl.load(tmp_path / "row.json")
    assert isinstance(back, LongRow) and back.query == 4
    assert overview_to_json(back) == overview_to_json(row)


def test_an_overview_and_a_row_of_a_measure_say_so_in_their_file(tmp_path: Path) -> None:
    source = TextSource(open_model("random", causal=True, n_heads=2), TEXT)
    parts = tuple(TextPart(f"{a}", ((a, a + 4),)) for a in (0, 4))
    for measure, unit in ((None, "mean weight"), ("value-norm", measure_named("value-norm").unit)):
        prepared = prepare(source, Changes(measure))
        for value in (prepared.read(OverviewReading(GridReading(parts, parts))), prepared.read(RowReading(4))):
            value.save(tmp_path / "kept.json")
            assert json.loads((tmp_path / "kept.json").read_bytes()).get("measure") == measure
            back = attnctl.load(tmp_path / "kept.json")
            assert isinstance(back, Overview | LongRow) and back.measure == measure
            if isinstance(back, Overview):
                assert labelled_grid(back).unit_of_cells == unit
                with pytest.raises(UsageError, match="holds a measure already") if measure else nullcontext():
                    prepare(OverviewSource(back, "kept.json"), Changes("value-norm"))


def test_what_a_command_found_loads_as_python_has_it(tmp_path: Path) -> None:
    effects = attnctl.effects("demo", "Alice will eat")
    path = tmp_path / "effects.json"
    path.write_bytes(write_json(effects, "effects"))
    back = attnctl.load(path)
    assert isinstance(back, type(effects)) and (back.model, back.tokens) == (effects.model, effects.tokens)
    records, wanted = back.to_records(), effects.to_records()
    assert [record.keys() for record in records] == [record.keys() for record in wanted]
    numbers, known = (
        [[v for v in record.values() if isinstance(v, float)] for record in rows] for rows in (records, wanted)
    )
    np.testing.assert_allclose(numbers, known, rtol=1e-6)  # float32 in JSON
    for text, why in (
        ('{"schema": "attnctl.effects/1"}', "is damaged: 'text' is missing"),
        ('{"schema": "attnctl.effects/9"}', "has schema 'attnctl.effects/9'; this attnctl reads 'attnctl.effects/1'"),
        ('{"schema": "foo/1"}', "has schema 'foo/1', not attnctl.NAME/1 of trace, overview, effects, "),
        ('{"schema": ["x"]}', "has schema"),
        ('{"schema": "attnctl.failed/1", "error": "too long"}', "is a text of a batch that failed: too long"),
        ('{"schema": "attnctl.trace/1"}\n{"schema": "attnctl.trace/1"}\n', "holds 2 documents, one a line"),
    ):
        path.write_text(text)
        with pytest.raises(AttnctlError, match=re.escape(why)):
            attnctl.load(path)


def test_a_trace_loads_by_what_the_file_holds(tmp_path: Path) -> None:
    trace = attend("Alice will eat pizza")
    for name in ("run.json", "run.npz"):
        trace.save(tmp_path / name)
        (tmp_path / name).rename(tmp_path / "anything")
        back = attnctl.load(tmp_path / "anything")
        assert isinstance(back, attnctl.Trace) and back.to_json() == trace.to_json()
    for saved, name, said in ((trace, "run.txt", r"\.json or \.npz"), (surveyed(), "run.npz", r"\.json")):
        with pytest.raises(AttnctlError, match=f"is saved as {said}"):
            saved.save(tmp_path / name)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("heads.0.grid", [[1.0]]),
        ("heads.0.links.0", [[99, 0.5]]),
        ("heads.0.entropy", "much"),
        ("heads.1.head", 0),
        ("rows.0.ranges", [[3, 99]]),
        ("layers.0.mask", [[True]]),
        ("layers.0", 7),
        ("tokens", None),
        ("heads.0.grid.0.0", None),
    ],
    ids=str,
)
def test_a_damaged_overview_is_refused(path: str, value: Any) -> None:
    document = json.loads(overview_to_json(surveyed()))
    put(document, path, value)
    with pytest.raises(AttnctlError, match=r"^x\.json ") as error:
        overview_from_document(document, "x.json")
    assert "\n" not in str(error.value)


def test_a_large_matrix_is_read_where_it_stands(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).random((2, 3, 5, 7), np.float32)
    np.save(tmp_path / "w.npy", weights)
    for layer, mapped in zip(weights, map_weights(str(tmp_path / "w.npy"))[1], strict=True):
        assert mapped.shape == layer.shape
        for head in range(3):
            np.testing.assert_array_equal(mapped[head, 1:4], layer[head, 1:4])
            np.testing.assert_array_equal(mapped[[2, head]][1, :], layer[head])
    for shape in ((7,), (1, 1, 1, 1, 2, 2), (2, 0)):
        np.save(tmp_path / "w.npy", np.ones(shape))
        with pytest.raises(AttnctlError, match=r"weights are \(n, n\), \(heads, n, n\), "):
            map_weights(str(tmp_path / "w.npy"))


@pytest.mark.parametrize("kind", ["f8", "f4", "f2", "i1", "i8", "u2", "?"])
def test_tensors_of_every_type_are_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": np.ones((2, 3), kind)}, tmp_path / "a.safetensors")
    assert readable_tensors(tmp_path / "a.safetensors")["a"]["shape"] == [2, 3]
    monkeypatch.setattr("attnctl.checks.limits.ALWAYS_FREE_BYTES", 0)
    monkeypatch.setattr("attnctl.checks.limits.free_memory", lambda: 100.0)
    with pytest.raises(AttnctlError, match="^reading .* of memory"):
        readable_tensors(tmp_path / "a.safetensors")
