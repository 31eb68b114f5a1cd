"""One word, one option: an option of a name says and takes the same in every command, but for those listed here."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

from attnctl.cli.app import load_command
from attnctl.registry import COMMANDS

# (command, option) → why it takes another kind of value than elsewhere
DEPARTURES = {
    ("evaluate", "-o"): "may be given several times: numbers, table and picture of one long measurement",
    ("evaluate", "--output"): "as -o",
    (
        "align",
        "--heads",
    ): "which heads the times are read from; of models made on the spot it is a short form of --n-heads",
    ("batch", "-o"): "a folder",
    ("batch", "--output"): "as -o",
    ("heatmap", "-q"): "a photograph's query may be a pixel",
    ("heatmap", "--query"): "as -q",
    ("leaks", "--expect"): "who may see whom; of a needle, what an answer must hold",
    ("mask", "--expect"): "as leaks, and the masks of layers that are no segments",
    ("softmax", "--tokens"): "scores have no text, of which these could be the tokens",
    ("ablate", "--target"): "hiding words also explains the label of a classifier",
}
# option → why its default is another in some commands, which the help of each says
DEFAULTS = {
    "--output": "a film is a file; a batch writes lines",
    "--dpi": "a batch draws many pictures",
    "--query": "of a photograph the token that stands for all of it, else the one that predicts",
    "--layer": "all are computed and drawn; commands that show one place at a time say which",
    "--head": "as --layer",
    "--jobs": "pictures and built-in models are made by a process a core, a checkpoint by one",
    "--batch-size": "a training step has more sentences than a pass of a checkpoint has texts",
    "--expect": "leaks expects segments; of a mask, the model says what it promises",
    "--max-tokens": "a trace has n × n numbers, a census a few a sentence",
}


class OptionKind(NamedTuple):
    """What an option is: its name in Python, what it takes, and what it says before the particulars of its command."""

    name: str | None
    takes: str
    metavar: str | None
    multiple: bool
    meaning: str


def meaning_of(sentence: str) -> str:
    """What an option's help says in every command: up to the first colon, semicolon, bracket or full stop."""
    return re.split(r"[:;(\[]|\.\s|\.$", sentence, maxsplit=1)[0].strip()


def option_kinds() -> dict[str, dict[str, OptionKind]]:
    """Option → command → what it is there."""
    kinds: dict[str, dict[str, OptionKind]] = defaultdict(dict)
    for command in COMMANDS:
        for option in load_command(command).params:
            for flag in option.opts if option.param_type_name == "option" else ():
                kinds[flag][command] = OptionKind(
                    option.name, option.type.name, option.metavar, option.multiple, meaning_of(option.help or "")
                )
    return kinds


def test_an_option_says_and_takes_the_same_in_every_command() -> None:
    found, kinds = {}, option_kinds()
    for flag, of in kinds.items():
        assert all(kind.meaning for kind in of.values()), flag
        if all((name, flag) in DEPARTURES for name in of):  # where a command is deleted
            continue
        usual = Counter(of.values()).most_common(1)[0][0]
        found |= {(command, flag): kind for command, kind in of.items() if kind != usual}
    departures = {
        (name, flag)
        for name, flag in DEPARTURES
        if name in COMMANDS and any((other, flag) not in DEPARTURES for other in kinds[flag])
    }
    assert set(found) == departures, {at: found[at] for at in set(found) - departures}


def test_a_default_that_differs_is_told_in_the_help() -> None:
    told: dict[str, set[str]] = defaultdict(set)
    for command in COMMANDS:
        for option in load_command(command).params:
            if option.param_type_name != "option":
                continue
            if said := re.search(r"\[default: ([^\]]+)\]", option.help or ""):
                told[max(option.opts, key=len)].add(said[1])
            elif option.show_default and not option.is_flag and option.default:
                told[max(option.opts, key=len)].add(str(option.default))
    differing = {flag for flag, defaults in told.items() if len(defaults) > 1}
    # where a command is deleted, the others may agree
    assert differing <= set(DEFAULTS) <= set(told), {flag: told[flag] for flag in differing ^ set(DEFAULTS)}
