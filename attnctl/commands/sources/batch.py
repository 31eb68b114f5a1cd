"""Find where the answers to many prompts came from: the parts of each prompt, a row for each, and means over prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from attnctl.batching import BatchFormat, Item, NamedFiles, Result, Tally, Task, failed_line, merge_means, tally_csv
from attnctl.errors import AttnctlError, UsageError
from attnctl.models import Model, answering_model, open_named_model
from attnctl.runtime.files import write_whole
from attnctl.text import as_json, csv_table

if TYPE_CHECKING:
    from attnctl.checks.model_options import OptionValues
    from attnctl.text import Document

FORM = "sources"
ITEM_OPTIONS = ("answer", "spans")  # options that a prompt may have in the input file
COLUMNS = ("looks", "writes", "matters", "removed")
ROW = (
    "number",
    "id",
    "answer",
    "log_probability",
    "per_token",
    "rests",
    "parts",
    "first_source",
    *COLUMNS,
    "most_looked_at",
    "looks_matters",
    "error",
)


class Sources(Task):
    """The task of answering prompts and finding where the answers came from.

    `options` are for `open_model`, `prompt_options` for the prompts: spans, most, budget, remove.
    """

    def __init__(self, options: OptionValues, prompt_options: OptionValues, model: Model | None = None) -> None:
        self.prompt_options = prompt_options
        opened = open_named_model(**options) if model is None else model
        self.model = self.answering = answering_model(opened, "name a checkpoint (smollm2, …)")

    def failed(self, item: Item, why: str) -> Result:
        """Return the result of a prompt that failed: the reason, and its line among the documents."""
        return Result(item, {FORM: failed_line(item, why)}, error=why)

    def begin(self, item: Item) -> Result:
        """Return the result of a prompt. Raises the error of a prompt that cannot be used."""
        document, tokens, notes = self._document(item)
        return Result(item, {FORM: as_json(document) + b"\n"}, tokens, notes=notes)

    def _document(self, item: Item) -> tuple[Document, int, tuple[str, ...]]:
        """Return the document of one prompt with its number and id, its number of tokens, and notes."""
        from attnctl.commands.sources.search import ANSWER, SourceSearch
        from attnctl.formats import Prompt, conversation_of, json_object
        from attnctl.text.tokens import checked_text

        if item.error is not None:
            raise AttnctlError(item.error)
        if item.trace is not None or item.tokens is not None:
            raise AttnctlError('a prompt is a "text", or "messages": tokens or a trace cannot be answered')
        if item.text_pair is not None:
            raise AttnctlError("a prompt is one text: leave out text_pair")
        for name, value in item.options.items():
            if name not in ITEM_OPTIONS or not isinstance(value, str):
                raise UsageError(
                    f"a prompt has no option {name!r}: its options are {' and '.join(ITEM_OPTIONS)}, each a text"
                )
        conversation = None if item.messages is None else conversation_of(as_json(item.messages), "it")
        prompt = Prompt(checked_text(item.text)) if conversation is None else self.answering.prompt_of(conversation)
        options, answer = self.prompt_options, item.options.get("answer", item.answer)
        spans = item.options.get("spans", options.get("spans"))
        search = SourceSearch(self.answering, prompt, spans, answer, options.get("most") or ANSWER, options["budget"])
        for _ in search.measure_all():
            pass
        for _ in search.remove_parts(conversation) if options.get("remove") else ():
            pass
        result = search.found_so_far()
        id_of_item: Document = {} if item.id is None else {"id": item.id}
        return {"number": item.number, **id_of_item, **json_object(result)}, len(search.tokens), result.notes


class PromptSources(BatchFormat):
    """The files `sources.jsonl` (a document for each prompt), `sources.csv` (a row each) and `sources-means.csv` (means)."""

    form, task = FORM, Sources

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def add(self, made: bytes) -> None:
        """Add the line of a prompt."""
        self._lines.append(made)

    def rest(self) -> NamedFiles:
        """Return the file with the documents of the group, one on each line."""
        lines, self._lines = self._lines, []
        return [(self.name_of_part(".jsonl"), b"".join(lines))]

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        """Write all documents to one file, and the tables made from them."""
        import orjson

        means: Tally = {}
        rows: list[list[object]] = []

        def write_documents(out: IO[bytes]) -> None:
            for part in parts:
                out.write(part)
                for document in map(orjson.loads, part.splitlines()):
                    if "error" in document:
                        rows.append([document.get(name, "") for name in ROW])
                        continue
                    rows.append([*sources_row(document), ""])
                    merge_means(means, tally_of_prompt(document))

        write_whole(folder / "sources.jsonl", write_documents, inside=folder)
        write_whole(folder / "sources.csv", csv_table(ROW, rows).encode(), inside=folder)
        # a line for each part and column, then for each place and column: mean, its standard error, number of prompts
        table = tally_csv(means, COLUMNS, "standard_error", ("by", "which", "column"))
        write_whole(folder / "sources-means.csv", table.encode(), inside=folder)


def sources_row(document: Document) -> list[object]:
    """Return the row of a prompt: its answer, the part that matters most with COLUMNS, the part with most attention."""
    parts = document["parts"]
    first = parts[0] if parts else {"name": ""}
    most_looked_at = max(parts, key=lambda part: part["looks"], default=first)
    agreement = document["agreement"].get("looks-matters", "")
    answer = document["answer"]
    return [
        document["number"],
        document.get("id", ""),
        answer["text"],
        answer["log_probability"],
        answer["per_token"],
        {True: "true", False: "false", None: ""}[document.get("rests")],
        len(parts),
        first["name"],
        *(first.get(name, "") for name in COLUMNS),
        most_looked_at["name"],
        agreement,
    ]


def tally_of_prompt(document: Document) -> Tally:
    """Return the numbers of a prompt's parts, by the name of the part (of a message: role, number), and by its place.

    The means of what matters do not include parts that were measured only together with others, or not whole because the
    answer is predicted from inside them.
    """
    tally: Tally = {}
    for place, part in enumerate(sorted(document["parts"], key=lambda part: part["start"])):
        is_measured = part["alone"] and not part["predicts_answer"]
        values = {name: part[name] for name in COLUMNS if name in part and (name != "matters" or is_measured)}
        for by, key in (("part", part.get("message", part["name"])), ("place", place)):
            merge_means(tally, {(by, key, name): (1, value, 0.0) for name, value in values.items()})
    return tally
