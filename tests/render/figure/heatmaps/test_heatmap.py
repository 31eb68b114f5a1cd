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
from matplotlib.image import imread
from matplotlib.path import Path
from matplotlib.textpath import TextPath

from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.pictures import Look
from attnctl.formats.pictures import figure_bytes as image
from attnctl.layer import LayerTrace, rescaled_rows
from attnctl.models import open_model
from attnctl.readings.traces.trace import ModelInfo, Trace
from attnctl.render.figure import heatmap as drawings
from attnctl.render.figure import labels
from attnctl.render.figure.drawing import Sheet, number_outline
from attnctl.render.figure.heatmap import figure_of_trace as heatmap
from attnctl.render.figure.labels import Labels
from attnctl.render.figure.layout import Drawing, TypeSizes
from attnctl.source import keys_left_out, record_trace
from attnctl.source.cells import read_heatmap
from attnctl.tokens import Token

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
    return Trace("", tokens, ModelInfo("m", "matrix", n_heads=1, n_layers=1), (layer,))


def draw(trace: Trace, **how: Any) -> Drawing:
    drop = how.pop("drop", ())
    chosen = {name: how.pop(name) for name in ("layers", "heads", "renormalise") if name in how}
    reading = read_heatmap(trace, drop=(drop,) if isinstance(drop, str) else drop, **chosen)
    return drawings.draw_heatmap(reading, Look(**how))


@pytest.fixture
def sheets(monkeypatch: pytest.MonkeyPatch) -> list[Sheet]:
    """The sheets drawn during a test, whose plans say where everything stands."""
    made: list[Sheet] = []
    own = Sheet.draw
    monkeypatch.setattr(Sheet, "draw", lambda self: (made.append(self), own(self))[1])
    return made


def pixels(trace: Trace, **how: Any) -> Any:
    return imread(io.BytesIO(image(draw(trace, values=False, **how).figure, "png")))[..., :3]  # (height, width, 3)


