"""A census over a corpus: counted in memory, or in a folder that an interrupted run goes on from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnctl.batching.corpus.census_work import FORM, TOGETHER, CensusWork, CensusWorker
from attnctl.batching.engines import chunks, here, processes
from attnctl.batching.folder import Folder
from attnctl.batching.items import Item
from attnctl.batching.work import Result
from attnctl.models import Model
from attnctl.readings.census.census_tally import Tally, packed, unpacked, unpacked_record


class Tallies:
    """A format of a folder: `.tallies/NUMBER.json.z`, the counts of a group of sentences, NUMBER that of its first."""

    form, prefix = FORM, ".tallies/"

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.whole = Tally(shape)  # at the end of the run, everything
        self._part = Tally(shape)
        self._first: int | None = None

    def add(self, result: Result) -> Iterator[tuple[str, bytes]]:
        """Take a sentence in, or that it could not be used."""
        self._first = result.item.number if self._first is None else self._first
        if result.error is not None:
            self._part.skip(result.error)
        else:
            self._part.add(unpacked_record(result.made[FORM]))
        yield from ()

    def end(self) -> Iterator[tuple[str, bytes]]:
        """The group's counts."""
        if self._first is not None:
            yield f"{self.prefix}{self._first:07d}.json.z", packed(self._part)
            self._part, self._first = Tally(self.shape), None

    def finish(self, folder: Path, files: Sequence[str]) -> None:
        """All counts as one."""
        self.whole = Tally(self.shape)
        for name in files:
            self.whole.merge(unpacked((folder / name).read_bytes()))

    def in_memory(self) -> Tally:
        """The counts of everything taken in, where there is no folder."""
        self.whole.merge(self._part)
        self._part, self._first = Tally(self.shape), None
        return self.whole


def results(work: CensusWork, items: Iterable[Item], jobs: int, model: Model | None = None) -> Iterator[list[Result]]:
    """What becomes of each sentence, in their order, by `jobs` processes."""
    parts = chunks(items, TOGETHER)
    return processes(work, parts, jobs, CensusWorker) if jobs > 1 else here(work, parts, model, CensusWorker)


def on_ray(work: CensusWork, items: Iterable[Item], **cluster: Any) -> Iterator[list[Result]]:
    """The same by the workers of a Ray cluster."""
    from attnctl.batching.ray_engine import cluster as run

    return run(work, chunks(items, TOGETHER), worker=CensusWorker, **cluster)


def folder_of(path: str, work: CensusWork, corpus: Sequence[str], tallies: Tallies) -> Folder:
    """The folder of a census: the same work on the same corpus goes on in it, anything else is refused."""
    said: dict[str, Any] = {
        "formats": [FORM],
        "model": work.options,
        "corpus": list(corpus),
        "relations": work.relations,
    }
    said |= {"untrained": work.untrained, "seed": work.seed, "max_tokens": work.max_tokens}
    return Folder(path, said | {"batch_size": work.batch_size}, (FORM,), [tallies])
