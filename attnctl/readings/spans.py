"""Named parts of a text: words, sentences, paragraphs, lines, headings, marked documents, a file; regions of a picture."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from attnctl.checks import limits
from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name
from attnctl.readings.overview import TextPart
from attnctl.readings.sentences import sentence_spans
from attnctl.text import shortened
from attnctl.text.tokens import Token, word_spans
from attnctl.trace import joined_word, word_groups

if TYPE_CHECKING:
    from attnctl.text import Document

REGIONS = "regions"  # nine of a picture
WORDS, SENTENCES = "words", "sentences"  # as a reader counts them
KINDS = (WORDS, SENTENCES, "paragraphs", "lines", "headings", "documents", REGIONS)
REST, SPECIAL = "(rest)", "(special)"
BEFORE, AFTER = "(before)", "after the documents"
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
# how people mark documents, at the start of a line; a text that has several of these forms is cut by the first
_DOCUMENT_MARKS = tuple(
    re.compile(r"^[ \t]*" + form, re.MULTILINE | re.IGNORECASE)
    for form in (
        r"<(?:document|doc)\b(?P<attributes>[^>\n]*)>",  # <doc id=3>
        # Document 7: …, **Passage [7]**, Source 7 on a line of its own
        r"(?:[*_#]+[ \t]*)?(?P<noun>document|doc|passage|source|context|chunk|excerpt|article|snippet|result)[ \t]*"
        r"[#\[(]?(?P<number>\d{1,9})[\])]?(?:[*_]{2}|[ \t]*(?:[:(–—]|-[ \t]|\.(?!\d)|$))",
        r"\[(?P<name>[^\]\n]{1,80})\]",  # [7] …
    )
)
# "Documents:", "## Context", "**Retrieved passages:**", "<sources>": behind such a line, the items of a list are documents
_LIST_HEADING = re.compile(
    r"^[ \t]*(?P<markup>#{1,6}[ \t]|<)?[^\n]{0,60}?\b"
    r"(?:documents?|docs|passages|sources|contexts?|chunks|excerpts|articles|snippets|results|references|facts|evidence)\b"
    r"[^\n:：]{0,24}(?(markup)[:：>]?|[:：])[ \t*_]*\r?\n(?:[ \t\r]*\n)*",
    re.MULTILINE | re.IGNORECASE,
)
_ITEM = re.compile(
    r"^(?P<indent>[ \t]*)(?:(?P<open>\()?(?P<number>\d{1,9})(?(open)\)|[.)])|[-*+•●◦▪‣·–—])[ \t]+(?=\S)", re.MULTILINE
)
_ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'/]+))""")
# what names a document: attributes of its tag, or keys of its JSON object
_NAMING = ("title", "name", "id", "doc_id", "document_id", "index", "number", "source", "url", "file")
_LIST = re.compile(r"\[\s*(?=\{)|^[ \t]*\[\s*(?=\")", re.MULTILINE)
_ONLY_JSON = re.compile(r'[\s{\[]*("[^"\n]*"\s*:\s*)?[\s\[]*')  # the text before a list that is the whole text
_LISTS_TRIED = 64  # brackets of a text that may begin a JSON list of documents

Span = tuple[str, int, int]  # name, start, end in characters
Region = tuple[str, tuple[float, float, float, float]]  # name, (left, top, right, bottom) in pixels


def parts_of(kind: str, text: str, tokens: Sequence[Token]) -> tuple[TextPart, ...]:
    """Return the parts that `kind` names (one of KINDS, or a file), as ranges of tokens; all other tokens form a last part.

    A token belongs to the part that holds its last character, a token of a picture to the region that holds the middle of
    its box. Raises AttnctlError if spans overlap, are not in the text, or cannot be read, UsageError if the text has no
    such parts, no token has a place in it, or there are more than limits.SPANS.
    """
    owners = _owners(kind, text, tokens)
    others = [token for index, token in zip(owners.of_tokens, tokens, strict=True) if index < 0]
    of_picture = any(token.is_patch for token in tokens)
    rest = SPECIAL if all(token.special for token in others) and not of_picture else REST
    parts = (*owners.parts(), *([TextPart(rest, owners.ranges()[-1])] if others else []))
    if len(parts) > limits.SPANS:
        raise UsageError(f"{len(parts)} parts are too many for a matrix of them: at most {limits.SPANS}")
    return parts


