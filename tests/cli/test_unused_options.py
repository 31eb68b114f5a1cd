"""No option is ignored in silence: in each branch of a command every typed option is read, or refused in one line.

A branch is a command line that works. It runs once as it is: what it reads then, it also reads when that is typed, since
nothing before that can depend on the value. Each other option of the command is added to it in turn. An option of a group is
read when the command reads its field; the parameter of a command is read when its function loads the variable.
"""

from __future__ import annotations

import dis
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple

import pytest
import typer

from attnctl.cli import command as cli_command
from attnctl.cli.app import load_command
from attnctl.cli.command import refuse_unused
from attnctl.cli.groups import CheckpointOptions
from attnctl.commands import COMMANDS
from attnctl.errors import UsageError
from tests.cli.test_option_effects import VALUES as OTHER_VALUES
from tests.conftest import Run

NEW = [name for name, listed in COMMANDS.items() if listed.module]
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
    "explain": Branch("explain Alice will eat pizza --model random"),
    "explain, a picture": Branch("explain Alice will eat pizza --model random -o steps.svg"),
    "explain, JSON": Branch("explain Alice will eat pizza --model random --json"),
    "explain, NPZ": Branch("explain Alice will eat pizza --model random -o trace.npz"),
    "explain --steps": Branch("explain Alice will eat pizza --model random --steps scores,weights"),
    "explain --steps, JSON": Branch("explain Alice will eat pizza --model random --steps weights --json"),
    "explain --steps contributions": Branch("explain Alice will eat pizza --steps contributions"),
    "explain --steps contributions, JSON": Branch("explain Alice will eat pizza --steps contributions --json"),
    "explain --top": Branch("explain Alice will eat pizza --model random --top 2"),
    "explain --top, JSON": Branch("explain Alice will eat pizza --model random --top 2 --json"),
    "explain --check": Branch("explain Alice will eat pizza --check"),
    "explain a long text": Branch("explain --file long.txt --model random"),
    "explain a long text, JSON": Branch("explain --file long.txt --model random --json"),
    "explain a long text, a row as JSON": Branch("explain --file long.txt --model random --query 3 --json"),
    "explain a trace": Branch("explain TRACE"),
    "explain a trace, JSON": Branch("explain TRACE --json"),
    "explain weights": Branch("explain WEIGHTS"),
    "explain a checkpoint": Branch("explain Alice eats --model MODEL"),
    "explain a conversation": Branch("explain --chat CHAT --model MODEL"),
    "view": Branch("view Alice --model random"),
    "view, to standard output": Branch("view Alice --model random -o -"),
    "view --effects": Branch("view Alice --effects -o page.html"),
    "view a long text": Branch("view --file long.txt --model random -o page.html"),
    "view a trace": Branch("view TRACE -o page.html"),
    "view two texts": Branch("view Alice Bob --model random -o page.html"),
    "view a trace and a text": Branch("view TRACE Alice -o page.html"),
    "view two traces": Branch("view TRACE WEIGHTS -o page.html"),
    "view two models": Branch("view demo random Alice -o page.html"),
    "view --run": Branch("view Alice --run RUN -o page.html"),
    "view --sources": Branch("view Alice --sources --model MODEL -o page.html"),
    "view --sources, a conversation": Branch("view --sources --chat CHAT --model MODEL -o page.html"),
    "leaks": Branch("leaks BATCH --model MODEL", (4,)),
    "leaks, JSON": Branch("leaks BATCH --model MODEL --json", (4,)),
    "leaks, picture": Branch("leaks BATCH --model MODEL -o leaks.svg", (4,)),
    "leaks, texts": Branch("leaks Alice Bob --pack --model MODEL"),
    "config": Branch("config"),
    "config --set": Branch("config --set seed=3"),
    "config --unset": Branch("config --unset seed"),
    "config --path": Branch("config --path"),
    "needle": Branch("needle --model MODEL --lengths 200 --depths 50", (1,)),
    "needle, JSON": Branch("needle --model MODEL --lengths 200 --depths 50 --json", (1,)),
    "quiz": Branch("quiz Alice will eat pizza --model random"),
    "quiz, JSON": Branch("quiz Alice will eat pizza --model random --json"),
    "schema": Branch("schema trace"),
    "docs": Branch("docs"),
    "docs, a page": Branch("docs lesson"),
    "docs --samples": Branch("docs --samples made"),
    "shell": Branch("shell Alice will eat"),
    "model": Branch("model gpt2"),
    "model, a card": Branch("model demo"),
    "models": Branch("model"),
    "softmax": Branch("softmax 1 2"),
    "softmax, JSON": Branch("softmax 1 2 --json"),
    "softmax, a factor": Branch("softmax 1 2 --scale 2"),
    "align, texts": Branch("align Alice eats --model T5 --target soup"),
    "align, texts, JSON": Branch("align Alice eats --model T5 --target soup --json"),
    "align, texts, picture": Branch("align Alice eats --model T5 --target soup -o links.svg"),
    "align, speech": Branch("align SOUND --model WHISPER"),
    "align, speech, subtitles": Branch("align SOUND --model WHISPER -o words.srt"),
    "needle, a file": Branch("needle --model MODEL --lengths 200 --depths 50 -o needles.jsonl", (1,)),
    "needle, picture": Branch("needle --model MODEL --lengths 200 --depths 50 -o needles.svg", (1,)),
    "needle, of one's own": Branch(
        "needle --model MODEL --lengths 200 --depths 50 --needle a --question b --expect c", (1,)
    ),
    "sources": Branch("sources Alice eats. --model MODEL"),
    "sources, JSON": Branch("sources Alice eats. --model MODEL --json"),
    "sources, page": Branch("sources Alice eats. --model MODEL -o sources.html"),
    "sources, picture": Branch("sources Alice eats. --model MODEL -o sources.svg"),
    "sources, an answer": Branch("sources Alice eats. --model MODEL --answer pizza"),
    "sources, a conversation": Branch("sources --chat CHAT --model MODEL"),
    "train": Branch("train LINES -o run --max-steps 2"),
    "train --resume": Branch("train -o run --resume --max-steps 3"),
    "train --explain": Branch("train LINES --explain"),
    "train --explain, JSON": Branch("train LINES --explain --json"),
    "evaluate the bundled corpus": Branch("evaluate --sentences 20"),
    "evaluate --write-corpus": Branch("evaluate --write-corpus made.conllu"),
    "evaluate a corpus": Branch("evaluate CORPUS --model random"),
    "evaluate a corpus, JSON": Branch("evaluate CORPUS --model random --json"),
    "evaluate a corpus, picture": Branch("evaluate CORPUS --model random -o census.svg"),
    "evaluate a corpus, folder": Branch("evaluate CORPUS --model random -o made --replace"),
    "evaluate a census": Branch("evaluate CENSUS"),
    "evaluate a census, JSON": Branch("evaluate CENSUS --json"),
    "evaluate a census, picture": Branch("evaluate CENSUS -o census.svg"),
    "heatmap, terminal": Branch("heatmap Alice eats. --model random", terminal=True),
    "heatmap, pipe": Branch("heatmap Alice eats. --model random"),
    "heatmap, JSON": Branch("heatmap Alice eats. --model random -o cells.json"),
    "heatmap, picture": Branch("heatmap Alice eats. --model random -o grid.svg"),
    "heatmap, page": Branch("heatmap Alice eats. --model random -o grid.html"),
    "heatmap --head telling": Branch("heatmap Alice eats. --model random --head telling -o grid.svg"),
    "heatmap --run, moving": Branch("heatmap Alice eats. --run RUN -o grid.gif"),
    "heatmap --run, strip": Branch("heatmap Alice eats. --run RUN -o grid.svg"),
    "heatmap --run, page": Branch("heatmap Alice eats. --run RUN -o grid.html"),
    "heatmap, photograph, terminal": Branch("heatmap PHOTO --model VISION", terminal=True),
    "heatmap, photograph, pipe": Branch("heatmap PHOTO --model VISION"),
    "heatmap, photograph, JSON": Branch("heatmap PHOTO --model VISION -o patches.json"),
    "heatmap, photograph, picture": Branch("heatmap PHOTO --model VISION -o heat.svg"),
    "heatmap, photograph, page": Branch("heatmap PHOTO --model VISION -o heat.html"),
    "heads, terminal": Branch("heads Alice eats. --model random", terminal=True),
    "heads, pipe": Branch("heads Alice eats. --model random"),
    "heads, JSON": Branch("heads Alice eats. --model random --json"),
    "heads, CSV": Branch("heads Alice eats. --model random --csv"),
    "heads, page": Branch("heads Alice eats. --model random -o heads.html"),
    "heads, picture": Branch("heads Alice eats. --model random -o heads.svg"),
    "heads --probe": Branch("heads --probe --model random"),
    "heads --probe, picture": Branch("heads --probe --by induction --model random -o heads.svg"),
    "batch": Branch("batch TEXTS"),
    "batch, steps": Branch("batch TEXTS --steps weights"),
    "batch, a folder": Branch("batch TEXTS -o made --replace"),
    "batch, arrays": Branch("batch TEXTS -o made --replace --format npz"),
    "batch, a table": Branch("batch TEXTS -o made --replace --format parquet"),
    "batch, pictures": Branch("batch TEXTS -o made --replace --format svg"),
    "batch, statistics": Branch("batch TEXTS -o made --replace --format statistics"),
    "batch, effects": Branch("batch TEXTS -o made --replace --format effects"),
    "batch, sources": Branch("batch TEXTS -o made --replace --format sources --model MODEL"),
    "batch of conversations": Branch("batch --chat CHAT --model MODEL"),
    "compare texts": Branch("compare Alice Alicia --model MODEL"),
    "compare texts, JSON": Branch("compare Alice Alicia --model MODEL --json"),
    "compare texts, a file": Branch("compare Alice Alicia --model MODEL -o compared.txt"),
    "compare texts, picture": Branch("compare Alice Alicia --model MODEL -o compared.svg"),
    "compare models": Branch("compare MODEL MODEL Alice"),
    "compare models, picture": Branch("compare MODEL MODEL Alice -o compared.svg"),
    "compare traces": Branch("compare TRACE TRACE"),
    "compare traces, JSON": Branch("compare TRACE TRACE --json"),
    "compare a trace with a text": Branch("compare TRACE Alice"),
    "ablate": Branch("ablate Alice eats --model MODEL"),
    "ablate, JSON": Branch("ablate Alice eats --model MODEL --json"),
    "ablate, text": Branch("ablate Alice eats --model MODEL -o effects.txt"),
    "ablate, page": Branch("ablate Alice eats --model MODEL -o effects.html"),
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
VALUES = OTHER_VALUES | {
    "samples": "made",
    "expect": "causal", "dtype": "float32", "device": "cpu", "output": "out.json", "file": "lines.txt", "heads": "0.0",
    "target": "tea", "language": "en", "source_language": "eng_Latn", "target_language": "fra_Latn", "top": "1",
    "spans": "lines", "answer": "soup", "budget": "3", "chat": "chat.json", "off": "0.0", "seed": "1", "generate": "2",
    "image": "photo.png", "needle": "a", "question": "b", "haystack": "lines.txt", "lengths": "100", "depths": "0",
    "switch_off": "1",
    "model": "dot", "relations": "names.csv", "least": "3", "max_tokens": "50", "batch_size": "4", "jobs": "1", "engine": "local", "address": "auto", "gpus_per_worker": "1", "sentences": "20", "write_corpus": "other.conllu", "cmap": "magma", "dpi": "50", "title": "Ours", "tokenizer": "chars", "embeddings": "rows.npy", "qkv": "rows.npy", "d_model": "12", "d_k": "3", "n_heads": "2", "n_kv_heads": "1", "n_layers": "2", "window": "2", "scale": "2", "temperature": "2", "positions": "sinusoidal", "rope_theta": "100", "rope_pairs": "half", "dropout": "0.5", "attention": "cross", "watch": "Alice will", "query": "0", "objective": "masked-word", "how": "mean", "steps": "weights", "input": "text", "column": "text", "id_column": "id", "format": "npz", "drop": "first", "measure": "value-norm", "size": "3x3", "font_size": "5", "vmin": "0.1", "vmax": "0.9", "text_pair": "tea", "predict": "1", "edge": "1>0", "reference": "lines.txt", "against": "soup", "max_steps": "4", "lr": "0.01",
}  # fmt: skip
# (branch, option) → why it is neither read nor refused
EXCEPTIONS: dict[tuple[str, str], str] = {}


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


