"""`attnctl align`: when each word of a speech was said."""

from __future__ import annotations

from attnctl import api
from attnctl.cli import arguments
from attnctl.cli.output import output_format, print_lines, put_bytes, safe_console, show_renderable
from attnctl.cli.progress import cost_progress
from attnctl.errors import UsageError
from attnctl.formats.documents.json_documents import write_json
from attnctl.formats.documents.readings_json import alignment_document
from attnctl.formats.pictures import format_names
from attnctl.readings.alignment import AlignedSpeech, subtitles
from attnctl.render.terminal.console import Shown
from attnctl.render.told.align import align_forms, words_table


def align_command(
    *,
    audio: str,
    model: str | None,
    heads: str,
    json: bool,
    output: str | None,
    target: str | None,
    language: str | None,
    dtype: str | None,
    device: str | None,
) -> None:
    """When each word of a speech was said."""
    form = output_format("align", output, ("json", "srt", "vtt", *format_names()), "json" if json else "")
    if model is None:
        raise UsageError("align wants a Whisper checkpoint: name its folder or Hugging Face id with --model")
    steps = api.align_steps(audio, model, heads=heads, target=target, language=language, dtype=dtype, device=device)
    done, found = 0.0, None
    with cost_progress("listening") as tick:
        for step in steps:
            if isinstance(step, AlignedSpeech):
                found = step
            elif tick is not None:
                tick(step - done)
                done = step
    assert found is not None
    arguments.say_notes(found.notes)
    _write_aligned(found, form, output)


def _write_aligned(found: AlignedSpeech, form: str, output: str | None) -> None:
    if form == "json":
        put_bytes(write_json(alignment_document(found), "alignment") + b"\n", output)
    elif form in ("srt", "vtt"):
        put_bytes(subtitles(found, form).encode(), output)
    elif form == "terminal":
        if safe_console().is_terminal:
            show_renderable(Shown(align_forms(found)))
        else:
            print_lines(words_table(found).as_csv(delimiter="\t").rstrip("\n"))
    else:
        from attnctl.render.figure.charts import alignment_drawing

        arguments.write_drawing(alignment_drawing(found), form, output)
