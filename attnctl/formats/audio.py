"""Read speech as samples at 16 kHz: soundfile reads it, soxr resamples it (extra `media`)."""

from __future__ import annotations

import io
import re
import struct

import numpy as np

from attnctl.checks import limits
from attnctl.errors import AttnctlError, in_one_line
from attnctl.runtime.arrays import Floats
from attnctl.runtime.files import read_bytes

SAMPLE_RATE = 16_000  # samples a second that Whisper reads
# the first bytes of sounds that soundfile may read. It chooses among 25 formats by content, and most are seldom tested.
SOUNDS = re.compile(rb"(?s)(RIFF|RF64)....WAVE|FORM....AIF[FC]|caff\x00\x01|\.snd|fLaC|OggS|ID3|\xff[\xe0-\xff]")


def read_audio(path: str) -> Floats:
    """Return the sound of a file, or of standard input for "-", as the mean of its channels: (n,) at 16 kHz, from -1 to 1.

    Raises AttnctlError if soundfile or soxr is not installed, or if the sound is damaged, empty, or in another format.
    """
    try:
        import soundfile
        import soxr
    except (ImportError, OSError):  # OSError: there is no libsndfile for this machine
        raise AttnctlError("sound needs soundfile and soxr: pip install 'attnctl[media]'") from None
    data, name = read_bytes(path, limits.AUDIO_BYTES), "standard input" if path == "-" else path
    if not data:
        raise AttnctlError(f"{name} is empty: it holds no sound")
    if not SOUNDS.match(data):
        raise AttnctlError(
            f"cannot read the sound of {name}: it is not WAV, FLAC, Ogg, MP3, AIFF, CAF or AU, or it is damaged"
        )
    try:
        with soundfile.SoundFile(io.BytesIO(_with_length(data))) as file:
            # hours of silence are a small file when compressed
            limits.check_memory(8.0 * file.frames * file.channels, f"reading {name}", "give a shorter sound")
            rate, samples = file.samplerate, file.read(dtype="float32", always_2d=True)  # (n, channels)
    except soundfile.LibsndfileError as error:
        reason = in_one_line(error.error_string).rstrip(".")
        raise AttnctlError(f"cannot read the sound of {name}: it is damaged ({reason})") from error
    if len(samples) and (not 1_000 <= rate <= 1_000_000 or not np.isfinite(samples).all()):
        raise AttnctlError(f"{name} is damaged: {rate:,} samples a second, or samples that are not numbers")
    mean: Floats = soxr.resample(samples.mean(axis=1), rate, SAMPLE_RATE)  # (n,)
    if not len(mean):
        raise AttnctlError(f"{name} holds no sound: it has no samples")
    return mean


def _with_length(data: bytes) -> bytes:
    """Return a sound's bytes; a CAF that was written into a pipe (its data chunk has the size -1) gets its length.

    The chunk is then the last one, by Apple's specification. libsndfile refuses such a file.
    """
    start, head = 8, struct.Struct(">4sq")  # chunks follow the file's header, each with its name and size
    while data[:4] == b"caff" and start + head.size <= len(data):
        name, size = head.unpack_from(data, start)
        start += head.size
        if name == b"data" and size == -1:
            return data[: start - 8] + struct.pack(">q", len(data) - start) + data[start:]
        if size < 0:
            break
        start += size
    return data
