"""The files that `evaluate` writes and reads, for tests.tools.read_back."""

from __future__ import annotations

SMALL = ["--model", "random", "--layers", "2", "--heads", "2", "--d-model", "8"]
TREE = (
    "# newdoc id = a\n# sent_id = 1\n1\tAlice\talice\tPROPN\tNNP\tNumber=Sing\t2\tnsubj\t_\tEntity=(e1)\n"
    "2\teats\teat\tVERB\tVBZ\t_\t0\troot\t_\t_\n3\tit\tit\tPRON\tPRP\t_\t2\tobj\t_\tEntity=(e1)\n\n"
)
TEXTS = {
    "trees.conllu": TREE + TREE.replace("newdoc id = a\n# sent_id = 1", "sent_id = 2"),
    "labels.csv": "nsubj,subject\nobj,object\n",
}
MADE_BY = (
    ["evaluate", "trees.conllu", *SMALL, "-o", "census.json"],
    ["evaluate", "trees.conllu", *SMALL, "-o", "trees"],
)
READERS = {
    "census.json": (["heads", "Alice will eat", *SMALL, "--census", "census.json"],),
    "trees.conllu": (["evaluate", "trees.conllu", *SMALL],),
    "trees/manifest.jsonl": (["evaluate", "trees.conllu", *SMALL, "-o", "trees"],),
    "trees/run.json": (["evaluate", "trees.conllu", *SMALL, "-o", "trees"],),
    "labels.csv": (["evaluate", "trees.conllu", *SMALL, "--relations", "labels.csv"],),
    "run/weights.safetensors": (["evaluate", "run", "--sentences", "20"],),
}
