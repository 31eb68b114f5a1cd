"""Sound: read by the formats that are named, and by no other that a library would choose by content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.formats.audio import read_audio


@pytest.mark.parametrize(
    ("suffix", "form"), [("flac", "FLAC"), ("ogg", "OGG"), ("mp3", "MP3"), ("wav", "RF64"), ("wav", "WAVEX")]
)
def test_the_formats_that_are_named_are_read(tmp_path: Path, suffix: str, form: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    wave = np.sin(np.arange(16_000) / 20).astype(np.float32) / 2
    soundfile.write(tmp_path / f"speech.{suffix}", wave, 16_000, format=form)
    read = read_audio(str(tmp_path / f"speech.{suffix}"))
    assert abs(len(read) - 16_000) < 3_000  # MP3 adds silence
    assert np.abs(read).max() == pytest.approx(0.5, abs=0.05)


OTHERS = {
    "AIFF": b"FORM\0\0\x0f\xffAIFF",
    "AU": b".snd\0\0\0\x18",
    "CAF": b"caff\0\x01\0\0",
    "MAT5": b"MATLAB 5.0 MAT-file",
    "NIST": b"NIST_1A\n   1024\n",
    "VOC": b"Creative Voice File\x1a",
}


@pytest.mark.parametrize("form", OTHERS)
def test_a_format_that_only_its_content_names_is_refused(tmp_path: Path, form: str) -> None:
    (tmp_path / "speech.wav").write_bytes(OTHERS[form] + bytes(4096))
    with pytest.raises(AttnctlError, match="it is no WAV, FLAC, Ogg or MP3"):
        read_audio(str(tmp_path / "speech.wav"))
