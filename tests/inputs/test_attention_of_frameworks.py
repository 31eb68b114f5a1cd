"""Attention as other programs save it: types that NumPy lacks, one array a layer, JSON, tables.

The bytes and names are those that jax 0.10, flax 0.12, ml_dtypes 0.6, Keras 3.15, MLX 0.32, CTranslate2 4.8 and pandas 3.0
write, made here by numpy alone; the right values are the arrays before they were written.
"""

from __future__ import annotations

import csv
import json
import re
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import attnctl
from attnctl.models.builtin.matrix import trace_of_mapped_matrix, trace_of_matrix
from attnctl.trace import Trace
from tests.conftest import Refused, Run

N, HEADS = 5, 2


def shares(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1]).astype(np.float32)


def bfloat16(array: Any) -> Any:
    """The array cut to bfloat16, as floats and as the two bytes without a type that numpy.save keeps of it."""
    bits = (array.view(np.uint32) >> 16).astype("<u2")
    return (bits.astype(np.uint32) << 16).view(np.float32), bits.view("V2")


def weights_of(trace: Trace) -> Any:
    return np.stack([layer.all_weights() for layer in trace.layers])


def trace_of(path: str) -> Trace:
    return trace_of_matrix(path)


@pytest.mark.parametrize("order", ["C", "F"])  # MLX writes its arrays so
def test_bfloat16_is_read_from_two_bytes_without_a_type(order: Any, run: Run) -> None:
    right, raw = bfloat16(shares(HEADS, N, N))
    np.save("w.npy", np.asarray(raw, order=order))
    np.savez("w.npz", attention=raw, other=np.zeros(3))
    assert b"'|V2'" in Path("w.npy").read_bytes()[:80]
    Path("jax.npy").write_bytes(Path("w.npy").read_bytes().replace(b"'|V2'", b"'<V2'"))  # ml_dtypes names it so
    for path in ("w.npy", "w.npz", "jax.npy"):
        np.testing.assert_array_equal(weights_of(trace_of(path))[0], right)
    if order == "C":
        np.testing.assert_array_equal(weights_of(trace_of_mapped_matrix("jax.npy"))[0], right)
    entry = {"dtype": "BF16", "shape": list(raw.shape), "data_offsets": [0, raw.nbytes]}
    header = json.dumps({"attn": entry}).encode()
    Path("w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + raw.tobytes())
    np.testing.assert_array_equal(weights_of(trace_of("w.safetensors"))[0], right)
    assert "doubt" not in run("heatmap", "w.npy").err.lower()


def test_bfloat16_embeddings_and_weights(run: Run) -> None:
    x, raw = bfloat16(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))
    np.save("x.npy", raw)
    trace = run("explain", "a b c", "-m", "dot", "--embeddings", "x.npy", "--json").json
    np.testing.assert_array_equal(np.array(trace["embeddings"], np.float32), x)


@pytest.mark.parametrize("container", ["npy", "npz"])
@pytest.mark.parametrize(("kind", "words"), [("|V1", "float8_e4m3fn or float8_e5m2?"), ("<f1", "are float8_e5m2")])
def test_float8_is_not_guessed(kind: str, words: str, container: str, refused: Refused) -> None:
    """ml_dtypes writes '<f1' for float8_e5m2, which NumPy refuses to read, and V1 for its fifteen other small types."""
    out = BytesIO()
    np.save(out, np.zeros((2, 2), "V1"))
    data = out.getvalue().replace(b"'|V1'", f"'{kind}'".encode())
    if container == "npz":
        import zipfile

        with zipfile.ZipFile("w.npz", "w") as archive:
            archive.writestr("weights.npy", data)
    else:
        Path("w.npy").write_bytes(data)
    assert words in refused("heatmap", f"w.{container}")


FLAX = "intermediates/Block_{}/MultiHeadDotProductAttention_0/attention_weights"


