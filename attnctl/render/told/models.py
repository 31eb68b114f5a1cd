"""The sizes of a model, and the card of one that attnctl trained."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError, in_one_line
from attnctl.limits import bytes_text
from attnctl.render.forms import Column, Form, Line, Table
from attnctl.render.told.training import relations_table
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.models.huggingface.sizes import LayerGroup, ModelSizes
    from attnctl.readings.traces.consistency import Finding
    from attnctl.text import Document


def parameter_text(count: float) -> str:
    """A number of parameters as people say it: 7.1 M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:.0f}"


def _named(facts: Mapping[str, str | None], wide: int) -> Iterator[Form]:
    """Names in `wide` cells, and beside each what is said of it."""
    return (Line(said, indent=2, hanging=wide, mark=name) for name, said in facts.items() if said)


def sizes_forms(sizes: ModelSizes, tokens: int) -> Iterator[Form]:
    """What `sizes` says, at a text of `tokens` tokens; 32 bits a number unless said."""
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
    yield sizes.name
    yield from _named(facts, 14)
    yield ""
    yield from _built_forms(sizes) if sizes.built else _parameter_forms(sizes)
    yield ""
    yield from _memory_forms(sizes, tokens)


def _parameter_forms(sizes: ModelSizes) -> Iterator[Form]:
    head, layer, every = sizes.per_head(), sizes.per_layer(), sizes.in_all()
    yield _matrix_table(sizes, every, {"a head": head, "a layer": {**layer, "together": sum(layer.values())}})
    if sizes.groups:
        kinds = "; ".join(
            f"{group.layers} of {counted(group.heads, 'head')}, {group.kv_heads} of keys, d_k {group.d_k:,}"
            f"{_own_parts(group)}"
            for group in sizes.groups
        )
        yield Line(f"(a head and a layer of the commonest sizes; in all, the layers are {kinds})", indent=2)
    if sizes.distinct_layers is not None:
        yield Line(f"({sizes.layers} layers share the parameters of {sizes.distinct_layers})", indent=2)
    if sizes.stored_layer is not None:
        stored = f"{sizes.stored_layer:,} parameters a layer, {sizes.stored_in_all():,} in all"
        note = "W_Q, W_K and W_V are stored as products of narrower matrices; these are their sizes multiplied out"
        yield Line(f"({note}. Stored are {stored})", indent=2)
    if not sizes.counted:
        yield Line(
            f"(four matrices a layer; {sizes.architecture} is not among the families of which this was held against the "
            "built network, and may have more: gates, indexers, other sizes in some layers, another cache)",
            indent=2,
        )


def _built_forms(sizes: ModelSizes) -> Iterator[Form]:
    """The matrices of a family that has others than four a layer, by transformers' names; layers that differ apart."""
    most = max(sizes.built, key=lambda group: len(group.layers))
    yield _matrix_table(sizes, sizes.in_all(), {"a layer": {**dict(most.matrices), "together": most.parameter_count()}})
    if len(sizes.built) > 1:
        yield Line("a layer: of the commonest kind; the layers are", indent=2)
        yield from (Line(group.layers_sentence(), indent=4) for group in sizes.built)
    note = f"(the matrices as transformers builds {sizes.architecture}, by its names; biases and norms not counted)"
    yield Line(note, indent=2)


def _matrix_table(sizes: ModelSizes, every: Mapping[str, int], parts: Mapping[str, Mapping[str, int | str]]) -> Table:
    """The table of parameters: each matrix's, of one of the `parts`, in all, and short; the embedding last."""
    counts = {**every, "together": sum(every.values())}
    if (embedding := sizes.embedding_parameters()) is not None:
        counts["embedding"] = embedding
        if sizes.vocabulary is not None and sizes.vocabulary * sizes.d_model == embedding:
            product = f"{sizes.vocabulary:,} × {sizes.d_model:,}"
            parts = {**parts, "a layer": {**parts["a layer"], "embedding": product}}
    return Table(
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


def _own_parts(group: LayerGroup) -> str:
    """What a group of layers lacks, in words."""
    if not group.own_keys:
        return ", which read another layer's keys and values"
    return "" if group.own_values else ", whose values are the keys"


def _memory_forms(sizes: ModelSizes, tokens: int) -> Iterator[Form]:
    spared = "a matrix for every two tokens, which queries and keys spare us"
    if not sizes.built:
        spared += f": W_Q and W_K take {bytes_text(4 * (sizes.in_all()['W_Q'] + sizes.in_all()['W_K']))}"
    yield Line(f"at {tokens:,} tokens, 32 bits a number", indent=2)
    if sizes.context is not None and tokens > sizes.context:
        yield Line(f"(longer than its context, only {sizes.context:,} tokens)", indent=2)
    yield _memory_table(
        ("one n × n", sizes.bytes_of_grid(tokens), ""),
        (
            "all of them",
            sizes.bytes_of_grids(tokens),
            f"{counted(sizes.layers, 'layer')} × {counted(sizes.heads, 'head')}",
        ),
        ("n × n × d × d", sizes.bytes_unfactored(tokens), spared),
    )
    if not sizes.cached_layers:
        return
    if not sizes.cache_told:
        yield Line(f"KV cache: {sizes.architecture} keeps one of its own kind, not counted here", indent=2)
        return
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
    yield Line("KV cache, 16 bits a number", indent=2)
    rows = [("one token", sizes.cache_per_token(), kept), (f"{tokens:,} tokens", sizes.bytes_of_cache(tokens), "")]
    if source := sizes.bytes_of_source(tokens):
        rows.append((f"{tokens:,} read", source, "of the text that the encoder reads"))
    yield _memory_table(*rows)


def _memory_table(*rows: tuple[str, int, str]) -> Table:
    """What is kept, its bytes, and what these are."""
    names, sizes, about = zip(*rows, strict=True)
    return Table(
        [Column("", names, "text"), Column("", sizes, told=bytes_text), Column("", about, "text", cut="below")],
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
    """The card; `size` is that of the file in bytes. What the metadata lacks is left out.

    Raises AttnctlError where the metadata is damaged.
    """
    try:
        return list(_card_forms(name, metadata, shapes, size))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise AttnctlError(f"the card of {name} is damaged: {in_one_line(error)}") from error


def _card_forms(name: str, metadata: dict[str, str], shapes: Mapping[str, Sequence[int]], size: int) -> Iterator[Form]:
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


MARKS = {True: "✓", False: "✗", None: "·"}  # of a check: it holds, it does not, it could not be checked


def findings_table(findings: Sequence[Finding]) -> Table:
    """What --check recomputed, a line a finding: whether it holds, what it is of, and what was found."""
    what = Column("", [f"{MARKS[one.holds]} {one.what}" for one in findings], "text", cut="below")
    return Table([what, Column("", [one.found for one in findings], "text", cut="below")], in_full=True)
