"""`attnctl needle`: does a model find a planted fact, at every depth of prompts of several lengths?"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from attnctl import inputs
from attnctl.checks import limits
from attnctl.cli import (
    INPUT,
    OUTPUT,
    WORK,
    AnswerOptions,
    command,
    cost_progress,
    model_of,
    option_values,
    output_format,
    output_option,
    print_lines,
    put_bytes,
    safe_console,
    say_note,
    say_notes,
    say_unless_quiet,
    show_forms,
    whole,
    write_panels,
)
from attnctl.errors import INTERRUPTED, AttnctlError, UsageError
from attnctl.formats import format_names, suffixes_listed
from attnctl.runtime.files import lock_file
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.commands.needle.compute import NeedleAsker
    from attnctl.commands.needle.result import NeedleCell, Needles

LENGTHS, DEPTHS = "512,1024,2048", "0,50,100"  # as examples in a message

ANSWER = 256  # an answer takes about as long as reading this many tokens


@command(example="attnctl needle --model smollm2 --lengths 512,1024")
def needle_command(
    *,
    needle: Annotated[
        str | None,
        Option("--needle", help="The fact to plant.", metavar="TEXT", rich_help_panel=INPUT),
    ] = None,
    question: Annotated[
        str | None,
        Option("--question", help="The question about it.", metavar="TEXT", rich_help_panel=INPUT),
    ] = None,
    expect: Annotated[
        str | None,
        Option(
            "--expect",
            help="Text that a right answer contains, in any letter case.",
            metavar="TEXT",
            rich_help_panel=INPUT,
        ),
    ] = None,
    haystack: Annotated[
        str | None,
        Option(
            "--haystack",
            help="A file of filler text [default: generated sentences].",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
    ] = None,
    lengths: Annotated[
        str,
        Option(
            "--lengths", help="Lengths of the prompts in tokens, with commas.", metavar="TEXT", rich_help_panel=INPUT
        ),
    ] = "512,1024,2048",
    depths: Annotated[
        str,
        Option(
            "--depths",
            help="Positions of the needle in % of the prompt, with commas.",
            metavar="TEXT",
            rich_help_panel=INPUT,
        ),
    ] = "0,25,50,75,100",
    switch_off: Annotated[
        int | None,
        Option(
            "--switch-off",
            help="Number of best heads that the check switches off; 0: no check [default: 10; in a pipe, for a picture: 0].",
            metavar="N",
            parser=whole(limits.SWITCHED_OFF),
            rich_help_panel=WORK,
        ),
    ] = None,
    json: Annotated[
        bool,
        Option(
            "--json", help="Write JSON: a line for each needle, then a line about the heads.", rich_help_panel=OUTPUT
        ),
    ] = False,
    output: Annotated[
        str | None,
        output_option(f"Where to write: .json, .jsonl (an existing file is continued), {suffixes_listed()}."),
    ] = None,
    model: AnswerOptions,
) -> None:
    """Plant a fact (a needle) in filler text, ask for it, and find the heads that fetch the answer.

    A head's retrieval score is the share of the answer's tokens for which it looks at the same token inside the needle
    (Wu et al. 2024). As a check, the needles are asked again without the best heads, then without the same number of random
    heads.
    """
    from attnctl.commands.needle.haystack import NEEDLE

    form = output_format("needle", output, ("json", "jsonl", *format_names()), "jsonl" if json else "")
    output = None if output == "-" else output
    tokens, shares = _whole_numbers(lengths, "lengths", LENGTHS), _whole_numbers(depths, "depths", DEPTHS)
    if max(shares) > 100:
        raise UsageError("they are percentages, 0 to 100", option="depths", value=depths)
    parts = tuple(part for part in (needle, question, expect) if part is not None) or NEEDLE
    parts = tuple(part.strip() for part in parts)  # a chat template strips a message, too
    if len(parts) != 3 or not all(parts):
        raise UsageError("your own needle needs all three: --needle, --question and --expect")
    text = None if haystack is None else inputs.text_of(None, haystack)
    from attnctl.models import answering_model
    from attnctl.source import AnswersByIds

    advice = "name a checkpoint with --model (smollm2, a folder)"
    opened = model_of(option_values(model) | {"seed": None})
    asker: NeedleAsker
    if isinstance(opened, AnswersByIds) and opened.can_answer:
        from attnctl.commands.needle.own_module import ModuleNeedles

        asker = ModuleNeedles.of_model(opened, parts, text, model.seed or 0)
    else:
        from attnctl.commands.needle.compute import NeedleAsker

        asker = NeedleAsker(answering_model(opened, advice, "answers no questions"), parts, text, model.seed or 0)
    # two runs on one file would ask and write everything twice
    with contextlib.ExitStack() as stack:
        if form == "jsonl" and output is not None:
            stack.callback(lock_file(Path(output)).release)
        _ask_needles(asker, tokens, shares, switch_off, form, output)


def _ask_needles(
    asker: NeedleAsker, tokens: list[int], shares: list[int], switch_off: int | None, form: str, output: str | None
) -> None:
    """Ask the needles that the file of -o does not have yet, and write the results of all."""
    from attnctl.commands.needle.result import known_needles
    from attnctl.commands.needle.show import heads_sentence, needle_sentence, off_sentences
    from attnctl.formats import write_json

    cells = known_needles(output, asker.run) if form == "jsonl" and output is not None else []
    if cells:
        say_notes((f"{output} has {counted(len(cells), 'needle')} already",))
    asker.check_length(max(tokens))
    asked = {(cell.length, cell.depth) for cell in cells}
    places = [place for n in tokens for share in shares if (place := (n, share / 100)) not in asked]
    interrupted, in_rows = False, form == "terminal" and not safe_console().is_terminal
    shows_heads = form in ("json", "jsonl") or (form == "terminal" and not in_rows)
    haystack = max((length * depth for length, depth in places), default=0)  # tokens that are read once for all needles
    total = haystack + sum(_tokens_read(*place) for place in places)
    try:
        with cost_progress(counted(len(places), "needle"), "fewer or shorter lengths take less") as tick:
            asked_cells = asker.ask_needles(places)
            tick(haystack / (total or 1))
            for cell in asked_cells:
                cells.append(cell)
                if form == "jsonl":
                    _write_line(write_json(cell, "needle"), output)
                if in_rows:
                    _print_rows([cell], header=len(cells) == 1)
                elif form != "jsonl" or output is not None:
                    say_unless_quiet(needle_sentence(cell))
                tick(_tokens_read(cell.length, cell.depth) / total)
        if switch_off is None:
            switch_off = 10 if shows_heads else 0
        with cost_progress("asking again without some heads") as tick:
            summary = asker.needles_of(cells, switch_off, tick)
    except KeyboardInterrupt:
        say_notes(("interrupted: these are the results so far",))
        summary, interrupted = asker.needles_of(cells), True
    _write_needles(summary, cells, form, output)
    if summary.answered and not shows_heads:
        say_unless_quiet(heads_sentence(summary))
        for sentence in off_sentences(summary):
            say_unless_quiet(sentence)
        if not switch_off and not interrupted and summary.retrieval_heads:
            say_note("--switch-off 10 asks again without the best of them")
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if not summary.answered:
        none = "does not answer the needle" if len(cells) == 1 else f"answers none of the {len(cells)} needles"
        raise AttnctlError(f"{asker.model.info.name} {none}")


def _tokens_read(length: int, depth: float) -> float:
    """Return how many tokens a needle costs: the text after it and an answer; the filler before it is shared."""
    return length * (1 - depth) + ANSWER


def _whole_numbers(spec: str, option: str, example: str) -> list[int]:
    """Return the different numbers of an option, in order: a needle at one place is asked once."""
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*(,\s*[0-9]{1,9}\s*)*", spec):
        raise UsageError(f"it is whole numbers with commas, like {example}", option=option, value=spec)
    return list(dict.fromkeys(int(part) for part in spec.split(",")))


def _write_line(line: bytes, output: str | None) -> None:
    """Append a whole line to a file, or write it to standard output if the file is None."""
    if output is None:
        put_bytes(line + b"\n")
        return
    with Path(output).open("ab") as file:
        file.write(line + b"\n")


def _print_rows(cells: list[NeedleCell], *, header: bool = False) -> None:
    """Print rows of the table of needles for a pipe at once, and with `header` the names of the columns before them."""
    from attnctl.commands.needle.show import needle_cells

    lines = needle_cells(cells).as_csv(delimiter="\t").splitlines()
    print_lines(*lines[0 if header else 1 :])
    sys.stdout.flush()


def _write_needles(summary: Needles, cells: list[NeedleCell], form: str, output: str | None) -> None:
    from msgspec.structs import replace

    from attnctl.commands.needle.show import needles_forms
    from attnctl.formats import write_json

    if form == "jsonl" and output is None:
        put_bytes(write_json(summary, "result") + b"\n")
    elif form == "json":
        put_bytes(write_json(replace(summary, needles=tuple(cell.planted for cell in cells)), "result") + b"\n", output)
    elif form == "jsonl" or (form == "terminal" and safe_console().is_terminal):
        show_forms(needles_forms(summary, cells))
    elif form != "terminal":  # in a pipe every row is printed already
        from attnctl.commands.needle.picture import needle_panels

        write_panels(needle_panels(summary, cells), form, output)
