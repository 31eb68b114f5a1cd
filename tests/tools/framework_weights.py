"""Write tests/models/builtin/framework_weights.npz: one attention of each library, its raw tensors and its own answer.

Needs: pip install torch flax keras x-transformers transformers "mlx[cpu]" (made with torch 2.13, flax 0.12.8, Keras 3.15.1,
x-transformers 2.31.10, transformers 5.24, mlx 0.32.4). Each library computes in float64 what its float32 weights give,
but MLX, and the softmax of transformers, in float32.

    python -m tests.tools.framework_weights
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

TARGET = Path(__file__).parent.parent / "models" / "builtin" / "framework_weights.npz"
N, D, HEADS = 5, 8, 2
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
Answer = tuple[dict[str, Any], Any, Any]  # tensors by the library's names, weights (heads, n, n), output (n, d)


def torch_attention() -> Answer:
    import torch

    module = torch.nn.MultiheadAttention(D, HEADS, batch_first=True)
    torch.nn.init.normal_(module.in_proj_bias)
    torch.nn.init.normal_(module.out_proj.bias)
    tensors = {name: tensor.numpy(force=True).copy() for name, tensor in module.state_dict().items()}
    x = torch.from_numpy(X)[None].double()
    output, weights = module.double()(x, x, x, average_attn_weights=False)
    return tensors, weights[0].numpy(force=True), output[0].numpy(force=True)


def flax_linen() -> Answer:
    import jax
    from flax import linen
    from flax.traverse_util import flatten_dict

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            return linen.MultiHeadDotProductAttention(
                num_heads=HEADS, bias_init=linen.initializers.normal(1.0), param_dtype=x.dtype
            )(x, sow_weights=True)

    jax.config.update("jax_enable_x64", True)
    state = Net().init(jax.random.key(0), X)
    output, kept = Net().apply(state, X.astype(np.float64), mutable="intermediates")
    weights = next(iter(flatten_dict(kept).values()))[0]
    return flatten_dict(state, sep="/"), weights, output


def flax_nnx() -> Answer:
    import jax
    from flax import nnx

    jax.config.update("jax_enable_x64", True)
    module = nnx.MultiHeadAttention(
        num_heads=HEADS, in_features=D, qkv_features=HEADS * 3, decode=False, rngs=nnx.Rngs(0)
    )
    leaves = nnx.to_flat_state(nnx.state(module, nnx.Param))
    tensors = {".".join(map(str, path)): np.array(leaf.get_value(), np.float32) for path, leaf in leaves}
    output = module(X.astype(np.float64)[None], sow_weights=True)
    (_, sown), *_ = nnx.to_flat_state(nnx.state(module, nnx.Intermediate))
    return tensors, sown.get_value()[0][0], output[0]


def keras_attention(kind: str) -> Answer:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    heads: Any = (
        {"num_heads": HEADS} if kind == "MultiHeadAttention" else {"num_query_heads": 4, "num_key_value_heads": 2}
    )
    size = {"key_dim": 3} if kind == "MultiHeadAttention" else {"head_dim": 3}
    layer = getattr(keras.layers, kind)(**heads, **size, bias_initializer="random_normal", dtype="float64")
    x = X[None].astype(np.float64)
    layer(x, x)
    for weight in layer.weights:
        weight.assign(keras.ops.convert_to_numpy(weight).astype(np.float32))
    tensors = {weight.path: keras.ops.convert_to_numpy(weight) for weight in layer.weights}
    output, weights = layer(x, x, return_attention_scores=True)
    return tensors, keras.ops.convert_to_numpy(weights)[0], keras.ops.convert_to_numpy(output)[0]


def x_transformers() -> Answer:
    import torch
    from x_transformers import Attention

    module = Attention(dim=D, heads=HEADS, dim_head=4)
    tensors = {name: tensor.numpy(force=True).copy() for name, tensor in module.state_dict().items()}
    output, intermediates = module.double()(torch.from_numpy(X)[None].double(), return_intermediates=True)
    return tensors, intermediates.post_softmax_attn[0].numpy(force=True), output[0].numpy(force=True)


def transformers_clip() -> Answer:
    import torch
    from transformers import CLIPTextConfig
    from transformers.models.clip.modeling_clip import CLIPAttention

    config = CLIPTextConfig(hidden_size=D, num_attention_heads=HEADS)
    config._attn_implementation = "eager"
    module = CLIPAttention(config)
    tensors = {f"self_attn.{name}": tensor.numpy(force=True).copy() for name, tensor in module.state_dict().items()}
    module = module.double().train(False)
    output, weights = module(torch.from_numpy(X)[None].double())
    return tensors, weights[0].numpy(force=True), output[0].numpy(force=True)


def mlx_attention() -> Answer:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    module = nn.MultiHeadAttention(D, HEADS, bias=True)
    tensors = {name: np.array(value) for name, value in tree_flatten(module.parameters())}
    x = mx.array(X)[None]
    q, k = (
        projection(x).reshape(1, N, HEADS, -1).transpose(0, 2, 1, 3)
        for projection in (module.query_proj, module.key_proj)
    )
    scores = q @ k.transpose(0, 1, 3, 2) * (D // HEADS) ** -0.5  # the fused kernel gives no weights
    return tensors, np.array(mx.softmax(scores, axis=-1))[0], np.array(module(x, x, x))[0]


def answers() -> Iterator[tuple[str, Answer]]:
    """Yield the name and the answer of each library."""
    yield "torch", torch_attention()
    yield "flax-linen", flax_linen()
    yield "flax-nnx", flax_nnx()
    yield "keras", keras_attention("MultiHeadAttention")
    yield "keras-grouped", keras_attention("GroupQueryAttention")
    yield "x-transformers", x_transformers()
    yield "transformers", transformers_clip()
    yield "mlx", mlx_attention()


def main() -> None:
    """Write the file."""
    arrays: dict[str, Any] = {"X": X}
    for library, (tensors, weights, output) in answers():
        arrays |= {f"{library}|{name}": np.array(value, np.float32) for name, value in tensors.items()}
        arrays |= {f"{library}>weights": np.array(weights), f"{library}>output": np.array(output)}
        print(library, {name: value.shape for name, value in tensors.items()}, arrays[f"{library}>weights"].dtype)
    np.savez_compressed(TARGET, **arrays)


if __name__ == "__main__":
    main()
