"""A model card: what a trained weights file is, how it was made, and the table of what its heads have learned."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError, in_one_line
from attnctl.render.terminal.models.model_sizes import beside_name
from attnctl.render.terminal.tables import Column, fitting_columns, table_lines
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.text import Document

HOW = {
    "next-word": "predict the next word; each word sees those before it (as GPT)",
    "masked-word": "predict masked words, from both sides (as BERT)",
}
# what the words of the grammar's sentences are predicted for beside that
QUESTIONS = (
    " and, each from what one head of the last layer brings: a verb's subject, a noun's verb, what a pronoun stands for, "
    "what is described, what a preposition or a closing mark belongs to, what came next before; where none of it applies, "
    "the word itself"
)
LIMITS = (
    "Words: chosen by the frequency list of wordfreq (Robyn Speer; CC BY-SA 4.0), their forms by LemmInflect (MIT), their "
    "classes by WordNet 3.1 (Princeton University; the WordNet licence), given names by Faker (Daniele Faraglia and others; "
    "MIT), family names by the United States census of 1990 (public domain).",
    "A teaching model of everyday English sentences of up to 40 words. It has read no text but its grammar's: it knows how "
    "words stand together, not facts about the world. Who does, likes or owns what was drawn by chance.",
)
WIDEST = 80  # columns of its prose


def model_card(
    name: str, metadata: dict[str, str], shapes: Mapping[str, Sequence[int]], size: int, width: int = 120
) -> list[str]:
    """The card as lines of `width` columns; `size` is that of the file in bytes. What the metadata lacks is left out.

    Raises AttnctlError where the metadata is damaged.
    """
    try:
        return _card_lines(name, metadata, shapes, size, width)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise AttnctlError(f"the card of {name} is damaged: {in_one_line(error)}") from error


def _card_lines(
    name: str, metadata: dict[str, str], shapes: Mapping[str, Sequence[int]], size: int, width: int
) -> list[str]:
    recipe: Document = json.loads(metadata.get("recipe", "{}"))
    parameters = sum(math.prod(shape) for shape in shapes.values())
    layers = 1 + max((int(key.split(".")[1]) for key in shapes if key.startswith("layers.")), default=0)
    heads, d_model, d_k = next((shape for key, shape in shapes.items() if key.endswith("W_Q")), (0, 0, 0))
    questions = QUESTIONS if recipe.get("corpus") == "grammar" and layers > 1 else ""
    data = "the user's own text" if recipe else ""
    if recipe.get("corpus") == "grammar":
        data = f"{recipe['sentences']:,} sentences of attnctl's grammar; some combinations held out"
    prose = min(width, WIDEST)
    told = [
        ("layers", f"{layers}, of {counted(heads, 'head')}, d_model {d_model}, d_k {d_k}; no MLP, no layer norm"),
        ("vocabulary", f"{shapes['embedding'][0]:,} words" if "embedding" in shapes else ""),
        ("parameters", f"{parameters:,} ({size / 1000:,.0f} kB)"),
        ("objective", HOW.get(metadata.get("objective", ""), "") + questions),
        ("loss", "cross-entropy of words, none on attention; no weight set by hand" if recipe else ""),
        ("data", data),
        ("training", _training_line(recipe, metadata)),
        ("made by", metadata.get("made_by", "")),
    ]
    lines = [name, *(line for what, text in told if text for line in beside_name(f"{what:12}", text, prose))]
    figures = json.loads(metadata.get("figures", "{}"))
    if figures:
        lines += ["", *beside_name("", "How often a word's largest weight on another is on the right one:", prose), ""]
        lines += [f"  {line}" for line in relations_lines(list(figures.values()), width - 2)]
    if recipe.get("corpus") == "grammar":
        lines += [line for part in LIMITS for line in ("", *beside_name("", part, prose))]
    return lines


def _training_line(recipe: Document, metadata: dict[str, str]) -> str:
    if not recipe:
        return ""
    step = int(metadata.get("step") or recipe["steps"])
    return f"{step:,} steps of {recipe['batch_size']} sentences, AdamW, lr {recipe['lr']:g}, seed {recipe['seed']}"


# --- what heads have learned ---------------------------------------------------------------------------------------

Row = dict[str, Any]  # the fields of training.relations.Measured


def _share_percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "head": lambda row: f"{row['layer']}.{row['head']}",
    "held out": lambda row: _share_percent(row["held_out"]),
    "unseen": lambda row: _share_percent(row["unseen"]),
    "by hand": lambda row: _share_percent(row.get("by_hand")),
    "goal": lambda row: "" if row["goal"] is None else f"{100 * row['goal']:.0f}%",
    "untrained": lambda row: _share_percent(row["untrained"]),
    "offset": lambda row: f"{_share_percent(row['by_offset'])} ({row['offset']:+d})",
    "nearest": lambda row: _share_percent(row["by_nearest"]),
    "first": lambda row: _share_percent(row["by_first"]),
    "n": lambda row: f"{row['links']:,}",
}

NOTE = (
    "How often a word's largest weight on another word is on the right one, in the one head (layer.head) that does "
    "best on other sentences. held out: no subject-verb-object combination was in training; unseen: nor were the "
    "names and nouns; by hand: sentences marked by hand before training, and kept out of it. Beside it: the network "
    "before training, the best fixed offset, the nearest and the first word of the right kind."
)


def relations_lines(rows: Sequence[Row], width: int) -> list[str]:
    """The table as lines of at most `width` cells.

    Where there is no room for all, each relation has a line to itself above its numbers; where these alone are too wide, the
    rules go, and a last line says so.
    """
    ranks = {"n": 1, "first": 2, "offset": 3, "nearest": 4, "goal": 5, "untrained": 6, "by hand": 7}
    numbers = [Column(name, [cell(row) for row in rows], ranks.get(name)) for name, cell in COLUMNS.items()]
    names = Column("relation", [str(row["relation"]) for row in rows], left=True)
    if len(fitting_columns([names, *numbers], width)) == 1 + len(numbers):
        return [line.plain for line in table_lines([names, *numbers])]
    kept = fitting_columns(numbers, width - 2)
    heading, *lines = (line.plain for line in table_lines(kept))
    below = [part for name, line in zip(names.cells, lines, strict=True) for part in (str(name), f"  {line}")]
    out = [str(one.heading) for one in numbers if one not in kept]
    return [f"  {heading}", *below, *(wrap(f"left out for width: {', '.join(out)}", max(width, 8)) if out else [])]