def added_options(branch: Branch) -> Iterator[tuple[str, list[str]]]:
    """Return the options that the branch lacks: the name of each in Python, and how it is typed."""
    words = branch.line.split()
    for one in load_command(words[0]).params:
        flags = [flag for flag in (*one.opts, *one.secondary_opts) if flag.startswith("--")]
        if one.param_type_name != "option" or one.name in ALWAYS or set(words) & {*one.opts, *one.secondary_opts}:
            continue
        for flag in flags if getattr(one, "is_flag", False) else flags[:1]:
            value = [] if getattr(one, "is_flag", False) else [VALUES.get(one.name or "", "1")]
            yield one.name or "", [flag, *value]


def write_vision_model(room: Path) -> None:
    """Write a small checkpoint that reads photographs, and a photograph."""
    from PIL import Image

    from tests.models.huggingface.test_photographs import saved

    saved(room / PLACES["VISION"], "Dinov2")
    Image.linear_gradient("L").convert("RGB").save(room / PLACES["PHOTO"])


def test_each_command_has_branches() -> None:
    assert {branch.line.split()[0] for branch in BRANCHES.values()} >= set(NEW)


@pytest.mark.parametrize("named", [named for named, branch in BRANCHES.items() if branch.line.split()[0] in COMMANDS])
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
    function = getattr(import_module(COMMANDS[words[0]].module), f"{words[0]}_command")
    monkeypatch.setattr("webbrowser.open", lambda *_, **__: True)
    monkeypatch.setattr("attnctl.docs.site.build_site", lambda folder: folder / "index.html")
    ignored: list[str] = []
    always: set[str] = set()
    for name, typed in [("", []), *added_options(branch)]:
        if name in always:
            continue
        shutil.rmtree("run", ignore_errors=True)
        if "--resume" in words:
            shutil.copytree(room / "run", "run")
        reads = Reads()
        monkeypatch.setattr(cli_command, "make_group", reads.group)
        with reads.of_function(function):
            done = run(*words, *typed)
        complaints = [line for line in done.err.splitlines() if "note:" not in line]
        if done.code == 2 and len(complaints) == 1:
            assert name, complaints
        elif name and name not in reads.names and (named, name) not in EXCEPTIONS:
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
        device: Annotated[str | None, typer.Option("--device", envvar="ATTNCTL_DEVICE")] = None,
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
    def show(
        context: typer.Context, device: Annotated[str | None, typer.Option("--device", envvar="ATTNCTL_DEVICE")] = None
    ) -> None:
        refuse_unused(context, "device", because="nothing is computed")

    monkeypatch.setenv("ATTNCTL_DEVICE", "cpu")
    typer.main.get_command(app)([], standalone_mode=False)
