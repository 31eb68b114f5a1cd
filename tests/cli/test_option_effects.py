"""Every option of every command, alone, in each of its modes: it changes what comes out, or is refused in one line.

`tests/cli/test_unused_options.py` holds that each branch reads or refuses what is typed; here an option that is read, and
then dropped on its way, shows. The options of a model, which is opened in one place, are tried in the first case of each
command alone. JSON that comes out with one of them is what its schema says.
"""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from attnctl.cli import defaults
from attnctl.cli.app import load_command
from attnctl.cli.groups import AnswerOptions, ModelOptions
from attnctl.commands import COMMANDS
from tests.conftest import Run, check_schema

TEXT = "Alice will eat pizza\n\nBob likes tea"
WORDS = {
    "TEXT": [TEXT],
    "OTHER": [TEXT.replace("pizza", "soup")],
    "MARKED": ["Alice will eat pizza >> Alice eats"],
    "PROMPT": ["The first part tells of pizza.\n\nThe second part tells of tea.\n\nWhat is told?"],
    "RANDOM": ["--model", "random", "--layers", "3", "--heads", "2", "--d-model", "8", "--tokenizer", "words"],
    "FOLDER": ["--model", "FOLDER"],  # a small checkpoint
    "T5": ["--model", "T5"],
    "PAGE": ["-o", "page.html", "--no-open"],
}


class Case(NamedTuple):
    """A command in one of its modes as it is typed, and the options that ask for what is there anyway."""

    typed: str
    same: str = ""
    stdin: str = ""

    @property
    def given(self) -> list[str]:
        return [word for part in self.typed.split() for word in WORDS.get(part, [part])]

    @property
    def output(self) -> Path:
        """Where it writes."""
        words = self.given
        return Path(words[words.index("-o") + 1] if "-o" in words else "settings.toml")


# nothing of these models is random but `random` itself; the CPU is where short texts are
# computed; rows sum to 1; two heads of random weights have W_O and see both sides; the words of a text are its tokens
SAME = "--device --no-causal --output-projection --renormalise --words"
DEMO = f"{SAME} --seed"
# its grid is linear, its numbers stand in the cells of single tokens
GRID = "--no-log --values --no-values --pool"
# the checkpoint begins with no token of its own, reads longer texts, and its dtype is what a short text is computed in
TINY = "--no-bos --truncate --device"
WORK = "--batch-size --jobs --strict"  # how the work is done, which changes no number

