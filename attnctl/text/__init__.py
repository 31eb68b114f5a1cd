"""Show text from outside safely in a terminal, and briefly."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Document = dict[str, Any]  # a JSON object; its arrays may be NumPy's when it is written

LABEL_CHARACTERS = 1000  # of a token or a title that are read to show it: no line holds more
PASTED_CHARACTERS = 250  # of a quoted word: `errors.print_complaint` cuts a word of 300 characters
_PICTURES = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421, 0x20: 0x2423}


def visible_text(text: str) -> str:
    """Return a token as it may safely appear in a terminal: control characters as symbols, a lone space as ␣.

    Terminal escapes, direction overrides and invisible characters become visible and have no effect.
    """
    if text.isprintable() and text.strip():
        return text
    if text.isspace() or not text:
        return "".join(_visible_symbol(char, lone=True) for char in text) or "∅"
    return "".join(_visible_symbol(char) for char in text)


def _visible_symbol(char: str, lone: bool = False) -> str:
    code = ord(char)
    if code == 0x20:
        return "␣" if lone else " "
    if code in _PICTURES:
        return chr(_PICTURES[code])
    if lone and char.isspace():  # a space that would be invisible
        return _code_escape(code)
    if code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF:  # noncharacters: XML must not contain them
        return _code_escape(code)
    if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs") and char not in ("\u200c", "\u200d"):
        return _code_escape(code)
    return char


def _code_escape(code: int) -> str:
    """Return a character as its number: four digits after u, or eight after U, as in Python."""
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain_letters(word: str) -> str:
    """Return a word without its accents: Jose for José."""
    if word.isascii():
        return word
    return "".join(letter for letter in unicodedata.normalize("NFKD", word) if not unicodedata.combining(letter))


def shortened(text: str, max_length: int, close: bool = False) -> str:
    """Return a text of at most `max_length` characters; … replaces the end of a longer text; `close`: no space before it."""
    if len(text) <= max_length:
        return text
    beginning = text[: max_length - 1]
    return f"{beginning.rstrip() if close else beginning}…"


def quoted_beginning(text: str) -> str:
    """Return a text in quotes, at most 59 characters and …, on one line, as Python shows a string."""
    return repr(shortened(text, 60))


def bare_word(text: str) -> str:
    """Return a predicted word for a sentence, in quotes and without spaces around it."""
    return f"“{visible_text(text.strip() or text)}”"


def for_pasting(text: str) -> str:
    """Return one word of a command that users paste into a shell, quoted if needed.

    A text that is so long that the message may be cut inside the quotes becomes '…'.
    """
    from shlex import quote

    word = quote(text)
    return word if len(word) <= PASTED_CHARACTERS else "'…'"


def value_text(value: object, quoted: bool = False, max_length: int = 40) -> str:
    """Return a value for a message, in at most `max_length` characters; `quoted`: a string in quotes, as in Python.

    An empty string, or one of several words, is always in quotes.
    """
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"of {int(abs(value).bit_length() * math.log10(2)) + 1} digits"
    if isinstance(value, str | os.PathLike):
        word = shortened(os.fspath(value), max_length)
        return repr(word) if quoted or not re.fullmatch(r"[^\s'\"]+", word) else word
    return f"{value:g}" if isinstance(value, float) else shortened(str(value), max_length)


def counted(count: int, noun: str) -> str:
    """Return a count and its noun, singular for one: "1 token", "2,000 tokens"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def either(names: Sequence[str], last: str = " or ") -> str:
    """Return several names for a sentence, with `last` before the last one: a, b or c."""
    *first, end = names
    return f"{', '.join(first)}{last}{end}" if first else end


def percent(share: float, decimals: int = 0) -> str:
    """Return a share in percent: 91 %, with one decimal 90.7 %."""
    return f"{100 * share:.{decimals}f} %"


def sentence_percent(share: float | None) -> str:
    """Return a share for a sentence: 80 %, and below 10 % with two digits: 8.1 %, 0.034 %, 5.3e-7 %."""
    if share is None:
        return "·"
    return percent(share) if not share or share >= 0.0995 else f"{100 * share:#.2g} %".replace("e-0", "e-")


def number_text(value: float, precision: int, tiny: bool = False) -> str:
    """Return a number with `precision` decimals; never "-0.00"; in powers of ten if it is large or `tiny`."""
    if abs(value) >= 1e6 or tiny:
        return f"{value:.{precision}e}"
    return without_sign_of_zero(f"{value:.{precision}f}")


def without_sign_of_zero(number: str) -> str:
    """Return a written number; one that rounded to 0 without its sign: 0.00 for -0.00 and +0.00."""
    return number if float(number) else number.lstrip("+-")


