"""`attnctl align`: when each word of a speech was said, or what each token of a target was made from."""

from __future__ import annotations

from typing import Any

from attnctl import api, inputs
from attnctl.cli import arguments
from attnctl.cli.output import output_format, print_lines, put_bytes, safe_console, show_renderable
from attnctl.cli.progress import cost_progress
from attnctl.errors import UsageError
from attnctl.formats.documents.json_documents import write_json
from attnctl.formats.documents.readings_json import alignment_document
from attnctl.formats.pictures import format_names
from attnctl.readings.alignment import AlignedSpeech, subtitles
from attnctl.readings.text_alignment import AlignedText
from attnctl.render.terminal.console import Shown
from attnctl.render.told.align import align_forms, alignment_table


def align_command(
    *,
    text: str | None,
    file: str | None,
    model: str | None,
    heads: str | None,
    json: bool,
    output: str | None,
    **options: Any,
) -> None:
    """When each word of a speech was said, or what each token of a target was made from."""
    if model is None:
        raise UsageError("align wants a checkpoint: name its folder or Hugging Face id with --model")
    speech = api.hears_speech(text or "", model)
    arguments.check_mode("align", "speech" if speech else "texts")
    suffixes, hint = ("srt", "vtt") * speech, "" if speech else ": subtitles are of speech"
    form = output_format("align", output, ("json", *suffixes, *format_names()), "json" if json else "", hint)
    if not speech:
        text = inputs.text_of(text, file)
    elif text is None:
        raise UsageError('there is no speech: name its file, or "-" for standard input')
    done, found = 0.0, None
    with cost_progress("listening" if speech else "aligning") as tick:
        for step in api.align_steps(text, model, heads=heads, **options):
            if not isinstance(step, float):
                found = step
            elif tick is not None:
                tick(step - done)
                done = step
    assert found is not None
    arguments.say_notes(found.notes)
    _write_aligned(found, form, output)


def _write_aligned(found: AlignedSpeech | AlignedText, form: str, output: str | None) -> None:
    if form == "json":
        put_bytes(write_json(alignment_document(found), "alignment") + b"\n", output)
    elif form in ("srt", "vtt"):
        assert isinstance(found, AlignedSpeech)
        put_bytes(subtitles(found, form).encode(), output)
    elif form == "terminal":
        if safe_console().is_terminal:
            show_renderable(Shown(align_forms(found)))
        else:
            print_lines(alignment_table(found).as_csv(delimiter="\t").rstrip("\n"))
    else:
        from attnctl.render.figure.charts import alignment_drawing

        arguments.write_drawing(alignment_drawing(found), form, output)
