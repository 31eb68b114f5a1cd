"""Questions about one row of attention, made from the numbers of a trace."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attnctl import attention
from attnctl.checks.tolerances import WHOLE_ROW
from attnctl.commands.quiz.result import QuizQuestion
from attnctl.errors import AttnctlError
from attnctl.layer import LayerTrace
from attnctl.source import Predicts
from attnctl.text import counted, number_text, sentence_percent, visible_text
from attnctl.text.tokens import BLANKS, is_blank
from attnctl.trace import Headline, Trace, reach_of_mask
from attnctl.watched import Effects, HeadEffect

if TYPE_CHECKING:
    from attnctl.source import Model
    from attnctl.text.tokens import Token


Doubles = npt.NDArray[np.float64]

TRIVIAL = 0.05  # a weight nearer to 0 or 1 is easy to guess
MOST_KEYS = 12  # longer rows are too much mental arithmetic


# --- making the questions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuizRow:
    """One query of one head that a question can ask about. Arrays (n,) are over the keys that the query may see."""

    trace: Trace
    layer: LayerTrace
    head_index: int  # in the layer's arrays
    row: int
    place: tuple[int, int, int]  # layer, head, query
    dice: random.Random
    query: str
    keys: list[int]
    names: tuple[str, ...]
    weights: Doubles
    scaled_scores: Doubles | None
    scores: Doubles | None

    @property
    def largest_key(self) -> int:
        """Return the index of the largest weight."""
        return int(np.argmax(self.weights))

    def some_key(self) -> int:
        """Return the index of a random key."""
        return self.dice.randrange(len(self.keys))

    def keys_with_numbers(self, numbers: Doubles, but: int | None = None) -> tuple[str, ...]:
        """Return each key with its number; the number of the key `but` is replaced by "?"."""
        pairs = zip(self.names, numbers, strict=True)
        return tuple(f"{name} {'?' if index == but else number_text(x, 2)}" for index, (name, x) in enumerate(pairs))


def questions_of_trace(
    trace: Trace, count: int = 5, seed: int = 0, query: int | None = None, model: Model | None = None
) -> list[QuizQuestion]:
    """Return `count` questions about a trace, as `attnctl quiz` asks them; the same seed gives the same questions.

    The last of three or more asks which head matters, if `model`, the built-in model of the trace, makes a prediction that
    depends on one head. Raises AttnctlError if there is nothing to ask.
    """
    from attnctl.watched import EffectRequest, measure_effects, watched_text

    questions, text = quiz_questions(trace, count, seed, query), trace.text
    if len(questions) < 3 or not isinstance(model, Predicts) or not model.predicts_words:
        return questions
    tokens = model.tokenize(text)
    if not model.info.causal and not any(is_blank(token.text) for token in tokens):
        # a bidirectional model predicts a hidden word: hide the last one
        last = next((token for token in reversed(tokens) if token.text.isalpha()), tokens[-1])
        text = f"{text[: last.start]}{BLANKS[0]}{text[last.end :]}"
    last_question = removal_question(measure_effects(watched_text(model, text), EffectRequest()), random.Random(seed))
    return questions if last_question is None else [*questions[:-1], last_question]


def quiz_questions(trace: Trace, count: int = 5, seed: int = 0, query: int | None = None) -> list[QuizQuestion]:
    """Return `count` questions about `trace`, of as many kinds as possible; the same seed gives the same questions.

    Raises AttnctlError if the trace has no weights, or no row with two keys to choose from.
    """
    dice = random.Random(seed)
    rows = _telling_rows(trace, dice, query)
    if not rows:
        raise AttnctlError(
            f"there is nothing to ask: no query here sees 2 to {MOST_KEYS} keys; take a sentence of a few words"
        )
    questions = [first] if (first := _ask_prediction(rows[0], trace.headline(query=query))) is not None else []
    for _ in range(24):
        if len(questions) == count:
            return questions
        makers, before = list(MAKERS), len(questions)
        dice.shuffle(makers)
        for make in makers:
            question = make(rows[len(questions) % len(rows)])
            if question is not None and question.text not in [q.text for q in questions]:
                questions.append(question)
            if len(questions) == count:
                return questions
        if len(questions) == before:
            dice.shuffle(rows)
            if before and len(rows) == 1:
                break
    return questions


def _telling_rows(trace: Trace, dice: random.Random, query: int | None) -> list[QuizRow]:
    """Return the rows to ask about, the most informative first, then the rest in random order."""
    line = trace.headline(query=query)
    places = [
        (layer, head_index, row)
        for layer in trace.layers
        if layer.weights is not None
        for head_index in range(len(layer.heads))
        for row in range(layer.weights.shape[1])
    ]
    dice.shuffle(places)
    queries, names = _distinct_labels(trace.tokens), _distinct_labels(trace.key_axis)
    rows = []
    for layer, head_index, row in places:
        keys = [j for j in range(len(names)) if layer.mask is None or layer.mask[row, j]]
        i = row if layer.rows is None else layer.rows[row]
        if not 2 <= len(keys) <= MOST_KEYS or query not in (None, i):
            continue
        weights, scaled_scores, scores = (
            None if grid is None else grid[head_index, row, keys].astype(np.float64)  # (n,)
            for grid in (layer.weights, layer.scaled_scores, layer.scores)
        )
        assert weights is not None
        place = layer.layer, layer.heads[head_index], i
        key_names = tuple(names[j] for j in keys)
        rows.append(
            QuizRow(
                trace, layer, head_index, row, place, dice, queries[i], keys, key_names, weights, scaled_scores, scores
            )
        )
    chosen = None if line is None else (line.layer, line.head, line.query)
    return sorted(rows, key=lambda row: row.place == chosen, reverse=True)


def _distinct_labels(tokens: Sequence[Token]) -> list[str]:
    """Return labels of tokens; a repeated token gets its position."""
    labels = [visible_text(token.text) for token in tokens]
    times = Counter(labels)
    return [f"{name}({index})" if times[name] > 1 else name for index, name in enumerate(labels)]


def _row_name(row: QuizRow) -> str:
    many = (row.trace.model.n_heads or 1) > 1 or (row.trace.model.n_layers or 1) > 1
    return f" (layer {row.place[0]}, head {row.place[1]})" if many else ""


def _ask_prediction(row: QuizRow, line: Headline | None) -> QuizQuestion | None:
    """Return the question that comes before any number; None unless the row is the headline's and its head has a role."""
    if line is None or not line.role or row.place != (line.layer, line.head, line.query):
        return None
    shares = ", ".join(f"{name} {weight:.2f}" for name, weight in zip(row.names, row.weights, strict=True))
    return QuizQuestion(
        "prediction",
        f"Before you see a number: “{row.trace.text}”. Where will “{row.query}” look most{_row_name(row)}? This head "
        f"usually links {line.role_in_words}.",
        (),
        row.names[row.largest_key],
        row.names,
        why=f"Its attention: {shares}.",
    )


