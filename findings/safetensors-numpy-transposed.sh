#!/usr/bin/env bash
# safetensors 0.8.0: safetensors.numpy writes a transposed array in the order of its memory, under the shape of the transpose.
#
# Frameworks disagree on which axis of a weight is the input, so that a converter writes W.T, which in NumPy is a view: the memory
# stays as it was. The documentation says that tensors "need to be contiguous and dense", and safetensors.torch refuses others:
# "You are trying to save a non contiguous tensor". One expects the same of safetensors.numpy, or the right numbers, which versions up to
# 0.7.0 wrote. Version 0.8.0 writes the bytes as they lie in memory: the file has the right name, type and shape, and numbers in
# the wrong places. No error and no warning. The same holds for arrays in Fortran's order, and for heads that were brought to the
# front of their tokens. np.ascontiguousarray(W.T) is right in both versions.
#
# This script saves and loads three arrays with both versions, and exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" <<'PYTHON'
import sys

import numpy as np
import safetensors
from safetensors.numpy import load, save

weight = np.arange(6, dtype=np.float32).reshape(2, 3)
heads = np.arange(12, dtype=np.float32).reshape(3, 2, 2)  # tokens, heads, features
arrays = {
    "as it is": weight,
    "transposed": weight.T,
    "in Fortran's order": np.asfortranarray(weight),
    "heads first": heads.transpose(1, 0, 2),
    "transposed, made contiguous": np.ascontiguousarray(weight.T),
}
print("safetensors", safetensors.__version__)
wrong = []
for name, array in arrays.items():
    loaded = load(save({"array": array}))["array"]
    assert loaded.shape == array.shape and loaded.dtype == array.dtype
    if not np.array_equal(loaded, array):
        wrong.append(name)
    print(f"  {name}: saved {array.tolist()}, loaded {loaded.tolist()}")
described = {"0.7.0": [], "0.8.0": ["transposed", "in Fortran's order", "heads first"]}[safetensors.__version__]
if wrong != described:
    sys.exit(f"the behaviour has changed: wrong are {wrong}")
PYTHON
for version in 0.7.0 0.8.0; do
    python3 -m venv "$folder/venv-$version"
    "$folder/venv-$version/bin/pip" install --quiet --disable-pip-version-check safetensors==$version numpy==2.4.6
    "$folder/venv-$version/bin/python" "$folder/run.py"
done
echo "as described: version 0.8.0 writes the numbers of a transposed array in the wrong places"
