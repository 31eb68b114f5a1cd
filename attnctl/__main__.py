"""The program: `attnctl`, or `python -m attnctl`."""

from attnctl import lean
from attnctl.cli import main as run


def main() -> None:
    """Run attnctl in a process of its own, and exit with its code."""
    lean.alone = True
    run()


if __name__ == "__main__":
    main()
