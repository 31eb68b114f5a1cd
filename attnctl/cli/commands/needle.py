"""`attnctl needle`: is a planted fact found, at every depth of prompts of several lengths, and which heads fetch it."""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import Any

import typer

from attnctl import inputs
from attnctl.argument_types import OptionValues
from attnctl.cli import arguments
from attnctl.cli.output import output_format, print_lines, put_bytes, safe_console, show_renderable
from attnctl.cli.progress import cost_progress
from attnctl.errors import INTERRUPTED, AttnctlError, UsageError
from attnctl.files import read_bytes, write_whole
from attnctl.formats.documents.json_documents import write_json
from attnctl.formats.documents.readings_json import cell_document, cells_of, needles_document
from attnctl.formats.pictures import figure_bytes, format_names
from attnctl.readings.effects.needle import Needle, NeedleCell, NeedleRun, Needles, filler_sentences, sentences_of
from attnctl.render.terminal.source_tables import NeedleTable

LENGTHS = "512,1024,2048"  # as an example in a message


def needle_command(
    *,
    needle: str | None,
    question: str | None,
    expect: str | None,
    haystack: str | None,
    lengths: str,
    depths: str,
    switch_off: int,
    json: bool,
    output: str | None,
    **options: Any,
) -> None:
    """Whether a planted fact is found, and by which heads."""
    form = output_format("needle", output, ("jsonl", *format_names()), "jsonl" if json else "")
    output = None if output == "-" else output
    wanted = [(n, depth) for n in _whole_numbers(lengths, "--lengths") for depth in _depth_shares(depths)]
    planted = _planted_needle(needle, question, expect)
    asker, run = _open_asker(planted, haystack, options.pop("seed", None) or 0, options)
    cells = _known_cells(output, run) if form == "jsonl" and output is not None else []
    interrupted = False
    try:
        for cell in _ask_unknown(asker, wanted, cells):
            if form == "jsonl":
                _write_cell(cell, run, output)
        found = _without_best_heads(asker, run, cells, switch_off)
    except KeyboardInterrupt:
        arguments.say_notes(("interrupted: this is what is known so far",))
        found, interrupted = Needles(run, tuple(cells)), True
    _write_needles(found, form, output)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if not found.answered_count:
        raise AttnctlError(f"{asker.model.info.name} answers none of the {len(cells)} needles")


def _whole_numbers(spec: str, option: str) -> list[int]:
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*(,\s*[0-9]{1,9}\s*)*", spec):
        raise UsageError(f"{option} {spec!r}: whole numbers with commas, like {LENGTHS}")
    return [int(part) for part in spec.split(",")]


def _depth_shares(spec: str) -> list[float]:
    found = _whole_numbers(spec, "--depths")
    if max(found) > 100:
        raise UsageError(f"--depths {spec}: they are in %, 0 to 100")
    return [depth / 100 for depth in found]


def _planted_needle(text: str | None, question: str | None, expect: str | None) -> Needle:
    """The needle: the one that is always there, or the user's own. Raises UsageError for a part of one."""
    given = [part for part in (text, question, expect) if part is not None]
    if not given:
        return Needle()
    if text is None or question is None or expect is None or not all(part.strip() for part in given):
        raise UsageError("a needle of your own needs all three: --needle, --question and --expect")
    return Needle(text, question, expect)


def _open_asker(needle: Needle, haystack: str | None, seed: int, options: OptionValues) -> tuple[Any, NeedleRun]:
    """What asks the model, and the run that its answers belong to."""
    text = None if haystack is None else inputs.text_of(None, haystack)
    sentences = None if text is None else sentences_of(text)
    model = arguments.model_of(options)
    if model.info.kind != "checkpoint":
        raise UsageError(f"{model.info.name} answers no questions: name a checkpoint with --model (smollm2, a folder)")
    from attnctl.models.huggingface.needles import NeedleAsker

    asker = NeedleAsker(
        model, needle, (lambda: filler_sentences(seed)) if sentences is None else (lambda: cycle(sentences))
    )
    digest = None if text is None else sha256(text.encode()).hexdigest()
    return asker, NeedleRun(model.info, needle, seed, digest)


def _ask_unknown(asker: Any, wanted: list[tuple[int, float]], cells: list[NeedleCell]) -> Any:
    """Each needle that is not known yet, asked; `cells` grows by it."""
    limit, known = asker.model.pieces.limit, {(cell.length, cell.depth) for cell in cells}
    longest = max(length for length, _ in wanted)
    if limit is not None and longest > limit:
        raise AttnctlError(f"--lengths {longest:,}: {asker.model.info.name} reads {limit:,} tokens")
    left = [place for place in wanted if place not in known]
    with cost_progress(f"{len(left)} needles") as tick:
        for length, depth in left:
            cells.append(asker.ask_needle(length, depth))
            yield cells[-1]
            if tick is not None:
                tick(1 / len(left))


def _without_best_heads(asker: Any, run: NeedleRun, cells: list[NeedleCell], count: int) -> Needles:
    """All that is known, with the check: the best heads switched off, and as many others."""
    from attnctl.models.huggingface.needles import random_heads

    found = Needles(run, tuple(cells))
    best = list(found.retrieval_heads())[:count]
    if not best:
        return found
    others = random_heads(list(found.retrieval_scores()), best, len(best), run.seed)
    return replace(found, off=asker.answered_without(best, cells), random_off=asker.answered_without(others, cells))


def _known_cells(output: str, run: NeedleRun) -> list[NeedleCell]:
    """The needles that the file of an earlier run holds."""
    if not Path(output).is_file() or not Path(output).stat().st_size:
        return []
    data = read_bytes(output)
    cells = cells_of(data, output, run)
    if not data.endswith(b"\n"):  # stopped in the middle of a line
        write_whole(output, data[: data.rfind(b"\n") + 1])
    arguments.say_notes((f"{len(cells)} needles are in {output} already",))
    return cells


def _write_cell(cell: NeedleCell, run: NeedleRun, output: str | None) -> None:
    line = write_json(cell_document(cell, run), "needle") + b"\n"
    if output is None:
        put_bytes(line)
        return
    with Path(output).open("ab") as file:  # a line is whole, or is asked for again
        file.write(line)


def _write_needles(found: Needles, form: str, output: str | None) -> None:
    if form == "jsonl" and output is None:
        put_bytes(write_json(needles_document(found), "result") + b"\n")
    elif form in ("terminal", "jsonl"):
        if form == "terminal" and not safe_console().is_terminal:
            print_lines("length\tdepth\ttokens\tanswered\tfound")
            print_lines(
                *(f"{c.length}\t{c.depth:g}\t{c.tokens}\t{str(c.answered).lower()}\t{c.found:.6g}" for c in found.cells)
            )
            return
        show_renderable(NeedleTable(found))
    else:
        from attnctl.render.figure.charts import needle_drawing

        drawing = needle_drawing(found)
        arguments.say_notes(drawing.notes)
        put_bytes(figure_bytes(drawing.figure, form), output)
