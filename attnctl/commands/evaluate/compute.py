"""Count what heads find in each sentence of a batch, and add the counts up to a census."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from attnctl.batching import (
    LOCAL,
    BatchFormat,
    Engine,
    Folder,
    Item,
    NamedFiles,
    Pending,
    Result,
    Task,
    TreebankStream,
    chunks_of_items,
    sentence_of,
    sentences_of_document,
)
from attnctl.checks import limits
from attnctl.checks.argument_types import check_types
from attnctl.checks.model_options import ModelOptions, with_model_options
from attnctl.commands.evaluate.counting import (
    count_sentences,
    mention_counts,
    tally_shape,
    windows_of_sizes,
)
from attnctl.commands.evaluate.result import CensusTable
from attnctl.commands.evaluate.tally import (
    CensusTally,
    pack_tally,
    table_of_tally,
    tally_of_skip,
    unpack_tally,
)
from attnctl.commands.evaluate.words import HALF, AlignedSentence, align_words
from attnctl.errors import AttnctlError, TooLongError, UsageError, in_one_line, option_name
from attnctl.formats import BadSentenceError, ParsedSentence, joined_sentences
from attnctl.models import DEFAULT, Model, open_named_model, opened_model
from attnctl.runtime.files import decode_text, read_bytes
from attnctl.source import CanBeUntrained, Generates, SharesPasses
from attnctl.text.tokens import Token, checked_text

if TYPE_CHECKING:
    from attnctl.checks.model_options import OptionValues
    from attnctl.commands.evaluate.result import RelationDocument
    from attnctl.models import ModelArgument


FORM = "census"  # the key of a sentence's counts in a result
TALLIES = 2  # version of the files of counts in a folder
TOGETHER = 384  # sentences in a chunk; those of similar length share a pass
FIRST_TOGETHER = 32  # in the first chunk, so that an estimate of the time comes soon
TOGETHER_LETTERS = 80_000  # characters in a chunk, whose counts are in memory together


@dataclass(frozen=True)
class CensusWork:
    """The options of a census, the same for every sentence; each worker process receives them."""

    options: OptionValues  # for open_model
    relations: dict[str, str] | None = None  # new name of each label; "" leaves a relation out
    untrained: bool = False
    seed: int = 0  # of the untrained model
    max_tokens: int = 512
    batch_size: int = 1

    def task(self, model: Model | None = None) -> CensusCounts:
        """Return the task that a worker does."""
        return CensusCounts(self, model)


class CensusCounts(Task):
    """The task of counting what heads find in sentences; it opens the models once."""

    def __init__(self, work: CensusWork, model: Model | None = None) -> None:
        self.work = work
        self.model = open_named_model(**work.options) if model is None else model
        self.untrained = untrained_of(self.model, work.seed) if work.untrained else None
        self.shape = tally_shape(self.model)

    @property
    def together(self) -> int:
        """Return how many sentences may share a pass."""
        return self.work.batch_size

    def begin(self, item: Item) -> Result | Pending:
        """Return a sentence that is ready to be counted, or the counts of a document. Raises the error of the sentence."""
        if sentences := sentences_of_document(item):
            return self._document_result(item, sentences)
        aligned = self._aligned_sentence(sentence_of(item))
        return Pending(item, aligned.tokens, aligned)

    def results(self, group: Sequence[Pending]) -> list[Result]:
        """Return the counts of sentences that share a pass. Raises AttnctlError if one of them cannot be counted."""
        tallies = self._read_together([pending.reading for pending in group])
        return [
            Result(item, {FORM: tally}, len(tokens)) for (item, tokens, _), tally in zip(group, tallies, strict=True)
        ]

    def failed(self, item: Item, why: str) -> Result:
        """Return the result of a sentence that cannot be used, which counts as skipped, or of a document without windows."""
        if sentences := sentences_of_document(item):
            return Result(item, {FORM: self._mentions(sentences, ())}, error=f"document {why}")
        return Result(item, {FORM: tally_of_skip(self.shape, why)}, error=why)

    def _read_together(self, sentences: Sequence[AlignedSentence]) -> list[CensusTally]:
        """Return what the heads find in sentences that share a pass, with the counts of the untrained model."""
        try:
            tallies = count_sentences(self.model, sentences)
            if self.untrained is not None:
                for tally, before in zip(tallies, count_sentences(self.untrained, sentences), strict=True):
                    tally.merge_tally(before.of_untrained())
        except AttnctlError as error:
            raise AttnctlError(f"not read: {error}") from error
        return tallies

    def _document_result(self, item: Item, sentences: Sequence[ParsedSentence]) -> Result:
        """Return what the mentions of a document look at, in windows of sentences that are read together."""
        windows, aligned = self._aligned_windows(sentences)
        tally = self._mentions(sentences, windows)
        for window in aligned:
            if window.questions:
                tally.merge_tally(self._read_together([window])[0].relabelled(str))  # only the cases
        return Result(item, {FORM: tally}, sum(len(window.tokens) for window in aligned))

    def _mentions(self, sentences: Sequence[ParsedSentence], windows: Sequence[range]) -> CensusTally:
        """Return how many mentions a document has, and how many of them the windows can tell of."""
        tally = CensusTally(self.shape)
        for name, count in mention_counts(sentences, windows).items():
            tally.count(np.int64(count), 0, "mentions", name)
        return tally

    def _aligned_windows(self, sentences: Sequence[ParsedSentence]) -> tuple[list[range], list[AlignedSentence]]:
        """Return the windows of sentences, and each as the model reads it; unreadable sentences are in no window."""
        limit = min(self.model.limit or self.work.max_tokens, self.work.max_tokens)
        sizes, special_count = [], 0
        for sentence in sentences:
            try:
                tokens = self._tokens_of(sentence.text)
            except BadSentenceError:
                sizes.append(limit + 1)
                continue
            special_count = sum(token.special for token in tokens)
            sizes.append(len(tokens) - special_count + 1)  # the space between sentences may be a token
        windows, aligned = [], []
        for window in windows_of_sizes(sizes, limit - special_count + 1):
            try:
                aligned.append(self._aligned_sentence(joined_sentences(sentences[window.start : window.stop])))
            except BadSentenceError:
                continue
            windows.append(window)
        return windows, aligned

    def _aligned_sentence(self, sentence: ParsedSentence) -> AlignedSentence:
        tokens = self._tokens_of(sentence.text)
        return align_words(sentence, tokens, self.work.relations, bool(self.model.info.causal))

    def _tokens_of(self, sentence_text: str) -> tuple[Token, ...]:
        """Return the tokens of a text. Raises BadSentenceError if there are too many tokens, or none."""
        text = checked_text(sentence_text)
        try:
            tokens: tuple[Token, ...] = self.model.tokenize(text)
        except TooLongError as error:
            raise BadSentenceError(f"too long: {error}") from error
        except AttnctlError as error:
            raise BadSentenceError(f"no tokens: {error}") from error
        if len(tokens) > self.work.max_tokens:
            raise BadSentenceError(
                f"too long: {len(tokens):,} tokens are more than {option_name('max_tokens', self.work.max_tokens)}"
            )
        return tokens


def open_census_model(work: CensusWork, opened: Model | None = None) -> Model:
    """Open the model of the work. Raises the errors in the options that would occur again for every sentence."""
    model = open_named_model(**work.options) if opened is None else opened
    if isinstance(model, Generates) and (model.kind in ("cross", "decoder") or model.generate):
        why = f"would read other words than the corpus has: see {option_name('attention')}"
        raise UsageError(f"{model.info.name} {why}")
    if work.untrained:
        untrained_of(model, work.seed)
    return model


def untrained_of(model: Model, seed: int) -> Model:
    """Return the model before training, with the same heads off. Raises UsageError if the model was never trained."""
    fresh = model.before_training(seed) if isinstance(model, CanBeUntrained) else None
    if fresh is None:
        raise UsageError(f"needs a trained model, and {model.info.name} is none", option="untrained")
    return fresh


class Tallies(BatchFormat):
    """The files `.tallies/NUMBER.json.z` of a folder: the counts of a group of sentences each."""

    form, prefix = FORM, ".tallies/"

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.whole = CensusTally(shape)  # at the end of the run, everything
        self._part = CensusTally(shape)

    def add(self, made: CensusTally) -> None:
        """Add the counts of a sentence or a document, or that it was skipped."""
        self._part.merge_tally(made)

    def rest(self) -> NamedFiles:
        """Return the file with the counts of the group, and begin the next group."""
        packed = pack_tally(self._part)
        self._part = CensusTally(self.shape)
        return [(self.name_of_part(".json.z"), packed)]

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        """Add up the counts of all groups."""
        for part in parts:
            self.whole.merge_tally(unpack_tally(part))


def census_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Return the sentences in chunks that are counted together.

    A chunk begins where a group of the folder begins: a resumed run then pads each sentence as an uninterrupted run does,
    and its results agree to the last digit.
    """
    return chunks_of_items(items, TOGETHER, TOGETHER_LETTERS, FIRST_TOGETHER)


