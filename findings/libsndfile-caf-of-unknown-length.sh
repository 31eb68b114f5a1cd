#!/usr/bin/env bash
# libsndfile 1.2.2 (soundfile 0.14.0): a Core Audio file whose length is not known is refused as malformed.
#
# Apple's specification of CAF says that the size of the audio data chunk may be -1 if it is not known and the chunk is the last
# one: a program that writes into a pipe (ffmpeg: libavformat/cafenc.c), or was ended while it recorded, cannot fill it in later. It goes
# to the end of the file. libsndfile reads such a file of AU (whose length may be 0xFFFFFFFF for the same reason), but not of CAF.
#
# Seen with soundfile 0.14.0, which brings libsndfile 1.2.2:
#   AU   with its length: 4000 samples    without: 4000 samples
#   CAF  with its length: 4000 samples    without: refused (Supported file format but file is malformed)
# Exits non-zero if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "soundfile==0.14.0" "numpy==2.4.6"
cat > "$work/run.py" <<'PYTHON'
import io
import struct
import sys

import soundfile

SAMPLES = struct.pack("<4000h", *(37 * number % 20_000 for number in range(4000)))


def caf(size):
    """Return a CAF of 16 bits, little-endian, one channel; `size` is that of its data chunk."""
    described = struct.pack(">d4sIIIII", 16_000, b"lpcm", 2, 2, 1, 1, 16)
    head = b"caff" + struct.pack(">HH", 1, 0) + b"desc" + struct.pack(">q", len(described)) + described
    return head + b"data" + struct.pack(">qI", size, 0) + SAMPLES


def au(size):
    return b".snd" + struct.pack(">IIIII", 24, size, 3, 16_000, 1) + SAMPLES


def read(data):
    try:
        return f"{len(soundfile.read(io.BytesIO(data))[0])} samples"
    except soundfile.LibsndfileError as error:
        return f"refused ({error.error_string.rstrip('.')})"


seen = {
    "AU with its length": read(au(len(SAMPLES))),
    "AU without": read(au(0xFFFFFFFF)),
    "CAF with its length": read(caf(4 + len(SAMPLES))),
    "CAF without": read(caf(-1)),
}
print(soundfile.__version__, soundfile.__libsndfile_version__)
for name, result in seen.items():
    print(f"{name}: {result}")
whole = ["4000 samples"] * 3
if list(seen.values())[:3] != whole or not seen["CAF without"].startswith("refused"):
    sys.exit("changed: see the first lines of this script")
PYTHON
"$work/venv/bin/python" "$work/run.py"
