"""Read the texts of a batch from files, folders, tables or a pipe, and decompress gzip and zstd."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

from attnctl.batching.items import Item
from attnctl.checks import limits
from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name, waiting
from attnctl.runtime.files import (
    SOUND,
    check_json_memory,
    check_regular,
    names_picture,
    names_sound,
    need_pyarrow,
    open_regular,
    said_plainly,
)
from attnctl.text import as_json

DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)  # what reading a damaged compressed file raises


def open_stream(path: str) -> IO[bytes]:
    """Open a regular file, or standard input for "-" without closing it. Raises AttnctlError if it is not a regular file."""
    if path != "-":
        return open_regular(path)
    if sys.stdin.isatty():
        waiting.close()
    if _real_stdin():
        return open(0, "rb", closefd=False)  # noqa: SIM115
    return io.BufferedReader(_SmallReads(sys.stdin.buffer.read, 8192))


def _real_stdin() -> bool:
    try:
        return sys.stdin.fileno() == 0
    except (OSError, AttributeError):
        return False


def first_bytes(file: IO[bytes]) -> bytes:
    """Return the first bytes of a buffered file without consuming them."""
    return cast(io.BufferedReader, file).peek(64)[:64]


def decompressed(raw: IO[bytes], name: str) -> IO[bytes]:
    """Return the file, decompressed if it begins like a gzip or zstd file. Reading may raise one of DAMAGE."""
    magic = first_bytes(raw)[:4]
    if magic[:2] == b"\x1f\x8b":
        return io.BufferedReader(_SmallReads(gzip.GzipFile(fileobj=raw).read1, 8192))
    if magic == b"\x28\xb5\x2f\xfd":
        need_pyarrow(f"{name} is zstd, which")
        import pyarrow as pa

        return io.BufferedReader(_SmallReads(pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd").read, 256))
    return raw


class _SmallReads(io.RawIOBase):
    """A decompressed stream that is read in small pieces: data before a damage is returned before the error is raised."""

    def __init__(self, read_some: Callable[[int], bytes], most: int) -> None:
        self.read_some, self.most = read_some, most

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def readinto(self, into: Any) -> int:
        """Read at most `most` bytes into a buffer; return their number, 0 at the end."""
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
TOO_LONG = f"the text is longer than {LONGEST >> 20} MB"
PAIR = "text_pair"  # the column of the second text of a pair
MORE_TEXTS = (PAIR, "target", "against")  # columns beside the text
TEXT_FIELDS = ("text", "id", *MORE_TEXTS, "answer", "tokens")  # of an item
BOM = b"\xef\xbb\xbf"
JSON_BEGINS = re.compile(rb"\s*(\{|\[\s*([\[{\"]|$))")  # in a pipe: "[Music]" is text


class InputFiles:
    """Files that are read one after another, and how much of them was read.

    `unread` has a sentence for each file that became smaller while it was read.
    """

    def __init__(self, size: int = 0) -> None:
        self._size, self._done = size, 0  # bytes: of the whole input, and of the finished files
        self._raw: IO[bytes] | None = None
        self._size_before = 0  # bytes of the file when it was opened
        self.unread: list[str] = []
        self._first: float | None = None  # share of the input before the first item that a run had to do
        self._shares: dict[int, float] = {}  # number of an item to do → share of the input up to its end
        self._finished = 0.0  # share of the input up to the last item that was done

    def __iter__(self) -> Iterator[Item]:
        """Yield the items; each is read when it is needed."""
        raise NotImplementedError

    def items_left(self, items_to_do: Callable[[Iterable[Item]], Iterator[Item]]) -> Iterator[Item]:
        """Yield the items that `items_to_do` keeps of them, and note where in the input each of these ends."""
        before = after = 0.0

        def noted_items() -> Iterator[Item]:
            nonlocal before, after
            for item in self:
                before, after = after, self.share_read() or 0.0
                yield item

        for item in items_to_do(noted_items()):
            self._first = before if self._first is None else self._first
            self._shares[item.number] = after
            yield item

    def note_done(self, items: Iterable[Item]) -> None:
        """Note that these items are done."""
        for item in items:
            self._finished = max(self._finished, self._shares.pop(item.number, 0.0))

    def share_done(self) -> float | None:
        """Return the share of this run's work that is done, 0 to 1; None if the size of the input is unknown.

        What is read ahead is not done, and what was finished before the run is no part of its work.
        """
        if not self._size or self._first is None:
            return self.share_read()
        return max(0.0, self._finished - self._first) / max(1.0 - self._first, 1e-9)

    def share_read(self) -> float | None:
        """Return the share that was read, 0 to 1; None if the size is unknown."""
        if not self._size:
            return None
        inside = 0 if self._raw is None or self._raw.closed else self._raw.tell()
        return min(1.0, (self._done + inside) / self._size)

    @contextmanager
    def open_file(self, path: str) -> Iterator[tuple[IO[bytes], str]]:
        """Yield a file, or standard input for "-", decompressed, and its name."""
        name = "standard input" if path == "-" else path
        with said_plainly("read", name), open_stream(path) as raw:
            self._raw = None if path == "-" else raw
            self._size_before = self._size_now()
            yield decompressed(raw, name), name
            before, now = self._size_before, self._size_now()
            if self._raw is not None and raw.tell() < before and now < before:
                lost = limits.bytes_text(before - raw.tell())
                self.unread.append(f"{lost} of {name} were not read: it became smaller while it was read")

    def _size_now(self) -> int:
        """Return the bytes of the file that is read; 0 for standard input."""
        return 0 if self._raw is None else os.fstat(self._raw.fileno()).st_size

    def _check_end(self, item: Item, last: str) -> Item:
        """Return the item; if its last line has no end, and the size of the file has changed, it may be half of a text."""
        if item.error or last.endswith(("\n", "\r")) or self._size_now() == self._size_before:
            return item
        return replace(
            item, error="the file changed while it was read, and this last line has no end: it may be cut off"
        )


def numbered(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, numbered from 0; an item with a text that is not UTF-8 has an error."""
    for number, item in enumerate(items):
        item.number, item.where = number, _readable(item.where)
        yield _in_utf8(item)


