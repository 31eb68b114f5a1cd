"""Show the sizes of a model, and the card of a model that attnctl trained."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attnctl.checks.limits import bytes_text
from attnctl.errors import AttnctlError, in_one_line
from attnctl.render import Column, Form, Line, Table, relations_table
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.models.sizes import ModelSizes
    from attnctl.text import Document


def parameter_text(count: float) -> str:
    """Return a number of parameters in words: 7.1 M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:.0f}"


def _named(facts: Mapping[str, str | None], wide: int) -> Iterator[Form]:
    """Return one line for each fact: its name in `wide` cells, then its value."""
    return (Line(value, indent=2, hanging=wide, mark=name) for name, value in facts.items() if value)


def sizes_forms(sizes: ModelSizes, tokens: int) -> Iterator[Form]:
    """Yield the sizes of a model, and the memory for a text of `tokens` tokens."""
    main = sizes.main_layers
    shared = f", sharing {counted(main.kv_heads, 'key/value head')}" if main.kv_heads != main.heads else ""
    kinds: Counter[str] = Counter()
    for group in sizes.groups:
        kinds[group.kind] += len(group.layers)
    counts = f": {', '.join(f'{count} {kind}' for kind, count in kinds.items())}" if len(kinds) > 1 else ""
    if kinds["encoder"] and kinds["decoder"] == kinds["cross"]:
        counts = f": {kinds['encoder']} that read, {kinds['decoder']} that write, attending twice"
    facts = {
        "architecture": sizes.architecture,
        "layers": f"{sizes.layers}{counts}",
        "heads": f"{main.heads} a layer{shared}",
        "d_model": f"{sizes.d_model:,}",
        "d_k": f"{main.d_k:,}" if main.d_k == main.d_v else f"{main.d_k:,}, d_v {main.d_v:,}",
        "vocabulary": None if sizes.vocabulary is None else f"{sizes.vocabulary:,} tokens",
        "window": None if sizes.window is None else f"{sizes.window:,} tokens, in the layers that have one",
        "context": None if sizes.context is None else f"{sizes.context:,} tokens",
    }
    yield sizes.name
    yield from _named(facts, 14)
    yield from (Line(f"{title}: {fact}", indent=2, hanging=2) for title, fact in sizes.file_facts.items())
    yield ""
    yield from _parameter_forms(sizes)
    yield ""
    yield from _memory_forms(sizes, tokens)


def _parameter_forms(sizes: ModelSizes) -> Iterator[Form]:
    """Yield the table of parameters: each matrix in one layer and in all layers; the embedding is last."""
    head, layer, every = sizes.per_head(), sizes.per_layer(), sizes.in_all()
    parts: dict[str, Mapping[str, int | str]] = {} if head is None else {"a head": head}
    parts["a layer"] = {**layer, "together": sum(layer.values())}
    counts = {**every, "together": sum(every.values())}
    if sizes.embedding is not None:
        counts["embedding"] = sizes.embedding
        if sizes.vocabulary is not None and sizes.vocabulary * sizes.d_model == sizes.embedding:
            parts["a layer"] = {**parts["a layer"], "embedding": f"{sizes.vocabulary:,} × {sizes.d_model:,}"}
    yield Table(
        [
            Column("parameters", list(counts), "text"),
            *(
                Column(of, [part.get(name, "") for name in counts], rank=rank)
                for rank, (of, part) in enumerate(parts.items())
            ),
            Column("in all", list(counts.values())),
            Column("", [parameter_text(count) for count in counts.values()], "text"),
        ],
        indent=2,
    )
    distinct = sum(group.distinct for group in sizes.groups)
    if distinct < sizes.layers:
        yield Line(f"({sizes.layers} layers share the parameters of {distinct})", indent=2)
    if not sizes.built:
        yield Line(
            f"(four matrices a layer, by the configuration alone: {sizes.architecture} was not built here, and may have "
            "more: gates, indexers, other sizes in some layers)",
            indent=2,
        )
    elif head is None:
        if len(sizes.groups) > 1:
            yield Line("a layer: of the commonest kind; the layers are", indent=2)
            yield from (Line(group.layers_sentence(), indent=4) for group in sizes.groups)
        note = f"(the matrices as transformers builds {sizes.architecture}, by its names; biases and norms not counted)"
        yield Line(note, indent=2)