def centre(sheet: Sheet, i: int, j: int, panel: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    left, top = sheet.plan.panel_corner(*panel)
    w, h = sheet.plan.cell
    return int((top + (i + 0.5) * h) * sheet.figure.dpi), int((left + (j + 0.5) * w) * sheet.figure.dpi)


@pytest.mark.parametrize("log", [False, True])
def test_every_cell_has_the_colour_of_its_weight(log: bool, sheets: list[Sheet]) -> None:
    trace = trace_of(words(6), layers=2, heads=3)
    picture = pixels(trace, log=log, dpi=100)
    weights = np.stack([layer.weights for layer in trace.layers])  # (layers, heads, n, n)
    scale = LogNorm(weights.min(), weights.max()) if log else Normalize(0, weights.max())
    for (layer, head, i, j), weight in np.ndenumerate(weights):
        seen = picture[centre(sheets[0], i, j, (layer, head))]
        assert np.abs(seen - colormaps["viridis"](float(scale(weight)))[:3]).max() < 0.02


def test_masked_cells_are_not_zeros(sheets: list[Sheet]) -> None:
    mask = np.tri(4, dtype=bool)
    picture = pixels(matrix(np.eye(4), mask=mask))
    w, h = (int(side * 200) for side in sheets[0].plan.cell)
    for i, j in np.ndindex(4, 4):
        y, x = centre(sheets[0], i, j)
        cell = picture[y - h // 3 : y + h // 3, x - w // 3 : x + w // 3].reshape(-1, 3)
        if mask[i, j]:
            assert np.ptp(cell, axis=0).max() == 0  # one flat colour
        else:
            assert cell.min() > 0.75 and np.ptp(cell, axis=0).max() > 0.05  # light, hatched, without hue
            assert np.ptp(cell, axis=1).max() < 0.02


def test_queries_go_down_and_keys_across_where_there_are_more_of_one() -> None:
    trace = dataclasses.replace(
        matrix(np.full((1, 3), 1 / 3), ["a", "b", "c"]), tokens=(Token("asks"),), key_tokens=tuple(map(Token, "xyz"))
    )
    texts = {text.get_text(): text for text in heatmap(trace).texts}
    assert texts["x"].get_position()[0] < texts["y"].get_position()[0] < texts["z"].get_position()[0]
    assert texts["asks"].get_position()[0] < texts["x"].get_position()[0]
    assert texts["x"].get_position()[1] > texts["asks"].get_position()[1]
    assert {"query", "key", "weight"} <= texts.keys()


@pytest.mark.parametrize(
    ("n", "layers", "heads"),
    [(1, 1, 1), (2, 1, 1), (9, 1, 1), (20, 1, 1), (60, 1, 1), (200, 1, 1), (10, 6, 12), (40, 1, 7)],
)
def test_labels_are_large_enough_and_do_not_touch(n: int, layers: int, heads: int, sheets: list[Sheet]) -> None:
    figure = heatmap(trace_of(words(n), layers, heads))
    plan = sheets[0].plan
    assert min(plan.queries.size, plan.keys.size) >= TypeSizes().smallest
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


def test_thinned_labels_say_so() -> None:
    texts = {text.get_text() for text in heatmap(trace_of(words(200))).texts}
    assert any(text.startswith("key (every ") for text in texts)


def test_values_stand_where_they_fit(sheets: list[Sheet]) -> None:
    def paths(**how: Any) -> int:
        return len(heatmap(trace_of(words(how.pop("n", 5))), **how).get_children())

    assert paths() > paths(values=False)
    assert paths(n=70) == paths(n=70, values=False)
    assert paths(n=70, values=True) > paths(n=70)


def test_the_outline_of_a_number_is_that_of_the_font() -> None:
    own = Path(*number_outline("0.94")).get_extents()
    box = TextPath((0, 0), "0.94", size=100, prop=font_manager.FontProperties(family=labels.BASE)).get_extents()
    assert abs(own.width * 100 - box.width) < 1 and abs(own.height * 100 - box.height) < 1
    assert abs(own.x0 + own.x1) < 0.1 and abs(own.y0 + own.y1) < 0.1  # about the origin


def test_titles_and_names() -> None:
    def texts(**how: Any) -> list[str]:
        return [text.get_text() for text in heatmap(trace_of(words(4), 2, 3), **how).texts]

    assert texts()[0] == "random, layers 0–1, heads 0–2"
    assert {"head 0", "head 1", "head 2", "layer 0", "layer 1"} <= set(texts())
    assert texts(layer=[1], head=[2])[0] == "random, layer 1, head 2"
    assert texts(title="Mine $x$")[0] == "Mine $x$"
    assert texts(title="")[0] == "key"
    said = texts(drop="first", renormalise=True, log=True)[1]
    assert said == "key “Alice” (0) left out; rows rescaled to sum to 1; colours on a logarithmic scale"


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_the_same_bytes_whatever_the_users_settings(form: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "matplotlibrc").write_text(
        "font.family: serif\nsavefig.bbox: tight\nsavefig.transparent: True\naxes.facecolor: red\nsvg.fonttype: none\n"
        "text.parse_math: False\nimage.interpolation: bicubic\nfont.size: 20\nhatch.color: red\npdf.compression: 0\n"
    )
    code = (
        "import sys, hashlib; from attnctl.models import open_model; from attnctl.source import record_trace\n"
        "from attnctl.formats.pictures import figure_bytes\n"
        "t = record_trace(open_model('random', causal=True), 'Alice will eat pizza 日')\n"
        f"print(hashlib.sha256(figure_bytes(t.figure(), {form!r})).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env=dict(os.environ) | more, capture_output=True, text=True, check=True
        ).stdout
        for more in ({"SOURCE_DATE_EPOCH": "1"}, {"MATPLOTLIBRC": str(tmp_path), "PYTHONHASHSEED": "7"})
    }
    assert len(seen) == 1


def test_size_and_dpi() -> None:
    picture = pixels(trace_of(words(5)), size=(5, 4), dpi=50)
    assert picture.shape == (200, 250, 3)
    for size, says in (((1.0, 1.0), "at least"), ((60.0, 60.0), "pixels")):
        with pytest.raises(UsageError, match=says):
            draw(trace_of(words(5)), size=size, dpi=1200)


def test_letters_and_colours_as_asked(sheets: list[Sheet]) -> None:
    trace = trace_of(words(5))
    sizes = {round(text.get_fontsize(), 2) for text in draw(trace, font_size=7).figure.texts}
    assert sizes <= {8.4, 6.3, 7, 6.5, 5.95} and 7 in sizes
    narrow = {text.get_fontsize() for text in draw(trace, size=(3.25, 3)).figure.texts}
    assert max(narrow) <= 1.7 * min(narrow)  # at the width of a column, titles and labels agree
    assert "weight" not in {text.get_text() for text in draw(trace, colour_bar=False).figure.texts}
    assert sheets[-1].plan.width < sheets[0].plan.width
    said = [text.get_text() for text in draw(trace, vmin=0.1, vmax=0.2).figure.texts]
    assert "all above 0.2 and all below 0.1 in one colour" in said
    assert pixels(trace, vmax=0.1, dpi=100).shape  # clipped, not refused
    with pytest.raises(UsageError, match="--vmin 0.5 is not below --vmax 0.1"):
        draw(trace, vmin=0.5, vmax=0.1)


def test_a_thousand_numbers_are_left_out_unless_asked_for() -> None:
    def parts(**how: Any) -> int:
        return len(draw(trace_of(words(10), layers=3, heads=4), **how).figure.get_children())

    assert parts() == parts(values=False) < parts(values=True)


def test_unknown_words_and_blank_tokens_are_marked() -> None:
    trace = matrix(np.eye(3), ["a", " ", "\u2003"])
    tokens = (dataclasses.replace(trace.tokens[0], unknown=True), *trace.tokens[1:])
    texts = [text.get_text() for text in draw(dataclasses.replace(trace, tokens=tokens)).figure.texts]
    assert {"a†", "␣", "\\u2003"} <= set(texts) and "† not among the words the model knows" in texts


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"cmap": "viridas"}, "did you mean viridis"),
        ({"layers": [4]}, "layer 4 is not in this trace"),
        ({"heads": [4]}, "head 4 of layer 0 is not"),
        ({"drop": "nobody"}, "no token 'nobody'"),
        ({"drop": "special"}, "no special token"),
        ({"drop": ["0", "1", "2", "3"]}, "nothing to show"),
    ],
)
def test_what_cannot_be_drawn(how: dict[str, Any], says: str) -> None:
    with pytest.raises(AttnctlError, match=says):
        draw(trace_of(words(4)), **how)


