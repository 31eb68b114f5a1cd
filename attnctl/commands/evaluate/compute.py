"""What a census does to each sentence of a batch: its words aligned with the model's tokens, its heads' answers counted."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from attnctl import limits
from attnctl.argument_types import check_types
from attnctl.batching.engines import LOCAL, Engine, chunks_of_items
from attnctl.batching.folder import Folder
from attnctl.batching.formats import BatchFormat, NamedFiles
from attnctl.batching.items import Item, Pending, Result
from attnctl.batching.manifest import input_paths
from attnctl.batching.work import Task, reason_of
from attnctl.commands.evaluate.counting import (
    Census,
    count_sentence,
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
from attnctl.commands.evaluate.treebank import DOCUMENT, Treebank, sentence_of
from attnctl.commands.evaluate.words import AlignedSentence, align_words
from attnctl.errors import AttnctlError, TooLongError, UsageError, in_one_line, option_name
from attnctl.files import decode_text, read_bytes
from attnctl.formats.conllu import BadSentenceError, ParsedSentence, joined_sentences
from attnctl.model_options import ModelOptions, with_model_options
from attnctl.models import DEFAULT, Model, open_named_model, opened_model
from attnctl.source.model import Generates
from attnctl.tokens import Token, checked_text

if TYPE_CHECKING:
    from attnctl.commands.evaluate.result import RelationDocument
    from attnctl.model_options import OptionValues
    from attnctl.models import ModelArgument


FORM = "census"  # under which a result carries a sentence's counts
TALLIES = 2  # which way of writing the counts of a group a folder holds
TOGETHER = 384  # sentences among which those of about one length are found
FIRST_TOGETHER = 32  # at the beginning, so that how long it will take is known soon
TOGETHER_LETTERS = 80_000  # of these sentences: what is counted of them is held at once


@dataclass(frozen=True)
class CensusWork:
    """What is asked for, the same for every sentence: it travels to whatever process does it."""

    options: OptionValues  # of open_model
    relations: dict[str, str] | None = None  # labels to be called something else, "" to be left out
    untrained: bool = False
    seed: int = 0  # of the untrained model
    max_tokens: int = 512
    batch_size: int = 1

    def task(self, model: Model | None = None) -> CensusCounts:
        """What a worker is asked for."""
        return CensusCounts(self, model)


class CensusCounts(Task):
    """The task of counting what heads find in sentences; the models are opened once and kept."""

    def __init__(self, work: CensusWork, model: Model | None = None) -> None:
        self.work = work
        self.model = open_named_model(**work.options) if model is None else model
        self.untrained = untrained_of(self.model, work.seed) if work.untrained else None
        self.shape = tally_shape(self.model)

    @property
    def together(self) -> int:
        """How many sentences may share a pass."""
        return self.work.batch_size

    def begin(self, item: Item) -> Result | Pending:
        """A sentence, ready to be counted; of a document its counts. Raises what is wrong with the sentence."""
        if DOCUMENT in item.options:
            return self._document_result(item, item.options[DOCUMENT])
        aligned = self._aligned_sentence(sentence_of(item))
        return Pending(item, aligned.tokens, aligned)

    def results(self, some: Sequence[Pending]) -> list[Result]:
        """The counts of sentences that share a pass. Raises AttnctlError of one of them."""
        try:
            counted = self._pass_counts([one.reading for one in some])
        except AttnctlError as error:
            raise AttnctlError(f"not read: {error}") from error
        return [
            Result(item, {FORM: tally}, len(tokens)) for (item, tokens, _), tally in zip(some, counted, strict=True)
        ]

    def failed(self, item: Item, why: str) -> Result:
        """What becomes of a sentence that cannot be used: it is counted as skipped."""
        return Result(item, {FORM: tally_of_skip(self.shape, why)}, error=why)

    def _pass_counts(self, sentences: Sequence[AlignedSentence]) -> list[CensusTally]:
        """What the heads find in sentences that share a pass, and those of the untrained model."""
        found = counts_of(self.model, sentences)
        if self.untrained is not None:
            for tally, before in zip(found, counts_of(self.untrained, sentences), strict=True):
                tally.merge_tally(before.of_untrained())
        return found

    def _document_result(self, item: Item, sentences: Sequence[ParsedSentence]) -> Result:
        """What the mentions of a document look at, in windows of sentences that are read together."""
        tally, error, size = CensusTally(self.shape), None, 0
        windows: list[range] = []
        try:
            windows, aligned = self._aligned_windows(sentences)
            for window in aligned:
                size += len(window.tokens)
                if window.questions:
                    tally.merge_tally(self._pass_counts([window])[0].relabelled(str))  # the answers alone
        except Exception as found:  # ours to mend, or the model's; the other items go on
            why = f"not read: {found}" if isinstance(found, AttnctlError) else reason_of(found)
            tally, error, windows = CensusTally(self.shape), f"document {why}", []
        for name, count in mention_counts(sentences, windows).items():
            tally.count(np.int64(count), 0, "mentions", name)
        return Result(item, {FORM: tally}, size, error=error)

    def _aligned_windows(self, sentences: Sequence[ParsedSentence]) -> tuple[list[range], list[AlignedSentence]]:
        """Which sentences share a window, and the windows as the model reads them; what cannot be read is in none."""
        most = min(self.model.limit or self.work.max_tokens, self.work.max_tokens)
        sizes, marks = [], 0
        for sentence in sentences:
            try:
                tokens = self._tokens_of(sentence.text)
            except BadSentenceError:
                sizes.append(most + 1)
                continue
            marks = sum(token.special for token in tokens)
            sizes.append(len(tokens) - marks + 1)  # the space between sentences may be a token
        windows, aligned = [], []
        for window in windows_of_sizes(sizes, most - marks + 1):
            try:
                aligned.append(self._aligned_sentence(joined_sentences(sentences[window.start : window.stop])))
            except BadSentenceError:
                continue
            windows.append(window)
        return windows, aligned

    def _aligned_sentence(self, sentence: ParsedSentence) -> AlignedSentence:
        tokens = self._tokens_of(sentence.text)
        return align_words(sentence, tokens, self.work.relations, bool(self.model.info.causal))

    def _tokens_of(self, said: str) -> tuple[Token, ...]:
        """The tokens of a text. Raises BadSentenceError where there are too many, or none."""
        text = checked_text(said)
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


def counts_of(model: Any, sentences: Sequence[AlignedSentence]) -> list[CensusTally]:
    """What the heads of a model do in sentences, in one pass where there are several.

    Raises AttnctlError where the weights are no numbers, or the model cannot read a sentence.
    """
    with np.errstate(all="ignore"):
        if model.info.kind == "checkpoint":
            from attnctl.models.huggingface.padded_batch import can_batch, weights_of_several

            if can_batch(model):
                census = Census(sentences, tally_shape(model))
                weights_of_several(model, [sentence.tokens for sentence in sentences], census.count_layer)
                return census.tallies()
        return [count_sentence(model, sentences[0])]


def open_census_model(work: CensusWork, opened: Model | None = None) -> Model:
    """The model of the work. Raises what a mistake in the options would raise for every single sentence."""
    model = open_named_model(**work.options) if opened is None else opened
    if isinstance(model, Generates) and (model.kind in ("cross", "decoder") or model.generate):
        why = f"is asked for the attention of other words than the corpus has: see {option_name('attention')}"
        raise UsageError(f"{model.info.name} {why}")
    if work.untrained:
        untrained_of(model, work.seed)
    return model


def untrained_of(model: Any, seed: int) -> Any:
    """The model before training, the same heads off. Raises UsageError where it has never been trained."""
    if model.info.kind == "checkpoint":
        from attnctl.models.huggingface.opening import untrained_checkpoint

        return untrained_checkpoint(model, seed)
    from attnctl.models.builtin.network import before_training

    fresh = before_training(model, seed)
    if fresh is None:
        raise UsageError(f"needs a trained model, and {model.info.name} is none", option="untrained")
    return fresh


class Tallies(BatchFormat):
    """`.tallies/NUMBER.json.z`: the counts of a group of sentences."""

    form, prefix = FORM, ".tallies/"

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.whole = CensusTally(shape)  # at the end of the run, everything
        self._part = CensusTally(shape)

    def add(self, made: CensusTally) -> None:
        """Take in a sentence or a document, or that it could not be used."""
        self._part.merge_tally(made)

    def rest(self) -> NamedFiles:
        """The group's counts."""
        packed = pack_tally(self._part)
        self._part = CensusTally(self.shape)
        return [(self.name_of_part(".json.z"), packed)]

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        """All counts as one."""
        for part in parts:
            self.whole.merge_tally(unpack_tally(part))


