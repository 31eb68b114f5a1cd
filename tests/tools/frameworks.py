"""What frameworks mean by the same word: runs each of them, and writes attnctl/docs/frameworks.md.

    # beside attnctl:
    pip install jax keras onnxruntime onnx onnxscript openvino "mlx[cpu]" x-transformers ctranslate2 pymarian
    python -m tests.tools.frameworks             # prints the table of what is installed
    python -m tests.tools.frameworks write       # writes the page; every framework must be installed

It installs nothing. Each cell is computed from what a framework returned; a result that is none of the expected ones is an error.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).resolve().parents[2] / "attnctl" / "docs" / "frameworks.md"
N_Q, N_K, D = 2, 5, 5
RNG = np.random.default_rng(0)
Q, K = (RNG.normal(size=(1, 2, n, D)).astype(np.float32) for n in (N_Q, N_K))  # (batch, heads, n, d)
V = np.broadcast_to(np.eye(N_K, dtype=np.float32), (1, 2, N_K, N_K)).copy()  # so that the output is the weights
NOTHING = np.array([[False] * N_K, [True] * N_K])  # the first query sees no key
LAST_HIDDEN = np.array([[True] * (N_K - 1) + [False]] * N_Q)

QUESTIONS = {
    "causal": "2 queries, 5 keys: the corner of `causal`",
    "window": "a causal window of 2 shows",
    "empty": "a row that sees nothing",
    "dropout": "returned weights in training",
    "cap": "soft cap and mask",
    "heads": "returned weights are of",
    "scores": "a hidden key in returned scores",
}
ABSENT = "–"


def corner(weights: Any) -> str:
    """Name the corner of a causal mask of 2 queries and 5 keys: weights (2, 5)."""
    seen = np.asarray(weights) > 0
    kinds = {"upper left": np.tri(N_Q, N_K, 0, bool), "lower right": np.tri(N_Q, N_K, N_K - N_Q, bool)}
    kinds["upper left, but the last row sees every key"] = kinds["upper left"] | (np.arange(N_Q) == N_Q - 1)[:, None]
    (name,) = (name for name, right in kinds.items() if (seen == right).all())
    return name


def window(weights: Any) -> str:
    """Say how many keys the last query sees, itself among them: weights (n, n) of a causal window of 2."""
    seen = (np.asarray(weights)[-1] > 0).tolist()
    (count,) = (count for count in range(1, 5) if seen == [False] * (len(seen) - count) + [True] * count)
    return f"{count} keys"


def row(weights: Any) -> str:
    """Say what a row without keys holds: (5,)."""
    numbers = np.asarray(weights, np.float64)
    if np.isnan(numbers).all():
        return "NaN"
    kinds = {"0": 0.0, "uniform": 1 / N_K}
    (name,) = (name for name, value in kinds.items() if np.allclose(numbers, value, atol=1e-6))
    return name


def dropped(weights: Any) -> str:
    """Say whether weights of rows (n, keys) are from before or after dropout."""
    whole = np.allclose(np.asarray(weights).sum(-1), 1, atol=1e-5)
    return "before dropout" if whole else "after dropout"


def capped(weights: Any) -> str:
    """Say where a soft cap stands: with the cap behind the mask a hidden key, here the last one, keeps some weight."""
    hidden = np.asarray(weights)[..., -1]
    return "cap, then mask" if (hidden == 0).all() else "mask, then cap"


def hidden_score(scores: Any) -> str:
    """Say what stands for the last of 5 keys, which the first of 2 queries does not see, in its scores: (2, 5)."""
    scores = np.asarray(scores)
    own = float(Q[0, 0, 0] @ K[0, 0, -1] / np.sqrt(D))
    kinds = {"the lowest number": float(np.finfo(scores.dtype).min), "-inf": -np.inf, "0": 0.0, "its score": own}
    kinds["10,000 less"] = own - 10_000
    (name,) = (name for name, value in kinds.items() if np.isclose(scores[0, -1], value, atol=1e-2))
    return name


def of_heads(weights: Any) -> str:
    """Hold that weights are of each of two heads."""
    assert weights.shape[:2] == (1, 2), weights.shape
    return "every head"


def lacks(function: Callable[..., Any], *names: str) -> str:
    """Hold that a function has no argument whose name holds one of these."""
    try:
        parameters = " ".join(inspect.signature(function).parameters)
    except ValueError:  # compiled: its documentation begins with its arguments
        parameters = str(function.__doc__).split(") ->", 1)[0]
        assert "mask" in parameters, parameters
    assert not any(name in parameters for name in names), (function, names, parameters)
    return ABSENT


def torch_function() -> dict[str, str]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attend

    q, k, v = map(torch.tensor, (Q, K, V))
    return {
        "causal": corner(attend(q, k, v, is_causal=True)[0, 0]),
        "window": lacks(attend, "window"),
        "empty": row(attend(q, k, v, attn_mask=torch.tensor(NOTHING))[0, 0, 0]),
        "dropout": "returns no weights" if isinstance(attend(q, k, v), torch.Tensor) else "",
        "cap": lacks(attend, "cap"),
        "heads": ABSENT,
        "scores": ABSENT,
    }


def torch_module() -> dict[str, str]:
    import torch

    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x, keys = torch.randn(1, N_Q, 8), torch.randn(1, N_K, 8)
    hidden = torch.ones(1, N_K, dtype=torch.bool)
    weights = module.train()(x, keys, keys)[1][0].detach()
    try:
        needs_mask = module(x, keys, keys, is_causal=True) is None
    except RuntimeError as error:
        needs_mask = "attn_mask" in str(error)
    each = module(x, keys, keys, average_attn_weights=False)[1]
    module.eval()
    first = row(module(x, keys, keys, key_padding_mask=hidden)[1][0, 0].detach())
    alone = module(x, keys, keys, key_padding_mask=hidden, need_weights=False)[0]
    is_zero = torch.equal(alone, module.out_proj.bias.expand_as(alone))
    return {
        "causal": "needs the mask too" if needs_mask else "",
        "window": lacks(module.forward, "window"),
        "empty": f"{first}; 0 with need_weights=False" if is_zero else first,
        "dropout": dropped(weights),
        "cap": lacks(module.forward, "cap"),
        "heads": "the mean of the heads" if weights.ndim == 2 and each.shape[1] == 2 else "",
        "scores": ABSENT,
    }


def jax_function() -> dict[str, str]:
    import jax
    import jax.numpy as jnp

    attend = jax.nn.dot_product_attention
    q, k, v = (jnp.asarray(part).transpose(0, 2, 1, 3) for part in (Q, K, V))
    return {
        "causal": corner(attend(q, k, v, is_causal=True)[0, :, 0]),
        "window": window(attend(k, k, v, is_causal=True, local_window_size=2)[0, :, 0]),
        "empty": row(attend(q, k, v, mask=jnp.asarray(NOTHING)[None, None])[0, 0, 0]),
        "dropout": lacks(attend, "dropout", "weights"),
        "cap": lacks(attend, "cap"),
        "heads": ABSENT,
        "scores": ABSENT,
    }


def keras_layer() -> dict[str, str]:
    import keras

    layer, dropping = (keras.layers.MultiHeadAttention(1, D, dropout=share) for share in (0.0, 0.5))
    x, keys = RNG.normal(size=(1, N_Q, 8)).astype(np.float32), RNG.normal(size=(1, N_K, 8)).astype(np.float32)
    scores = layer(x, keys, use_causal_mask=True, return_attention_scores=True)[1]
    trained = dropping(x, keys, return_attention_scores=True, training=True)[1]
    mask = NOTHING[None]
    asked, seen = layer(x, keys, attention_mask=mask, return_attention_scores=True)
    alone = np.asarray(layer(x, keys, attention_mask=mask))
    changes = not np.allclose(np.asarray(asked)[0, 0], alone[0, 0])
    # the output of a row of uniform weights is the mean of the values, projected
    even = np.asarray(layer(x, keys * 0 + keys.mean(1, keepdims=True)))[0, 0]
    other = "uniform" if np.allclose(alone[0, 0], even, atol=1e-5) else "0"
    first = row(np.asarray(seen)[0, 0, 0])
    several = keras.layers.MultiHeadAttention(2, D)(x, keys, return_attention_scores=True)[1]
    windowed = keras.layers.MultiHeadAttention(1, D, sliding_window=2)
    near = windowed(keys, keys, use_causal_mask=True, return_attention_scores=True)[1]
    return {
        "causal": corner(np.asarray(scores)[0, 0]),
        "window": window(np.asarray(near)[0, 0]),
        "empty": f"{first} with return_attention_scores, else {other}" if changes else first,
        "dropout": dropped(np.asarray(trained)[0, 0]),
        "cap": lacks(keras.layers.MultiHeadAttention.__init__, "cap"),
        "heads": of_heads(several),
        "scores": ABSENT,
    }


def onnx_session(
    inputs: dict[str, Any], outputs: tuple[str, ...] = ("Y",), operator: str = "Attention", **settings: Any
) -> dict[str, np.ndarray]:
    """Run one node, Attention of opset 23 or an operator of com.microsoft.

    The names of its inputs are in their order; that of one which is left out is blank, its value None.
    """
    import onnxruntime
    from onnx import TensorProto, helper

    given = {name: value for name, value in inputs.items() if value is not None}
    named = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name]
    domain = "" if operator == "Attention" else "com.microsoft"
    names = [name.strip() for name in inputs]
    node = helper.make_node(operator, names, list(outputs), domain=domain, **settings)
    versions = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", named, made), opset_imports=versions, ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = [name for name in outputs if name]
    return dict(zip(wanted, session.run(wanted, given), strict=True))


def onnx_operator() -> dict[str, str]:
    import onnx

    given = {"Q": Q, "K": K, "V": V}
    parts = {"Q": Q, "K": K[:, :, 3:], "V": V[:, :, 3:], "": None, "pk": K[:, :, :3], "pv": V[:, :, :3]}
    alone = corner(onnx_session(given, is_causal=1)["Y"][0, 0])
    after = corner(onnx_session(parts, ("Y", "pk2", "pv2"), is_causal=1)["Y"][0, 0])
    return {
        "causal": f"{alone}; {after} with past_key",
        "window": ABSENT if "window" not in " ".join(onnx.defs.get_schema("Attention", 23).attributes) else "",
        "empty": row(onnx_session({**given, "mask": NOTHING})["Y"][0, 0, 0]),
        "dropout": ABSENT if "dropout" not in onnx.defs.get_schema("Attention", 23).attributes else "",
        "cap": capped(onnx_session({**given, "mask": LAST_HIDDEN}, softcap=1.0)["Y"][0, 0]),
        "heads": of_heads(onnx_session(given, ("Y", "", "", "W"), qk_matmul_output_mode=3)["W"]),
        "scores": hidden_score(
            onnx_session(given, ("Y", "", "", "S"), is_causal=1, qk_matmul_output_mode=2)["S"][0, 0]
        ),
    }


def side_by_side(heads: np.ndarray) -> np.ndarray:
    """Return (1, n, heads · d) from (1, heads, n, d), as the operators of com.microsoft take it."""
    return np.ascontiguousarray(heads.transpose(0, 2, 1, 3).reshape(1, heads.shape[2], -1))


def first_head(output: np.ndarray) -> np.ndarray:
    """Return the first of two heads (n, d) of what an operator of com.microsoft puts out."""
    return output.reshape(len(output[0]), 2, -1)[:, 0]


def onnx_multi_head() -> dict[str, str]:
    given = {"Q": side_by_side(Q), "K": side_by_side(K), "V": side_by_side(V)}

    def weights(inputs: dict[str, Any], outputs: tuple[str, ...] = ("Y",), **settings: Any) -> np.ndarray:
        return first_head(onnx_session(inputs, outputs, "MultiHeadAttention", num_heads=2, **settings)["Y"])

    parts = {"Q": given["Q"], "K": side_by_side(K[:, :, 3:]), "V": side_by_side(V[:, :, 3:]), "": None, " ": None}
    parts |= {"  ": None, "pk": K[:, :, :3].copy(), "pv": V[:, :, :3].copy()}
    alone = corner(weights(given, unidirectional=1))
    after = corner(weights(parts, ("Y", "pk2", "pv2"), unidirectional=1))
    hidden = weights({**given, "": None, "mask": np.zeros((1, N_K), np.int32)})
    assert np.allclose(hidden, weights(given), atol=1e-3)  # every score has the same large number taken away

    def scores(inputs: dict[str, Any], **settings: Any) -> np.ndarray:
        outputs = ("Y", "k2", "v2", "S")
        return onnx_session(inputs, outputs, "MultiHeadAttention", num_heads=2, **settings)["S"][0, 0]  # type: ignore[no-any-return]

    future = hidden_score(scores(given, unidirectional=1))
    padding = hidden_score(scores({**given, "": None, "mask": LAST_HIDDEN[:1].astype(np.int32)}))
    return dict.fromkeys(QUESTIONS, ABSENT) | {
        "causal": f"{alone}; {after} with past_key",
        "empty": "as if nothing were hidden",
        "scores": f"{future}; of padding {padding}",
    }


def onnx_group_query() -> dict[str, str]:
    def outputs(queries: np.ndarray, past: int, window: int) -> dict[str, np.ndarray]:
        q, k, v = (np.pad(part, ((0, 0), (0, 0), (0, 0), (0, 3))) for part in (queries, K, V))  # it wants d = 8
        inputs = {"Q": side_by_side(q), "K": side_by_side(k[:, :, past:]), "V": side_by_side(v[:, :, past:])}
        inputs |= {"pk": k[:, :, :past].copy(), "pv": v[:, :, :past].copy()}
        inputs |= {"last": np.array([N_K - 1], np.int32), "total": np.array(N_K, np.int32)}
        settings = {"num_heads": 2, "kv_num_heads": 2, "local_window_size": window, "scale": D**-0.5, "qk_output": 1}
        return onnx_session(inputs, ("Y", "pk2", "pv2", "S"), "GroupQueryAttention", **settings)

    later = outputs(Q, N_K - N_Q, -1)
    return dict.fromkeys(QUESTIONS, ABSENT) | {
        "causal": f"{corner(first_head(later['Y'])[:, :N_K])}: always with past_key",
        "window": window(first_head(outputs(K, 0, 2)["Y"])[:, :N_K]),
        "scores": hidden_score(later["S"][0, 0]),
    }


def openvino_operator() -> dict[str, str]:
    import openvino
    from openvino import opset13

    def weights(mask: np.ndarray | None) -> np.ndarray:
        arrays = [Q, K, V, *([] if mask is None else [mask])]
        parameters = [opset13.parameter(array.shape, array.dtype) for array in arrays]
        node = opset13.scaled_dot_product_attention(*parameters, causal=mask is None)
        model = openvino.Core().compile_model(
            openvino.Model([node], parameters), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
        return np.array(model(arrays)[0])[0, 0]

    numbers = np.where(NOTHING, 0, -np.inf).astype(np.float32)
    (empty,) = {row(weights(mask[None, None])[0]) for mask in (NOTHING, numbers)}
    return dict.fromkeys(QUESTIONS, ABSENT) | {"causal": corner(weights(None)), "empty": empty}


def torch_exported() -> dict[str, str]:
    import onnxruntime
    import torch

    class Module(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(q, k, v, attn_mask=mask, is_causal=mask is None)

    def weights(mask: torch.Tensor | None) -> np.ndarray:
        given = (*map(torch.tensor, (Q, K, V)), mask)
        program: Any = torch.onnx.export(Module().eval(), given, dynamo=True, opset_version=18, verbose=False)
        with tempfile.TemporaryDirectory() as folder:
            program.save(f"{folder}/m.onnx")
            session = onnxruntime.InferenceSession(f"{folder}/m.onnx", providers=["CPUExecutionProvider"])
        names = [part.name for part in session.get_inputs()]
        tensors = [part.numpy() for part in given if part is not None]
        return session.run(None, dict(zip(names, tensors, strict=True)))[0][0, 0]  # type: ignore[no-any-return]

    seen = torch.tensor(NOTHING)
    numbers = torch.zeros(N_Q, N_K).masked_fill(~seen, float("-inf"))
    return dict.fromkeys(QUESTIONS, ABSENT) | {
        "causal": corner(weights(None)),
        "empty": f"{row(weights(seen)[0])}; {row(weights(numbers)[0])} if the mask is of numbers",
    }


def transformers_eager() -> dict[str, str]:
    import torch
    from transformers import MistralConfig, MistralModel

    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 9,
    }
    sizes |= {"num_key_value_heads": 2, "attention_dropout": 0.5}

    def model(window: int | None) -> Any:
        config = MistralConfig(**sizes, sliding_window=window)
        return MistralModel._from_config(config, attn_implementation="eager").eval()

    torch.manual_seed(0)
    ids, padded = torch.arange(N_K)[None], torch.tensor([[0, *[1] * (N_K - 1)]])
    plain = model(None)
    with torch.no_grad():
        past = plain(ids[:, : N_K - N_Q], use_cache=True).past_key_values
        later = plain(ids[:, N_K - N_Q :], past_key_values=past, output_attentions=True).attentions[0]
        blind = plain(ids, attention_mask=padded, output_attentions=True).attentions[0]
        near = model(2)(ids, output_attentions=True).attentions[0]
        trained = plain.train()(ids, output_attentions=True).attentions[0]
    return {
        "causal": f"{corner(later[0, 0])}: with a cache",
        "window": window(near[0, 0]),
        "empty": row(blind[0, 0, 0]),
        "dropout": dropped(trained[0, 0]),
        "cap": ABSENT,
        "heads": of_heads(later),
        "scores": ABSENT,
    }


def mlx_function() -> dict[str, str]:
    import mlx.core as mx

    attend = mx.fast.scaled_dot_product_attention
    q, k, v = (mx.array(part) for part in (Q, K, V))
    return {
        "causal": corner(attend(q, k, v, scale=0.5, mask="causal")[0, 0]),
        "window": lacks(attend, "window"),
        "empty": row(attend(q, k, v, scale=0.5, mask=mx.array(NOTHING))[0, 0, 0]),
        "dropout": lacks(attend, "dropout"),
        "cap": lacks(attend, "cap"),
        "heads": ABSENT,
        "scores": ABSENT,
    }


def x_transformers_module() -> dict[str, str]:
    import torch
    from x_transformers.attend import Attend

    q, k, v = map(torch.tensor, (Q, K, V))
    hidden, last = (torch.tensor(mask)[None, None] for mask in (NOTHING, LAST_HIDDEN))
    (named,) = {corner(Attend(causal=True, flash=flash).eval()(q, k, v)[0][0, 0].detach()) for flash in (False, True)}
    (empty,) = {row(Attend(flash=flash).eval()(q, k, v, mask=hidden)[0][0, 0, 0].detach()) for flash in (False, True)}
    cap = Attend(softclamp_logits=True, logit_softclamp_value=1.0).eval()
    return {
        "causal": named,
        "window": lacks(Attend.__init__, "window"),
        "empty": empty,
        "dropout": dropped(Attend(dropout=0.5).train()(q, k, v)[1].post_softmax_attn[0, 0].detach()),
        "cap": capped(cap(q, k, v, mask=last)[0][0, 0].detach()),
        "heads": of_heads(Attend().eval()(q, k, v)[1].post_softmax_attn),
        "scores": hidden_score(Attend().eval()(q, k, v, mask=last)[1].pre_softmax_attn[0, 0].detach()),
    }


# --- translators: an encoder-decoder with random weights, in which one head alone looks ------------------------------

LAYERS, HEADS, SIZE, INNER, WORDS = 2, 4, 32, 64, 12


def one_head_looks(translate: Callable[[int, int], Any]) -> dict[str, str]:
    """Say which heads the weights (target, source) of a translator are of.

    `translate` makes a model in which every query but those of one head of its cross attention is 0: their weights are even.
    """
    looking = []
    for layer in range(LAYERS):
        for head in range(HEADS):
            weights = np.asarray(translate(layer, head))
            if not np.allclose(weights, 1 / weights.shape[1], atol=1e-4):
                looking.append((layer, head))
    assert looking == [(LAYERS - 1, 0)], looking
    return dict.fromkeys(QUESTIONS, ABSENT) | {"heads": "the first head of the last layer"}


def queries_of_head(head: int) -> np.ndarray:
    """Return 1 for the columns of a head, 0 for the others: (SIZE,)."""
    return (np.arange(SIZE) // (SIZE // HEADS) == head).astype(np.float32)


def ctranslate_translator() -> dict[str, str]:
    import ctranslate2
    from ctranslate2.specs import TransformerSpec

    names = ["<blank>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(WORDS - 4))]

    def translate(layer: int, head: int) -> Any:
        random = np.random.default_rng(0)

        def fill(part: Any, n_out: int, n_in: int) -> None:
            part.weight = (0.4 * random.normal(size=(n_out, n_in))).astype(np.float32)
            part.bias = np.zeros(n_out, np.float32)

        def even(norm: Any) -> None:
            norm.gamma, norm.beta = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)

        spec = TransformerSpec.from_config(LAYERS, HEADS)
        for side in (spec.encoder, spec.decoder):
            table = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
            table.weight = random.normal(size=(WORDS, SIZE)).astype(np.float32)
            side.position_encodings.encodings = random.normal(size=(64, SIZE)).astype(np.float32)
            even(side.layer_norm)
            for number, part in enumerate(side.layer):
                fill(part.self_attention.linear[0], 3 * SIZE, SIZE)
                fill(part.self_attention.linear[1], SIZE, SIZE)
                fill(part.ffn.linear_0, INNER, SIZE)
                fill(part.ffn.linear_1, SIZE, INNER)
                for norm in (part.self_attention.layer_norm, part.ffn.layer_norm):
                    even(norm)
                if side is spec.decoder:
                    even(part.attention.layer_norm)
                    for place, size in enumerate((SIZE, 2 * SIZE, SIZE)):
                        fill(part.attention.linear[place], size, SIZE)
                    part.attention.linear[0].weight *= (10 * (number == layer) * queries_of_head(head))[:, None]
        fill(spec.decoder.projection, WORDS, SIZE)
        spec.register_source_vocabulary(names)
        spec.register_target_vocabulary(names)
        spec.validate()
        with tempfile.TemporaryDirectory() as folder:
            spec.save(folder)
            translator = ctranslate2.Translator(folder, device="cpu", inter_threads=1, intra_threads=1)
            how = {"beam_size": 1, "min_decoding_length": 3, "max_decoding_length": 5, "return_attention": True}
            return translator.translate_batch([["w1", "w2", "w3", "w4"]], **how)[0].attention[0]

    return one_head_looks(translate)


MARIAN = {
    "type": "transformer", "enc-type": "bidirectional", "enc-cell": "gru", "dec-cell": "gru", "enc-depth": LAYERS,
    "dec-depth": LAYERS, "dim-emb": SIZE, "dim-vocabs": f"[{WORDS}, {WORDS}]", "input-types": "[]", "lemma-dim-emb": 0,
    "layer-normalization": "false", "skip": "false", "tied-embeddings": "false", "tied-embeddings-all": "true",
    "tied-embeddings-src": "false", "transformer-heads": HEADS, "transformer-dim-ffn": INNER, "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "swish", "transformer-dim-aan": INNER, "transformer-aan-depth": 2,
    "transformer-aan-activation": "swish", "transformer-aan-nogate": "false", "transformer-depth-scaling": "false",
    "transformer-decoder-autoreg": "self-attention", "transformer-guided-alignment-layer": "last",
    "transformer-no-projection": "false", "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": '""', "transformer-preprocess": '""', "transformer-tied-layers": "[]",
    "transformer-train-position-embeddings": "false", "bert-train-type-embeddings": "true", "ulr": "false",
    "ulr-dim-emb": 0, "version": "v1.12.0",
}  # fmt: skip


def marian_decoder() -> dict[str, str]:
    import pymarian

    def translate(layer: int, head: int) -> Any:
        random = np.random.default_rng(0)
        arrays = {"Wemb": random.normal(size=(WORDS, SIZE)), "decoder_ff_logit_out_b": np.zeros((1, WORDS))}
        arrays["decoder_ff_logit_out_b"][0, 0] = -50  # the end is unlikely
        for side, kinds in (("encoder", ["self"]), ("decoder", ["self", "context"])):
            for number in range(LAYERS):
                before = f"{side}_l{number + 1}_"
                for kind in kinds:
                    for part in "qkvo":
                        arrays[f"{before}{kind}_W{part}"] = 0.4 * random.normal(size=(SIZE, SIZE))
                        arrays[f"{before}{kind}_b{part}"] = np.zeros((1, SIZE))
                sizes = {"1": (SIZE, INNER), "2": (INNER, SIZE)}
                arrays |= {f"{before}ffn_W{at}": 0.4 * random.normal(size=size) for at, size in sizes.items()}
                arrays |= {f"{before}ffn_b{at}": np.zeros((1, size[1])) for at, size in sizes.items()}
                for norm in (*(f"{kind}_Wo" for kind in kinds), "ffn_ffn"):
                    arrays |= {
                        f"{before}{norm}_ln_scale": np.ones((1, SIZE)),
                        f"{before}{norm}_ln_bias": np.zeros((1, SIZE)),
                    }
                if side == "decoder":
                    arrays[f"{before}context_Wq"] *= (number == layer) * queries_of_head(head)
        settings = "".join(f"{name}: {value}\n" for name, value in MARIAN.items()).encode() + b"\0"
        with tempfile.TemporaryDirectory() as folder:
            model, words = Path(folder) / "m.npz", Path(folder) / "v.yml"
            floats = {name: array.astype(np.float32) for name, array in arrays.items()}
            np.savez(model, **floats, **{"special:model.yml": np.frombuffer(settings, np.int8)})
            words.write_text("</s>: 0\n<unk>: 1\n" + "".join(f"w{at}: {at}\n" for at in range(2, WORDS)))
            how = {"max_length": 6, "beam_size": 1, "cpu_threads": 1, "quiet": True, "alignment": "soft"}
            line = pymarian.Translator(models=[str(model)], vocabs=[str(words)] * 2, **how).translate(["w2 w3 w4 w5"])[
                0
            ]
        return [[float(number) for number in group.split(",")] for group in line.rsplit(" ||| ", 1)[1].split(" ")]

    return one_head_looks(translate)


def attnctl_itself() -> dict[str, str]:
    import attnctl
    from attnctl.attention import attend, visibility_mask

    places = np.arange(N_K)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "qkv.npz")
        np.savez(file, Q=Q[0], K=K[0], V=V[0])
        shown = {}
        for offset in (None, 0):
            model: Any = attnctl.open_model(qkv=file, causal=True, offset=offset)
            shown[offset] = corner(attnctl.attend(model.own_text, model).layers[0].weights[0])
    trained = attnctl.attend("Alice will eat pizza", "demo", dropout=0.5).layers[0].weights[0]
    return {
        "causal": f"{shown[None]}; {shown[0]} with `--offset 0`",
        "window": window(
            attend(K[0], K[0], V[0], mask=visibility_mask(places, places, causal=True, window=2)).weights[0]
        ),
        "empty": row(attend(Q[0], K[0], V[0], mask=NOTHING).weights[0, 0]),
        "dropout": dropped(trained),
        "cap": capped(attend(Q[0], K[0], V[0], mask=LAST_HIDDEN, soft_cap=1.0).weights[0]),
        "heads": of_heads(attend(Q, K, V).weights),
        "scores": hidden_score(attend(Q[0], K[0], V[0], mask=LAST_HIDDEN).scaled_scores[0]),
    }


# what is run → its package, and the function
FRAMEWORKS: dict[str, tuple[str, Callable[[], dict[str, str]]]] = {
    "torch, scaled_dot_product_attention": ("torch", torch_function),
    "torch, nn.MultiheadAttention": ("torch", torch_module),
    "jax.nn.dot_product_attention": ("jax", jax_function),
    "keras.layers.MultiHeadAttention (JAX)": ("keras", keras_layer),
    "torch.onnx.export of it to opset 18, onnxruntime": ("onnxruntime", torch_exported),
    "ONNX Attention 23, onnxruntime": ("onnxruntime", onnx_operator),
    "com.microsoft MultiHeadAttention, onnxruntime": ("onnxruntime", onnx_multi_head),
    "com.microsoft GroupQueryAttention, onnxruntime": ("onnxruntime", onnx_group_query),
    "OpenVINO, scaled_dot_product_attention": ("openvino", openvino_operator),
    "transformers, eager (Mistral)": ("transformers", transformers_eager),
    "mlx.core.fast.scaled_dot_product_attention": ("mlx", mlx_function),
    "x-transformers, Attend": ("x-transformers", x_transformers_module),
    "CTranslate2, return_attention": ("ctranslate2", ctranslate_translator),
    "Marian, --alignment soft": ("pymarian", marian_decoder),
    "attnctl": ("", attnctl_itself),
}


def cells_of(name: str) -> list[str]:
    """Return the cells of a framework: its name, its version, and an answer to each question."""
    package, ask = FRAMEWORKS[name]
    answers = ask()
    return [name, version(package) if package else "this one", *(answers[question] for question in QUESTIONS)]


def table(rows: list[list[str]]) -> str:
    """Return rows as a table of Markdown."""
    head = ["framework", "version", *QUESTIONS.values()]
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


TEXT = """# What frameworks mean by the same word

