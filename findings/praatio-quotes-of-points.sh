#!/usr/bin/env bash
# praatio 6.2.2 (beside praat-parselmouth 0.4.7, which is Praat)
#
# In a TextGrid a quotation mark within a label is written twice. One expects that a reader takes one of the two away, for the labels
# of intervals and of points, and that a file which is only read and saved keeps its labels.
#
# praatio does so for intervals, and for points of the short format. Of points in the long format, which Praat writes, it keeps both
# marks, and save() doubles them again: after each reading and saving Praat shows twice as many. No error and no warning.
#
# This script lets Praat write a TextGrid, and praatio read and save it twice; it exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" <<'PYTHON'
import sys

import parselmouth
from parselmouth.praat import call
from praatio import textgrid

grid = parselmouth.TextGrid(0, 1, "words marks", "marks")
call(grid, "Set interval text", 1, 1, 'say "hi"')
call(grid, "Insert point", 2, 0.5, 'a "b"')
grid.save("0.TextGrid")
call(grid, "Save as short text file", "short.TextGrid")


def by_praat(file):
    grid = parselmouth.read(file)
    return call(grid, "Get label of interval", 1, 1), call(grid, "Get label of point", 2, 1)


def by_praatio(file):
    grid = textgrid.openTextgrid(file, includeEmptyIntervals=True)
    return tuple(grid.getTier(name).entries[0].label for name in ("words", "marks"))


read = [("short format", by_praat("short.TextGrid"), by_praatio("short.TextGrid"))]
for turn in range(3):
    file = f"{turn}.TextGrid"
    read.append((f"long format, saved by praatio {turn} times", by_praat(file), by_praatio(file)))
    grid = textgrid.openTextgrid(file, includeEmptyIntervals=True)
    grid.save(f"{turn + 1}.TextGrid", format="long_textgrid", includeBlankSpaces=True)
for what, *labels in read:
    print(f"{what}:", *(f"{name} reads {' and '.join(pair)}" for name, pair in zip(("Praat", "praatio"), labels)), sep="\n  ")
marks = ['a "b"', 'a ""b""', 'a """"b""""', 'a """"""""b""""""""']
as_described = [(praat[1], praatio[1]) for _, praat, praatio in read] == [
    (marks[0], marks[0]), (marks[0], marks[1]), (marks[1], marks[2]), (marks[2], marks[3])
] and all(label[0] == 'say "hi"' for _, *labels in read for label in labels)
print("as described" if as_described else "CHANGED")
sys.exit(not as_described)
PYTHON
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet praatio==6.2.2 praat-parselmouth==0.4.7
cd "$folder"
venv/bin/python run.py
