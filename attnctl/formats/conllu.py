"""Read CoNLL-U one sentence at a time: check it and find its words in its text.

Format: universaldependencies.org/format.html.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import IO, NamedTuple

from attnctl.checks import limits
from attnctl.errors import AttnctlError, in_one_line
from attnctl.text import Document

LEFT_OUT = dict.fromkeys(("lemma", "feats", "deps"), lambda line, index: None)  # columns that attnctl does not read

FAILED_FIELD = re.compile(r"Failed parsing field '(\w+)': '(.*)' is not", re.DOTALL)  # an error of the conllu library

ENTITY_PARTS = "eid-etype-head-other"  # of a file without # global.Entity = …
BRACKET = re.compile(r"\(([^()]+)(\))?|([^()]+)\)")
PIECE = re.compile(r"(.+)\[(\d{1,9})/(\d{1,9})\]")  # a mention in several pieces: e3[1/2]

Row = Document  # a line of a sentence, its columns by their names
Node = tuple[str, int | None]  # Entity or "", and the word's number from 0, or None for an empty node


@dataclass(frozen=True)
class Mention:
    """Words `first` to `last` (inclusive, from 0) that refer to an entity; `head` is the main word among them."""

    entity: str
    first: int
    last: int
    head: int


class BadSentenceError(AttnctlError):
    """A sentence that cannot be used: `reason: detail`. There are few reasons, so that they can be counted."""


@dataclass(frozen=True)
class ParsedSentence:
    """A sentence and its dependency tree; words count from 0, spans are characters of `text`."""

    text: str
    spans: tuple[tuple[int, int], ...]
    forms: tuple[str, ...]
    tags: tuple[str, ...]  # UPOS, otherwise XPOS, otherwise ""
    heads: tuple[int, ...]  # -1 for the root
    relations: tuple[str, ...]
    mentions: tuple[Mention, ...] = ()
    half: str | None = None  # the half of a corpus in two parts


def joined_sentences(sentences: Sequence[ParsedSentence]) -> ParsedSentence:
    """Return several sentences as one text with spaces between them: their mentions are kept, their trees are not."""
    spans, mentions, start, words = [], [], 0, 0
    for sentence in sentences:
        spans += [(start + a, start + b) for a, b in sentence.spans]
        mentions += [
            Mention(mention.entity, words + mention.first, words + mention.last, words + mention.head)
            for mention in sentence.mentions
        ]
        start, words = start + len(sentence.text) + 1, words + len(sentence.forms)
    return ParsedSentence(
        " ".join(sentence.text for sentence in sentences),
        tuple(spans),
        tuple(form for sentence in sentences for form in sentence.forms),
        tuple(tag for sentence in sentences for tag in sentence.tags),
        (-1,) * words,
        ("root",) * words,
        tuple(mentions),
        sentences[0].half,
    )


@dataclass(frozen=True)
class Block:
    """The lines of a sentence in a file; `line` is the number of the first line, `error` says what is wrong."""

    line: int
    lines: tuple[str, ...] = ()
    error: str | None = None

    @property
    def sentence_id(self) -> str | None:
        """Return the value of `# sent_id`."""
        return comment_value(self.lines, "sent_id")


def _comments(lines: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the comments of a sentence, `# key = value`; the value is None without "="."""
    for line in lines:
        if line.startswith("#"):
            name, equals, value = line[1:].partition("=")
            yield name.strip(), value.strip() if equals else None


def comment_value(lines: Iterable[str], key: str) -> str | None:
    """Return the value of the first comment with this key."""
    return next((value for name, value in _comments(lines) if name == key and value is not None), None)


def document_begun(lines: Iterable[str]) -> str | None:
    """Return the id of the document that begins here (`# newdoc id = …`), "" without an id; None if no document begins."""
    return next((value or "" for name, value in _comments(lines) if name.split()[:1] == ["newdoc"]), None)