Weights from one framework beside those of another may differ although both are right. Each cell below was computed from what the
framework returned, on a CPU, for 2 queries and 5 keys of 2 heads: `python -m tests.tools.frameworks` does it again, and says what it
needs. – is for what a function does not have.

{table}
- **causal**: with as many queries as keys both corners are the same. With fewer queries, lower right takes them for the last tokens,
  as with a cache: the first query sees 4 keys. Upper left begins both at 0: it sees one. `--qkv` with `--offset 0` gives that.
  MultiHeadAttention of ONNX Runtime begins at 0 without past_key, but hides nothing from the last query.
- **A causal window of 2**: the query and one key before it, or two. What is called 4096 in one place is 4095 in another.
- **A row that sees nothing**: 0 in attnctl, and no option gives the others. NaN spreads through the layers above; uniform weights
  look like attention to everything, hidden keys too. Keras and torch's module answer otherwise if the weights are asked for.
  torch's function, which gives 0, gives NaN once OpenVINO has converted it. ONNX Runtime's MultiHeadAttention takes 10,000 from
  each hidden score: if all are hidden, the row is as if none were.
- **Dropout**: the weights before it are what a head chose, and rows sum to 1. In attnctl `--dropout` shows those after it as a step
  of its own.
- **Soft cap**: if the mask came first, a cap of c would lift a hidden key from minus infinity to -c, and give it weight.
- **Heads**: torch's module returns the mean unless `average_attn_weights=False`. CTranslate2 and Marian give one head of their
  decoder's cross attention, here of 4 heads in 2 layers: a model was made eight times in which one head alone looks. attnctl shows
  every head, and `--head 0 --layer -1 --attention cross` the same one. CTranslate2 leaves out the column of a `</s>` that it adds to the
  source itself (`add_source_eos`, every model from Marian): rows then sum to less than 1.
