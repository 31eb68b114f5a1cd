"""How well `attnctl align` finds words in time: forty sentences of a synthetic voice (libespeak-ng), Whisper base.

The voice tells when each word begins. Printed: how many of the eight published alignment heads are among the ten that `auto`
ranks first, over all sentences, and the share of words that begin within 100 ms of the voice's own times, by those heads, by
the best six, and where the text is given; of the first twenty sentences, and by the named heads of twenty others at two speeds.

    python -m tests.tools.benchmarks.bench_align [FOLDER OF WHISPER BASE]
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from tests.tools.whisper import PUBLISHED, write_base, write_wave

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.", "She sells sea shells by the sea shore every summer.",
    "A journey of a thousand miles begins with a single step.", "My brother bought three green apples at the market.",
    "The library opens at nine o'clock in the morning.", "We walked along the river until it began to rain.",
    "Nobody knew why the old clock had stopped at midnight.", "Please close the window before you leave the house.",
    "The train to London leaves from platform number seven.", "He wrote a long letter to his grandmother in Spain.",
    "Children were playing football behind the school.", "The doctor told him to drink more water and sleep.",
    "Our neighbours have painted their front door yellow.", "Scientists discovered a new planet far from the sun.",
    "I would like a cup of coffee with milk and sugar.", "The museum shows paintings from the last century.",
    "They built a small wooden bridge across the stream.", "Tomorrow will be colder, with snow in the mountains.",
    "The teacher asked a question that no one could answer.", "After dinner we listened to music and told stories.",
)  # fmt: skip

OTHERS = (
    "A large crowd gathered outside the old theatre on Friday evening.", "The farmer sold his horses and bought a red tractor.",
    "Rain fell heavily while the fishermen repaired their broken nets.", "My sister plays the violin in a small orchestra.",
    "Several students forgot to hand in their homework yesterday.", "The mountain road was closed because of fresh snow.",
    "Every morning the baker opens his shop before sunrise.", "Please remember to turn off the lights downstairs.",
    "The pilot announced that the flight would be delayed.", "Green tea tastes better with a slice of lemon.",
    "A strange noise came from the empty cellar.", "Two police officers stopped the truck near the bridge.",
    "Her grandfather collected stamps from many different countries.", "Winter days are short and the nights are very cold.",
    "The committee will discuss the new budget on Monday.", "He carefully painted the wooden chair dark blue.",
    "Thousands of birds fly south when summer ends.", "The young nurse smiled and gave me a blanket.",
    "Our bus driver missed the turn and apologised.", "They found a golden ring under the kitchen floor.",
)  # fmt: skip


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("unique", ctypes.c_uint), ("at", ctypes.c_int), ("length", ctypes.c_int),
        ("audio", ctypes.c_int), ("sample", ctypes.c_int), ("user", ctypes.c_void_p), ("name", ctypes.c_char * 8),
    ]  # fmt: skip


class Voice:
    """A voice of libespeak-ng: the samples of a text, and when each of its words begins. Raises OSError where it is absent."""

    def __init__(self, name: str = "en-us", words_a_minute: int = 150) -> None:
        self.library = ctypes.CDLL(ctypes.util.find_library("espeak-ng") or "libespeak-ng.so.1")
        self.rate = self.library.espeak_Initialize(2, 0, None, 0)  # synchronous
        self.library.espeak_SetVoiceByName(name.encode())
        self.library.espeak_SetParameter(1, words_a_minute, 0)

    def speak(self, text: str) -> tuple[np.ndarray, list[tuple[str, float]]]:
        """The samples (n,) at `rate`, and (word, seconds at which it begins)."""
        parts: list[np.ndarray] = []
        words: list[tuple[str, float]] = []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))

        def hear(wave: object, count: int, events: object) -> int:
            if wave and count:
                parts.append(np.ctypeslib.as_array(wave, (count,)).copy())
            at = 0
            while events[at].type:
                if events[at].type == 1:  # a word; its place is counted from 1
                    place = events[at].at - 1
                    words.append((re.match(r"\S+", text[place:])[0], events[at].audio / 1000))
                at += 1
            return 0

        callback = kind(hear)
        self.library.espeak_SetSynthCallback(callback)
        data = text.encode() + b"\0"
        self.library.espeak_Synth(data, len(data), 0, 0, 0, 1, None, None)
        return np.concatenate(parts).astype(np.float32) / 32768, words


def plain(word: str) -> str:
    return re.sub(r"\W", "", word.lower())


def lateness(words: Sequence[Any], times: Sequence[tuple[str, float]]) -> list[float]:
    """Seconds by which words begin later than the voice says, of those that are the same in both, in order.

    The voice tells one time for a few pairs that it speaks as one ("from the"): their second words are in no pair.
    """
    said, heard = [plain(word) for word, _ in times], [plain(word.text) for word in words]
    blocks = SequenceMatcher(None, said, heard, autojunk=False).get_matching_blocks()
    return [words[b + k].start - times[a + k][1] for a, b, size in blocks for k in range(size)]


def main() -> None:
    from attnctl.commands.align.speech import align_speech, open_speech
    from attnctl.formats.audio import read_audio

    voice = Voice()
    with tempfile.TemporaryDirectory() as folder:
        base = sys.argv[1] if len(sys.argv) > 1 else str(write_base(Path(folder) / "whisper-base"))
        speech = open_speech(base)
        scores: dict[str, list[float]] = defaultdict(list)
        errors: dict[str, list[float]] = defaultdict(list)
        in_ten, seconds, sound = [], 0.0, 0.0
        for text in SENTENCES:
            samples, times = voice.speak(text)
            path = write_wave(Path(folder) / "a.wav", samples, rate=voice.rate)
            heard = read_audio(str(path))
            for how, heads, target in (
                ("named", "named", None),
                ("auto", "auto", None),
                ("named, text given", "named", text),
            ):
                begin = time.process_time()
                *_, found = align_speech(speech, heard, "a.wav", heads=heads, target=target)
                seconds += (time.process_time() - begin) * (how == "named")
                errors[how] += lateness(found.words, times)
            sound += len(heard) / 16_000
            in_ten.append(found.common_heads)
            for one in found.found_heads:
                scores[f"{one.layer}.{one.head}"].append(one.score)
        for speed in (150, 190):
            other = Voice(words_a_minute=speed)
            for text in OTHERS:
                samples, times = other.speak(text)
                path = write_wave(Path(folder) / "a.wav", samples, rate=other.rate)
                *_, found = align_speech(speech, read_audio(str(path)), "a.wav")
                errors[f"named, other sentences, {speed} words a minute"] += lateness(found.words, times)
        for head, several in sorted(scores.items(), key=lambda one: -sum(one[1]))[:10]:
            print(f"{head}  {sum(several) / len(SENTENCES):.3f}{'  published' if head in PUBLISHED else ''}")
        best = sorted(scores, key=lambda head: -sum(scores[head]))[:10]
        print(
            f"published heads among the ten best: {len({*best} & {*PUBLISHED})} of {len(PUBLISHED)}, over {len(SENTENCES)} sentences"
        )
        print(f"in one sentence: median {np.median(in_ten):g}, least {min(in_ten)}")
        for how, several in errors.items():
            near = np.abs(several) <= 0.1
            print(
                f"{how}: {near.sum()} of {len(several)} words heard ({near.mean():.1%}) begin within 100 ms; "
                f"median {np.median(several) * 1000:+.0f} ms"
            )
        print(f"{seconds:.1f} s of processor time for {sound:.1f} s of sound")


if __name__ == "__main__":
    main()
