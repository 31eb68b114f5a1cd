"""`attnctl quiz`: questions about the numbers of a sentence."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from attnctl.checks import limits
from attnctl.cli import (
    CHECKPOINT,
    LOOK,
    MADE,
    MATHEMATICS,
    OUTPUT,
    FileOption,
    HeadOption,
    LayerOption,
    QueryOption,
    TextArgument,
    TextModelOptions,
    command,
    open_source,
    put_bytes,
    safe_console,
    say_notes,
    say_unknown,
    show_forms,
    whole,
)
from attnctl.errors import UsageError, until_end

if TYPE_CHECKING:
    from rich.console import Console

    from attnctl.commands.quiz.result import QuizQuestion


@command(example='attnctl quiz "Alice will eat pizza"', more=(MATHEMATICS, MADE, CHECKPOINT))
def quiz_command(
    context: Context,
    text: TextArgument = None,
    *,
    file: FileOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    query: QueryOption = None,
    questions: Annotated[
        int,
        Option(
            "--questions",
            "-n",
            help="Number of questions.",
            metavar="N",
            parser=whole(limits.QUESTIONS),
            rich_help_panel=LOOK,
        ),
    ] = 5,
    json: Annotated[
        bool,
        Option(
            "--json", help="Write JSON: the questions with their answers, without asking them.", rich_help_panel=OUTPUT
        ),
    ] = False,
    model: TextModelOptions,
) -> None:
    """Ask questions about the attention of a sentence, mark the answers, and give a score.

    Answers are read from standard input, one a line: a letter, a token, or a number. An empty line skips the question.
    """
    from attnctl.checks.selection import find_token
    from attnctl.commands.quiz.compute import questions_of_trace
    from attnctl.commands.quiz.show import beginning_forms
    from attnctl.source import check_attention_weights, prepare
    from attnctl.text import visible_text

    if "-" in (text, file) and not json:
        raise UsageError("standard input is where the answers come from: give the text in quotes or as --file FILE")
    prepared = prepare(open_source(context, text, file, model), layer=layer, head=head, say=say_notes)
    check_attention_weights(prepared.source, "quiz")
    trace = prepared.trace(predictions=False)
    say_unknown(trace.tokens, notes=trace.notes)
    place = None if query is None else find_token(trace.tokens, query)
    whole_model = prepared.model if layer is None and head is None else None
    quiz_questions = questions_of_trace(trace, questions, model.seed or 0, place, whole_model)
    if json:
        from msgspec import convert

        from attnctl.commands.quiz.result import QuestionEntry, Quiz
        from attnctl.formats import write_json

        entries = convert(quiz_questions, tuple[QuestionEntry, ...], from_attributes=True)
        put_bytes(write_json(Quiz(text=trace.text, model=trace.model, questions=entries), "quiz") + b"\n")
        return
    until_end.close()  # the quiz waits for its user: no lines on the progress of its work
    page = safe_console()
    if (first := trace.headline(query=place)) is not None and first.reason:
        many = (trace.model.n_layers or 1) * (trace.model.n_heads or 1) > 1
        where = f"layer {first.layer}, head {first.head}" if many else ""
        show_forms(beginning_forms(first, visible_text(trace.tokens[first.query].text), where))
    run_quiz(page, quiz_questions)


def run_quiz(page: Console, questions: Sequence[QuizQuestion]) -> None:
    """Ask the questions, mark the answers, and print the score. If the input ends early, the quiz ends with it."""
    from attnctl.commands.quiz.result import is_right
    from attnctl.commands.quiz.show import answer_forms, question_forms, score_forms

    marks: list[bool] = []
    for number, question in enumerate(questions, 1):
        show_forms(question_forms(question, number, len(questions)))
        line = read_answer(page, question)
        if line is None:
            break
        marks.append(bool(line) and bool(is_right(question, line)))
        show_forms(answer_forms(question, line, marks[-1]))
    show_forms(score_forms(sum(marks), len(marks), len(questions)))


def read_answer(page: Console, question: QuizQuestion) -> str | None:
    """Return one line of standard input, None at its end. At a terminal, ask again if the line is not an answer."""
    from attnctl.commands.quiz.result import is_right

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
        expected = "one of the letters" if question.choices else "a number, such as 0.42"
        page.print(f"  That is not an answer: give {expected}, or an empty line to pass.")
