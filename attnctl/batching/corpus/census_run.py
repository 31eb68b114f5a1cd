"""A census over a corpus: counted in memory, or in a folder that an interrupted run goes on from."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnctl.batching.corpus.census_work import (
    FIRST_TOGETHER,
    FORM,
    TOGETHER,
    TOGETHER_LETTERS,
    CensusWork,
    CensusWorker,
)
from attnctl.batching.corpus.treebank import Treebank, document_of
from attnctl.batching.engines import chunks_of_items, run_here, run_in_processes
from attnctl.batching.folder import Folder
from attnctl.batching.groups import damaged_part
from attnctl.batching.items import Item
from attnctl.batching.run_description import input_paths
from attnctl.batching.work import Result
from attnctl.files import said_plainly
from attnctl.models import Model
from attnctl.readings.census.census_table import CensusTable
from attnctl.readings.census.census_tally import (
    CensusTally,
    pack_tally,
    unpack_tally,
    unpacked_document,
    unpacked_record,
)
from attnctl.readings.census.table_of_tally import table_of_tally
from attnctl.readings.census.windows import mention_counts

if TYPE_CHECKING:
    from attnctl.text import Document


class Tallies:
    """A format of a folder: `.tallies/NUMBER.json.z`, the counts of a group of sentences, NUMBER that of its first."""

    form, prefix = FORM, ".tallies/"

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.whole = CensusTally(shape)  # at the end of the run, everything
        self._part = CensusTally(shape)
        self._first: int | None = None

    def take_result(self, result: Result) -> Iterator[tuple[str, bytes]]:
        """Take a sentence or a document in, or that it could not be used."""
        self._first = result.item.number if self._first is None else self._first
        document = document_of(result.item)
        if document is not None:
            read = ([], mention_counts(document, [])) if result.error else unpacked_document(result.made[FORM])
            self._part.add_document(*read)
        elif result.error is not None:
            self._part.skip_sentence(result.error)
        else:
            self._part.add_sentence(unpacked_record(result.made[FORM]))
        yield from ()

    def end_group(self) -> Iterator[tuple[str, bytes]]:
        """The group's counts."""
        if self._first is not None:
            yield f"{self.prefix}{self._first:07d}.json.z", pack_tally(self._part)
            self._part, self._first = CensusTally(self.shape), None

    def finish_run(self, folder: Path, files: Sequence[str]) -> None:
        """All counts as one."""
        self.whole = CensusTally(self.shape)
        for name in files:
            with said_plainly("read", folder / name):
                data = (folder / name).read_bytes()
            try:
                self.whole.merge_tally(unpack_tally(data))
            except (ValueError, TypeError, KeyError, zlib.error) as error:
                raise damaged_part(folder / name) from error

    def in_memory(self) -> CensusTally:
        """The counts of everything taken in, where there is no folder."""
        self.whole.merge_tally(self._part)
        self._part, self._first = CensusTally(self.shape), None
        return self.whole


def census_results(
    work: CensusWork, items: Iterable[Item], jobs: int, model: Model | None = None
) -> Iterator[list[Result]]:
    """What becomes of each sentence, in their order, by `jobs` processes."""
    parts = _census_chunks(items)
    return run_in_processes(work, parts, jobs, CensusWorker) if jobs > 1 else run_here(work, parts, model, CensusWorker)


def _census_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The sentences that are counted at a time. One begins where a folder's group does, so that a run that goes on there
    pads each sentence as a run without interruption, and ends with the same last digits.
    """
    return chunks_of_items(items, TOGETHER, TOGETHER_LETTERS, FIRST_TOGETHER)


def on_ray(work: CensusWork, items: Iterable[Item], **cluster: Any) -> Iterator[list[Result]]:
    """The same by the workers of a Ray cluster."""
    from attnctl.batching.ray_engine import run_on_cluster as run

    return run(work, _census_chunks(items), worker=CensusWorker, **cluster)


def census_folder(
    path: str, work: CensusWork, corpus: Sequence[str], tallies: Tallies, *, start_anew: bool = False
) -> Folder:
    """The folder of a census: the same work on the same corpus goes on in it, anything else is refused."""
    said: Document = {
        "formats": [FORM],
        "model": work.options,
        "input": input_paths(corpus, path),
        "relations": work.relations,
    }
    said |= {"untrained": work.untrained, "seed": work.seed, "max_tokens": work.max_tokens}
    said |= {"batch_size": work.batch_size}
    return Folder(path, said, (FORM,), [tallies], TOGETHER, start_anew=start_anew)


def count_corpus(
    work: CensusWork,
    treebank: Treebank,
    model: Model,
    *,
    jobs: int = 1,
    cluster: Document | None = None,
    folder: str | None = None,
    start_anew: bool = False,
    hear: Callable[[list[Result]], None] = lambda chunk: None,
    say: Callable[[str], None] = lambda note: None,
) -> CensusTable:
    """The census of a corpus, counted by `jobs` processes or on a `cluster` of Ray, in memory or in a folder.

    `hear` is called with the results of each chunk, `say` with what a user must know of the folder.
    """
    tallies = Tallies((model.info.n_layers or 1, model.info.n_heads or 1))

    def results_of(items: Iterable[Item]) -> Iterator[list[Result]]:
        return census_results(work, items, jobs, model) if cluster is None else on_ray(work, items, **cluster)

    if folder is None:
        for chunk in results_of(treebank):
            for result in chunk:
                list(tallies.take_result(result))
            hear(chunk)
        tallies.in_memory()
    else:
        with census_folder(folder, work, treebank.paths, tallies, start_anew=start_anew) as opened:
            for chunk in results_of(opened.items_to_do(treebank)):
                opened.write_results(chunk)
                hear(chunk)
            opened.finish_run()
            if damage := opened.damage_sentence():
                say(f"{opened.path}: {damage}")
            if opened.gone:
                say(
                    f"{opened.path}: {opened.gone:,} of the sentences counted there are not in the corpus now "
                    "(--replace counts anew)"
                )
    found = table_of_tally(
        tallies.whole,
        model.info.name,
        treebank.corpus_name,
        causal=bool(model.info.causal),
        untrained=work.untrained,
    )
    return replace(found, info=model.info)
