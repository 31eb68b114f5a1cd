#!/usr/bin/env bash
# flax 0.12.8, jax 0.10.2
#
# nnx.MultiHeadAttention(decode=True) keeps the keys of each token in a cache, whose length init_cache sets. One expects an
# error, or a NaN, for a token more than that.
#
# There is none: the key of each further token takes the last place of the cache, whose key is lost, and the token attends to
# it and to the first places. The index of the cache goes on. So in a cache of 4, the sixth token sees the first three and
# itself: neither all six nor the last four. flax.linen.MultiHeadDotProductAttention does the same.
#
# This script shows it, and exits with 1 if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check flax==0.12.8 jax==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

print(f"flax {flax.__version__}, jax {jax.__version__}")
x = jnp.array(np.random.default_rng(0).normal(size=(1, 6, 8)), jnp.float32)
seen_by_sixth = {"all six": [0, 1, 2, 3, 4, 5], "the last four": [2, 3, 4, 5], "the first three and itself": [0, 1, 2, 5]}


def nearest(output, whole):
    """Return which tokens the sixth saw: `whole` attends from a token to tokens without a cache."""
    apart = {name: float(abs(whole(x[:, 5:], x[:, places]) - output).max()) for name, places in seen_by_sixth.items()}
    name = min(apart, key=apart.get)
    return name, apart[name]


results = {}
cached = nnx.MultiHeadAttention(2, 8, decode=True, rngs=nnx.Rngs(0))
cached.init_cache((1, 4, 8))
for i in range(6):
    output = cached(x[:, i : i + 1])
print(f"nnx: {int(cached.cache_index[...])} tokens in a cache of {cached.cached_key.shape[1]}, no error")
results["nnx"] = nearest(output, nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0)))

whole = linen.MultiHeadDotProductAttention(2)
cached = linen.MultiHeadDotProductAttention(2, decode=True)
variables = cached.init(jax.random.key(0), x[:, :4])
params, cache = variables["params"], variables["cache"]
for i in range(6):
    output, changed = cached.apply({"params": params, "cache": cache}, x[:, i : i + 1], mutable="cache")
    cache = changed["cache"]
results["linen"] = nearest(output, lambda q, k: whole.apply({"params": params}, q, k))

for name, (seen, apart) in results.items():
    print(f"{name}: the sixth token saw {seen} (difference {apart:.0e})")
if any(seen != "the first three and itself" or apart > 1e-5 for seen, apart in results.values()):
    raise SystemExit("the behaviour has changed")
PYTHON
echo "as described: a full cache overwrites its last key"
