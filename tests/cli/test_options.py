"""No option is ignored: in each branch of each command every option changes what comes out, or is read, or is refused in one line.

A branch is a command line that works. In the `CASES` each other option of the command is added in turn, and what comes out
must differ from before: so an option that is read, and then dropped on its way, shows. `same` names those that ask for what is
there anyway: they must be read. The options of a model, which is opened in one place, are tried in the first case of each
command alone. JSON that comes out with an option is what its schema says.

Of the other branches it is enough that the option is read. What the command reads as it is, it also reads when that is typed,
since nothing before that can depend on the value. An option of a group is read when the command reads its field; the
parameter of a command is read when its function loads the variable.
"""

from __future__ import annotations

import dis
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
import typer

from attnctl.cli import command as cli_command
from attnctl.cli import defaults
from attnctl.cli.app import load_command
from attnctl.cli.command import refuse_unused
from attnctl.cli.groups import AnswerOptions, CheckpointOptions, ModelOptions
from attnctl.errors import UsageError
from attnctl.registry import COMMANDS
from tests.conftest import Run, check_schema


class Reads:
    """The options that a command has read."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def group(self, kind: Callable[..., object], values: Mapping[str, object]) -> object:
        """Return the group of options, whose fields tell when they are read one by one."""
        names = self.names

        class Recorded(kind):  # type: ignore[misc, valid-type]
            def __getattribute__(self, name: str) -> object:
                unpacked = sys._getframe(1).f_globals.get("__name__") in ("dataclasses", "copy")
                if name in values and not unpacked:
                    names.add(name)
                return super().__getattribute__(name)

        return Recorded(**values)

    @contextmanager
    def of_function(self, function: Callable[..., object]) -> Iterator[None]:
        """Within this, record each parameter that the function loads."""
        code = function.__code__  # type: ignore[attr-defined]
        loads = {
            one.offset: one.argval if isinstance(one.argval, tuple) else (one.argval,)  # Python 3.13 loads two at once
            for one in dis.get_instructions(code)
            if one.opname.startswith(("LOAD_FAST", "LOAD_DEREF"))
        }

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_lasti in loads:
                self.names.update(loads[frame.f_lasti])
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


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


def function_of(command: str) -> Callable[..., object]:
    return getattr(import_module(COMMANDS[command].module), f"{command}_command")  # type: ignore[no-any-return]


# --- what comes out differs ---------------------------------------------------------------------------------------

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


OF_OTHERS = {"--format effects": "ablate", "--format sources": "sources", "--effects": "ablate"}


def can_run(line: str) -> bool:
    """Return whether the command of a line exists, and the command that gives it a format or a page."""
    return line.split()[0] in COMMANDS and all(name in COMMANDS for flag, name in OF_OTHERS.items() if flag in line)


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
    "check": Case("check TEXT RANDOM", f"{SAME} --query --layer --head"),
    "contributions": Case("contributions TEXT", DEMO),
    "heatmap": Case("heatmap TEXT RANDOM", f"{SAME} --pool"),
    "heatmap of a trace": Case("heatmap run.json", f"{SAME} --pool"),
    "heatmap of weights": Case("heatmap w.npy", f"{SAME} --pool --layer --head"),
    "heatmap of cells": Case("heatmap grid.json", f"{SAME} --pool"),
    "heatmap, picture": Case("heatmap TEXT RANDOM -o map.svg --layer 2 --head 0", f"{SAME} {GRID}"),
    "heatmap, cells": Case("heatmap TEXT RANDOM -o cells.json", f"{SAME} --pool"),
    "film": Case("film training TEXT -o map.svg --layer 1", f"{DEMO} --causal {GRID}"),
    "heads": Case("heads TEXT RANDOM", f"{SAME} --tokens --census"),
    "heads of a trace": Case("heads run.json", f"{SAME} --census"),
    "heads of weights": Case("heads w.npy", f"{SAME} --tokens --layer --head --top --by"),
    "heads, JSON": Case("heads TEXT RANDOM --json", f"{SAME} --census"),
    "heads, picture": Case("heads TEXT RANDOM -o heads.svg", f"{SAME} {GRID}"),
    "compare": Case("compare TEXT OTHER RANDOM", SAME),
    "compare, JSON": Case("compare TEXT OTHER RANDOM --json", SAME),
    "compare models": Case("compare demo demo-causal TEXT --layer 0", f"{DEMO} --device-b"),
    "drift": Case("drift demo demo-causal TEXT", f"{DEMO} --device-b"),
    "drift, picture": Case("drift demo demo-causal TEXT -o drift.svg", f"{DEMO} --device-b --values"),
    "view": Case("view TEXT RANDOM PAGE", f"{SAME} --no-log"),
    "view a trace": Case("view run.json PAGE", f"{SAME} --no-log"),
    "view cells": Case("view grid.json PAGE", f"{SAME} --no-log"),
    "view two": Case("view TEXT OTHER RANDOM PAGE", f"{SAME} --no-log"),
    "view models": Case("view demo demo-causal TEXT PAGE --layer 1", f"{DEMO} --no-log"),
    "view --run": Case("view TEXT --run training PAGE", f"{DEMO} --causal --no-log"),
    "quiz": Case("quiz TEXT RANDOM --json", SAME),
    "ablate": Case("ablate TEXT --json", f"{DEMO} {WORK}"),
    "ablate --edges": Case("ablate TEXT --edges", f"{DEMO} {WORK}"),
    "sources": Case("sources PROMPT FOLDER --generate 2 --json", TINY),
    "align texts": Case("align TEXT T5 --target soup --json", "--device --words"),
    "align one text": Case("align MARKED FOLDER", "--device"),
    "leaks": Case("leaks padded.json FOLDER --json", "--device"),
    "mask": Case("mask TEXT FOLDER --json", "--device"),
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
    "objective": "masked-word", "heads": "1.0", "texts": "lines.txt", "dtype_b": "bfloat16", "device_b": "cpu",
    "kernel_b": "eager",
}  # fmt: skip
WORD = "{0}\t{1}\t{1}\t{2}\t_\t_\t{3}\t{4}\t_\t_\n"
NOTES = ("attnctl: note:", "attnctl: item")
NOT_DONE = {"needle": (1,), "batch": (3,), "evaluate": (3,)}  # needles not found, texts that are too long
SHORT = WORD.format(1, "Alice", "PROPN", 2, "nsubj:pass") + WORD.format(2, "eats", "VERB", 0, "root")
NAMES = ("Alice", "Bob", "Carol", "Dan")
LONG = SHORT + WORD.format(3, "it", "PRON", 2, "obj") + WORD.format(4, "up", "ADV", 2, "advmod")
CONLLU = "".join(f"# sent_id = {at}\n{(SHORT, LONG)[at % 2].replace('Alice', NAMES[at % 4])}\n" for at in range(48))


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


def first_case(command: str) -> Case:
    return next(case for case in CASES.values() if case.given[0] == command)


@pytest.mark.parametrize("named", [named for named, case in CASES.items() if can_run(case.typed)])
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
        if done.code in (1, 2, 3 if case.stdin else 2) and done.out == "" and len(complaints(done.err)) == 1:
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
    left_out = NO_CHOICES if case == first_case(case.given[0]) else NO_CHOICES | OF_MODELS
    choices = choices_of(case.given[0], VALUES | {"measure": ["value-norm", "rollout"]}, left_out)
    choices = [one for one in choices if (*one.value, one.flag)[0] not in case.given]
    expected = set(case.same.split())
    assert not [one.flag for one in choices if one.flag not in expected and written(one.flag, *one.value) == plain]
    reads = Reads()
    monkeypatch.setattr(cli_command, "make_group", reads.group)
    with reads.of_function(function_of(case.given[0])):
        same = [one for one in choices if one.flag in expected and written(one.flag, *one.value) == plain]
    assert not {one.flag for one in same if one.name not in reads.names}


def test_every_option_has_a_value() -> None:
    if not {case.given[0] for case in CASES.values()} <= set(COMMANDS):
        pytest.skip("a command is deleted, whose options may be its alone")
    assert not set(VALUES) - {option.name for name in COMMANDS for option in load_command(name).params}


# --- every option is read -----------------------------------------------------------------------------------------

# options that act before the function of a command runs, or after it
ALWAYS = {"quiet", "help_all"}


class Branch(NamedTuple):
    """A command line that works; the options it has already are not added again."""

    line: str
    codes: tuple[int, ...] = (0,)
    terminal: bool = False


# MODEL is a small checkpoint, BATCH a packed batch for it
PLACES = {
    "MODEL": "llama",
    "BATCH": "packed.json",
    "T5": "t5",
    "WHISPER": "whisper",
    "SOUND": "tone.wav",
    "CHAT": "chat.json",
    "CORPUS": "trees.conllu",
    "CENSUS": "census.json",
    "LINES": "corpus.txt",
    "VISION": "vision",
    "PHOTO": "photo.png",
    "TEXTS": "in.txt",
    "TRACE": "t.json",
    "WEIGHTS": "w.npy",
    "RUN": "run",
}
BRANCHES = {
    "explain, a picture": Branch("explain Alice will eat pizza --model random -o steps.svg"),
    "explain, JSON": Branch("explain Alice will eat pizza --model random --json"),
    "explain --steps": Branch("explain Alice will eat pizza --model random --steps scores,weights"),
    "explain --steps, JSON": Branch("explain Alice will eat pizza --model random --steps weights --json"),
    "contributions --steps contributions, JSON": Branch("explain Alice will eat pizza --json"),
    "explain --top": Branch("explain Alice will eat pizza --model random --top 2"),
    "explain --top, JSON": Branch("explain Alice will eat pizza --model random --top 2 --json"),
    "explain a long text, JSON": Branch("explain --file long.txt --model random --json"),
    "explain a long text, a row as JSON": Branch("explain --file long.txt --model random --query 3 --json"),
    "explain a trace, JSON": Branch("explain TRACE --json"),
    "explain a checkpoint": Branch("explain Alice eats --model MODEL"),
    "explain a conversation": Branch("explain --chat CHAT --model MODEL"),
    "view": Branch("view Alice --model random"),
    "view, to standard output": Branch("view Alice --model random -o -"),
    "view --effects": Branch("view Alice --effects -o page.html"),
    "view a long text": Branch("view --file long.txt --model random -o page.html"),
    "view a trace and a text": Branch("view TRACE Alice -o page.html"),
    "view two traces": Branch("view TRACE WEIGHTS -o page.html"),
    "leaks": Branch("leaks BATCH --model MODEL", (4,)),
    "leaks, picture": Branch("leaks BATCH --model MODEL -o leaks.svg", (4,)),
    "mask": Branch("mask Alice --model MODEL"),
    "mask, picture": Branch("mask Alice --model MODEL -o mask.svg"),
    "mask, batch": Branch("mask BATCH --model MODEL --json", (4,)),
    "leaks, texts": Branch("leaks Alice Bob --pack --model MODEL"),
    "config --set": Branch("config --set seed=3"),
    "config --unset": Branch("config --unset seed"),
    "config --path": Branch("config --path"),
    "needle": Branch("needle --model MODEL --lengths 200 --depths 50", (1,)),
    "quiz": Branch("quiz Alice will eat pizza --model random"),
    "schema": Branch("schema trace"),
    "docs": Branch("docs"),
    "docs --samples": Branch("docs --samples made"),
    "models": Branch("model"),
    "softmax, a factor": Branch("softmax 1 2 --scale 2"),
    "align, texts": Branch("align Alice eats --model T5 --target soup"),
    "align, texts, picture": Branch("align Alice eats --model T5 --target soup -o links.svg"),
    "align, speech": Branch("align SOUND --model WHISPER"),
    "align, speech, subtitles": Branch("align SOUND --model WHISPER -o words.srt"),
    "needle, a file": Branch("needle --model MODEL --lengths 200 --depths 50 -o needles.jsonl", (1,)),
    "needle, picture": Branch("needle --model MODEL --lengths 200 --depths 50 -o needles.svg", (1,)),
    "needle, of one's own": Branch(
        "needle --model MODEL --lengths 200 --depths 50 --needle a --question b --expect c", (1,)
    ),
    "sources": Branch("sources Alice eats. --model MODEL"),
    "sources, page": Branch("sources Alice eats. --model MODEL -o sources.html"),
    "sources, picture": Branch("sources Alice eats. --model MODEL -o sources.svg"),
    "sources, an answer": Branch("sources Alice eats. --model MODEL --answer pizza"),
    "sources, a conversation": Branch("sources --chat CHAT --model MODEL"),
    "train": Branch("train LINES -o run --max-steps 2"),
    "train --resume": Branch("train -o run --resume --max-steps 3"),
    "train --explain, JSON": Branch("train LINES --explain --json"),
    "evaluate --write-corpus": Branch("evaluate --write-corpus made.conllu"),
    "evaluate a corpus, picture": Branch("evaluate CORPUS --model random -o census.svg"),
    "evaluate a corpus, folder": Branch("evaluate CORPUS --model random -o made --replace"),
    "evaluate a census, JSON": Branch("evaluate CENSUS --json"),
    "evaluate a census, picture": Branch("evaluate CENSUS -o census.svg"),
    "heatmap, terminal": Branch("heatmap Alice eats. --model random", terminal=True),
    "heatmap --head telling": Branch("heatmap Alice eats. --model random --head telling -o grid.svg"),
    "film, moving": Branch("film RUN Alice -o grid.gif"),
    "heatmap, photograph, terminal": Branch("heatmap PHOTO --model VISION", terminal=True),
    "heatmap, photograph, pipe": Branch("heatmap PHOTO --model VISION"),
    "heatmap, photograph, JSON": Branch("heatmap PHOTO --model VISION -o patches.json"),
    "heatmap, table": Branch("heatmap Alice eats. --model random -o weights.csv"),
    "heatmap, photograph, table": Branch("heatmap PHOTO --model VISION -o patches.parquet"),
    "heatmap, photograph, picture": Branch("heatmap PHOTO --model VISION -o heat.svg"),
    "heads, terminal": Branch("heads Alice eats. --model random", terminal=True),
    "heads, CSV": Branch("heads Alice eats. --model random --csv"),
    "heads, page": Branch("heads Alice eats. --model random -o heads.html"),
    "heads --probe": Branch("heads --probe --model random"),
    "heads --probe, picture": Branch("heads --probe --by induction --model random -o heads.svg"),
    "batch, steps": Branch("batch TEXTS --steps weights"),
    "batch, arrays": Branch("batch TEXTS -o made --replace --format npz"),
    "batch, a table": Branch("batch TEXTS -o made --replace --format parquet"),
    "batch, pictures": Branch("batch TEXTS -o made --replace --format svg"),
    "batch, statistics": Branch("batch TEXTS -o made --replace --format statistics"),
    "batch, effects": Branch("batch TEXTS -o made --replace --format effects"),
    "batch, sources": Branch("batch TEXTS -o made --replace --format sources --model MODEL"),
    "batch of conversations": Branch("batch --chat CHAT --model MODEL"),
    "compare texts, a file": Branch("compare Alice Alicia --model MODEL -o compared.txt"),
    "compare texts, picture": Branch("compare Alice Alicia --model MODEL -o compared.svg"),
    "compare models, picture": Branch("compare MODEL MODEL Alice -o compared.svg"),
    "drift, CSV": Branch("drift MODEL MODEL Alice -o drift.csv"),
    "compare traces": Branch("compare TRACE TRACE"),
    "compare traces, JSON": Branch("compare TRACE TRACE --json"),
    "compare a trace with a text": Branch("compare TRACE Alice"),
    "ablate": Branch("ablate Alice eats --model MODEL"),
    "ablate, JSON": Branch("ablate Alice eats --model MODEL --json"),
    "ablate, text": Branch("ablate Alice eats --model MODEL -o effects.txt"),
    "ablate, page": Branch("ablate Alice eats --model MODEL -o effects.html"),
    "ablate, CSV": Branch("ablate Alice eats --model MODEL -o effects.csv"),
    "ablate, picture": Branch("ablate Alice eats --model MODEL -o effects.svg"),
    "ablate to a mean": Branch("ablate Alice eats --model MODEL --how mean --reference LINES"),
    "ablate --edges": Branch("ablate Alice eats --model MODEL --edges"),
    "ablate --edge": Branch("ablate Alice eats --model MODEL --edge 1>0"),
    "ablate --spans": Branch("ablate Alice eats --model MODEL --spans lines"),
    "ablate --edges beside --off": Branch("ablate Alice eats --model MODEL --edges --off 0.0"),
    "ablate --approximate": Branch("ablate Alice eats --model MODEL --approximate"),
    "ablate a conversation": Branch("ablate --chat CHAT --model MODEL"),
    "ablate an encoder-decoder": Branch("ablate Alice eats --model T5"),
}
# a value of each option that takes one; --model is that of the branch
BRANCH_VALUES = VALUES | {
    "samples": "made",
    "expect": "causal", "dtype": "float32", "device": "cpu", "output": "out.json", "file": "lines.txt", "heads": "0.0",
    "target": "tea", "language": "en", "source_language": "eng_Latn", "target_language": "fra_Latn", "top": "1",
    "spans": "lines", "answer": "soup", "budget": "3", "chat": "chat.json", "off": "0.0", "seed": "1", "generate": "2",
    "image": "photo.png", "needle": "a", "question": "b", "haystack": "lines.txt", "lengths": "100", "depths": "0",
    "switch_off": "1",
    "model": "dot", "relations": "names.csv", "least": "3", "max_tokens": "50", "batch_size": "4", "jobs": "1", "engine": "local", "address": "auto", "gpus_per_worker": "1", "sentences": "20", "write_corpus": "other.conllu", "cmap": "magma", "dpi": "50", "title": "Ours", "tokenizer": "chars", "embeddings": "rows.npy", "qkv": "rows.npy", "d_model": "12", "d_k": "3", "n_heads": "2", "n_kv_heads": "1", "n_layers": "2", "window": "2", "scale": "2", "temperature": "2", "positions": "sinusoidal", "rope_theta": "100", "rope_pairs": "half", "dropout": "0.5", "attention": "cross", "watch": "Alice will", "query": "0", "objective": "masked-word", "how": "mean", "steps": "weights", "input": "text", "column": "text", "id_column": "id", "format": "npz", "drop": "first", "measure": "value-norm", "size": "3x3", "font_size": "5", "vmin": "0.1", "vmax": "0.9", "text_pair": "tea", "predict": "1", "edge": "1>0", "reference": "lines.txt", "against": "soup", "max_steps": "4", "lr": "0.01",
}  # fmt: skip


def write_vision_model(room: Path) -> None:
    """Write a small checkpoint that reads photographs, and a photograph."""
    from PIL import Image

    from tests.models.huggingface.test_photographs import saved

    saved(room / PLACES["VISION"], "Dinov2")
    Image.linear_gradient("L").convert("RGB").save(room / PLACES["PHOTO"])


def test_each_command_has_branches() -> None:
    lines = (*(branch.line for branch in BRANCHES.values()), *(case.typed for case in CASES.values()))
    assert {line.split()[0] for line in lines} >= {name for name, listed in COMMANDS.items() if listed.module}


@pytest.mark.parametrize("named", [named for named, branch in BRANCHES.items() if can_run(branch.line)])
def test_a_typed_option_is_read_or_refused(
    named: str, run: Run, room: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    branch = BRANCHES[named]
    if "--model" in branch.line:
        pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    if "VISION" in branch.line and not (room / PLACES["VISION"]).exists():
        write_vision_model(room)
    words = [str(room / PLACES[word]) if word in PLACES else word for word in branch.line.split()]
    Path("names.csv").write_text("nsubj,subject\n")
    if branch.terminal:
        monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda console: not console.stderr))
    Path("long.txt").write_text("\n".join("Alice will eat pizza" for _ in range(150)))
    function = function_of(words[0])
    monkeypatch.setattr("webbrowser.open", lambda *_, **__: True)
    monkeypatch.setattr("attnctl.commands.docs.site.build_site", lambda folder: folder / "index.html")
    ignored: list[str] = []
    always: set[str] = set()
    added = (one for one in choices_of(words[0], BRANCH_VALUES, ALWAYS) if not one.flags & set(branch.line.split()))
    for name, typed in [("", []), *((one.name, [one.flag, *one.value]) for one in added)]:
        if name in always:
            continue
        shutil.rmtree("run", ignore_errors=True)
        if "--resume" in words:
            shutil.copytree(room / "run", "run")
        reads = Reads()
        monkeypatch.setattr(cli_command, "make_group", reads.group)
        with reads.of_function(function):
            done = run(*words, *typed)
        if done.code == 2 and len(complaints(done.err)) == 1:
            assert name, done.err
        elif name and name not in reads.names:
            ignored.append(name)
        elif not name:
            assert done.code in branch.codes, done
            always = reads.names
    assert not ignored


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
