"""Tiny GGUF files with random weights: a Llama, a Gemma 3 and a gpt-oss, under llama.cpp's names and under Ollama's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.tools.gguf_tokens import merged_bytes

Tensors = dict[str, np.ndarray]
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}</s>{% endfor %}"
WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD = 32, 48, 2, 4, 2, 8


def write_file(path: Path, architecture: str, settings: Mapping[str, Any], tensors: Tensors, **tokens: Any) -> Path:
    """Write a GGUF file: settings without the architecture's name, tensors in float32, and a vocabulary of bytes."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    vocabulary = merged_bytes("gpt-2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokens.get("pre", "gpt-2"))
    writer.add_token_list(vocabulary.tokens[: tokens.get("count")])
    writer.add_token_types(vocabulary.types[: tokens.get("count")])
    writer.add_token_merges(vocabulary.merges or [])
    if "template" in tokens:
        writer.add_chat_template(tokens["template"])
    for key, value in settings.items():
        adders: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        adders |= {str: writer.add_string, list: writer.add_array}
        adders[type(value)](f"{architecture}.{key}", value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary_size() -> int:
    """Return the rows of the tables of embeddings."""
    return len(merged_bytes("gpt-2").tokens)


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> Tensors:
    """Return random tensors: norms around 1, and matrices that keep the size of what they multiply."""
    generator = np.random.default_rng(seed)
    arrays: Tensors = {}
    for name, shape in shapes.items():
        values = generator.standard_normal(shape).astype(np.float32)
        is_norm = len(shape) == 1 and "norm" in name
        scale = 0.2 if len(shape) == 1 else 1.5 / shape[-1] ** 0.5 if name != "token_embd.weight" else 1.0
        arrays[name] = values * np.float32(scale) + np.float32(is_norm)
    return arrays


def layer_shapes(head: int = HEAD, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of all layers, and of the tables; `more` are further ones of a layer."""
    parts = {
        "attn_norm.weight": (WIDTH,), "attn_q.weight": (HEADS * head, WIDTH), "attn_k.weight": (KV_HEADS * head, WIDTH),
        "attn_v.weight": (KV_HEADS * head, WIDTH), "attn_output.weight": (WIDTH, HEADS * head), "ffn_norm.weight": (WIDTH,),
        "ffn_gate.weight": (HIDDEN, WIDTH), "ffn_up.weight": (HIDDEN, WIDTH), "ffn_down.weight": (WIDTH, HIDDEN),
    }  # fmt: skip
    parts |= {name.replace("__", "."): shape for name, shape in more.items()}
    shapes = {f"blk.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in parts.items()}
    return {"token_embd.weight": (vocabulary_size(), WIDTH), "output_norm.weight": (WIDTH,)} | shapes


SIZES: Mapping[str, Any] = {
    "block_count": LAYERS, "context_length": 128, "embedding_length": WIDTH, "feed_forward_length": HIDDEN,
    "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip


def write_llama(path: Path) -> Path:
    """Write a Llama, with a chat template."""
    return write_file(path, "llama", SIZES, random_tensors(layer_shapes()), template=TEMPLATE)
