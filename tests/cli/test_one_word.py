"""One word, one option: an option of a name takes the same kind of value in every command, but for those listed here."""

from __future__ import annotations

from collections import Counter, defaultdict

from attnctl.cli import COMMANDS, command_named

# (command, option) → why its value is of another kind than elsewhere
DEPARTURES = {
    ("model", "--tokens"): "there is no text whose tokens could be named: it is how many the model reads",
    ("train", "--steps"): "of training: how many there are; explain's are those of the mathematics",
    ("evaluate", "-o"): "may be given several times: numbers, table and picture of one long measurement",
    ("evaluate", "--output"): "as -o",
    ("ablate", "--heads"): "it makes no model, so heads are chosen: the same as --head",
    ("ablate", "--layers"): "it makes no model, so layers are chosen: the same as --layer",
}


def test_an_option_takes_the_same_in_every_command() -> None:
    kinds: dict[str, dict[str, tuple[str, str, str | None, bool]]] = defaultdict(dict)
    for command in COMMANDS:
        for parameter in command_named(command).params:
            for flag in parameter.opts if parameter.param_type_name == "option" else ():
                kinds[flag][command] = (parameter.name, parameter.type.name, parameter.metavar, parameter.multiple)
    found = set()
    for flag, of in kinds.items():
        usual = Counter(of.values()).most_common(1)[0][0]
        found |= {(command, flag) for command, kind in of.items() if kind != usual}
    assert found == set(DEPARTURES)