class TextStream(InputFiles):
    """The items of an input; each is read when it is needed.

    `form` is one of FORMS (None: by the suffix, or a look at the first line of a pipe), `column` holds the texts of a
    table, `id_column` their ids. Raises UsageError for a form or a column that does not exist, and AttnctlError if there is
    no such file, or it cannot be read on.
    """

    def __init__(
        self, path: str, form: str | None = None, column: str | None = None, id_column: str | None = None
    ) -> None:
        super().__init__()
        if form is not None and form not in FORMS:
            raise UsageError(f"it is {', '.join(FORMS)}", option="input", value=form)
        expected = "a file or folder of texts, or - for standard input"
        if not path:
            raise UsageError(f"the source is empty: give {expected}")
        if path != "-" and not Path(path).exists():
            raise AttnctlError(f"there is no file {path}: give {expected}")
        if (form or form_of_path(path)) == "text" and (column or id_column) is not None:
            option = "column" if column is not None else "id_column"
            raise UsageError(f"is for tables and JSON lines: {path} has one text on each line", option=option)
        if names_picture(path):
            raise UsageError(f"{path} is a picture: give a file with the names of pictures, one a line")
        self.path, self.form, self.column, self.id_column = path, form, column, id_column
        self.sounds = False  # whether the items of a folder are its sounds

    def __iter__(self) -> Iterator[Item]:
        folder = Path(self.path)
        is_folder = self.path != "-" and folder.is_dir()
        if self.sounds and names_sound(self.path):
            return numbered([_of_sound(folder, folder.parent)])
        return numbered(self._items_of_folder(folder) if is_folder else self._items_of_file(self.path))

    def _items_of_folder(self, folder: Path) -> Iterator[Item]:
        """Yield the items of every file with a known suffix, by name: a .txt is one text, other files have several."""
        any_there, closed = False, list[OSError]()
        for where, folders, names in os.walk(folder, onerror=closed.append):
            folders[:] = sorted(
                name for name in folders if not name.startswith(".") and not _is_batch(Path(where, name))
            )
            for name in sorted(names):
                path = Path(where, name)
                form = form_of_path(name)
                if self.sounds:
                    if SOUND.fullmatch(name) and not name.startswith("."):
                        any_there = True
                        yield _of_sound(path, folder)
                    continue
                if form is None or name.startswith("."):
                    continue
                any_there = True
                if not path.is_file():
                    yield Item(0, str(path), id=_readable(name), error="it is not a regular file")
                elif form == "text":
                    yield self._item_of_file(path, folder)
                else:
                    yield from self._items_of_file(str(path))
        for error in closed:  # folders; it may be the only one
            with said_plainly("read", error.filename):
                if error.filename == str(folder):
                    raise error
            any_there = True
            reason = (error.strerror or str(error)).lower()
            name = _readable(Path(error.filename).name)
            yield Item(0, error.filename, id=name, error=f"this folder cannot be read: {reason}")
        if not any_there and self.sounds:
            raise AttnctlError(f"{folder} holds no sounds: it may hold .wav, .flac, .ogg, .mp3, .aiff, .caf and .au")
        if not any_there:
            raise AttnctlError(f"{folder} holds no texts: it may hold {', '.join(SUFFIXES)}, also .gz and .zst")

    def _item_of_file(self, path: Path, folder: Path) -> Item:
        """Return a file as one text."""
        where, name = str(path), _readable(path.relative_to(folder).with_suffix("").as_posix())
        try:
            with self.open_file(where) as (file, _):
                data = file.read(LONGEST + 1)
                changed = self._size_now() != self._size_before
        except DAMAGE as error:
            return Item(0, where, id=name, error=f"the file is damaged: {error}")
        if len(data) > LONGEST:
            return Item(0, where, id=name, error=TOO_LONG)
        item = replace(next(self._items_of_line(where, data.removeprefix(BOM), "text")), id=name)
        if item.error is None and changed:
            return replace(item, error="the file changed while it was read: it may be cut off")
        return item

    def _items_of_file(self, path: str) -> Iterator[Item]:
        form = self.form or form_of_path(path)
        if form == "parquet":
            yield from self._items_of_parquet(path)
            return
        with self.open_file(path) as (file, name):
            if path != "-":
                self._size = Path(path).stat().st_size
            try:
                if form is None:
                    form = "jsonl" if JSON_BEGINS.match(first_bytes(file)) else "text"
                items = self._items_of_table if form in ("csv", "tsv") else self._items_of_lines
                yield from items(file, name, form)
            except DAMAGE as error:
                raise AttnctlError(f"{name} is damaged: {error}") from error

    def _items_of_lines(self, file: IO[bytes], name: str, form: str) -> Iterator[Item]:
        if first_bytes(file)[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise AttnctlError(f"{name} is UTF-16, not UTF-8: iconv -f UTF-16 -t UTF-8 makes it so")
        if self.form is None and form_of_path(self.path) is None and b"\0" in first_bytes(file):
            raise AttnctlError(f"{name} is not text: it has a byte 0 at offset {first_bytes(file).index(0)}")
        if first_bytes(file).startswith(BOM):
            file.read(len(BOM))
        number = 0
        while line := file.readline(LONGEST):
            number += 1
            if form == "jsonl" and number == 1 and _is_cut_off(line):  # a list or an object over many lines
                whole = line + file.read(limits.CORPUS_BYTES)
                if file.read(1):
                    raise AttnctlError(
                        f"{name} is one JSON value of too many bytes: give an object a line (jq -c '.[]')"
                    )
                if not _is_cut_off(whole):
                    yield from self._items_of_line(f"{name}, line 1", whole, form)
                    return
                file = io.BytesIO(whole)  # lines after all; the first is damaged
                line = file.readline(LONGEST)
            where = f"{name}, line {number}"
            if len(line) == LONGEST and not line.endswith(b"\n"):
                skipped = LONGEST
                while (piece := file.readline(LONGEST)) and not piece.endswith(b"\n"):
                    skipped += len(piece)
                    if skipped > limits.ENDLESS_BYTES:
                        raise AttnctlError(f"{where} has no end in {limits.bytes_text(skipped)}: it is not text")
                yield Item(0, where, error=f"the line is longer than {LONGEST >> 20} MB")
            else:
                for item in self._items_of_line(where, line, form):
                    yield self._check_end(item, line[-1:].decode("latin-1"))

    def _items_of_line(self, where: str, line: bytes, form: str) -> Iterator[Item]:
        """Yield the item of a line; for a JSON list that is not a conversation, one item for each entry."""
        import orjson

        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            why = f"it is not UTF-8: byte 0x{line[error.start]:02x} at offset {error.start}"
            yield Item(0, where, line.decode(errors="backslashreplace"), error=why)
            return
        if form == "text":
            yield _of_text(where, text)
            return
        if not text.strip():
            yield Item(0, where, error="the line is empty")
            return
        try:
            check_json_memory(text, "it")
            document = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            yield Item(0, where, text[:1000], error=f"the line is not JSON: {error}")
            return
        except AttnctlError as error:
            yield Item(0, where, error=str(error))
            return
        is_long = len(line) > LONGEST  # a value over many lines, or a list: the limit applies to each of its entries
        if isinstance(document, list) and not any(isinstance(entry, dict) and "role" in entry for entry in document):
            for index, entry in enumerate(document):
                yield self._item_of_document(f"{where}, entry {index}", entry, is_long=is_long)
        else:
            yield self._item_of_document(where, document, is_long=is_long)

    def _item_of_document(self, where: str, document: Any, *, is_long: bool) -> Item:
        if is_long and len(as_json(document)) > LONGEST:
            return Item(0, where, error=TOO_LONG)
        if isinstance(document, str):
            return _of_text(where, document)
        if isinstance(document, list) or (isinstance(document, dict) and "messages" in document):
            return _of_messages(where, document if isinstance(document, dict) else {"messages": document})
        if not isinstance(document, dict):
            return Item(0, where, str(document)[:1000], error='it is not a JSON object with a "text"')
        if "schema" in document:
            text = document.get("text")
            return Item(0, where, text if isinstance(text, str) else "", _id_of(document.get("id")), trace=document)
        return of_row(where, document, self.column or "text", self.id_column or "id")

    def _items_of_table(self, file: IO[bytes], name: str, form: str) -> Iterator[Item]:
        csv.field_size_limit(LONGEST)
        text = io.TextIOWrapper(cast(Any, file), "utf-8-sig", errors="surrogateescape", newline="")
        rows: Any = None
        try:
            lines, last = _bounded_lines(text), [""]
            head = next(lines, "")
            mark = "\t" if form == "tsv" else ";" if ";" in head and "," not in head else ","
            columns = next(csv.reader([head], delimiter=mark), [])
            column, id_column = self._text_columns(columns, name)
            rows = csv.DictReader(_kept_last(lines, last), columns, delimiter=mark)
            for row in rows:
                where = f"{name}, line {rows.line_num + 1}"
                item = _of_text(where, row[column] or "", row[id_column] if id_column else None)
                item = item if item.error else replace(item, **_more_texts(row, column))
                yield self._check_end(item, last[0])
        except csv.Error as error:
            line = 1 if rows is None else rows.line_num + 1
            raise AttnctlError(f"{name}, line {line} is not a row of a table: {error}") from error
        finally:
            text.detach()  # the caller, which opened the file, closes it

    def _text_columns(self, columns: list[str], name: str) -> tuple[str, str | None]:
        """Return the columns of texts and of ids. Raises UsageError that lists the columns of the table."""
        has = f"{name} has the columns {', '.join(columns) or 'none'}"
        column = self.column or ("text" if "text" in columns else columns[0] if len(columns) == 1 else None)
        if column is None:
            raise UsageError(f"{has}: name the one that holds the texts with {option_name('column')}")
        if column not in columns:
            raise UsageError(f"no column {column!r}: {has}", value=column)
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
                more_columns = {"tokens", *MORE_TEXTS} & set(names) - {column}
                columns = [column, *([id_column] if id_column else []), *more_columns]
                rows = (row for rows in file.iter_batches(1024, columns=columns) for row in _rows_of(rows))
                for number, row in enumerate(rows):
                    yield of_row(f"{path}, row {number}", row, column, id_column)
        except pa.ArrowInvalid as error:
            raise AttnctlError(f"{path} is not a sound Parquet file: {in_one_line(error)}") from error


def _of_sound(path: Path, folder: Path) -> Item:
    """Return a sound file as an item, whose text is its path."""
    return Item(0, str(path), str(path), _readable(path.relative_to(folder).with_suffix("").as_posix()))


def _rows_of(batch: Any) -> list[dict[str, object]]:
    """Return the rows of a batch of pyarrow; a byte that is not UTF-8 becomes half of a pair, as in the text of a CSV."""
    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError:
        columns = [[_value_of(cell) for cell in column] for column in batch.columns]
        return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _value_of(cell: Any) -> object:
    """Return the value of a cell of pyarrow, a text or a list of texts with bytes that are not UTF-8 too."""
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        is_list = not hasattr(cell, "as_buffer")
        return (
            [_value_of(part) for part in cell] if is_list else bytes(cell.as_buffer()).decode(errors="surrogateescape")
        )


def _bounded_lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield the lines of a table. Raises csv.Error for a line that is too long."""
    while line := text.readline(LONGEST):
        if len(line) == LONGEST:
            raise csv.Error(f"it is longer than {limits.bytes_text(LONGEST)}")
        yield line


def _kept_last(lines: Iterable[str], last: list[str]) -> Iterator[str]:
    """Yield the lines; `last` holds the last of them."""
    for line in lines:
        last[0] = line
        yield line


def _is_batch(folder: Path) -> bool:
    """Return whether a batch wrote the folder: its output is not read as input."""
    return all(os.path.isfile(folder / name) for name in ("manifest.jsonl", "run.json"))  # noqa: PTH113, False in a closed one


def form_of_path(path: str) -> str | None:
    """Return the form of texts that a file's suffix names, without .gz or .zst; None for another suffix."""
    bare = Path(path)
    while bare.suffix.lower() in (".gz", ".zst"):
        bare = bare.with_suffix("")
    return SUFFIXES.get(bare.suffix.lower())


def _is_cut_off(text: bytes) -> bool:
    """Return whether the text begins a JSON list or object and does not end it."""
    import orjson

    text = text.strip()
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.startswith(b"[") or text == b"{"
    return False


def _of_text(where: str, text: str, name: str | int | None = None) -> Item:
    if not text.strip():
        return Item(0, where, id=name, error="the text is empty")
    if len(text) > LONGEST // 4 and len(text.encode(errors="surrogatepass")) > LONGEST:
        return Item(0, where, id=name, error=TOO_LONG)
    return Item(0, where, text, name)


def _in_utf8(item: Item) -> Item:
    r"""Return the item; if a text of it is not UTF-8, this is its error, and the bytes are shown as \xe9."""
    texts = {name: text for name in TEXT_FIELDS if (text := getattr(item, name)) is not None}
    readable = {name: shown for name, text in texts.items() if (shown := _readable(text)) != text}
    if not readable:
        return item
    first = next(iter(readable))
    why = "it is not UTF-8" if first == "text" else f"its {first} {'are' if first == 'tokens' else 'is'} not UTF-8"
    return replace(item, **readable, error=item.error or why)


def _readable(text: Any) -> Any:
    r"""Return a text, or each of several, with \xe9 for a byte that is not UTF-8; anything else is not changed."""
    if isinstance(text, tuple):
        return tuple(map(_readable, text))
    if not isinstance(text, str) or text.isascii():
        return text
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:  # half of a pair, from Python
        return text.encode(errors="backslashreplace").decode()


def _of_messages(where: str, document: dict[str, object]) -> Item:
    """Return a conversation: messages and tools of an object, its id, and its options, or the answer in it."""
    from attnctl.formats.chat import conversation_of

    name, options = _id_of(document.get("id")), document.get("options") or {}
    if not isinstance(options, dict):
        return Item(0, where, id=name, error='"options" is not a JSON object')
    try:
        conversation = conversation_of(as_json(document), "it")
    except AttnctlError as error:
        return Item(0, where, id=name, error=str(error))
    conversation_fields = {key: document[key] for key in ("messages", "tools") if key in document}
    text, answer = conversation.messages[-1].content, _answer_of(document)
    return Item(0, where, text, name, options=options, messages=conversation_fields, answer=answer)


def _answer_of(row: dict[str, object]) -> str | None:
    """Return the answer to a prompt, if the line has one."""
    answer = row.get("answer")
    return answer if isinstance(answer, str) else None


def _more_texts(row: Mapping[str, object], column: str) -> dict[str, Any]:
    """Return the MORE_TEXTS that a row has beside the text in `column`, without those that are empty."""
    return {name: str(row[name]) for name in MORE_TEXTS if name != column and str(row.get(name) or "").strip()}


def _id_of(value: object) -> str | int | None:
    """Return an id: a whole number stays a number, anything else becomes text."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if value is None or whole else str(value)[:1000]  # type: ignore[return-value]


def of_row(where: str, row: dict[str, object], column: str = "text", id_column: str | None = "id") -> Item:
    """Return the item of a JSON object or a row: text, and if present id, tokens and options."""
    name = _id_of(row.get(id_column)) if id_column else None
    tokens, text, options = row.get("tokens"), row.get(column), row.get("options") or {}
    if tokens is not None and (
        not isinstance(tokens, list) or not tokens or not all(isinstance(t, str) for t in tokens)
    ):
        return Item(0, where, id=name, error='"tokens" is not a list of strings')
    if text is None and tokens is not None:
        text = " ".join(tokens)
    if text is None and column in row:
        return Item(0, where, id=name, error="the text is null")
    if text is not None and not isinstance(text, str):
        return Item(0, where, id=name, error=f"{column!r} holds {str(text)[:40]}, not a text")
    if text is None:
        has = ", ".join(list(row)[:8])
        return Item(0, where, id=name, error=f"there is no text in {column!r} (there is {has or 'nothing'})")
    if not isinstance(options, dict):
        return Item(0, where, text, name, error='"options" is not a JSON object')
    item = _of_text(where, text, name)
    if item.error:
        return item
    more_texts = _more_texts(row, column)
    if PAIR in more_texts and tokens is not None:
        return Item(0, where, text, name, error=f'"{PAIR}" cannot be combined with "tokens"')
    token_names = None if tokens is None else tuple(tokens)
    return replace(item, tokens=token_names, options=options, answer=_answer_of(row), **more_texts)
