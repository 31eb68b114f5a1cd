"""Every option of the commands that measure, ask and count: it changes what is written, or is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnctl.cli.command import Command
from tests.cli.test_every_option import MODEL, RESTATED, VALUES

Run = Callable[..., Any]

RANDOM = [part for pair in MODEL.items() for part in pair]
TEXT = "Alice will eat pizza"
PROMPT = "The first part tells of pizza.\n\nThe second part tells of tea.\n\nWhat is told?"
CONLLU = "".join(
    f"# sent_id = {at}\n# text = {name} eats\n1\t{name}\t{name}\tPROPN\t_\t_\t2\tnsubj\t_\t_\n2\teats\teat\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    for at, name in enumerate(("Alice", "Bob", "Carol", "Dan") * 8)
)
# a case → the command and what it is given; FOLDER is a small checkpoint
CASES: dict[str, list[str]] = {
    "ablate": ["ablate", TEXT, "--json"],
    "ablate, edges": ["ablate", TEXT, "--edges"],
    "quiz": ["quiz", TEXT, *RANDOM, "--json"],
    "batch": ["batch", "lines.txt", *RANDOM],
    "census": ["evaluate", "corpus.conllu", *RANDOM, "--json"],
    "row": ["explain", "--file", "long.txt", *RANDOM],
    "contributions": ["explain", TEXT, "--steps", "contributions"],
    "sources": ["sources", PROMPT, "--model", "FOLDER", "--generate", "3", "--json"],
    "needle": ["needle", "--model", "FOLDER", "--lengths", "200", "--depths", "50", "--json"],
}
MORE = {
    "against": "soup", "how": "mean", "reference": "lines.txt", "edge": "eat>Alice", "spans": "spans.csv", "count": "2",
    "formats": "npz", "input_form": "jsonl", "column": "said", "id_column": "key", "max_tokens": "1", "batch_size": "4",
    "jobs": "1", "engine": "nowhere", "address": "auto", "gpus_per_worker": "1", "budget": "2", "relations": "names.csv",
    "least": "3", "sentences": "10", "write_corpus": "made.conllu", "answer": "tea", "needle": "a fact",
    "question": "which?", "expect": "that", "haystack": "lines.txt", "lengths": "100", "depths": "0", "switch_off": "0",
    "target": "soup", "query": "1",
}  # fmt: skip


# what is asked for is what there is anyway, of one case
DEMO = {"--seed", "--no-causal"}  # nothing of it is random, and it sees both sides
TINY = {"--no-bos", "--truncate"}  # the checkpoint begins with no token of its own, and the text is short
SAME = {"ablate": DEMO, "ablate, edges": DEMO, "contributions": DEMO, "sources": TINY}
SAME["batch"] = {"--strict"}  # no text fails
SAME["needle"] = TINY | {"--switch-off"}  # nothing is found, so no head is the best
# how the work is done, which changes no number
WORK = {"--batch-size", "--jobs", "--gpus-per-worker"}
NOT_ANSWERED = {"needle": 1}  # its random weights find no needle, and the exit code says so


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs")
    (path / "lines.txt").write_text("Alice will eat pizza\nBob likes tea\n")
    (path / "long.txt").write_text(" ".join(f"w{at % 37}" for at in range(540)))
    (path / "corpus.conllu").write_text(CONLLU)
    (path / "spans.csv").write_text("name,start,end\nall,0,12\n")
    (path / "names.csv").write_text("nsubj,subject\n")
    return path


@pytest.mark.parametrize("case", CASES)
def test_every_option_is_honoured_or_refused(case: str, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    if "FOLDER" in CASES[case]:
        pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
        from tests.models.huggingface import folders

        if not Path("FOLDER").exists():
            folders.write(Path("FOLDER"), "llama", max_position_embeddings=256)
    given = CASES[case]
    command = Command(given[0])
    numbers = {name for name, option in command.options.items() if option.range}

    def written(*more: str) -> tuple[int, str]:
        kept = list(given)
        if more and more[0] in kept:  # said twice, the last one counts: it is said once
            at = kept.index(more[0])
            del kept[at : at + 2]
        done = run(*kept, *more)
        if done.code not in (0, NOT_ANSWERED.get(case)):
            assert done.code in (1, 2, 3) and done.err.startswith("attnctl: ") and "Traceback" not in done.err, (
                more,
                done,
            )
        return done.code, done.out

    plain = written()
    assert plain[0] in (0, NOT_ANSWERED.get(case))
    dropped = set()
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.name in ("help", "quiet", "no_pager", "output", "file"):
            continue
        name = parameter.name or ""
        value = [] if parameter.is_flag else [MORE.get(name, VALUES.get(name, "1" if name in numbers else "x"))]
        for option in [next(name for name in parameter.opts if name.startswith("--")), *parameter.secondary_opts]:
            if not (parameter.is_flag and option in given) and written(option, *value) == plain:
                dropped.add(option)
    assert dropped - SAME.get(case, set()) <= set(RESTATED) | set(WORK)
