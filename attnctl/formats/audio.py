"""Speech as samples at 16 kHz: WAV by the standard library, other formats by soundfile (extra `media`) where installed."""

from __future__ import annotations

import io
import math
import re
import struct

import numpy as np

from attnctl import limits
from attnctl.arrays import Floats
from attnctl.errors import AttnctlError, in_one_line
from attnctl.files import read_bytes

RATE = 16_000  # samples a second that Whisper reads
ZERO_CROSSINGS = 16  # of the windowed sinc on each side
CHUNK = 32_768  # samples that are made at once


def read_audio(path: str) -> Floats:
    """The sound of a file, or of standard input for "-", its channels' mean: (n,) at 16 kHz, within -1 and 1.

    Raises AttnctlError where it is damaged, empty, or in a format that needs soundfile where that is not installed.
    """
    data, name = read_bytes(path, limits.AUDIO_BYTES), "standard input" if path == "-" else path
    if not data:
        raise AttnctlError(f"{name} is empty: it holds no sound")
    try:
        samples, rate = _read_wave(data)
    except EOFError as error:
        raise AttnctlError(f"cannot read the sound of {name}: {error}") from error
    except ValueError as error:
        samples, rate = _read_by_library(data, name, error)  # other formats, and compressed samples
    if not len(samples):
        raise AttnctlError(f"{name} holds no sound: it has no samples")
    if not 1_000 <= rate <= 1_000_000 or not np.isfinite(samples).all():
        raise AttnctlError(f"{name} is damaged: {rate:,} samples a second, or samples that are no numbers")
    return resampled(samples.mean(axis=1), rate)


# the first bytes of what soundfile is handed. It chooses among 25 formats by content, and most are seldom read or tested.
SOUNDS = re.compile(rb"(?s)(RIFF|RF64)....WAVE|fLaC|OggS|ID3|\xff[\xe0-\xff]")
WHOLE_NUMBERS, FLOATS, EXTENSIBLE = 1, 3, 0xFFFE  # formats of samples; of the last, the format stands further on


def _read_wave(data: bytes) -> tuple[Floats, int]:
    """Samples of a WAV file, whole numbers or floats: (n, channels), and how many there are a second.

    Raises ValueError for other samples, and for what is no WAV file, EOFError for one that is cut before its samples.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise ValueError("it is no WAV file")
    chunks: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(data) and b"data" not in chunks:
        name, size = struct.unpack_from("<4sI", data, at)
        chunks.setdefault(name, data[at + 8 : at + 8 + size])  # of a recording that was cut, what there is
        at += 8 + size + size % 2
    if len(chunks.get(b"fmt ", b"")) < 16 or b"data" not in chunks:
        raise EOFError("it is cut short")
    form, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunks[b"fmt "])
    if form == EXTENSIBLE and len(chunks[b"fmt "]) >= 26:
        form = struct.unpack_from("<H", chunks[b"fmt "], 24)[0]
    width, raw = bits // 8, chunks[b"data"]
    known = {WHOLE_NUMBERS: (1, 2, 3, 4), FLOATS: (4, 8)}.get(form, ())
    if not channels or bits % 8 or width not in known:
        raise ValueError(f"its samples are of {bits} bits in format {form}")
    raw = raw[: len(raw) - len(raw) % (width * channels)]
    if form == FLOATS:
        return np.frombuffer(raw, f"<f{width}").reshape(-1, channels).astype(np.float32), rate  # (n, channels)
    parts = np.frombuffer(raw, np.uint8).reshape(-1, channels, width)
    whole = np.zeros((*parts.shape[:2], 4), np.uint8)  # the highest bytes of 32 bits, lowest byte first
    whole[..., 4 - width :] = parts ^ (0x80 if width == 1 else 0)  # 8 bits have no sign
    return (whole.view("<i4")[..., 0] / np.float32(2**31)).astype(np.float32), rate  # (n, channels)


def _read_by_library(data: bytes, name: str, error: Exception) -> tuple[Floats, int]:
    if not SOUNDS.match(data):
        raise AttnctlError(f"cannot read the sound of {name}: it is no WAV, FLAC, Ogg or MP3, or damaged") from error
    try:
        from soundfile import read
    except (ImportError, OSError):
        raise AttnctlError(
            f"cannot read the sound of {name} ({in_one_line(error)}): formats other than WAV of whole numbers or floats "
            "need soundfile: pip install 'attnctl[media]'"
        ) from error
    try:
        samples, rate = read(io.BytesIO(data), dtype="float32", always_2d=True)
    except Exception as failed:  # of the library's own
        raise AttnctlError(f"cannot read the sound of {name}: {in_one_line(failed)}") from failed
    return samples, int(rate)


def resampled(samples: Floats, rate: int) -> Floats:
    """Samples (n,) of `rate` a second as 16,000 a second, by a sinc in a Kaiser window."""
    if rate == RATE:
        return samples
    up, down = RATE // math.gcd(RATE, rate), rate // math.gcd(RATE, rate)
    cut = min(1.0, up / down)
    width = math.ceil(ZERO_CROSSINGS / cut)
    offsets = np.arange(1 - width, width + 1)  # (taps,)
    away = np.arange(up)[:, None] / up - offsets  # (phases, taps)
    window = np.i0(8.0 * np.sqrt(np.clip(1 - (away / width) ** 2, 0, None)))
    filters = np.sinc(cut * away) * window  # (phases, taps)
    filters = (filters / filters.sum(axis=1, keepdims=True)).astype(np.float32)
    padded = np.pad(samples, width)
    made = []
    for start in range(0, count := -(-len(samples) * up // down), CHUNK):
        at, phase = np.divmod(np.arange(start, min(start + CHUNK, count)) * down, up)
        made.append(np.einsum("kt,kt->k", padded[at[:, None] + offsets + width], filters[phase]))
    return np.concatenate(made)
