"""What was meant by a name that is not there: the nearest one, by its meaning first and its letters second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer.core import TyperGroup

# what users type who have not read the list, and the command that does it
COMMANDS_BY_MEANING = {
    "plot": "heatmap", "draw": "heatmap", "image": "heatmap", "picture": "heatmap", "png": "heatmap",
    "map": "heatmap", "grid": "heatmap", "show": "explain", "run": "explain", "attend": "explain",
    "attention": "explain", "trace": "explain", "print": "explain", "json": "explain", "html": "view", "page": "view",
    "open": "view", "web": "view", "browser": "view", "diff": "compare", "versus": "compare", "vs": "compare",
    "stats": "heads", "statistics": "heads", "head": "heads", "info": "model", "models": "model", "card": "model",
    "params": "model", "learn": "train", "fit": "train", "eval": "evaluate", "test": "evaluate", "exam": "quiz",
    "ask": "quiz", "corpus": "batch", "many": "batch", "bulk": "batch", "files": "batch", "settings": "config",
    "defaults": "config", "man": "help", "usage": "help", "version": "--version", "visualize": "heatmap",
    "visualise": "heatmap", "weights": "heatmap", "list": "model", "completion": "--install-completion",
    "completions": "--install-completion", "repl": "shell", "chat": "shell", "demo": "explain",
}  # fmt: skip

# an option that no command, or only another one, has → the options that mean it, the first one there is offered
OPTIONS_BY_MEANING: dict[str, Sequence[str]] = {
    "--csv": ("-o FILE.csv", "--json"), "--png": ("-o FILE.png",), "--svg": ("-o FILE.svg",),
    "--pdf": ("-o FILE.pdf",), "--html": ("-o FILE.html",), "--save": ("-o",), "--out": ("-o",), "--format": ("-o",),
    "--text": ("--file",), "--input": ("--file",), "--prompt": ("--file",), "--checkpoint": ("--model",),
    "--weights": ("--model",), "--colormap": ("--cmap",), "--colors": ("--cmap",), "--colours": ("--cmap",),
    "--normalize": ("--renormalise",), "--normalise": ("--renormalise",), "--renormalize": ("--renormalise",),
    "--token": ("--query",), "--row": ("--query", "--rows"), "--column": ("--columns",),
    "--decimals": ("--precision",), "--digits": ("--precision",), "--annotate": ("--values",),
    "--step": ("--steps", "--max-steps"), "--steps": ("--max-steps",), "--epochs": ("--max-steps",),
    "--tokens": ("--length",), "--context": ("--length",), "--heads": ("--head",), "--layers": ("--layer",),
    "--mask": ("--causal",), "--temp": ("--temperature",),
    "--gpu": ("--device",), "--cuda": ("--device",), "--random-seed": ("--seed",), "--topk": ("--top",),
    "--top-k": ("--top",), "--limit": ("--top",), "--sort": ("--by",), "--n-heads": ("--heads",),
    "--num-heads": ("--heads",), "--n-layers": ("--layers",), "--num-layers": ("--layers",),
    "--max-tokens": ("--generate",), "--silent": ("--quiet",), "--width": ("--size",), "--figsize": ("--size",),
    "--cpu": ("--device",), "--dim": ("--d-model",), "--word": ("--query",), "--all-heads": ("--head all",),
    "--all-layers": ("--layer all",), "-l": ("--layer",), "-n": ("--top",), "-s": ("--seed",),
}  # fmt: skip

# an option that none has, and what does it
ELSEWHERE = {
    **dict.fromkeys(("--no-color", "--no-colour"), "NO_COLOR=1 before the command does that"),
    **dict.fromkeys(("--color", "--colour"), "FORCE_COLOR=1 before the command does that"),
    **dict.fromkeys(("--pretty", "--indent"), "--json is one line, which | jq lays out"),
    **dict.fromkeys(("--verbose", "--debug"), "there is no more to say"),
    **dict.fromkeys(("--average", "--mean"), "heads are shown one by one"),
}


def suggest_command(name: str, commands: Sequence[str]) -> str:
    """One line about a command that is not there."""
    if len(name.split()) > 1:
        return f"{name[:60]!r} is a text, and no command: attnctl explain {name[:60]!r}"
    meant = COMMANDS_BY_MEANING.get(name.casefold().strip("-"))
    if meant is None:
        meant = next(iter(get_close_matches(name.casefold(), commands, 1, 0.6)), None)
    if meant is None:
        return f"no command {name!r}: there are {', '.join(commands)}"
    return f"no command {name!r}: did you mean attnctl {meant}?"


def suggest_option(asked: ClickCommand, name: str, group: TyperGroup | None = None) -> str:
    """One line about an option that the command `asked` lacks; `group` is the group that knows the other commands."""
    own = [opt for p in asked.params if p.param_type_name == "option" for opt in (*p.opts, *p.secondary_opts)]
    plain = name.split("=")[0]
    for meant in OPTIONS_BY_MEANING.get(plain.casefold(), ()):
        flag = meant.split()[0]
        if flag in own and (flag != "-o" or _writes_type(asked, meant)):
            return f"{asked.name} has no {plain}: did you mean {meant}?"
    if plain.casefold() in ELSEWHERE:
        return f"{asked.name} has no {plain}: {ELSEWHERE[plain.casefold()]}"
    others = [other for other in _commands_with(plain, group) if other != asked.name]
    if others:
        return f"{asked.name} has no {plain}: it belongs to {_joined_names(others)} (see attnctl {asked.name} --help)"
    if near := get_close_matches(plain, own, 2, 0.65):
        return f"{asked.name} has no {plain}: did you mean {' or '.join(near)}?"
    return f"{asked.name} has no {plain} (see attnctl {asked.name} --help)"


def suggest_choice(name: str, choices: Iterable[str]) -> str:
    """The question whether a choice near to what was given was meant, as the end of a sentence; nothing where none is."""
    near = get_close_matches(name.casefold(), list(choices), 1, 0.6)
    return f": did you mean {near[0]}?" if near else ""


def _writes_type(asked: ClickCommand, meant: str) -> bool:
    """Whether the command's -o says that it writes the file type of `meant` ("-o FILE.csv")."""
    suffix = meant.rpartition(".")[2] if "." in meant else ""
    said = next((getattr(p, "help", None) or "" for p in asked.params if "-o" in p.opts), "")
    return suffix in said or "." not in said


def _commands_with(flag: str, group: TyperGroup | None) -> list[str]:
    if group is None:
        return []
    context = typer.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return [name for name, one in commands.items() if one and flag in {opt for p in one.params for opt in p.opts}]


def _joined_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
