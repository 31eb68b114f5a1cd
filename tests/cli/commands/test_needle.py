"""`attnctl needle`: the command around the needles, its resumption, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import jsonschema

from attnctl.formats.documents.schemas import SCHEMAS
from tests.conftest import Run
from tests.tools import folders

OWN = ("--needle", "The cat is red.", "--question", "What is the cat?", "--expect", "red")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write(tmp_path_factory.mktemp("needle"), "llama", max_position_embeddings=1024)


def test_a_model_that_answers_none(run: Run, folder: Path, tmp_path: Path) -> None:
    made = run("needle", "--model", folder, "--lengths", "300,500", "--depths", "0,100", *OWN, "--json")
    assert made.code == 1 and "answers none of the 4 needles" in made.err
    *cells, last = map(json.loads, made.out.splitlines())
    assert [(cell["length"], cell["depth"]) for cell in cells] == [(300, 0), (300, 1), (500, 0), (500, 1)]
    assert all(0 <= cell["found"] <= 1 and not cell["answered"] for cell in cells)
    assert (last["asked"], last["answered"], last["retrieval_heads"]) == (4, 0, [])
    for line, name in (*((cell, "needle") for cell in cells), (last, "needles")):
        jsonschema.validate(line, SCHEMAS[name]())
        assert len(line["model"]["sha256"]) == 64 and line["model"]["name"]


def test_a_run_is_gone_on_with(run: Run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "n.jsonl"
    args = ("needle", "--model", folder, "--depths", "0,50", *OWN, "-o", out)
    run(*args, "--lengths", "300")
    first = out.read_bytes()
    out.write_bytes(first + first[:50])  # stopped in the middle of a line
    made = run(*args, "--lengths", "300,400")
    assert "2 needles are in" in made.err
    cells = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(cell["length"], cell["depth"]) for cell in cells] == [(300, 0), (300, 0.5), (400, 0), (400, 0.5)]
    other = run("needle", "--model", folder, "--seed", "1", "--lengths", "300", *OWN, "-o", out)
    assert other.code == 1 and "is of another seed" in other.err
    hay = tmp_path / "hay.txt"
    hay.write_text("It rains. The sun shines.")
    other = run("needle", "--model", folder, "--lengths", "300", *OWN, "--haystack", hay, "-o", out)
    assert other.code == 1 and "is of another haystack" in other.err


def test_a_haystack_and_a_picture(run: Run, folder: Path, tmp_path: Path) -> None:
    hay = tmp_path / "hay.txt"
    hay.write_text("It rains. The sun shines. A dog barks. ")
    made = run("needle", "--model", folder, "--haystack", hay, "--lengths", "300", *OWN, "-o", tmp_path / "n.png")
    assert "answers none" in made.err and (tmp_path / "n.png").stat().st_size > 1000