def sentence_blocks(file: IO[bytes]) -> Iterator[Block]:
    """Yield the sentences of a file as lines; blocks of comments alone (# newdoc, licences) are skipped."""
    number, start = 0, 1
    lines: list[str] = []
    error: str | None = None

    def finished_block() -> Iterator[Block]:
        block_lines = tuple(line for line in lines if line)
        if error is not None or any(not line.startswith("#") for line in block_lines):
            yield Block(start, block_lines, error)

    while raw := file.readline(limits.CONLLU_LINE_BYTES):
        number += 1
        if len(raw) == limits.CONLLU_LINE_BYTES and not raw.endswith(b"\n"):
            _skip_line(file, number)
            error, raw = error or f"too long: line {number} has more than {limits.CONLLU_LINE_BYTES >> 20} MB", b"-\n"
        if not raw.strip(b" \t\r\n"):
            yield from finished_block()
            lines, error, start = [], None, number + 1
            continue
        if len(lines) >= limits.SENTENCE_LINES:
            error = error or f"too long: more than {limits.SENTENCE_LINES:,} lines"
            continue
        if error is None:
            try:
                lines.append(raw.removeprefix(b"\xef\xbb\xbf").decode().rstrip("\r\n"))
            except UnicodeDecodeError as failure:
                error = f"not UTF-8: byte 0x{raw[failure.start]:02x} in line {number}"
    yield from finished_block()


def _skip_line(file: IO[bytes], number: int) -> None:
    """Read on to the end of a line. Raises AttnctlError if it does not end."""
    skipped = 0
    while (piece := file.readline(limits.CONLLU_LINE_BYTES)) and not piece.endswith(b"\n"):
        skipped += len(piece)
        if skipped > limits.ENDLESS_BYTES:
            size = limits.bytes_text(limits.ENDLESS_BYTES)
            raise AttnctlError(f"line {number} does not end within {size}: this is not a treebank")


class TreebankPart(NamedTuple):
    """A sentence of a treebank, or nothing if it has an `error`; or the sentences of a document that mentions entities."""

    line: int  # the number of its first line
    id: str | None
    sentences: list[ParsedSentence]
    error: str | None = None
    is_document: bool = False


def treebank_parts(file: IO[bytes], half_comment: str | None = None) -> Iterator[TreebankPart]:
    """Yield each sentence of a file, and after the sentences of a document (`# newdoc`) that mentions entities all of them.

    Single sentences of a document have no mentions. `half_comment` is the key of the comment that names the half of a
    sentence.
    """
    entity_parts, document, words = "", None, 0
    parts: list[TreebankPart] = []  # sentences of the document
    for block in sentence_blocks(file):
        value, document_id = comment_value(block.lines, "global.Entity"), document_begun(block.lines)
        entity_parts = entity_parts if value is None else value
        if document_id is not None or words >= limits.DOCUMENT_WORDS:
            yield from _whole_document(document, parts)
            document, parts, words = document if document_id is None else document_id, [], 0
        try:
            parsed = parsed_sentence(block, entity_parts)
        except BadSentenceError as error:
            yield TreebankPart(block.line, block.sentence_id, [], str(error))
            continue
        half = None if half_comment is None else comment_value(block.lines, half_comment)
        part = TreebankPart(block.line, block.sentence_id, [replace(parsed, half=half)])
        if document is not None:
            parts.append(part)
            words += len(parsed.forms)
            part = part._replace(sentences=[replace(part.sentences[0], mentions=())])
        yield part
    yield from _whole_document(document, parts)


def _whole_document(name: str | None, parts: Sequence[TreebankPart]) -> Iterator[TreebankPart]:
    """Yield the sentences of a document as one part if they mention entities."""
    sentences = [part.sentences[0] for part in parts]
    if any(sentence.mentions for sentence in sentences):
        yield TreebankPart(parts[0].line, name or None, sentences, is_document=True)


