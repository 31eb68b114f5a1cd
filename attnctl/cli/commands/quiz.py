"""`attnctl quiz`: questions made from the actual numbers of a sentence."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from attnctl import api
from attnctl.cli import arguments
from attnctl.cli.output import put_bytes, safe_console
from attnctl.errors import UsageError
from attnctl.readings.questions.headline import headline
from attnctl.readings.questions.quiz import QuizQuestion, is_right
from attnctl.render.terminal.console import Shown
from attnctl.render.told.quiz import answer_forms, beginning_forms, question_forms, score_forms
from attnctl.source import check_attention_weights, prepare
from attnctl.text import visible_text
from attnctl.tokens import find_token


def quiz_command(
    *,
    text: str | None,
    file: str | None,
    layer: str | None,
    head: str | None,
    query: str | None,
    questions: int,
    json: bool,
    **options: Any,
) -> None:
    """Ask questions about the attention of a sentence, mark the answers, give a score."""
    if "-" in (text, file) and not json:
        raise UsageError("standard input is where the answers come from: give the text in quotes or as --file FILE")
    given = prepare(arguments.open_source(text, file, None, options), layer=layer, head=head, say=arguments.say_notes)
    check_attention_weights(given.source, "quiz")
    trace = given.trace(predictions=False)
    arguments.say_unknown(trace.tokens, notes=trace.notes)
    at = None if query is None else find_token(trace.tokens, query)
    model = given.model if layer is None and head is None else None
    asked = api.questions_of_trace(trace, questions, options.get("seed") or 0, at, model)
    if json:
        from attnctl.formats.documents.readings_json import quiz_to_json

        put_bytes(quiz_to_json(trace.text, trace.model, asked) + b"\n")
        return
    page = safe_console()
    if (first := headline(trace, query=at)) is not None and first.reason:
        many = (trace.model.n_layers or 1) * (trace.model.n_heads or 1) > 1
        where = f"layer {first.layer}, head {first.head}" if many else ""
        page.print(Shown(beginning_forms(first, visible_text(trace.tokens[first.query].text), where)))
    run_quiz(page, asked)


def run_quiz(page: Console, asked: Sequence[QuizQuestion]) -> None:
    """Ask, mark and count; a stream that ends early ends the quiz with what was answered."""
    marks: list[bool] = []
    for number, question in enumerate(asked, 1):
        page.print(Shown(question_forms(question, number, len(asked))))
        line = read_answer(page, question)
        if line is None:
            break
        marks.append(bool(line) and bool(is_right(question, line)))
        page.print(Shown(answer_forms(question, line, marks[-1])))
    page.print(Shown(score_forms(sum(marks), len(marks), len(asked))))


def read_answer(page: Console, question: QuizQuestion) -> str | None:
    """One line of standard input; None where there is no more. At a terminal, asked again where it is no answer."""
    at_terminal = sys.stdin.isatty()
    while True:
        if at_terminal:
            page.print("  > ", end="")
        line = sys.stdin.readline()
        if not line:
            page.print()
            return None
        if not at_terminal or not line.strip() or is_right(question, line) is not None:
            return line.strip()
        wanted = "one of the letters" if question.choices else "a number, such as 0.42"
        page.print(f"  That is no answer: give {wanted}, or an empty line to pass.")
