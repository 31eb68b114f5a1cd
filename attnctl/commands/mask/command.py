"""`attnctl mask`: what the masks of a model let through, and whether its outputs keep to what they should."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from attnctl.cli import (
    LOOK,
    CheckpointOptions,
    ImageOption,
    JsonOption,
    TargetOption,
    command,
    completing,
    cost_progress,
    option_values,
    output_format,
    output_option,
    put_bytes,
    say_notes,
    say_unless_quiet,
    write_forms,
    write_panels,
)
from attnctl.errors import DONE, FINDING, UsageError
from attnctl.formats import format_names, suffixes_listed

if TYPE_CHECKING:
    from attnctl.commands.mask.exchange import Search
    from attnctl.commands.mask.expected import Rule
    from attnctl.source import Model


@dataclass(frozen=True)
class MaskOptions(CheckpointOptions):
    """A model, a picture beside the text, and the text that a decoder writes."""

    image: ImageOption = None
    target: TargetOption = None


@command(example='attnctl mask "Alice will eat pizza" --model smollm2')
def mask_command(
    source: Annotated[
        str,
        Argument(
            help="A text, a picture, a sound, or a batch as a collator makes it (.safetensors, .npz, .json).",
            metavar="TEXT|BATCH",
        ),
    ],
    *,
    expect: Annotated[
        str | None,
        Option(
            "--expect",
            help='Who may see whom: causal, bidirectional, "prefix N", "window N", segments, "causal window N", or a file '
            "of 0 and 1 [default: what the model's configuration and documentation say].",
            metavar="causal|bidirectional|prefix N|window N|segments|FILE",
            autocompletion=completing("causal", "bidirectional", "segments"),
            rich_help_panel=LOOK,
        ),
    ] = None,
    json: JsonOption = False,
    output: Annotated[str | None, output_option(f"Where to write: .json, .txt, .html, {suffixes_listed()}.")] = None,
    model: MaskOptions,
) -> int:
    """Show what the mask of each layer lets through, and check that the model keeps to it.

    Layers with the same mask are one group, said in a sentence: "causal, window 512". As a check, the tokens that a query
    should not see are exchanged at the input of each layer, and the layer's output at the query must stay. The model runs
    with its own kernel. The exit code is 0 if nothing crosses a mask, and 4 if something does.
    """
    from attnctl.commands.mask.result import outcome, violation_lines
    from attnctl.commands.mask.show import mask_forms, mask_panels
    from attnctl.formats import write_json

    form = output_format("mask", output, ("json", "txt", "html", *format_names()), "json" if json else "")
    search = _mask_search(source, model, expect)
    with cost_progress(f"{search.longest:,} tokens", "a shorter text takes less") as tick:
        check = search.measure(tick)
    say_notes(check.notes)
    if form == "json":
        put_bytes(write_json(check, "mask") + b"\n", output)
    elif form in ("terminal", "txt", "html"):
        write_forms(mask_forms(check), form, output, f"masks of {check.model.name}", check.model.citation)
    else:
        grids, look = mask_panels(check)
        write_panels(grids, form, output, look)
    if output is not None and check.holds is False:
        for line in (f"{check.model.name}: {outcome(check)}", *violation_lines(check)):
            say_unless_quiet(line)
    return FINDING if check.violations else DONE


def _mask_search(source: str, options: MaskOptions, expect: str | None) -> Search:
    """Return the search over a text, a picture, a sound or a batch.

    Raises UsageError for arguments that do not go together, AttnctlError for a damaged file or checkpoint.
    """
    from attnctl.cli import model_of
    from attnctl.commands.mask.compute import MaskSearch, StackSearch
    from attnctl.commands.mask.expected import parsed_rule, rule_of
    from attnctl.inputs import names_table, read_batch, read_table
    from attnctl.models import kind_of_name
    from attnctl.models.exchange import RunsBlocks
    from attnctl.source import CallsNetwork

    is_table = expect is not None and parsed_rule(expect) is None and names_table(expect)
    rule = rule_of(read_table(expect) if expect is not None and is_table else expect)
    is_batch = Path(source).suffix.lower() in (".safetensors", ".npz", ".json") and "\n" not in source
    if is_batch and options.image is not None:
        raise UsageError("cannot be combined with a batch, which holds its pictures", option="image")
    if is_batch and options.target is not None:
        raise UsageError("cannot be combined with a batch, which holds its decoder_input_ids", option="target")
    needs_ids = options.model is None or not kind_of_name(options.model).is_function
    batch: dict[str, Any] = dict(read_batch(source, needs_ids=needs_ids)) if is_batch else {}
    opened = model_of(option_values(options))
    if not needs_ids:
        return _module_search(opened, source, batch, rule)
    if is_batch:
        if not isinstance(opened, CallsNetwork):
            raise UsageError(f"{opened.info.name} reads no batch: name a checkpoint with --model")
        return MaskSearch(opened.network, batch, batch.pop("segments", None), rule, opened.info.name)
    opened = opened.model_for(source)
    if isinstance(opened, CallsNetwork):
        inputs, names = opened.inputs_of(source)
        return MaskSearch(opened.network, inputs, None, rule, opened.info.name, names)
    if not isinstance(opened, RunsBlocks):
        raise UsageError(f"{opened.info.name} has no layers that can be run again: name a checkpoint with --model")
    return StackSearch(opened, opened.tokenize(source), rule)


def _module_search(opened: Model, source: str, batch: dict[str, Any], rule: Rule | None) -> Search:
    """Return the search over a text or a batch for a module of the user's own."""
    from attnctl.commands.mask.module import ModuleSearch
    from attnctl.source import CallsModule

    assert isinstance(opened, CallsModule)
    name, own = opened.info.name, opened.name
    if batch:
        return ModuleSearch(opened.module, (), batch, batch.pop("segments", None), rule, name, own=own)
    inputs = opened.inputs_of_text(source)
    tokens = tuple(token.text for token in inputs.tokens or ())
    return ModuleSearch(opened.module, inputs.args, inputs.keywords, None, rule, name, tokens, own)