def census_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The sentences that are counted at a time. One begins where a folder's group does, so that a run that goes on there
    pads each sentence as a run without interruption, and ends with the same last digits.
    """
    return chunks_of_items(items, TOGETHER, TOGETHER_LETTERS, FIRST_TOGETHER)


def count_corpus(
    work: CensusWork,
    treebank: Treebank,
    model: Model,
    *,
    jobs: int = 1,
    by: Engine = LOCAL,
    folder: str | None = None,
    start_anew: bool = False,
    hear: Callable[[list[Result]], None] = lambda chunk: None,
    say: Callable[[str], None] = lambda note: None,
) -> CensusTable:
    """The census of a corpus, counted by `jobs` processes or on a cluster of Ray, in memory or in a folder.

    `hear` is called with the results of each chunk, `say` with what a user must know of the folder.
    """
    tallies = Tallies(tally_shape(model))
    if model.info.kind != "checkpoint":  # built-in models read one sentence at a time
        work = replace(work, batch_size=1)

    def results_of(items: Iterable[Item]) -> Iterator[list[Result]]:
        return by.results(work, census_chunks(items), None if jobs == 1 else jobs, model)

    if folder is None:
        for chunk in results_of(treebank):
            for result in chunk:
                tallies.whole.merge_tally(result.outputs[FORM])
            hear(chunk)
    else:
        said = {"formats": [FORM], "input": input_paths(treebank.paths, folder), "model": work.options} | vars(work)
        said = {name: value for name, value in said.items() if name != "options"} | {"tallies": TALLIES}
        with Folder(folder, said, (FORM,), [tallies], TOGETHER, start_anew=start_anew) as opened:
            for chunk in results_of(opened.items_to_do(treebank)):
                opened.write_results(chunk)
                hear(chunk)
            opened.finish_run()
            if damage := opened.damage_sentence():
                say(f"{opened.path}: {damage}")
            if opened.gone:
                say(
                    f"{opened.path}: {opened.gone:,} of the sentences counted there are not in the corpus now "
                    f"({option_name('replace', True)} counts anew)"
                )
    found = table_of_tally(
        tallies.whole,
        model.info.name,
        treebank.corpus_name,
        causal=bool(model.info.causal),
        untrained=work.untrained,
    )
    found.info = model.info
    return found


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

    With a corpus the answer is the table that the command writes; its `sentences.skipped` counts those that cannot be used.
    `relations` is a file that renames them, `output` a folder, so that an interrupted run goes on there; several `jobs` are
    processes, which open the model by its name. Without a corpus, `sentences` of each part of the bundled one are read, by a
    built-in model, and the answer is a list.
    """
    check_types("evaluate", int, sentences=sentences, max_tokens=max_tokens, jobs=jobs)
    check_types("evaluate", str | os.PathLike | None, relations=relations, output=output)
    check_types("evaluate", bool, untrained=untrained, replace_results=replace_results)
    if options.get("text_pair") is not None:
        raise UsageError("does not go with a corpus: each sentence is read alone", option="text_pair")
    opened = opened_model("evaluate", model, options)
    if corpus is None:
        from attnctl.commands.evaluate.bundled import measure_relations

        return measure_relations(opened, count=sentences)
    limits.JOBS.check_value("jobs", jobs)
    paths = [corpus] if isinstance(corpus, (str, os.PathLike)) else corpus
    if not isinstance(paths, Sequence) or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise TypeError(f"evaluate(): corpus is a path or a list of paths, not {type(corpus).__name__}")
    named = isinstance(model, (str, os.PathLike))
    if not named and (jobs > 1 or output is not None):
        raise UsageError("several jobs, and a folder to go on in, need a model by its name")
    if replace_results and output is None:
        raise UsageError("is for a folder: name one for the output", option="replace")
    try:
        treebank = Treebank(tuple(os.fspath(path) for path in paths))
    except (OSError, ValueError) as error:  # a name that no file can have
        raise AttnctlError(f"evaluate(): no corpus {str(corpus)[:80]!r}: {in_one_line(error)[:80]}") from error
    renamed = renamed_relations(None if relations is None else os.fspath(relations))
    given = {"name": os.fspath(model), **options} if isinstance(model, (str, os.PathLike)) else {}
    work = CensusWork(given, renamed, untrained=untrained, max_tokens=max_tokens, batch_size=32)
    folder = None if output is None else os.fspath(output)
    return count_corpus(
        work, treebank, open_census_model(work, opened), jobs=jobs, folder=folder, start_anew=replace_results
    )