def _ask_strongest(row: QuizRow) -> QuizQuestion | None:
    by_size = np.sort(row.weights)
    if len(by_size) < 3 or by_size[-1] - by_size[-2] < 0.01:
        return None
    facts = row.keys_with_numbers(row.scaled_scores) if row.scaled_scores is not None else ()
    beginning = "From these scaled scores, which token" if facts else "Which token"
    return QuizQuestion(
        "strongest",
        f"{beginning} does “{row.query}” attend to most{_row_name(row)}?",
        facts,
        row.names[row.largest_key],
        row.names,
        why=f"The largest score takes the largest weight: {row.names[row.largest_key]}, {row.weights[row.largest_key]:.2f}.",
    )


def _ask_softmax(row: QuizRow) -> QuizQuestion | None:
    if (
        row.scaled_scores is None
        or not _is_plain_softmax(row)
        or abs(row.weights.sum() - 1) > WHOLE_ROW
        or np.abs(row.scaled_scores).max() > 20
    ):
        return None
    j = row.some_key()
    if not TRIVIAL <= row.weights[j] <= 1 - TRIVIAL:
        return None
    rounded = np.round(row.scaled_scores, 2)  # (n,): the numbers that the question shows
    total = float(np.exp(rounded).sum())
    return QuizQuestion(
        "softmax",
        f"“{row.query}” has these scaled scores{_row_name(row)}. What is its weight on “{row.names[j]}”?",
        row.keys_with_numbers(row.scaled_scores),
        round(float(attention.softmax(rounded)[j]), 6),
        tolerance=0.0151,
        why=f"exp({number_text(rounded[j], 2)}) / Σ exp = {np.exp(rounded[j]):.2f} / {total:.2f} = {row.weights[j]:.2f}.",
    )


