"""`attnctl.evaluate`, and what it has beside the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attnctl
from attnctl.commands.evaluate.bundled import treebank_text
from attnctl.commands.evaluate.show import census_bytes
from attnctl.errors import AttnctlError, UsageError
from tests.conftest import SAMPLES, Run

CORPUS = str(SAMPLES / "sentences.conllu")


def test_evaluate_takes_relations_processes_and_a_folder(tmp_path: Path) -> None:
    """The command had them, and the function did not."""
    renamed = tmp_path / "relations.csv"
    renamed.write_text("nsubj,subject\nobj,\n")
    alone = attnctl.evaluate(CORPUS, "demo", relations=renamed)
    again = attnctl.evaluate(CORPUS, "demo", relations=renamed, jobs=2, output=tmp_path / "census")
    said = [census_bytes(one, ".json") for one in (alone, again)]
    assert said[0] == said[1] and (tmp_path / "census/manifest.jsonl").is_file()
    named = {one.relation for one in alone.relations}
    assert any("subject" in name for name in named) and not any("obj" in name.split() for name in named), named


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(AttnctlError, match="gone.conllu"):
        attnctl.evaluate("gone.conllu", "random")
    with pytest.raises(UsageError, match="need the name of a model"):
        attnctl.evaluate(CORPUS, attnctl.open_model("demo"), jobs=2)


def test_a_table_shows_itself_in_one_short_line() -> None:
    shown = repr(attnctl.evaluate(CORPUS, "demo"))
    assert shown.startswith("CensusTable of sentences.conllu by demo: 12 sentences, 130 words, ")
    assert len(shown) < 200 and "\n" not in shown


def test_the_untrained_network_beside_it_has_the_same_heads_off(run: Run) -> None:
    off = ("--off", "0.1,0.2,0.3,0.4,0.5,1.0")
    found = [run("evaluate", "--sentences", "60", "--json", *more).out.splitlines() for more in ((), off)]
    whole, without = ([json.loads(line)["untrained"] for line in lines] for lines in found)
    assert None not in without and whole != without
    corpus = str(SAMPLES / "sentences.conllu")
    found = [run("evaluate", corpus, "--untrained", "--json", *more).json for more in ((), off)]
    assert found[1]["uuas"]["untrained"]
    whole, without = ([row.get("untrained") for row in one["relations"]] for one in found)
    assert whole != without


def test_heads_are_called_after_what_a_table_found(tmp_path: Path) -> None:
    (tmp_path / "grammar.conllu").write_text(treebank_text(60), encoding="utf-8")
    table = attnctl.evaluate(tmp_path / "grammar.conllu", "demo")
    (place, names), *_ = table.head_names().by_head.items()
    named = {(one.layer, one.head): one.names for one in attnctl.heads("Alice will eat", "demo", census=table)}
    assert named[place][-len(names) :] == names and all("%" in name for name in names)
    with pytest.raises(TypeError, match="census is NamesHeads, not str"):
        attnctl.heads("Alice will eat", census="census.json")
