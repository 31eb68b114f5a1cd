"""`attnctl.align`: the words of a speech with their times, or the tokens of a target with their sources."""

from __future__ import annotations

import os
from collections.abc import Iterator

from attnctl.checks.argument_types import check_types
from attnctl.commands.align.result import AlignedSpeech, AlignedText, AlignedWindow
from attnctl.errors import UsageError


def align(
    text: str | os.PathLike[str],
    model: str | os.PathLike[str],
    *,
    heads: str | None = None,
    target: str | None = None,
    words: bool = False,
    language: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    generate: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    device: str | None = None,
) -> AlignedSpeech | AlignedText:
    """Return the times of the words of a speech, or the source of each token of a target, as the command does.

    `model` is a checkpoint's folder or Hugging Face id. For Whisper, `text` is a file of speech, and the result's `words`
    have text, start, end and confidence. For an encoder-decoder, `text` is the source of `target` (None: the model writes
    it, with at most `generate` tokens, or as its generation_config says); for other models it is "source >> target". The
    result's `links` then have text, source, source_text and weight; with `words` they link whole words. `tokenizer` is a
    tokenizer.json in place of the checkpoint's own. `heads` is named (those in Whisper's generation config; if it has none,
    the best), auto (the best), or layer.head with commas; None means named for speech, auto for texts.
    """
    check_types("align", str | os.PathLike, text=text, model=model)
    check_types("align", str | None, heads=heads, target=target, language=language, source_language=source_language)
    check_types("align", str | None, target_language=target_language, dtype=dtype, device=device)
    check_types("align", bool, words=words)
    check_types("align", int | None, generate=generate)
    check_types("align", str | os.PathLike | None, tokenizer=tokenizer)
    *_, result = align_steps(
        os.fspath(text), os.fspath(model), heads=heads, target=target, words=words, language=language,
        source_language=source_language, target_language=target_language, generate=generate, tokenizer=tokenizer,
        dtype=dtype, device=device,
    )  # fmt: skip
    assert isinstance(result, AlignedSpeech | AlignedText)
    return result


def hears_speech(text: str, model: str) -> bool:
    """Return whether `align` reads a text as the name of a sound file: by the model, or by its suffix."""
    from attnctl.models.huggingface.hub import checkpoint_settings, is_checkpoint
    from attnctl.runtime.files import SOUND

    return bool(SOUND.fullmatch(text)) or (
        is_checkpoint(model) and checkpoint_settings(model).get("model_type") == "whisper"
    )


def align_steps(
    text: str,
    model: str,
    *,
    heads: str | None = None,
    target: str | None = None,
    words: bool = False,
    language: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    generate: int | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    device: str | None = None,
) -> Iterator[float | AlignedWindow | AlignedSpeech | AlignedText]:
    """Align step by step.

    Yield the share of a sound that was heard, 0 to 1, after each part of it; then each window of it; at last the result.
    """
    speech, place_options = hears_speech(text, model), {"dtype": dtype or "auto", "device": device or "auto"}
    for_texts: dict[str, int | str | None] = {
        "source_language": source_language,
        "target_language": target_language,
        "generate": generate,
    }
    for_texts |= {"tokenizer": None if tokenizer is None else os.fspath(tokenizer)}
    of_texts = {name: value for name, value in for_texts.items() if value is not None}
    wrong = {"words": words and speech, "language": language is not None and not speech}
    for option, is_given in (wrong | dict.fromkeys(of_texts, speech)).items():
        if is_given:
            raise UsageError(f"cannot be combined with {'speech' if speech else 'texts'}", option=option)
    if not speech:
        from attnctl.commands.align.texts import align_text

        options = place_options | of_texts
        return iter((align_text(text, model, heads=heads or "auto", target=target, words=words, **options),))
    from attnctl.commands.align.speech import align_speech, open_speech
    from attnctl.formats.audio import read_audio

    samples = read_audio(text)
    name = "standard input" if text == "-" else os.path.basename(text)  # noqa: PTH119
    return align_speech(
        open_speech(model, **place_options), samples, name, heads=heads or "named", target=target, language=language
    )