@pytest.mark.parametrize(
    ("names", "axes"),
    [
        ([f"arr_{layer}" for layer in range(12)], (1,)),  # np.savez("w.npz", *out.attentions)
        ([f"layer_{layer}" for layer in range(12)], ()),
        ([FLAX.format(layer) for layer in range(12)], (1, 1)),  # sow keeps a tuple, and each text has an axis
        (["multi_head_attention", *(f"multi_head_attention_{layer}" for layer in range(1, 12))], (1,)),  # Keras
        (["sdpa_weights", *(f"sdpa_{layer}_weights" for layer in range(1, 12))], (1,)),  # torch.onnx.export
        ([f"/encoder/layer.{layer}/attention/Softmax_output_0" for layer in range(12)], (1,)),  # ONNX
    ],
)
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_one_array_a_layer_in_the_order_of_numbers(
    names: list[str], axes: tuple[int, ...], suffix: str, run: Run
) -> None:
    right = shares(12, HEADS, N, N)
    arrays = {name: array.reshape(*axes, HEADS, N, N) for name, array in sorted(zip(names, right, strict=True))}
    arrays |= {"logits": np.random.default_rng(1).normal(size=(1, N, 7)).astype(np.float32)}
    np.savez("w.npz", **arrays) if suffix == "npz" else save_file(arrays, "w.safetensors")
    found = run("heatmap", f"w.{suffix}", "-o", "cells.csv")
    assert found.code == 0 and "12 arrays are read as the layers" in found.err
    cells = list(csv.DictReader(StringIO(Path("cells.csv").read_text())))
    weights = np.array([float(cell["weight"]) for cell in cells], np.float32).reshape(12, HEADS, N, N)
    np.testing.assert_array_equal(weights, right)


def test_padding_that_an_attention_mask_names_is_left_out(run: Run) -> None:
    """Two of five tokens are padding on the left: the rows of the others are what they were, and the means are theirs."""
    attention = np.zeros((2, 1, HEADS, N, N), np.float32)
    attention[..., 2:] = shares(2, 1, HEADS, N, N - 2)
    tokens = np.array([b"pad", b"pad", b"a", "é".encode(), b"c"])
    mask = np.array([[0, 0, 1, 1, 1]])
    np.savez("w.npz", attentions=attention, attention_mask=mask, tokens=tokens)
    trace = trace_of("w.npz")
    np.testing.assert_array_equal(weights_of(trace), attention[:, 0, :, 2:, 2:])
    assert [token.text for token in trace.tokens] == ["a", "é", "c"]
    assert "Left out: 2 tokens of 5 that its attention_mask calls padding." in run("heatmap", "w.npz").err
    attention[0, 0, 0, 3] = 0.2  # a token looks at padding: nothing is cut
    np.savez("w.npz", attentions=attention, attention_mask=mask)
    np.testing.assert_array_equal(weights_of(trace_of("w.npz")), attention[:, 0])


@pytest.mark.parametrize("name", ["attentions", "w"])
def test_an_attention_mask_of_no_token_or_no_axis(name: str, refused: Refused) -> None:
    attention = shares(HEADS, N, N)
    np.savez("w.npz", **{name: attention, "attention_mask": np.zeros((1, N), np.int64)})
    assert refused("heatmap", "w.npz") == "w.npz: its attention_mask calls every token padding"
    np.savez("w.npz", **{name: attention, "attention_mask": np.int64(1)})  # which masks nothing
    np.testing.assert_array_equal(weights_of(trace_of("w.npz"))[0], attention)


def test_scores_beside_weights_warn_of_nothing(run: Run) -> None:
    """TransformerLens caches both: hook_attn_scores, −inf where a query may not look, and hook_pattern."""
    right = np.tril(np.ones((HEADS, N, N), np.float32)) / np.arange(1, N + 1, dtype=np.float32)[:, None]
    scores = np.where(np.tril(np.ones((N, N))) > 0, 0.5, -np.inf) * np.ones((1, HEADS, N, N), np.float32)
    arrays = {
        f"blocks.{i}.attn.hook_{name}": a
        for i in range(2)
        for name, a in (("pattern", right[None]), ("attn_scores", scores))
    }
    np.savez("w.npz", **arrays)
    np.testing.assert_array_equal(weights_of(trace_of("w.npz"))[1], right)
    assert "Warning" not in run("heatmap", "w.npz", "--layer", "1").err


