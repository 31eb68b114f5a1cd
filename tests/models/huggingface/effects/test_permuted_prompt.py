"""`sources --permute`: each order's numbers are those of that prompt by itself, with the same answer. About 10 s."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import jsonschema

import attnctl
from attnctl.formats.schemas.json_schemas import SCHEMAS
from tests.conftest import Result
from tests.models.huggingface import folders

Run = Callable[..., Result]
Refused = Callable[..., str]
TEXT = "[one] Paris is big.\n[two] Rome is old.\n[three] Oslo is cold.\n\nWhich is old?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write(tmp_path_factory.mktemp("m"), "llama", max_position_embeddings=512)


def test_every_order_is_that_prompt_by_itself(run: Run, folder: Path) -> None:
    args = ("--model", folder, "--json")
    made = run("sources", TEXT, *args, "--generate", 3, "--permute", 4, "--seed", 5)
    assert made.code == 0, made.err
    jsonschema.validate(made.json, SCHEMAS["sources"]())
    orders, answer = made.json["orders"], made.json["answer"]["text"]
    assert len(orders["measured"]) == 4 and orders["seed"] == 5
    bodies = {line.split("]")[0][1:]: line for line in TEXT.split("\n")[:3]}
    for order in orders["measured"]:
        names = [one["name"] for one in order["documents"]]
        text = "\n".join(bodies[name] for name in names) + "\n\nWhich is old?"
        alone = run("sources", text, *args, "--answer", answer).json
        assert order["log_probability"] == pytest.approx(alone["answer"]["log_probability"], abs=1e-4)
        parts = {part["name"]: part for part in alone["parts"]}
        for one in order["documents"]:
            assert one["matters"] == pytest.approx(parts[one["name"]]["matters"], abs=1e-4)
            assert one["looks"] == pytest.approx(parts[one["name"]]["looks"], abs=1e-4)
    for mean in orders["documents"]:
        own = [one for order in orders["measured"] for one in order["documents"] if one["name"] == mean["name"]]
        assert mean["looks"] == pytest.approx(sum(one["looks"] for one in own) / 4, abs=1e-6)
        assert mean["matters"] == pytest.approx(sum(one["matters"] for one in own) / 4, abs=1e-6)
    called = attnctl.sources(TEXT, str(folder), generate=3, permute=4, seed=5).orders
    assert called is not None
    assert [one.name for one in called.document_means()] == [one["name"] for one in orders["documents"]]
    plain = run("sources", TEXT, *args, "--answer", answer).json
    assert plain["parts"] == [*made.json["parts"]] or plain["answer"]["tokens"] != made.json["answer"]["tokens"]


def test_where_the_orders_go(run: Run, refused: Refused, folder: Path, tmp_path: Path) -> None:
    args = ("sources", TEXT, "--model", folder, "--answer", "Rome", "--permute", 2)
    shown = run(*args)
    assert shown.code == 0 and "place\tlooks\tlooks_bias" in shown.out
    page = tmp_path / "s.html"
    assert run(*args, "-o", page).code == 0 and "With the documents in 2 orders" in page.read_text()
    assert "a picture shows one order" in refused(*map(str, args), "-o", str(tmp_path / "s.png"), code=2)
    many = ("sources", TEXT, "--model", str(folder), "--answer", "Rome", "--permute", "7")
    assert "3 documents have 6 orders" in refused(*many, code=2)
    none = ("sources", "no documents", "--model", str(folder), "--answer", "Rome", "--permute", "2")
    assert "needs two documents" in refused(*none, code=2)


def test_a_learned_sink_is_set_apart_by_name(run: Run, tmp_path: Path) -> None:
    folder = folders.write(tmp_path, "gpt_oss, sinks", max_position_embeddings=512)
    made = run("sources", TEXT, "--model", folder, "--answer", "Rome", "--json")
    assert made.code == 0, made.err
    apart = made.json["apart"]
    assert apart["(learned sink)"] > 0.01
    assert sum(part["looks"] for part in made.json["parts"]) + sum(apart.values()) == pytest.approx(1, abs=1e-3)