CASES = {
    "explain": Case("explain TEXT RANDOM", SAME),
    "explain a trace": Case("explain run.json", SAME),
    "explain weights": Case("explain w.npy", f"{SAME} --layer --head --steps"),
    "explain, JSON": Case("explain TEXT RANDOM -o trace.json", f"{SAME} --json"),
    "explain, NPZ": Case("explain TEXT RANDOM -o trace.npz", SAME),
    "explain, long": Case("explain --file long.txt RANDOM", SAME),
    "explain links": Case("explain links.json", SAME),
    "explain, --check": Case("explain TEXT RANDOM --check", f"{SAME} --query --layer --head"),
    "explain, contributions": Case("explain TEXT --steps contributions", DEMO),
    "heatmap": Case("heatmap TEXT RANDOM", f"{SAME} --pool"),
    "heatmap of a trace": Case("heatmap run.json", f"{SAME} --pool"),
    "heatmap of weights": Case("heatmap w.npy", f"{SAME} --pool --layer --head"),
    "heatmap of cells": Case("heatmap grid.json", f"{SAME} --pool"),
    "heatmap, picture": Case("heatmap TEXT RANDOM -o map.svg --layer 2 --head 0", f"{SAME} {GRID}"),
    "heatmap, page": Case("heatmap TEXT RANDOM -o map.html", f"{SAME} {GRID}"),
    "heatmap, cells": Case("heatmap TEXT RANDOM -o cells.json", f"{SAME} --pool"),
    "heatmap --run": Case("heatmap TEXT --run training -o map.svg --layer 1", f"{DEMO} --causal {GRID}"),
    "heads": Case("heads TEXT RANDOM", f"{SAME} --tokens --census"),
    "heads of a trace": Case("heads run.json", f"{SAME} --census"),
    "heads of weights": Case("heads w.npy", f"{SAME} --tokens --layer --head --top --by"),
    "heads, JSON": Case("heads TEXT RANDOM --json", f"{SAME} --census"),
    "heads, picture": Case("heads TEXT RANDOM -o heads.svg", f"{SAME} {GRID}"),
    "compare": Case("compare TEXT OTHER RANDOM", SAME),
    "compare, JSON": Case("compare TEXT OTHER RANDOM --json", SAME),
    "compare models": Case("compare demo demo-causal TEXT --layer 0", DEMO),
    "view": Case("view TEXT RANDOM PAGE", f"{SAME} --no-log"),
    "view a trace": Case("view run.json PAGE", f"{SAME} --no-log"),
    "view cells": Case("view grid.json PAGE", f"{SAME} --no-log"),
    "view two": Case("view TEXT OTHER RANDOM PAGE", f"{SAME} --no-log"),
    "view models": Case("view demo demo-causal TEXT PAGE --layer 1", f"{DEMO} --no-log"),
    "view --run": Case("view TEXT --run training PAGE", f"{DEMO} --causal --no-log"),
    "view --sources": Case("view PROMPT FOLDER --generate 2 --sources PAGE", TINY),
    "quiz": Case("quiz TEXT RANDOM --json", SAME),
    "ablate": Case("ablate TEXT --json", f"{DEMO} {WORK}"),
    "ablate --edges": Case("ablate TEXT --edges", f"{DEMO} {WORK}"),
    "sources": Case("sources PROMPT FOLDER --generate 2 --json", TINY),
    "align texts": Case("align TEXT T5 --target soup --json", "--device --words"),
    "align one text": Case("align MARKED FOLDER", "--device"),
    "leaks": Case("leaks padded.json FOLDER --json", "--device"),
    # nothing is found, so no head is the best
    "needle": Case("needle FOLDER --lengths 200 --depths 50 --json", f"{TINY} --switch-off"),
    "shell": Case("shell TEXT RANDOM", f"{SAME} --predict", stdin="explain --json\n"),
    "shell --chat": Case("shell --chat chat.json FOLDER", TINY, "explain --json\n"),
    "batch": Case("batch lines.txt RANDOM", f"{SAME} {WORK} --input"),
    "batch of a table": Case("batch table.csv --input csv RANDOM", f"{SAME} {WORK}"),
    "batch into a folder": Case(
        "batch lines.txt RANDOM -o out --format json,png", f"{SAME} {WORK} {GRID} --replace --input"
    ),
    "evaluate a corpus": Case("evaluate corpus.conllu RANDOM", f"{SAME} {WORK}"),
    "evaluate, JSON": Case("evaluate corpus.conllu RANDOM --json", f"{SAME} {WORK}"),
    "evaluate the grammar": Case("evaluate --sentences 20", DEMO),
    "evaluate a census": Case("evaluate census.json", SAME),
    "train --explain": Case("train lines.txt --explain", "--device"),
    "model": Case("model gpt2"),
    "model's card": Case("model demo"),
    "softmax": Case("softmax 1 2", "--no-scale"),
    "softmax, JSON": Case("softmax 1 2 --json"),
    "config": Case("config"),
    "docs": Case("docs lesson"),
}
VALUES = {
    "tokens": "a b c d e f g", "key_tokens": "t u v w x y z", "layer": "1", "head": "1", "query": "1", "steps": "weights", "precision": "4", "top": "1",
    "spans": "spans.csv", "chat": "chat.json", "model": "dot", "tokenizer": "chars", "embeddings": "rows.npy",
    "qkv": "rows.npy", "d_model": "12", "d_k": "3", "n_heads": "1", "n_kv_heads": "1", "n_layers": "2", "predict": "1",
    "off": "0.1", "seed": "3", "window": "2", "scale": "2", "temperature": "2", "positions": "sinusoidal",
    "rope_theta": "100", "rope_pairs": "interleaved", "dropout": "0.5", "attention": "cross", "target": "soup",
    "generate": "1", "dtype": "bfloat16", "device": "cpu", "drop": "first", "measure": "value-norm", "cmap": "cividis",
    "size": "3x3", "dpi": "50", "title": "hello", "font_size": "4", "vmin": "0.1", "vmax": "0.4", "rows": "0-2",
    "columns": "0-2", "pool": "max", "by": "first", "run": "training", "census": "census.json", "against": "soup",
    "how": "mean", "reference": "lines.txt", "edge": "eat>Alice", "questions": "2", "format": "npz", "input": "text",
    "column": "said", "id_column": "key", "max_tokens": "3", "batch_size": "4", "jobs": "1", "engine": "nowhere",
    "address": "auto", "gpus_per_worker": "1", "budget": "2", "relations": "names.csv", "least": "3", "sentences": "30",
    "write_corpus": "made.conllu", "answer": "tea", "needle": "a fact", "question": "which?",
    "expect": "that", "haystack": "lines.txt", "lengths": "100", "depths": "0", "switch_off": "0", "length": "100",
    "setting": "seed=4", "unset": "layer", "site": "site", "watch": "Alice will", "max_steps": "2", "lr": "0.1",
    "objective": "masked-word", "heads": "1.0",
}  # fmt: skip
MORE_VALUES = {"measure": ["rollout"]}
WORD = "{0}\t{1}\t{1}\t{2}\t_\t_\t{3}\t{4}\t_\t_\n"
NOTES = ("attnctl: note:", "attnctl: item")
NOT_DONE = {"needle": (1,), "batch": (3,), "evaluate": (3,)}  # needles not found, texts that are too long
SHORT = WORD.format(1, "Alice", "PROPN", 2, "nsubj:pass") + WORD.format(2, "eats", "VERB", 0, "root")
NAMES = ("Alice", "Bob", "Carol", "Dan")
LONG = SHORT + WORD.format(3, "it", "PRON", 2, "obj") + WORD.format(4, "up", "ADV", 2, "advmod")
CONLLU = "".join(f"# sent_id = {at}\n{(SHORT, LONG)[at % 2].replace('Alice', NAMES[at % 4])}\n" for at in range(48))