def test_weights_that_cannot_be_drawn() -> None:
    with pytest.raises(AttnctlError, match="not finite"):
        heatmap(matrix([[np.nan, 1], [0, 1]]))
    with pytest.raises(AttnctlError, match="some are negative"):
        heatmap(matrix([[-1, 1], [0, 1]]), log=True)
    with pytest.raises(AttnctlError, match="all are 0"):
        heatmap(matrix(np.zeros((2, 2))), log=True)
    with pytest.raises(AttnctlError, match="holds no weights"):
        heatmap(dataclasses.replace(matrix(np.eye(2)), layers=(LayerTrace(0, (0,), (0,)),)))
    with pytest.raises(UsageError, match=".png, .svg or .pdf"):
        image(heatmap(matrix(np.eye(2))), "gif")
    assert heatmap(matrix(np.zeros((2, 2)))).texts and heatmap(matrix([[-1, 1], [0, 1]])).texts


# --- reading -----------------------------------------------------------------------------------------------------


def test_drop_and_renormalise() -> None:
    keys = [Token("<s>", special=True), Token("the"), Token("cat"), Token("the"), Token("</s>", special=True)]
    assert keys_left_out(keys, ["first"]) == (0,)
    assert keys_left_out(keys, ["special"]) == (0, 4)
    assert keys_left_out(keys, ["the", "-1"]) == (1, 3, 4)
    weights = np.array([[0.5, 0.25, 0.25], [0, 0, 0]], dtype=np.float32)
    assert rescaled_rows(weights[:, 1:]).tolist() == [[0.5, 0.5], [0, 0]]
    trace = trace_of(words(5), causal=True)
    reading = read_heatmap(trace, drop=["first"], renormalise=True)
    grid = reading.weights[0, 0]
    assert grid.shape == (5, 4) and [token.text for token in reading.keys] == WORDS[1:5]
    np.testing.assert_allclose(grid.sum(axis=1), [0, 1, 1, 1, 1], rtol=1e-6)
    assert reading.masks[0].shape == (5, 4)


# --- letters -----------------------------------------------------------------------------------------------------


def test_hostile_tokens_are_drawn_as_themselves() -> None:
    texts = {text.get_text() for text in heatmap(matrix(np.eye(4), ["$x$", "\x1b[31m", "<b>&", "\n"])).texts}
    assert {"$x$", "\\x1b[31m", "<b>&", "\\n"} <= texts
    for form in ("png", "svg", "pdf"):
        assert image(heatmap(matrix(np.eye(2), ["$\\frac{$", "\ufffe\ue000"])), form)


def test_a_character_that_no_font_has_is_never_a_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "_family_with", lambda char, eastern: None)  # as on a machine without other fonts
    drawing = draw(matrix(np.eye(3), ["日本", "é", "ok"]))
    texts = {text.get_text() for text in drawing.figure.texts}
    assert {"U+65E5 U+672C", "é", "ok"} <= texts
    assert (
        Labels(["日"]).axis_label("日" * 9 + "†").endswith("…†")
    )  # cut, but still not among the words the model knows
    (note,) = drawing.notes
    assert "U+65E5" in note and "no installed font" in note
    assert image(drawing.figure, "png")  # matplotlib would warn of a missing glyph, and a warning is an error here


def test_right_to_left_words_are_shaped() -> None:
    labels = Labels(["שלום", "مرحبا"])
    assert labels.axis_label("مرحبا") == "مرحبا" and labels.missing_characters == ()
    isolated = sum(labels.text_width(letter, 10) for letter in "مرحبا")
    assert labels.text_width("مرحبا", 10) < 0.9 * isolated  # joined letters are narrower


def test_long_labels_are_abridged_between_characters() -> None:
    shaped = Labels(["e\u0301" * 40])
    label = shaped.axis_label("e\u0301" * 40)
    assert "…" in label and "…\u0301" not in label and len(label) <= 2 * labels.LONGEST
    assert shaped.axis_label("3 The licenses for most software…") == "3 The licenses fo…"  # cut at its end, again there
    assert shaped.broken_lines("one two three", 10, 0.6) == ["one two", "three"]
