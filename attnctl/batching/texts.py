"""Where the texts of a batch come from: files, folders, tables or a pipe, with gzip or zstd taken off as they are read."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from attnctl import limits
from attnctl.batching.items import Item
from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.files import check_regular, need_pyarrow, open_regular, said_plainly
from attnctl.text import as_json

DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)  # what reading a damaged compressed file raises


def open_stream(path: str) -> IO[bytes]:
    """A regular file, or of "-" a stream on standard input that leaves it open. Raises AttnctlError for no regular file."""
    if path != "-":
        return open_regular(path)
    if _real_stdin():
        return open(0, "rb", closefd=False)  # noqa: SIM115
    return io.BufferedReader(_SmallReads(sys.stdin.buffer.read, 8192))


def _real_stdin() -> bool:
    try:
        return sys.stdin.fileno() == 0
    except (OSError, AttributeError):
        return False


def first_bytes(file: IO[bytes]) -> bytes:
    """The first bytes of a buffered file, still to be read."""
    return cast(io.BufferedReader, file).peek(64)[:64]


def decompressed(raw: IO[bytes], name: str) -> IO[bytes]:
    """The file with gzip or zstd taken off, told by its first bytes. Reading on may raise one of DAMAGE."""
    magic = first_bytes(raw)[:4]
    if magic[:2] == b"\x1f\x8b":
        return io.BufferedReader(_SmallReads(gzip.GzipFile(fileobj=raw).read1, 8192))
    if magic == b"\x28\xb5\x2f\xfd":
        need_pyarrow(f"{name} is zstd, which")
        import pyarrow as pa

        return io.BufferedReader(_SmallReads(pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd").read, 256))
    return raw


class _SmallReads(io.RawIOBase):
    """A decompressed stream, read a little at a time: what stands before a damage is handed out before the error is."""

    def __init__(self, read_some: Callable[[int], bytes], most: int) -> None:
        self.read_some, self.most = read_some, most

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def readinto(self, into: Any) -> int:
        """Bytes read into a buffer, `most` at most; 0 at the end."""
        data = self.read_some(min(len(into), self.most))
        into[: len(data)] = data
        return len(data)


FORMS = ("text", "jsonl", "csv", "tsv", "parquet")
SUFFIXES = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
LONGEST = limits.LINE_BYTES
BOM = b"\xef\xbb\xbf"
JSON_BEGINS = re.compile(rb"\s*(\{|\[\s*([\[{\"]|$))")  # of a pipe: "[Music]" is text


@dataclass
class TextStream:
    """The items of an input, read as they are asked for.

    `form` is one of FORMS (None: by the suffix, or a look at the first line of a pipe), `column` holds the texts of a
    table, `id_column` their ids. Raises AttnctlError where the input cannot be read on, UsageError for a column that is
    not there.
    """

    path: str
    form: str | None = None
    column: str | None = None
    id_column: str | None = None
    _raw: IO[bytes] | None = None
    _size: int = 0

    def __iter__(self) -> Iterator[Item]:
        folder = Path(self.path)
        is_folder = self.path != "-" and folder.is_dir()
        items = self._items_of_folder(folder) if is_folder else self._items_of_file(self.path)
        for number, item in enumerate(items):
            yield item if item.number == number else replace(item, number=number)

    def share_read(self) -> float | None:
        """How much of a file has been read, 0 to 1; None where nobody knows."""
        if self._raw is None or not self._size or self._raw.closed:
            return None
        return min(1.0, self._raw.tell() / self._size)

    def _items_of_folder(self, folder: Path) -> Iterator[Item]:
        """Every file with a known suffix, in the order of names: a .txt is one text, of others each line or row."""
        any_there, closed = False, list[OSError]()
        for where, folders, names in os.walk(folder, onerror=closed.append):
            folders[:] = sorted(
                name for name in folders if not name.startswith(".") and not _is_batch(Path(where, name))
            )
            for name in sorted(names):
                path = Path(where, name)
                form = form_of_path(name)
                if form is None or name.startswith("."):
                    continue
                any_there = True
                if not path.is_file():
                    yield Item(0, str(path), id=name, error="it is no regular file")
                elif form == "text":
                    yield _item_of_file(path, folder)
                else:
                    yield from self._items_of_file(str(path))
        for error in closed:  # folders, of which this may be the only one
            with said_plainly("read", error.filename):
                if error.filename == str(folder):
                    raise error
            any_there = True
            said = (error.strerror or str(error)).lower()
            yield Item(0, error.filename, id=Path(error.filename).name, error=f"this folder cannot be read: {said}")
        if not any_there:
            raise AttnctlError(f"{folder} holds no texts: it may hold {', '.join(SUFFIXES)}, also .gz and .zst")

    def _items_of_file(self, path: str) -> Iterator[Item]:
        name = "standard input" if path == "-" else path
        form = self.form or form_of_path(path)
        if form == "parquet":
            yield from self._items_of_parquet(path)
            return
        with said_plainly("read", name), open_stream(path) as raw:
            if path != "-":
                self._raw, self._size = raw, os.fstat(raw.fileno()).st_size
            try:
                file = decompressed(raw, name)
                if form is None:
                    form = "jsonl" if JSON_BEGINS.match(first_bytes(file)) else "text"
                yield from (
                    self._items_of_table(file, name, form)
                    if form in ("csv", "tsv")
                    else self._items_of_lines(file, name, form)
                )
            except DAMAGE as error:
                raise AttnctlError(f"{name} is damaged: {error}") from error

    def _items_of_lines(self, file: IO[bytes], name: str, form: str) -> Iterator[Item]:
        if first_bytes(file)[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise AttnctlError(f"{name} is UTF-16, not UTF-8: iconv -f UTF-16 -t UTF-8 makes it so")
        number = 0
        while line := file.readline(LONGEST):
            if form == "jsonl" and not number and _is_cut_off(line):  # a list, or an object, over many lines
                whole = line + file.read(limits.CORPUS_BYTES)
                if file.read(1):
                    raise AttnctlError(
                        f"{name} is one JSON value of too many bytes: give an object a line (jq -c '.[]')"
                    )
                if not _is_cut_off(whole):
                    yield from _of_line(0, name, whole, form, self)
                    return
                file = io.BytesIO(whole)  # lines after all, of which the first is damaged
                line = file.readline(LONGEST)
            where = f"{name}, line {number + 1}"
            if len(line) == LONGEST and not line.endswith(b"\n"):
                skipped = LONGEST
                while (rest := file.readline(LONGEST)) and not rest.endswith(b"\n"):
                    skipped += len(rest)
                    if skipped > limits.ENDLESS_BYTES:
                        raise AttnctlError(f"{where} has no end in {limits.bytes_text(skipped)}: it is no text")
                yield Item(number, where, error=f"the line is longer than {LONGEST >> 20} MB")
            else:
                yield from _of_line(number, where, line, form, self)
            number += 1

    def _items_of_table(self, file: IO[bytes], name: str, form: str) -> Iterator[Item]:
        csv.field_size_limit(LONGEST)
        text = io.TextIOWrapper(cast(Any, file), "utf-8-sig", errors="surrogateescape", newline="")
        rows: Any = None
        try:
            lines = _bounded_lines(text)
            head = next(lines, "")
            mark = "\t" if form == "tsv" else ";" if ";" in head and "," not in head else ","
            columns = next(csv.reader([head], delimiter=mark), [])
            column, id_column = self._text_columns(columns, name)
            rows = csv.DictReader(lines, columns, delimiter=mark)
            for number, row in enumerate(rows):
                where = f"{name}, line {rows.line_num + 1}"
                yield _of_text(number, where, row[column] or "", row[id_column] if id_column else None)
        except csv.Error as error:
            line = 1 if rows is None else rows.line_num + 1
            raise AttnctlError(f"{name}, line {line} is no row of a table: {error}") from error
        finally:
            text.detach()  # the file is closed by who opened it

    def _text_columns(self, columns: list[str], name: str) -> tuple[str, str | None]:
        """The columns of texts and of ids. Raises UsageError naming those there are."""
        has = f"{name} has the columns {', '.join(columns) or 'none'}"
        column = self.column or ("text" if "text" in columns else columns[0] if len(columns) == 1 else None)
        if column is None:
            raise UsageError(f"{has}: name the one that holds the texts with --column")
        if column not in columns:
            raise UsageError(f"no column {column!r}: {has}")
        if self.id_column is not None and self.id_column not in columns:
            raise UsageError(f"no column {self.id_column!r}: {has}")
        return column, self.id_column or ("id" if "id" in columns and column != "id" else None)

    def _items_of_parquet(self, path: str) -> Iterator[Item]:
        if path == "-":
            raise UsageError("Parquet cannot be read from a pipe: name its file")
        check_regular(path)
        need_pyarrow(f"{path} is Parquet, which")
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with said_plainly("read", path), pq.ParquetFile(path) as file:
                names = file.schema_arrow.names
                column, id_column = self._text_columns(names, path)
                wanted = [column, *([id_column] if id_column else []), *({"tokens"} & set(names) - {column})]
                number = 0
                for rows in file.iter_batches(1024, columns=wanted):
                    for row in rows.to_pylist():
                        yield of_row(row, number, f"{path}, row {number}", column, id_column)
                        number += 1
        except pa.ArrowInvalid as error:
            raise AttnctlError(f"{path} is not a sound Parquet file: {in_one_line(error)}") from error


def _bounded_lines(text: io.TextIOWrapper) -> Iterator[str]:
    """The lines of a table. Raises csv.Error for one that is longer than any row."""
    while line := text.readline(LONGEST):
        if len(line) == LONGEST:
            raise csv.Error(f"it is longer than {limits.bytes_text(LONGEST)}")
        yield line


def _is_batch(folder: Path) -> bool:
    """Whether a folder was written by a batch: its own output is no input."""
    return all(os.path.isfile(folder / name) for name in ("manifest.jsonl", "run.json"))  # noqa: PTH113, False in a closed one


def form_of_path(path: str) -> str | None:
    """The form of texts that a file's suffix names, that of a compression aside; None for another suffix."""
    bare = Path(path)
    while bare.suffix.lower() in (".gz", ".zst"):
        bare = bare.with_suffix("")
    return SUFFIXES.get(bare.suffix.lower())


