"""Words in speech: how well `attnctl align` finds their times, in sentences of a synthetic voice, which tells when each word begins."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.tools.benchmarks.measuring import Row, benchmark, seconds_of
from tests.tools.voice import Voice, lateness
from tests.tools.whisper import PUBLISHED, write_base, write_wave

SENTENCES = """\
The quick brown fox jumps over the lazy dog.
She sells sea shells by the sea shore every summer.
A journey of a thousand miles begins with a single step.
My brother bought three green apples at the market.
The library opens at nine o'clock in the morning.
We walked along the river until it began to rain.
Nobody knew why the old clock had stopped at midnight.
Please close the window before you leave the house.
The train to London leaves from platform number seven.
He wrote a long letter to his grandmother in Spain.
Children were playing football behind the school.
The doctor told him to drink more water and sleep.
Our neighbours have painted their front door yellow.
Scientists discovered a new planet far from the sun.
I would like a cup of coffee with milk and sugar.
The museum shows paintings from the last century.
They built a small wooden bridge across the stream.
Tomorrow will be colder, with snow in the mountains.
The teacher asked a question that no one could answer.
After dinner we listened to music and told stories.""".splitlines()
OTHERS = """\
A large crowd gathered outside the old theatre on Friday evening.
The farmer sold his horses and bought a red tractor.
Rain fell heavily while the fishermen repaired their broken nets.
My sister plays the violin in a small orchestra.
Several students forgot to hand in their homework yesterday.
The mountain road was closed because of fresh snow.
Every morning the baker opens his shop before sunrise.
Please remember to turn off the lights downstairs.
The pilot announced that the flight would be delayed.
Green tea tastes better with a slice of lemon.
A strange noise came from the empty cellar.
Two police officers stopped the truck near the bridge.
Her grandfather collected stamps from many different countries.
Winter days are short and the nights are very cold.
The committee will discuss the new budget on Monday.
He carefully painted the wooden chair dark blue.
Thousands of birds fly south when summer ends.
The young nurse smiled and gave me a blanket.
Our bus driver missed the turn and apologised.
They found a golden ring under the kitchen floor.""".splitlines()


@benchmark(quick=False)
def align() -> Iterator[Row]:
    """Yield the share of words that begin within 100 ms of the voice's own times, and how many published heads are found.

    By the heads that Whisper base names, by the best six, and where the text is given; of other sentences at two speeds.
    """
    from attnctl.commands.align.speech import align_speech, open_speech
    from attnctl.formats.audio import read_audio

    late: dict[str, list[float]] = defaultdict(list)
    scores: dict[str, float] = defaultdict(float)
    seconds, sound = 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        speech = open_speech(str(write_base(Path(folder) / "whisper-base")))
        for words_a_minute, sentences in ((150, SENTENCES), (150, OTHERS), (190, OTHERS)):
            voice = Voice(words_a_minute=words_a_minute)
            for text in sentences:
                samples, times = voice.speak(text)
                heard = read_audio(str(write_wave(Path(folder) / "a.wav", samples, rate=voice.rate)))
                ways = [("named", "named", None), ("auto", "auto", None), ("text given", "named", text)]
                for way, heads, target in ways if sentences is SENTENCES else ways[:1]:
                    answers = []
                    took = seconds_of(
                        lambda heard=heard, heads=heads, target=target, answers=answers: answers.extend(
                            align_speech(speech, heard, "a.wav", heads=heads, target=target)
                        )
                    )
                    name = way if sentences is SENTENCES else f"other sentences, {words_a_minute} words a minute"
                    late[name] += lateness(answers[-1].words, times)
                    if way == "named" and sentences is SENTENCES:
                        seconds, sound = seconds + took, sound + len(heard) / 16_000
                        for head in answers[-1].found_heads:
                            scores[f"{head.layer}.{head.head}"] += head.score
    for name, several in late.items():
        near = np.abs(several) <= 0.1
        ours = f"{near.sum()} of {len(several)}, median {np.median(several) * 1000:+.0f} ms"
        yield Row(f"align, {name}: words within 100 ms", "the voice's times", 100 * near.mean(), "%", ours=ours)
    best = sorted(scores, key=lambda head: -scores[head])[:10]
    yield Row(
        "align: published heads among the ten best", "eight of Whisper base", len({*best} & {*PUBLISHED}), "heads"
    )
    yield Row("align: time of the processor", "length of the sound", seconds / sound, ours=f"{seconds:.0f} s")
