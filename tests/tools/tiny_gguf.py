"""Tiny GGUF files with random weights: a Llama, a Gemma 3 and a gpt-oss, under llama.cpp's names and under Ollama's.

python -m tests.tools.tiny_gguf tests/models/gguf/llamacpp_layouts.npz   # llama.cpp's ids and weights of both, needs xllamacpp
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.tools.gguf_tokens import merged_bytes

Tensors = dict[str, np.ndarray]
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}</s>{% endfor %}"
TEXT = "the rain on the stone and the hand in the sand"
WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD = 32, 48, 2, 4, 2, 8


def write_file(
    path: Path,
    architecture: str,
    settings: Mapping[str, Any],
    tensors: Tensors,
    splits: Mapping[str, Any] = {},
    **tokens: Any,
) -> Path:
    """Write a GGUF file: settings without the architecture's name, tensors in float32, and a vocabulary of bytes."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture, **splits)
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


def layer_shapes(layers: int = LAYERS, /, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of all layers, and of the tables; `more` are further ones of a layer."""
    parts = {
        "attn_norm.weight": (WIDTH,), "attn_q.weight": (HEADS * HEAD, WIDTH), "attn_k.weight": (KV_HEADS * HEAD, WIDTH),
        "attn_v.weight": (KV_HEADS * HEAD, WIDTH), "attn_output.weight": (WIDTH, HEADS * HEAD), "ffn_norm.weight": (WIDTH,),
        "ffn_gate.weight": (HIDDEN, WIDTH), "ffn_up.weight": (HIDDEN, WIDTH), "ffn_down.weight": (WIDTH, HIDDEN),
    }  # fmt: skip
    parts |= {name.replace("__", "."): shape for name, shape in more.items()}
    shapes = {f"blk.{layer}.{name}": shape for layer in range(layers) for name, shape in parts.items()}
    return {"token_embd.weight": (vocabulary_size(), WIDTH), "output_norm.weight": (WIDTH,)} | shapes


SIZES: dict[str, Any] = {
    "block_count": LAYERS, "context_length": 128, "embedding_length": WIDTH, "feed_forward_length": HIDDEN,
    "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip


def write_llama(path: Path, **splits: int) -> Path:
    """Write a Llama, with a chat template; `splits` are gguf's options for files in parts."""
    return write_file(path, "llama", SIZES, random_tensors(layer_shapes()), splits, template=TEMPLATE)


GEMMA3: dict[str, Any] = SIZES | {
    "context_length": 131_072, "attention.key_length": HEAD, "attention.value_length": HEAD, "attention.sliding_window": 16,
    "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1_000_000.0, "rope.freq_base_swa": 10_000.0, "block_count": 6,
    "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
}  # fmt: skip
GPT_OSS: dict[str, Any] = SIZES | {
    "attention.key_length": HEAD, "attention.value_length": HEAD, "attention.sliding_window": 8, "rope.freq_base": 150_000.0,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 64,
    "context_length": 2048, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": HIDDEN,
}  # fmt: skip


def gemma3_tensors() -> Tensors:
    """Return the tensors of a Gemma 3 of six layers, under llama.cpp's names."""
    heads = {"attn_q_norm__weight": (HEAD,), "attn_k_norm__weight": (HEAD,)}
    after = {"post_attention_norm__weight": (WIDTH,), "post_ffw_norm__weight": (WIDTH,)}
    return random_tensors(layer_shapes(6, **heads, **after))


def gpt_oss_tensors() -> Tensors:
    """Return the tensors of a gpt-oss, under llama.cpp's names."""
    shapes = layer_shapes(
        attn_sinks__weight=(HEADS,), post_attention_norm__weight=(WIDTH,), ffn_gate_inp__weight=(4, WIDTH)
    )
    for name in [name for name in shapes if ".ffn_" in name and "inp" not in name]:
        layer, part = name.split(".")[1:3]
        rows, columns = (WIDTH, HIDDEN) if part == "ffn_down" else (HIDDEN, WIDTH)
        del shapes[name]
        if part != "ffn_norm":
            shapes[f"blk.{layer}.{part}_exps.weight"] = (4, rows, columns)
            shapes[f"blk.{layer}.{part}_exps.bias"] = (4, rows)
    for number in range(LAYERS):
        layer = str(number)
        shapes |= {f"blk.{layer}.attn_q.bias": (HEADS * HEAD,), f"blk.{layer}.attn_output.bias": (WIDTH,)}
        shapes |= {f"blk.{layer}.attn_{part}.bias": (KV_HEADS * HEAD,) for part in "kv"}
        shapes[f"blk.{layer}.ffn_gate_inp.bias"] = (4,)
    shapes["output.weight"] = (vocabulary_size(), WIDTH)
    return random_tensors(shapes)


def renamed(tensors: Tensors, names: Mapping[str, str]) -> Tensors:
    """Return tensors with parts of their names replaced."""
    arrays = {}
    for name, array in tensors.items():
        for old, new in names.items():
            name = name.replace(old, new)
        arrays[name] = array
    return arrays


def write_gemma3(path: Path, *, ollama: bool = False) -> Path:
    """Write a Gemma 3, or the same one as Ollama wrote it: other keys, no scaling, a part for pictures, further tokens."""
    settings, tensors = dict(GEMMA3), gemma3_tensors()
    if not ollama:
        return write_file(path, "gemma3", settings, tensors)
    settings["rope.global.freq_base"] = settings.pop("rope.freq_base")
    settings["rope.local.freq_base"] = settings.pop("rope.freq_base_swa")
    for key in ("attention.layer_norm_rms_epsilon", "rope.scaling.type", "rope.scaling.factor"):
        del settings[key]
    settings |= {"vision.block_count": 1, "mm.tokens_per_image": 256}
    pictures = {
        "v.patch_embedding.weight": np.ones((4, 4), np.float32),
        "mm.mm_input_projection.weight": np.ones((4, 4), np.float32),
    }
    tensors["token_embd.weight"] = tensors["token_embd.weight"][:-3]  # the last tokens have no row
    return write_file(path, "gemma3", settings, tensors | pictures)


def write_gpt_oss(path: Path, *, ollama: bool = False) -> Path:
    """Write a gpt-oss, or the same one as Ollama wrote it."""
    settings, tensors = dict(GPT_OSS), gpt_oss_tensors()
    if not ollama:
        return write_file(path, "gpt-oss", settings, tensors, pre="gpt-4o")
    for key in ("expert_feed_forward_length", "rope.scaling.type"):
        del settings[key]
    names = {"attn_output": "attn_out", "attn_sinks.weight": "attn_sinks", "post_attention_norm": "ffn_norm"}
    return write_file(path, "gptoss", settings, renamed(tensors, names), pre="default")


def main(target: str) -> None:
    """Store llama.cpp's ids and weights of TEXT with the files under its names."""
    from tests.tools.llamacpp import LlamaCpp

    arrays: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("gemma3", write_gemma3), ("gpt_oss", write_gpt_oss)):
            model = LlamaCpp(write(Path(folder) / f"{name}.gguf"))
            answer = model.run(model.tokenize(TEXT))
            arrays |= {f"{name}_ids": np.array(answer.ids), f"{name}_weights": np.stack([*answer.weights.values()])}
    np.savez_compressed(target, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
