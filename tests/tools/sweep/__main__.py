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
    arguments = parser.parse_args()
    families_module.DEVICE = arguments.device
    part, parts = map(int, arguments.part.split("/"))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    modes = [mode for mode in MODES if arguments.mode is None or mode.name in arguments.mode.split(",")]
    started, results = time.monotonic(), []
    for family in list(families())[part - 1 :: parts]:
        if arguments.words and not any(word in str(family) for word in arguments.words):
            continue
        for verdict in verdicts(family, modes):
            results.append(verdict)
            if arguments.all or verdict.outcome != EXACT:
                print(f"{verdict.outcome:9} {family} | {verdict.mode} | {verdict.kernel} | {verdict.why}", flush=True)
    print(table(results))
    print(f"{time.monotonic() - started:.0f} s, transformers {transformers.__version__}, torch {torch.__version__}")
    if arguments.page is not None:
        versions = f"transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}"
        arguments.page.write_text(page(results, f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {versions}"), "utf-8")


OUTCOMES = (EXACT, REFUSED, WRONG, ERROR, UNBUILT)


def counts_of(results: list[Verdict]) -> dict[str, Counter[str]]:
    """Return mode → outcome → count; "(family, head)" counts the worst outcome of each family."""
    counts = {
        mode: Counter(verdict.outcome for verdict in results if verdict.mode == mode)
        for mode in dict.fromkeys(verdict.mode for verdict in results)
    }
    return counts | {"(family, head)": Counter(worst_of(results).values())}


def worst_of(results: list[Verdict]) -> dict[str, str]:
    """Return the worst outcome of each family; a mode in which the model itself does not run does not count."""
    ranks = (UNBUILT, EXACT, REFUSED, ERROR, WRONG)
    worst: dict[str, int] = {}
    for verdict in results:
        if verdict.outcome != UNBUILT or verdict.mode == "plain":
            name = str(verdict.family)
            worst[name] = max(worst.get(name, 0), ranks.index(verdict.outcome))
    return {name: ranks[rank] for name, rank in worst.items()}


def table(results: list[Verdict]) -> str:
    """Return a table of the outcomes, by mode and by family."""
    lines = [f"{'mode':14}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES)]
    for name, count in counts_of(results).items():
        lines.append(f"{name:14}" + "".join(f"{count[outcome]:11}" for outcome in OUTCOMES))
    return "\n".join(lines)


def page(results: list[Verdict], when: str) -> str:
    """Return the results as a page in Markdown."""
    counts = counts_of(results)
    count, worst = counts["(family, head)"], worst_of(results)
    summary = ", ".join(f"{count[outcome]} {outcome}" for outcome in OUTCOMES if count[outcome] or outcome == WRONG)
    rows = [
        f"| {name} | " + " | ".join(str(outcomes[outcome]) for outcome in OUTCOMES) + " |"
        for name, outcomes in counts.items()
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
            "values give the context of the layer; layers have the numbers of the model; `check` finds no difference. *Refused* means",
            "that attnctl gives one line with the reason. A family with one of its heads gets the worst result of all ways of running.",
            "",
            f"**{summary}** ({when}).",
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
            *_reasons(results, REFUSED, worst),
            "",
            "## Not built",
            "",
            "These cannot be built small, need a package that is not installed, or do not run alone.",
            "",
            "| family, head | ways | why |",
            "| --- | --- | --- |",
            *_reasons(results, UNBUILT, worst),
            "",
            "## Exact in every way",
            "",
            ", ".join(exact) + ".",
            "",
        ]
    )


def _reasons(results: list[Verdict], outcome: str, worst: dict[str, str]) -> list[str]:
    """Return rows of a table: the families whose worst outcome this is, the ways of running, and the reason."""
    rows = []
    for name in sorted(name for name, one in worst.items() if one == outcome):
        verdicts_of_family = [
            verdict for verdict in results if str(verdict.family) == name and verdict.outcome == outcome
        ]
        ways = list(dict.fromkeys(verdict.mode for verdict in verdicts_of_family))
        every = {
            verdict.mode for verdict in results if str(verdict.family) == name and verdict.outcome in (outcome, EXACT)
        }
        why = " ".join(verdicts_of_family[0].why.split()).replace("|", "\\|").replace("<", "&lt;")
        rows.append(f"| {name} | {'all' if len(ways) == len(every) else ', '.join(ways)} | {why} |")
    return rows


if __name__ == "__main__":
    main()
