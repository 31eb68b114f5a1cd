"""A voice of libespeak-ng that tells when each of its words begins."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("unique", ctypes.c_uint), ("at", ctypes.c_int), ("length", ctypes.c_int),
        ("audio", ctypes.c_int), ("sample", ctypes.c_int), ("user", ctypes.c_void_p), ("name", ctypes.c_char * 8),
    ]  # fmt: skip


class Voice:
    """A synthetic voice. Raises OSError where the library is not installed."""

    def __init__(self, name: str = "en-us", words_a_minute: int = 150) -> None:
        self.library = ctypes.CDLL(ctypes.util.find_library("espeak-ng") or "libespeak-ng.so.1")
        self.rate = self.library.espeak_Initialize(2, 0, None, 0)  # synchronous
        self.library.espeak_SetVoiceByName(name.encode())
        self.library.espeak_SetParameter(1, words_a_minute, 0)

    def speak(self, text: str) -> tuple[np.ndarray, list[tuple[str, float]]]:
        """Return the samples (n,) at `rate`, and (word, seconds at which it begins)."""
        parts: list[np.ndarray] = []
        words: list[tuple[str, float]] = []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))

        def hear(wave: object, count: int, events: object) -> int:
            if wave and count:
                parts.append(np.ctypeslib.as_array(wave, (count,)).copy())
            number = 0
            while events[number].type:
                if events[number].type == 1:  # a word; its place is counted from 1
                    place = events[number].at - 1
                    words.append((re.match(r"\S+", text[place:])[0], events[number].audio / 1000))
                number += 1
            return 0

        callback = kind(hear)
        self.library.espeak_SetSynthCallback(callback)
        data = text.encode() + b"\0"
        self.library.espeak_Synth(data, len(data), 0, 0, 0, 1, None, None)
        return np.concatenate(parts).astype(np.float32) / 32768, words


def lateness(words: Sequence[Any], times: Sequence[tuple[str, float]]) -> list[float]:
    """Return the seconds by which words begin later than the voice says, of those that are the same in both, in order.

    The voice tells one time for a few pairs that it speaks as one ("from the"): their second words are in no pair.
    """
    spoken, heard = (
        [re.sub(r"\W", "", word.lower()) for word in side] for side in ([w for w, _ in times], [w.text for w in words])
    )
    blocks = SequenceMatcher(None, spoken, heard, autojunk=False).get_matching_blocks()
    return [words[b + k].start - times[a + k][1] for a, b, size in blocks for k in range(size)]