class Choice(NamedTuple):
    """An option as it is typed."""

    name: str
    flag: str
    value: tuple[str, ...]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, room: Path) -> Path:
    path = tmp_path_factory.mktemp("inputs")
    (path / "FOLDER").symlink_to(room / "llama")
    (path / "T5").symlink_to(room / "t5")
    rng = np.random.default_rng(0)
    weights = rng.random((7, 7))
    np.save(path / "w.npy", weights / weights.sum(-1, keepdims=True))
    np.save(path / "rows.npy", rng.normal(size=(7, 8)).astype(np.float32))
    shutil.copy(room / "padded.json", path)
    (path / "chat.json").write_text(json.dumps([{"role": "user", "content": "hi"}]))
    (path / "long.txt").write_text("\n\n".join(" ".join(f"w{(at + k) % 37}" for at in range(60)) for k in range(9)))
    (path / "lines.txt").write_text("Alice will eat pizza\nBob likes tea\n")
    (path / "table.csv").write_text("text,said,key\nAlice will eat pizza,Bob runs,a\nBob likes tea,Eve,b\n")
    (path / "spans.csv").write_text("name,start,end\nfirst,0,12\nrest,12,30\n")
    (path / "corpus.conllu").write_text(CONLLU)
    (path / "names.csv").write_text("nsubj,subject\nnsubj:pass,passive\n")
    return path


