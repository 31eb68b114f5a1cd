"""The grid in a terminal: values where they fit, squares, half blocks, and never a line too wide."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from attnctl.layer import LayerTrace
from attnctl.models import open_model
from attnctl.render.terminal.heatmap import SHADES, HeatmapBlocks, pool_cells
from attnctl.source import record_trace
from attnctl.source.zoom import read_heatmap
from attnctl.text.tokens import Token
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.subject import Subject


def drawn(text: str, width: int = 80, colour: bool = False, layers: int = 1, heads: int = 1, **how: Any) -> str:
    model = open_model("random", n_layers=layers, n_heads=heads, d_model=8 * heads, causal=True)
    system = "truecolor" if colour else None
    console = Console(file=io.StringIO(), width=width, force_terminal=colour, color_system=system, highlight=False)
    console.print(HeatmapBlocks(read_heatmap(record_trace(model, text)), **how))
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("n", "layers", "heads", "values"), [(1, 1, 1, None), (8, 1, 2, None), (300, 1, 1, None), (30, 1, 1, True),
                                         (12, 3, 4, None), (150, 1, 5, None)]
)  # fmt: skip
def test_no_line_is_too_wide(n: int, layers: int, heads: int, values: bool | None) -> None:
    for width, colour in ((40, True), (80, False), (120, True)):
        text = drawn("日本 extraordinarily ok שלום " * (n // 4) + "end", width, colour, layers, heads, values=values)
        assert all(cell_len(line) <= width for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines())


def test_pooling_counts_only_what_is_seen() -> None:
    weights = np.array([[1, np.nan, np.nan], [3, 2, np.nan], [5, 5, 7]])
    pooled = pool_cells(weights, 2)
    assert pooled[0, 0] == 2 and np.isnan(pooled[0, 1]) and pooled[1].tolist() == [5, 7]


def test_half_blocks_carry_two_weights() -> None:
    text = drawn("a b c d e f g h i j k l m n o p q r s t u v w x y z " * 2, colour=True)
    assert "▀" in text and "\x1b[38;2;253;231;37" in text  # the brightest: the first token looks at itself


def test_the_sentence_its_roles_and_its_sink() -> None:
    def printed(trace: Trace, width: int = 80, **how: Any) -> str:
        console = Console(file=io.StringIO(), width=width, highlight=False)
        console.print(HeatmapBlocks(read_heatmap(trace, **how.pop("chosen", {})), **how))
        return console.file.getvalue()

    trace = record_trace(open_model("demo"), "Alice will eat pizza")
    lines = printed(trace).splitlines()
    assert lines[:2] == ["Alice will eat pizza", "demo, layers 0–1, heads 0–5"]
    assert any(line.startswith("heads  0 verb → subject  1 word → its verb") for line in lines)
    assert "demo, layer 1, head 0: verb → subject" in printed(trace, chosen={"layers": [1], "heads": [0]})
    assert printed(trace, title="Mine").startswith("Mine\ntokens")
    weights = np.full((1, 6, 6), 0.05, np.float32)
    weights[..., 0] = 0.75
    layer = LayerTrace(0, (0,), (0,), weights=weights)
    tokens = tuple(Token(f"w{at}") for at in range(6))
    sunk = Trace(Subject("w0 " * 50, tokens, ModelInfo("m", "checkpoint", n_heads=1, n_layers=1)), (layer,))
    told = printed(sunk, 60)
    assert told.splitlines()[0].endswith("…") and max(map(len, told.splitlines())) <= 60
    assert " ".join(told.split()).endswith(
        "75 % goes to the first token, “w0”. To see past it: drop='first' or log=True."
    )
    assert "sink" not in printed(sunk, chosen={"drop": ("first",)})


@pytest.mark.parametrize(
    ("heads", "text"), [(6, "a b c d e"), (1, "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 2)]
)
def test_without_colours_a_grid_has_one_line_a_row(heads: int, text: str) -> None:
    """A half block holds two weights by its two colours; without colours one of them would be lost."""
    lines = [line for line in drawn(text, heads=heads).splitlines() if set(line) & set(SHADES) and "weight" not in line]
    assert len(lines) == len(text.split())


@pytest.mark.parametrize(
    ("numbers", "named"), [(np.full((3, 3), 1 / 3), "weight"), (np.array([[3.0, -4], [1, 2]]), "number as given")]
)
def test_scores_are_not_named_weights(numbers: Any, named: str, tmp_path: Any) -> None:
    from attnctl.models.builtin.matrix import trace_of_matrix

    np.save(tmp_path / "m.npy", numbers)
    grid = read_heatmap(trace_of_matrix(str(tmp_path / "m.npy")))
    console = Console(file=io.StringIO(), width=80, highlight=False)
    console.print(HeatmapBlocks(grid))
    assert grid.unit_of_cells == named and f"\n{named} " in console.file.getvalue()


@pytest.mark.parametrize("width", [60, 120])
def test_values_have_the_colours_of_the_legend(width: int) -> None:
    """In narrow columns they had viridis, on a scale of its own, whatever --cmap said."""
    reading = read_heatmap(record_trace(open_model("random"), " ".join("abcdefghijkl")))
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor", record=True)
    console.print(HeatmapBlocks(reading, values=True, colour=lambda share: (9, 8, 7)))
    backgrounds = set(re.findall(r"48;2;[0-9;]*", console.export_text(styles=True)))
    assert backgrounds == {"48;2;9;8;7"}
