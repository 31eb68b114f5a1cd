"""A Llama in NumPy: its weights from the bytes of a safetensors file, its attention by the paper's formulas; no library's loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8", "BOOL": "?"}


def float8(data: bytes) -> Array:
    """The numbers of E4M3 (1 sign, 4 exponent bits with bias 7, 3 mantissa bits; no infinity), as OCP's standard defines them."""
    codes = np.frombuffer(data, np.uint8)
    sign, exponent, mantissa = 1 - 2.0 * (codes >> 7), (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent.astype(float) - 7))
    return np.where((codes & 127) == 127, np.nan, sign * size)


def tensors_of(path: Path) -> dict[str, Array]:
    """Name → numbers of a safetensors file: a length, a header of JSON, and the bytes."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            part = data[begin + first : begin + last]
            if entry["dtype"] == "F8_E4M3":
                numbers: Array = float8(part)
            elif entry["dtype"] == "BF16":  # the upper half of a float32
                numbers = (np.frombuffer(part, "<u2").astype("<u4") << 16).view("<f4")
            else:
                numbers = np.frombuffer(part, TYPES[entry["dtype"]])
            tensors[name] = numbers.reshape(entry["shape"]).astype(np.float64)
    return tensors


def attention(tensors: dict[str, Array], settings: dict[str, Any], ids: list[int]) -> list[Array]:
    """The weights (heads, n, n) of each layer; a bias counts if the file holds it."""
    heads, kv_heads = settings["num_attention_heads"], settings["num_key_value_heads"]
    d, n = settings.get("head_dim") or settings["hidden_size"] // heads, len(ids)
    theta = settings.get("rope_theta") or settings["rope_parameters"]["rope_theta"]
    angles = np.arange(n)[:, None] / theta ** (np.arange(0, d, 2) / d)  # (n, d / 2)
    cos, sin = np.cos(angles), np.sin(angles)

    def normed(x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + settings["rms_norm_eps"]) * tensors[name]

    def linear(x: Array, name: str) -> Array:
        return x @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0)

    def turned(x: Array) -> Array:  # (heads, n, d): pairs are half a head apart
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    hidden, weights = tensors["model.embed_tokens.weight"][ids], []
    for layer in range(settings["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        x = normed(hidden, f"{at}.input_layernorm.weight")
        q, k, v = (linear(x, f"{at}.self_attn.{part}_proj").reshape(n, -1, d).swapaxes(0, 1) for part in "qkv")
        k, v = (np.repeat(part, heads // kv_heads, axis=0) for part in (k, v))
        scores = turned(q) @ turned(k).swapaxes(1, 2) / np.sqrt(d)
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        weights.append(shares / shares.sum(-1, keepdims=True))
        hidden = hidden + linear((weights[-1] @ v).swapaxes(0, 1).reshape(n, -1), f"{at}.self_attn.o_proj")
        x = normed(hidden, f"{at}.post_attention_layernorm.weight")
        gate = linear(x, f"{at}.mlp.gate_proj")
        hidden = hidden + linear(gate / (1 + np.exp(-gate)) * linear(x, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj")
    return weights
