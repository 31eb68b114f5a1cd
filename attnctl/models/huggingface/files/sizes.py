"""The sizes of a model's attention, and what follows from them: parameters, cache, grids."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnctl.models.huggingface.files.built_sizes import BuiltLayers
    from attnctl.models.huggingface.files.layer_sizes import LayerGroup


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a model's attention, and what follows from them; parameters without biases."""

    name: str
    architecture: str
    layers: int  # calls of attention, one on another; a decoder layer that also reads an encoder counts as two
    cached_layers: int  # those whose keys and values a cache keeps as a text grows: none in an encoder
    heads: int
    kv_heads: int
    d_model: int
    d_k: int
    d_v: int
    vocabulary: int | None = None
    context: int | None = None
    window: int | None = None
    # numbers a token and layer that the cache keeps instead of keys and values (DeepSeek's MLA)
    latent: int | None = None
    source: str = ""
    windowed_layers: int = 0  # of the cached ones, those that keep a window of keys and values alone
    gated: bool = False  # queries come with a gate of the same size, which closes the context
    counted: bool = False  # this family's parameters and cache were held against built networks, and are equal
    groups: tuple[LayerGroup, ...] = ()  # where layers differ in size
    stored_layer: int | None = None  # parameters of a layer as they are stored, where that is less (DeepSeek's MLA)
    built: tuple[BuiltLayers, ...] = ()  # as transformers builds them, of a family with other matrices than the four
    embedding: int | None = None  # parameters of the table, where it is not vocabulary × d_model
    cache_told: bool = True  # else the cache is of a kind that is not known here
    distinct_layers: int | None = None  # that have parameters of their own, where several share them (ALBERT)

    def per_head(self) -> dict[str, int]:
        """Parameters of one head: W_Q, W_K, W_V (d_model × d), W_O (d_v × d_model)."""
        d = self.d_model
        return {
            "W_Q": d * self.d_k * (2 if self.gated else 1),
            "W_K": d * self.d_k,
            "W_V": d * self.d_v,
            "W_O": d * self.d_v,
        }

    def per_layer(self) -> dict[str, int]:
        """Parameters of one layer: query heads have their own W_Q and W_O, key/value heads share W_K and W_V."""
        count = {"W_Q": self.heads, "W_K": self.kv_heads, "W_V": self.kv_heads, "W_O": self.heads}
        return {name: size * count[name] for name, size in self.per_head().items()}

    def in_all(self) -> dict[str, int]:
        """Parameters of all layers; those that several layers share count once."""
        if self.built:
            counts: Counter[str] = Counter()
            for part in self.built:
                counts.update({name: size * part.distinct for name, size in part.matrices})
            return dict(counts)
        if self.groups:
            parts = [group.parameter_counts(self.d_model) for group in self.groups]
            return {name: sum(part[name] for part in parts) for name in parts[0]}
        layers = self.layers if self.distinct_layers is None else self.distinct_layers
        return {name: size * layers for name, size in self.per_layer().items()}

    def stored_in_all(self) -> int:
        """Parameters of all layers together, as they are stored."""
        if self.stored_layer is None or self.built:
            return sum(self.in_all().values())
        return self.stored_layer * self.layers

    def embedding_parameters(self) -> int | None:
        """Parameters of the embedding table."""
        if self.embedding is not None:
            return self.embedding
        return None if self.vocabulary is None else self.vocabulary * self.d_model

    def cache_per_token(self) -> int:
        """Bytes that the key/value cache grows by with each token, 16 bits a number."""
        if self.cached_layers and self.built:
            return sum(part.bytes_per_token() for part in self.built if part.kind in ("self", "decoder"))
        if self.cached_layers and self.groups:
            return self.bytes_of_cache(1)
        kept = self.latent if self.latent is not None else self.kv_heads * (self.d_k + self.d_v)
        return 2 * self.cached_layers * kept

    def bytes_of_cache(self, n: int) -> int:
        """Bytes of the key/value cache of n tokens: layers with a window keep no more than that.

        Of an encoder-decoder, what its decoder keeps of n tokens of its own.
        """
        if not self.cached_layers:
            return 0
        if self.built:
            return sum(part.cache_bytes(n) for part in self.built if part.kind in ("self", "decoder"))
        if self.groups:
            return sum(group.cache_bytes(n) for group in self.groups)
        once = self.cache_per_token() // self.cached_layers
        short = min(n, self.window) if self.window is not None else n
        return once * ((self.cached_layers - self.windowed_layers) * n + self.windowed_layers * short)

    def bytes_of_source(self, n: int) -> int:
        """Bytes that the cross attention of an encoder-decoder keeps of a text of n tokens, from its first step on."""
        if not self.cached_layers or not self.reads_source:
            return 0
        if self.built:
            return sum(part.source_bytes(n) for part in self.built)
        return self.cached_layers * 2 * n * self.kv_heads * (self.d_k + self.d_v)

    @property
    def reads_source(self) -> bool:
        """Whether there is an encoder, whose output every layer of the decoder attends to."""
        return self.layers > self.cached_layers > 0

    def bytes_of_grid(self, n: int) -> int:
        """Bytes of one n × n, 32 bits a number."""
        return 4 * n * n

    def bytes_of_grids(self, n: int) -> int:
        """Bytes of every layer's and head's n × n."""
        if self.built:
            return self.bytes_of_grid(n) * sum(len(part.layers) * (part.heads or 0) for part in self.built)
        return self.bytes_of_grid(n) * self.layers * self.heads

    def bytes_unfactored(self, n: int) -> int:
        """Bytes of n × n × d_model × d_model: a matrix of its own for every two tokens, which queries and keys spare us."""
        return self.bytes_of_grid(n) * self.d_model * self.d_model
