"""Define what an installed package may add to attnctl, and what such a package may import.

A package names its additions as entry points, each under the name that users type:

    [project.entry-points."attnctl.commands"]       # a command: its module, with `lookback_command` under `@command`
    lookback = "attnctl_lookback"

    [project.entry-points."attnctl.documents"]      # for `attnctl schema NAME`: a `JsonDocument`
    lookback = "attnctl_lookback:Lookback"

    [project.entry-points."attnctl.measures"]       # a measure: a `Measure` of this name
    relative = "attnctl_lookback:RELATIVE"

    [project.entry-points."attnctl.batch_formats"]  # a format of `batch`: a class below `BatchFormat`
    lengths = "attnctl_lengths:Lengths"

It may import the names of these packages and modules: those in `__all__`, or all without a leading underscore where there is
no `__all__`. Everything else is private, and may change in any version:

attnctl                           the functions for Python: attend, capture, intervene, load, …
attnctl.attention                 the mathematics
attnctl.batching                  many texts: TextStream, TreebankStream, Task, Engine, Folder; BatchFormat, MeanFormat
attnctl.blockwise                 long texts: tiles, edges of pooled cells, Tick for progress
attnctl.checks.argument_types     checks of the arguments of a Python function
attnctl.checks.document_fields    types of the fields of a document: Part, Share, Count, about, …
attnctl.checks.limits             ranges of numbers
attnctl.checks.model_options      options of a function that takes a model: ModelOptions, with_model_options
attnctl.checks.selection          selections: 3, -1, 0-5, all, a token, a head
attnctl.checks.tolerances         how far numbers may lie apart
attnctl.cli                       a command: its form, shared options, open_source, progress, show_forms, write_panels; the
                                  program that runs commands by their lines: run_command, Session, defaults
attnctl.errors                    AttnctlError, UsageError, exit codes
attnctl.formats                   files: JsonDocument, write_json; Look, picture formats; tables, sound, conversations
attnctl.inputs                    what an argument names: a text, a conversation, a batch, a table
attnctl.layer                     LayerAttention: the attention of one layer
attnctl.layer.computed            ComputedLayer: weights from queries and keys
attnctl.layer.interventions       Intervention: heads that are off, edges that are cut
attnctl.measures                  Measure
attnctl.models                    open_model, and what a command asks for by a model's name
attnctl.models.builtin            networks of our own: vocabulary, parameters, the mathematics of a layer
attnctl.models.configurations     the sizes of a model by its configuration
attnctl.models.exchange           a model run again with other tokens
attnctl.models.sizes              ModelSizes: layers, heads, parameters, cache
attnctl.plugins                   what installed packages add: entries, load_entry
attnctl.readings                  Overview, HeatmapGrid, Comparison, HeadNames, and the readings that give them
attnctl.readings.head_statistics  what each head does: STATISTICS, HeadStatistics, HeadTable
attnctl.readings.spans            parts of a text, with their tokens: parts_of, spans_of, named_parts
attnctl.registry                  the commands, and what each adds: COMMANDS, DOCUMENTS, BATCH_FORMATS
attnctl.render                    forms (Line, Table, Grid), pictures (Panels, Bars, Drawing), pages of HTML
attnctl.runtime.arrays            types of arrays
attnctl.runtime.files             files: read with limits, written whole, locked
attnctl.runtime.interrupts        Ctrl-C: work that ends whole, folders that are removed
attnctl.runtime.light_import      torch and transformers, imported without what is not used
attnctl.source                    Source, Reading, prepare; cells and links of a source; protocols of models
attnctl.text                      text that is shown safely, in words and numbers
attnctl.text.english              the bundled corpus: sentences to train on and held-out ones, links between their words
attnctl.text.tokens               Token
attnctl.trace                     Trace, Run, Subject, ModelInfo
attnctl.trace.steps               the steps of a trace, by name
attnctl.watched                   a prediction while heads and edges are taken away: watched_text, measure_effects, Effects

attnctl's own commands hold to this list, and `.importlinter` to each of them.
VERSION rises if a change in one of them would break such a package.

Entry points are read for a help, for a name that attnctl does not have, for `attnctl schema`, and for a user's default that
is not an option of the command. No other start reads them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import TypeVar

from attnctl.errors import AttnctlError, error_place, in_one_line, print_complaint

Loaded = TypeVar("Loaded")

VERSION = 4  # of the surface: a package names what is public of it, in place of the modules below it

GROUPS = ("attnctl.commands", "attnctl.documents", "attnctl.measures", "attnctl.batch_formats")
# group → functions that return its entry points by name, and that load one of them
OTHERS = {
    "attnctl.measures": ("attnctl.measures:measures_of_packages", "attnctl.measures:load_measure"),
    "attnctl.batch_formats": ("attnctl.batching.formats:formats_of_packages", "attnctl.batching.formats:load_format"),
}


def entries(group: str, own_names: Collection[str]) -> dict[str, EntryPoint]:
    """Return the entry points of a group, "attnctl.commands", by name, in an order that does not depend on folders.

    A name that attnctl has itself, or that two packages have, is left out with a warning.
    """
    by_name: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, package_of(entry))):
        if entry.name in own_names or entry.name in by_name:
            _warn(f"{package_of(entry)} gives a {kind_of(entry)} {entry.name}, which exists already: it is left out")
            continue
        by_name[entry.name] = entry
    return by_name


def load_entry(entry: EntryPoint, load: Callable[[EntryPoint], Loaded]) -> Loaded:
    """Return the result of `load` for an entry point. Raises AttnctlError for any error of the package's module."""
    try:
        return load(entry)
    except (Exception, SystemExit) as error:
        why, package = f"{type(error).__name__}: {in_one_line(error)}", package_of(entry)
        named = f"the {kind_of(entry)} {entry.name} of {package}"
        raise AttnctlError(f"{named} cannot be imported ({why}): mend it, or remove {package}") from error


def working_entries(
    points: Mapping[str, EntryPoint], load: Callable[[EntryPoint], Loaded], *, warn: bool = True
) -> dict[str, Loaded]:
    """Return the loaded entry points by name; with `warn` print a warning for each that cannot be imported."""
    working = {}
    for name, entry in points.items():
        try:
            working[name] = load_entry(entry, load)
        except AttnctlError as error:
            if warn:
                _warn(str(error))
    return working


def names_from_packages(group: str, *, warn: bool = True) -> list[str]:
    """Return the names in a group of OTHERS that can be imported; print a warning for each other one."""
    if not entries(group, ()):
        return []
    of_packages, load = map(resolve_name, OTHERS[group])
    return list(working_entries(of_packages(), load, warn=warn))


def fault_of_package(error: BaseException) -> str | None:
    """Return what failed, if code of an installed package raised an error: "the measure x of y failed: …"; else None."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    points = [entry for group in GROUPS for entry in entry_points(group=group)]
    for module in reversed(modules):
        for entry in points:
            if module.partition(".")[0] == entry.module.partition(".")[0]:
                why = f"{type(error).__name__}: {in_one_line(error)} ({error_place(error)})"
                return f"the {kind_of(entry)} {entry.name} of {package_of(entry)} failed: {why}; tell its authors"
    return None


def kind_of(entry: EntryPoint) -> str:
    """Return what an entry point adds: "batch format" for attnctl.batch_formats."""
    return entry.group.removeprefix("attnctl.").removesuffix("s").replace("_", " ")


def package_of(entry: EntryPoint) -> str:
    """Return the name of the package that has an entry point."""
    return entry.dist.name if entry.dist else entry.value


@cache
def _warn(message: str) -> None:
    """Print a warning, once."""
    print_complaint(message)
