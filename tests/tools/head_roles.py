"""Write attnctl/readings/questions/head_roles.json: `python -m tests.tools.head_roles CENSUS.json …`.

Each census is of one checkpoint: `attnctl evaluate en_gum-ud-dev.conllu en_ewt-ud-dev.conllu --model minilm --subtypes -o
minilm.json`, from Universal Dependencies 2.16 (UD_English-GUM, UD_English-EWT); for smollm2, which is slow, every second sentence
of 4 to 30 words of EWT's. A head has a role if it finds the relation
ABOVE points more often than the best fixed distance does, as Voita et al. (2019) demand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from attnctl.readings.questions import head_roles

FILE = Path(head_roles.__file__).with_suffix(".json")
ABOVE = 0.1
FEWEST = 100  # cases of a relation
MOST_HEADS = 2  # of a relation
TO_HEAD, TO_DEPENDENT, TO_ANTECEDENT = "dependent→head", "head→dependent", "mention→antecedent"
# relation and direction of a census → the role of a head, in the order of what a reader wants to know; a determiner's noun
# is no news
ROLES = {
    ("nsubj", TO_DEPENDENT): "verb → subject",
    ("nsubj", TO_HEAD): "subject → verb",
    ("obj", TO_HEAD): "object → verb",
    ("obj", TO_DEPENDENT): "verb → object",
    ("coreference:pronoun", TO_ANTECEDENT): "pronoun → antecedent",
}


def roles_of(census: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the roles of the heads of a census: the best head of each relation, if it beats the best fixed distance."""
    roles = []
    for row in census["relations"]:
        role, best, rules = ROLES.get((row["relation"], row["direction"])), row.get("best"), row["rules"]
        rule = rules.get("offset") or rules.get("nearest")  # an antecedent has no usual distance
        if (
            role
            and best
            and rule
            and row["cases"] >= FEWEST
            and best["accuracy"] >= rule["accuracy"] + (ABOVE if "offset" in rules else 0.0)
        ):
            roles += _heads_of(row, role, rule["accuracy"])
    return sorted(roles, key=lambda row: list(ROLES.values()).index(row["role"]))


def _heads_of(row: dict[str, Any], role: str, by_rule: float) -> list[dict[str, Any]]:
    """Return the best head of a relation, by its figure, and the next best of all cases, as far as they beat the rule."""
    best = row["best"]
    shares = np.array(row["correct"], float) / row["cases"]  # (layers, heads)
    shares[best["layer"], best["head"]] = best["accuracy"]
    order = [(best["layer"], best["head"]), *map(tuple, np.argwhere(shares >= by_rule + ABOVE).tolist())]
    chosen = sorted(dict.fromkeys(order), key=lambda place: -shares[place] - (place == order[0]))[:MOST_HEADS]
    return [
        {
            "layer": layer,
            "head": head,
            "role": role,
            "share": round(shares[layer, head], 3),
            "by_distance": round(by_rule, 3),
        }
        for layer, head in chosen
    ]


def main() -> None:
    """Write the roles of every census that is named."""
    document = {}
    for path in sys.argv[1:]:
        census = json.loads(Path(path).read_text(encoding="utf-8"))
        info = census["model_info"]
        document[info["sha256"]] = {
            "name": info["name"],
            "source": info["source"],
            "corpus": f"{census['sentences']['used']:,} sentences of English treebanks",
            "roles": roles_of(census),
        }
    FILE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