def _item_of_file(path: Path, folder: Path) -> Item:
    """A file that is one text."""
    where, name = str(path), path.relative_to(folder).with_suffix("").as_posix()
    with said_plainly("read", path):
        if path.stat().st_size > LONGEST:
            return Item(0, where, id=name, error=f"the file is larger than {LONGEST >> 20} MB")
        with open_regular(where) as raw:
            data = decompressed(raw, where).read(LONGEST + 1)
    if len(data) > LONGEST:
        return Item(0, where, id=name, error=f"the text is longer than {LONGEST >> 20} MB")
    return replace(next(_of_line(0, where, data, "text", None)), id=name)


def _of_line(number: int, where: str, line: bytes, form: str, source: TextStream | None) -> Iterator[Item]:
    """The item of a line; of a list in JSON that is no conversation, one for each entry."""
    line = line if number else line.removeprefix(BOM)
    try:
        text = line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        why = f"it is not UTF-8: byte 0x{line[error.start]:02x} at offset {error.start}"
        yield Item(number, where, line.decode(errors="backslashreplace"), error=why)
        return
    yield from [_of_text(number, where, text, None)] if form == "text" else _of_json(number, where, text, source)


def _is_cut_off(text: bytes) -> bool:
    """Whether a list or an object in JSON begins that is not whole."""
    import orjson

    text = text.removeprefix(BOM).strip()
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.startswith(b"[") or text == b"{"
    return False


