"""Do the work on each text of a batch: make its trace, and the bytes of every requested format."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from attnctl.batching.formats import FILES, PICTURES, SHARED, format_named
from attnctl.batching.items import Item, Pending, Result, failed_line, item_options, read_conversation
from attnctl.batching.passes import SharedPasses, is_heavy, run_pass, runs_at_once
from attnctl.checks import limits
from attnctl.checks.model_options import model_arguments
from attnctl.checks.selection import selected_indices
from attnctl.errors import AttnctlError, UsageError, error_place, in_one_line, option_name, options_as_flags
from attnctl.formats.pictures import CMAP, heatmap_bytes
from attnctl.measures import check_measure, needs_of
from attnctl.models import Model, open_named_model
from attnctl.readings.trace_reading import TraceReading
from attnctl.registry import ALIGNED_FORMATS, BATCH_FORMATS, PROMPT_FORMATS
from attnctl.runtime.files import need_pyarrow
from attnctl.source import (
    NO_CHANGES,
    ChangedReading,
    Changes,
    Prepared,
    TextSource,
    TraceSource,
    check_room,
    listed_tokens,
    prepare,
)
from attnctl.source.model import Generates
from attnctl.text.tokens import checked_text
from attnctl.trace import Trace
from attnctl.trace.notes import notes_of_kind
from attnctl.trace.steps import NAMES, check_names, fields_of_steps, narrow_trace

if TYPE_CHECKING:
    from attnctl.checks.model_options import OptionValues

NONE = "[]"  # the key of a model without options of an item
# formats that read nothing of a trace but the kept steps, and the weights
WEIGHTS_OR_STEPS = frozenset(("json", "npz", "parquet", "headlines", "weights", "weights-parquet"))
OPENED = 8  # models kept open if items have their own options


@dataclass(frozen=True)
class Work:
    """The request, the same for every item; it is sent to the process that does the work.

    `options` are those of `open_model`; `layer` and `head` select as on the command line, `query` is a token's text or
    index; `look` are the options of `Trace.figure`.
    """

    options: OptionValues
    formats: tuple[str, ...] = ("json",)
    layer: str | None = None
    head: str | None = None
    query: str | None = None
    look: OptionValues = field(default_factory=dict)
    max_tokens: int | None = None
    batch_size: int = 1  # texts that share a pass through a checkpoint
    changes: Changes = NO_CHANGES  # the measure in place of the weights, words, keys left out, rows rescaled
    steps: tuple[str, ...] | None = None  # the steps whose arrays a trace keeps; None for all
    prompts: OptionValues = field(default_factory=dict)  # options of answered prompts: spans, most, budget, remove
    is_named: bool = True  # `options` name the model; else the model was opened by the caller, and there are no options

    def task(self, model: Model | None = None) -> Task:
        """Return the task of a worker."""
        for form in self.formats:
            if form in PROMPT_FORMATS:
                task: Task = format_named(form).task(self.options, self.prompts, model)
                return task
            if form in ALIGNED_FORMATS:
                aligning: Task = format_named(form).task(self, model)
                return aligning
        return Traces(self, model)

    @property
    def answers_prompts(self) -> bool:
        """Return whether the texts are prompts whose answers a command's format reads."""
        return any(form in PROMPT_FORMATS for form in self.formats)

    @property
    def aligns(self) -> bool:
        """Return whether a command's format aligns the texts or sounds."""
        return any(form in ALIGNED_FORMATS for form in self.formats)

    def request(self) -> dict[str, Any]:
        """Return the request for run.json; prompts and steps only if they were set."""
        request = {"formats": sorted(self.formats), "model": self.options, "look": self.look}
        apart = {*request, "options", "is_named", "changes"}
        request |= {name: value for name, value in vars(self).items() if name not in apart}
        request |= self.changes._asdict() | {"drop": tuple(self.changes.drop or ())}
        where_given = {name: request.pop(name) for name in ("prompts", "steps")}
        return request | {name: value for name, value in where_given.items() if value not in (None, {})}

    @property
    def kept_steps(self) -> tuple[str, ...]:
        """Return the steps whose arrays a trace keeps; in a file the matrices only if they are named."""
        if self.steps is None:
            return tuple(name for name in NAMES if name != "matrices") if self.formats else NAMES
        return self.steps

    @property
    def reads_kept_steps(self) -> bool:
        """Return whether nothing but the kept steps is read of a trace."""
        is_named = self.steps is not None and "summary" in self.steps  # a headline reads steps that are not kept
        return self.changes.is_empty and WEIGHTS_OR_STEPS.issuperset(self.formats) and not is_named

    def narrowed(self, trace: Trace) -> Trace:
        """Return the part of a trace to keep."""
        steps = self.kept_steps
        return trace if steps == NAMES else narrow_trace(trace, steps)

    @property
    def wants_headline(self) -> bool:
        """Return whether a JSON record has a headline: it takes longer than the weights of a short text.

        Whoever names steps gets these alone; "summary" is the step that tells where words look.
        """
        return self.steps is None or "summary" in self.steps

    @property
    def wants_predictions(self) -> bool:
        """Return whether predictions are needed: by a format, or without formats by the traces themselves."""
        has_step = self.steps is None or "prediction" in self.steps
        return has_step and (not self.formats or any(form in ("json", "npz") for form in self.formats))

    @property
    def draws_pictures(self) -> bool:
        """Return whether pictures are drawn, which takes longer than everything else together."""
        return not WEIGHTS_OR_STEPS.issuperset(self.formats)


