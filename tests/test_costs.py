"""What a change costs in files, made in a copy of the package.

An option, a measure or a head statistic 1; a picture format, a reading or a command 2.
"""

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
SQUARES = """
from attnctl.layer import layer_of_weights
from attnctl.measures import Measure


def squares(layer):
    weights = layer.all_weights() ** 2
    return layer_of_weights(layer.layer, weights / weights.sum(-1, keepdims=True))


MEASURE = Measure("even-squares", "Squares", "Shown are squares.", "share of weight²", "weight² ÷ Σ", "Each squared.", "values", squares)
"""
STATISTIC = """
        Statistic("variance", "var", "variance of the weights of a query", "share", 13, "even", 1e-9, USUAL),
"""
WEBP = """

def webp_bytes(figure):
    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(png_bytes(figure))).save(out, "webp")
    return out.getvalue()
"""
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
SHOUT = """
    shout: Annotated[bool, Option("--shout", help="Say it loudly.", envvar="ATTNCTL_SHOUT", rich_help_panel=LOOK)] = False,
"""
FLATTEST = '''
"""`attnctl flattest`: the head whose largest weight is the smallest."""

from __future__ import annotations

from attnctl.cli.command import command
from attnctl.cli.groups import JsonOption, TextArgument
from attnctl.document_fields import Index
from attnctl.formats.documents.json_documents import JsonDocument, write_json


class Flattest(JsonDocument, kw_only=True, tag="attnctl.flattest/1"):
    """The head whose largest weight is the smallest."""

    layer: Index
    head: Index


def flattest(text: str) -> Flattest:
    """Return the flattest head."""
    from attnctl import attend

    tops = {(one.layer, head): one.weights[head].max() for one in attend(text).layers for head in range(len(one.weights))}
    layer, head = min(tops, key=tops.get)
    return Flattest(layer=layer, head=head)


@command(example='attnctl flattest "Alice will eat"')
def flattest_command(text: TextArgument = None, *, json: JsonOption = False) -> None:
    """Find the flattest head."""
    from attnctl.cli.output import print_lines, put_bytes

    found = flattest(text or "")
    if json:
        put_bytes(write_json(found, "head") + b"\\n")
    else:
        print_lines(f"{found.layer}.{found.head} is flat")
'''
ENTRY = """
    "flattest": CommandPackage(
        LOOK,
        "the head whose largest weight is the smallest",
        "attnctl.commands.flattest",
        functions={"flattest": "attnctl.commands.flattest"},
        documents={"flattest": "attnctl.commands.flattest:Flattest"},
    ),
"""
# a file → the line behind which something is added ("": at the end, or as a new file), and what
ADDED = {
    "a measure": {"measures/even_squares.py": [("", SQUARES)]},
    "a head statistic": {
        "readings/head_statistics.py": [
            ('"confidence": found.largest', '        "variance": layer.all_weights().var(-1).mean(-1),\n'),
            ('Statistic("confidence"', STATISTIC),
        ]
    },
    "a picture format": {
        "formats/pictures.py": [
            (
                'PictureFormat("svg"',
                '        PictureFormat("webp", "figure", "attnctl.render.figure.saving:webp_bytes"),\n',
            )
        ],
        "render/figure/saving.py": [("", WEBP)],
    },
    "an option": {"commands/explain.py": [("output: Annotated[str | None, output_option", SHOUT)]},
    "a command": {"commands/flattest.py": [("", FLATTEST)], "commands/__init__.py": [("COMMANDS = {", ENTRY)]},
    "a reading": {"readings/farthest.py": [("", FARTHEST)], "render/told/farthest.py": [("", TOLD)]},
}
ASK = f"""
import json
import sys

import attnctl
import jsonschema
from attnctl import heads, load
from attnctl.__main__ import main
from attnctl.cli.app import load_command
from attnctl.formats.documents.json_documents import read_as, write_json
from attnctl.commands.schema.documents import make_schema, schema_of
from attnctl.models import open_model
from attnctl.readings.farthest import FarthestKeys, FarthestReading
from attnctl.render.page.reading_pages import reading_page
from attnctl.render.terminal.console import SafeConsole, Shown
from attnctl.render.told.farthest import farthest_forms
from attnctl.source import Changes, TextSource, prepare

def completed(option, incomplete):
    context = load_command("heads").make_context("heads", [], resilient_parsing=True)
    (one,) = [one for one in load_command("heads").params if one.name == option]
    return [item.value for item in one.shell_complete(context, incomplete)]

assert completed("measure", "even") == ["even-squares"]
assert heads("Alice will eat", measure="even-squares")
measure = make_schema("trace")["properties"]["measure"]
assert "even-squares: Each squared." in measure["description"]

assert completed("by", "vari") == ["variance"]
assert all(0 < head["variance"] < 1 and "even" in " ".join(head.names) for head in heads("{TEXT}"))
assert "variance of the weights of a query" in json.dumps(make_schema("overview"))

flattest = attnctl.flattest("Alice will eat")
jsonschema.validate(json.loads(write_json(flattest, "head")), make_schema("flattest"))
assert "flattest" in attnctl.__all__

for arguments in (
    ["--help"],
    ["flattest", "Alice", "will", "eat"],
    ["flattest", "Alice will eat", "--json"],
    ["docs", "flattest"],
    ["explain", "Alice will eat", "--shout"],
    ["docs", "explain"],
    ["heatmap", "--help-all"],
    ["heatmap", "Alice will eat", "--measure", "even-squares", "--layer", "0", "-o", "map.webp"],
    ["explain", "Alice will eat", "--measure", "even-squares", "--steps", "weights"],
    ["explain", "Alice will eat", "--measure", "even-squares", "-o", "trace.json"],
    ["view", "trace.json", "--no-open", "-o", "page.html"],
    ["batch", "texts.txt", "--measure", "even-squares"],
    ["heads", "Alice will eat", "--measure", "squares"],
    ["heads", "{TEXT}", "--by", "variance"],
    ["heads", "{TEXT}", "--json", "-o", "heads.json"],
    ["heads", "heads.json", "--by", "variance", "--csv", "-o", "heads.csv"],
    ["heads", "{TEXT}", "--by", "variance", "-o", "heads.webp"],
    ["batch", "texts.txt", "-o", "folder", "--format", "statistics,webp"],
    ["heatmap", "{TEXT}", "-o", "map.bmp"],
):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as left:
        print("left with", left.code, flush=True)
assert load("trace.json").measure == "even-squares"
assert json.load(open("heads.json"))["heads"][0]["variance"] > 0

found = prepare(TextSource(open_model("demo"), "{TEXT}"), Changes()).read(FarthestReading())
document = json.loads(write_json(found, "farthest keys"))
schema = schema_of(FarthestKeys, "farthest")
jsonschema.validate(document, schema)
assert schema["$id"] == document["schema"] == "attnctl.farthest/1" and read_as(FarthestKeys, document) == found
assert "The largest distance." in json.dumps(schema)
forms = farthest_forms(found)
SafeConsole().print(Shown(forms))
print(forms[1].as_csv())
open("farthest.html", "w").write(reading_page(forms, "How far"))
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A folder with a copy of the package that has all of it, and what it prints where it is asked for."""
    folder = tmp_path_factory.mktemp("costs")
    package = Path(attnctl.__file__).parent
    shutil.copytree(package, folder / "attnctl", ignore=shutil.ignore_patterns("__pycache__", "pictures"))
    for files in ADDED.values():
        for name, parts in files.items():
            path = folder / "attnctl" / name
            for line, added in parts:
                lines = path.read_text().splitlines(keepends=True) if path.exists() else []
                (at,) = (at for at, one in enumerate(lines) if line in one) if line else (len(lines) - 1,)
                path.write_text("".join([*lines[: at + 1], added, *lines[at + 1 :]]))
    (folder / "texts.txt").write_text(f"{TEXT}\n")
    found = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("left with 2") == 2
    return folder, found.stdout, found.stderr


