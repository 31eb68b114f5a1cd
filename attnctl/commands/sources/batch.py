"""Where the answers to many prompts came from: each prompt's parts, a row a prompt, and means over the prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from attnctl.batching.formats import BatchFormat, NamedFiles, Tally, merge_means, tally_csv
from attnctl.batching.items import Item, Result
from attnctl.batching.work import Task
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import write_whole
from attnctl.models import Model, open_named_model
from attnctl.text import as_json, csv_table

if TYPE_CHECKING:
    from attnctl.model_options import OptionValues
    from attnctl.text import Document

FORM = "sources"
OWN = ("answer", "spans")  # what a prompt may say for itself
COLUMNS = ("looks", "writes", "matters", "removed")
ROW = (
    "number",
    "id",
    "answer",
    "log_probability",
    "parts",
    "first_source",
    *COLUMNS,
    "most_looked_at",
    "looks_matters",
)


class Sources(Task):
    """The task of answering prompts, one by one, and saying where the answers came from.

    `options` are those of `open_model`, `asked` those of the prompts: spans, most, budget, remove.
    """

    def __init__(self, options: OptionValues, asked: OptionValues, model: Model | None = None) -> None:
        self.asked = asked
        self.model = open_named_model(**options) if model is None else model

    def begin(self, item: Item) -> Result:
        """Return the result of a prompt. Raises what is wrong with it."""
        document, tokens, notes = self._document(item)
        return Result(item, {FORM: as_json(document)}, tokens, notes=notes)

    def _document(self, item: Item) -> tuple[Document, int, tuple[str, ...]]:
        """The document of one prompt, with its number and id; its tokens; notes."""
        from attnctl.commands.sources.search import ANSWER, SourceSearch
        from attnctl.formats.chat import conversation_of
        from attnctl.formats.documents.json_documents import plain
        from attnctl.models.huggingface.prompts import Prompt, chat_prompt
        from attnctl.tokens import checked_text

        if item.error is not None:
            raise AttnctlError(item.error)
        if item.trace is not None or item.tokens is not None:
            raise AttnctlError('a prompt is a "text", or "messages": there are no tokens of its own to answer')
        if item.text_pair is not None:
            raise AttnctlError("a prompt is one text: it has no text_pair")
        for name, value in item.options.items():
            if name not in OWN or not isinstance(value, str):
                raise UsageError(f"one prompt has no option {name!r}: it is {' and '.join(OWN)}, each a text")
        conversation = None if item.messages is None else conversation_of(as_json(item.messages), "it")
        prompt = Prompt(checked_text(item.text), ()) if conversation is None else chat_prompt(self.model, conversation)
        said, answer = self.asked, item.options.get("answer", item.answer)
        spans = item.options.get("spans", said.get("spans"))
        search = SourceSearch(self.model, prompt, spans, answer, said.get("most") or ANSWER, said["budget"])
        for _ in search.measure_all():
            pass
        for _ in search.remove_parts(conversation) if said.get("remove") else ():
            pass
        found = search.found_so_far()
        named: Document = {} if item.id is None else {"id": item.id}
        return {"number": item.number, **named, **plain(found)}, len(search.tokens), found.notes


class PromptSources(BatchFormat):
    """`sources.jsonl`, a document a prompt; `sources.csv`, a row a prompt; `sources-means.csv`, means over the prompts."""

    form, task = FORM, Sources

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def add(self, made: bytes) -> None:
        """Take a prompt's document in."""
        self._lines.append(made + b"\n")

    def rest(self) -> NamedFiles:
        """The group's documents, a line each."""
        lines, self._lines = self._lines, []
        return [(self.name_of_part(".jsonl"), b"".join(lines))]

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        """All documents as one file, and the tables made of them."""
        import orjson

        means: Tally = {}
        rows: list[list[object]] = []

        def write_documents(out: IO[bytes]) -> None:
            for part in parts:
                out.write(part)
                for document in map(orjson.loads, part.splitlines()):
                    rows.append(sources_row(document))
                    merge_means(means, tally_of_prompt(document))

        write_whole(folder / "sources.jsonl", write_documents, inside=folder)
        write_whole(folder / "sources.csv", csv_table(ROW, rows).encode(), inside=folder)
        # a line a part and column, then a line a place and column: mean, its standard error, number of prompts
        table = tally_csv(means, COLUMNS, "standard_error", ("by", "which", "column"))
        write_whole(folder / "sources-means.csv", table.encode(), inside=folder)


def sources_row(document: Document) -> list[Any]:
    """The row of a prompt: its answer, the part that matters most with each of COLUMNS, the part that is looked at most."""
    parts = document["parts"]
    first = parts[0] if parts else {"name": ""}
    most = max(parts, key=lambda part: part["looks"], default=first)
    agreement = document["agreement"].get("looks-matters", "")
    answer = document["answer"]
    return [
        document["number"],
        document.get("id", ""),
        answer["text"],
        answer["log_probability"],
        len(parts),
        first["name"],
        *(first.get(name, "") for name in COLUMNS),
        most["name"],
        agreement,
    ]


def tally_of_prompt(document: Document) -> Tally:
    """The numbers of a prompt's parts, by the name of the part, and by its place in the prompt.

    Parts that were measured only with others count in no mean of what matters.
    """
    tally: Tally = {}
    for place, part in enumerate(sorted(document["parts"], key=lambda part: part["start"])):
        own = {name: part[name] for name in COLUMNS if name in part and (name != "matters" or part["alone"])}
        for by, which in (("part", part["name"]), ("place", place)):
            merge_means(tally, {(by, which, name): (1, value, 0.0) for name, value in own.items()})
    return tally
