"""python -m tests.sweep [words…] [--mode plain,stop]: all families, or those whose name holds one of the words."""

from __future__ import annotations

import argparse
import time
from collections import Counter

from tests.sweep.families import families
from tests.sweep.modes import MODES
from tests.sweep.verdict import ERROR, EXACT, REFUSED, UNBUILT, WRONG, Verdict, verdicts


def main() -> None:
    """Run the sweep, print what is not exact, and a table at the end."""
    import torch
    import transformers

    parser = argparse.ArgumentParser(prog="python -m tests.sweep")
    parser.add_argument("words", nargs="*", help="families whose name holds one of these (all)")
    parser.add_argument("--mode", help="modes, by comma (all): " + ", ".join(mode.name for mode in MODES))
    parser.add_argument("--all", action="store_true", help="print every line, the exact ones too")
    how = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    modes = [mode for mode in MODES if how.mode is None or mode.name in how.mode.split(",")]
    started, found = time.monotonic(), []
    for family in families():
        if how.words and not any(word in str(family) for word in how.words):
            continue
        for verdict in verdicts(family, modes):
            found.append(verdict)
            if how.all or verdict.outcome != EXACT:
                print(f"{verdict.outcome:9} {family} | {verdict.mode} | {verdict.kernel} | {verdict.why}", flush=True)
    print(table(found))
    print(f"{time.monotonic() - started:.0f} s, transformers {transformers.__version__}, torch {torch.__version__}")


def table(found: list[Verdict]) -> str:
    """Outcomes by mode, and by family: a family is as good as its worst mode."""
    outcomes = (EXACT, REFUSED, WRONG, ERROR, UNBUILT)
    lines = [f"{'mode':14}" + "".join(f"{outcome:>11}" for outcome in outcomes)]
    for mode in dict.fromkeys(verdict.mode for verdict in found):
        count = Counter(verdict.outcome for verdict in found if verdict.mode == mode)
        lines.append(f"{mode:14}" + "".join(f"{count[outcome]:11}" for outcome in outcomes))
    ranks = (UNBUILT, EXACT, REFUSED, ERROR, WRONG)
    worst: dict[str, int] = {}
    for verdict in found:
        if verdict.outcome != UNBUILT or verdict.mode == "plain":
            name = str(verdict.family)
            worst[name] = max(worst.get(name, 0), ranks.index(verdict.outcome))
    count = Counter(ranks[rank] for rank in worst.values())
    lines.append(f"{'(family, head)':14}" + "".join(f"{count[outcome]:11}" for outcome in outcomes))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