class Task:
    """The task of a worker: to make traces, or what a command makes of texts."""

    @cached_property
    def model(self) -> Model:
        """Return the opened model."""
        raise NotImplementedError

    @property
    def together(self) -> int:
        """Return how many items may share a pass."""
        return 1

    @property
    def runs_at_once(self) -> bool:
        """Return whether two threads may do the task at once."""
        return False

    def begin(self, item: Item) -> Result | Pending:
        """Return the item, ready for a pass that others may share, or its result. Raises the error of a wrong item."""
        raise NotImplementedError

    def results(self, pending: Sequence[Pending]) -> list[Result]:
        """Return the results of items that share a pass. Raises the error of one of them."""
        raise NotImplementedError

    def failed(self, item: Item, why: str) -> Result:
        """Return the result of an item that failed, with the reason."""
        return Result(item, error=why)


class Request(Protocol):
    """A request to a worker, the same for every item, from which it makes its task."""

    def task(self, model: Model | None = None) -> Task:
        """Return the task of a worker; without a `model` it opens one."""
        ...


class Worker:
    """A worker that does the work chunk by chunk; it opens the model once and keeps it."""

    def __init__(self, work: Request, model: Model | None = None, flags: Mapping[str, str] | None = None) -> None:
        self._work, self._model, self._flags = work, model, flags
        self._passes: SharedPasses | None = None

    @cached_property
    def task(self) -> Task:
        """Return the task of the worker; it opens the model."""
        return self._work.task(self._model)

    def each(self, chunks: Iterable[list[Item]]) -> Iterator[list[Result]]:
        """Yield the results of each chunk, in order; two chunks are in work at once where the task allows that."""
        if self._model is None or not is_heavy(self._model) or not self.task.runs_at_once:
            yield from map(self.chunk_results, chunks)
            return
        from attnctl.runtime.two_at_once import two_at_once

        self._passes = SharedPasses(self.task.model, self.task.together)  # once, not by each thread
        yield from two_at_once(self.chunk_results, chunks)

    def chunk_results(self, items: Sequence[Item]) -> list[Result]:
        """Return one result for each item, in order. An error of one text becomes the result of its item."""
        with options_as_flags(self._flags):  # in any process
            return self._results_of_chunk(items)

    def _results_of_chunk(self, items: Sequence[Item]) -> list[Result]:
        results: dict[int, Result] = {}
        ready: list[Pending] = []
        for item in items:
            start = time.perf_counter()
            try:
                begun = self.task.begin(item)
            except Exception as error:
                begun = self.task.failed(item, reason_of(error))
            if isinstance(begun, Pending):
                ready.append(begun)
            else:
                begun.seconds = time.perf_counter() - start
                results[item.number] = begun
        ready.sort(key=lambda pending: (len(pending.tokens), pending.item.number))
        while ready:
            self._passes = self._passes or SharedPasses(self.task.model, self.task.together)
            size = self._passes.next_size([pending.tokens for pending in ready])
            results |= {result.item.number: result for result in self._pass_results(ready[:size])}
            del ready[:size]
        return [results[item.number] for item in items]

    def _pass_results(self, pending: Sequence[Pending]) -> list[Result]:
        """Return the results of one pass; if it fails, run each item alone."""
        start = time.perf_counter()
        try:
            results = self.task.results(pending)
        except Exception as error:
            if len(pending) == 1:
                return [self.task.failed(pending[0].item, reason_of(error))]
            return [result for entry in pending for result in self._results_of_chunk([entry.item])]
        for result in results:
            result.seconds = (time.perf_counter() - start) / len(pending)
        return results


