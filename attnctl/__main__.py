"""The program: `attnctl`, or `python -m attnctl`."""

import gc

from attnctl import light_import
from attnctl.cli import run_command_line as run

CALM = 20_000  # objects between two looks for garbage: Python's 700 are a tenth of a start that makes none


def main() -> None:
    """Run attnctl in a process of its own, and exit with its code."""
    light_import.alone = True
    gc.set_threshold(CALM)
    run()


if __name__ == "__main__":
    main()
