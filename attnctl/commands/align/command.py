"""`attnctl align`: the times of the words of a speech, or the source of each token of a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from attnctl.checks import limits
from attnctl.cli import (
    LOOK,
    MODEL,
    ONE_CALL,
    BosOption,
    CheckpointOptions,
    FileOption,
    GenerateOption,
    JsonOption,
    SourceLanguageOption,
    TargetLanguageOption,
    TargetOption,
    TokenizerOption,
    WordsOption,
    command,
    completing,
    cost_progress,
    output_format,
    output_option,
    print_lines,
    put_bytes,
    refuse_unused,
    safe_console,
    say_note,
    say_notes,
    show_forms,
    whole,
    write_drawing,
)
from attnctl.errors import UsageError
from attnctl.formats import format_names, suffixes_listed
from attnctl.runtime.files import standard_input_is_piped

if TYPE_CHECKING:
    from attnctl.commands.align.result import AlignedSpeech, AlignedText, AlignedWindow, AlignmentScore


@command(example="attnctl align speech.wav --model openai/whisper-base -o speech.srt")
def align_command(
    context: Context,
    text: Annotated[
        str | None,
        Argument(
            help='The text, or speech: .wav, .flac, .ogg, .mp3, .aiff, .caf, .au; "-" for standard input.',
            metavar="[TEXT|AUDIO|-]",
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
    bos: BosOption = None,
    gold: Annotated[
        str | None,
        Option(
            "--gold",
            help="A human's alignment, 0-0 1p2 (1p2: possible): precision, recall and error rate. Without --model, TEXT is "
            "a file of links, a line each pair.",
            metavar="FILE",
            envvar=ONE_CALL,
            rich_help_panel=LOOK,
        ),
    ] = None,
    gold_from: Annotated[
        int,
        Option(
            "--gold-from",
            help="The number of the first word in --gold: 0 or 1.",
            metavar="N",
            parser=whole(limits.FIRST_WORD),
            rich_help_panel=LOOK,
        ),
    ] = 0,
    json: JsonOption = False,
    output: Annotated[
        str | None,
        output_option(
            f"Where to write: .json, {suffixes_listed()}; for texts .pharaoh (links of words); for speech .srt, .vtt, "
            ".TextGrid (Praat), .ctm, .txt (labels of Audacity)."
        ),
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
    from attnctl.commands.align.transcripts import FORMS, check_form

    if model.model is None and gold is not None:
        unused = ("file", "heads", "words", "target", "language", "source_language", "target_language", "generate")
        refuse_unused(
            context, *unused, "tokenizer", "bos", CheckpointOptions, because="without --model, links are scored"
        )
        _write_score(text, gold, gold_from, "json" if json else "", output)
        return
    if model.model is None:
        raise UsageError("align needs a checkpoint: name its folder or Hugging Face id with --model")
    speech = hears_speech(text or "", model.model)
    if speech:
        of_texts = ("file", "words", "source_language", "target_language", "generate", "tokenizer", "gold", "gold_from")
        refuse_unused(context, *of_texts, "bos", because="speech is aligned")
    else:
        refuse_unused(context, "language", because="texts are aligned")
    if gold is None:
        refuse_unused(context, "gold_from", because="there is no --gold")
    suffixes, hint = (FORMS, "") if speech else (("pharaoh",), ": times of words need speech")
    form = output_format("align", output, ("json", *suffixes, *format_names()), "json" if json else "", hint)
    check_form(form)
    if form == "pharaoh":
        refuse_unused(context, "words", because="its links are of words between blanks")
    if not speech:
        text = inputs.text_of(text, file)
    elif text is None:
        raise UsageError('there is no speech: name a sound file, or "-" for standard input')
    steps = align_steps(
        text, model.model, heads=heads, target=target, words=words, language=language, source_language=source_language,
        target_language=target_language, generate=generate, tokenizer=tokenizer, bos=bos, dtype=model.dtype,
        device=model.device, gold=gold, gold_from=gold_from,
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


def _write_score(text: str | None, gold: str, gold_from: int, form: str, output: str | None) -> None:
    """Write the score of a file of links."""
    from attnctl.commands.align.pharaoh import score_files

    if text is None and not standard_input_is_piped():
        raise UsageError("there are no links: name a file of them, or a model with --model")
    form = output_format("align", output, ("json",), form, ": a score is a table or JSON")
    score = score_files("-" if text is None else text, gold, gold_from)
    say_notes(score.notes)
    _write_aligned(score, (), form, output)


def _write_aligned(
    aligned: AlignedSpeech | AlignedText | AlignmentScore,
    windows: Sequence[AlignedWindow],
    form: str,
    output: str | None,
) -> None:
    """Write an alignment in this format."""
    from attnctl.commands.align.result import AlignedSpeech, AlignedText
    from attnctl.commands.align.show import align_forms, alignment_table, score_sentence
    from attnctl.commands.align.transcripts import FORMS, transcript
    from attnctl.formats import write_json

    if form == "json":
        put_bytes(write_json(aligned, "alignment") + b"\n", output)
    elif form == "terminal" and safe_console().is_terminal:
        show_forms(align_forms(aligned))
        return
    elif form == "terminal":
        print_lines(alignment_table(aligned).as_csv(delimiter="\t").rstrip("\n"))
    elif form == "pharaoh":
        assert isinstance(aligned, AlignedText)
        put_bytes(f"{aligned.pharaoh}\n".encode(), output)
    elif form in FORMS:
        assert isinstance(aligned, AlignedSpeech)
        put_bytes(transcript(aligned, form), output)
    else:
        from attnctl.commands.align.figure import links_drawing, speech_drawing

        assert isinstance(aligned, AlignedSpeech | AlignedText)
        drawing = speech_drawing(aligned, windows) if isinstance(aligned, AlignedSpeech) else links_drawing(aligned)
        write_drawing(drawing, form, output)
    if form != "json" and isinstance(aligned, AlignedText) and aligned.score is not None:
        say_note(score_sentence(aligned.score))
