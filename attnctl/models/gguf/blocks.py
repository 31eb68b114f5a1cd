"""Dequantise blocks of the most used types in place, with the gguf library's numbers, bit for bit.

The library makes each step in new memory, which costs two to four times the computation. The formats are those of ggml:
https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. Each function takes the bytes of blocks (blocks, bytes), one
after another in memory, and writes their numbers to `out` (blocks, numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnctl.runtime.arrays import Bytes, Floats


def _halves(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """Return the lower four bits of all bytes, and the upper ones."""
    pairs, mask = blocks.view(np.uint16), np.uint16(0x0F0F)
    return (pairs & mask).view(np.uint8), ((pairs >> np.uint16(4)) & mask).view(np.uint8)


def _scales(blocks: Bytes, begin: int, count: int = 1) -> Floats:
    """Return `count` numbers in half precision that stand in each block: (blocks, count)."""
    stored = np.ascontiguousarray(blocks[:, begin : begin + 2 * count])
    return stored.view("<f2").astype(np.float32)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    for part, half in enumerate(_halves(blocks)):
        out[:, 16 * part : 16 * (part + 1)] = half[:, 2:]
    out -= np.float32(8)
    out *= _scales(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    for part, half in enumerate(_halves(blocks)):
        out[:, 16 * part : 16 * (part + 1)] = half[:, 4:]
    scales = _scales(blocks, 0, 2)
    out *= scales[:, :1]
    out += scales[:, 1:]


def _q5_0(blocks: Bytes, out: Floats) -> None:
    numbers = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")  # the fifth bit: (blocks, 32)
    numbers <<= np.uint8(4)
    for part, half in enumerate(_halves(blocks)):
        numbers[:, 16 * part : 16 * (part + 1)] |= half[:, 6:]
    out[...] = numbers
    out -= np.float32(16)
    out *= _scales(blocks, 0)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    out[...] = blocks[:, 2:].view(np.int8)
    out *= _scales(blocks, 0)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    numbers = out.reshape(-1, 4, 2, 32)
    for part, half in enumerate(_halves(blocks)):
        numbers[:, :, part] = half[:, 16:].reshape(-1, 4, 32)
    from attnctl.models.huggingface.hub import import_extra

    library: Any = import_extra("gguf.quants")
    both = _scales(blocks, 0, 2)
    scales, minima = library.Q4_K.get_scale_min(blocks[:, 4:16])
    groups = out.reshape(-1, 8, 32)
    groups *= (both[:, :1] * scales.astype(np.float32))[:, :, None]
    groups -= (both[:, 1:] * minima.astype(np.float32))[:, :, None]


def _q6_k(blocks: Bytes, out: Floats) -> None:
    bits = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
    numbers = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> bits  # the upper two bits: (blocks, 2, 4, 32)
    numbers &= np.uint8(3)
    numbers <<= np.uint8(4)
    pairs = numbers.reshape(-1, 2, 2, 64)
    for part, half in enumerate(_halves(blocks)):
        pairs[:, :, part] |= half[:, :128].reshape(-1, 2, 64)
    out[...] = numbers.reshape(out.shape)
    out -= np.float32(32)
    scales = _scales(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)  # (blocks, 16)
    sixteens = out.reshape(-1, 16, 16)
    sixteens *= scales[:, :, None]


IN_PLACE: Mapping[str, Callable[[Bytes, Floats], None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
