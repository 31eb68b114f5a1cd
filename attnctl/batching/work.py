"""What is done to each text of a batch: its trace, and the bytes of everything asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl import limits
from attnctl.argument_types import model_arguments
from attnctl.batching.items import Item, given, item_indices, item_options, rendered
from attnctl.errors import AttnctlError, UsageError, error_place
from attnctl.files import need_pyarrow
from attnctl.formats.pictures import format_names, heatmap_bytes
from attnctl.measures import check_measure, needs_layers, needs_network
from attnctl.models import Model, open_named_model
from attnctl.models.builtin.stack import Stack, can_run_together, run_together
from attnctl.readings.traces.trace import Trace, TraceReading, notes_of_kind
from attnctl.source import Changes, Pass, TextSource, TraceSource, check_room, prepare, room_of_trace
from attnctl.steps import check_names, narrow_trace, rounded_trace
from attnctl.text import as_json
from attnctl.tokens import checked_text, find_several

if TYPE_CHECKING:
    from attnctl.argument_types import OptionValues
    from attnctl.models.huggingface.padded_batch import SharedPasses

PICTURES = format_names()
NONE = "[]"  # no options of its own
OPENED = 8  # models kept open, where items have options of their own


@dataclass(frozen=True)
class Work:
    """What is asked for, the same for every item: it travels to whatever process does it.

    `options` are those of `open_model`; `layer` and `head` select as on the command line, `query` is a token's text or
    index; `look` are the options of `Trace.figure`.
    """

    options: OptionValues
    formats: tuple[str, ...] = ("json",)
    layer: str | None = None
    head: str | None = None
    query: str | None = None
    look: OptionValues = field(default_factory=dict)
    parameters: bool = False
    max_tokens: int | None = None
    batch_size: int = 1  # texts that share a pass through a checkpoint
    words: bool = False  # pieces of a tokenizer merged into words
    measure: str | None = None  # what stands in place of the weights
    steps: tuple[str, ...] | None = None  # the steps whose arrays a trace keeps; None for all
    precision: int | None = None  # decimals of its numbers; None for all
    prompts: OptionValues = field(default_factory=dict)  # of sources: spans, most, budget, remove
    is_named: bool = True  # `options` name the model; else it was opened by others, and they are none

    def said(self) -> dict[str, Any]:
        """What run.json says of it: prompts, steps and precision where they were given."""
        said = {"formats": sorted(self.formats), "model": self.options, "look": self.look}
        said |= {name: value for name, value in vars(self).items() if name not in (*said, "options", "is_named")}
        where_given = {name: said.pop(name) for name in ("prompts", "steps", "precision")}
        return said | {name: value for name, value in where_given.items() if value not in (None, {})}

    def kept_of(self, trace: Trace, *, rounded: bool = True) -> Trace:
        """What is kept of a trace: the arrays of `steps`, their numbers with `precision`."""
        trace = trace if self.steps is None else narrow_trace(trace, self.steps)
        return rounded_trace(trace, self.precision) if rounded and self.precision is not None else trace

    @property
    def wants_predictions(self) -> bool:
        """Whether any of the formats tells what the model predicts; with none, the traces themselves are wanted."""
        return not self.formats or any(form in ("json", "npz") for form in self.formats)

    @property
    def draws_pictures(self) -> bool:
        """Whether pictures are drawn, which takes longer than everything else together."""
        return any(form in (*PICTURES, "contact-sheet", "statistics", "effects", "sources") for form in self.formats)


@dataclass(frozen=True)
class Result:
    """What became of one item: the bytes of each format, or why there are none."""

    item: Item
    made: dict[str, bytes] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    error: str | None = None
    notes: tuple[str, ...] = ()


Done = tuple[Item, Trace | str, float]  # an item, its trace or what is wrong with it, seconds


class Worker:
    """Does the work, item by item; a model is opened once and kept."""

    def __init__(self, work: Work, model: Model | None = None) -> None:
        self.work = work
        self._passes: SharedPasses | None = None  # of a checkpoint
        self._models: dict[str, Model] = {} if model is None else {NONE: model}

    def chunk_results(self, items: Sequence[Item]) -> list[Result]:
        """One result an item, in their order. An error that a text brings with it stays with its item."""
        done = {}
        for item, trace, seconds in self.traces_of_items(items):
            start = time.perf_counter()
            result = self._result_of_trace(item, trace) if isinstance(trace, Trace) else Result(item, error=trace)
            done[item.number] = replace(result, seconds=seconds + time.perf_counter() - start)
        return [done[item.number] for item in items]

    def traces_of_items(self, items: Sequence[Item]) -> Iterator[Done]:
        """Each item with its trace, or with what is wrong with it, and the seconds it took; in any order."""
        for item, trace, seconds in self._traces_of_items(items):
            if isinstance(trace, Trace):
                try:
                    trace = replace(self._with_measure(item, trace), id=trace.id if item.id is None else item.id)
                except AttnctlError as error:
                    trace = str(error)
            yield item, trace, seconds

    def _with_measure(self, item: Item, trace: Trace) -> Trace:
        """The trace with its weights by words, or with another measure in their place, where that was asked for."""
        work = self.work
        if work.measure is None and not work.words:
            return trace
        changes, layer = Changes(work.measure, work.words), item.options.get("layer", work.layer)
        if needs_network(work.measure) and item.trace is None:  # run again, value by value
            text = TextSource(self.model_of_item(item), trace.text, trace.tokens)
            given = prepare(text, changes, layer, query=item.options.get("query", work.query))
            return given.trace(predictions=False)
        # what has come of all layers is shown, unless some are named
        layer = layer if needs_layers(work.measure) else None
        layer = range(trace.model.n_layers or 1) if layer == "all" else layer
        return prepare(TraceSource(trace), changes, layer).trace(predictions=False)

    def _traces_of_items(self, items: Sequence[Item]) -> Iterator[Done]:
        ready: list[tuple[Item, Pass[Trace]]] = []
        for item in items:
            start = time.perf_counter()
            recorded = self._record_or_say(item, ready)
            if recorded is not None:
                yield item, recorded, time.perf_counter() - start
        yield from self._record_together(ready)

    def _record_or_say(self, item: Item, ready: list[tuple[Item, Pass[Trace]]] | None = None) -> Trace | str | None:
        """The item's trace, or what is wrong with it; None where it was put among those `ready` to share a pass."""
        try:
            recording = self._recording_of_item(item)
            if isinstance(recording, Trace):
                return recording
            if ready is not None and self._may_share_pass(item, len(recording.tokens)):
                ready.append((item, recording))
                return None
            model = self.model_of_item(item)
            with np.errstate(all="ignore"):  # what overflows is refused by name
                return recording.value(model.run(recording.tokens, recording.visit, item.text))
        except AttnctlError as error:
            return str(error)
        except Exception as error:  # ours to mend; the other items go on
            return describe_bug(error)

    def _recording_of_item(self, item: Item) -> Pass[Trace] | Trace:
        """The trace that an item is, or is to become."""
        work = self.work
        if item.error is not None:
            raise AttnctlError(item.error)
        if item.trace is not None:
            from attnctl.formats.documents.trace_json import trace_from_document

            return trace_from_document(item.trace, "it")
        model = self.model_of_item(item)
        if item.messages is not None:
            item, tokens = rendered(model, item)
        else:
            tokens = model.tokenize(checked_text(item.text)) if item.tokens is None else given(model, item)
        if work.max_tokens is not None and len(tokens) > work.max_tokens:
            raise AttnctlError(f"{len(tokens):,} tokens: more than --max-tokens {work.max_tokens}")
        said, info = item.options, model.info
        query = said.get("query", work.query)
        layers = item_indices(said.get("layer", work.layer), info.n_layers, "layer", info.name)
        layers = None if needs_layers(work.measure) else layers  # every one, whichever is shown
        heads = item_indices(said.get("head", work.head), info.n_heads, "head", info.name)
        rows = None if query is None else find_several(tokens, str(query))
        check_room(info, len(tokens), layers, heads, rows)
        if "json" in work.formats:  # a number is 10 bytes of text for its 4, held once more as it is written
            what = f"the JSON of {len(tokens):,} tokens"
            need = 6.0 * room_of_trace(info, len(tokens), layers, heads, rows)
            limits.check_memory(need, what, "choose with --layer and --head, or --format npz")
        return Pass(TextSource(model, item.text, tokens), TraceReading(rows, work.wants_predictions), layers, heads)

    def _may_share_pass(self, item: Item, n: int) -> bool:
        """Whether the item, of n tokens, may share a pass with others."""
        if item_options(item):
            return False
        if can_run_together(self.model_of_item(item), n):
            return True
        if self._passes is None and self.work.batch_size > 1:
            from attnctl.models.huggingface.padded_batch import SharedPasses

            self._passes = SharedPasses(self.model_of_item(item), self.work.batch_size)
        return self._passes is not None and self._passes.most > 1

    def _record_together(self, ready: list[tuple[Item, Pass[Trace]]]) -> Iterator[Done]:
        """Texts of about one length at a time, in one pass; where that fails, each alone."""
        ready.sort(key=lambda pair: (len(pair[1].tokens), pair[0].number))
        while ready:
            start = time.perf_counter()
            texts = [recording.tokens for _, recording in ready]
            if self._passes is not None:
                size = self._passes.next_size(texts)
            else:  # a built-in model, which takes texts of one length
                n = len(texts[0])
                size = max(1, min(sum(len(tokens) == n for tokens in texts), limits.PASS_TOKENS // n))
            some, ready = ready[:size], ready[size:]
            try:
                traces = self._shared_pass(self.model_of_item(some[0][0]), [recording for _, recording in some])
            except AttnctlError:  # of one of them: which, it says when it is alone
                for item, _ in some:
                    start = time.perf_counter()
                    recorded = self._record_or_say(item)
                    assert recorded is not None
                    yield item, recorded, time.perf_counter() - start
                continue
            each = (time.perf_counter() - start) / len(some)
            for (item, _), trace in zip(some, traces, strict=True):
                yield item, trace, each

    def _shared_pass(self, model: Any, recordings: Sequence[Pass[Trace]]) -> list[Trace]:
        """The traces of several texts in one pass. Raises AttnctlError of one of them."""
        if isinstance(model, Stack):
            run: Any = run_together
        else:
            from attnctl.models.huggingface.padded_batch import run_padded as run
        with np.errstate(all="ignore"):  # what overflows is refused by name
            runs = run(model, [one.tokens for one in recordings], [one.visit for one in recordings])
            return [one.value(ran) for one, ran in zip(recordings, runs, strict=True)]

    def model_of_item(self, item: Item) -> Model:
        """The model of the batch, or as the item's own options have it."""
        own = item_options(item)
        key = repr(sorted(own.items()))
        if key not in self._models:
            if len(self._models) >= OPENED:
                self._models.pop(next(key for key in self._models if key != NONE))
            self._models[key] = self._open_own_model(own)
        return self._models[key]

    def _open_own_model(self, own: OptionValues) -> Model:
        if not own:
            return open_named_model(**self.work.options)
        model: Any = self.model_of_item(Item(0, ""))
        if model.info.kind == "checkpoint":
            if set(own) != {"target"}:
                raise UsageError(
                    f"the options of one text do not change the checkpoint {model.info.name}: only target may"
                )
            return model.with_target(own["target"])  # type: ignore[no-any-return]
        if not self.work.is_named:
            raise UsageError(f"the options of one text do not change {model.info.name}, which is opened: give its name")
        return open_named_model(**(self.work.options | model_arguments(own)))

    def _result_of_trace(self, item: Item, trace: Trace) -> Result:
        """Everything asked for of one trace."""
        made: dict[str, bytes] = {}
        notes = [f"{item}: {note}" for note in notes_of_kind(trace.notes, "doubt", "no-weights")]
        try:
            for form in self.work.formats:
                made[form] = self._bytes_of_format(form, item, trace, notes)
        except AttnctlError as error:
            return Result(item, error=str(error))
        except Exception as error:
            return Result(item, error=describe_bug(error))
        return Result(item, made, len(trace.tokens), notes=tuple(notes))

    def _bytes_of_format(self, form: str, item: Item, trace: Trace, notes: list[str]) -> bytes:
        if form in PICTURES:
            return self._picture_of_trace(form, item, trace, notes)
        if not self.work.parameters:
            trace = replace(trace, layers=tuple(replace(layer, parameters={}) for layer in trace.layers))
        if form == "json":
            from attnctl.formats.documents.trace_json import trace_to_json

            return trace_to_json(self.work.kept_of(trace)) + b"\n"
        if form == "npz":
            from attnctl.formats.storage import trace_to_npz

            return trace_to_npz(self.work.kept_of(trace, rounded=False))
        if form == "parquet":
            from attnctl.batching.columns import rows_of_trace as packed_rows

            return packed_rows(trace, item)
        if form == "contact-sheet":
            from attnctl.render.figure.contact_sheet import head_tiles, packed_tiles

            name = str(item.number if item.id is None else item.id)
            return packed_tiles(head_tiles(trace, name, self.work.look.get("cmap", "viridis")))
        if form == "statistics":
            from attnctl.batching.corpus.treebank import of_trace

            return as_json(of_trace(trace))
        if form == "effects":
            return self._effects_of_item(item, trace)
        raise ValueError(form)

    def _effects_of_item(self, item: Item, trace: Trace) -> bytes:
        from attnctl.batching.corpus.treebank import of_item

        info, said = trace.model, item.options
        layers = item_indices(said.get("layer", self.work.layer), info.n_layers, "layer", info.name)
        heads = item_indices(said.get("head", self.work.head), info.n_heads, "head", info.name)
        return as_json(of_item(self.model_of_item(item), item, layers, heads))

    def _picture_of_trace(self, form: str, item: Item, trace: Trace, notes: list[str]) -> bytes:
        from attnctl.readings.heatmap import is_drowned
        from attnctl.render.figure.look import Look
        from attnctl.source.cells import read_heatmap

        look = self.work.look | ({"title": item.options["title"]} if "title" in item.options else {})
        reading = read_heatmap(trace, drop=look.pop("drop", ()), renormalise=look.pop("renormalise", False))
        if look.get("log") is None:
            look["log"] = look.get("vmin") is None and len(trace.tokens) > LOGARITHMIC and is_drowned(reading)
        data, said = heatmap_bytes(reading, Look(**look), form)
        notes += said
        return data


LOGARITHMIC = 512  # tokens of a text beyond which a few cells may drown the others, and colours are then logarithmic


def open_work_model(work: Work) -> Model:
    """Open the model. Raises what a mistake in the options would raise for every single item."""
    check_names(work.steps or ())
    check_measure(work.measure, chosen_heads=work.head is not None)
    own = next((form for form in ("effects", "statistics") if form in work.formats), None)
    if own is not None and (work.words or work.measure is not None):
        raise UsageError(f"--words and --measure do not go with --format {own}, which is of the model's own weights")
    model = open_named_model(**work.options)
    for spec, count, what in ((work.layer, model.info.n_layers, "layer"), (work.head, model.info.n_heads, "head")):
        item_indices(spec, count, what, model.info.name)
    if "parquet" in work.formats:
        need_pyarrow("--format parquet")
    if work.draws_pictures:
        from attnctl.render.figure.heatmap import colour_map

        colour_map(work.look.get("cmap", "viridis"))
    return model


def describe_bug(error: Exception) -> str:
    """An error that is no user's mistake, and where it arose."""
    return f"a bug of attnctl's: {type(error).__name__}: {str(error)[:200]} ({error_place(error)}); please report it"
