"""What a change costs in files: a measure is one, a picture format a line and its writer, a reading a file and its forms.

Each of these is added here as a module of its own, and every command, schema, help and page must know it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import numpy as np
import pytest
from PIL import Image

import attnctl
from attnctl.cli.app import load_command
from attnctl.commands.schema.documents import make_schema, schema_of
from attnctl.document_fields import Index, Part, Whole, about
from attnctl.formats.documents.json_documents import read_as, write_json
from attnctl.models import open_model
from attnctl.readings.head_statistics import STATISTICS
from attnctl.render.forms import Column, Line, Table
from attnctl.render.page.reading_pages import reading_page
from attnctl.render.terminal.console import SafeConsole, Shown
from attnctl.source import Changes, TextSource, prepare
from tests.conftest import Run

TEXT = "the cat sat and the cat sat and the cat sat"
MEASURE = """
from attnctl.layer import layer_of_weights
from attnctl.measures import Measure


def squares(layer):
    weights = layer.all_weights() ** 2
    return layer_of_weights(layer.layer, weights / weights.sum(-1, keepdims=True))


MEASURE = Measure(
    "even-squares", "Squares", "Shown are squares.", "share of weight²", "weight² ÷ Σ", "Each squared.", "values", squares
)
"""
PICTURE = """
import io
from PIL import Image
from attnctl.render.figure.saving import png_bytes


def webp_bytes(figure):
    out = io.BytesIO()
    Image.open(io.BytesIO(png_bytes(figure))).save(out, "webp")
    return out.getvalue()
"""
PROGRAM = """
import json, sys
import attnctl.measures
from attnctl.formats.pictures import PICTURE_FORMATS, PictureFormat

attnctl.measures.__path__.append("measures")
PICTURE_FORMATS["webp"] = PictureFormat("webp", "figure", "webp:webp_bytes")
from attnctl.cli.app import load_command, run_command
from attnctl.commands.schema.documents import make_schema

context = load_command("heads").make_context("heads", [], resilient_parsing=True)
(option,) = [one for one in load_command("heads").params if one.name == "measure"]
print(*[item.value for item in option.shell_complete(context, "even")])
print(make_schema("trace")["properties"]["measure"])
for words in json.loads(sys.argv[1]):
    print("exit code", run_command(words), flush=True)
