#!/usr/bin/env bash
# webvtt-py 0.6.0, pysubs2 1.8.1 (beside pycaption 2.3.14)
#
# WebVTT writes & and < within a word as &amp; and &lt;, and the time of a later word of a cue as <00:00:01.000>. SRT has neither. One
# expects that a program which reads WebVTT and writes SRT writes "AT&T", and no time within the text.
#
# webvtt-py removes the time, but both the text of a caption and its SRT have AT&amp;T. pysubs2 leaves the text as it stands in the
# file, in plaintext and in SRT, the time within the cue too. pycaption writes AT&T alone. No error and no warning.
#
# This script converts one cue, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" <<'PYTHON'
import sys
from pathlib import Path

import pycaption
import pysubs2
import webvtt

Path("a.vtt").write_text("WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nAT&amp;T <00:00:01.000>is 3 &lt; 4\n")
webvtt.read("a.vtt").save_as_srt("a.srt")
of_pysubs2 = pysubs2.load("a.vtt")
of_pycaption = pycaption.WebVTTReader().read(Path("a.vtt").read_text())
read = {
    "webvtt-py": (webvtt.read("a.vtt")[0].text, Path("a.srt").read_text()),
    "pysubs2": (of_pysubs2[0].plaintext, of_pysubs2.to_string("srt")),
    "pycaption": (of_pycaption.get_captions("en-US")[0].get_text(), pycaption.SRTWriter().write(of_pycaption)),
}
expected = {
    "webvtt-py": "AT&amp;T is 3 &lt; 4",
    "pysubs2": "AT&amp;T <00:00:01.000>is 3 &lt; 4",
    "pycaption": "AT&T is 3 < 4",
}
as_described = True
for name, (text, srt) in read.items():
    line = srt.strip().splitlines()[2]
    print(f"{name}: its text is {text!r}, its SRT has {line!r}")
    as_described &= text == line == expected[name]
print("as described" if as_described else "CHANGED")
sys.exit(not as_described)
PYTHON
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet webvtt-py==0.6.0 pysubs2==1.8.1 pycaption==2.3.14
cd "$folder"
venv/bin/python run.py