def _of_text(number: int, where: str, text: str, name: str | int | None) -> Item:
    if not text.strip():
        return Item(number, where, id=name, error="the text is empty")
    if any("\ud800" <= char <= "\udfff" for char in text):
        clean = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
        return Item(number, where, clean, name, error="it is not UTF-8")
    return Item(number, where, text, name)


def _of_json(number: int, where: str, line: str, source: TextStream | None) -> Iterator[Item]:
    import orjson

    if not line.strip():
        yield Item(number, where, error="the line is empty")
        return
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        yield Item(number, where, line[:1000], error=f"the line is not JSON: {error}")
        return
    if isinstance(document, list) and not any(isinstance(entry, dict) and "role" in entry for entry in document):
        for at, entry in enumerate(document):
            yield _of_document(number, f"{where}, entry {at}", entry, source)
    else:
        yield _of_document(number, where, document, source)


def _of_document(number: int, where: str, document: Any, source: TextStream | None) -> Item:
    if isinstance(document, str):
        return _of_text(number, where, document, None)
    if isinstance(document, list) or (isinstance(document, dict) and "messages" in document):
        return _of_messages(document if isinstance(document, dict) else {"messages": document}, number, where)
    if not isinstance(document, dict):
        return Item(number, where, str(document)[:1000], error='it is no JSON object with a "text"')
    if "schema" in document:
        text = document.get("text")
        name = _id_of(document.get("id"))
        return Item(number, where, text if isinstance(text, str) else "", name, trace=document)
    column = (source.column if source else None) or "text"
    return of_row(document, number, where, column, (source.id_column if source else None) or "id")