"""
COMMANDS = (
    ["heatmap", "--help-all"],
    ["heatmap", "Alice will eat", "--measure", "even-squares", "--layer", "0", "-o", "map.webp"],
    ["explain", "Alice will eat", "--measure", "even-squares", "--steps", "weights"],
    ["explain", "Alice will eat", "--measure", "even-squares", "-o", "trace.json"],
    ["view", "trace.json", "--no-open", "-o", "page.html"],
    ["batch", "texts.txt", "--measure", "even-squares"],
    ["batch", "texts.txt", "-o", "folder", "--format", "webp"],
    ["heads", TEXT, "-o", "heads.webp"],
    ["heads", "Alice will eat", "--measure", "squares"],
    ["heatmap", TEXT, "-o", "map.bmp"],
)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder in which commands ran that know one measure and one picture format more, and what they printed."""
    folder = tmp_path_factory.mktemp("costs")
    (folder / "measures").mkdir()
    (folder / "measures" / "even_squares.py").write_text(MEASURE)
    (folder / "webp.py").write_text(PICTURE)
    (folder / "texts.txt").write_text(f"{TEXT}\n")
    path = os.pathsep.join([str(folder), str(Path(attnctl.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(COMMANDS)],
        cwd=folder, env=os.environ | {"PYTHONPATH": path, "COLUMNS": "100"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    codes = [line for line in done.stdout.splitlines() if line.startswith("exit code")]
    assert codes == ["exit code 0"] * 8 + ["exit code 2"] * 2, done
    return folder, done.stdout, done.stderr


def test_a_measure_is_one_file(asked: tuple[Path, str, str]) -> None:
    folder, out, err = asked
    assert out.startswith("even-squares\n") and "even-squares: Each squared." in out
    assert "weights, even-squares, rollout, value-norm, value-zeroing." in " ".join(out.replace("│", "").split())
    assert "weight² ÷ Σ" in out and '"measure":"even-squares"' in out
    assert json.loads((folder / "trace.json").read_text())["measure"] == "even-squares"
    assert "Squares" in (folder / "page.html").read_text()
    assert "--measure 'squares': it is one of weights, even-squares" in err


def test_a_picture_format_is_a_line_and_its_writer(asked: tuple[Path, str, str]) -> None:
    folder, out, err = asked
    assert ".webp" in out and ".webp" in err
    pictures = [*folder.glob("*.webp"), *(folder / "folder").rglob("*.webp")]
    assert len(pictures) == 3
    for path in pictures:
        with Image.open(path) as picture:
            assert picture.format == "WEBP" and picture.size[0] > 100


def test_a_head_statistic_is_a_line_of_the_table_and_its_value(run: Run) -> None:
    """The table, JSON, its schema and CSV read the table of statistics; `--by` takes each."""
    csv = run("heads", TEXT, "--csv").out.splitlines()[0].split(",")
    head, schema = run("heads", TEXT, "--json").json["heads"][0], json.dumps(make_schema("overview"))
    assert csv == ["layer", "head", *STATISTICS, "names"]
    assert [name for name in STATISTICS if name in head] == list(head)[2:-1] and len(head) > 10
    assert [one.name for one in STATISTICS.values() if one.sentence not in schema] == []
    option = next(one for one in load_command("heads").params if one.name == "by")
    offered = option.shell_complete(load_command("heads").make_context("heads", [], resilient_parsing=True), "")
    assert [item.value for item in offered] == list(STATISTICS)


class FarthestHead(Part):
    """How far one head looks."""

    layer: Index
    head: Index
    tokens: Annotated[Whole, about("The largest distance.")]


class FarthestKeys(Part, tag_field="schema", tag="attnctl.farthest/1"):
    """How far away the heads look: of each query the farthest key with a tenth of its weight or more."""

    heads: tuple[FarthestHead, ...]


class FarthestReading:
    """Read how far the heads look."""

    predicts = False

    def __init__(self) -> None:
        self._heads: list[FarthestHead] = []

    def take(self, layer: Any) -> None:
        """Read a layer."""
        distances = np.abs(layer.positions[:, None] - np.arange(layer.n_k))  # (n_q, n_k)
        farthest = ((layer.all_weights() >= 0.1) * distances).max((-1, -2))  # (heads,)
        self._heads += [FarthestHead(layer.layer, *one) for one in zip(layer.heads, farthest.tolist(), strict=True)]

    def value(self, run: object) -> FarthestKeys:
        """Return the result after the last layer."""
        return FarthestKeys(tuple(self._heads))


def test_a_reading_is_a_file_and_its_forms(capsys: pytest.CaptureFixture[str]) -> None:
    """Below a command: JSON with its schema, and one table for the terminal, CSV and a page."""
    value = prepare(TextSource(open_model("demo"), TEXT), Changes()).read(FarthestReading())
    document = json.loads(write_json(value, "farthest keys"))
    schema = schema_of(FarthestKeys, "farthest")
    jsonschema.validate(document, schema)
    assert schema["$id"] == document["schema"] == "attnctl.farthest/1" and read_as(FarthestKeys, document) == value
    assert "The largest distance." in json.dumps(schema)

    columns = [Column(name, [getattr(head, name) for head in value.heads]) for name in ("layer", "head", "tokens")]
    forms = [Line("How far each head looks."), Table(columns)]
    SafeConsole().print(Shown(forms))
    printed, page = capsys.readouterr().out, reading_page(forms, "How far")
    assert "How far each head looks." in printed and "layer  head  tokens" in printed
    assert forms[1].as_csv().startswith("layer,head,tokens\n0,0,")
    assert "<p>How far each head looks.</p>" in page and "<th>tokens" in page
