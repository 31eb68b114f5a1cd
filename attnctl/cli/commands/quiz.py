"""`attnctl quiz`: questions made from the actual numbers of a sentence."""

from __future__ import annotations

import random
import sys
from typing import Any

from rich.console import Console

from attnctl.cli import arguments
from attnctl.cli.output import put_json, safe_console
from attnctl.errors import UsageError
from attnctl.formats.documents.json_documents import model_document
from attnctl.models.watching import watched_text
from attnctl.readings.effects.ablation import EffectRequest, measure_effects
from attnctl.readings.questions.focus import focus
from attnctl.readings.questions.quiz import QuizQuestion, is_right, quiz_questions, removal_question
from attnctl.render.terminal.learning import beginning, marked_answer, put_question, quiz_result
from attnctl.source import check_attention_weights, prepare
from attnctl.text import visible_text
from attnctl.tokens import BLANKS, find_token


def quiz_command(
    *,
    text: str | None,
    file: str | None,
    layer: str | None,
    head: str | None,
    query: str | None,
    count: int,
    json: bool,
    **options: Any,
) -> None:
    """Ask questions about the attention of a sentence, mark the answers, give a score."""
    if "-" in (text, file) and not json:
        raise UsageError("standard input is where the answers come from: give the text in quotes or as --file FILE")
    given = prepare(arguments.open_source(text, file, None, options), layer=layer, head=head, say=arguments.say_notes)
    check_attention_weights(given.source, "quiz")
    trace = given.trace(predictions=False)
    model, info, text = given.model, trace.model, trace.text
    arguments.say_unknown(trace.tokens, notes=trace.notes)
    at = None if query is None else find_token(trace.tokens, query)
    asked = quiz_questions(trace, count, options.get("seed") or 0, at)
    if model is not None and layer is None and head is None and len(asked) > 2:
        asked = with_removal(asked, model, text, options.get("seed") or 0)
    if json:
        questions = [question.question_document() for question in asked]
        put_json({"text": text, "model": model_document(info), "questions": questions}, schema="quiz")
        return
    page = safe_console()
    if (first := focus(trace, query=at)) is not None and first.reason:
        many = (info.n_layers or 1) * (info.n_heads or 1) > 1
        where = f"layer {first.layer}, head {first.head}" if many else ""
        page.print(beginning(first, visible_text(trace.tokens[first.query].text), where))
    run_quiz(page, asked)


def with_removal(asked: list[QuizQuestion], model: Any, text: str, seed: int) -> list[QuizQuestion]:
    """The last question made one on what matters, where a built-in model makes a prediction that one head carries."""
    if model.info.kind in ("checkpoint", "matrix") or getattr(model, "unembedding", None) is None:
        return asked
    watched = watched_text(model, text if model.info.causal else with_blank(model, text))
    found = removal_question(measure_effects(watched, EffectRequest()), random.Random(seed))
    return asked if found is None else [*asked[:-1], found]


def with_blank(model: Any, text: str) -> str:
    """The text with its last word hidden, where none is: a model that sees both sides predicts what is hidden."""
    tokens = model.tokenize(text)
    if any(token.text in BLANKS for token in tokens):
        return text
    last = next((token for token in reversed(tokens) if token.text.isalpha()), tokens[-1])
    return f"{text[: last.start]}{BLANKS[0]}{text[last.end :]}"


def run_quiz(page: Console, asked: list[QuizQuestion]) -> None:
    """Ask, mark and count; a stream that ends early ends the quiz with what was answered."""
    correct = answered = 0
    for number, question in enumerate(asked, 1):
        page.print(put_question(question, number, len(asked)))
        given = read_answer(page, question)
        if given is None:
            break
        answered += 1
        good = given[1]
        correct += bool(good)
        page.print(marked_answer(question, given[0], good))
    page.print(quiz_result(correct, answered, len(asked)))


def read_answer(page: Console, question: QuizQuestion) -> tuple[str, bool] | None:
    """One line of standard input, and whether it is right; None where there is no more. At a terminal, asked again."""
    at_terminal = sys.stdin.isatty()
    while True:
        if at_terminal:
            page.print("  > ", end="")
        line = sys.stdin.readline()
        if not line:
            page.print()
            return None
        good = is_right(question, line) if line.strip() else False
        if good is not None or not at_terminal:
            return line.strip(), bool(good)
        wanted = "one of the letters" if question.choices else "a number, such as 0.42"
        page.print(f"  That is no answer: give {wanted}, or an empty line to pass.")