def number_list(numbers: Iterable[int]) -> str:
    """Return numbers for a sentence, shortened: 0, 1, 2, … 31."""
    names = [str(number) for number in numbers]
    return ", ".join(names if len(names) <= 8 else [*names[:3], "…", names[-1]]) or "none"


def in_a_cell(text: str) -> str:
    """Return a token as a cell of a text table: as `visible_text`, and never a formula for a spreadsheet.

    A longer text that begins with =, +, - or @ gets an apostrophe; the sign alone is not a formula.
    """
    cell = visible_text(text)
    return f"'{cell}" if len(cell) > 1 and cell[0] in "=+-@＝＋－＠" else cell


def csv_table(
    heading: Iterable[str], rows: Iterable[Iterable[object]], digits: int | None = None, delimiter: str = ","
) -> str:
    """Return CSV: text as `in_a_cell`, None as an empty cell, a float with this number of `digits` (None: all)."""
    import csv
    import io

    def cell(value: object) -> object:
        if digits and isinstance(value, float):
            return f"{value:.{digits}g}"
        return in_a_cell(value) if isinstance(value, str) and value else value

    page = io.StringIO()
    writer = csv.writer(page, delimiter=delimiter, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(map(cell, row) for row in rows)
    return page.getvalue()


def harmless_text(text: str) -> str:
    """Return text of any length as it may safely be written: as `visible_text`, but line ends, tabs and spaces stay."""
    return "\n".join(map(_harmless_part, text.split("\n")))


def _harmless_part(line: str) -> str:
    if line.isprintable():  # of a long text nearly every line is
        return line
    return "".join(char if char == "\t" else _visible_symbol(char) for char in line)


_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_ISOLATE = re.compile("(\u2068[^\u2066-\u2069\n]*\u2069)")


def isolated(text: str) -> str:
    """Return the text in isolating marks if it has right-to-left letters, so that the numbers beside it keep their place."""
    return f"\u2068{text}\u2069" if _RIGHT_TO_LEFT.search(text) else text


def harmless_line(text: str, change: Callable[[str], str] = harmless_text) -> str:
    """Return the text changed by `change`. Text in the marks of `isolated` keeps them; single marks are removed."""
    if "\u2068" not in text and "\u2069" not in text:
        return change(text)
    parts = _ISOLATE.split(text)
    return "".join(
        f"\u2068{change(part[1:-1])}\u2069" if index % 2 else change(re.sub("[\u2068\u2069]", "", part))
        for index, part in enumerate(parts)
    )


# UTF-8 bytes that JSON allows unescaped and a terminal may obey: DEL, C1 controls, format characters
_OBEYED = re.compile(
    rb"\x7f|\xc2[\x80-\x9f\xad]|\xd8\x9c|\xe1\xa0\x8e|\xe2\x80[\x8b\x8e\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]"
    rb"|\xef\xbb\xbf|\xef\xbf[\xb9-\xbb]|\xf3\xa0[\x80-\x81][\x80-\xbf]"
)


def as_json(document: object) -> bytes:
    """Return one line of JSON, NumPy arrays included, that reads back as `document`; it cannot control a terminal.

    Halves of surrogate pairs, which file names may hold and JSON cannot, become visible. Raises TypeError for a value that
    JSON cannot hold.
    """
    import orjson

    try:
        data = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        if "surrogate" not in str(error):
            raise
        whole = every_string(document, lambda text: text.encode(errors="backslashreplace").decode())
        data = orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)
    if not data.isascii() or b"\x7f" in data:
        data = _OBEYED.sub(_escaped_bytes, data)
    return data


def every_string(document: object, change: Callable[[str], str]) -> object:
    """Return a document of dicts, lists and tuples with every string, keys too, changed by `change`."""
    if isinstance(document, str):
        return change(document)
    if isinstance(document, dict):
        return {every_string(key, change): every_string(value, change) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [every_string(part, change) for part in document]
    return document


def _escaped_bytes(match: re.Match[bytes]) -> bytes:
    units = match.group().decode().encode("utf-16-be")
    return b"".join(b"\\u%04x" % int.from_bytes(units[index : index + 2], "big") for index in range(0, len(units), 2))


def spoken_range(noun: str, count: int) -> str:
    """Return the range of indices for a message: layers 0 to 29, head 0 only."""
    return f"no {noun}s" if count == 0 else f"{noun} 0 only" if count == 1 else f"{noun}s 0 to {count - 1}"


def spoken_heads(heads: Mapping[int, Iterable[int]]) -> str:
    """Return heads for a note: 23.3, 0.5."""
    return ", ".join(f"{layer}.{head}" for layer, several in heads.items() for head in several)


def duration_text(seconds: float) -> str:
    """Return a duration in words: 40 s, 12 min, 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 else f"{seconds / 3600:,.0f} h"
