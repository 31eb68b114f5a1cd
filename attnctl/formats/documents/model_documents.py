"""What is told of batches as JSON: what a batch was asked for, what became of its texts."""

from __future__ import annotations

from typing import Annotated, Literal

from attnctl.document_fields import ALWAYS, Amount, Index, Part, Sha256, Whole, about
from attnctl.formats.documents.json_documents import JsonDocument
from attnctl.text import Document

Free = Annotated[Document, about("", additionalProperties=True)]


class BatchAsked(Part, kw_only=True):
    """What decides the outcome of a batch."""

    input: Annotated[tuple[str, ...], about("The files of texts, as seen from the folder.")]
    input_form: str | None
    column: str | None
    id_column: str | None
    formats: tuple[str, ...]
    model: Annotated[Free, about("Its name and options, as the command line had them.")]
    look: Annotated[Free, about("How pictures look.")]
    layer: str | None
    head: str | None
    query: str | None
    parameters: bool
    max_tokens: Index
    batch_size: Index
    words: bool
    measure: str | None
    prompts: Annotated[Free | None, about("What is said of prompts (sources).")] = None
    steps: Annotated[tuple[str, ...], about("The steps that are in each trace.")] = ()
    precision: Annotated[Index | None, about("Decimals of the numbers in JSON.")] = None


class BatchDocument(JsonDocument, kw_only=True, tag="attnctl.batch/2"):
    """What a batch was asked for: run.json in its folder."""

    said: Annotated[BatchAsked, about("What decides the outcome: going on with something else is refused.")]
    weights: Annotated[str | None, about("Fingerprint of the model's files; null where it has none here.")]


class ManifestFile(Part, kw_only=True):
    """A file of an item, or the part of a file that is an item's."""

    file: Annotated[str, about("Its name in the folder.")]
    offset: Annotated[Whole | None, about("Where in it the item's part begins, of a file that grows.")] = None
    bytes: Whole
    sha256: Annotated[Sha256, about("Of these bytes.")]


class ManifestLine(Part, kw_only=True):
    """What became of each text of a batch, in the order of being done: a line of manifest.jsonl."""

    number: Annotated[Whole, about("Of the item in the folder, from 0, in the order of being done.")]
    id: Annotated[str | int | None, about("Its own name, where it has one.")] = None
    status: Literal["done", "failed"]
    where: Annotated[str, about("Where in the input it stands.")]
    error: Annotated[str | None, about("Why it failed.")] = None
    input: Annotated[str, about("Fingerprint of the item, by which it is known wherever it stands.")]
    time: Annotated[str, about("When it was done, UTC.")]
    seconds: Amount
    tokens: Index | None = None
    files: tuple[ManifestFile, ...] = ()
    group: Annotated[
        Index | None, about("Of the last line of a group that was done as one: how many lines it has.")
    ] = None
    check: Annotated[
        str,
        about("Of the line before it, for what was asked and the model's files: a line that was changed is none."),
        ALWAYS,
    ] = ""