def count_corpus(
    work: CensusWork,
    treebank: TreebankStream,
    model: Model,
    *,
    jobs: int = 1,
    engine: Engine = LOCAL,
    folder: str | None = None,
    start_anew: bool = False,
    hear: Callable[[Result], object] = lambda result: None,
    tick: Callable[[int], object] = lambda count: None,
    say: Callable[[str], None] = lambda note: None,
) -> CensusTable:
    """Count a corpus with `jobs` processes or on a cluster of Ray, in memory or in a folder; return its census.

    `hear` is called with each result, `tick` with the number of further results, `say` with notes for the user about the
    folder.
    """
    tallies = Tallies(tally_shape(model))
    if not (isinstance(model, SharesPasses) and model.is_heavy):
        work = replace(work, batch_size=1)

    def results_of(items: Iterable[Item]) -> Iterator[list[Result]]:
        return engine.results(work, census_chunks(items), None if jobs == 1 else jobs, model)

    if folder is None:
        for chunk in results_of(treebank):
            for result in chunk:
                tallies.whole.merge_tally(result.outputs[FORM])
                hear(result)
            tick(len(chunk))
    else:
        settings = {"formats": [FORM], "input": treebank.paths, "model": work.options} | vars(work)
        settings = {name: value for name, value in settings.items() if name != "options"} | {"tallies": TALLIES}
        opening = Folder(folder, settings, (FORM,), [tallies], TOGETHER, start_anew=start_anew)
        with opening as opened:
            opened.fill(treebank, results_of, hear, tick)
            if damage := opened.damage_sentence():
                say(f"{opened.path}: {damage}")
            if opened.gone:
                say(
                    f"{opened.path}: {opened.gone:,} of the sentences counted there are not in the corpus now "
                    f"({option_name('replace', True)} counts anew)"
                )
    table = table_of_tally(
        tallies.whole,
        model.info.name,
        treebank.corpus_name,
        causal=bool(model.info.causal),
        untrained=work.untrained,
    )
    table.info = model.info
    return table