def _ask_missing(row: QuizRow) -> QuizQuestion | None:
    if abs(row.weights.sum() - 1) > WHOLE_ROW:
        return None
    j = row.some_key()
    others_sum = round(float(np.delete(np.round(row.weights, 2), j).sum()), 2)
    if not TRIVIAL <= others_sum <= 1 - TRIVIAL:  # "1 - 1.00" teaches nothing
        return None
    return QuizQuestion(
        "sum",
        f"One weight in the row of “{row.query}” is missing{_row_name(row)}. What is its weight on “{row.names[j]}”?",
        row.keys_with_numbers(row.weights, but=j),
        round(1 - others_sum, 6),
        tolerance=0.0101,
        why=f"A row sums to 1, so 1 - {others_sum:.2f} = {1 - others_sum:.2f}.",
    )


def _ask_division(row: QuizRow) -> QuizQuestion | None:
    d_k = row.trace.model.d_k
    if (
        row.scores is None
        or row.scaled_scores is None
        or not row.trace.model.has_default_scale
        or not _is_plain_softmax(row)
        or d_k is None
    ):
        return None
    j = row.some_key()
    score = round(float(row.scores[j]), 2)
    return QuizQuestion(
        "scaled",
        f"The score of “{row.query}” with “{row.names[j]}” is {number_text(score, 2)}, and d_k is {d_k}. "
        f"What is the scaled score{_row_name(row)}?",
        (),
        round(score / math.sqrt(d_k), 6),
        tolerance=max(0.0151, 0.01 * abs(score / math.sqrt(d_k))),
        why=f"{number_text(score, 2)} / √{d_k} = {number_text(score / math.sqrt(d_k), 2)}.",
    )


def _ask_unscaled(row: QuizRow) -> QuizQuestion | None:
    if row.scores is None or not _is_plain_softmax(row) or row.trace.model.scale in (None, 1.0):
        return None
    without = attention.softmax(row.scores / (row.trace.model.temperature or 1.0))  # (n,)
    return _ask_moved(
        row,
        "unscaled",
        f"Without the scaling, would the largest weight in the row of “{row.query}” be larger, smaller or the same"
        f"{_row_name(row)}?",
        float(without.max()),
        f"Unscaled scores lie {'farther apart' if abs(row.trace.model.scale) < 1 else 'closer together'}",
    )


def _ask_warmer(row: QuizRow) -> QuizQuestion | None:
    if row.scaled_scores is None or not _is_plain_softmax(row):
        return None
    t = row.trace.model.temperature or 1.0
    return _ask_moved(
        row,
        "temperature",
        f"At twice the temperature, would the largest weight in the row of “{row.query}” be larger, smaller or the same"
        f"{_row_name(row)}?",
        float(attention.softmax(row.scaled_scores / (2 * t)).max()),
        "Scores divided by more lie closer together",
    )


def _ask_moved(row: QuizRow, kind: str, text: str, after: float, reason: str) -> QuizQuestion | None:
    before = float(row.weights.max())
    if abs(after - before) < 0.005:
        return None  # too little to tell
    word = "larger" if after > before else "smaller"
    return QuizQuestion(
        kind, text, (), word, ("larger", "smaller", "the same"), why=f"{reason}: {before:.2f} becomes {after:.2f}."
    )


def _ask_visible(row: QuizRow) -> QuizQuestion | None:
    mask, n = row.layer.mask, len(row.trace.tokens)
    if mask is None or mask.shape[1] != n or not row.trace.reads_itself:
        return None
    causal, reach = bool(row.trace.model.causal), reach_of_mask(row.trace, row.layer)
    rules = ["no token may look at the ones after it"] * causal
    if reach is not None:
        rules.append(f"none may look {counted(reach + 1, 'token')} away or farther")
    elif not causal or not bool((mask == np.tri(n, dtype=bool)[list(row.layer.rows or range(n))]).all()):
        return None  # other masks follow no rule that a question can state
    position = row.place[2]
    neighbours = "those" if reach is None else f"up to {reach}"
    visible = f"itself and {neighbours} {'before it' if causal else 'on either side'}"
    return QuizQuestion(
        "mask",
        f"Of {n} tokens, counted from 0, “{row.query}” is number {position}; {', and '.join(rules)}. At how many tokens may "
        f"it look, itself among them{_row_name(row)}?",
        (),
        float(len(row.keys)),
        why=f"At {len(row.keys)}: {visible}.",
    )