def _of_messages(document: dict[str, object], number: int, where: str) -> Item:
    """A conversation: the messages and tools of an object, its id, and its options, or its answer outright."""
    from attnctl.formats.chat import conversation_of

    name, options = _id_of(document.get("id")), document.get("options") or {}
    if not isinstance(options, dict):
        return Item(number, where, id=name, error='"options" is no JSON object')
    try:
        conversation = conversation_of(as_json(document), "it")
    except AttnctlError as error:
        return Item(number, where, id=name, error=str(error))
    kept = {key: document[key] for key in ("messages", "tools") if key in document}
    text, answer = conversation.messages[-1].content, _answer_of(document)
    return Item(number, where, text, name, options=options, messages=kept, answer=answer)


def _answer_of(row: dict[str, object]) -> str | None:
    """The answer to a prompt, where a line gives one."""
    answer = row.get("answer")
    return answer if isinstance(answer, str) else None


def _id_of(given: object) -> str | int | None:
    """An id as it was given: a whole number stays one, all else is text."""
    whole = isinstance(given, int) and not isinstance(given, bool)
    return given if given is None or whole else str(given)[:1000]  # type: ignore[return-value]


def of_row(row: dict[str, object], number: int, where: str, column: str = "text", id_column: str | None = "id") -> Item:
    """An item of a JSON object or a row: text, and where they are there id, tokens and options."""
    name = _id_of(row.get(id_column)) if id_column else None
    tokens, text, options = row.get("tokens"), row.get(column), row.get("options") or {}
    if tokens is not None and (
        not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens)
    ):
        return Item(number, where, id=name, error='"tokens" is no list of strings')
    if text is None and tokens is not None:
        text = " ".join(tokens)
    if not isinstance(text, str):
        has = ", ".join(list(row)[:8])
        return Item(number, where, id=name, error=f"there is no text in {column!r} (there is {has or 'nothing'})")
    if not isinstance(options, dict):
        return Item(number, where, text, name, error='"options" is no JSON object')
    item = _of_text(number, where, text, name)
    if item.error:
        return item
    return replace(item, tokens=None if tokens is None else tuple(tokens), options=options, answer=_answer_of(row))


def opened_stream(
    path: str, input_form: str | None = None, column: str | None = None, id_column: str | None = None
) -> TextStream:
    """The texts of a file, folder or pipe. Raises UsageError for no such form, AttnctlError where nothing is there."""
    if input_form is not None and input_form not in FORMS:
        raise UsageError(f"--input {input_form!r}: it is {', '.join(FORMS)}")
    if not path:
        raise UsageError("the source is empty: give a file or folder of texts, or - for standard input")
    if path != "-" and not Path(path).exists():
        raise AttnctlError(f"there is no file {path}: give a file or folder of texts, or - for standard input")
    if (input_form or form_of_path(path)) == "text" and (column or id_column) is not None:
        raise UsageError(f"--column and --id-column are of tables and JSON lines: {path} holds a text a line")
    return TextStream(path, input_form, column, id_column)
