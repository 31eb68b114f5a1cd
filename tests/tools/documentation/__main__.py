"""Writes the documentation anew after the trained models, or what a command prints, have changed.

    python -m tests.tools.documentation            the outputs in README.md, samples/README.md and attnctl/docs/*.md
    python -m tests.tools.documentation python     attnctl/docs/python.md, after a public signature or docstring has changed
    python -m tests.tools.documentation pictures   attnctl/docs/pictures (needs Chromium and chromedriver)
    python -m tests.tools.documentation pictures --run RUN    the same; the picture of a training from the folder RUN
    python -m tests.tools.documentation evolution             that picture alone, after a training of some minutes

Of an output that the page abridges with "…" the lines that are most like those shown before are kept. Afterwards read what
`git diff` shows: a sentence around an example may say what the example no longer does.

A comment `<!-- head: pronoun → antecedent -->` in a page says what the head in the examples after it was measured to find,
up to the next heading: its layer and head are written anew from the card of the model.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from difflib import SequenceMatcher
from pathlib import Path

from tests.tools.documentation.examples import (
    GAP,
    PAGES,
    ROOT,
    Example,
    agrees,
    fill_room,
    missing,
    run_command,
    sections_of,
    shown_lines,
)

FILL = "???"  # as an output: write all of it
MARKED = re.compile(r"<!-- head: (?P<relation>.+?) -->(?P<rest>.*?)(?=^#|<!-- head:|\Z)", re.DOTALL | re.MULTILINE)


def heads_of_relations() -> dict[str, tuple[int, int]]:
    """Relation → the (layer, head) of demo that was measured to find it."""
    import json

    from attnctl.models.builtin.weights import path_of, read_weights

    figures = json.loads(read_weights(path_of("demo")).metadata["figures"])
    return {relation: (found["layer"], found["head"]) for relation, found in figures.items()}


def with_heads(text: str) -> str:
    """A page, its marked examples naming the heads of the present models. Raises KeyError for an unknown relation."""
    heads = heads_of_relations()

    def renamed(part: re.Match[str]) -> str:
        layer, head = heads[part["relation"]]
        rest = re.sub(r"--layer \d+ --head \d+", f"--layer {layer} --head {head}", part["rest"])
        rest = re.sub(r"\.layers\[\d+\]\.heads\[\d+\]", f".layers[{layer}].heads[{head}]", rest)
        rest = re.sub(r'\["layers"\]\[\d+\]\["heads"\]\[\d+\]', f'["layers"][{layer}]["heads"][{head}]', rest)
        rest = re.sub(r"layer=\d+, head=\d+", f"layer={layer}, head={head}", rest)
        return f"<!-- head: {part['relation']} -->{rest}"

    return MARKED.sub(renamed, text)


def abridged(shown: str, out: str) -> str:
    """An output, abridged as the page abridged the one before."""
    new, old = shown_lines(out), shown_lines(shown)
    if old == [FILL] or GAP not in {line.strip() for line in old}:
        return "".join(f"{line}\n" for line in new)
    runs: list[list[str]] = [[]]
    for line in old:
        if line.strip() == GAP:
            runs.append([])
        else:
            runs[-1].append(line)
    kept, at = [], 0
    for number, run in enumerate(runs):
        if number:
            kept.append(GAP)
        if not run:
            continue
        first, last = number == 0, number == len(runs) - 1
        start = 0 if first else max(0, len(new) - len(run)) if last else best_start(run, new, at)
        kept += new[start : start + len(run)]
        at = start + len(run)
    text = "".join(f"{line}\n" for line in kept)
    return text if agrees(text, out) else "".join(f"{line}\n" for line in new)  # too little is left to be abridged


def best_start(run: list[str], new: list[str], after: int) -> int:
    """Where in `new` the lines most like `run` begin, from `after` on."""
    places = range(after, max(after, len(new) - len(run)) + 1)
    return max(places, key=lambda at: (sum(likeness(*pair) for pair in zip(run, new[at:], strict=False)), -at))


def likeness(old: str, new: str) -> float:
    """How alike two lines are; other numbers count less than other words."""
    wordless = [re.sub(r"\d", "0", line) for line in (old, new)]
    return SequenceMatcher(None, *wordless).ratio() + 0.1 * SequenceMatcher(None, old, new).ratio()


def refreshed(page: str, text: str) -> str:
    """A page with the outputs of now."""
    changes: list[tuple[int, int, str]] = []
    for section in sections_of(page):
        with tempfile.TemporaryDirectory() as folder:
            fill_room(Path(folder))
            changes += [
                change for example in section.examples if (change := change_of(example, Path(folder), section.name))
            ]
    for start, end, output in sorted(changes, reverse=True):
        text = text[:start] + output + text[end:]
    return text


def change_of(example: Example, room: Path, where: str) -> tuple[int, int, str] | None:
    """Run an example; answers where its output stands and what it is now, None where nothing is to be changed."""
    if example.kind != "console":
        return None
    if reason := missing(example):
        report(f"{where}: not run, {reason}: {example.source[:80]}")
        return None
    ran = run_command(example.source, room)
    if ran.code:
        report(f"{where}: exit {ran.code}: {example.source}\n    {ran.err.strip()[:300]}")
        return None
    if not example.output.strip() or agrees(example.output, ran.out):
        return None
    report(f"{where}: {example.source[:100]}")
    trailing = "\n" * (len(example.output) - len(example.output.rstrip("\n")) - 1)
    lines = abridged(example.output, ran.out).splitlines()
    return example.start, example.end, "".join(f"{example.indent}{line}".rstrip() + "\n" for line in lines) + trailing


def refresh_outputs(pages: list[str]) -> None:
    """Write every page anew."""
    for page in pages:
        path = ROOT / page
        path.write_text(with_heads(path.read_text(encoding="utf-8")), encoding="utf-8")
        path.write_text(refreshed(page, path.read_text(encoding="utf-8")), encoding="utf-8")


def report(line: str) -> None:
    """A line about what was done."""
    sys.stderr.write(f"{line}\n")


def main() -> None:
    """Refresh what was asked for."""
    parser = argparse.ArgumentParser(description="Write the documentation anew.")
    parser.add_argument(
        "what", nargs="?", default="outputs", choices=("outputs", "python", "pictures", "evolution", "all")
    )
    parser.add_argument("--run", help="folder of a training, for the picture of it")
    parser.add_argument("--pages", nargs="*", default=list(PAGES))
    asked = parser.parse_args()
    if asked.what in ("outputs", "all"):
        refresh_outputs(asked.pages)
    if asked.what in ("python", "all"):
        from tests.tools.documentation.python_reference import PAGE, python_page

        PAGE.write_text(python_page(), encoding="utf-8")
    if asked.what in ("pictures", "evolution", "all"):
        from tests.tools.documentation import pictures

        pictures.make(asked.what, asked.run)


if __name__ == "__main__":
    main()
