"""`batch --format sources`: where the answers to many prompts came from, a row a prompt, and means over the prompts."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import jsonschema

from attnctl.commands.schema.documents import SCHEMAS
from tests.batching.test_groups import rows_of
from tests.conftest import Run
from tests.tools import folders

CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
DOCUMENTS = ["[one] Paris is big.", "[two] Rome is old.", "[three] Oslo is cold."]


def prompt(order: tuple[int, ...]) -> str:
    return "\n".join(DOCUMENTS[at] for at in order) + "\n\nWhich is old?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = folders.write(tmp_path_factory.mktemp("chatty"), "llama", max_position_embeddings=512)
    (made / "chat_template.jinja").write_text(CHATML)
    return made


def test_a_row_a_prompt_and_means_over_them(run: Run, folder: Path, tmp_path: Path) -> None:
    orders = [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
    lines: list[Any] = [{"text": prompt(order), "answer": " Rome", "id": f"p{at}"} for at, order in enumerate(orders)]
    lines.append({"messages": [{"role": "user", "content": prompt(orders[0])}], "answer": "Rome", "id": "chat"})
    lines += [{"messages": [{"role": "boss", "content": "x"}]}, {"text": "x", "options": {"answer": 3}}]
    file, out = tmp_path / "in.jsonl", tmp_path / "out"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = run("batch", file, "-o", out, "--format", "sources", "--model", folder)
    assert made.code == 3 and "has the role 'boss'" in made.err and "has no option 'answer'" in made.err
    documents = [json.loads(line) for line in (out / "sources.jsonl").read_text().splitlines()]
    assert [document["id"] for document in documents] == ["p0", "p1", "p2", "chat"]
    for document, order in zip(documents, orders, strict=False):
        own = {key: value for key, value in document.items() if key not in ("number", "id")}
        jsonschema.validate(own, SCHEMAS["sources"]())
        alone = run("sources", prompt(order), "--answer", " Rome", "--model", folder, "--json").json
        assert own == alone
    table = rows_of(out / "sources.csv")
    assert [row["id"] for row in table] == ["p0", "p1", "p2", "chat"]
    assert table[0]["first_source"] == documents[0]["parts"][0]["name"] and table[3]["answer"] == "Rome"
    means = {(row["by"], row["which"], row["column"]): row for row in rows_of(out / "sources-means.csv")}
    of_two = [part["matters"] for document in documents for part in document["parts"] if part["name"] == "two"]
    assert float(means["part", "two", "matters"]["mean"]) == pytest.approx(statistics.fmean(of_two), abs=1e-6)
    error = statistics.stdev(of_two) / 2
    assert float(means["part", "two", "matters"]["standard_error"]) == pytest.approx(error, rel=1e-4)
    firsts = [min(document["parts"], key=lambda part: part["start"])["looks"] for document in documents]
    assert float(means["place", "0", "looks"]["mean"]) == pytest.approx(statistics.fmean(firsts), abs=1e-6)
    again = run("batch", file, "-o", out, "--format", "sources", "--model", folder)
    assert "6 there before" in again.err


def test_conversations_are_read_by_every_format(run: Run, folder: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Which is old?"}]
    (tmp_path / "in.jsonl").write_text(json.dumps(messages) + "\n" + json.dumps({"messages": messages}) + "\n")
    made = run("batch", "--chat", tmp_path / "in.jsonl", "--model", folder, "--layer", "0")
    assert made.code == 0, made.err
    first, second = (json.loads(line) for line in made.out.splitlines())
    assert first["text"] == second["text"] == "<|user|>Which is old?\n<|assistant|>"
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps(messages))
    alone = run("explain", "--chat", chat, "--model", folder, "--layer", "0", "--json").json
    assert alone["layers"][0]["heads"][0]["weights"] == first["layers"][0]["heads"][0]["weights"]
