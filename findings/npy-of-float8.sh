#!/usr/bin/env bash
# numpy.save writes every array of ml_dtypes, but what the file says of its type depends on the type's kind.
#
# bfloat16 becomes V2 and float8_e4m3fn becomes V1, two bytes and one byte without a type: numpy.load gives back raw bytes, and
# the file does not say which of fifteen types of one byte it holds. float8_e5m2, the sister of float8_e4m3fn in every paper,
# is of kind f, so its header says '<f1', a type that NumPy does not know: numpy.load raises ValueError on the file that
# numpy.save wrote a moment before. One expects that both float8 types are saved alike. (ml_dtypes 0.6.0 with
# NumPy 2.4.6; jax.numpy.save is numpy.save.)
#
# This script saves and loads each, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
"$folder/venv/bin/python" - <<'PYTHON'
import io
import re

import ml_dtypes
import numpy as np

print(f"numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}")
seen = {}
for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
    file = io.BytesIO()
    np.save(file, np.array([0.5, 0.25]).astype(getattr(ml_dtypes, name)))
    header = re.search(rb"'descr': '([^']*)'", file.getvalue())[1].decode()
    file.seek(0)
    try:
        back = str(np.load(file).dtype)
    except ValueError as error:
        back = f"ValueError: {error}"
    print(f"{name}: the file says {header}, numpy.load gives {back}")
    seen[name] = header, back
right = {
    "bfloat16": ("<V2", "|V2"),
    "float8_e4m3fn": ("<V1", "|V1"),
    "float8_e5m2": ("<f1", "ValueError: descr is not a valid dtype descriptor: '<f1'"),
}
if seen != right:
    raise SystemExit("the behaviour has changed")
PYTHON
