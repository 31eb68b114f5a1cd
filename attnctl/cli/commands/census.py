"""What `attnctl evaluate` does with a corpus: counts it, tells what could not be used, writes what was asked for."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from attnctl import limits
from attnctl.cli import arguments
from attnctl.cli.output import print_complaint, put_bytes, say_unless_quiet, show_renderable
from attnctl.cli.progress import duration_text, items_progress
from attnctl.errors import DONE, PARTIAL, AttnctlError, UsageError
from attnctl.formats.pictures import format_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attnctl.batching.corpus.census_run import Tallies
    from attnctl.batching.corpus.treebank import Treebank
    from attnctl.batching.folder import Folder
    from attnctl.batching.items import Item
    from attnctl.batching.work import Result
    from attnctl.models.option_types import OptionValues
    from attnctl.readings.census.census_table import CensusTable
    from attnctl.render.figure.look import Look

FILES = (".json", ".csv", ".parquet", ".html", *(f".{name}" for name in format_names()))
NAMED = 20  # sentences whose errors are printed; the rest is counted
ALONE_SECONDS = 2  # from where on the rate of one process is worth telling
MEASURED_SECONDS = 15  # and that of several
LONG_SECONDS = 60  # from where on a run says how long it will take


class CensusRequest(NamedTuple):
    """How a corpus is read and counted, and which lines its table has."""

    relations: str | None = None
    untrained: bool = False
    subtypes: bool = False
    least: int = 20
    max_tokens: int = 512
    batch_size: int = 32
    jobs: int = 1
    replace_results: bool = False


class CorpusRun(NamedTuple):
    """Parsed sentences, and who counts them."""

    files: tuple[str, ...]
    asked: CensusRequest
    by: arguments.EngineOptions


def run_census(corpus: CorpusRun, options: OptionValues, outputs: tuple[str, ...], json: bool, look: Look) -> None:
    """Count a corpus and show or write the census. Raises AttnctlError where not one sentence could be used."""
    files, folder = _output_files(outputs)
    if corpus.asked.replace_results and folder is None:
        raise UsageError("--replace is for a folder: name it with -o")
    corpus.by.check_engine("evaluate")
    found = _counted_corpus(corpus, options, folder)
    if not found.used:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in found.skipped.items())
        raise AttnctlError(f"{found.corpus}: not one sentence could be used ({reasons or 'it holds none'})")
    _write_files(found, files, folder, look)
    _show_census(found, corpus.asked, json, look)
    _skipped_summary(found)
    raise typer.Exit(PARTIAL if found.skipped else DONE)


def show_stored_census(path: str, asked: CensusRequest, outputs: tuple[str, ...], json: bool, look: Look) -> None:
    """Show or write the census in a file that was written before. Raises UsageError for what would count it anew."""
    from attnctl.formats.documents.census_json import read_census

    files, folder = _output_files(outputs)
    if folder is not None:
        raise UsageError(f"-o {folder}: {path} was counted already, and goes into files that end in {', '.join(FILES)}")
    found = read_census(path)
    _write_files(found, files, None, look)
    _show_census(found, asked, json, look)
    _skipped_summary(found)


def _output_files(outputs: tuple[str, ...]) -> tuple[list[str], str | None]:
    """The files to be written, and the folder."""
    from attnctl.files import check_writable, need_pyarrow

    files = [path for path in outputs if Path(path).suffix.lower() in FILES]
    folders = [path for path in outputs if path not in files]
    if len(folders) > 1:
        raise UsageError(f"-o {folders[1]}: one folder is enough, and files end in {', '.join(FILES)}")
    if folders and (folders[0] == "-" or Path(folders[0]).is_file()):
        raise UsageError(f"-o {folders[0]}: it is a folder, or a file that ends in {', '.join(FILES)}")
    for path in files:
        check_writable(path)
        if path.lower().endswith(".parquet"):
            need_pyarrow(f"{path}: Parquet")
    return files, folders[0] if folders else None


def _counted_corpus(corpus: CorpusRun, options: dict[str, object], folder: str | None) -> CensusTable:
    from attnctl.batching.corpus.census_run import Tallies, census_folder, census_results, on_ray
    from attnctl.batching.corpus.census_work import CensusWork, open_census_model
    from attnctl.batching.corpus.treebank import Treebank
    from attnctl.models.option_types import model_arguments
    from attnctl.readings.census.table_of_tally import table_of_tally

    asked, by = corpus.asked, corpus.by
    treebank = Treebank(corpus.files)
    work = CensusWork(
        model_arguments(options), _renamed_relations(asked.relations), asked.untrained, max_tokens=asked.max_tokens
    )
    model = open_census_model(work)
    if model.info.kind == "checkpoint":
        work = replace(work, batch_size=asked.batch_size)
    tallies = Tallies((model.info.n_layers or 1, model.info.n_heads or 1))

    def run_sentences(items: Iterable[Item]) -> Iterator[list[Result]]:
        if by.engine == "ray":
            workers = asked.jobs if asked.jobs > 1 else None
            return on_ray(work, items, address=by.address, workers=workers, gpus=by.gpus_per_worker)
        return census_results(work, items, asked.jobs, model)

    alone = by.engine == "local" and asked.jobs == 1
    if folder is None:
        _run_treebank(run_sentences, treebank, tallies, None, alone)
    else:
        with census_folder(folder, work, corpus.files, tallies, start_anew=asked.replace_results) as opened:
            _run_treebank(run_sentences, treebank, tallies, opened, alone)
    found = table_of_tally(
        tallies.whole, model.info.name, treebank.corpus_name, causal=bool(model.info.causal), untrained=asked.untrained
    )
    return replace(found, info=model.info)


def _run_treebank(
    do: Callable[[Iterable[Item]], Iterator[list[Result]]],
    treebank: Treebank,
    tallies: Tallies,
    folder: Folder | None,
    alone: bool,
) -> None:
    """All sentences, or those that the folder lacks; `alone`: by this process."""
    told = _Told(treebank, folder is not None, alone)
    with items_progress(treebank.share_read_so_far) as tick:
        for chunk in do(treebank if folder is None else folder.items_to_do(treebank)):
            if folder is None:
                for result in chunk:
                    list(tallies.take_result(result))
            else:
                folder.write_results(chunk)
            told.chunk_done(chunk)
            tick(len(chunk))
    if folder is None:
        tallies.in_memory()
    else:
        folder.finish_run()
        if damage := folder.damage_sentence():
            say_unless_quiet(f"note: {folder.path}: {damage}")
        if folder.gone:
            say_unless_quiet(
                f"note: {folder.path}: {folder.gone:,} of the sentences counted there are not in the corpus now "
                "(--replace counts anew)"
            )
    told.all_done()


class _Told:
    """What is said on stderr while it runs: how long it will take, and sentences that cannot be used."""

    def __init__(self, treebank: Treebank, resumable: bool, alone: bool) -> None:
        self.treebank, self.resumable = treebank, resumable
        self.least = ALONE_SECONDS if alone else MEASURED_SECONDS  # of several processes the first results come late
        self.errors = self.done = 0
        self.held: list[str] | None = (
            None if resumable else []
        )  # until one sentence is used: else the file is no corpus
        self.start = time.monotonic()
        self.said = False

    def chunk_done(self, chunk: list[Result]) -> None:
        """A chunk is done."""
        for result in chunk:
            if result.error is None:
                self._tell_held()
            else:
                self.errors += 1
                self._tell_error(f"{result.item}: {result.error}")
        self.done += len(chunk)
        share, elapsed = self.treebank.share_read_so_far(), time.monotonic() - self.start
        if not share or not chunk or self.said or elapsed < self.least:
            return
        self.said = True
        read = chunk[-1].item.number + 1
        rate, whole = self.done / elapsed, round(read / share)
        if (whole - read) / rate > LONG_SECONDS:
            go_on = "" if self.resumable else "; with -o FOLDER an interrupted run goes on where it was"
            before = f", {read - self.done:,} of them done before" if read > self.done else ""
            say_unless_quiet(
                f"note: about {_rounded(whole):,} sentences{before}: about {duration_text((whole - read) / rate)}, "
                f"{rate:,.0f} a second{go_on}"
            )

    def _tell_error(self, message: str) -> None:
        """A sentence could not be used: said of the first few."""
        if self.held is not None:
            self.held += [message] if self.errors <= NAMED else []
        elif self.errors <= NAMED:
            print_complaint(message)

    def _tell_held(self) -> None:
        for message in self.held or ():
            print_complaint(message)
        self.held = None

    def all_done(self) -> None:
        """Everything is done."""
        if self.held:  # not one sentence was used, which is said next
            print_complaint(self.held[0])
        elif self.errors > NAMED:
            print_complaint(f"… and {self.errors - NAMED:,} more sentences that could not be used")


def _rounded(count: int) -> int:
    """A count that was estimated, to two digits."""
    return round(count, -max(0, len(str(count)) - 2))


def _renamed_relations(path: str | None) -> dict[str, str] | None:
    """The labels that --relations calls otherwise. Raises AttnctlError where the file is no such table."""
    if path is None:
        return None
    from attnctl.files import decode_text, read_bytes

    rows = [row for row in csv.reader(decode_text(read_bytes(path, limits.SETTINGS_BYTES), path).splitlines()) if row]
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or not row[0].strip():
            raise AttnctlError(
                f"{path}, row {number}: it is label,name (no name: left out), not {','.join(row)[:60]!r}"
            )
    return {label.strip(): name.strip() for label, name in rows}


def _write_files(found: CensusTable, files: list[str], folder: str | None, look: Look) -> None:
    for path in [*files, *([str(Path(folder) / "census.json")] if folder else [])]:
        put_bytes(_as_bytes(found, Path(path).suffix.lower(), look), path)


def _as_bytes(found: CensusTable, suffix: str, look: Look) -> bytes:
    if suffix == ".json":
        from attnctl.formats.documents.census_json import census_to_json

        return census_to_json(found) + b"\n"
    if suffix in (".csv", ".parquet"):
        from attnctl.formats.census_table import census_csv, census_parquet

        return census_csv(found) if suffix == ".csv" else census_parquet(found)
    if suffix == ".html":
        from attnctl.render.page.census import census_page

        return census_page(found).encode()
    from attnctl.formats.pictures import figure_bytes
    from attnctl.render.figure.census import census_figure

    return figure_bytes(census_figure(found, look), suffix[1:])


def _show_census(found: CensusTable, asked: CensusRequest, json: bool, look: Look) -> None:
    """The table, or JSON, on standard output."""
    if json:
        put_bytes(_as_bytes(found, ".json", look))
        return
    from attnctl.render.terminal.models.census import CensusReport

    show_renderable(CensusReport(found, asked.subtypes, asked.least), soft_wrap=True)


def _skipped_summary(found: CensusTable) -> None:
    """One line on stderr where sentences were left out."""
    if found.skipped:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in found.skipped.items())
        count = found.sentences_read - found.used
        were = "was" if count == 1 else "were"
        print_complaint(f"{count:,} of {found.sentences_read:,} sentences {were} left out: {reasons}")
