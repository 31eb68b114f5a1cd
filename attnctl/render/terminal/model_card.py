"""A model card: what a trained weights file is, how it was made, and what its heads have learned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attnctl.errors import AttnctlError, in_one_line
from attnctl.render.terminal.relations import relations_lines

HOW = {
    "next-word": "predict the next word; each word sees those before it (as GPT)",
    "masked-word": "predict masked words; each word sees all others (as BERT)",
}


def card(
    name: str, metadata: dict[str, str], shapes: Mapping[str, Sequence[int]], size: int, width: int = 120
) -> list[str]:
    """The card as lines of `width` columns; `size` is that of the file in bytes. What the metadata lacks is left out.

    Raises AttnctlError where the metadata is damaged.
    """
    try:
        return _card(name, metadata, shapes, size, width)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise AttnctlError(f"the card of {name} is damaged: {in_one_line(error)}") from error


def _card(name: str, metadata: dict[str, str], shapes: Mapping[str, Sequence[int]], size: int, width: int) -> list[str]:
    recipe: dict[str, Any] = json.loads(metadata.get("recipe", "{}"))
    parameters = sum(_product(shape) for shape in shapes.values())
    layers = 1 + max((int(key.split(".")[1]) for key in shapes if key.startswith("layers.")), default=0)
    heads, d_model, d_k = next((shape for key, shape in shapes.items() if key.endswith("W_Q")), (0, 0, 0))
    told = [
        ("layers", f"{layers}, of {heads} heads, d_model {d_model}, d_k {d_k}; no MLP, no layer norm"),
        ("vocabulary", f"{shapes['embedding'][0]} words" if "embedding" in shapes else ""),
        ("parameters", f"{parameters:,} ({size / 1000:,.0f} kB)"),
        ("objective", HOW.get(metadata.get("objective", ""), "")),
        ("loss", "cross-entropy of words, none on attention; no weight set by hand" if recipe else ""),
        ("data", _data(recipe)),
        ("training", _training(recipe, metadata)),
        ("made by", metadata.get("made_by", "")),
    ]
    lines = [name, *(f"  {what:12}{text}" for what, text in told if text)]
    figures = json.loads(metadata.get("figures", "{}"))
    if figures:
        lines += ["", "  How often a word's largest weight on another is on the right one:", ""]
        lines += [f"  {line}" for line in relations_lines(list(figures.values()), width - 2)]
    if recipe.get("corpus") == "grammar":
        lines += [
            "",
            "  A teaching model: it knows a few hundred words and the grammar they were drawn",
            "  from, and nothing else.",
        ]
    return lines


def _product(shape: Sequence[int]) -> int:
    result = 1
    for side in shape:
        result *= side
    return result


def _data(recipe: dict[str, Any]) -> str:
    if recipe.get("corpus") == "grammar":
        return f"{recipe['sentences']:,} sentences of attnctl's grammar; some combinations held out"
    return "the user's own text" if recipe else ""


def _training(recipe: dict[str, Any], metadata: dict[str, str]) -> str:
    if not recipe:
        return ""
    step = int(metadata.get("step", recipe["steps"]))
    return f"{step:,} steps of {recipe['batch_size']} sentences, AdamW, lr {recipe['lr']:g}, seed {recipe['seed']}"
