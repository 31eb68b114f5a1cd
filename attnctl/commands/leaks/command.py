"""`attnctl leaks`: whether a model keeps the documents of a packed batch apart."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from attnctl.cli import (
    LOOK,
    CheckpointOptions,
    JsonOption,
    command,
    completing,
    cost_progress,
    option_values,
    output_format,
    output_option,
    put_bytes,
    say_notes,
    write_forms,
    write_panels,
)
from attnctl.errors import DONE, FINDING, UsageError
from attnctl.formats import format_names, suffixes_listed

if TYPE_CHECKING:
    from attnctl.commands.leaks.search import LeakSearch


@command(example="attnctl leaks batch.safetensors --model smollm2")
def leaks_command(
    inputs: Annotated[
        list[str],
        Argument(
            help="A batch as a collator makes it (.safetensors, .npz, .json); with --pack two or more texts.",
            metavar="BATCH|TEXT…",
        ),
    ],
    *,
    pack: Annotated[
        bool,
        Option(
            "--pack",
            help="Pack texts into one row, as a collator does: positions start at 0 in each.",
            rich_help_panel=LOOK,
        ),
    ] = False,
    expect: Annotated[
        str,
        Option(
            "--expect",
            help='Who may see whom: segments (only itself), causal (earlier ones, too), "prefix N", or a file of 0 and 1.',
            metavar="segments|causal|prefix N|FILE",
            autocompletion=completing("segments", "causal"),
            rich_help_panel=LOOK,
        ),
    ] = "segments",
    json: JsonOption = False,
    output: Annotated[str | None, output_option(f"Where to write: .json, .txt, .html, {suffixes_listed()}.")] = None,
    model: CheckpointOptions,
) -> int:
    """Measure whether a model keeps the documents of a packed batch apart.

    may: what each layer's mask lets through. does: the attention weight that crosses from one document to another. matters:
    how far a document's outputs move if another document's tokens are replaced. Each leak is described in a sentence, with
    its likely cause. The exit code is 0 if all documents are apart, and 4 if there is a leak.
    """
    from attnctl.commands.leaks.show import leaks_forms, leaks_panels
    from attnctl.formats import write_json

    form = output_format("leaks", output, ("json", "txt", "html", *format_names()), "json" if json else "")
    search = _leak_search(inputs, model, pack, expect)
    tokens = prod(search.shape)
    with cost_progress(f"{tokens:,} tokens", "a smaller batch takes less") as tick:
        leaks = search.measure(tick)
    say_notes(leaks.notes)
    if form == "json":
        put_bytes(write_json(leaks, "leaks") + b"\n", output)
    elif form in ("terminal", "txt", "html"):
        write_forms(leaks_forms(leaks), form, output, "attnctl leaks", leaks.model.citation)
    else:
        write_panels(leaks_panels(leaks), form, output)
    return FINDING if leaks.wrong else DONE


def _leak_search(inputs: Sequence[str], options: CheckpointOptions, pack: bool, expect: str) -> LeakSearch[Any]:
    """Return the search over a batch in a file, or with `pack` over texts in one row.

    Raises UsageError for arguments that cannot be combined, AttnctlError for a damaged file or checkpoint.
    """
    from attnctl.commands.leaks.result import parsed_expectation
    from attnctl.inputs import names_table, read_batch, read_table
    from attnctl.models import kind_of_name

    model, dtype = options.model, options.dtype
    kind = None if model is None else kind_of_name(model)
    if model is None or kind is None or not (kind.is_function or kind.settings is not None):
        raise UsageError("leaks needs a checkpoint: name its folder or Hugging Face id with --model")
    if (len(inputs) < 2) == pack:
        if pack:
            raise UsageError("packs texts: give two or more", option="pack")
        raise UsageError("leaks reads one batch; for texts, add --pack")
    batch: dict[str, Any] = {} if pack else dict(read_batch(inputs[0], needs_ids=not kind.is_function))
    is_table = not parsed_expectation(expect) and names_table(expect)
    expected: Any = read_table(expect) if is_table else expect
    if kind.is_function:
        return _module_search(inputs if pack else (), batch, options, expected)
    from attnctl.commands.leaks.compute import NetworkLeaks
    from attnctl.models import named_network

    network, name, packed = named_network(model, inputs if pack else (), dtype, options.device)
    batch |= packed
    return NetworkLeaks(network, batch, batch.pop("segments", None), expected, name)


def _module_search(
    texts: Sequence[str], batch: dict[str, Any], options: CheckpointOptions, expected: Any
) -> LeakSearch[Any]:
    """Return the search over a batch, or over texts in one row, for a module of the user's own."""
    from attnctl.cli import model_of
    from attnctl.commands.leaks.module import ModuleLeaks
    from attnctl.source import CallsModule

    opened = model_of(option_values(options))
    assert isinstance(opened, CallsModule)
    if texts:
        batch = opened.packed(texts)
    return ModuleLeaks(opened.module, (), batch, batch.pop("segments", None), expected, opened.info.name, opened.name)