# --- for Python -----------------------------------------------------------------------------------------------


@with_model_options
def evaluate(
    corpus: str | os.PathLike[str] | Sequence[str] | None = None,
    model: ModelArgument = DEFAULT,
    *,
    sentences: int = 1000,
    relations: str | os.PathLike[str] | None = None,
    max_tokens: int = 512,
    untrained: bool = False,
    jobs: int = 1,
    output: str | os.PathLike[str] | None = None,
    replace_results: bool = False,
    **options: Unpack[ModelOptions],
) -> CensusTable | list[RelationDocument]:
    """Return which words each head finds, beside rules that need no attention: over CoNLL-U files, or the bundled corpus.

    With a corpus the result is the table that the command writes; its `sentences.skipped` counts sentences that cannot be
    used. `relations` is a file that renames relations. `output` is a folder, in which an interrupted run goes on. Each of
    several `jobs` is a process, which opens the model by its name. Without a corpus, a built-in model reads `sentences`
    sentences of each part of the bundled one, and the result is a list.
    """
    check_types("evaluate", int, sentences=sentences, max_tokens=max_tokens, jobs=jobs)
    check_types("evaluate", str | os.PathLike | None, relations=relations, output=output)
    check_types("evaluate", bool, untrained=untrained, replace_results=replace_results)
    if options.get("text_pair") is not None:
        raise UsageError("cannot be combined with a corpus: each sentence is read alone", option="text_pair")
    opened = opened_model("evaluate", model, options)
    if corpus is None:
        limits.GRAMMAR_SENTENCES.check_value("sentences", sentences)
        from attnctl.commands.evaluate.bundled import measure_relations

        return measure_relations(opened, count=sentences)
    limits.JOBS.check_value("jobs", jobs)
    limits.MAX_TOKENS.check_value("max_tokens", max_tokens)
    paths = [corpus] if isinstance(corpus, (str, os.PathLike)) else corpus
    if not isinstance(paths, Sequence) or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise TypeError(f"evaluate(): corpus is a path or a list of paths, not {type(corpus).__name__}")
    named = isinstance(model, (str, os.PathLike))
    if not named and (jobs > 1 or output is not None):
        raise UsageError("several jobs, or an output folder, need the name of a model, not an opened one")
    if replace_results and output is None:
        raise UsageError("is for a folder: name one for the output", option="replace")
    try:
        treebank = TreebankStream([os.fspath(path) for path in paths], HALF)
    except (OSError, ValueError) as error:  # no file can have this name
        raise AttnctlError(f"evaluate(): no corpus {str(corpus)[:80]!r}: {in_one_line(error)[:80]}") from error
    renamed = renamed_relations(None if relations is None else os.fspath(relations))
    named_options = {"name": os.fspath(model), **options} if isinstance(model, (str, os.PathLike)) else {}
    work = CensusWork(named_options, renamed, untrained=untrained, max_tokens=max_tokens, batch_size=32)
    folder = None if output is None else os.fspath(output)
    return count_corpus(
        work, treebank, open_census_model(work, opened), jobs=jobs, folder=folder, start_anew=replace_results
    )


