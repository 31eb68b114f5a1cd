"""What a change costs in files, each made in a copy of the package: a measure or a head statistic 1, a picture format or a reading 2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import attnctl

TEXT = "the cat sat and the cat sat and the cat sat"
# runs commands, each as sys.argv, and says with which code each left
RUN = """
import sys
from attnctl.__main__ import main

def commands(*many):
    for arguments in many:
        sys.argv[1:] = arguments
        try:
            main()
        except SystemExit as left:
            print("left with", left.code, flush=True)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, beside it a file of texts."""
    shutil.copytree(
        Path(attnctl.__file__).parent, tmp_path / "attnctl", ignore=shutil.ignore_patterns("__pycache__", "pictures")
    )
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n")
    return tmp_path / "attnctl"


def write_after(path: Path, line: str, added: str) -> None:
    """Put lines below the one line of a file that holds `line`."""
    lines = path.read_text().splitlines(keepends=True)
    (at,) = (at for at, one in enumerate(lines) if line in one)
    path.write_text("".join([*lines[: at + 1], added, *lines[at + 1 :]]))


def asked(package: Path, script: str) -> subprocess.CompletedProcess[str]:
    """What a script says that runs on the copy."""
    found = subprocess.run(
        [sys.executable, "-c", RUN + script],
        cwd=package.parent,
        env={**os.environ, "PYTHONPATH": str(package.parent), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found


SQUARES = """
from attnctl.layer import layer_of_weights
from attnctl.measures import Measure


def squares(layer):
    weights = layer.all_weights() ** 2
    return layer_of_weights(layer.layer, weights / weights.sum(-1, keepdims=True))


MEASURE = Measure("even-squares", "Squares", "Shown are squares.", "share of weight²", "weight² ÷ Σ", "Each squared.", "values", squares)
"""
ASK_MEASURE = """
from attnctl.cli.suggestions import completions
from attnctl.formats.documents.schemas import make_schema
from attnctl import heads, load

assert completions("measure", "even") == ["even-squares"]
assert heads("Alice will eat", measure="even-squares")
measure = make_schema("trace")["properties"]["measure"]
assert "even-squares" in measure["enum"] and "even-squares: Each squared." in measure["description"]
commands(
    ["heatmap", "Alice will eat", "--measure", "even-squares"],
    ["heatmap", "--help"],
    ["explain", "Alice will eat", "--measure", "even-squares", "--steps", "weights"],
    ["explain", "Alice will eat", "--measure", "even-squares", "-o", "trace.json"],
    ["view", "trace.json", "--no-open", "-o", "page.html"],
    ["batch", "texts.txt", "--measure", "even-squares"],
    ["heads", "Alice will eat", "--measure", "squares"],
)
print(load("trace.json").measure)
"""


def test_a_new_measure_is_one_file(package: Path) -> None:
    (package / "measures" / "even_squares.py").write_text(SQUARES)
    found = asked(package, ASK_MEASURE)
    assert "weights, even-squares, rollout, value-norm, value-zeroing." in " ".join(found.stdout.split())
    assert "weight² ÷ Σ" in found.stdout and '"measure":"even-squares"' in found.stdout
    assert "Squares" in (package.parent / "page.html").read_text()
    assert "no measure 'squares': it is weights, even-squares" in found.stderr
    assert found.stdout.rstrip().endswith("even-squares") and found.stdout.count("left with 2") == 1


ASK_STATISTIC = f"""
import json
from attnctl.cli.suggestions import completions
from attnctl.formats.documents.schemas import make_schema
from attnctl import heads

assert completions("by", "vari") == ["variance"]
assert all(0 < head["variance"] < 1 and "even" in " ".join(head.names) for head in heads("{TEXT}"))
assert "variance of the weights of a query" in json.dumps(make_schema("overview"))
commands(
    ["heads", "{TEXT}", "--by", "variance"],
    ["heads", "{TEXT}", "--csv", "-o", "heads.csv"],
    ["heads", "{TEXT}", "--json", "-o", "heads.json"],
    ["heads", "heads.json", "--by", "variance", "--csv"],
    ["heads", "{TEXT}", "--by", "variance", "-o", "heads.png"],
    ["batch", "texts.txt", "-o", "folder", "--format", "statistics"],
)
assert json.load(open("heads.json"))["heads"][0]["variance"] > 0
"""


def test_a_new_head_statistic_is_one_file(package: Path) -> None:
    file = package / "readings" / "head_statistics.py"
    write_after(file, '"confidence": found.largest', '        "variance": layer.all_weights().var(-1).mean(-1),\n')
    line = 'Statistic("variance", "var", "variance of the weights of a query", "share", 13, "even", 1e-9, USUAL),'
    write_after(file, 'Statistic("confidence"', f"        {line}\n")
    found = asked(package, ASK_STATISTIC)
    assert "Sorted by var" in found.stdout and "even: 1e-09 or more" in " ".join(found.stdout.split())
    assert "var" in found.stdout and "variance" in (package.parent / "heads.csv").read_text().splitlines()[0]
    with Image.open(package.parent / "heads.png") as picture:
        assert picture.size[0] > 100


WEBP = """