def parsed_sentence(block: Block, entity_parts: str = "") -> ParsedSentence:
    """Return the sentence of a block. Raises BadSentenceError, with the line, if it cannot be used.

    `entity_parts` is the value of `# global.Entity` in the file: the parts of a mention.
    """
    if block.error is not None:
        raise BadSentenceError(block.error)
    tokens = _parsed_lines(block)
    words = [token for token in tokens if isinstance(token["id"], int)]
    if not words:
        raise BadSentenceError("no words: the sentence is empty")
    for number, word in enumerate(words, 1):
        if word["id"] != number:
            raise BadSentenceError(f"word numbers: {word['id']} instead of {number}")
    heads = _word_heads(words)
    text, spans = _word_spans(block, tokens, words)
    tags = [word["upos"] if word["upos"] != "_" else word["xpos"] or "" for word in words]
    nodes: list[Node] = []  # words and empty nodes, with their Entity
    for token in tokens:
        is_word = isinstance(token["id"], int)
        if is_word or token["id"][1] == ".":
            nodes.append((_misc_value(token, "Entity") or "", token["id"] - 1 if is_word else None))
    return ParsedSentence(
        text,
        tuple(spans),
        tuple(word["form"] for word in words),
        tuple(tags),
        tuple(heads),
        tuple(word["deprel"] for word in words),
        mentions_of(nodes, heads, entity_parts),
    )


def _parsed_lines(block: Block) -> list[Row]:
    """Return the lines of words, multi-word tokens and empty nodes, read by the conllu library."""
    import conllu
    from conllu.exceptions import ParseException

    rows: list[Row] = []
    for number, line in enumerate(block.lines, block.line):
        if line.startswith("#"):
            continue
        columns = line.count("\t") + 1
        if columns != 10:
            has = f"{columns} column{'s' * (columns != 1)}"
            raise BadSentenceError(f"no CoNLL-U: line {number} has {has} instead of 10: {_shown_line(line)}")
        try:
            token = conllu.parse_token_and_metadata(line, field_parsers=LEFT_OUT | {"misc": operator.getitem})[0]
        except (ParseException, ValueError) as error:  # ValueError: a number with thousands of digits
            field = FAILED_FIELD.search(str(error))
            reason = in_one_line(error, 80) if field is None else f"{field[1]} cannot be {_shown_line(field[2])}"
            raise BadSentenceError(f"no CoNLL-U: line {number}: {reason}") from error
        if token["id"] is None or not token["form"]:
            raise BadSentenceError(f"no CoNLL-U: line {number} has no {'number' if token['id'] is None else 'form'}")
        rows.append(token)
    return rows


def _shown_line(line: str) -> str:
    from attnctl.text import visible_text

    return repr(visible_text(line[:40]))


def _misc_value(token: Row, key: str) -> str | None:
    """Return the value of KEY=VALUE in the last column."""
    misc = token.get("misc") or "_"
    return next((part[len(key) + 1 :] for part in misc.split("|") if part.startswith(f"{key}=")), None)


def _word_heads(words: Sequence[Row]) -> list[int]:
    """Return each word's head, from 0, -1 for the root. Raises BadSentenceError if they are not a tree."""
    heads = []
    for number, word in enumerate(words, 1):
        head, relation = word["head"], word["deprel"]
        if head is None or relation in (None, "_", ""):
            raise BadSentenceError(f"no tree: word {number} has no {'head' if head is None else 'relation'}")
        if not 0 <= head <= len(words):
            raise BadSentenceError(f"head out of range: word {number} of {len(words)} has the head {head}")
        heads.append(head - 1)
    roots = heads.count(-1)
    if roots != 1:
        raise BadSentenceError(f"{'no root' if not roots else 'several roots'}: {roots} words have the head 0")
    try:
        TopologicalSorter({word: (head,) for word, head in enumerate(heads)}).prepare()
    except CycleError as error:
        raise BadSentenceError(f"cycle: word {min(error.args[1]) + 1} is its own head, through other heads") from error
    return heads


