"""The sizes of a model, and the card of one that attnctl trained, for a terminal."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError, in_one_line
from attnctl.render.terminal.console import Column, fitting_columns, left_out_for_width, table_lines
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.models.huggingface.sizes import LayerGroup, ModelSizes
    from attnctl.text import Document


NARROW = 22  # columns below which what is said of a name stands below it
UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB", "ZB")


def bytes_said(count: float) -> str:
    """A number of bytes as people say it: 4.5 PB."""
    unit = 0
    while count >= 999.5 and unit < len(UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.0f} {UNITS[unit]}" if unit == 0 or count >= 99.5 else f"{count:.2g} {UNITS[unit]}"


def parameter_text(count: float) -> str:
    """A number of parameters as people say it: 7.1 M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:.0f}"


def size_lines(sizes: ModelSizes, tokens: int, wide: int = 80) -> list[str]:
    """What `sizes` says, at a text of `tokens` tokens; 32 bits a number unless said.

    What explains is wrapped to `wide` columns, 80 at most; the table of parameters is as wide as its numbers.
    """
    wide = min(wide, 80)
    shared = f", sharing {counted(sizes.kv_heads, 'key/value head')}" if sizes.kv_heads != sizes.heads else ""
    encoding, decoding = sizes.layers - 2 * sizes.cached_layers, sizes.cached_layers
    twice = f": {encoding} that read, {decoding} that write, attending twice" if 0 < decoding < sizes.layers else ""
    if sizes.built:
        kinds: Counter[str] = Counter()
        for group in sizes.built:
            kinds[group.kind] += len(group.layers)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        twice = f": {counts}" if len(kinds) > 1 else ""
    facts = {
        "architecture": sizes.architecture,
        "layers": f"{sizes.layers}{twice}",
        "heads": f"{sizes.heads} a layer{shared}",
        "d_model": f"{sizes.d_model:,}",
        "d_k": f"{sizes.d_k:,}" if sizes.d_k == sizes.d_v else f"{sizes.d_k:,}, d_v {sizes.d_v:,}",
        "vocabulary": None if sizes.vocabulary is None else f"{sizes.vocabulary:,} tokens",
        "window": None if sizes.window is None else f"{sizes.window:,} tokens, in the layers that have one",
        "context": None if sizes.context is None else f"{sizes.context:,} tokens",
    }
    told = [
        line for name, value in facts.items() if value is not None for line in beside_name(f"{name:14}", value, wide)
    ]
    return [sizes.name, *told, "", *_parameter_lines(sizes, wide), "", *_memory_lines(sizes, tokens, wide)]


def beside_name(name: str, said: str, wide: int) -> list[str]:
    """A name and what is said of it, in lines of `wide` columns: beside each other, or where that is too narrow below."""
    beside = wide - 2 - len(name) >= min(NARROW, len(said))
    indent = " " * (2 + len(name) if beside else 6)
    parts = wrap(said, max(wide - len(indent), 8), break_long_words=False, break_on_hyphens=False)
    if not beside:
        return [f"  {name}".rstrip(), *(indent + part for part in parts)]
    return [f"{'  ' + name if at == 0 else indent}{part}" for at, part in enumerate(parts)]


def _parameter_lines(sizes: ModelSizes, wide: int) -> list[str]:
    if sizes.built:
        return _built_lines(sizes, wide)
    parts = sizes.per_head(), sizes.per_layer(), sizes.in_all()
    rows: list[tuple[str, ...]] = [
        (name, *(f"{part[name]:,}" for part in parts), parameter_text(parts[2][name])) for name in parts[0]
    ]
    layer, whole = (sum(part.values()) for part in parts[1:])
    rows.append(("together", "", f"{layer:,}", f"{whole:,}", parameter_text(whole)))
    told = _matrix_lines(sizes, rows, ["a head", "a layer"], wide)
    if sizes.groups:
        kinds = "; ".join(
            f"{group.layers} of {counted(group.heads, 'head')}, {group.kv_heads} of keys, d_k {group.d_k:,}"
            f"{_own_parts(group)}"
            for group in sizes.groups
        )
        told.extend(
            beside_name("", f"(a head and a layer of the commonest sizes; in all, the layers are {kinds})", wide)
        )
    if sizes.distinct_layers is not None:
        count = sizes.distinct_layers
        told.extend(beside_name("", f"({sizes.layers} layers share the parameters of {count})", wide))
    if sizes.stored_layer is not None:
        note = (
            "(W_Q, W_K and W_V are stored as products of narrower matrices; these are their sizes multiplied out. Stored "
            f"are {sizes.stored_layer:,} parameters a layer, {sizes.stored_in_all():,} in all)"
        )
        told.extend(beside_name("", note, wide))
    if not sizes.counted:
        note = (
            f"(four matrices a layer; {sizes.architecture} is not among the families of which this was held against the "
            "built network, and may have more: gates, indexers, other sizes in some layers, another cache)"
        )
        told.extend(beside_name("", note, wide))
    return told