def _memory_forms(sizes: ModelSizes, tokens: int) -> Iterator[Form]:
    spared, every = "a matrix for every two tokens, which queries and keys spare us", sizes.in_all()
    if sizes.per_head() is not None:
        spared += f": W_Q and W_K take {bytes_text(4 * (every['W_Q'] + every['W_K']))}"
    yield Line(f"at {tokens:,} tokens, 32 bits a number", indent=2)
    if sizes.context is not None and tokens > sizes.context:
        yield Line(f"(longer than its context, only {sizes.context:,} tokens)", indent=2)
    grids = f"{counted(sizes.layers, 'layer')} × {counted(sizes.main_layers.heads, 'head')}"
    yield _memory_table(
        ("one n × n", sizes.bytes_of_grid(tokens), ""),
        ("all of them", sizes.bytes_of_grids(tokens), grids),
        ("n × n × d × d", sizes.bytes_unfactored(tokens), spared),
    )
    if (cache := sizes.cache_bytes(tokens)) is None:
        yield Line(f"KV cache: that of {sizes.architecture} is not counted here", indent=2)
    elif cache:
        contents = "; ".join(part.kept_sentence() for part in sizes.cache or () if not part.of_source)
        yield Line("KV cache, 16 bits a number", indent=2)
        rows = [("one token", sizes.cache_bytes(1) or 0, contents), (f"{tokens:,} tokens", cache, "")]
        if source := sizes.cache_bytes(tokens, of_source=True):
            rows.append((f"{tokens:,} read", source, "of the text that the encoder reads"))
        yield _memory_table(*rows)


def _memory_table(*rows: tuple[str, int, str]) -> Table:
    """Return a table of memory: a name, the bytes, and an explanation in each row."""
    names, sizes, about = zip(*rows, strict=True)
    return Table(
        [Column("", names, "text"), Column("", sizes, format=bytes_text), Column("", about, "text", cut="below")],
        indent=2,
    )


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


def card_forms(name: str, metadata: dict[str, str], shapes: Mapping[str, Sequence[int]], size: int) -> list[Form]:
    """Return the card; `size` is the file's size in bytes. Missing metadata is left out.

    Raises AttnctlError if the metadata is damaged.
    """
    try:
        return list(_card_forms(name, metadata, shapes, size))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise AttnctlError(f"the card of {name} is damaged: {in_one_line(error)}") from error


def _sizes_of_queries(shape: Sequence[int], metadata: Mapping[str, str]) -> tuple[int, int, int]:
    """Return heads, d_model and d_k by the shape of W_Q: (heads, d_model, d_k), or (d_model, heads · d_k)."""
    if len(shape) == 2:
        heads = int(metadata.get("n_heads", 1))
        return heads, shape[0], shape[1] // heads
    heads, d_model, d_k = shape
    return heads, d_model, d_k


def _card_forms(name: str, metadata: dict[str, str], shapes: Mapping[str, Sequence[int]], size: int) -> Iterator[Form]:
    recipe: Document = json.loads(metadata.get("recipe", "{}"))
    parameters = sum(math.prod(shape) for shape in shapes.values())
    layers = 1 + max((int(key.split(".")[1]) for key in shapes if key.startswith("layers.")), default=0)
    queries = next((shape for key, shape in shapes.items() if key.endswith("W_Q")), ())
    heads, d_model, d_k = _sizes_of_queries(queries, metadata)
    questions = QUESTIONS if recipe.get("corpus") == "grammar" and layers > 1 else ""
    data = training = ""
    if recipe:
        data, step = "the user's own text", int(metadata.get("step") or recipe["steps"])
        training = (
            f"{step:,} steps of {recipe['batch_size']} sentences, AdamW, lr {recipe['lr']:g}, seed {recipe['seed']}"
        )
    if recipe.get("corpus") == "grammar":
        data = f"{recipe['sentences']:,} sentences of attnctl's grammar; some combinations held out"
    facts = {
        "layers": f"{layers}, of {counted(heads, 'head')}, d_model {d_model}, d_k {d_k}; no MLP, no layer norm",
        "vocabulary": f"{shapes['embedding'][0]:,} words" if "embedding" in shapes else "",
        "parameters": f"{parameters:,} ({bytes_text(size)})",
        "objective": HOW.get(metadata.get("objective", ""), "") + questions,
        "loss": "cross-entropy of words, none on attention; no weight set by hand" if recipe else "",
        "data": data,
        "training": training,
        "made by": metadata.get("made_by", ""),
    }
    yield name
    yield from _named(facts, 12)
    figures = json.loads(metadata.get("figures", "{}"))
    if figures:
        yield ""
        yield Line("How often a word's largest weight on another is on the right one:", indent=2)
        yield ""
        yield relations_table(list(figures.values()), indent=2)
    if recipe.get("corpus") == "grammar":
        for part in LIMITS:
            yield ""
            yield Line(part, indent=2)
