#!/usr/bin/env bash
# conllu 6.0.0 (beside pyconll 3.3.1)
#
# A word of a CoNLL-U treebank carries attributes in its last column, name=value with "|" between them; a value may hold "=", as
# an address does. One expects that conllu.parse gives the whole value, and that serialize() writes the line that was read.
#
# The value ends at its own first "=": Ref=https://example.org/?id=7 is read, and written, as Ref=https://example.org/?id. A
# comment line without "=" is kept if it is newdoc or newpar, and lost otherwise, as is one whose value is empty. No error and no
# warning. pyconll keeps all of it.
#
# This script reads one sentence and writes it, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" <<'PYTHON'
import sys

import conllu
import pyconll

COMMENTS = ["# newpar", "# sent_id = 1", "# text_en = x = 1", "# checked", "# text = Read it"]
WORDS = [
    "1\tRead\tread\tVERB\t_\t_\t0\troot\t0:root\tRef=https://example.org/?id=7",
    "2\tit\tit\tPRON\t_\t_\t1\tobj\t1:obj\tGloss=3sg=n|Note=a",
]
source = "\n".join([*COMMENTS, *WORDS]) + "\n\n"
(sentence,) = conllu.parse(source)
written = sentence.serialize()
lost = [line for line in source.splitlines() if line not in written.splitlines()]
instead = [line for line in written.splitlines() if line not in source.splitlines()]
print("attributes that conllu reads:", [word["misc"] for word in sentence])
print("lines that it does not write:", *lost, sep="\n  ")
print("lines that it writes instead:", *instead, sep="\n  ")
kept = pyconll.load_from_string(source).conll().rstrip() == source.rstrip()
print("pyconll writes what it read:", kept)
as_described = (
    [word["misc"] for word in sentence]
    == [{"Ref": "https://example.org/?id"}, {"Gloss": "3sg", "Note": "a"}]
    and lost == [COMMENTS[3], *WORDS]
    and len(instead) == 2
    and kept
)
print("as described" if as_described else "CHANGED")
sys.exit(not as_described)
PYTHON
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet conllu==6.0.0 pyconll==3.3.1
"$folder/venv/bin/python" "$folder/run.py"
