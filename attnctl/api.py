"""A command as a function, until its package has it.

Where a function takes `text`, it may be a trace (of `attend`, `load`, `capture`) instead, whose numbers are there already.
Models and options are those of `attend`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnctl.trace import Trace

if TYPE_CHECKING:
    from attnctl.models import Model
    from attnctl.readings.questions.quiz import QuizQuestion

Selection = int | Sequence[int] | None


def questions_of_trace(
    trace: Trace, count: int = 5, seed: int = 0, query: int | None = None, model: Model | None = None
) -> list[QuizQuestion]:
    """`count` questions about a trace, as `attnctl quiz` asks them; the same seed asks the same.

    The last of three or more is on what matters, where `model`, the built-in one that the trace is of, makes a prediction
    that one head carries. Raises AttnctlError where there is nothing to ask.
    """
    from attnctl.models.watching import watched_text
    from attnctl.readings.questions.quiz import quiz_questions, removal_question
    from attnctl.tokens import BLANKS
    from attnctl.watched.measure import EffectRequest, measure_effects

    asked, text = quiz_questions(trace, count, seed, query), trace.text
    if len(asked) < 3 or model is None or getattr(model, "unembedding", None) is None:
        return asked
    tokens = model.tokenize(text)
    if not model.info.causal and not any(token.text in BLANKS for token in tokens):
        # a model that sees both sides predicts what is hidden: the last word
        last = next((token for token in reversed(tokens) if token.text.isalpha()), tokens[-1])
        text = f"{text[: last.start]}{BLANKS[0]}{text[last.end :]}"
    found = removal_question(measure_effects(watched_text(model, text), EffectRequest()), random.Random(seed))
    return asked if found is None else [*asked[:-1], found]
