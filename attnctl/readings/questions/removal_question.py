"""A question on what matters: which head's removal costs a prediction most, made from effects that were measured."""

from __future__ import annotations

import random

from attnctl.readings.effects.effects import Effects, HeadEffect
from attnctl.readings.questions.quiz import QuizQuestion
from attnctl.text import visible_text
from attnctl.tokens import BLANKS

CHOICES = 4  # heads to choose from
CLEAR = 1.25  # times the next largest drop, below which nobody could tell


def removal_question(found: Effects, dice: random.Random) -> QuizQuestion | None:
    """The question; None where no head's removal clearly costs the prediction most."""
    drops = sorted(
        (one for one in found.heads if _lost_probability(one) > 0.05), key=lambda one: -_lost_probability(one)
    )
    if found.target is None or len(found.heads) < 2 or not drops:
        return None
    first = drops[0]
    if len(drops) > 1 and _lost_probability(first) < CLEAR * _lost_probability(drops[1]):
        return None
    others = [one for one in found.heads if one is not first]
    several = sorted(
        [first, *dice.sample(others, min(CHOICES - 1, len(others)))], key=lambda one: (one.layer, one.head)
    )
    word, after, before = visible_text(found.target.text.strip()), first.effect.after, found.baseline
    best = after.best
    turned = best is not None and before.best is not None and best[0] != before.best[0]
    instead = f", and the likeliest word is “{visible_text(best[0].strip())}”" if best is not None and turned else ""
    text, blank = visible_text(found.text), next((blank for blank in BLANKS if blank in found.text), None)
    place = f"After “{text}”" if blank is None else f"At {blank} in “{text}”"
    return QuizQuestion(
        "removal",
        f"{place} the model expects “{word}” with {100 * (before.probability or 0):.0f} %. Which "
        "of these heads, switched off, brings that down most?",
        _head_name(first),
        f"Without {_head_name(first)} it is {100 * (after.probability or 0):.1f} %{instead}: attnctl ablate measures it. "
        "What a head writes is a hint, but later layers and the softmax answer to it.",
        tuple(_removal_fact(found, one) for one in several),
        tuple(_head_name(one) for one in several),
    )


def _lost_probability(one: HeadEffect) -> float:
    return -(one.effect.log_probability or 0.0)


def _head_name(one: HeadEffect) -> str:
    return f"head {one.head} of layer {one.layer}"


def _removal_fact(found: Effects, one: HeadEffect) -> str:
    writes = "" if one.writes is None else f", writes {one.writes:+.2f} to the logit"
    return f"{_head_name(one)} looks at {visible_text(found.key_axis[one.key].text)} with {one.weight:.2f}{writes}"
