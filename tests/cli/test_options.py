"""No option is ignored: in each branch of each command every option changes what comes out, or is refused in one line.

A branch is a command line that works. Each other option of the command is added to it in turn, and what comes out must
differ from before: so an option that is read, and then dropped on its way, shows. `same` names the options that ask for what
is there anyway, which are added together. The options of a model, which is opened in one place, are tried in the first branch
of each command alone; those of a picture where a picture is drawn, and by `heatmap`: elsewhere they are used or refused as a
whole, and two stand for all. JSON that comes out with an option is what its schema says. A run of the whole suite tries a
third of the options, another third in each branch; where this file is named, all are tried.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np
import pytest
import typer

from attnctl.cli.app import load_command
from attnctl.cli.command_form import refuse_unused
from attnctl.cli.groups import AnswerOptions, CheckpointOptions, ModelOptions
from attnctl.errors import UsageError
from attnctl.formats.pictures import Look
from attnctl.registry import COMMANDS
from attnctl.render.figure.saving import VECTOR
from attnctl.source import record_trace
from attnctl.trace import FIGURE_TYPES, FigureOptions, Trace
from tests.conftest import Run, check_schema


class Choice(NamedTuple):
    """An option as it is typed, and every name that it has."""

    name: str
    flag: str
    value: tuple[str, ...]
    flags: frozenset[str]


def choices_of(command: str, values: Mapping[str, str | list[str]], left_out: set[str]) -> Iterator[Choice]:
    """Yield every option of a command as it is typed, each way that it can be."""
    for option in load_command(command).params:
        name, names = option.name or "", frozenset((*option.opts, *option.secondary_opts))
        flags = [flag for flag in (*option.opts, *option.secondary_opts) if flag.startswith("--")]
        if option.param_type_name != "option" or name in left_out:
            continue
        if getattr(option, "is_flag", False):
            yield from (Choice(name, flag, (), names) for flag in flags)
        else:
            listed = values.get(name, "1")
            for value in [listed] if isinstance(listed, str) else listed:
                yield Choice(name, flags[0], (value,), names)


def complaints(err: str) -> list[str]:
    return [line for line in err.splitlines() if not line.startswith(NOTES)]


TEXT = "Alice will eat pizza\n\nBob likes tea"
WORDS = {
    "TEXT": [TEXT],
    "OTHER": [TEXT.replace("pizza", "soup")],
    "MARKED": ["Alice will eat pizza >> Alice eats"],
    "PROMPT": ["The first part tells of pizza.\n\nThe second part tells of tea.\n\nWhat is told?"],
    "RANDOM": ["--model", "random", "--layers", "3", "--heads", "2", "--d-model", "8"],
    "FOLDER": ["--model", "FOLDER"],  # a small checkpoint
    "T5": ["--model", "T5"],
    "WHISPER": ["--model", "WHISPER"],
    "VISION": ["--model", "VISION"],  # a small checkpoint that reads photographs
    "PAGE": ["-o", "page.html", "--no-open"],
}


OF_OTHERS = {
    "--format effects": "ablate",
    "--format pharaoh": "align",
    "--format sources": "sources",
    "--effects": "ablate",
}


def can_run(line: str) -> bool:
    """Return whether the command of a line exists, and the command that gives it a format or a page."""
    return line.split()[0] in COMMANDS and all(name in COMMANDS for flag, name in OF_OTHERS.items() if flag in line)


class Branch(NamedTuple):
    """A command line that works, and the options that ask for what is there anyway."""

    typed: str
    same: str = ""
    stdin: str = ""
    terminal: bool = False  # what comes out goes to a terminal

    @property
    def given(self) -> list[str]:
        return [word for part in self.typed.split() for word in WORDS.get(part, [part])]

    def has(self, choice: Choice) -> bool:
        """Return whether the option stands in the line, with the same value."""
        words, typed = self.given, [choice.flag, *choice.value]
        ends = range(len(words) - len(typed) + 1)
        return any(words[at : at + len(typed)] == typed for at in ends) or "=".join(typed) in words

    @property
    def output(self) -> Path:
        """Where it writes."""
        words = self.given
        return Path(words[words.index("-o") + 1] if "-o" in words else "settings.toml")


# nothing of these models is random but `random` itself; the CPU is where short texts are
# computed; rows sum to 1; two heads of random weights have W_O and see both sides; the words of a text are its tokens
SAME = "--device --no-bos --no-causal --output-projection --renormalise --words"
DEMO = f"{SAME} --seed --positions"  # its positions are rotary
# its grid is linear, its numbers stand in the cells of single tokens
GRID = "--no-log --values --no-values --pool --colorbar"
# the checkpoint begins with no token of its own, reads longer texts, and its dtype is what a short text is computed in
TINY = "--no-bos --truncate --device"
WORK = "--batch-size --jobs --strict"  # how the work is done, which changes no number

BRANCHES = {
    "explain": Branch("explain TEXT RANDOM", SAME),
    "explain a trace": Branch("explain run.json", SAME),
    "explain weights": Branch("explain w.npy", f"{SAME} --layer --head --steps"),
    "explain, JSON": Branch("explain TEXT RANDOM -o trace.json", f"{SAME} --json"),
    "explain, NPZ": Branch("explain TEXT RANDOM -o trace.npz", SAME),
    "explain, picture": Branch("explain TEXT RANDOM -o steps.svg", SAME),
    "explain, steps": Branch("explain TEXT RANDOM --steps scores,weights", SAME),
    "explain, the strongest": Branch("explain TEXT RANDOM --top 2", SAME),
    # without a head it says that none stands out, and no number
    "explain a conversation": Branch("explain --chat chat.json FOLDER --head 1", TINY),
    "explain, long": Branch("explain --file long.txt RANDOM", SAME),
    "explain links": Branch("explain links.json", SAME),
    "check": Branch("check TEXT RANDOM", f"{SAME} --query"),
    "contributions": Branch("contributions TEXT", DEMO),
    "heatmap": Branch("heatmap TEXT RANDOM", f"{SAME} --pool"),
    "heatmap of a trace": Branch("heatmap run.json", f"{SAME} --pool"),
    "heatmap of weights": Branch("heatmap w.npy", f"{SAME} --pool --layer --head"),
    "heatmap of cells": Branch("heatmap grid.json", f"{SAME} --pool"),
    "heatmap, picture": Branch("heatmap TEXT RANDOM -o map.svg --layer 2 --head 0 --size=3x2", f"{SAME} {GRID}"),
    "heatmap, cells": Branch("heatmap TEXT RANDOM -o cells.json", f"{SAME} --pool"),
    "heatmap in a terminal": Branch("heatmap TEXT RANDOM", f"{SAME} {GRID}", terminal=True),
    "heatmap of the telling head": Branch("heatmap TEXT RANDOM --head telling -o map.svg --size=3x2", f"{SAME} {GRID}"),
    "heatmap, table": Branch("heatmap TEXT RANDOM -o weights.csv", f"{SAME} --pool"),
    # layer 1 is the last one, which is shown; fewer dots than a picture of vectors has at least
    "heatmap of a photograph": Branch("heatmap photo.png VISION", f"{SAME} --layer"),
    "heatmap of a photograph in a terminal": Branch("heatmap photo.png VISION", f"{SAME} --layer", terminal=True),
    "heatmap of a photograph, picture": Branch(
        "heatmap photo.png VISION -o map.svg --head=0", f"{SAME} {GRID} --layer --dpi"
    ),
    "film, moving": Branch(
        "film training TEXT -o map.gif --layer 1 --head=0 --size=3x2 --dpi=30", f"{DEMO} --causal {GRID}"
    ),
    "film, page": Branch("film training TEXT -o page.html --layer 1", f"{DEMO} --causal --no-log"),
    "film": Branch("film training TEXT -o map.svg --layer 1 --head=0 --size=4x2", f"{DEMO} --causal {GRID}"),
    "heads": Branch("heads TEXT RANDOM", f"{SAME} --tokens --census"),
    "heads of a trace": Branch("heads run.json", f"{SAME} --census"),
    "heads of weights": Branch("heads w.npy", f"{SAME} --tokens --layer --head --top --by"),
    "heads, JSON": Branch("heads TEXT RANDOM --json", f"{SAME} --census"),
    "heads, CSV": Branch("heads TEXT RANDOM --csv", f"{SAME} --census"),
    "heads, page": Branch("heads TEXT RANDOM -o heads.html", f"{SAME} --census"),
    "heads --probe": Branch("heads --probe RANDOM", f"{SAME} --census"),
    "heads, picture": Branch("heads TEXT RANDOM -o heads.svg --size=3x2", f"{SAME} {GRID}"),
    "compare": Branch("compare TEXT OTHER RANDOM", SAME),
    "compare, JSON": Branch("compare TEXT OTHER RANDOM --json", SAME),
    "compare, picture": Branch(
        "compare TEXT OTHER RANDOM --layer 0 --head 0 -o compared.svg --size=4x3",
        f"{SAME} --values --no-values --colorbar",
    ),
    "compare traces": Branch("compare run.json w.npy", SAME),
    "compare a trace with a text": Branch("compare run.json TEXT RANDOM", SAME),
    "compare models": Branch("compare demo demo-causal TEXT --layer 0", f"{DEMO} --device-b"),
    "drift": Branch("drift demo demo-causal TEXT", f"{DEMO} --device-b"),
    "drift, picture": Branch(
        "drift demo demo-causal TEXT -o drift.svg --size=3x2", f"{DEMO} --device-b --values --colorbar"
    ),
    "view": Branch("view TEXT RANDOM PAGE", f"{SAME} --no-log"),
    "view a trace": Branch("view run.json PAGE", f"{SAME} --no-log"),
    "view cells": Branch("view grid.json PAGE", f"{SAME} --no-log"),
    "view a long text": Branch("view --file long.txt RANDOM PAGE", f"{SAME} --no-log"),
    "view --effects": Branch("view TEXT --effects PAGE", f"{DEMO} --no-log"),
    "view two traces": Branch("view run.json w.npy PAGE", f"{SAME} --no-log"),
    "view two": Branch("view TEXT OTHER RANDOM PAGE", f"{SAME} --no-log"),
    "view models": Branch("view demo demo-causal TEXT PAGE --layer 1", f"{DEMO} --no-log"),
    "quiz": Branch("quiz TEXT RANDOM --json", SAME),
    "ablate": Branch("ablate TEXT --json", f"{DEMO} {WORK}"),
    "ablate, picture": Branch("ablate TEXT -o effects.svg", f"{DEMO} {WORK}"),
    "ablate to a mean": Branch("ablate TEXT --how mean --reference lines.txt", f"{DEMO} {WORK}"),
    "ablate --edge": Branch("ablate TEXT --edge 1>0 --json", f"{DEMO} {WORK} --top"),
    "ablate --spans": Branch("ablate TEXT --spans lines", f"{DEMO} {WORK}"),
    "ablate --approximate": Branch("ablate TEXT FOLDER --approximate", f"{TINY} {WORK}"),
    "ablate a conversation": Branch("ablate --chat chat.json FOLDER", f"{TINY} {WORK}"),
    "ablate --edges": Branch("ablate TEXT --edges", f"{DEMO} {WORK}"),
    "sources": Branch("sources PROMPT FOLDER --generate 2 --json", TINY),
    "sources, page": Branch("sources PROMPT FOLDER --generate 2 -o sources.html", TINY),
    # what is removed changes too little to be drawn
    "sources, picture": Branch("sources PROMPT FOLDER --generate 2 -o sources.svg", f"{TINY} --remove"),
    "sources of an answer": Branch("sources PROMPT FOLDER --answer pizza", TINY),
    # 1.0 is the head that is chosen; subtitles round the times; where links are written, their score is a note
    "align speech": Branch("align tone.wav WHISPER", "--device --heads"),
    "align speech, subtitles": Branch("align tone.wav WHISPER -o words.srt", "--device --heads --dtype"),
    "align speech, CTM": Branch("align tone.wav WHISPER -o words.ctm", "--device --heads --dtype"),
    "align texts, links": Branch(
        "align TEXT T5 --target soup -o links.pharaoh", "--device --no-bos --gold --dtype --heads"
    ),
    "align, a score": Branch("align links --gold gold"),
    "align texts, picture": Branch("align TEXT T5 --target soup -o links.svg", "--device --no-bos --words --gold"),
    "align texts": Branch("align TEXT T5 --target soup --json", "--device --no-bos --words"),
    "align one text": Branch("align MARKED FOLDER", "--device --no-bos --gold"),
    "leaks": Branch("leaks padded.json FOLDER --json", "--device"),
    "leaks, picture": Branch("leaks packed.json FOLDER -o leaks.svg", "--device"),
    "leaks of texts": Branch("leaks Alice Bob --pack FOLDER", "--device"),
    # a picture of what is seen, which no precision changes
    "mask, picture": Branch("mask TEXT FOLDER -o mask.svg", "--device --dtype"),
    "mask of a batch": Branch("mask packed.json FOLDER --json", "--device"),
    "mask": Branch("mask TEXT FOLDER --json", "--device"),
    # nothing is found, so no head is the best
    "needle": Branch("needle FOLDER --lengths 200 --depths 50 --json", f"{TINY} --switch-off"),
    "needle, picture": Branch("needle FOLDER --lengths 200 --depths 50 -o needles.svg", f"{TINY} --switch-off --seed"),
    "shell": Branch("shell TEXT RANDOM", f"{SAME} --predict", stdin="explain --json\n"),
    "shell --chat": Branch("shell --chat chat.json FOLDER", TINY, "explain --json\n"),
    "batch": Branch("batch lines.txt RANDOM", f"{SAME} {WORK} --input"),
    "batch of a table": Branch("batch table.csv --input csv RANDOM", f"{SAME} {WORK}"),
    "batch into a folder": Branch(
        "batch lines.txt RANDOM -o out --format json,png", f"{SAME} {WORK} {GRID} --replace --input"
    ),
    "batch, steps": Branch("batch lines.txt RANDOM --steps weights", f"{SAME} {WORK} --input"),
    "batch, a table": Branch("batch lines.txt RANDOM -o out --format parquet", f"{SAME} {WORK} --replace --input"),
    # --head is that of the headline
    "batch, headlines": Branch("batch lines.txt RANDOM --format csv", f"{SAME} {WORK} --input --head"),
    "batch, weights": Branch("batch lines.txt RANDOM --format csv --steps weights", f"{SAME} {WORK} --input"),
    "batch, statistics": Branch(
        "batch lines.txt RANDOM -o out --format statistics", f"{SAME} {WORK} --replace --input"
    ),
    "batch, effects": Branch("batch lines.txt -o out --format effects", f"{DEMO} {WORK} --replace --input"),
    "batch, sources": Branch(
        "batch lines.txt FOLDER -o out --format sources --generate 2", f"{TINY} {WORK} --replace --input"
    ),
    # two words have few links: another head may have the same
    "batch, links": Branch(
        "batch pairs.txt T5 -o out --format pharaoh", f"{TINY} {WORK} --replace --input --head --layer --predict"
    ),
    # a conversation has no columns, a checkpoint no matrices that a trace keeps
    "batch of conversations": Branch("batch --chat chats.jsonl FOLDER", f"{TINY} {WORK} --column --id-column"),
    "evaluate a census, picture": Branch("evaluate census.json -o census.svg", SAME),
    # dot sees both sides, as the demo does, so the sentences are the same
    "evaluate, the bundled corpus": Branch("evaluate -o made.conllu", "--model"),
    "evaluate a corpus": Branch("evaluate corpus.conllu RANDOM", f"{SAME} {WORK}"),
    "evaluate, JSON": Branch("evaluate corpus.conllu RANDOM --json", f"{SAME} {WORK}"),
    "evaluate the grammar": Branch("evaluate --sentences 20", DEMO),
    "evaluate a census": Branch("evaluate census.json", SAME),
    "train": Branch("train lines.txt -o learned --max-steps 2 --d-model 8 --layers 2", "--device"),
    "train --explain": Branch("train lines.txt --explain", "--device"),
    "model": Branch("model gpt2"),
    "model's card": Branch("model demo"),
    "softmax": Branch("softmax 5 7"),
    "softmax, JSON": Branch("softmax 5 7 --json"),
    "config": Branch("config"),
    "config --set": Branch("config --set seed=3"),
    # what is set is unset again
    "config --unset": Branch("config --unset seed", "--set"),
    "schema": Branch("schema trace"),
    "docs": Branch("docs lesson"),
}
VALUES = {
    "tokens": "a b c d e f g", "key_tokens": "t u v w x y z", "layer": "1", "head": "1", "query": "1", "steps": "weights", "precision": "4", "top": "1",
    "spans": "spans.csv", "chat": "chat.json", "model": "dot", "tokenizer": "chars", "embeddings": "rows.npy",
    "qkv": "rows.npy", "d_model": "12", "d_k": "3", "n_heads": "1", "n_kv_heads": "1", "n_layers": "2", "predict": "1",
    "off": "0.1", "seed": "3", "window": "2", "offset": "1", "scale": "2", "temperature": "2", "positions": ["sinusoidal", "rope"],
    "rope_theta": "100", "dropout": "0.5", "attention": "cross", "target": "soup",
    "generate": "1", "dtype": "bfloat16", "device": "cpu", "drop": "first", "measure": "value-norm", "cmap": "cividis",
    "size": "3x3", "dpi": "50", "title": "hello", "font_size": "4", "vmin": "0.1", "vmax": "0.4", "rows": "0-2",
    "columns": "0-2", "pool": "max", "by": "first", "census": "census.json", "against": "soup",
    "how": "mean", "reference": "lines.txt", "edge": "eat>Alice", "questions": "2", "format": "npz", "input": "text",
    "column": "said", "id_column": "key", "max_tokens": "3", "batch_size": "4", "jobs": "1", "ray": "nowhere",
    "gpus_per_worker": "1", "budget": "2", "relations": "names.csv", "least": "3", "sentences": "21",
    "answer": "tea", "needle": "a fact", "question": "which?",
    "expect": "that", "haystack": "lines.txt", "lengths": "100", "depths": "0", "switch_off": "0", "length": "100",
    "gold": "gold-one", "gold_from": "1", "setting": "seed=4", "unset": "layer", "site": "site", "watch": "Alice will", "max_steps": "2", "lr": "0.1",
    "objective": "masked-word", "heads": "1.0", "texts": "lines.txt", "dtype_b": "bfloat16", "device_b": "cpu",
    "kernel_b": "eager",
}  # fmt: skip
WORD = "{0}\t{1}\t{1}\t{2}\t_\t_\t{3}\t{4}\t_\t_\n"
NOTES = ("attnctl: note:", "attnctl: item")
NOT_DONE = {
    "needle": (1,),
    "batch": (3,),
    "evaluate": (3,),
    "leaks": (4,),
    "mask": (4,),
}  # nothing found, too long, a leak
SHORT = WORD.format(1, "Alice", "PROPN", 2, "nsubj:pass") + WORD.format(2, "eats", "VERB", 0, "root")
NAMES = ("Alice", "Bob", "Carol", "Dan")
LONG = SHORT + WORD.format(3, "it", "PRON", 2, "obj") + WORD.format(4, "up", "ADV", 2, "advmod")
CONLLU = "".join(f"# sent_id = {at}\n{(SHORT, LONG)[at % 2].replace('Alice', NAMES[at % 4])}\n" for at in range(48))


# what the room of the tests holds, under the names that a branch has for it
OF_ROOM = {
    "FOLDER": "llama", "T5": "t5", "WHISPER": "whisper", "tone.wav": "tone.wav", "packed.json": "packed.json",
    "padded.json": "padded.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, room: Path) -> Path:
    path = tmp_path_factory.mktemp("inputs")
    for name, stored in OF_ROOM.items():
        (path / name).symlink_to(room / stored)
    rng = np.random.default_rng(0)
    weights = rng.random((7, 7))
    np.save(path / "w.npy", weights / weights.sum(-1, keepdims=True))
    np.save(path / "rows.npy", rng.normal(size=(7, 8)).astype(np.float32))
    (path / "chat.json").write_text(json.dumps([{"role": "user", "content": "hi"}]))
    (path / "long.txt").write_text("\n\n".join(" ".join(f"w{(at + k) % 37}" for at in range(24)) for k in range(4)))
    (path / "lines.txt").write_text("Alice will eat pizza\nBob likes tea\n")
    (path / "table.csv").write_text("text,said,key\nAlice will eat pizza,Bob runs,a\nBob likes tea,Eve,b\n")
    (path / "spans.csv").write_text("name,start,end\nfirst,0,12\nrest,12,30\n")
    (path / "corpus.conllu").write_text(CONLLU)
    (path / "names.csv").write_text("nsubj,subject\nnsubj:pass,passive\n")
    (path / "pairs.txt").write_text("Alice will eat pizza ||| Alice eats pizza\n")
    (path / "links").write_text("1-1 2-2\n0-0\n")
    (path / "gold").write_text("0-0 1-1\n1p1\n")
    (path / "gold-one").write_text("1-1 0p0\n")
    (path / "chats.jsonl").write_text('[{"role": "user", "content": "hi"}]\n')
    return path


def write_vision_model(place: Path) -> None:
    """Write a small checkpoint that reads photographs, and a photograph."""
    from PIL import Image

    from tests.models.huggingface.test_photographs import saved

    saved(place / "VISION", "Dinov2")
    Image.linear_gradient("L").convert("RGB").resize((32, 24)).save(place / "photo.png")


MADE = (
    "explain TEXT RANDOM -o run.json",
    "explain --file long.txt RANDOM -o links.json",
    "heatmap --file long.txt RANDOM -o grid.json",
    "evaluate corpus.conllu RANDOM -o census.json",
    "train lines.txt --max-steps 2 --d-model 8 --layers 2 -o training",
)


NO_CHOICES = {"quiet", "help_all", "no_open", "output", "file"}
OF_MODELS = {field.name for field in fields(ModelOptions)} - {field.name for field in fields(AnswerOptions)}
OF_PICTURES = {field.name for field in fields(Look)} - {"title", "cmap"}


def draws(named: str) -> bool:
    """Whether a branch may use single options of a picture, and no other draws the same picture."""
    drawn = named.startswith("heatmap") or "picture" in named or "film" in named
    return drawn and named != "heatmap of the telling head"


def first_branch(command: str) -> Branch:
    return next(branch for branch in BRANCHES.values() if branch.given[0] == command)


@pytest.mark.parametrize("named", [named for named, branch in BRANCHES.items() if can_run(branch.typed)])
def test_every_option_changes_something_or_is_refused(
    named: str, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch, takes: Callable[[str], bool]
) -> None:
    branch = BRANCHES[named]
    monkeypatch.chdir(place)
    monkeypatch.setenv("ATTNCTL_CONFIG", "settings.toml")
    monkeypatch.setattr("attnctl.render.figure.saving.VECTOR_DPI", 30)  # of cells alone: nobody prints these pictures
    monkeypatch.setitem(VECTOR, "svg.fonttype", "none")  # letters as letters: their outlines take half of the time
    for limit in ("sources.LONG", "zoom.LONG"):
        monkeypatch.setattr(f"attnctl.source.{limit}", 64)  # long.txt has 96 tokens, and goes the way of a long text
    monkeypatch.setattr("attnctl.source.zoom.SIZE", 32)
    if branch.terminal:
        monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda console: not console.stderr))
    if {"FOLDER", "T5", "WHISPER", "VISION", "chat.json"} & set(branch.given):
        pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
        monkeypatch.setattr("attnctl.models.huggingface.network.loaded_networks", {})
    if "VISION" in branch.given and not (place / "VISION").exists():
        write_vision_model(place)
    for made in map(Branch, MADE):
        if made.given[0] in COMMANDS and not made.output.exists():
            assert run(*made.given).code in (0, 3), made.typed

    refusals: list[str] = []
    checked: list[bytes] = []  # weights that `check` recomputes: two rounding errors may agree to the digits shown

    def recorded(*arguments: Any, **options: Any) -> Trace:
        trace = record_trace(*arguments, **options)
        checked.extend(layer.weights.tobytes() for layer in trace.layers if layer.weights is not None)
        return trace

    monkeypatch.setattr("attnctl.models.check.record_trace", recorded)

    def written(*options: Choice) -> object:
        """Return what comes out with these options; None if they are refused."""
        kept = list(branch.given)
        for option in options:
            if option.flag in kept and option.value:  # the last one counts
                at = kept.index(option.flag)
                del kept[at : at + 2]
        target = branch.output
        shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)
        if branch.given[0] == "config":
            target.write_text('seed = 1\nlayer = "0"\n')
        checked.clear()
        typed = [word for option in options for word in (option.flag, *option.value)]
        done = run(*kept, *typed, stdin=branch.stdin.encode())
        if done.code in (1, 2, 3 if branch.stdin else 2) and done.out == "" and len(complaints(done.err)) == 1:
            refusals.append(done.err)
            return None
        assert done.code in (0, *NOT_DONE.get(branch.given[0], ())), (typed, done)
        files = sorted(target.rglob("*")) if target.is_dir() else [target] * target.exists()
        texts = [done.out, *(file.read_text() for file in files if file.suffix in (".json", ".jsonl"))]
        for line in itertools.chain.from_iterable(map(str.splitlines, texts)):
            if line.startswith('{"schema"'):
                check_schema(json.loads(line))
        kept_files = {file: file.read_bytes() for file in files if file.suffix != ".jsonl" and file.is_file()}
        return done.out, kept_files, tuple(checked)

    plain = written()
    assert plain is not None, refusals
    left_out = NO_CHOICES if branch == first_branch(branch.given[0]) else NO_CHOICES | OF_MODELS
    left_out = left_out if draws(named) else left_out | OF_PICTURES
    listed = choices_of(branch.given[0], VALUES | {"measure": ["value-norm", "rollout"]}, left_out)
    choices = [choice for choice in listed if not branch.has(choice)]
    same = set(branch.same.split())
    tried = [choice for choice in choices if choice.flag not in same and takes(f"{named} {choice.flag} {choice.value}")]
    assert not [choice.flag for choice in tried if written(choice) == plain]
    together = [choice for choice in choices if choice.flag in same]  # any of them may be refused, all others work
    while together and written(*together) is None:
        blamed = set(re.findall(r"--[\w-]+", refusals[-1]))
        refused = next((choice for choice in together if choice.flags & blamed), together[0])
        together.remove(refused)


def test_each_command_has_a_branch() -> None:
    assert {branch.given[0] for branch in BRANCHES.values()} >= {
        name for name, listed in COMMANDS.items() if listed.module
    }


def test_an_option_of_a_picture_is_one_of_python() -> None:
    chosen = {"layer", "head", "drop", "renormalise", "picture", "query"}  # what is drawn, and not how it looks
    names = {field.name for field in fields(Look)}
    assert set(get_type_hints(FigureOptions)) - chosen == set(FIGURE_TYPES) - chosen == names
    assert {option.name for option in load_command("heatmap").params} >= names


def test_every_option_has_a_value() -> None:
    if not {branch.given[0] for branch in BRANCHES.values()} <= set(COMMANDS):
        pytest.skip("a command is deleted, whose options may be its alone")
    assert not set(VALUES) - {option.name for name in COMMANDS for option in load_command(name).params}


def test_what_is_typed_and_unused_is_refused() -> None:
    """The enum of click never equals that of Typer: a comparison with it refused nothing."""
    app = typer.Typer()

    @app.command()
    def show(
        context: typer.Context,
        precision: int | None = None,
        device: Annotated[str | None, typer.Option("--device")] = None,
    ) -> None:
        refuse_unused(context, "precision", CheckpointOptions, because="the output is JSON")

    command = typer.main.get_command(app)
    for name in ("model", "dtype"):  # the group has them, and so must the command
        command.params.append(typer.core.TyperOption(param_decls=[name, f"--{name}"], expose_value=False))
    with pytest.raises(UsageError, match="^precision has no effect here: the output is JSON$"):
        command(["--precision", "2"], standalone_mode=False)
    with pytest.raises(UsageError, match="^dtype has no effect here: the output is JSON$"):
        command(["--dtype", "float16"], standalone_mode=False)
    command([], standalone_mode=False)


def test_a_default_of_the_users_own_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command()
    def show(context: typer.Context, device: Annotated[str | None, typer.Option("--device")] = None) -> None:
        refuse_unused(context, "device", because="nothing is computed")

    monkeypatch.setenv("ATTNCTL_DEVICE", "cpu")
    typer.main.get_command(app)([], standalone_mode=False)
