"""Compare the weights that attnctl shows with those of transformers, for every family of models.

`python -m tests.tools.sweep [words…] [--mode plain,stop]` runs all families, or those whose name contains one of the words.
`python -m tests.tools.sweep --page attnctl/docs/architectures.md` writes the page of the documentation.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections import Counter
from pathlib import Path

from tests.tools.sweep import families as families_module
from tests.tools.sweep.families import families
from tests.tools.sweep.modes import MODES
from tests.tools.sweep.verdict import ERROR, EXACT, REFUSED, UNBUILT, WRONG, Verdict, verdicts


def main() -> None:
    """Run the sweep; print every result that is not exact, and a table at the end."""
    import torch
    import transformers

    parser = argparse.ArgumentParser(prog="python -m tests.tools.sweep")
    parser.add_argument("words", nargs="*", help="families whose name contains one of these [default: all]")
    parser.add_argument(
        "--mode", help="modes, separated by commas [default: all]: " + ", ".join(mode.name for mode in MODES)
    )
    parser.add_argument("--all", action="store_true", help="print every line, exact results too")
    parser.add_argument("--page", type=Path, help="write the results as a page of the documentation")
    parser.add_argument("--device", default="cpu", help="device of the networks [default: cpu]")
    parser.add_argument(
        "--part", default="1/1", help="K/N: run only the K-th of N parts of the families [default: 1/1]"
    )
    how = parser.parse_args()
    families_module.DEVICE = how.device
    part, parts = map(int, how.part.split("/"))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    modes = [mode for mode in MODES if how.mode is None or mode.name in how.mode.split(",")]
    started, found = time.monotonic(), []
    for family in list(families())[part - 1 :: parts]:
        if how.words and not any(word in str(family) for word in how.words):
            continue
        for verdict in verdicts(family, modes):
            found.append(verdict)
            if how.all or verdict.outcome != EXACT:
                print(f"{verdict.outcome:9} {family} | {verdict.mode} | {verdict.kernel} | {verdict.why}", flush=True)
    print(table(found))
    print(f"{time.monotonic() - started:.0f} s, transformers {transformers.__version__}, torch {torch.__version__}")
    if how.page is not None:
        versions = f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}"
        how.page.write_text(page(found, f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {versions}"), "utf-8")


OUTCOMES = (EXACT, REFUSED, WRONG, ERROR, UNBUILT)


def counts_of(found: list[Verdict]) -> dict[str, Counter[str]]:
    """Return mode → outcome → count; "(family, head)" counts the worst outcome of each family."""
    counts = {
        mode: Counter(verdict.outcome for verdict in found if verdict.mode == mode)
        for mode in dict.fromkeys(verdict.mode for verdict in found)
    }
    return counts | {"(family, head)": Counter(worst_of(found).values())}


def worst_of(found: list[Verdict]) -> dict[str, str]:
    """Return the worst outcome of each family; a mode in which the model itself does not run does not count."""
    ranks = (UNBUILT, EXACT, REFUSED, ERROR, WRONG)
    worst: dict[str, int] = {}
    for verdict in found:
        if verdict.outcome != UNBUILT or verdict.mode == "plain":
            name = str(verdict.family)
            worst[name] = max(worst.get(name, 0), ranks.index(verdict.outcome))
    return {name: ranks[rank] for name, rank in worst.items()}


def table(found: list[Verdict]) -> str:
    """Return a table of the outcomes, by mode and by family."""
    lines = [f"{'mode':14}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES)]
    for name, count in counts_of(found).items():
        lines.append(f"{name:14}" + "".join(f"{count[outcome]:11}" for outcome in OUTCOMES))
    return "\n".join(lines)


def page(found: list[Verdict], when: str) -> str:
    """Return the results as a page in Markdown."""
    counts = counts_of(found)
    count, worst = counts["(family, head)"], worst_of(found)
    said = ", ".join(f"{count[outcome]} {outcome}" for outcome in OUTCOMES if count[outcome] or outcome == WRONG)
    rows = [
        f"| {name} | " + " | ".join(str(one[outcome]) for outcome in OUTCOMES) + " |" for name, one in counts.items()
    ]
    exact = sorted(name for name, outcome in worst.items() if outcome == EXACT)
    return "\n".join(
        [
            "# Architectures",
            "",
            "attnctl shows exact numbers. To check this, every architecture of the installed transformers that can be built small",
            "is tested with random weights, in every way that a model is run. The weights are scaled so that attention has clear",
            "peaks. *Exact* means all of the following: the output of the model does not change while attnctl records it; the weights",
            'equal those of `attn_implementation="eager"` within 1e-5 (half precision is compared with half precision); weights times',
            "values give the context of the layer; layers have the numbers of the model; `--check` finds no difference. *Refused* means",
            "that attnctl gives one line with the reason. A family with one of its heads gets the worst result of all ways of running.",
            "",
            f"**{said}** ({when}).",
            "`python -m tests.tools.sweep --page attnctl/docs/architectures.md` writes this page again.",
            "",
            "| way of running | " + " | ".join(OUTCOMES) + " |",
            "| --- |" + " --- |" * len(OUTCOMES),
            *rows,
            "",
            "## Refused in at least one way",
            "",
            "| family, head | ways | why |",
            "| --- | --- | --- |",
            *_reasons(found, REFUSED, worst),
            "",
            "## Not built",
            "",
            "These cannot be built small, need a package that is not installed, or do not run alone.",
            "",
            "| family, head | ways | why |",
            "| --- | --- | --- |",
            *_reasons(found, UNBUILT, worst),
            "",
            "## Exact in every way",
            "",
            ", ".join(exact) + ".",
            "",
        ]
    )


def _reasons(found: list[Verdict], outcome: str, worst: dict[str, str]) -> list[str]:
    """Return rows of a table: the families whose worst outcome this is, the ways of running, and the reason."""
    rows = []
    for name in sorted(name for name, one in worst.items() if one == outcome):
        mine = [verdict for verdict in found if str(verdict.family) == name and verdict.outcome == outcome]
        ways = list(dict.fromkeys(verdict.mode for verdict in mine))
        every = {
            verdict.mode for verdict in found if str(verdict.family) == name and verdict.outcome in (outcome, EXACT)
        }
        why = " ".join(mine[0].why.split()).replace("|", "\\|").replace("<", "&lt;")
        rows.append(f"| {name} | {'all' if len(ways) == len(every) else ', '.join(ways)} | {why} |")
    return rows


if __name__ == "__main__":
    main()
