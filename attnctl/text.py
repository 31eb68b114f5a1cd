"""How text from outside is shown: safely in a terminal, and short."""

from __future__ import annotations

import unicodedata
from typing import Any

_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421, 0x20: 0x2423}


def shown(text: str) -> str:
    """A token as it may safely stand in a terminal: control characters as symbols, a lone space as ␣.

    Terminal escapes, direction overrides and invisible characters become visible and lose their power.
    """
    if text.isascii() and text.isprintable() and text.strip():
        return text
    if text.isspace() or not text:
        return "".join(_symbol(char, lone=True) for char in text) or "∅"
    return "".join(_symbol(char) for char in text)


def _symbol(char: str, lone: bool = False) -> str:
    code = ord(char)
    if code == 0x20:
        return "␣" if lone else " "
    if code in _PICTURES:
        return chr(_PICTURES[code])
    if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs") and char not in ("\u200c", "\u200d"):
        return f"\\u{code:04x}"
    return char


def spoken(numbers: Any) -> str:
    """A list of numbers for a sentence, abridged: 0, 1, 2, … 31."""
    names = [str(number) for number in numbers]
    return ", ".join(names if len(names) <= 8 else [*names[:3], "…", names[-1]]) or "none"