NAMED = 20  # sentences whose errors are printed; further ones are only counted


class SkipReport:
    """A report of the sentences that could not be used: a line for each of the first NAMED, then their number.

    The lines wait until a sentence is used, unless the run is resumable: of a file without any usable sentence only the
    first error is printed.
    """

    def __init__(self, resumable: bool, complain: Callable[[str], None]) -> None:
        self.complain, self.count = complain, 0
        self.waiting: list[str] | None = None if resumable else []

    def hear(self, result: Result) -> None:
        """Report a sentence if it could not be used."""
        if result.error is None:
            for message in self.waiting or ():
                self.complain(message)
            self.waiting = None
            return
        self.count += 1
        if self.count <= NAMED:
            (self.complain if self.waiting is None else self.waiting.append)(f"{result.item}: {result.error}")

    def end(self) -> None:
        """Print how many sentences were only counted, or the first error if no sentence could be used."""
        if self.waiting:
            self.complain(self.waiting[0])
        elif self.count > NAMED:
            self.complain(f"… and {self.count - NAMED:,} more sentences that could not be used")


def renamed_relations(path: str | None) -> dict[str, str] | None:
    """Return the labels that a file of relations renames. Raises AttnctlError if the file is not such a table."""
    if path is None:
        return None
    rows = [row for row in csv.reader(decode_text(read_bytes(path, limits.SETTINGS_BYTES), path).splitlines()) if row]
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or not row[0].strip():
            raise AttnctlError(
                f"{path}, row {number}: it is label,name (no name: left out), not {','.join(row)[:60]!r}", value=path
            )
    return {label.strip(): name.strip() for label, name in rows}