def test_an_option_is_one_parameter(asked: tuple[Path, str, str]) -> None:
    _, out, _ = asked
    assert len(ADDED["an option"]) == 1
    assert "- `--shout`: Say it loudly." in out


def test_a_command_is_a_file_and_an_entry(asked: tuple[Path, str, str]) -> None:
    _, out, _ = asked
    assert len(ADDED["a command"]) == 2
    assert "│ flattest " in out and "# attnctl flattest" in out and " is flat\n" in out
    assert '{"schema":"attnctl.flattest/1","attnctl"' in out


def test_a_measure_is_one_file(asked: tuple[Path, str, str]) -> None:
    folder, out, err = asked
    assert len(ADDED["a measure"]) == 1
    assert "weights, even-squares, rollout, value-norm, value-zeroing." in " ".join(out.replace("│", "").split())
    assert "weight² ÷ Σ" in out and '"measure":"even-squares"' in out
    assert "Squares" in (folder / "page.html").read_text()
    assert "--measure 'squares': it is one of weights, even-squares" in err


def test_a_head_statistic_is_one_file(asked: tuple[Path, str, str]) -> None:
    folder, out, _ = asked
    assert len(ADDED["a head statistic"]) == 1
    assert "Sorted by var" in out and "even: 1e-09 or more" in " ".join(out.replace("│", "").split())
    assert "variance" in (folder / "heads.csv").read_text().splitlines()[0]
    assert "variance" in (folder / "folder" / "statistics.csv").read_text()


def test_a_picture_format_is_two_files(asked: tuple[Path, str, str]) -> None:
    folder, out, err = asked
    assert len(ADDED["a picture format"]) == 2
    assert ".webp" in out and ".webp" in err
    pictures = [*folder.glob("*.webp"), *(folder / "folder").rglob("*.webp")]
    assert len(pictures) == 3
    for path in pictures:
        with Image.open(path) as picture:
            assert picture.format == "WEBP" and picture.size[0] > 100


def test_a_reading_is_two_files(asked: tuple[Path, str, str]) -> None:
    """Below a command: what it is, and how it is told; in the terminal, as JSON with its schema, as CSV, in a page."""
    folder, out, _ = asked
    assert len(ADDED["a reading"]) == 2
    page = (folder / "farthest.html").read_text()
    assert "How far each head looks." in out and "layer  head  tokens" in out and "layer,head,tokens\n0,0," in out
    assert "<p>How far each head looks.</p>" in page and "<th>tokens" in page
