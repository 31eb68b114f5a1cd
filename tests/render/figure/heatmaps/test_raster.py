"""The quick picture against matplotlib's own: the same place for everything, the same colours, sound PNG files."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure
from PIL import Image

from attnctl import __version__
from attnctl.formats.pictures import Look
from attnctl.layer import LayerTrace
from attnctl.models import open_model
from attnctl.readings.heatmap import HeatmapGrid
from attnctl.render.figure.drawing import INK
from attnctl.render.figure.heatmap import draw_heatmap, drawing_of, panels_of_grid
from attnctl.render.figure.layout import Panel, Panels, Scale, colour_map
from attnctl.render.figure.raster import Canvas, heatmap_png, panels_bytes
from attnctl.render.figure.saving import png_bytes as figure_png
from attnctl.source import record_trace
from attnctl.source.zoom import read_heatmap
from attnctl.text.tokens import Token
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.subject import Subject

TEXT = "Alice will eat pizza because the antidisestablishmentarian chef lives in Naples"


def trace_of(text: str = TEXT, **how: Any) -> Trace:
    return record_trace(open_model("random", d_model=24, **how), text)


def asked(trace: Trace, **options: Any) -> tuple[HeatmapGrid, Look]:
    chosen = {name: options.pop(name) for name in ("heads", "drop", "renormalise") if name in options}
    return read_heatmap(trace, **chosen), Look(**options)


def pixels(data: bytes) -> Any:
    picture = Image.open(io.BytesIO(data))
    picture.load()
    return np.asarray(picture.convert("RGB")).astype(np.int16)  # (height, width, 3)


def apart(one: Any, other: Any) -> Any:
    """How far each pixel of one is from the nearest in colour of the nine around it in the other → (height, width)."""
    padded = np.pad(other, ((1, 1), (1, 1), (0, 0)), mode="edge")
    high, wide = other.shape[:2]
    shifts = [padded[y : y + high, x : x + wide] for y in range(3) for x in range(3)]
    return np.min([np.abs(one - shifted).max(-1) for shifted in shifts], axis=0)


@pytest.mark.parametrize(
    "how, options",
    [
        ({}, {}),
        ({"causal": True}, {"values": True}),
        ({"n_heads": 3, "n_layers": 2, "causal": True}, {"dpi": 120}),
        ({"n_heads": 8}, {"heads": [1, 5], "cmap": "magma"}),
        ({}, {"drop": ("first",), "renormalise": True, "log": True, "title": "A title of its own"}),
        ({}, {"size": (3.6, 3.1), "values": True, "title": ""}),
    ],
)
def test_the_picture_is_matplotlibs(how: dict[str, Any], options: dict[str, Any]) -> None:
    grid, look = asked(trace_of(**how), **{"dpi": 100} | options)
    theirs = pixels(figure_png(draw_heatmap(grid, look).figure))
    hatched = 0.35 if how.get("causal") else 0.0  # whose lines fall elsewhere
    for data, _ in (heatmap_png(grid, look), panels_bytes(panels_of_grid(grid, look), look, "png")):
        assert_alike(pixels(data), theirs, hatched)


def assert_alike(ours: Any, theirs: Any, hatched: float = 0.0) -> None:
    """A letter may stand a pixel elsewhere; edges are softened a little differently."""
    assert ours.shape == theirs.shape
    both = np.maximum(apart(ours, theirs), apart(theirs, ours))
    assert (both > 96).mean() < 0.002
    assert (both > 32).mean() < 0.02 + hatched
    assert abs(ours.mean() - theirs.mean()) < 1.5


def test_panels_of_two_scales_are_matplotlibs() -> None:
    """Two grids and their difference, as `compare` draws them, with cells that are not measured and a ring."""
    rng = np.random.default_rng(0)
    first, second = rng.random((2, 5, 6))
    masks = np.ones((5, 6), bool), np.tri(5, 6, dtype=bool), np.tri(5, 6, dtype=bool)
    picture = Panels(
        panels=tuple(
            Panel(0, column, name, array, mask, scale=int(column == 2), ring=(1, 1))
            for column, (name, array, mask) in enumerate(
                zip("ABC", (first, second, first - second), masks, strict=True)
            )
        ),
        rows=("Alice", "will", "eat", "the", "pizza"),
        columns=("She", "likes", "it", "more", "than", "soup"),
        scales=(
            Scale(Normalize(0, 1), colour_map("heat"), "weight"),
            Scale(CenteredNorm(halfrange=1), colour_map("RdBu"), "difference"),
        ),
        title="One, two, and what lies between",
        notes=("a sentence below the title",),
    )
    for dpi in (100, 200):
        look = Look(dpi=dpi)
        ours = pixels(panels_bytes(picture, look, "png")[0])
        assert_alike(ours, pixels(figure_png(drawing_of(picture, look).figure)), hatched=0.2)


def test_the_sentences_around_it_are_matplotlibs() -> None:
    weights = np.full((6, 6), 0.05, np.float32)
    weights[:, 0] = 0.75
    layer = LayerTrace(0, (0,), (0,), weights=weights[None], mask=np.tri(6, dtype=bool))
    tokens = tuple(map(Token, ("The", "cat", "sat", "on", "the", "mat")))
    trace = Trace(Subject("The  cat sat on the mat", tokens, ModelInfo("m", "checkpoint", finds=None)), (layer,))
    for dpi in (72, 100, 133):
        ours, theirs = (
            pixels(heatmap_png(*asked(trace, dpi=dpi))[0]),
            pixels(figure_png(draw_heatmap(*asked(trace, dpi=dpi)).figure)),
        )
        both = np.maximum(apart(ours, theirs), apart(theirs, ours))
        low = int(0.86 * len(both))  # where the sentence stands, under the grid
        assert (ours[low:] < 128).any() and not (both[low:] > 160).any() and not (both[:30] > 160).any()


def test_every_script_is_set() -> None:
    text = "日本語 привет שלום 😀 $x_1$"
    trace = trace_of(text)
    data, notes = heatmap_png(*asked(trace))
    drawing = draw_heatmap(*asked(trace))
    assert notes == drawing.notes
    assert (apart(pixels(data), pixels(figure_png(drawing.figure))) > 96).mean() < 0.002


def test_cells_of_less_than_three_pixels_are_left_to_matplotlib() -> None:
    trace = trace_of(" ".join(f"w{at}" for at in range(420)))
    assert heatmap_png(*asked(trace, dpi=50))[0] == figure_png(draw_heatmap(*asked(trace, dpi=50)).figure)


def test_the_same_bytes_in_any_order() -> None:
    traces = [trace_of("a b c"), trace_of(TEXT), trace_of("a b").about(tokens=(Token("x"), Token("y")))]
    first = [heatmap_png(*asked(trace))[0] for trace in traces]
    assert [heatmap_png(*asked(trace))[0] for trace in reversed(traces)] == first[::-1]


@pytest.mark.parametrize("cmap", ["viridis", "magma", "gray_r", "RdBu", "tab20"])
def test_a_file_of_256_colours_keeps_those_of_the_map(cmap: str) -> None:
    """Numbers are small here: the most frequent colours are those of the cells."""
    trace = trace_of("a b c d e f")
    data = heatmap_png(*asked(trace, dpi=100, cmap=cmap, title="", colorbar=False, vmin=0, vmax=1))[0]
    picture = Image.open(io.BytesIO(data))
    assert picture.mode == "P" and picture.info["dpi"] == pytest.approx((100, 100), abs=0.1)
    assert picture.info["Software"] == f"attnctl {__version__}" and b"tIME" not in data
    drawn = [colour for _, colour in sorted(picture.convert("RGB").getcolors(1 << 20), reverse=True)[1:25]]
    weights = trace.layers[0].weights
    assert weights is not None
    wanted = matplotlib.colormaps[cmap](weights[0].ravel(), bytes=True)[:, :3].astype(int)  # (36, 3)
    distances = np.abs(wanted[:, None] - np.array(drawn)).max(-1).min(1)  # (36,)
    assert np.sort(distances)[:18].max() <= 4  # of 256


def test_a_text_over_ink_or_the_edge_is_blended_as_agg_does() -> None:
    """The right value is matplotlib's: the same texts drawn by a figure."""
    places = (30, 20, "MW"), (37, 22, "ox"), (2, 12, "edge"), (58, 39, "below"), (30, 55, "away")  # from the top left
    canvas, figure = Canvas(40, 60, 100), Figure((0.6, 0.4), dpi=100)
    easel: Any = FigureCanvasAgg(figure)
    for x, y, text in places:
        canvas.put_text(x, y, text, 11, ("DejaVu Sans",))
        figure.text(x / 60, 1 - y / 40, text, size=11, color=INK, ha="center", va="center", parse_math=False)
    easel.draw()
    theirs = np.asarray(easel.buffer_rgba()).astype(int)
    assert np.abs(canvas.pixels - theirs).max() <= 2 and (theirs < 100).any()


def test_two_threads_set_texts_as_matplotlib_does() -> None:
    """Each on a ground of its own: on a shared one the letters of one text would stand in the other's."""
    words = [f"{letter}{number}.{'x' * (number % 9)}y" for number in range(60) for letter in "ab"]

    def drawn(word: str) -> Any:
        canvas = Canvas(60, 200, 100)
        canvas.put_text(100, 30, word, 9.0, ("DejaVu Sans",))
        return canvas.pixels[..., :3]

    def by_matplotlib(word: str) -> Any:
        agg = FigureCanvasAgg(Figure((2, 0.6), dpi=100))
        agg.figure.text(0.5, 0.5, word, fontsize=9, family="DejaVu Sans", ha="center", va="center", color=INK)
        agg.draw()
        return np.asarray(agg.buffer_rgba())[..., :3]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            pictures = list(pool.map(drawn, words))
    finally:
        sys.setswitchinterval(interval)
    assert all((picture == by_matplotlib(word)).all() for picture, word in zip(pictures, words, strict=True))
