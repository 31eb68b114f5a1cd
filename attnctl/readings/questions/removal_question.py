"""A question on what matters: which head's removal costs a prediction most, made from effects that were measured."""

from __future__ import annotations

import random

from attnctl.readings.effects.effects import Effects, HeadEffect
from attnctl.readings.questions.quiz import Question
from attnctl.text import shown

CHOICES = 4  # heads to choose from
CLEAR = 1.25  # times the next largest drop, below which nobody could tell


def removal_question(found: Effects, dice: random.Random) -> Question | None:
    """The question; None where no head's removal clearly costs the prediction most."""
    drops = sorted((one for one in found.heads if _drop(one) > 0.05), key=lambda one: -_drop(one))
    if found.target is None or len(found.heads) < 2 or not drops:
        return None
    first = drops[0]
    if len(drops) > 1 and _drop(first) < CLEAR * _drop(drops[1]):
        return None
    others = [one for one in found.heads if one is not first]
    several = sorted(
        [first, *dice.sample(others, min(CHOICES - 1, len(others)))], key=lambda one: (one.layer, one.head)
    )
    word, after, before = shown(found.target.text.strip()), first.effect.after, found.baseline
    best = after.best
    turned = best is not None and before.best is not None and best[0] != before.best[0]
    instead = f", and the likeliest word is “{shown(best[0].strip())}”" if best is not None and turned else ""
    return Question(
        "removal",
        f"After “{shown(found.text)}” the model expects “{word}” with {100 * (before.probability or 0):.0f} %. Which of "
        "these heads, switched off, brings that down most?",
        _name(first),
        f"Without {_name(first)} it is {100 * (after.probability or 0):.1f} %{instead}: attnctl ablate measures it. What a "
        "head writes is a hint, but later layers and the softmax answer to it.",
        tuple(_fact(found, one) for one in several),
        tuple(_name(one) for one in several),
    )


def _drop(one: HeadEffect) -> float:
    return -(one.effect.log_probability or 0.0)


def _name(one: HeadEffect) -> str:
    return f"head {one.head} of layer {one.layer}"


def _fact(found: Effects, one: HeadEffect) -> str:
    writes = "" if one.writes is None else f", writes {one.writes:+.2f} to the logit"
    return f"{_name(one)} looks at {shown(found.keys_of[one.key].text)} with {one.weight:.2f}{writes}"
