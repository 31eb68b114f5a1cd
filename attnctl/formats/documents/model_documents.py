"""Define the JSON of batches: what was requested, and the result of each text."""

from __future__ import annotations

from typing import Annotated, Literal

from attnctl.checks.document_fields import ALWAYS, Amount, Index, Part, Sha256, Whole, about
from attnctl.formats.documents.json_documents import FAILED, JsonDocument
from attnctl.text import Document

Free = Annotated[Document, about("", additionalProperties=True)]


class BatchAsked(Part, kw_only=True):
    """The settings that decide the results of a batch."""

    input: Annotated[tuple[str, ...], about("The files of texts, as paths from the folder of results.")]
    input_form: str | None
    column: str | None
    id_column: str | None
    formats: tuple[str, ...]
    model: Annotated[Free, about("The name and options of the model, as on the command line.")]
    look: Annotated[Free, about("The settings of pictures: colours, size, letters.")]
    layer: str | None
    head: str | None
    query: str | None
    max_tokens: Index
    batch_size: Index
    words: bool
    measure: str | None
    renormalise: bool
    drop: Annotated[tuple[str, ...], about("The keys to leave out.")]
    prompts: Annotated[Free | None, about("The options for prompts (attnctl sources).")] = None
    steps: Annotated[tuple[str, ...], about("The steps to store in each trace.")] = ()


class BatchDocument(JsonDocument, kw_only=True, tag="attnctl.batch/2"):
    """The request for a batch: run.json in its folder."""

    said: Annotated[
        BatchAsked, about("The settings that decide the results: a batch continues only with the same settings.")
    ]
    weights: Annotated[
        str | None, about("Fingerprint of the model's files; null if the model is not a file or a folder.")
    ]


class FailedText(JsonDocument, kw_only=True, tag=FAILED):
    """A text of a batch that failed; its line stands between the lines of its neighbours in the input."""

    number: Annotated[Whole, about("The place of the text in the input, from 0.")]
    id: Annotated[str | int | None, about("The item's own name, if the input gives one.")] = None
    error: Annotated[str, about("The reason why the text failed.")]


class ManifestFile(Part, kw_only=True):
    """A file of one item, or one item's part of a file."""

    file: Annotated[str, about("The name of the file in the folder.")]
    offset: Annotated[
        Whole | None, about("The byte at which the item's part begins, in a file that several items share.")
    ] = None
    bytes: Whole
    sha256: Annotated[Sha256, about("SHA-256 of these bytes.")]


class ManifestLine(Part, kw_only=True):
    """The result of one text of a batch: a line of manifest.jsonl, in the order in which the texts were finished."""

    number: Annotated[
        Whole, about("The number of the item in the folder, from 0, in the order in which items were finished.")
    ]
    id: Annotated[str | int | None, about("The item's own name, if the input gives one.")] = None
    status: Literal["done", "failed"]
    where: Annotated[str, about("The place of the text in the input.")]
    error: Annotated[str | None, about("The reason why the text failed.")] = None
    input: Annotated[str, about("Fingerprint of the item, which identifies it wherever it is in the input.")]
    time: Annotated[str, about("The time when it was finished, in UTC.")]
    seconds: Amount
    tokens: Index | None = None
    files: tuple[ManifestFile, ...] = ()
    group: Annotated[
        Index | None,
        about("In the last line of a group of texts that were run together: the number of lines of the group."),
    ] = None
    check: Annotated[
        str,
        about("Checksum of this line, the settings and the model's files: a line that was changed is not used."),
        ALWAYS,
    ] = ""