def _matrix_lines(sizes: ModelSizes, rows: list[tuple[str, ...]], of: Sequence[str], wide: int) -> list[str]:
    """The table of parameters: a row's name, its numbers `of` one of each part, in all, and short; the embedding last."""
    if (count := sizes.embedding_parameters()) is not None:
        whole = sizes.vocabulary is not None and sizes.vocabulary * sizes.d_model == count
        product = f"{sizes.vocabulary:,} × {sizes.d_model:,}" if whole else ""
        rows = [*rows, ("embedding", *[""] * (len(of) - 1), product, f"{count:,}", parameter_text(count))]
    names, *parts, every, short = zip(*rows, strict=True)
    columns = [
        Column("parameters", names, left=True),
        *(Column(heading, cells, rank) for rank, (heading, cells) in enumerate(zip(of, parts, strict=True))),
        Column("in all", every),
        Column("", short, left=True),
    ]
    return [f"  {line.plain}" for line in table_lines(fitting_columns(columns, wide - 2))]


def _built_lines(sizes: ModelSizes, wide: int) -> list[str]:
    """The matrices of a family that has others than four a layer, by transformers' names; layers that differ apart."""
    every, most = sizes.in_all(), max(sizes.built, key=lambda group: len(group.layers))
    layer = dict(most.matrices)
    rows: list[tuple[str, ...]] = [
        (name, f"{layer[name]:,}" if name in layer else "", f"{count:,}", parameter_text(count))
        for name, count in every.items()
    ]
    whole = sum(every.values())
    rows.append(("together", f"{most.parameter_count():,}", f"{whole:,}", parameter_text(whole)))
    told = _matrix_lines(sizes, rows, ["a layer"], wide)
    if len(sizes.built) > 1:
        told.append("  a layer: of the commonest kind; the layers are")
        told.extend(line for group in sizes.built for line in beside_name("  ", group.layers_sentence(), wide))
    note = f"(the matrices as transformers builds {sizes.architecture}, by its names; biases and norms not counted)"
    return [*told, *beside_name("", note, wide)]


def _own_parts(group: LayerGroup) -> str:
    """What a group of layers lacks, in words."""
    if not group.own_keys:
        return ", which read another layer's keys and values"
    return "" if group.own_values else ", whose values are the keys"


def _memory_lines(sizes: ModelSizes, tokens: int, wide: int) -> list[str]:
    beyond = sizes.context is not None and tokens > sizes.context
    spared = "a matrix for every two tokens, which queries and keys spare us"
    if not sizes.built:
        spared += f": W_Q and W_K take {bytes_said(4 * (sizes.in_all()['W_Q'] + sizes.in_all()['W_K']))}"
    told = [
        f"  at {tokens:,} tokens, 32 bits a number",
        *([f"  (longer than its context, only {sizes.context:,} tokens)"] if beyond else []),
        f"  {'one n × n':14}{bytes_said(sizes.bytes_of_grid(tokens)):>9}",
        *beside_name(
            f"{'all of them':14}{bytes_said(sizes.bytes_of_grids(tokens)):>9}   ",
            f"{counted(sizes.layers, 'layer')} × {counted(sizes.heads, 'head')}",
            wide,
        ),
        *beside_name(f"{'n × n × d × d':14}{bytes_said(sizes.bytes_unfactored(tokens)):>9}   ", spared, wide),
    ]
    if not sizes.cached_layers:
        return told
    if not sizes.cache_told:
        return [
            *told,
            *beside_name("", f"KV cache: {sizes.architecture} keeps one of its own kind, not counted here", wide),
        ]
    cached = counted(sizes.cached_layers, "layer")
    kept = f"{cached} × {counted(sizes.kv_heads, 'head')} × ({sizes.d_k} + {sizes.d_v})"
    if sizes.groups:
        kept = ", ".join(group.cache_sentence() for group in sizes.groups if group.own_keys)
    if sizes.latent is not None:
        kept = f"{cached} × {sizes.latent} numbers, keys and values compressed"
    if sizes.built:
        kept = "; ".join(
            group.kept_sentence() for group in sizes.built if group.kind in ("self", "decoder") and group.kept
        )
    once, source = sizes.cache_per_token(), sizes.bytes_of_source(tokens)
    crossed = f"{f'{tokens:,} read':14}{bytes_said(source):>9}   "
    return [
        *told,
        "  KV cache, 16 bits a number",
        *beside_name(f"{'one token':14}{bytes_said(once):>9}   ", kept, wide),
        f"  {f'{tokens:,} tokens':14}{bytes_said(sizes.bytes_of_cache(tokens)):>9}",
        *(beside_name(crossed, "of the text that the encoder reads", wide) if source else []),
    ]


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
    data = training = ""
    if recipe:
        data, step = "the user's own text", int(metadata.get("step") or recipe["steps"])
        training = (
            f"{step:,} steps of {recipe['batch_size']} sentences, AdamW, lr {recipe['lr']:g}, seed {recipe['seed']}"
        )
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
        ("training", training),
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
    return [f"  {heading}", *below, *wrap(left_out_for_width(numbers, kept), max(width, 8))]
