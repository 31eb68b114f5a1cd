"""Write labels of pictures: choose fonts that have the characters, shorten, break and measure text."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from matplotlib import font_manager
from matplotlib.backends.backend_agg import get_hinting_flag

from attnctl.formats.pictures import DPI
from attnctl.text import LABEL_CHARACTERS, visible_text
from attnctl.text.tokens import split_characters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "DejaVu Sans"  # ships with matplotlib: the same on every machine
_LAST_RESORT = "Last Resort"  # draws a box for every character, which must not happen
_INVISIBLE = frozenset("\u200c\u200d\ufe0e\ufe0f")
_hinting: Any = get_hinting_flag  # which has no types
LONGEST_LABEL = 18  # characters of a label
# of characters that no font has: those side by side with the same beginning have their last two digits (U+0E2A-27)
_CODE = re.compile(r"U\+[0-9A-F]{4,6}|-[0-9A-F]{2}|[^\s-]+|-|\s")
# first word of a character's name in Unicode: the scripts that one of Noto's fonts is named after
_EASTERN = re.compile("CJK|HIRAGANA|KATAKANA|HANGUL|BOPOMOFO")
_SCRIPTS = re.compile(
    "ARABIC|ARMENIAN|BALINESE|BENGALI|CHEROKEE|DEVANAGARI|ETHIOPIC|GEORGIAN|GUJARATI|GURMUKHI|HEBREW|JAVANESE|KANNADA|KHMER|"
    "LAO|MALAYALAM|MONGOLIAN|MYANMAR|ORIYA|SINHALA|SUNDANESE|SYRIAC|TAMIL|TELUGU|THAANA|THAI|TIFINAGH|YI"
)


class Labels:
    """Texts of a picture, made drawable: `family` lists the fonts to use, `missing` the characters that no font has.

    `dpi` is that of the picture.
    """

    def __init__(self, texts: Iterable[str], dpi: float = DPI) -> None:
        self.dpi = dpi
        characters_met = {char for text in texts if not text.isascii() for char in _escaped_text(text)}
        unmet = sorted(char for char in characters_met if not _font_has(BASE, char) and char not in _INVISIBLE)
        eastern = _eastern_region(characters_met)
        families = {char: _family_with(char, eastern) for char in unmet}
        if None in families.values() and _list_new_fonts():
            families = {char: _family_with(char, eastern) for char in unmet}
        self.missing = [char for char in unmet if families[char] is None]
        self.family = [BASE, *sorted({family for family in families.values() if family})]
        self._ignored = {c for c in characters_met & _INVISIBLE if not any(_font_has(f, c) for f in self.family)}

    @property
    def missing_characters(self) -> tuple[str, ...]:
        """Return a note about the characters that no installed font has; empty if there are none."""
        if not self.missing:
            return ()
        codes = ", ".join(f"{char} U+{ord(char):04X}" for char in self.missing[:6])
        more = f" and {len(self.missing) - 6} more" if len(self.missing) > 6 else ""
        fonts = list(dict.fromkeys(filter(None, map(_font_to_install, self.missing))))
        advice = f"install {', '.join(fonts)}" if fonts else "install a font that has them, such as Noto's"
        return (f"no installed font has {codes}{more}: drawn as code points ({advice})",)

    def drawable(self, text: str) -> str:
        """Return `text` with control characters as escapes and characters that no font has as U+XXXX.

        Of those side by side the later ones have their last two digits alone, so that a word differs from the next one.
        """
        if text.isascii():
            return _escaped_text(text)
        missing = set(self.missing)
        pieces: list[str] = []
        block: int | None = None  # of the code before, to which a code of the same block is joined
        for char in _escaped_text(text):
            if char in missing:
                joined = block == ord(char) >> 8
                pieces.append(f"-{ord(char) & 255:02X}" if joined else f" U+{ord(char):04X}")
                block = ord(char) >> 8
            elif char not in self._ignored and not (missing and char in _INVISIBLE):
                pieces.append(char if block is None else f" {char}")
                block = None
        drawn = "".join(pieces)
        return " ".join(drawn.split()) if missing else drawn

    def axis_label(self, text: str, longest: int = LONGEST_LABEL) -> str:
        """Return `drawable(text)`, cut to `longest` characters: in its middle, never within a code point.

        If `text` ends in an ellipsis, it is cut at its end.
        """
        if len(text) > LABEL_CHARACTERS:  # the middle is not shown
            text = text[: LABEL_CHARACTERS // 2] + text[-LABEL_CHARACTERS // 2 :]
        drawn = self.drawable(text)
        if len(drawn) <= longest:
            return drawn
        if self.missing and "U+" in drawn:
            return _cut_codes(drawn, longest)
        pieces = [drawn[token.start : token.end] for token in split_characters(drawn)]  # never half a character
        if len(pieces) <= longest:
            return drawn
        if drawn.endswith("…"):
            return "".join(pieces[: longest - 1]).rstrip() + "…"
        tail = longest // 3
        return "".join(pieces[: longest - 1 - tail]) + "…" + "".join(pieces[-tail:])

    def text_width(self, text: str, size: float) -> float:
        """Return the width in inches of `text` at `size` points."""
        return _text_width(tuple(self.family), text, size)

    def line_width(self, text: str, size: float) -> float:
        """Return the width in inches of a line, which lies within it at any dots per inch: hinting moves letters.

        Each word of plain text is measured once: many titles share a few words.
        """
        families = tuple(self.family)
        words = [self.words_of_line(text, size, dpi) for dpi in (72.0, self.dpi)] if " " in text else []
        if not words or not words[0]:
            return max(self.text_width(text, size), _drawn_width(families, text, size, self.dpi))
        space = _advance(families, " ", size, 72.0)
        return max(sum(width for _, width in line) for line in words) - space

    def words_of_line(self, text: str, size: float, dpi: float = 72.0) -> list[tuple[str, float]]:
        """Return the words of plain text, each with the inches to the beginning of the next; an empty list for other text.

        Letters are a little wider or narrower at another `dpi`.
        """
        if not text.removesuffix("…").isascii():
            return []
        families = tuple(self.family)
        space = _advance(families, " ", size, dpi)
        return [(word, _advance(families, word, size, dpi) + space) for word in text.split(" ")]

    def cut_to_width(self, text: str, size: float, width: float) -> str:
        """Return `text` cut at its end, with an ellipsis, to `width` inches at `size` points."""
        if len(text) <= 2 or (len(text) <= LABEL_CHARACTERS and self.line_width(text, size) <= width):
            return text
        text = text[:LABEL_CHARACTERS]
        fitting = bisect_left(
            range(2, len(text)), True, key=lambda length: self.line_width(f"{text[:length]}…", size) > width
        )
        return text[: fitting + 1].rstrip() + "…"

    def broken_lines(self, text: str, size: float, width: float) -> list[str]:
        """Return `text` broken between words into lines of at most `width` inches; a word that is too long is cut."""
        lines = [""]
        for word in text.split(" "):
            longer = f"{lines[-1]} {word}".lstrip()
            if lines[-1] and self.line_width(longer, size) > width:
                lines.append(word)
            else:
                lines[-1] = longer
        return [self.cut_to_width(line, size, width) for line in lines]

    def write_line(self, figure: Figure, place: tuple[float, float], text: str, size: float, colour: str) -> None:
        """Write a line in a figure; `place` is where it begins (across, up), as shares of the figure."""
        figure.text(*place, text, fontsize=size, color=colour, va="center", parse_math=False, family=self.family)


def _cut_codes(drawn: str, longest: int) -> str:
    """Return a label with code points, cut between two of them; the last one is kept, as words may begin alike."""
    longest -= 3  # capitals and digits are wider than the letters of a word
    mark = "†" * drawn.endswith("†")
    units = _CODE.findall(drawn.removesuffix("†").rstrip())
    last = units[-1] if units[-1].startswith(("U+", "-")) else ""
    if len(f"{units[0]}…{last}{mark}") > longest:
        last = ""
    room = longest - len(f"…{last}{mark}")
    head = units[0] if units[0].startswith("U+") else units[0][:room]
    for unit in units[1:-1]:
        if len(head) + len(unit) > room:
            break
        head += unit
    return f"{head.rstrip(' -')}…{last}{mark}"


def _font_to_install(char: str) -> str:
    """Return the name of the Noto font for the script of a character; "" for a script that is not listed."""
    script = unicodedata.name(char, "").partition(" ")[0]
    if _EASTERN.fullmatch(script):
        return "Noto Sans CJK"
    return f"Noto Sans {script.title()}" if _SCRIPTS.fullmatch(script) else ""


@lru_cache(maxsize=1)
def _list_new_fonts() -> bool:
    """Add the fonts to matplotlib's list that were installed after it was made, and return whether there are any.

    matplotlib keeps its list in a file and does not look for fonts again: a font that a note named would never be used.
    """
    listed = {font.fname for font in font_manager.fontManager.ttflist}
    added = False
    for path in sorted(set(font_manager.findSystemFonts()) - listed):
        with suppress(OSError, RuntimeError, ValueError):  # FreeType cannot read it
            font_manager.fontManager.addfont(path)
            added = True
    if added:
        _font_families.cache_clear()
        _family_with.cache_clear()
    return added


@lru_cache(maxsize=8192)
def _escaped_text(text: str) -> str:
    """Return the same as `visible_text`, but with control characters as escapes: few fonts have the symbols for them."""
    return "".join(
        repr(chr(ord(char) - 0x2400))[1:-1] if "\u2400" <= char < "\u2420" else char for char in visible_text(text)
    ).replace("\u2421", "\\x7f")


@lru_cache(maxsize=8192)
def _text_width(families: tuple[str, ...], text: str, size: float) -> float:
    font = font_manager.get_font([_font_path(family) for family in families])
    font.set_size(size, 72.0)
    font.set_text(text)
    return float(font.get_width_height()[0]) / 64.0 / 72.0


@lru_cache(maxsize=8192)
def _advance(families: tuple[str, ...], text: str, size: float, dpi: float) -> float:
    """Return how far a text moves the text after it, in inches. Its ink may be narrower, and a space has no ink."""
    return _drawn_width(families, f"0{text}0", size, dpi) - _drawn_width(families, "00", size, dpi)


@lru_cache(maxsize=8192)
def _drawn_width(families: tuple[str, ...], text: str, size: float, dpi: float) -> float:
    """Return the same as `_text_width`, but with the hinting that matplotlib draws with."""
    font = font_manager.get_font([_font_path(family) for family in families])
    font.set_size(size, dpi)
    font.set_text(text, 0.0, flags=_hinting())
    return float(font.get_width_height()[0]) / 64.0 / dpi


@lru_cache(maxsize=256)
def _font_path(family: str) -> str:
    return font_manager.findfont(font_manager.FontProperties(family=family))


@lru_cache(maxsize=8192)
def _font_has(family: str, char: str) -> bool:
    font = font_manager.get_font(_font_path(family))
    return bool(font.get_char_index(ord(char)))


@lru_cache(maxsize=8)
def _font_families(eastern: str) -> tuple[str, ...]:
    """Return every upright family, first those that look best beside the base font."""

    def family_rank(name: str) -> tuple[bool, bool, bool, bool, str]:
        han = " CJK " in name and not name.endswith(eastern)
        return ("Sans" not in name, "Mono" in name, han, not name.startswith("Noto"), name)

    upright = {
        font.name
        for font in font_manager.fontManager.ttflist
        if font.style == "normal" and font.stretch == "normal" and font.weight in (400, "normal", "regular")
    }
    return tuple(
        sorted((name for name in upright if not name.startswith((_LAST_RESORT, "cm", "STIX"))), key=family_rank)
    )


@lru_cache(maxsize=8192)
def _family_with(char: str, eastern: str) -> str | None:
    for family in _font_families(eastern):
        try:
            if _font_has(family, char):
                return family
        except (OSError, RuntimeError, ValueError):  # a font file that was removed, or that FreeType cannot read
            continue
    return None


def _eastern_region(characters_met: set[str]) -> str:
    """Return the region whose Han characters to draw: kana or hangul beside them mean Japan or Korea, otherwise China."""
    if any("\u3040" <= char <= "\u30ff" for char in characters_met):
        return "JP"
    if any("\uac00" <= char <= "\ud7a3" for char in characters_met):
        return "KR"
    return "SC"
