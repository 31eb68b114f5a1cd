"""The sizes of a model's attention, and what follows from them: parameters, cache, n × n matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Struct

from attnctl.checks.document_fields import Count, Index, about
from attnctl.text import counted, number_list

# size → its names in configurations
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads", "attention_heads"),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim", "emb_dim"),
    "kv_heads": ("kv_n_heads", "num_key_value_heads", "num_kv_heads"),
    "d_k": ("head_dim", "d_kv", "attention_head_dim"),
    "d_v": ("v_head_dim",),
    "vocabulary": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "decoder_layers": ("num_decoder_layers", "decoder_layers"),
}


class CachedLayers(Struct, frozen=True):
    """Layers whose cache is the same for each token: keys, values, and an indexer's key if there is one."""

    layers: Annotated[Count, about("How many.")]
    heads: Count
    d_k: Count
    d_v: Count
    indexer: Annotated[Index, about("Numbers of the key by which an indexer finds a token.")]
    window: Annotated[int | None, about("Tokens that are kept; null: all.")]
    of_source: Annotated[bool, about("Whether of the text that an encoder read.")]

    def cache_bytes(self, n: int) -> int:
        """Return the bytes of the cache for n tokens, at 16 bits a number."""
        tokens = n if self.window is None else min(n, self.window)
        return 2 * self.layers * (self.heads * (self.d_k + self.d_v) + self.indexer) * tokens

    def kept_sentence(self) -> str:
        """Return the contents of the cache for a table: "20 layers × 2 heads × (256 + 256)"."""
        heads = f"{counted(self.layers, 'layer')} × {counted(self.heads, 'head')} × ({self.d_k} + {self.d_v})"
        indexer = f" + {self.indexer} of an indexer" if self.indexer else ""
        return heads + indexer + ("" if self.window is None else f" of the last {self.window:,} tokens")


@dataclass(frozen=True)
class AttentionLayers:
    """Layers of the same sizes; parameters without biases and norms."""

    layers: Sequence[int]
    kind: str  # self; for an encoder-decoder: encoder, decoder or cross
    heads: int
    kv_heads: int
    d_k: int
    d_v: int
    matrices: tuple[tuple[str, int], ...]  # of one layer: a matrix's name, its parameters
    distinct: int  # how many layers have parameters of their own

    def parameter_count(self) -> int:
        """Return the number of parameters of one layer."""
        return sum(count for _, count in self.matrices)

    def layers_sentence(self) -> str:
        """Return a line about the layers for a table: "2: 8 heads, 2 of keys, d_k 64; 1,024 parameters each"."""
        kind = "" if self.kind == "self" else f"{self.kind} "
        shared = f", {self.kv_heads} of keys" if self.kv_heads != self.heads else ""
        sizes = f", d_k {self.d_k}" + (f", d_v {self.d_v}" if self.d_v != self.d_k else "")
        each = f"{self.parameter_count():,} parameters" + (" each" if len(self.layers) > 1 else "")
        return f"{kind}{number_list(self.layers)}: {counted(self.heads, 'head')}{shared}{sizes}; {each}"


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a model's attention, and what follows from them; parameters without biases and norms."""

    name: str
    architecture: str
    groups: tuple[AttentionLayers, ...]
    d_model: int
    vocabulary: int | None = None
    context: int | None = None
    embedding: int | None = None  # parameters of the table
    cache: tuple[CachedLayers, ...] | None = None  # None: not counted
    built: bool = False  # counted in a network that transformers built; else computed as four matrices a layer
    source: str = ""
    file_facts: Mapping[str, str] = field(default_factory=dict)  # of a GGUF file: title → sentence

    @property
    def layers(self) -> int:
        """Return the number of attention calls in a forward; a decoder layer that also reads an encoder counts as two."""
        return sum(len(group.layers) for group in self.groups)

    @property
    def main_layers(self) -> AttentionLayers:
        """Return the layers with the commonest sizes."""
        return max(self.groups, key=lambda group: len(group.layers))

    @property
    def window(self) -> int | None:
        """Return how many tokens the cache keeps in the layers with a window; None if no layer has a window."""
        return max((part.window for part in self.cache or () if part.window is not None), default=None)

    def per_head(self) -> dict[str, int] | None:
        """Return the parameters of one head: W_Q, W_K (d_model × d_k), W_V, W_O (d_model × d_v).

        Return None if the heads differ from layer to layer, or a layer has other matrices.
        """
        main, d = self.main_layers, self.d_model
        parameters = {"W_Q": d * main.d_k, "W_K": d * main.d_k, "W_V": d * main.d_v, "W_O": d * main.d_v}
        heads = {"W_Q": main.heads, "W_K": main.kv_heads, "W_V": main.kv_heads, "W_O": main.heads}
        together = sum(parameters[name] * heads[name] for name in parameters)
        sizes = (main.heads, main.kv_heads, main.d_k, main.d_v, together)
        each = {(part.heads, part.kv_heads, part.d_k, part.d_v, part.parameter_count()) for part in self.groups}
        return parameters if each == {sizes} else None

    def per_layer(self) -> dict[str, int]:
        """Return the parameters of one layer with the commonest sizes, by the name of the matrix."""
        main = self.main_layers
        if (head := self.per_head()) is None:
            return dict(main.matrices)
        heads = {"W_Q": main.heads, "W_K": main.kv_heads, "W_V": main.kv_heads, "W_O": main.heads}
        return {name: size * heads[name] for name, size in head.items()}

    def in_all(self) -> dict[str, int]:
        """Return the parameters of all layers; a matrix that several layers share counts once."""
        counts: Counter[str] = Counter()
        for part in self.groups:
            parameters = dict(part.matrices) if self.per_head() is None else self.per_layer()
            counts.update({name: size * part.distinct for name, size in parameters.items()})
        return dict(counts)

    def cache_bytes(self, n: int, of_source: bool = False) -> int | None:
        """Return the bytes of the key/value cache of n tokens, 16 bits a number; None if the cache is not counted.

        For an encoder-decoder: the decoder's cache of n tokens it wrote, or with `of_source`, of n tokens the encoder read.
        """
        if self.cache is None:
            return None
        return sum(part.cache_bytes(n) for part in self.cache if part.of_source is of_source)

    def bytes_of_grid(self, n: int) -> int:
        """Return the bytes of one n × n matrix, 32 bits a number."""
        return 4 * n * n

    def bytes_of_grids(self, n: int) -> int:
        """Return the bytes of the n × n matrices of all layers and heads."""
        return self.bytes_of_grid(n) * sum(len(part.layers) * part.heads for part in self.groups)

    def bytes_unfactored(self, n: int) -> int:
        """Return the bytes of n × n × d_model × d_model: a full matrix for each pair of tokens, if there were no Q and K."""
        return self.bytes_of_grid(n) * self.d_model * self.d_model