def test_layers_of_one_map_have_one_head(run: Run) -> None:
    right = shares(3, N, N)
    np.savez("w.npz", **{f"step{3 - at}": grid for at, grid in enumerate(right)}, tokens=list("abcde"))
    trace = trace_of("w.npz")
    np.testing.assert_array_equal(weights_of(trace)[:, 0], right[::-1])
    assert trace.text == "a b c d e"


def test_arrays_that_are_no_layers(refused: Refused) -> None:
    numbers = np.random.default_rng(0).normal(size=(4, N, N)).astype(np.float32)
    np.savez("any.npz", *numbers)
    assert "arr_# from 0 to 3" in refused("heatmap", "any.npz") and ".parquet" in refused("heatmap", "any.npz")
    np.savez("texts.npz", **{f"layer_{layer}": shares(3, HEADS, N, N) for layer in range(2)})
    assert "a batch of 3 texts: choose one, array[0]" in refused("heatmap", "texts.npz")
    both = {f"{kind}_attentions.{at}": shares(1, HEADS, N, N) for kind in ("encoder", "decoder") for at in range(2)}
    np.savez("both.npz", **both)
    message = refused("heatmap", "both.npz")
    assert "encoder_attentions.# from 0 to 1 (1, 2, 5, 5)" in message and "leave out the others" in message
    save_file({f"layers.{at}.W_Q": numbers[at] for at in range(4)}, "model.safetensors")
    assert "holds a model's weights" in refused("heatmap", "model.safetensors", code=2)


@pytest.mark.parametrize("name", ["weights", "attention", "attentions", "attn", "any"])
def test_one_array_of_safetensors_is_attention(name: str, run: Run) -> None:
    right = shares(HEADS, N, N)
    save_file({name: right}, "w.safetensors", {"tokens": json.dumps(list("abcde"))})
    trace = run("explain", "w.safetensors", "--json").json
    np.testing.assert_allclose(trace["layers"][0]["heads"][1]["weights"], right[1], atol=1e-7)
    assert [token["text"] for token in trace["tokens"]] == list("abcde")


def test_weights_in_json(run: Run, refused: Refused) -> None:
    """An object with its tokens, and the lists of lists of CTranslate2: (target, source)."""
    right = shares(3, 4)
    document = {"tokens": ["die", "Katze", "schläft"], "key_tokens": ["the", "cat", "is", "asleep"]}
    for name, value in (("named", document | {"attention": right.tolist()}), ("bare", right.tolist())):
        Path("w.json").write_text(json.dumps(value))
        for source, stdin in (("w.json", b""), ("-", Path("w.json").read_bytes())):
            table = run("heatmap", source, stdin=stdin).out
            header, *rows = list(csv.reader(StringIO(table), delimiter="\t"))
            np.testing.assert_allclose(np.array([row[4:] for row in rows], float), right, rtol=1e-5)
            assert header[4:] == [
                f"{at}:{text}" for at, text in enumerate(document["key_tokens"] if name == "named" else "0123")
            ]
    layers = {"layer_0": shares(HEADS, N, N).tolist(), "layer_1": shares(HEADS, N, N, seed=1).tolist()}
    Path("w.json").write_text(json.dumps(layers))
    np.testing.assert_allclose(weights_of(trace_of("w.json")), [*layers.values()], atol=1e-7)
    Path("w.json").write_text(json.dumps({"attention": [[[0.5, 0.5]], [[1.0]]]}))  # a list of results of two texts
    assert "lists of different lengths: give one text" in refused("heatmap", "w.json")
    Path("w.json").write_text('{"a": 1}')
    assert "schema" in refused("heatmap", "w.json")


OWN = [
    ("Alice will eat pizza", "demo", ()),
    ("Alice will eat pizza", "demo-causal", ("--layer", "1", "--head", "2,4")),
    ("the cat and the dog", "random", ("--n-layers", "2", "--window", "2")),
    ("the cat and the dog", "demo", ("--drop", "cat")),
]


