"""Write down a speech with Whisper, and give each word its time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from attnctl.checks.document_fields import HeadPlace
from attnctl.commands.align.result import (
    AUTO_HEADS,
    FRAME_SECONDS,
    IMPROBABLE,
    LISTED_HEADS,
    NO_SPACES,
    AlignedSpeech,
    AlignedWindow,
    AlignedWord,
    ScoredHead,
    align_heads,
)
from attnctl.commands.align.transcripts import spoken_segments
from attnctl.commands.align.word_times import (
    LEAD_SECONDS,
    head_scores,
    repeated_tokens,
    standardised_weights,
    token_starts,
    warping_paths,
    without_pauses,
    words_of_pieces,
)
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats import SAMPLE_RATE
from attnctl.models import kind_of_name, open_named_model
from attnctl.runtime.arrays import Floats
from attnctl.source import HearsSpeech, Model
from attnctl.text import counted

WINDOW_SECONDS, LATEST_SECONDS = 30, 5  # Whisper hears 30 seconds at once; a longer speech is cut in the last 5 of them
SILENT = 1e-4  # of full scale; a sound without a louder sample is silent
FRAME = round(SAMPLE_RATE * FRAME_SECONDS)  # samples
BATCH_OF_HEADS = 8  # heads whose paths are found together
ADVICE = "give a Whisper checkpoint, as its folder or its Hugging Face id: openai/whisper-base"

Place = tuple[int, int]


def open_speech(name: str, dtype: str = "auto", device: str = "auto") -> HearsSpeech:
    """Open a Whisper checkpoint by its folder or Hugging Face id.

    Raises UsageError for a model that cannot hear, AttnctlError for a checkpoint that is damaged or lacks a part.
    """
    kind = kind_of_name(name)
    if kind.settings is None:
        raise UsageError(f"{kind.name} is not a checkpoint that hears speech: {ADVICE}")
    if not kind.hears_speech():
        raise UsageError(f"{kind.name} does not write down speech: {ADVICE}")
    return checked_speech(open_named_model(name, dtype=dtype, device=device, attention="cross"))


def checked_speech(model: Model) -> HearsSpeech:
    """Return an opened model. Raises UsageError if it does not write down speech."""
    if not isinstance(model, HearsSpeech) or not model.hears_speech() or not model.reads_sounds():
        raise UsageError(f"{model.info.name} does not write down speech: {ADVICE}")
    return model


def named_heads(speech: HearsSpeech) -> tuple[HeadPlace, ...]:
    """Return the alignment heads of its generation_config.json; () if it names none.

    Raises AttnctlError for anything but heads of the model.
    """
    written = speech.alignment_heads()
    try:
        return align_heads([(int(layer), int(head)) for layer, head in written], speech.info)
    except (TypeError, ValueError, UsageError) as error:
        why = f"generation_config.json has alignment_heads {str(written)[:80]}, which are not heads of this model"
        raise AttnctlError(f"{speech.info.name}: {why}") from error


@dataclass(eq=False)
class _SpokenWindow:
    """A window of the sound, its text, and the weights of every head."""

    start: float
    ids: list[int]
    probabilities: Floats  # (tokens,)
    weights: dict[int, Floats]  # layer → (heads, prompt + tokens + 1, frames of the network)
    prompt: int  # tokens before the text's
    frames: int
    loudness: Floats  # (frames,)
    scores: dict[Place, float]

    def standardised(self, heads: Sequence[HeadPlace]) -> Floats:
        """Return the standardised weights of heads, from the first predicted token on: (heads, tokens + 1, frames)."""
        chosen = np.stack([self.weights[head.layer][head.head] for head in heads])
        return standardised_weights(chosen, self.frames)[:, self.prompt - 1 : self.prompt + len(self.ids)]


def align_speech(
    speech: HearsSpeech,
    samples: Floats,
    name: str,
    *,
    heads: str = "named",
    target: str | None = None,
    language: str | None = None,
) -> Iterator[float | AlignedWindow | AlignedSpeech]:
    """Yield the share of the sound heard, 0 to 1, after each window; then each window; at last the words.

    Raises AttnctlError for silence and for a text that is too long, UsageError for options that cannot be combined.
    """
    info, notes = speech.info, []
    named = named_heads(speech)
    chosen = align_heads(heads, info) if heads not in ("named", "auto") else ()
    if float(np.abs(samples).max()) < SILENT:
        raise AttnctlError(f"{name} is silent: no sample is louder than {SILENT:g} of full scale")
    if target is not None and not target.strip():
        raise UsageError("is empty: give the text that is spoken", option="target")
    windows = list(_windows(samples))
    if len(windows) > 1:
        if target is not None:
            raise UsageError(
                f"works for up to {WINDOW_SECONDS} seconds of sound, and {name} has {len(samples) / SAMPLE_RATE:.1f}: "
                "cut it, or leave the text to the model",
                option="target",
            )
        notes.append(
            f"{name} is longer than {WINDOW_SECONDS} seconds: it is heard in {len(windows)} parts, cut where it is quietest."
        )
    parts: list[_SpokenWindow] = []
    for start, end in windows:
        sound = samples[start:end]
        if float(np.abs(sound).max()) >= SILENT:
            part, language = _hear(speech, sound, start / SAMPLE_RATE, target, language)
            parts += [part] if part.ids else []
        yield end / len(samples)
    if not parts:
        raise AttnctlError(f"{info.name} hears no words in {name}")
    places = parts[0].scores
    scores = {place: float(np.mean([part.scores[place] for part in parts])) for place in places}
    ranked = sorted(scores, key=lambda place: -scores[place])
    best = ranked[:LISTED_HEADS]
    found_heads = tuple(ScoredHead(*place, scores[place]) for place in best)
    if heads == "named" and not named:
        notes.append(f"{info.name} names no alignment heads: the best heads are used.")
    choice: Literal["named", "auto", "given"] = "given" if chosen else "named" if heads == "named" and named else "auto"
    used = chosen or (named if choice == "named" else tuple(HeadPlace(*place) for place in ranked[:AUTO_HEADS]))
    words = []
    for part in parts:
        window, timed = _timed_words(speech, part, used, language)
        words += timed
        yield window
    if doubtful := sum(word.doubtful for word in words):
        notes.append(
            f"{doubtful:,} of {counted(len(words), 'word')} {'is' if doubtful == 1 else 'are'} doubtful: almost no "
            "probability, or repeated again and again. There may be no speech."
        )
    ids = [number for part in parts for number in part.ids]
    text = target if target is not None else speech.spelled(ids, special=False).strip()
    seconds = len(samples) / SAMPLE_RATE
    yield AlignedSpeech(
        audio=name, seconds=seconds, text=text, given=target is not None, language=language, model=info,
        words=tuple(words), segments=spoken_segments(words, language), chosen=choice,
        heads=used, named_heads=named, found_heads=found_heads,
        common_heads=sum((head.layer, head.head) in best for head in named), notes=tuple(notes),
    )  # fmt: skip


def _windows(samples: Floats) -> Iterator[tuple[int, int]]:
    """Return the parts of a sound: none is longer than Whisper can hear, each is cut at its quietest place."""
    start, longest, near = 0, WINDOW_SECONDS * SAMPLE_RATE, 10 * FRAME
    while len(samples) - start > longest:
        last = samples[start + longest - LATEST_SECONDS * SAMPLE_RATE : start + longest] ** 2
        loudness = np.convolve(last, np.ones(near, np.float32), "valid")
        cut = start + longest - LATEST_SECONDS * SAMPLE_RATE + int(loudness.argmin()) + near // 2
        yield start, cut
        start = cut
    yield start, len(samples)


def _hear(
    speech: HearsSpeech, samples: Floats, start: float, target: str | None, language: str | None
) -> tuple[_SpokenWindow, str | None]:
    """Hear a window: return its tokens (or the tokens of `target`), every head's weights, and the spoken language."""
    text, chances, weights, prompt, language = speech.heard(samples, target, language)
    frames = min(max(len(samples) // FRAME, 1), next(iter(weights.values())).shape[-1])
    loudness = _frame_loudness(samples)[:frames]
    part = _SpokenWindow(start, text, chances, weights, prompt, frames, loudness, {})
    for layer, of_layer in weights.items() if text else ():
        for first in range(0, len(of_layer), BATCH_OF_HEADS):
            places = [HeadPlace(layer, head) for head in range(first, min(first + BATCH_OF_HEADS, len(of_layer)))]
            rows = slice(prompt - 1, prompt + len(text))
            raw = of_layer[first : first + BATCH_OF_HEADS, rows, :frames]
            scores = head_scores(raw, part.standardised(places))
            part.scores |= {(layer, place.head): float(s) for place, s in zip(places, scores, strict=True)}
    return part, language


def _frame_loudness(samples: Floats) -> Floats:
    """Return the root mean square of each frame: (frames,), of a last one that is cut too."""
    begins = np.arange(0, len(samples), FRAME)
    squares = np.add.reduceat(samples.astype(np.float64) ** 2, begins)
    return np.sqrt(squares / np.minimum(FRAME, len(samples) - begins)).astype(np.float32)


def _timed_words(
    speech: HearsSpeech, part: _SpokenWindow, heads: Sequence[HeadPlace], language: str | None
) -> tuple[AlignedWindow, list[AlignedWord]]:
    """Return the words of a window with their times."""
    weights = part.standardised(heads).mean(axis=0)  # (tokens + 1, frames)
    path = warping_paths(-weights[None])[0]
    starts = np.minimum(token_starts(path) + LEAD_SECONDS / FRAME_SECONDS, part.frames)  # (tokens + 1,), in frames
    logs = np.log(np.maximum(part.probabilities, 1e-30))
    repeated = repeated_tokens(part.ids)
    spelled = words_of_pieces(partial(speech.spelled, special=False), part.ids, language not in NO_SPACES)
    spans = [(float(starts[first]), float(starts[last])) for _, first, last in spelled]
    words = []
    for (text, first, last), (start, end) in zip(
        spelled, without_pauses([text for text, *_ in spelled], spans, part.loudness), strict=True
    ):
        confidence = min(1.0, math.exp(float(logs[first:last].mean())))
        begins, ends = (round(part.start + frame * FRAME_SECONDS, 3) for frame in (start, end))
        words.append(AlignedWord(text, begins, ends, confidence, confidence < IMPROBABLE or any(repeated[first:last])))
    names = tuple(token.text for token in speech.tokens_behind((), part.ids))
    return AlignedWindow(part.start, names, weights, path), words