NAMED = 20  # sentences whose errors are printed; the rest is counted


class LeftOut:
    """The sentences that could not be used, told one by one to `complain`, of very many only their number.

    Until a sentence is used they are held, unless the run can go on later: a file without a sentence is no corpus, and one
    line says so.
    """

    def __init__(self, resumable: bool, complain: Callable[[str], None]) -> None:
        self.complain, self.count = complain, 0
        self.held: list[str] | None = None if resumable else []

    def hear(self, chunk: list[Result]) -> None:
        """Tell of the sentences of a chunk."""
        for result in chunk:
            if result.error is None:
                for message in self.held or ():
                    self.complain(message)
                self.held = None
                continue
            self.count += 1
            if self.count <= NAMED:
                (self.complain if self.held is None else self.held.append)(f"{result.item}: {result.error}")

    def end(self) -> None:
        """Tell how many were only counted; of a corpus without a sentence, tell of the first."""
        if self.held:
            self.complain(self.held[0])
        elif self.count > NAMED:
            self.complain(f"… and {self.count - NAMED:,} more sentences that could not be used")


def renamed_relations(path: str | None) -> dict[str, str] | None:
    """Return the labels that a file of relations renames. Raises AttnctlError if the file is no such table."""
    if path is None:
        return None
    rows = [row for row in csv.reader(decode_text(read_bytes(path, limits.SETTINGS_BYTES), path).splitlines()) if row]
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or not row[0].strip():
            raise AttnctlError(
                f"{path}, row {number}: it is label,name (no name: left out), not {','.join(row)[:60]!r}", value=path
            )
    return {label.strip(): name.strip() for label, name in rows}
