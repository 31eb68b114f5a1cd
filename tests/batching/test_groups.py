"""Files that hold many texts: tables that others read, contact sheets, statistics; the same however often interrupted."""

from __future__ import annotations

import csv
import io
import random
import shutil
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attnctl.batching.tallies import merge_means, tally_of_values
from attnctl.formats.storage import from_json
from attnctl.layer import HEAD_FIELD_ARRAYS
from attnctl.models import open_model
from attnctl.readings.head_statistics import STATISTICS, HeadStatisticsReading
from attnctl.render.figure import contact_sheet
from attnctl.source import TextSource, record_trace
from tests.batching.test_resume import check_whole, contents, killed_midway, manifest, sentences
from tests.conftest import process

Run = Callable[..., Any]


def pixels(data: bytes) -> Any:
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)  # (height, width, 3)


def test_parquet_holds_every_array_of_every_head(run: Run, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    file = sentences(tmp_path / "in.txt", 210)
    args = ("--format", "json,parquet", "--jobs", "1", "--model", "random", "--layers", "2", "--heads", "2", "--causal")
    assert run("batch", file, "-o", tmp_path / "out", *args).code == 3
    assert len(list((tmp_path / "out" / "traces.parquet").iterdir())) == 2  # the texts from 0 and from 192 on
    rows = pq.read_table(tmp_path / "out" / "traces.parquet").to_pylist()
    traces = [from_json(line) for line in (tmp_path / "out" / "traces.jsonl").read_bytes().splitlines()]
    assert len(traces) == 209 and len(rows) == 4 * 209
    for at, row in enumerate(rows):
        trace, (layer, head) = traces[at // 4], divmod(at % 4, 2)
        assert (row["text"], row["layer"], row["head"]) == (trace.text, layer, head)
        assert row["tokens"] == [token.text for token in trace.tokens]
        for name in (*(array.name for array in HEAD_FIELD_ARRAYS), "mask"):
            array = getattr(trace.layers[layer], name)
            if array is None:
                assert row[name] is None
            else:
                np.testing.assert_array_equal(
                    np.asarray(row[name], array.dtype), array if name == "mask" else array[head]
                )


def test_other_libraries_read_the_table(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    run("batch", sentences(tmp_path / "in.txt", 9), "-o", tmp_path / "out", "--format", "parquet", "--jobs", "1")
    frame = pandas.read_parquet(tmp_path / "out" / "traces.parquet")
    assert len(frame) == 8 * 12 and np.stack(frame["weights"][0]).sum(-1) == pytest.approx(1)


def test_statistics_are_those_of_the_texts_one_by_one(run: Run, tmp_path: Path) -> None:
    file = sentences(tmp_path / "in.txt", 30)
    run("batch", file, "-o", tmp_path / "out", "--format", "statistics", "--jobs", "1")
    model = open_model("demo")
    known = [
        TextSource(model, text).read(HeadStatisticsReading(model.tokenize(text)))
        for text in file.read_text(encoding="utf-8").splitlines()
        if text
    ]
    with (tmp_path / "out" / "statistics.csv").open() as table:
        found = list(csv.DictReader(table))
    assert {row["measure"] for row in found} >= {"entropy", "previous", "distance", "rank"}
    for row in found:
        values = [facts[6 * int(row["layer"]) + int(row["head"])][row["measure"]] for facts in known]
        values = [value for value in values if value is not None]
        assert int(row["n"]) == len(values)
        assert float(row["mean"]) == pytest.approx(statistics.fmean(values), rel=1e-5)
        assert float(row["spread"] or 0) == pytest.approx(statistics.stdev(values), rel=1e-4, abs=1e-6)


def test_tallies_add_up_in_any_split() -> None:
    draw = random.Random(1)
    rows = [{name: draw.gauss(3, 2) for name in STATISTICS} for _ in range(50)]
    for cut in (0, 1, 20, 50):
        one: Any = {}
        other: Any = {}
        for at, row in enumerate(rows):
            merge_means(one if at < cut else other, tally_of_values((0, 0, *entry) for entry in row.items()))
        merge_means(one, other)
        for name in STATISTICS:
            values = [row[name] for row in rows]
            n, mean, squares = one[0, 0, name]
            assert (n, mean) == (50, pytest.approx(statistics.fmean(values)))
            assert squares / 49 == pytest.approx(statistics.variance(values))


def test_a_model_without_queries_has_no_statistics(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "a b c", "options": {"query": "b"}}\n')
    result = run("batch", file, "-o", tmp_path / "out", "--format", "statistics", "--jobs", "1")
    assert result.code == 3 and "statistics need every query" in result.err


def test_a_tile_shows_the_weights() -> None:
    trace = record_trace(open_model("random", causal=True), "a b c d")
    (tile,) = contact_sheet.head_tiles(trace, "7")
    assert tile.shape == (*contact_sheet.TILE, 3)
    weights = trace.layers[0].weights
    assert weights is not None
    colours = contact_sheet.colour_map("viridis")(weights[0] / weights[0].max(), bytes=True)[..., :3]
    side = contact_sheet.GRID / 4
    for i in range(4):
        for j in range(4):
            pixel = tile[20 + int((i + 0.5) * side), int((j + 0.5) * side)]
            assert (pixel == (colours[i, j] if j <= i else 0xF3)).all()
    assert (contact_sheet.unpacked_tiles(contact_sheet.packed_tiles([tile, tile])) == tile).all()


def test_pages_and_their_pdf_hold_the_same_pixels(run: Run, tmp_path: Path) -> None:
    file = sentences(tmp_path / "in.txt", 60)
    args = ("--format", "contact-sheet", "--layer", "1", "--head", "1", "--jobs", "1")
    assert run("batch", file, "-o", tmp_path / "out", *args).code == 3
    pages = sorted((tmp_path / "out" / "contact-sheet").iterdir())
    assert [page.name for page in pages] == ["0000000-001.png", "0000000-002.png"]  # 59 grids, 40 a page
    assert pixels(pages[0].read_bytes()).shape == (*contact_sheet.PAGE, 3)
    data = (tmp_path / "out" / "contact-sheet.pdf").read_bytes()
    assert data.startswith(b"%PDF-1.") and data.count(b"/Type /Page ") == 2
    reader = subprocess.run(["which", "pdftoppm"], capture_output=True)
    if reader.returncode:
        pytest.skip("no pdftoppm to look at the PDF with")
    pdf = str(tmp_path / "out" / "contact-sheet.pdf")
    shown = subprocess.run(
        ["pdftoppm", "-r", str(contact_sheet.DPI), "-png", "-f", "2", "-singlefile", pdf], capture_output=True
    )
    ours, theirs = pixels(pages[1].read_bytes()), pixels(shown.stdout)
    assert np.abs(ours - theirs[: ours.shape[0], : ours.shape[1]]).mean() < 2


def test_groups_survive_being_killed(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    file, draw = sentences(tmp_path / "in.txt", 250), random.Random(3)
    args = [str(file), "--format", "json,parquet,contact-sheet,statistics", "--head", "0", "--jobs", "1"]
    assert process("batch", *args, "-o", str(tmp_path / "calm")).returncode == 3
    for _ in range(2):
        killed_midway([*args, "-o", str(tmp_path / "rough")], tmp_path / "rough", draw)
        assert check_whole(tmp_path / "rough") in (192, 250)  # whole groups, or all
    assert process("batch", *args, "-o", str(tmp_path / "rough")).returncode == 3
    assert contents(tmp_path / "rough") == contents(tmp_path / "calm")
    assert len(manifest(tmp_path / "rough")) == 250


def test_texts_that_come_later_are_a_group_of_their_own(run: Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = sentences(tmp_path / "in.txt", 30)
    args = (file, "--format", "json,parquet,contact-sheet,statistics", "--head", "0", "--jobs", "1")
    run("batch", *args, "-o", tmp_path / "out")
    before = contents(tmp_path / "out")
    file.write_text("One more.\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    assert "1 done, 30 there before" in run("batch", *args, "-o", tmp_path / "out").err
    after = contents(tmp_path / "out")
    parts = [name for name in before if "/" in name]
    assert parts and all(after[name] == before[name] for name in parts) and after["manifest"][:30] == before["manifest"]
    run("batch", *args, "-o", tmp_path / "fresh")
    tables = [parquet.read_table(tmp_path / name / "traces.parquet") for name in ("out", "fresh")]
    assert sorted(tables[0]["text"].to_pylist()) == sorted(tables[1]["text"].to_pylist())
    rows = [(tmp_path / name / "statistics.csv").read_text().splitlines() for name in ("out", "fresh")]
    assert all(mine.rpartition(",")[2] == theirs.rpartition(",")[2] for mine, theirs in zip(*rows, strict=True))  # n
    shutil.copytree(tmp_path / "out", tmp_path / "damaged")
    (tmp_path / "damaged" / "traces.parquet" / "0000000.parquet").write_bytes(b"")
    said = run("batch", *args, "-o", tmp_path / "damaged").err
    assert "29 done, 1 failed, 1 there before, traces.parquet/0000000.parquet damaged or gone" in said
    damaged = contents(tmp_path / "damaged")
    for entry in (*damaged["manifest"], *after["manifest"]):
        del entry["where"]  # a line further down now
    assert damaged == after
