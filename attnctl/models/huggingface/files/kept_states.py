"""What a layer keeps of a text beside the keys and values of its tokens, as transformers' own caches do, by families."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class CompressedKeys:
    """Keys that stand for `rate` tokens each (DeepSeek-V4), and the projections that wait to be compressed."""

    rate: int
    size: int  # numbers of a compressed key
    projected: int  # numbers of a token's projection, and of its gate; twice the size where keys overlap

    def numbers_kept(self, n: int) -> int:
        """Numbers kept of n tokens."""
        whole, waiting = divmod(n, self.rate)
        overlap = 2 * self.rate * self.size if self.projected == 2 * self.size and whole else 0
        return whole * self.size + 2 * waiting * self.projected + overlap


@dataclass(frozen=True)
class KeptStates:
    """How the cache of a layer differs from one of its tokens' keys and values."""

    cycles: int = 1  # how often the layer attends in a forward, each time with a cache of its own (HRM)
    added: int = 0  # tokens of the model's own before the text (CPM-Ant)
    hidden: bool = False  # hidden states are kept, of which keys and values are made anew (XLNet, Reformer)
    bucket: int = 0  # numbers of 16 bits for each token's buckets (Reformer), in texts of more than `chunk` tokens
    chunk: int = 0
    compressed: tuple[CompressedKeys, ...] = ()
    reads_source: bool = False  # the keys and values of the text that an encoder read are kept as well (T5Gemma 2)

    def numbers_beside(self, n: int) -> int:
        """Numbers of 16 bits kept of n tokens beside those of each token."""
        return sum(part.numbers_kept(n) for part in self.compressed) + (self.bucket * n if n > self.chunk else 0)

    def growth(self) -> int:
        """Numbers of 16 bits by which that grows with a token, in the long run."""
        return sum(part.size // part.rate for part in self.compressed) + self.bucket

    def beside_sentence(self) -> str:
        """What is kept, for a table: " and for every 4 tokens 512"; empty where there is nothing to say."""
        parts = [f" in each of {self.cycles} cycles"] * (self.cycles > 1)
        parts += [f", and of {self.added} tokens of its own"] * (self.added > 0)
        parts += [f", {self.bucket} for buckets"] * (self.bucket > 0)
        parts += [f", {part.size} for every {part.rate} tokens" for part in self.compressed]
        return "".join(parts)


def kept_states(module: Module, name: str, config: PreTrainedConfig) -> KeptStates:
    """What the attention `module`, named `name` in a network of this configuration, keeps otherwise."""
    kind = str(config.model_type)
    if kind == "hrm_text":
        high = bool(re.search(r"(^|\.)H_module\.", name))
        return KeptStates(cycles=config.H_cycles * (1 if high else config.L_cycles))
    if kind == "cpmant":
        return KeptStates(added=config.prompt_length)
    if kind == "xlnet":
        return KeptStates(hidden=True)
    if kind == "reformer":
        hashes = config.num_hashes if "LSH" in type(module).__name__ else 0
        buckets = 4 * config.num_attention_heads * (hashes or 0)  # 64 bits each
        return KeptStates(hidden=True, bucket=buckets, chunk=config.lsh_attn_chunk_length if buckets else 0)
    if kind.startswith("t5gemma2"):
        return KeptStates(reads_source=type(module).__name__.endswith("MergedAttention"))
    parts: list[Any] = [part for part in module.modules() if _compresses(part)]
    sizes = ((part.compress_rate, part.head_dim, part.kv_proj.out_features) for part in parts)
    return KeptStates(compressed=tuple(CompressedKeys(*size) for size in sizes))


def numbers_of_token(name: str, config: PreTrainedConfig, projected: int) -> int:
    """Numbers kept of each token in this layer; `projected` are those that its matrices make keys and values of."""
    kind = str(config.model_type)
    if kind == "xlnet":
        return int(config.d_model) if config.use_mems_eval else 0
    if kind == "reformer":
        return int(config.hidden_size)
    if kind == "blt" and re.search("global_transformer|patcher|cross", name):
        return 0  # what bytes are read as patches is read anew
    return projected


def kept_window(module: Module, config: PreTrainedConfig) -> int | None:
    """The window of a layer that keeps no more tokens, of a family that does not say so in its layers' types."""
    if str(config.model_type) == "xlnet":
        return config.mem_len or None
    compresses = any(_compresses(part) for part in module.modules())
    return int(config.sliding_window) if compresses else None


def _compresses(part: Any) -> bool:
    return isinstance(getattr(part, "compress_rate", None), int) and hasattr(part, "kv_proj")