MADE = (
    "explain TEXT RANDOM -o run.json",
    "explain --file long.txt RANDOM -o links.json",
    "heatmap --file long.txt RANDOM -o grid.json",
    "evaluate corpus.conllu RANDOM -o census.json",
    "train lines.txt --max-steps 2 --d-model 8 --layers 2 -o training",
)


NO_CHOICES = {"quiet", "help_all", "no_open", "output", "file"}
OF_MODELS = {field.name for field in fields(ModelOptions)} - {field.name for field in fields(AnswerOptions)}


def choices_of(case: Case) -> list[Choice]:
    """Return every option of a case's command as it is typed, each way that it can be."""
    found = []
    first = next(other for other in CASES.values() if other.given[0] == case.given[0])
    left_out = NO_CHOICES if case == first else NO_CHOICES | OF_MODELS
    for option in load_command(case.given[0]).params:
        name = option.name or ""
        if option.param_type_name != "option" or name in left_out:
            continue
        flags = [flag for flag in (*option.opts, *option.secondary_opts) if flag.startswith("--")]
        if getattr(option, "is_flag", False):
            found += [Choice(name, flag, ()) for flag in flags if flag not in case.given]
        else:
            values = [VALUES.get(name, "1"), *MORE_VALUES.get(name, [])]
            found += [Choice(name, flags[0], (value,)) for value in values if value not in case.given]
    return found


@pytest.mark.parametrize("named", [named for named, case in CASES.items() if case.given[0] in COMMANDS])
def test_every_option_changes_something_or_is_refused(
    named: str, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[named]
    monkeypatch.chdir(place)
    monkeypatch.setattr(defaults, "config_path", lambda: Path("settings.toml"))
    if {"FOLDER", "T5", "chat.json"} & set(case.given):
        pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
        monkeypatch.setattr("attnctl.models.huggingface.network.loaded_networks", {})
    for made in map(Case, MADE):
        if made.given[0] in COMMANDS and not made.output.exists():
            assert run(*made.given).code in (0, 3), made.typed

    def written(flag: str = "", *value: str) -> object:
        """Return what comes out with this option; None if it is refused."""
        kept = list(case.given)
        if flag in kept and value:  # the last one counts
            at = kept.index(flag)
            del kept[at : at + 2]
        target = case.output
        shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)
        if case.given[0] == "config":
            target.write_text('seed = 1\nlayer = "0"\n')
        done = run(*kept, *([flag] if flag else []), *value, stdin=case.stdin.encode())
        complaints = [line for line in done.err.splitlines() if not line.startswith(NOTES)]
        if done.code in (1, 2, 3 if case.stdin else 2) and done.out == "" and len(complaints) == 1:
            return None
        assert done.code in (0, *NOT_DONE.get(case.given[0], ())), (flag, value, done)
        files = sorted(target.rglob("*")) if target.is_dir() else [target] * target.exists()
        texts = [done.out, *(file.read_text() for file in files if file.suffix in (".json", ".jsonl"))]
        for line in itertools.chain.from_iterable(map(str.splitlines, texts)):
            if line.startswith('{"schema"'):
                check_schema(json.loads(line))
        return done.out, {file: file.read_bytes() for file in files if file.suffix != ".jsonl" and file.is_file()}

    plain = written()
    assert plain is not None
    same = {one.flag for one in choices_of(case) if written(one.flag, *one.value) == plain}
    assert same <= set(case.same.split()), sorted(same - set(case.same.split()))


def test_every_option_has_a_value() -> None:
    if not {case.given[0] for case in CASES.values()} <= set(COMMANDS):
        pytest.skip("a command is deleted, whose options may be its alone")
    assert not set(VALUES) - {option.name for name in COMMANDS for option in load_command(name).params}