@pytest.mark.parametrize(("text", "model", "options"), OWN)
@pytest.mark.parametrize("suffix", ["csv", "parquet", "tsv"])
def test_own_files_are_read_back(text: str, model: str, options: tuple[str, ...], suffix: str, run: Run) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    drawn = run("heatmap", text, "--model", model, *options)
    if suffix == "tsv":
        Path("own.tsv").write_text(drawn.out)
    else:
        assert run("heatmap", text, "--model", model, *options, "-o", f"own.{suffix}").code == 0
    for line, other in zip(drawn.out.splitlines(), run("heatmap", f"own.{suffix}").out.splitlines(), strict=True):
        assert re.sub(r"(\.\d{3})\d*", r"\1", line) == re.sub(r"(\.\d{3})\d*", r"\1", other)
    # statistics are about rows that share all their attention
    assert run("heads", f"own.{suffix}", *["--renormalise"] * ("--drop" in options)).code == 0


def test_a_table_of_pandas(run: Run, refused: Refused) -> None:
    """A frame with an index, its columns in any order, words in place of numbers; one cell is missing, and hidden."""
    Path("w.csv").write_text(",key,weight,query\n0,a,1.0,a\n1,a,0.25,b\n2,b,0.75,b\n")
    trace = trace_of("w.csv")
    np.testing.assert_array_equal(weights_of(trace), [[[[1, 0], [0.25, 0.75]]]])
    assert trace.text == "a b" and trace.model.causal
    Path("w.csv").write_text("query,key,weight\nles,the,0.9\nles,cats,0.1\nchats,the,0.2\nchats,cats,0.8\n")
    cross = trace_of("w.csv")
    assert [token.text for token in cross.key_axis] == ["the", "cats"] and cross.key_tokens is not None
    Path("w.csv").write_text("query,key,weight\na,a,1\na,a,1\n")
    assert "a cell of layer 0 twice: number the tokens" in refused("heatmap", "w.csv")
    Path("w.csv").write_text("query,key,weight\n0,0,x\n")
    assert "column weight holds things that are not numbers" in refused("heatmap", "w.csv")
    Path("w.csv").write_text("query,key,weight\n")
    assert "its table has no rows" in refused("heatmap", "w.csv")


@pytest.mark.parametrize("name", ["model.h5", "model.keras", "state.msgpack", "model.onnx"])
def test_a_form_that_is_not_read_names_those_that_are(name: str, refused: Refused) -> None:
    Path(name).write_bytes(b"\x89HDF")
    message = refused("heatmap", name, code=2)
    assert f"{name} is in a form that attnctl does not read" in message and ".npz, .safetensors, .json" in message


def test_json_of_another_form_names_the_page_of_forms(refused: Refused) -> None:
    Path("w.json").write_text(json.dumps([{"layer": 0, "head": 0, "attn": [[1.0, 0.0], [0.5, 0.5]]}]))
    assert "attention of other programs: attnctl docs my-checkpoint" in refused("heatmap", "w.json")


def test_records_in_json_and_a_pivot(run: Run) -> None:
    right = shares(3, 3)
    records = [{"query": q, "key": k, "weight": float(right[q, k])} for q in range(3) for k in range(3)]
    Path("w.json").write_text(json.dumps(records))
    rows = "".join(f"{q},{','.join(map(repr, map(float, row)))}\n" for q, row in enumerate(right))
    Path("w.csv").write_text(f"query,0,1,2\n{rows}")
    for path in ("w.json", "w.csv"):
        np.testing.assert_array_equal(weights_of(trace_of(path))[0, 0], right)
    trace = attnctl.attend("Alice will eat", "demo-causal", layer=1)
    Path("own.json").write_text(json.dumps(trace.to_records()))
    again = trace_of("own.json")
    np.testing.assert_array_equal(weights_of(again)[0], trace.layers[0].weights)
    assert again.text == trace.text and again.model.causal
