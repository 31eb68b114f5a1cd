"""The heatmap as a picture: the right colours in the right cells, labels that can be read, the same bytes every time."""

from __future__ import annotations

import dataclasses
import io
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib import colormaps, font_manager
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import BboxImage, imread
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from attnctl.errors import AttnctlError
from attnctl.formats.pictures import Look
from attnctl.formats.pictures import figure_bytes as image
from attnctl.layer import LayerTrace
from attnctl.models import open_model
from attnctl.render.figure import heatmap as drawings
from attnctl.render.figure import labels
from attnctl.render.figure.drawing import number_outline
from attnctl.render.figure.heatmap import figure_of_trace as heatmap
from attnctl.render.figure.labels import Labels
from attnctl.render.figure.layout import Drawing
from attnctl.render.page import page_colours
from attnctl.source import record_trace
from attnctl.source.zoom import read_heatmap
from attnctl.text.tokens import Token, split_characters
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.subject import Subject

TEXT = "Alice will eat pizza because the antidisestablishmentarian chef lives in Naples , and Bob likes it ."
WORDS = TEXT.split()


def words(n: int) -> str:
    return " ".join(WORDS[k % len(WORDS)] for k in range(n))


def trace_of(text: str, layers: int = 1, heads: int = 1, **how: Any) -> Trace:
    return record_trace(open_model("random", n_layers=layers, n_heads=heads, d_model=24, d_k=4, **how), text)


def matrix(weights: Any, names: list[str] | None = None, mask: Any = None) -> Trace:
    array = np.asarray(weights, dtype=np.float32)
    tokens = tuple(Token(name) for name in names or map(str, range(array.shape[1])))
    layer = LayerTrace(0, (0,), (0,), weights=array[None], mask=mask)
    return Trace(Subject("", tokens, ModelInfo("m", "matrix", n_heads=1, n_layers=1)), (layer,))


def draw(trace: Trace, **how: Any) -> Drawing:
    drop = how.pop("drop", ())
    chosen = {name: how.pop(name) for name in ("layers", "heads", "renormalise") if name in how}
    reading = read_heatmap(trace, drop=(drop,) if isinstance(drop, str) else drop, **chosen)
    return drawings.draw_heatmap(reading, Look(**how))


def pixels(figure: Figure) -> Any:
    return imread(io.BytesIO(image(figure, "png")))[..., :3]  # (height, width, 3)


def cell_of(figure: Figure, weights: Any, i: int, j: int, panel: int = 0) -> tuple[int, int, int, int]:
    """Where a cell stands in the picture: middle (down, across) and half its sides, in pixels."""
    box = figure.findobj(BboxImage)[panel].get_window_extent()
    n_q, n_k = weights.shape[-2:]
    w, h = box.width / n_k, box.height / n_q
    return int(figure.bbox.y1 - box.y1 + (i + 0.5) * h), int(box.x0 + (j + 0.5) * w), int(h / 2), int(w / 2)


@pytest.mark.parametrize("log", [False, True])
def test_every_cell_has_the_colour_of_its_weight(log: bool) -> None:
    trace = trace_of(words(4), layers=2, heads=3)
    figure = draw(trace, log=log, dpi=100, values=False, cmap="viridis").figure
    picture = pixels(figure)
    weights = np.stack([layer.weights for layer in trace.layers])  # (layers, heads, n, n)
    scale = LogNorm(weights.min(), weights.max()) if log else Normalize(0, weights.max())
    for (layer, head, i, j), weight in np.ndenumerate(weights):
        y, x, _, _ = cell_of(figure, weights, i, j, 3 * layer + head)
        assert np.abs(picture[y, x] - colormaps["viridis"](float(scale(weight)))[:3]).max() < 0.02