def _ask_mixed(row: QuizRow) -> QuizQuestion | None:
    if row.layer.values is None or row.layer.dropped_weights is not None or not 2 <= len(row.keys) <= 5:
        return None
    if row.weights.max() > 1 - TRIVIAL:
        return None
    values = row.layer.values[row.head_index, list(row.keys)].astype(np.float64)  # (n, d_v)
    d = row.dice.randrange(values.shape[1])
    w, v = np.round(row.weights, 2), np.round(values[:, d], 2)  # (n,), (n,)
    value_texts = [number_text(y, 2) for y in v]
    terms = " + ".join(f"{x:.2f}×{f'({y})' if y.startswith('-') else y}" for x, y in zip(w, value_texts, strict=True))
    return QuizQuestion(
        "context",
        f"What is dimension {d}, counted from 0, of the context of “{row.query}”{_row_name(row)}, given its weights and "
        f"that dimension of each value?",
        tuple(f"{name} {x:.2f} × {y}" for name, x, y in zip(row.names, w, value_texts, strict=True)),
        round(float(w @ v), 6),
        tolerance=0.0201,
        why=f"{terms} = {number_text(float(w @ v), 2)}.",
    )


def _is_plain_softmax(row: QuizRow) -> bool:
    """Return whether the weights follow from scores, scale and softmax alone."""
    model = row.trace.model
    return not model.caps_scores and row.layer.bias is None and model.temperature in (None, 1.0)


MAKERS: tuple[Callable[[QuizRow], QuizQuestion | None], ...] = (
    _ask_strongest, _ask_softmax, _ask_missing, _ask_division, _ask_unscaled, _ask_warmer, _ask_visible, _ask_mixed,
)  # fmt: skip


CHOICES = 4  # heads to choose from
LIKELY = 0.01  # of a word that is less likely nobody says that the model expects it
CLEAR = 1.25  # the largest drop is at least this many times the next; else nobody could tell


def removal_question(effects: Effects, dice: random.Random) -> QuizQuestion | None:
    """Return a question about the head that matters most; None if no head clearly matters most."""
    drops = sorted(
        (head for head in effects.heads if _lost_probability(head) > 0.05), key=lambda head: -_lost_probability(head)
    )
    if effects.target is None or len(effects.heads) < 2 or not drops:
        return None
    if (effects.baseline.probability or 0.0) < LIKELY:
        return None
    first = drops[0]
    if len(drops) > 1 and _lost_probability(first) < CLEAR * _lost_probability(drops[1]):
        return None
    other_heads = [head for head in effects.heads if head is not first]
    several = sorted(
        [first, *dice.sample(other_heads, min(CHOICES - 1, len(other_heads)))], key=lambda head: (head.layer, head.head)
    )
    word, before, best = visible_text(effects.target.text.strip()), effects.baseline, first.best
    turned = best is not None and before.best is not None and best.text != before.best.text
    instead = f", and the likeliest word is “{visible_text(best.text.strip())}”" if best is not None and turned else ""
    text, blank = (
        visible_text(effects.text),
        next((token.text for token in effects.tokens if is_blank(token.text)), None),
    )
    place = f"After “{text}”" if blank is None else f"At {blank} in “{text}”"
    return QuizQuestion(
        "removal",
        f"{place} the model expects “{word}” with {sentence_percent(before.probability)}. Which "
        "of these heads, switched off, brings that down most?",
        tuple(_removal_fact(effects, head) for head in several),
        _head_name(first),
        tuple(_head_name(head) for head in several),
        why=f"Without {_head_name(first)} it is {sentence_percent(first.probability)}{instead}: attnctl ablate measures it. "
        "What a head writes is a hint, but later layers and the softmax can change its effect.",
    )


def _lost_probability(head: HeadEffect) -> float:
    return -(head.log_probability or 0.0)


def _head_name(head: HeadEffect) -> str:
    return f"head {head.head} of layer {head.layer}"


def _removal_fact(effects: Effects, head: HeadEffect) -> str:
    writes = "" if head.writes is None else f", writes {head.writes:+.2f} to the logit"
    key = visible_text(effects.key_axis[head.looks.key].text)
    return f"{_head_name(head)} looks at {key} with {head.looks.weight:.2f}{writes}"