def _word_spans(block: Block, tokens: Sequence[Row], words: Sequence[Row]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text and the span of each word in it; words that do not spell their multi-word token share its span."""
    surface = _surface_forms(tokens)
    text = comment_value(block.lines, "text")
    if text is None:
        text = "".join(form + space for form, space, _ in surface).rstrip()
    spans: list[tuple[int, int]] = []
    after = 0
    for form, _, count in surface:
        start, end = _find_form(text, form, after)
        after = end
        parts = [word["form"] for word in words[len(spans) : len(spans) + count]]
        if text[start:end] == "".join(parts):
            for part in parts:
                spans.append((start, start + len(part)))
                start += len(part)
        else:
            spans += [(start, end)] * count
    if text[after:].strip():
        raise BadSentenceError(
            f"not aligned: # text continues with {_shown_line(text[after:].strip())} after the last word"
        )
    return text, spans


def _surface_forms(tokens: Sequence[Row]) -> list[tuple[str, str, int]]:
    """Return what is written: (form, the space behind it, its number of words). Empty nodes are not written."""
    forms: list[tuple[str, str, int]] = []
    inside = 0  # words still to come of a multi-word token
    for token in tokens:
        number = token["id"]
        if isinstance(number, int):
            if inside:
                inside -= 1
                continue
            count = 1
        elif number[1] == "-":
            if inside or (last := number[2]) < number[0]:
                raise BadSentenceError(f"word numbers: the range {number[0]}-{number[2]} lies in another")
            count = inside = last - number[0] + 1
        else:
            continue
        forms.append((token["form"], "" if _misc_value(token, "SpaceAfter") == "No" else " ", count))
    if inside:
        raise BadSentenceError("word numbers: a range ends after the last word")
    return forms


def _find_form(text: str, form: str, after: int) -> tuple[int, int]:
    """Return the span of the next occurrence of a form in the text; white space in either may be of any kind and length."""
    while after < len(text) and text[after].isspace():
        after += 1
    if text.startswith(form, after):
        return after, after + len(form)
    position = after
    for char in form:
        if char.isspace():
            continue
        while position < len(text) and text[position].isspace():
            position += 1
        if position >= len(text) or text[position] != char:
            raise BadSentenceError(
                f"not aligned: {_shown_line(form)} does not match # text, which continues with {_shown_line(text[after:])}"
            )
        position += 1
    return after, position


def mentions_of(nodes: Sequence[Node], heads: Sequence[int], parts: str = "") -> tuple[Mention, ...]:
    """Return the mentions that open and close within a sentence, in the order of their heads.

    `nodes` are the words and empty nodes in order, `heads` the words' heads, -1 for the root. Brackets that do not open or
    close, mentions without all their pieces, and mentions whose head is an empty node (a zero) are left out.
    """
    names = (parts or ENTITY_PARTS).split("-")
    opened: dict[str, list[tuple[int, str]]] = {}  # by name: the node where a bracket opens, and the number of its head
    # by entity, for mentions that are not complete: the nodes of each piece, and the number of the head
    pieces: dict[str, list[tuple[range, str]]] = {}
    mentions: dict[tuple[str, int], Mention] = {}
    for index, (value, _) in enumerate(nodes):
        for begins, closed, ends in BRACKET.findall(value):
            values = dict(zip(names, begins.split("-"), strict=False))
            name = values.get("eid", begins) if begins else ends.split("-")[0]
            if begins:
                opened.setdefault(name, []).append((index, values.get("head", "")))
            if (begins and not closed) or not opened.get(name):
                continue
            first, head_number = opened[name].pop()
            piece = PIECE.fullmatch(name)
            entity, number, count = (piece[1], int(piece[2]), int(piece[3])) if piece else (name, 1, 1)
            complete = pieces.get(entity, []) if number > 1 else []
            if len(complete) != number - 1:
                continue
            complete = [*complete, (range(first, index + 1), head_number)]
            if number < count:
                pieces[entity] = complete
                continue
            pieces.pop(entity, None)
            mention = _mention_over(
                entity, list(chain(*(nodes_of_piece for nodes_of_piece, _ in complete))), complete[0][1], nodes, heads
            )
            if mention is not None:
                mentions[entity, mention.head] = mention
    return tuple(sorted(mentions.values(), key=lambda mention: (mention.head, mention.first)))


def _mention_over(
    entity: str, indices: list[int], head_number: str, nodes: Sequence[Node], heads: Sequence[int]
) -> Mention | None:
    """Return the mention over some nodes; its head is the one that the corpus names, or the first with a head outside."""
    words = [word for index in indices if (word := nodes[index][1]) is not None]
    if not words:
        return None
    number = int(head_number) if head_number.isdecimal() and len(head_number) < 10 else 0
    if 1 <= number <= len(indices):
        head = nodes[indices[number - 1]][1]
    else:
        inside = set(words)
        head = next((word for word in sorted(inside) if heads[word] not in inside), words[-1])
    return None if head is None else Mention(entity, words[0], words[-1], head)