class Traces(Task):
    """The task to make traces, in every format."""

    def __init__(self, work: Work, model: Model | None = None) -> None:
        self.work = work
        self._models: dict[str, Model] = {} if model is None else {NONE: model}
        self._fields = fields_of_steps(frozenset(work.kept_steps))[0] if work.reads_kept_steps else None

    @cached_property
    def model(self) -> Model:
        """Return the model of the batch."""
        return self.model_of_item(Item(0, ""))

    @property
    def together(self) -> int:
        """Return how many items may share a pass: any number if the model is not heavy."""
        return self.work.batch_size if is_heavy(self.model) else limits.PASS_TOKENS

    @property
    def runs_at_once(self) -> bool:
        """Return whether two threads may do it: not where pictures are drawn, or layers run again."""
        again = needs_of(self.work.changes.measure) == "network"
        return not again and not self.work.draws_pictures and runs_at_once(self.model)

    def begin(self, item: Item) -> Result | Pending:
        """Return the item, ready for a pass that others may share, or its result. Raises the error of a wrong item."""
        if item.error is not None:
            raise AttnctlError(item.error)
        if item.trace is not None:
            from attnctl.formats.documents.trace_json import trace_from_document

            return self._result(item, trace_from_document(item.trace, "it"), is_changed=False)
        source = self._source_of_item(item)
        if needs_of(self.work.changes.measure) == "network":  # the layers of this text run again, value by value
            return self._result(item, self._prepared(item, source).trace(predictions=False))
        recording = self._recording_of_item(item, source)
        pending = Pending(item, source.tokens, recording)
        return self.results([pending])[0] if item_options(item) else pending

    def results(self, pending: Sequence[Pending]) -> list[Result]:
        """Return the results of items that share a pass. Raises the AttnctlError of one of them."""
        recordings: list[ChangedReading[Trace]] = [entry.reading for entry in pending]
        with np.errstate(all="ignore"):  # overflows are refused by name
            runs = run_pass(recordings, self._fields)
            traces = [recording.value(run) for recording, run in zip(recordings, runs, strict=True)]
        return [self._result(entry.item, trace, is_changed=False) for entry, trace in zip(pending, traces, strict=True)]

    def _source_of_item(self, item: Item) -> TextSource:
        """Return an item as a text in its model."""
        work, model = self.work, self.model_of_item(item)
        if item.messages is not None:
            item, tokens = read_conversation(model, item)
        else:
            tokens = (
                model.tokenize(checked_text(item.text))
                if item.tokens is None
                else listed_tokens(model, item.text, item.tokens)
            )
        if work.max_tokens is not None and len(tokens) > work.max_tokens:
            limit = option_name("max_tokens", work.max_tokens)
            raise AttnctlError(f"{len(tokens):,} tokens: more than {limit}")
        return TextSource(model, item.text, tokens)

    def _recording_of_item(self, item: Item, source: TextSource) -> ChangedReading[Trace]:
        """Return what to record of an item, before the changes."""
        prepared = self._prepared(item, source, NO_CHANGES)
        if needs_of(self.work.changes.measure) == "layers":  # all layers, whichever are shown
            prepared = replace(prepared, layers=None)
        room = check_room(source.info, len(source.tokens), prepared.layers, prepared.heads, prepared.rows)
        if "json" in self.work.formats:  # a number of 4 bytes becomes 10 bytes of text, held twice while it is written
            output = f"the JSON of {len(source.tokens):,} tokens"
            limits.check_memory(6.0 * room, output, f"choose layers and heads, or {option_name('format', 'npz')}")
        return ChangedReading(prepared, TraceReading(prepared.rows, self.work.wants_predictions))

    def _prepared(self, item: Item, source: TextSource, changes: Changes | None = None) -> Prepared:
        """Return the layers, heads and query of an item, with the changes of the work, or others."""
        options, work = item.options, self.work
        chosen = (options.get("layer", work.layer), options.get("head", work.head), options.get("query", work.query))
        return prepare(source, work.changes if changes is None else changes, *chosen)

    def _changed(self, item: Item, trace: Trace) -> Trace:
        """Return a recorded trace with the changes of the work: another measure, words, keys left out, rows rescaled."""
        changes, layer = self.work.changes, item.options.get("layer", self.work.layer)
        if changes.is_empty:
            return trace
        # the result of all layers is shown, unless layers are named
        layer = layer if needs_of(changes.measure) == "layers" else None
        layer = range(trace.model.n_layers or 1) if layer == "all" else layer
        return prepare(TraceSource(trace), changes, layer).trace(predictions=False)

    def model_of_item(self, item: Item) -> Model:
        """Return the model of the batch, or with the item's options; of two towers (CLIP) the tower that reads the item."""
        options = item_options(item)
        key = repr(sorted(options.items())) if options else NONE
        if key not in self._models:
            if len(self._models) >= OPENED:
                self._models.pop(next(key for key in self._models if key != NONE))
            self._models[key] = self._open_own_model(options)
        model = self._models[key].model_for(item.text)
        return model if item.text_pair is None else model.with_text_pair(item.text_pair)

    def _open_own_model(self, options: OptionValues) -> Model:
        if not options:
            return open_named_model(**self.work.options)
        model = self.model
        if isinstance(model, Generates):
            if set(options) != {"target"}:
                raise UsageError(
                    f"the options of one text do not change the checkpoint {model.info.name}: only target may"
                )
            return model.with_target(options["target"])
        if not self.work.is_named:
            raise UsageError(f"the options of one text do not change {model.info.name}, which is opened: give its name")
        return open_named_model(**(self.work.options | model_arguments(options)))

    def failed(self, item: Item, why: str) -> Result:
        """Return the result of an item that failed: the reason, and its record in each format that holds several texts."""
        outputs: dict[str, Any] = {"json": failed_line(item, why)} if "json" in self.work.formats else {}
        for form in self.work.formats:
            if form not in ("json", *FILES) and (made := format_named(form).failed(item, why)) is not None:
                outputs[form] = made
        return Result(item, outputs, error=why)

    def _result(self, item: Item, trace: Trace, *, is_changed: bool = True) -> Result:
        """Return everything requested of one trace, changed first if it is not yet; the trace itself if no format is."""
        outputs: dict[str, Any] = {}
        try:
            trace = trace if is_changed else self._changed(item, trace)
            trace = replace(trace, id=trace.id if item.id is None else item.id, number=item.number)
            notes = [f"{item}: {note}" for note in notes_of_kind(trace.notes, "doubt", "no-weights", "input")]
            for form in self.work.formats:
                outputs[form] = self._output_of_format(form, item, trace, notes)
        except Exception as error:
            return self.failed(item, reason_of(error))
        narrowed = None if self.work.formats else self.work.narrowed(trace)
        return Result(item, outputs, len(trace.tokens), notes=tuple(notes), trace=narrowed)

    def _output_of_format(self, form: str, item: Item, trace: Trace, notes: list[str]) -> Any:
        if form in PICTURES:
            return self._picture_of_trace(form, item, trace, notes)
        if form == "json":
            from attnctl.batching.tables import headline_of
            from attnctl.formats.documents.trace_json import trace_to_json

            line = headline_of(trace) if self.work.wants_headline else None
            return trace_to_json(self.work.narrowed(trace), line) + b"\n"
        if form == "npz":
            from attnctl.formats.storage import trace_to_npz

            return trace_to_npz(self.work.narrowed(trace))
        if form == "parquet":
            trace = self.work.narrowed(trace)
        try:
            return format_named(form).make(item, trace, self.model_of_item(item))
        except Exception as error:
            if form in SHARED or isinstance(error, AttnctlError):
                raise
            why = f"{type(error).__name__}: {in_one_line(error)} ({error_place(error)})"
            raise AttnctlError(f"{option_name('format', form)}, which a package gives, failed: {why}") from error

    def _picture_of_trace(self, form: str, item: Item, trace: Trace, notes: list[str]) -> bytes:
        from attnctl.formats.pictures import Look
        from attnctl.readings.heatmap import is_drowned
        from attnctl.source.zoom import read_heatmap

        look = self.work.look | ({"title": item.options["title"]} if "title" in item.options else {})
        grid = read_heatmap(trace)
        if look.get("log") is None:
            look["log"] = look.get("vmin") is None and len(trace.tokens) > LOGARITHMIC and is_drowned(grid)
        data, picture_notes = heatmap_bytes(grid, Look(**look), form)
        notes += picture_notes
        return data


