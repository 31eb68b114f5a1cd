"""`attnctl.align`: the words of a speech with their times, or the tokens of a target with their sources."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attnctl.checks import limits
from attnctl.checks.argument_types import check_types, is_network, named_value
from attnctl.commands.align.result import AlignedSpeech, AlignedText, AlignedWindow, AlignmentScore
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from attnctl.models import ModelArgument
    from attnctl.source import AlignsTexts


def align(
    text: str | os.PathLike[str],
    model: ModelArgument | None = None,
    *,
    heads: str | None = None,
    target: str | None = None,
    words: bool = False,
    language: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    generate: int | None = None,
    tokenizer: Any = None,
    bos: bool | None = None,
    dtype: str | None = None,
    device: str | None = None,
    gold: str | os.PathLike[str] | None = None,
    gold_from: int = 0,
) -> AlignedSpeech | AlignedText | AlignmentScore:
    """Return the times of the words of a speech, or the source of each token of a target, as the command does.

    `model` is a checkpoint's folder or Hugging Face id, a model that `open_model` opened, or a transformers model with its
    `tokenizer`; with a name, `tokenizer` is a tokenizer.json in place of the checkpoint's own, and `bos` begins with its
    start token, or without it. Open the model once to align many texts.

    For Whisper, `text` is a file of speech, and the result's `words` have text, start, end and confidence. For an
    encoder-decoder, `text` is the source of `target` (None: the model writes it, with at most `generate` tokens, or as its
    generation_config says); for other models it is "source >> target". The result's `links` then have text, source,
    source_text and weight; with `words` they link whole words; `pharaoh` links the words between blanks. `heads` is named
    (those in Whisper's generation config; if it has none, the best), auto (the best), or layer.head with commas; None means
    named for speech, auto for texts.

    `gold` is a file with a human's alignment in the Pharaoh format, whose words are counted from `gold_from`: the result has
    a `score`. Without a model, `text` is a file of links in that format, and the result their score.
    """
    check_types("align", str | os.PathLike, text=text)
    check_types("align", str | None, heads=heads, target=target, language=language, source_language=source_language)
    check_types("align", str | None, target_language=target_language, dtype=dtype, device=device)
    check_types("align", bool, words=words)
    check_types("align", bool | None, bos=bos)
    check_types("align", int | None, generate=generate)
    check_types("align", int, gold_from=gold_from)
    limits.FIRST_WORD.check_value("gold_from", gold_from)
    check_types("align", str | os.PathLike | None, gold=gold)
    if model is None:
        if gold is None:
            raise UsageError("align needs a checkpoint, as model=…; or gold=…, for the score of a file of links")
        from attnctl.commands.align.pharaoh import score_files

        return score_files(os.fspath(text), os.fspath(gold), gold_from)
    *_, result = align_steps(
        os.fspath(text), opened_or_named(model, tokenizer, bos, dtype, device, source_language, target_language),
        heads=heads, target=target, words=words, language=language, source_language=source_language,
        target_language=target_language, generate=generate,
        tokenizer=None if is_network(model) else tokenizer, bos=bos, dtype=dtype, device=device,
        gold=None if gold is None else os.fspath(gold), gold_from=gold_from,
    )  # fmt: skip
    assert isinstance(result, AlignedSpeech | AlignedText)
    return result


def opened_or_named(model: ModelArgument, tokenizer: Any, bos: bool | None, *options: str | None) -> str | AlignsTexts:
    """Return the name of a model, or the opened checkpoint that an argument is.

    Raises TypeError for anything else, and for options of a name beside an opened model.
    """
    if isinstance(model, (str, os.PathLike)):
        check_types("align", str | os.PathLike | None, tokenizer=tokenizer)
        return os.fspath(model)
    from attnctl.models import opened_model
    from attnctl.source import AlignsTexts

    dtype, device, source_language, target_language = options
    named = {"dtype": dtype, "device": device, "source_language": source_language, "target_language": target_language}
    opened = opened_model("align", model, {"tokenizer": tokenizer, "bos": bos, **named})  # type: ignore[typeddict-item]
    if not isinstance(opened, AlignsTexts):
        raise TypeError(f"align(): model is a checkpoint, or its name, not {named_value(model)}")
    return opened


def hears_speech(text: str, model: str | AlignsTexts) -> bool:
    """Return whether `align` reads a text as the name of a sound file: by the model, or by its suffix."""
    from attnctl.models import kind_of_name
    from attnctl.runtime.files import SOUND
    from attnctl.source import HearsSpeech

    if SOUND.fullmatch(text):
        return True
    if isinstance(model, str):
        return kind_of_name(model).hears_speech()
    return isinstance(model, HearsSpeech) and model.hears_speech()


def align_steps(
    text: str,
    model: str | AlignsTexts,
    *,
    heads: str | None = None,
    target: str | None = None,
    words: bool = False,
    language: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    generate: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    bos: bool | None = None,
    dtype: str | None = None,
    device: str | None = None,
    gold: str | None = None,
    gold_from: int = 0,
) -> Iterator[float | AlignedWindow | AlignedSpeech | AlignedText]:
    """Align step by step.

    Yield the share of a sound that was heard, 0 to 1, after each part of it; then each window of it; at last the result.
    """
    speech = hears_speech(text, model)
    place_options = {"dtype": dtype or "auto", "device": device or "auto"} if isinstance(model, str) else {}
    for_texts: dict[str, int | str | None] = {
        "bos": bos,
        "source_language": source_language,
        "target_language": target_language,
        "generate": generate,
    }
    for_texts |= {"tokenizer": None if tokenizer is None else os.fspath(tokenizer)}
    of_texts = {name: value for name, value in for_texts.items() if value is not None}
    wrong = {
        "words": words and speech,
        "gold": gold is not None and speech,
        "language": language is not None and not speech,
    }
    for option, is_given in (wrong | dict.fromkeys(of_texts, speech)).items():
        if is_given:
            raise UsageError(f"cannot be combined with {'speech' if speech else 'texts'}", option=option)
    if not speech:
        from attnctl.commands.align.texts import align_text

        options: dict[str, Any] = place_options | of_texts | {"gold": gold, "gold_from": gold_from}
        made = align_text(text, model, heads=heads or "auto", target=target, words=words, **options)
        return iter((made,))
    from attnctl.commands.align.speech import align_speech, checked_speech, open_speech
    from attnctl.formats import read_audio

    samples = read_audio(text)
    name = "standard input" if text == "-" else os.path.basename(text)  # noqa: PTH119
    opened = open_speech(model, **place_options) if isinstance(model, str) else checked_speech(model)
    return align_speech(opened, samples, name, heads=heads or "named", target=target, language=language)