def test_a_picture_has_the_colours_of_the_page() -> None:
    """Zero is near white in both; each stop of the page's map is where the picture has it, evenly apart."""
    stops = page_colours()["maps"]["heat"]["light"]
    figure = draw(matrix(np.linspace(0, 1, len(stops))[None].repeat(len(stops), 0)), dpi=100, values=False).figure
    picture = pixels(figure)
    for j, stop in enumerate(stops):
        y, x, _, _ = cell_of(figure, np.ones((len(stops), len(stops))), 3, j)
        wanted = [int(stop[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        assert np.abs(picture[y, x][:3] - wanted).max() < 0.02


def test_masked_cells_are_not_zeros() -> None:
    mask = np.tri(4, dtype=bool)
    figure = draw(matrix(np.eye(4), mask=mask), values=False).figure
    picture = pixels(figure)
    for i, j in np.ndindex(4, 4):
        y, x, h, w = cell_of(figure, mask, i, j)
        cell = picture[y - h * 2 // 3 : y + h * 2 // 3, x - w * 2 // 3 : x + w * 2 // 3].reshape(-1, 3)
        if mask[i, j]:
            assert np.ptp(cell, axis=0).max() == 0  # one flat colour
        else:
            assert cell.min() > 0.75 and np.ptp(cell, axis=0).max() > 0.05  # light, hatched, without hue
            assert np.ptp(cell, axis=1).max() < 0.02


def test_queries_go_down_and_keys_across_where_there_are_more_of_one() -> None:
    trace = matrix(np.full((1, 3), 1 / 3), ["a", "b", "c"]).about(
        tokens=(Token("asks"),), key_tokens=tuple(map(Token, "xyz"))
    )
    texts = {text.get_text(): text for text in heatmap(trace).texts}
    assert texts["x"].get_position()[0] < texts["y"].get_position()[0] < texts["z"].get_position()[0]
    assert texts["asks"].get_position()[0] < texts["x"].get_position()[0]
    assert texts["x"].get_position()[1] > texts["asks"].get_position()[1]
    assert {"query", "key", "weight"} <= texts.keys()


@pytest.mark.parametrize(("n", "layers", "heads"), [(1, 1, 1), (9, 1, 1), (60, 1, 1), (200, 1, 1), (10, 3, 5)])
def test_labels_are_large_enough_and_do_not_touch(n: int, layers: int, heads: int) -> None:
    figure = heatmap(trace_of(words(n), layers, heads))
    assert min(text.get_fontsize() for text in figure.texts) >= 5.5
    page = figure.bbox
    boxes: dict[float, list[Any]] = {}
    for text in figure.texts:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page.x1 and box.y1 <= page.y1, text.get_text()
        if text.get_rotation() != 45:  # whose boxes overlap, though the letters do not
            boxes.setdefault(text.get_rotation(), []).append((text.get_text(), box.shrunk(0.98, 0.8)))
    if len(boxes[0]) < 300:
        for group in boxes.values():
            for at, (name, box) in enumerate(group):
                for other, beside in group[at + 1 :]:
                    assert not box.overlaps(beside), (name, other)


EMOJI = "I ❤️ 🍕 👨‍👩‍👧‍👦 👍🏽 🇫🇷 and naïve café"


@pytest.mark.parametrize(
    ("text", "how", "look"),
    [
        (EMOJI, {}, {}),
        (EMOJI, {}, {"dpi": 50}),
        (EMOJI, {}, {"size": (9, 2.5)}),
        (EMOJI, {"heads": 4}, {"size": (6, 5), "font_size": 20}),
        ("Alice will eat pizza", {"heads": 4}, {"font_size": 30}),
        ("Alice will eat pizza", {"causal": True}, {"size": (6, 5), "font_size": 20}),
    ],
)
def test_letters_of_any_size_stay_in_the_picture_and_apart(text: str, how: Any, look: Any) -> None:
    figure = heatmap(trace_of(text, **how), **look)
    boxes = [(part.get_text(), part.get_window_extent()) for part in figure.texts if part.get_rotation() != 45]
    least = 0.02 * figure.dpi  # pixels
    for name, box in boxes:
        room = min(box.x0, box.y0, figure.bbox.x1 - box.x1, figure.bbox.y1 - box.y1)
        assert room > least, (name, room / figure.dpi)
    for index, (name, box) in enumerate(boxes):
        for other, beside in boxes[index + 1 :]:
            across, down = (
                min(getattr(box, high), getattr(beside, high)) - max(getattr(box, low), getattr(beside, low))
                for low, high in (("x0", "x1"), ("y0", "y1"))
            )
            assert min(across, down) < least, (name, other)


def test_values_stand_where_they_fit_and_are_asked_for() -> None:
    def numbers(n: int = 5, layers: int = 1, heads: int = 1, **how: Any) -> bool:
        """Whether there is more in the picture than without them."""
        trace = trace_of(words(n), layers, heads)
        drawn, without = (heatmap(trace, **one) for one in (how, {"values": False}))
        return len(drawn.get_children()) > len(without.get_children())

    assert numbers() and not numbers(n=70) and numbers(n=70, values=True)
    assert not numbers(10, 3, 4) and numbers(10, 3, 4, values=True)  # a thousand are left out unless asked for


def test_the_outline_of_a_number_is_that_of_the_font() -> None:
    own = Path(*number_outline("0.94")).get_extents()
    box = TextPath((0, 0), "0.94", size=100, prop=font_manager.FontProperties(family=labels.BASE)).get_extents()
    assert abs(own.width * 100 - box.width) < 1 and abs(own.height * 100 - box.height) < 1
    assert abs(own.x0 + own.x1) < 0.1 and abs(own.y0 + own.y1) < 0.1  # about the origin


def test_titles_and_names() -> None:
    def texts(n: int = 4, **how: Any) -> list[str]:
        return [text.get_text() for text in heatmap(trace_of(words(n), 2, 3), **how).texts]

    assert texts()[:2] == ["Alice will eat pizza", "random, layers 0–1, heads 0–2"]
    assert {"head 0", "head 1", "head 2", "layer 0", "layer 1"} <= set(texts())
    assert texts(layer=[1], head=[2])[1] == "random, layer 1, head 2"
    assert texts(title="Mine $x$")[:2] == ["Mine $x$", "key"]
    assert texts(title="")[0] == "key"
    said = texts(drop="first", renormalise=True, log=True)[2]
    assert said == "key “Alice” (0) left out; rows rescaled to sum to 1; colours on a logarithmic scale"
    assert any(text.startswith("key (every ") for text in texts(200))  # not every one is named


def test_a_long_sentence_is_cut_to_the_width_of_the_picture() -> None:
    trace = trace_of(words(3)).about(text="Alice\n will " + words(2000))
    for how in ({}, {"size": (3.0, 3.0)}):
        figure = heatmap(trace, **how)
        title = figure.texts[0]
        assert title.get_text().startswith("Alice will Alice") and title.get_text().endswith("…")
        assert title.get_window_extent().x1 <= figure.bbox.x1
    hostile = trace_of(words(3)).about(text="$x^2$ \x1b[31m \u202edrow ☃")
    assert heatmap(hostile).texts[0].get_text() == "$x^2$ \\x1b[31m \\u202edrow ☃"
    assert [text.get_text() for text in heatmap(hostile.about(text=" \n")).texts][0].startswith("random,")


def test_a_measured_head_bears_its_role() -> None:
    trace = record_trace(open_model("demo"), "Alice will eat pizza")
    roles = {(layer, head): role for layer, head, role in reversed(trace.model.finds or ())}
    texts = [text.get_text() for text in heatmap(trace).texts]
    for layer in trace.layers:
        for head in layer.heads:
            name = max((text for text in texts if text.split(" ")[0] == f"{layer.layer}.{head}"), key=len)
            role = roles.get((layer.layer, head), "")
            shown = name.partition(" ")[2].removesuffix("…")
            assert role.startswith(shown) if shown else not role
    assert heatmap(trace, layer=[1], head=[0]).texts[1].get_text() == "demo, layer 1, head 0: verb → subject"
    narrow = {text.get_text() for text in heatmap(trace, size=(6, 3)).texts}
    assert any(name.startswith("1.4 pre") and name.endswith("…") for name in narrow)


SINK = np.full((6, 6), 0.05, np.float32)
SINK[:, 0] = 0.75


@pytest.mark.parametrize("mask", [None, np.tri(6, dtype=bool)], ids=["all", "causal"])
def test_a_sink_is_told_under_the_panels(mask: Any) -> None:
    figure = heatmap(matrix(SINK, mask=mask))
    panel = figure.findobj(BboxImage)[0].get_window_extent()
    below = [text for text in figure.texts if text.get_window_extent().y1 < panel.y0 and text.get_text() != "masked"]
    said = " ".join(text.get_text() for text in below)
    assert said.startswith("The first column, which stands out, is a sink: ") and said.endswith(
        "drop='first' or log=True."
    )
    boxes = [text.get_window_extent() for text in figure.texts if text.get_window_extent().y1 < panel.y0]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in boxes)
    assert not any(box.overlaps(other) for at, box in enumerate(boxes) for other in boxes[at + 1 :])
    dropped = [text.get_text() for text in heatmap(matrix(SINK, mask=mask), drop=("first",)).texts]
    assert any("key “0” (0) left out" in text for text in dropped) and not any("sink" in text for text in dropped)
    assert draw(matrix(SINK, mask=mask), size=(2.2, 2.0)).figure.bbox.height == 2.0 * 200  # no room, no refusal


@pytest.mark.parametrize(
    ("shape", "how"),
    [((1, 1), {}), ((2, 9), {}), ((9, 2), {}), ((6, 6), {"causal": True}), ((6, 6), {"size": (4, 3)}), ((30, 9), {})],
    ids=str,
)
def test_the_colour_bar_is_as_high_as_the_panels(shape: tuple[int, int], how: dict[str, Any]) -> None:
    if shape == (30, 9):
        trace = trace_of(words(3), layers=30, heads=9)
    else:
        causal = np.tri(*shape, dtype=bool) if how.pop("causal", False) else None
        trace = matrix(np.full(shape, 1 / shape[1]), mask=causal)
        trace = trace.about(
            tokens=tuple(map(Token, map(str, range(shape[0])))),
            key_tokens=tuple(map(Token, "abcdefghi"[: shape[1]])),
        )
    *panels, bar = [image.get_window_extent() for image in heatmap(trace, **how).findobj(BboxImage)]
    assert abs(bar.y1 - max(box.y1 for box in panels)) < 1 and abs(bar.y0 - min(box.y0 for box in panels)) < 1


def test_the_same_bytes_whatever_the_users_settings(tmp_path: pathlib.Path) -> None:
    (tmp_path / "matplotlibrc").write_text(
        "font.family: serif\nsavefig.bbox: tight\nsavefig.transparent: True\naxes.facecolor: red\nsvg.fonttype: none\n"
        "text.parse_math: False\nimage.interpolation: bicubic\nfont.size: 20\nhatch.color: red\npdf.compression: 0\n"
    )
    code = (
        "import hashlib; from attnctl.models import open_model; from attnctl.source import record_trace\n"
        "from attnctl.formats.pictures import figure_bytes\n"
        "t = record_trace(open_model('random', causal=True), 'Alice will eat pizza 日')\n"
        "print(*(hashlib.sha256(figure_bytes(t.figure(), form)).hexdigest() for form in ('png', 'svg', 'pdf')))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env=dict(os.environ) | more, capture_output=True, text=True, check=True
        ).stdout
        for more in ({"SOURCE_DATE_EPOCH": "1"}, {"MATPLOTLIBRC": str(tmp_path), "PYTHONHASHSEED": "7"})
    }
    assert len(seen) == 1 and len(seen.pop().split()) == 3


def test_letters_and_colours_as_asked() -> None:
    trace = trace_of(words(5))
    assert pixels(draw(trace, size=(5, 4), dpi=50).figure).shape == (200, 250, 3)
    sizes = {round(text.get_fontsize(), 2) for text in draw(trace, font_size=7).figure.texts}
    assert sizes <= {8.4, 6.3, 7, 6.5, 5.95} and 7 in sizes
    narrow = {text.get_fontsize() for text in draw(trace, size=(3.25, 3)).figure.texts}
    assert max(narrow) <= 1.7 * min(narrow)  # at the width of a column, titles and labels agree
    assert "weight" not in {text.get_text() for text in draw(trace, colorbar=False).figure.texts}
    assert draw(trace, colorbar=False).figure.bbox.width < draw(trace).figure.bbox.width
    said = [text.get_text() for text in draw(trace, vmin=0.1, vmax=0.2).figure.texts]
    assert "all above 0.2 and all below 0.1 in one colour" in said
    assert draw(trace, vmax=0.1).figure.texts  # clipped, not refused


def test_unknown_words_and_blank_tokens_are_marked() -> None:
    trace = matrix(np.eye(3), ["a", " ", "\u2003"])
    tokens = (dataclasses.replace(trace.tokens[0], unknown=True), *trace.tokens[1:])
    texts = [text.get_text() for text in draw(trace.about(tokens=tokens)).figure.texts]
    assert {"a†", "␣", "\\u2003"} <= set(texts) and "† not among the words the model knows" in texts


def test_what_has_no_weights_is_not_drawn_and_what_is_all_0_or_negative_is() -> None:
    drawn = matrix(np.zeros((2, 2)))
    assert heatmap(drawn).texts and heatmap(matrix([[-1, 1], [0, 1]])).texts
    for how, says in (({"layers": [4]}, "layer 4 is not in this trace"), ({"heads": [4]}, "head 4 of layer 0 is not")):
        with pytest.raises(AttnctlError, match=says):
            draw(drawn, **how)
    with pytest.raises(AttnctlError, match="not finite"):
        heatmap(matrix([[np.nan, 1], [0, 1]]))
    with pytest.raises(AttnctlError, match="png, .svg or .pdf"):
        image(heatmap(drawn), "gif")
    with pytest.raises(AttnctlError, match="holds no weights"):
        heatmap(dataclasses.replace(drawn, layers=(LayerTrace(0, (0,), (0,)),)))


# --- letters -----------------------------------------------------------------------------------------------------


def test_hostile_tokens_are_drawn_as_themselves() -> None:
    texts = {text.get_text() for text in heatmap(matrix(np.eye(4), ["$x$", "\x1b[31m", "<b>&", "\n"])).texts}
    assert {"$x$", "\\x1b[31m", "<b>&", "\\n"} <= texts
    for form in ("png", "svg", "pdf"):
        assert image(heatmap(matrix(np.eye(2), ["$\\frac{$", "\ufffe\ue000"])), form)


def without_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has DejaVu Sans alone."""
    monkeypatch.setattr(labels, "_family_with", lambda char, eastern: None)
    monkeypatch.setattr(labels, "_list_new_fonts", lambda: False)


def test_a_character_that_no_font_has_is_never_a_box(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fonts(monkeypatch)
    drawing = draw(matrix(np.eye(3), ["日本", "é", "ok"]))
    texts = {text.get_text() for text in drawing.figure.texts}
    assert {"U+65E5 U+672C", "é", "ok"} <= texts
    label = Labels(["日"]).axis_label("日" * 9 + "†")
    assert label == "U+65E5-E5…-E5†"  # cut, and still an unknown word
    (note,) = drawing.notes
    assert "U+65E5" in note and "no installed font" in note and "(install Noto Sans CJK)" in note
    assert image(drawing.figure, "png")  # matplotlib would warn of a missing glyph, and a warning is an error here


@pytest.mark.parametrize(
    ("words", "font", "longest"),
    [
        ("สวัสดี สวัสดิ์ สวัสดิการ สวัส กิน", "Noto Sans Thai", 13),
        ("สวัสดี สวัสดิ์ กิน กิน27 กิน-27 กินก27", "Noto Sans Thai", 18),
        ("ខ្ញុំ ខ្ញី ខ្ញុំនិង ភាសា ភាសារ", "Noto Sans Khmer", 18),
        ("தமிழ் தமிழன் தமிழா தமி", "Noto Sans Tamil", 18),
    ],
)
def test_words_that_no_font_can_draw_differ(
    words: str, font: str, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were cut to two codes of the same block, U+0E2A U+0E27…, and the note named no font."""
    without_fonts(monkeypatch)
    drawn = Labels([words])
    names = [drawn.axis_label(word, longest) for word in words.split()]
    assert len(set(names)) == len(names) and all(len(name) <= longest for name in names), names
    assert all(name.startswith(f"U+{ord(word[0]):04X}") for name, word in zip(names, words.split(), strict=True))
    assert f"({font})" in drawn.missing_characters[0].replace("install ", "")


def test_a_font_that_was_installed_after_matplotlib_listed_all_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """matplotlib keeps its list of fonts in a file: whoever installed the font that the note names saw codes again."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen, char = TTGlyphPen(None), "\U0001e290"  # of Toto, which few fonts have
    for place, move in zip(((0, 0), (0, 500), (500, 500)), (pen.moveTo, pen.lineTo, pen.lineTo), strict=True):
        move(place)
    pen.closePath()
    glyph, builder = pen.glyph(), FontBuilder(1000)
    builder.setupGlyphOrder([".notdef", "letter"])
    builder.setupCharacterMap({ord(char): "letter"})
    builder.setupGlyf({".notdef": glyph, "letter": glyph})
    builder.setupHorizontalMetrics({".notdef": (600, 0), "letter": (600, 0)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Later Sans", "styleName": "Regular"})
    builder.setupOS2(usWeightClass=400)
    builder.setupPost()
    builder.save(tmp_path / "later.ttf")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [*font_manager.fontManager.ttflist])
    for cached in (labels._family_with, labels._font_families, labels._list_new_fonts):
        cached.cache_clear()
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    assert Labels([char]).missing == [char]
    labels._list_new_fonts.cache_clear()  # the next process
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(tmp_path / "later.ttf")])
    drawn = Labels([char])
    assert drawn.missing == [] and drawn.family == [labels.BASE, "Later Sans"] and drawn.axis_label(char) == char
    for cached in (labels._family_with, labels._font_families, labels._list_new_fonts):
        cached.cache_clear()


def test_right_to_left_words_are_shaped() -> None:
    labels = Labels(["שלום", "مرحبا"])
    assert labels.axis_label("مرحبا") == "مرحبا" and labels.missing_characters == ()
    isolated = sum(labels.text_width(letter, 10) for letter in "مرحبا")
    assert labels.text_width("مرحبا", 10) < 0.9 * isolated  # joined letters are narrower


def test_long_labels_are_abridged_between_characters() -> None:
    shaped = Labels(["e\u0301" * 40])
    long = "ab" * 50_000 + "cdefgh"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "attnctl.render.figure.labels.split_characters",
            lambda text: pytest.fail("all of it is split") if len(text) > 2000 else split_characters(text),
        )
        assert shaped.axis_label(long) == "abababababa…cdefgh"
    cut = shaped.cut_to_width("m" * 50_000, 10.0, 2.0)
    assert shaped.text_width(cut, 10.0) <= 2.0 < shaped.text_width(f"{cut[:-1]}m…", 10.0)
    label = shaped.axis_label("e\u0301" * 40)
    assert "…" in label and "…\u0301" not in label and len(label) <= 2 * labels.LONGEST_LABEL
    assert shaped.axis_label("3 The licenses for most software…") == "3 The licenses fo…"  # cut at its end, again there
    assert shaped.broken_lines("one two three", 10, 0.6) == ["one two", "three"]