- **Grouped heads**: of 4 heads of queries and 2 of keys, the second head of queries has the first head of keys in torch (`enable_gqa`),
  transformers, Keras, ONNX Runtime and attnctl, and the second one in x-transformers 2.31.10 (head h has head h modulo 2). attnctl
  reads a layer of x-transformers as that library does, and a note says so.
- **Scores of hidden keys**: of scores in a file attnctl takes the lowest number and -inf for hidden keys. The 0 of GroupQueryAttention
  (`qk_output=1`) is a score like any other: a softmax gives it a share, and attnctl's note on such a file says so. Use `qk_output=2`,
  the weights, or write -inf there. In attnctl's own traces scaled scores are from before the mask, which stands beside them.
"""


def main(arguments: list[str]) -> int:
    """Print the table, or write the page; return 1 if a framework is missing that the page needs."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    rows, missing = [], []
    for name, (package, _) in FRAMEWORKS.items():
        try:
            rows.append(cells_of(name))
        except (ImportError, PackageNotFoundError) as error:
            missing.append(f"{name}: pip install {package} ({error})")
    print(table(rows), end="")
    for line in missing:
        print(line, file=sys.stderr)
    if arguments == ["write"] and not missing:
        PAGE.write_text(TEXT.format(table=table(rows)), encoding="utf-8")
    return 1 if missing and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