def named_parts(kind: str, text: str, tokens: Sequence[Token]) -> tuple[TextPart, ...]:
    """Return the parts of `parts_of` without the other tokens, however many there are. Raises the same errors."""
    return _owners(kind, text, tokens).parts()


class _Owners(NamedTuple):
    """The number of the part that each token belongs to, -1 for none, and the name of each part."""

    of_tokens: Sequence[int]
    names: Sequence[str]

    def parts(self) -> tuple[TextPart, ...]:
        """Return the parts that hold tokens."""
        ranges = self.ranges()
        return tuple(TextPart(name, ranges[part]) for part, name in enumerate(self.names) if part in ranges)

    def ranges(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Return part → its ranges of tokens."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        start = 0
        for end in range(1, len(self.of_tokens) + 1):
            if end == len(self.of_tokens) or self.of_tokens[end] != self.of_tokens[start]:
                ranges.setdefault(self.of_tokens[start], []).append((start, end))
                start = end
        return {part: tuple(places) for part, places in ranges.items()}


def _owners(kind: str, text: str, tokens: Sequence[Token]) -> _Owners:
    """Return which part each token belongs to. Raises the same errors as `parts_of`."""
    if (regions := _regions_of(kind, tokens)) is not None:
        return _region_owners(regions, tokens, named=kind not in KINDS)
    if not stand_in_text(tokens):
        why = "these are parts of the text, and none of these tokens stands in it"
        raise UsageError(why, option="spans", value=kind)
    if kind == WORDS:
        return _word_owners(text, tokens)
    spans = sorted(spans_of(kind, text), key=lambda span: span[1:])
    for (name, _, end), (next_name, start, _) in pairwise(spans):
        if start < end:
            raise AttnctlError(
                f"the spans {name!r} and {next_name!r} overlap at character {start}: each character has one part"
            )
    owner = list(span_owners(spans, tokens))
    used = set(owner)
    for index, (name, start, end) in enumerate(spans):
        if index not in used and kind not in KINDS:
            raise AttnctlError(f"the span {name!r}, characters {start} to {end}, holds no token of the text")
    return _Owners(owner, [name for name, _, _ in spans])


def _word_owners(text: str, tokens: Sequence[Token]) -> _Owners:
    """Return the word that each token belongs to: whole words, without special tokens and white space."""
    owner = [-1] * len(tokens)
    names: list[str] = []
    for group in word_groups(tokens, text):
        word = joined_word([tokens[index] for index in group], text)
        if not word.special and word.start is not None and word.text.strip():
            for index in group:
                owner[index] = len(names)
            names.append(word.text)
    return _Owners(owner, names)


def _regions_of(kind: str, tokens: Sequence[Token]) -> list[Region] | None:
    """Return the regions of a picture that `kind` names: nine for "regions", or a file's; None for spans of a text."""
    if kind == REGIONS:
        pictures = {token.picture: None for token in tokens if token.is_patch}
        if not pictures:
            why = f"they are parts of a picture, and none of these tokens stands in one (see {option_name('image')})"
            raise UsageError(why, option="spans", value=kind)
        return [region for number in pictures for region in _nine_regions(tokens, number)]
    rows = [] if kind in KINDS else _rows_of_file(kind)
    if not rows or "left" not in rows[0]:
        return None
    regions = []
    for number, row in enumerate(rows):
        name = str(row.get("name") or f"region {number}")[: limits.SPAN_NAME_CHARACTERS]
        try:
            left, top, right, bottom = (float(row[side]) for side in ("left", "top", "right", "bottom"))
        except (KeyError, ValueError, TypeError):
            raise AttnctlError(f"{kind}: region {number} ({name}) needs left, top, right, bottom in pixels") from None
        if not (left < right and top < bottom):
            raise AttnctlError(
                f"{kind}: region {number} ({name}) is empty: left must be less than right, top less than bottom"
            )
        regions.append((name, (left, top, right, bottom)))
    return regions


def _nine_regions(tokens: Sequence[Token], picture: int | None) -> Iterator[Region]:
    """Yield three rows of three regions over the boxes of one of several pictures, or of the only picture (None)."""
    boxes = [token.box for token in tokens if token.box is not None and token.is_patch and token.picture == picture]
    left, top = (float(min(box[side_index] for box in boxes)) for side_index in (0, 1))
    wide, high = (max(box[2] for box in boxes) - left) / 3, (max(box[3] for box in boxes) - top) / 3
    called = "" if picture is None else f"picture {picture} "
    for y, line in enumerate(("upper", "middle", "lower")):
        for x, side in enumerate(("left", "middle", "right")):
            name = called + f"{line} {side}".replace("middle middle", "middle")
            yield name, (left + wide * x, top + high * y, left + wide * (x + 1), top + high * (y + 1))


def _is_within(box: tuple[float, ...], region: tuple[float, ...]) -> bool:
    """Return whether the middle of a box lies in a region: (left, top, right, bottom) each."""
    return all(region[side] <= (box[side] + box[side + 2]) / 2 < region[side + 2] for side in (0, 1))


def _region_owners(regions: Sequence[Region], tokens: Sequence[Token], named: bool) -> _Owners:
    """Return the region that each token belongs to. Raises the same errors as `parts_of`.

    Raises AttnctlError if a region that a user has `named` holds no token.
    """
    owner: list[int] = []
    for token in tokens:
        indices = (
            []
            if token.box is None or not token.is_patch
            else [index for index, (_, box) in enumerate(regions) if _is_within(token.box, box)]
        )
        if len(indices) > 1:
            names = " and ".join(repr(regions[index][0]) for index in indices[:2])
            raise AttnctlError(f"the regions {names} overlap at {token.text}: each token has one part")
        owner.append(indices[0] if indices else -1)
    if set(owner) == {-1}:
        raise UsageError("no token of a picture lies in these regions")
    if named and (empty := sorted(set(range(len(regions))) - set(owner))):
        name, box = regions[empty[0]]
        where = ", ".join(f"{side:g}" for side in box)
        raise AttnctlError(
            f"the region {name!r}, {where}, holds the middle of no token's box: the picture may end before it"
        )
    return _Owners(owner, [name for name, _ in regions])


def box_of(ranges: Iterable[tuple[int, int]], tokens: Sequence[Token]) -> tuple[int, int, int, int] | None:
    """Return the smallest box around the boxes of the tokens in these ranges; None if no token has a box."""
    boxes = [token.box for a, b in ranges for token in tokens[a:b] if token.box is not None and token.is_patch]
    if not boxes:
        return None
    left, top, right, bottom = zip(*boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)


def stand_in_text(tokens: Sequence[Token]) -> bool:
    """Return whether any of these tokens has a position in the text, or all are special."""
    ordinary = [token for token in tokens if not token.special]
    return not ordinary or any(token.start is not None for token in ordinary)


def span_owners(spans: Sequence[Span], tokens: Sequence[Token]) -> Iterator[int]:
    """Yield for each token the index of the span that holds it, or -1."""
    index = 0
    for token in tokens:
        # special tokens have no place in the text; a token may begin with the white space before it
        if token.special or token.start is None or token.end is None:
            yield -1
            continue
        place = token.end - 1
        while index < len(spans) and spans[index][2] <= place:
            index += 1
        yield index if index < len(spans) and spans[index][1] <= place else -1


def spans_of(kind: str, text: str) -> list[Span]:
    """Return the spans that `kind` names, in characters. Raises the same errors as `parts_of`."""
    if kind == "paragraphs":
        ranges = [m.span() for m in re.finditer(r"\S(?:.|\n(?![ \t\r]*\n))*", text)]
        return [_numbered(number, text, a, b) for number, (a, b) in enumerate(ranges)]
    if kind == "lines":
        edges = [0, *(m.end() for m in re.finditer("\n", text)), len(text) + 1]
        lines = [(number, a, b - 1) for number, (a, b) in enumerate(pairwise(edges), 1) if text[a : b - 1].strip()]
        return [_numbered(number, text, a, b) for number, a, b in lines]
    if kind == SENTENCES:
        return [_numbered(number, text, a, b) for number, (a, b) in enumerate(sentence_spans(text))]
    if kind == WORDS:
        return [(text[a:b], a, b) for a, b in word_spans(text)]
    if kind in ("headings", "documents"):
        return _marked_spans(kind, text)
    if kind == REGIONS:
        why = f"they are parts of a picture: give it with {option_name('image')}"
        raise UsageError(why, option="spans", value=kind)
    return _read_spans(kind, text)


def _numbered(number: int, text: str, start: int, end: int) -> Span:
    """Return the span of characters [start, end), named by its number and its text; what shows a name cuts it."""
    return f"{number} {' '.join(text[start:end].split())}", start, end


def _marked_spans(kind: str, text: str) -> list[Span]:
    """Return the spans from each heading or marker to the next; text before the first marker is a span of its own."""
    if kind == "documents":
        if items := _json_documents(text):
            return items
        marks = _document_marks(text)
        if len(marks) < 2 and (items := _listed_documents(text)):
            return items
        names = [_marked_name(mark, number) for number, mark in enumerate(marks)]
    else:
        marks = list(_HEADING.finditer(text))
        names = [mark[1].strip() for mark in marks]
    if not marks:
        forms = "“Document 1: …”, [name] or <document>, or items of a JSON list, or of a list after “Documents:”"
        description = "lines that begin with #" if kind == "headings" else f"lines that begin with {forms}"
        raise UsageError(f"the text has no {kind}: they are {description} (any text has paragraphs)")
    return _with_text_before(
        [(name, a, b) for name, (a, b) in zip(names, pairwise([*(m.start() for m in marks), len(text)]), strict=True)],
        text,
    )


def _with_text_before(spans: list[Span], text: str) -> list[Span]:
    """Return the spans after a span of the text before them, if that text is not blank."""
    start = spans[0][1]
    return [(BEFORE, 0, start), *spans] if text[:start].strip() else spans


def _document_marks(text: str) -> list[re.Match[str]]:
    """Return the marks of documents in a text: of the first form with several, else of the first that the text has."""
    by_form = [list(form.finditer(text)) for form in _DOCUMENT_MARKS]
    return next((marks for least in (2, 1) for marks in by_form if len(marks) >= least), [])


def _marked_name(mark: re.Match[str], number: int) -> str:
    """Return the name of a marked document; `number` is its place among the documents."""
    groups = mark.groupdict()
    if groups.get("noun"):
        noun = groups["noun"].lower()
        return f"{'document' if noun == 'doc' else noun} {groups['number']}"
    if groups.get("name"):
        return _document_name(groups["name"].strip() or number)
    pairs = _ATTRIBUTE.findall(groups.get("attributes") or "")
    return _document_name(_naming_value({key.lower(): a or b or c for key, a, b, c in pairs}, number))


def _naming_value(fields: Document, number: int) -> object:
    """Return the value of the first field that names a document; `number` without one."""
    values = (fields.get(key) for key in _NAMING)
    return next((v for v in values if isinstance(v, str | int) and not isinstance(v, bool) and str(v).strip()), number)


def _document_name(value: object) -> str:
    """Return the name of a document: its first words, or "document 7" for a number."""
    name = str(value).strip()
    return f"document {name}" if name.isdecimal() else first_words(name)


def _listed_documents(text: str) -> list[Span]:
    """Return the items of the first bulleted or numbered list of several behind a line such as "Documents:"; [] without one.

    Lines that are indented further than the marks belong to an item, others only if an earlier item has such lines too. The
    text before the list and the text after it are spans of their own.
    """
    for heading in _LIST_HEADING.finditer(text):
        first = _ITEM.match(text, heading.end())
        if first is None:
            continue
        margin = rf"[ \t]{{0,{len(first['indent'])}}}(?=\S)"
        line, paragraph = re.compile(rf"\n{margin}"), re.compile(rf"\n[ \t\r]*\n{margin}")
        # what ends a list: a paragraph outside it, or a line such as "Rules:"
        next_list = re.compile(rf"\n[ \t\r]*\n{margin}|\n{margin}[^\n]*[:：][ \t\r*_]*\n")
        marks = [first]
        for mark in _ITEM.finditer(text, first.end()):
            if len(mark["indent"]) > len(first["indent"]):
                continue  # an item of a list inside an item
            if (mark["number"] is None) != (first["number"] is None):
                break
            numbered = mark["number"] is not None and int(mark["number"]) == int(marks[-1]["number"]) + 1
            if not numbered and (mark["number"] or next_list.search(text, marks[-1].end(), mark.start())):
                break
            marks.append(mark)
        if len(marks) < 2:
            continue
        inner = [(a.end(), b.start() - 1) for a, b in pairwise(marks)]
        outside = next(
            (form for form in (line, paragraph) if not any(form.search(text, *place) for place in inner)), None
        )
        behind = None if outside is None else outside.search(text, marks[-1].end())
        end = len(text) if behind is None else behind.end()
        names = [_document_name(mark["number"] or number) for number, mark in enumerate(marks)]
        edges = pairwise([*(mark.start() for mark in marks), end])
        spans = _with_text_before([(name, a, b) for name, (a, b) in zip(names, edges, strict=True)], text)
        return [*spans, (AFTER, end, len(text))] if text[end:].strip() else spans
    return []


def _json_documents(text: str) -> list[Span]:
    """Return the items of the first JSON list of several objects, or of several texts, in a text; [] without one.

    The text before the list and the text after it are spans of their own.
    """
    for mark in islice(_LIST.finditer(text), _LISTS_TRIED):
        decoder, position, items = json.JSONDecoder(), mark.end(), list[tuple[object, int, int]]()
        try:
            while True:
                value, end = decoder.raw_decode(text, position)
                items.append((value, position, end))
                comma = re.compile(r"\s*,\s*").match(text, end)
                if comma is None:
                    break
                position = comma.end()
        except (ValueError, RecursionError):
            continue
        closing = re.compile(r"\s*\]").match(text, end)
        if closing is None or len(items) < 2 or len({type(value) for value, _, _ in items}) > 1:
            continue
        named = [
            _naming_value(value, number) if isinstance(value, dict) else number
            for number, (value, _, _) in enumerate(items)
        ]
        spans = [(_document_name(name), start, end) for name, (_, start, end) in zip(named, items, strict=True)]
        rest = closing.end()
        behind = [(AFTER, rest, len(text))] if text[rest:].strip(" \t\r\n}]") else []
        is_whole = _ONLY_JSON.fullmatch(text[: spans[0][1]]) is not None
        return [*(spans if is_whole else _with_text_before(spans, text)), *behind]
    return []


def first_words(text: str) -> str:
    """Return the first words of a text, as the name of a part."""
    return shortened(" ".join(text[:120].split()), 48, close=True)


# --- a file of spans ---------------------------------------------------------------------------------------------


def _rows_of_file(path: str) -> list[Document]:
    """Return the rows of a .json list of objects, or of a .csv or .tsv. Raises UsageError if `path` names no file."""
    from attnctl.runtime.files import decode_text, read_bytes

    if "." not in path and "/" not in path:
        kinds = f"{', '.join(KINDS)}, or a file (.json, .csv) of name, start, end"
        raise UsageError(f"it is {kinds}", option="spans", value=path)
    data = decode_text(read_bytes(path, limits.SPANS_BYTES), path)
    return _json_rows(data, path) if data.lstrip()[:1] in ("[", "{") else _table_rows(data, path)


def _read_spans(path: str, text: str) -> list[Span]:
    """Return the spans of a file of {name, start, end}; start and end in characters."""
    rows = _rows_of_file(path)
    spans = []
    for number, row in enumerate(rows):
        name = str(row.get("name") or f"span {number}")
        if len(name) > limits.SPAN_NAME_CHARACTERS:
            raise AttnctlError(
                f"{path}: the name of span {number} has {len(name):,} characters: {limits.SPAN_NAME_CHARACTERS:,} at most"
            )
        try:
            start, end = _character_count(row["start"]), _character_count(row["end"])
        except (KeyError, ValueError):
            raise AttnctlError(
                f"{path}: span {number} ({name}) needs start and end, whole numbers of characters"
            ) from None
        if not 0 <= start < end <= len(text):
            raise AttnctlError(
                f"{path}: the span {name!r} is characters {start} to {end}, but the text has characters 0 to {len(text)}"
            )
        spans.append((name, start, end))
    if not spans:
        raise AttnctlError(f"{path} holds no spans")
    return spans


def _character_count(value: object) -> int:
    """Return a whole number of JSON or of a table cell. Raises ValueError for anything else: 1.5, true, "1_0"."""
    if isinstance(value, str):
        return limits.whole_number(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value


def _json_rows(data: str, path: str) -> list[Document]:
    from attnctl.runtime.files import parse_json

    rows = parse_json(data, path)
    rows = rows.get("spans") if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise AttnctlError(f"{path} is not a list of spans: each is an object with name, start and end")
    return rows


def _table_rows(data: str, path: str) -> list[Document]:
    data = data.replace("\r\n", "\n").replace("\r", "\n")
    mark = "\t" if "\t" in data.split("\n", 1)[0] else ","
    try:
        rows = list(csv.DictReader(io.StringIO(data), delimiter=mark))
    except csv.Error as error:
        raise AttnctlError(f"{path} is not a table: {in_one_line(error)}") from error
    if rows and not ({"start", "end"} <= rows[0].keys() or "left" in rows[0]):
        raise AttnctlError(f"{path} needs the columns name, start, end in its first line")
    return rows
