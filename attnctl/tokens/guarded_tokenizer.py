"""A tokenizer that may take for ever on some texts, or make too much of them, held to limits."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attnctl import limits

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


PIECE = 1000  # characters of a text that are normalized at a time, to see what becomes of them


class GuardedTokenizer:
    """A `tokenizers.Tokenizer`; `encode` ends after limits.TOKENIZER_SECONDS. The rest is the tokenizer's own.

    A short text is held to it where one of the `patterns` is of a form that may take for ever, or where by its form the
    normalizer `grows` a text: that costs two milliseconds.
    """

    def __init__(self, tokenizer: Tokenizer, patterns: Iterable[str] = (), grows: bool = False) -> None:
        self._tokenizer, self._grows = tokenizer, grows
        self._explodes = grows or any(may_explode(pattern) for pattern in patterns)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoding:
        """The Encoding of a text. Raises ValueError where it takes too long."""
        if not self._explodes and len(text) <= limits.PATTERN_CHARACTERS:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        made: list[Encoding | BaseException] = []

        def encode() -> None:
            try:
                if self._grows:
                    self._check_grown(text)
                # of a batch, since that leaves Python free to go on meanwhile
                made.append(self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0])
            except BaseException as error:  # the library's panics are no Exception
                made.append(error)

        thread = threading.Thread(target=encode, daemon=True)  # given up, it ends with the process
        thread.start()
        seconds = limits.TOKENIZER_SECONDS + len(text) // limits.TOKENIZER_SPEED
        thread.join(seconds)
        if not made:
            raise ValueError(f"it takes more than {seconds} seconds")
        if isinstance(made[0], BaseException):
            raise made[0]
        return made[0]

    def _check_grown(self, text: str) -> None:
        """Raise ValueError where its normalizer makes too much of a text, found out piece by piece."""
        grown = 0
        for start in range(0, len(text), PIECE):
            grown += len(self._tokenizer.normalizer.normalize_str(text[start : start + PIECE]))
            if said := limits.growth_error(grown, len(text), "characters"):
                raise ValueError(said)


def may_explode(pattern: str) -> bool:
    """Whether a regular expression may take for ever.

    So it may where it repeats a group that itself repeats something or has a choice, or three things one after the other:
    (a+)+, (a|aa)+, a*a*a*b.
    """
    repeats = [False]  # of each open group: whether something in it is repeated without end, or is one of several
    counts = [0]  # of each open group: how many things of one choice are repeated without end
    at, in_class, closed = 0, False, False
    while at < len(pattern):
        char = pattern[at]
        endless = char in "*+" or (char == "{" and "," in pattern[at : pattern.find("}", at) + 1])
        if char == "\\":
            at, closed = at + 1, False
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class, closed = True, False
        elif char == "(":
            repeats.append(False)
            counts.append(0)
        elif char == "|":
            repeats[-1] = len(repeats) > 1
            counts[-1] = 0
        elif char == ")" and len(repeats) > 1:
            closed = repeats.pop()
            repeats[-1] |= closed
            inner = counts.pop()
            counts[-1] += inner
            at += 1
            continue
        elif endless:
            if closed:
                return True
            repeats[-1] = True
            counts[-1] += 1
        if counts[-1] > 2:
            return True
        closed = False
        at += 1
    return False


def patterns_in(settings: Any) -> list[str]:
    """Every regular expression in the settings of a tokenizer.json, wherever it stands."""
    found, waiting = [], [settings]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(part.get("Regex"), str):
                found.append(part["Regex"])
            waiting += [value for name, value in part.items() if name not in ("vocab", "merges", "added_tokens")]
        elif isinstance(part, list):
            waiting += part
    return found