LOGARITHMIC = 512  # in a text with more tokens a few cells may hide the others; colours are then logarithmic


def open_work_model(work: Work) -> Model:
    """Open the model. Raises an error that a wrong option would otherwise raise for every item."""
    check_names(work.steps or ())
    changes = work.changes
    check_measure(changes.measure, chosen_heads=work.head is not None)
    own_format = next((form for form in (*BATCH_FORMATS, "statistics") if form in work.formats), None)
    changed = next((name for name, value in changes._asdict().items() if value), None)
    if own_format is not None and changed is not None:
        weights_only = f"{option_name('format', own_format)}, which is of the model's own weights"
        raise UsageError(f"cannot be combined with {weights_only}", option=changed)
    model = open_named_model(**work.options)
    for spec, count, axis in ((work.layer, model.info.n_layers, "layer"), (work.head, model.info.n_heads, "head")):
        selected_indices(spec, count or 1, axis, model.info.name)
    if work.answers_prompts and not (isinstance(model, Generates) and model.kind == "self" and model.info.causal):
        raise UsageError(f"{model.info.name} answers no prompts: name a checkpoint that continues texts (smollm2, …)")
    if work.aligns:
        work.task(model)  # which raises the error of a model that cannot align
    if {"parquet", "weights-parquet"} & {*work.formats}:
        need_pyarrow(option_name("format", "parquet"))
    if work.draws_pictures:
        from attnctl.render.figure.layout import colour_map

        colour_map(work.look.get("cmap", CMAP))
    return model


def reason_of(error: Exception) -> str:
    """Return the message of an error; if it is not the user's mistake, also that it is a bug, and where it arose."""
    if isinstance(error, AttnctlError):
        return str(error)
    from attnctl.plugins import fault_of_package

    if fault := fault_of_package(error):
        return fault
    return f"a bug in attnctl: {type(error).__name__}: {str(error)[:200]} ({error_place(error)}); please report it"
