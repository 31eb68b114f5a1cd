"""`attnctl align`: the times of the words of a speech, or the source of each token of a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from attnctl.checks.options import LOOK, MODEL
from attnctl.cli.command import command, refuse_unused
from attnctl.cli.groups import (
    CheckpointOptions,
    FileOption,
    GenerateOption,
    JsonOption,
    SourceLanguageOption,
    TargetLanguageOption,
    TargetOption,
    TokenizerOption,
    WordsOption,
    output_option,
)
from attnctl.cli.output import (
    output_format,
    print_lines,
    put_bytes,
    safe_console,
    say_notes,
    show_renderable,
    write_drawing,
)
from attnctl.cli.progress import cost_progress
from attnctl.cli.suggestions import completing
from attnctl.errors import UsageError
from attnctl.formats.pictures import format_names, suffixes_listed

if TYPE_CHECKING:
    from attnctl.commands.align.result import AlignedSpeech, AlignedText, AlignedWindow


@command(example="attnctl align speech.wav --model openai/whisper-base -o speech.srt")
def align_command(
    context: Context,
    text: Annotated[
        str | None,
        Argument(
            help='The text, or speech: .wav, .flac, .ogg, .mp3; "-" for standard input.', metavar="[TEXT|AUDIO|-]"
        ),
    ] = None,
    *,
    file: FileOption = None,
    heads: Annotated[
        str | None,
        Option(
            "--heads",
            help="named (in the generation config; default for speech), auto (the heads that align best; default for "
            "texts), or layer.head: 4.2,5.1.",
            metavar="named|auto|HEADS",
            autocompletion=completing("named", "auto"),
            rich_help_panel=LOOK,
        ),
    ] = None,
    words: WordsOption = False,
    target: TargetOption = None,
    language: Annotated[
        str | None,
        Option(
            "--language",
            help="The spoken language: en, de [default: as the model hears it].",
            metavar="TEXT",
            rich_help_panel=MODEL,
        ),
    ] = None,
    source_language: SourceLanguageOption = None,
    target_language: TargetLanguageOption = None,
    generate: GenerateOption = None,
    tokenizer: TokenizerOption = None,
    json: JsonOption = False,
    output: Annotated[
        str | None, output_option(f"Where to write: .json, {suffixes_listed()}; for speech also .srt, .vtt.")
    ] = None,
    model: CheckpointOptions,
) -> None:
    """Find when each word of a speech was spoken, or which source token each token of a target comes from.

    Speech: the times come from the cross attention of Whisper and dynamic time warping. The model writes the speech down, or
    --target gives its text. A word's confidence is the geometric mean of its tokens' probabilities. The heads that follow
    the sound best are found too, and compared with those that the checkpoint names.

    Texts: an encoder-decoder reads the text as its source, and writes the target, or --target gives it. Other models read
    one text, "source >> target". The heads that give each token of the target its own source are found too.
    """
    from attnctl import inputs
    from attnctl.commands.align.compute import align_steps, hears_speech
    from attnctl.commands.align.result import AlignedWindow

    if model.model is None:
        raise UsageError("align needs a checkpoint: name its folder or Hugging Face id with --model")
    speech = hears_speech(text or "", model.model)
    if speech:
        of_texts = ("file", "words", "source_language", "target_language", "generate", "tokenizer")
        refuse_unused(context, *of_texts, because="speech is aligned")
    else:
        refuse_unused(context, "language", because="texts are aligned")
    suffixes, hint = ("srt", "vtt") * speech, "" if speech else ": subtitles need speech"
    form = output_format("align", output, ("json", *suffixes, *format_names()), "json" if json else "", hint)
    if not speech:
        text = inputs.text_of(text, file)
    elif text is None:
        raise UsageError('there is no speech: name a sound file, or "-" for standard input')
    steps = align_steps(
        text, model.model, heads=heads, target=target, words=words, language=language, source_language=source_language,
        target_language=target_language, generate=generate, tokenizer=tokenizer, dtype=model.dtype, device=model.device,
    )  # fmt: skip
    share, windows = 0.0, list[AlignedWindow]()
    with cost_progress("listening" if speech else "aligning") as tick:
        for step in steps:
            if isinstance(step, float):
                tick(step - share)
                share = step
            elif isinstance(step, AlignedWindow):
                windows.append(step)
            else:
                aligned = step
    say_notes(aligned.notes)
    _write_aligned(aligned, windows, form, output)


def _write_aligned(
    aligned: AlignedSpeech | AlignedText, windows: Sequence[AlignedWindow], form: str, output: str | None
) -> None:
    """Write an alignment in this format."""
    from attnctl.commands.align.result import AlignedSpeech
    from attnctl.commands.align.show import align_forms, alignment_table, subtitles
    from attnctl.formats.documents.json_documents import write_json
    from attnctl.render.terminal.console import Shown

    if form == "json":
        put_bytes(write_json(aligned, "alignment") + b"\n", output)
    elif form == "terminal":
        if safe_console().is_terminal:
            show_renderable(Shown(align_forms(aligned)))
        else:
            print_lines(alignment_table(aligned).as_csv(delimiter="\t").rstrip("\n"))
    elif form in ("srt", "vtt"):
        assert isinstance(aligned, AlignedSpeech)
        put_bytes(subtitles(aligned, form).encode(), output)
    else:
        from attnctl.commands.align.figure import links_drawing, speech_drawing

        drawing = speech_drawing(aligned, windows) if isinstance(aligned, AlignedSpeech) else links_drawing(aligned)
        write_drawing(drawing, form, output)
