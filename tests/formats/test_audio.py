"""Sound: read by the formats that are named, and by no other that a library would choose by content."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from attnctl.errors import AttnctlError
from attnctl.formats.audio import read_audio
from attnctl.runtime.files import names_sound
from tests.tools import whisper


@pytest.mark.parametrize(
    ("suffix", "form"), [("flac", "FLAC"), ("ogg", "OGG"), ("mp3", "MP3"), ("wav", "RF64"), ("wav", "WAVEX")]
)
def test_the_formats_that_are_named_are_read(tmp_path: Path, suffix: str, form: str) -> None:
    wave = np.sin(np.arange(16_000) / 20).astype(np.float32) / 2
    soundfile.write(tmp_path / f"speech.{suffix}", wave, 16_000, format=form)
    read = read_audio(str(tmp_path / f"speech.{suffix}"))
    assert abs(len(read) - 16_000) < 3_000  # MP3 adds silence
    assert np.abs(read).max() == pytest.approx(0.5, abs=0.05)


RATE_80 = struct.pack(">HQ", 16383 + 13, 16_000 << 50)  # 16,000 as a number of 80 bits: its exponent, and its digits


def apple_chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack(">I", len(data)) + data


def as_aiff(samples: np.ndarray, kind: bytes = b"AIFF", coding: bytes = b"") -> bytes:
    """AIFF by Apple's definition of 1989 (16 bits, big-endian), or AIFC with the name of its coding."""
    common = apple_chunk(b"COMM", struct.pack(">hIh", 1, len(samples), 16) + RATE_80 + coding)
    data = samples.astype("<i2" if b"sowt" in coding else ">i2").tobytes()
    return apple_chunk(b"FORM", kind + common + apple_chunk(b"SSND", bytes(8) + data))


def as_caf(samples: np.ndarray, *, piped: bool = False) -> bytes:
    """CAF by Apple's definition: 16 bits, little-endian (flag 2); `piped` without the size of its data, as ffmpeg pipes it."""
    description = struct.pack(">d4sIIIII", 16_000, b"lpcm", 2, 2, 1, 1, 16)
    head = b"caff" + struct.pack(">HH", 1, 0) + b"desc" + struct.pack(">q", len(description)) + description
    size = -1 if piped else 4 + 2 * len(samples)
    return head + b"data" + struct.pack(">qI", size, 0) + samples.astype("<i2").tobytes()


def as_au(samples: np.ndarray) -> bytes:
    """AU by Sun's definition: 16 bits (3), big-endian."""
    return b".snd" + struct.pack(">IIIII", 24, 2 * len(samples), 3, 16_000, 1) + samples.astype(">i2").tobytes()


APPLE_AND_SUN = {
    "a.aiff": as_aiff,
    "b.AIF": lambda samples: as_aiff(samples, b"AIFC", b"NONE\x0enot compressed\0"),
    "c.aifc": lambda samples: as_aiff(samples, b"AIFC", b"sowt\0\0"),
    "d.caf": as_caf,
    "e.caf": lambda samples: as_caf(samples, piped=True),
    "f.au": as_au,
}


@pytest.mark.parametrize("name", APPLE_AND_SUN)
def test_sounds_of_apple_and_sun_are_read_sample_by_sample(tmp_path: Path, name: str) -> None:
    """The files are written here, byte by byte, from the definitions of their formats."""
    samples = np.round(20_000 * np.sin(np.arange(4_000) ** 1.2 / 20)).astype(np.int16)
    (tmp_path / name).write_bytes(APPLE_AND_SUN[name](samples))
    assert names_sound(str(tmp_path / name))
    assert np.array_equal(read_audio(str(tmp_path / name)), samples.astype(np.float32) / 32_768)


OTHERS = {
    "MAT5": b"MATLAB 5.0 MAT-file",
    "NIST": b"NIST_1A\n   1024\n",
    "VOC": b"Creative Voice File\x1a",
}


@pytest.mark.parametrize("form", OTHERS)
def test_a_format_that_only_its_content_names_is_refused(tmp_path: Path, form: str) -> None:
    (tmp_path / "speech.wav").write_bytes(OTHERS[form] + bytes(4096))
    with pytest.raises(AttnctlError, match="it is not WAV, FLAC, Ogg, MP3, AIFF, CAF or AU"):
        read_audio(str(tmp_path / "speech.wav"))


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000])
def test_samples_at_another_rate(tmp_path: Path, rate: int) -> None:
    """A tone below half of both rates comes out as the same tone; one above half of 16 kHz is gone."""

    def read_tone(pitch: int) -> np.ndarray:
        tone = np.sin(2 * np.pi * pitch * np.arange(rate) / rate) / 2
        return read_audio(str(whisper.write_wave(tmp_path / "tone.wav", tone, rate=rate, width=4)))

    made = read_tone(440)
    assert len(made) == 16_000
    assert np.abs(made - np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000) / 2)[200:-200].max() < 1e-5
    if rate > 24_000:
        assert np.abs(read_tone(10_000))[200:-200].max() < 1e-4


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wave_files_of_every_width_and_of_two_channels(tmp_path: Path, width: int) -> None:
    samples = whisper.sine(0.5)
    both = np.stack([samples, samples / 2], axis=1)
    path = whisper.write_wave(tmp_path / "a.wav", both, width=width)
    assert np.abs(read_audio(str(path)) - samples * 0.75).max() < (0.02 if width == 1 else 1e-4)


@pytest.mark.parametrize("library", ["soundfile", "soxr"])
def test_without_the_libraries_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    path = whisper.write_wave(tmp_path / "a.wav", whisper.sine(0.1))
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(AttnctlError, match=r"^sound needs soundfile and soxr: pip install 'attnctl\[media\]'$"):
        read_audio(str(path))


def test_a_small_file_of_many_hours_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "silence.flac", np.zeros(20_000_000, np.int16), 16_000)
    assert (tmp_path / "silence.flac").stat().st_size < 100_000
    monkeypatch.setattr("attnctl.checks.limits.free_memory", lambda: 100e6)
    with pytest.raises(AttnctlError, match="of memory, and .* are free: give a shorter sound"):
        read_audio(str(tmp_path / "silence.flac"))