def webp_bytes(figure):
    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(png_bytes(figure))).save(out, "webp")
    return out.getvalue()
"""
ASK_FORMAT = f"""
commands(
    ["heatmap", "--help"],
    ["heatmap", "{TEXT}", "--layer", "0", "-o", "map.webp"],
    ["heads", "{TEXT}", "--by", "first", "-o", "heads.webp"],
    ["batch", "texts.txt", "-o", "folder", "--format", "webp"],
    ["heatmap", "{TEXT}", "-o", "map.bmp"],
)
"""


def test_a_new_picture_format_is_two_files(package: Path) -> None:
    write_after(
        package / "formats" / "pictures.py",
        'PictureFormat("svg"',
        '        PictureFormat("webp", "figure", "attnctl.render.figure.saving:webp_bytes"),\n',
    )
    with (package / "render" / "figure" / "saving.py").open("a") as file:
        file.write(WEBP)
    found = asked(package, ASK_FORMAT)
    assert ".webp" in found.stdout and found.stdout.count("left with 2") == 1 and ".webp" in found.stderr
    pictures = [*package.parent.glob("*.webp"), *(package.parent / "folder").rglob("*.webp")]
    assert len(pictures) == 3
    for path in pictures:
        with Image.open(path) as picture:
            assert picture.format == "WEBP"


FARTHEST = '''
"""How far away a head looks: of each query the farthest key with a tenth of its weight or more."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from attnctl.document_fields import Index, Part, Whole, about


class FarthestHead(Part):
    """How far one head looks."""

    layer: Index
    head: Index
    tokens: Annotated[Whole, about("The largest distance.")]


class FarthestKeys(Part, tag_field="schema", tag="attnctl.farthest/1"):
    """How far away the heads look."""

    heads: tuple[FarthestHead, ...]


class FarthestReading:
    predicts = False

    def __init__(self):
        self._heads = []

    def take(self, layer):
        apart = np.abs(layer.positions[:, None] - np.arange(layer.n_k))
        far = ((layer.all_weights() >= 0.1) * apart).max((-1, -2))
        self._heads += [FarthestHead(layer.layer, head, int(at)) for head, at in zip(layer.heads, far)]

    def value(self, run):
        return FarthestKeys(tuple(self._heads))
'''
TOLD = '''
"""How far heads look, told: a line and a table."""

from attnctl.render.forms import Column, Line, Table


def farthest_forms(found):
    columns = [Column(name, [getattr(one, name) for one in found.heads]) for name in ("layer", "head", "tokens")]
    return [Line("How far each head looks."), Table(columns)]
'''
ASK_READING = f"""
import json
import jsonschema
from attnctl.formats.documents.json_documents import read_as, write_json
from attnctl.formats.documents.schemas import schema_of
from attnctl.models import open_model
from attnctl.readings.farthest import FarthestKeys, FarthestReading
from attnctl.render.page.reading_pages import reading_page
from attnctl.render.terminal.console import SafeConsole, Shown
from attnctl.render.told.farthest import farthest_forms
from attnctl.source import Changes, TextSource, prepare

found = prepare(TextSource(open_model("demo"), "{TEXT}"), Changes()).read(FarthestReading())
document = json.loads(write_json(found, "farthest keys"))
schema = schema_of(FarthestKeys, "farthest")
jsonschema.validate(document, schema)
assert schema["$id"] == document["schema"] == "attnctl.farthest/1" and read_as(FarthestKeys, document) == found
assert "The largest distance." in json.dumps(schema)
forms = farthest_forms(found)
SafeConsole().print(Shown(forms))
print(forms[1].as_csv())
open("page.html", "w").write(reading_page(forms, "How far"))
"""


def test_a_new_reading_is_two_files(package: Path) -> None:
    """Below a command: what it is, and how it is told; in the terminal, as JSON with its schema, as CSV, in a page."""
    (package / "readings" / "farthest.py").write_text(FARTHEST)
    (package / "render" / "told" / "farthest.py").write_text(TOLD)
    told = asked(package, ASK_READING).stdout
    page = (package.parent / "page.html").read_text()
    assert "How far each head looks." in told and "layer  head  tokens" in told and "layer,head,tokens\n0,0," in told
    assert "<p>How far each head looks.</p>" in page and "<th>tokens" in page
