"""Weights as other frameworks name and lay them out, held to what each library computes with them.

`framework_weights.npz` is written by `python -m tests.tools.framework_weights` with the libraries themselves.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from attnctl.errors import AttnctlError, UsageError
from tests.conftest import Refused, attend

STORED = np.load(Path(__file__).parent / "framework_weights.npz")
LIBRARIES = sorted({name.partition("|")[0] for name in STORED.files if "|" in name})
TEXT = "a b c d e"


def tensors_of(library: str) -> dict[str, Any]:
    return {
        name.partition("|")[2]: np.ascontiguousarray(STORED[name])
        for name in STORED.files
        if name.startswith(f"{library}|")
    }


@pytest.fixture(autouse=True)
def _room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", STORED["X"])


def write(tensors: dict[str, Any], path: str = "w.safetensors") -> None:
    np.savez(path, **tensors) if path.endswith("npz") else save_file(tensors, path)


def run(path: str = "w.safetensors", **options: Any) -> Any:
    return attend(TEXT, path, embeddings="X.npy", **options)


@pytest.mark.parametrize("path", ["w.npz", "w.safetensors"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_weights_are_those_of_the_library(library: str, path: str) -> None:
    tensors = tensors_of(library)
    write(tensors, path)
    says = any(tensor.ndim == 3 for tensor in tensors.values())  # the shape of a kernel says how many heads it has
    trace = run(path, **({} if says else {"n_heads": 2}))
    layer, output = trace.layers[0], STORED[f"{library}>output"]
    np.testing.assert_allclose(layer.weights, STORED[f"{library}>weights"], rtol=0, atol=7e-8)
    np.testing.assert_allclose(layer.output, output, rtol=0, atol=2e-7 * max(1, np.abs(output).max()))
    assert not trace.notes
    if not says:
        with pytest.raises(UsageError, match=r"does not say how many heads"):
            run(path)


@pytest.mark.parametrize("library", ["x-transformers", "torch"])
@pytest.mark.parametrize(
    ("config", "is_checkpoint"), [('{"model_type": "llama"}', True), ("{", True), ('{"num_heads": 2}', False)]
)
def test_one_attention_in_the_folder_of_a_checkpoint(
    library: str, config: str, is_checkpoint: bool, refused: Refused
) -> None:
    """It asked for a number of heads, which the folder's config.json says. A config of a user's own is of no checkpoint."""
    Path("one").mkdir()
    write(tensors_of(library), "one/model.safetensors")
    Path("one/config.json").write_text(config)
    line = refused("explain", TEXT, "--model", "one/model.safetensors", code=2)
    folder = "one/model.safetensors is a file in the folder of a checkpoint: give the folder, one"
    assert (
        line == f"{folder}; or --n-heads, to read the one attention in it"
        if is_checkpoint
        else "how many heads" in line
    )
    line = refused("model", "one/model.safetensors", code=2)
    assert line == folder if is_checkpoint else "attnctl explain --model one/model.safetensors" in line
    trace = attend(TEXT, "one/model.safetensors", embeddings="X.npy", n_heads=2)  # as without a folder
    np.testing.assert_allclose(trace.layers[0].weights, STORED[f"{library}>weights"], rtol=0, atol=7e-8)


@pytest.mark.parametrize("stems", [("query", "key", "value"), ("q", "k", "v"), ("wq", "wk", "wv")])
def test_other_names_of_the_same_matrices(stems: tuple[str, ...]) -> None:
    names = dict(zip(("to_q", "to_k", "to_v"), stems, strict=True)) | {"to_out": "wo"}
    renamed = {
        re.sub("to_[a-z]+", lambda match: names[match[0]], name): w for name, w in tensors_of("x-transformers").items()
    }
    write(renamed | {"norm.weight": np.ones(8, np.float32)})
    trace = run(n_heads=2)
    np.testing.assert_allclose(trace.layers[0].weights, STORED["x-transformers>weights"], rtol=0, atol=7e-8)
    assert "1 other tensor not used (norm.weight)" in " ".join(trace.notes)


def test_fewer_heads_of_keys_follow_from_their_width() -> None:
    kernels = tensors_of("keras-grouped")
    flat = {}
    for name, w in kernels.items():
        stem, kind = name.split("/")[1:]
        stem = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "attention_output": "o_proj"}[stem]
        if kind == "kernel":
            flat[f"{stem}.weight"] = (w.reshape(-1, 8) if stem == "o_proj" else w.reshape(8, -1)).T.copy()
        else:
            flat[f"{stem}.bias"] = w.reshape(-1)
    write(flat)
    trace = run(n_heads=4)
    np.testing.assert_allclose(trace.layers[0].weights, STORED["keras-grouped>weights"], rtol=0, atol=7e-8)
    assert trace.layers[0].kv_heads == (0, 0, 1, 1)
    with pytest.raises(UsageError, match="n_kv_heads=4"):
        run(n_heads=4, n_kv_heads=4)


def test_a_kernel_of_flax_under_the_name_of_ours_is_told() -> None:
    """(d_model, heads, d_k) was read as (heads, d_model, d_k), in silence."""
    kernels = tensors_of("flax-nnx")
    write({f"W_{name[0].upper()}": kernels[f"{name}.kernel"] for name in ("query", "key", "value")})
    note = " ".join(attend(TEXT, "w.safetensors").notes)
    assert "W_Q (8, 2, 3) is read as (heads, d_model, d_k): 8 heads of width 3, over rows of 2" in note
    assert "query.kernel" in note
    with pytest.raises(AttnctlError, match="takes rows of 2: flax and Keras write .* query.kernel"):
        run()
    right = {
        f"W_{name[0].upper()}": kernels[f"{name}.kernel"].transpose(1, 0, 2).copy()
        for name in ("query", "key", "value")
    }
    write(right)
    assert "is read as" not in " ".join(attend(TEXT, "w.safetensors").notes)


def test_what_cannot_be_one_attention_is_refused() -> None:
    one = tensors_of("flax-nnx")
    write({f"layers.{at}.attn.{name}": w for at in range(2) for name, w in one.items()})
    with pytest.raises(AttnctlError, match=r"holds 2 attentions.*'layers.0.attn.', 'layers.1.attn.'") as refused:
        run()
    command = shlex.split(str(refused.value).partition("one alone: ")[2])
    subprocess.run([sys.executable, *command[1:]], check=True)
    np.testing.assert_allclose(run("one.safetensors").layers[0].weights, STORED["flax-nnx>weights"], rtol=0, atol=7e-8)
    fortran = {name: np.asfortranarray(w) for name, w in one.items()}  # which NPZ keeps
    write({f"layers.{at}.attn.{name}": w for at in range(2) for name, w in fortran.items()}, "w.npz")
    with pytest.raises(AttnctlError, match="holds 2 attentions") as refused:
        run("w.npz")
    command = shlex.split(str(refused.value).partition("one alone: ")[2])
    subprocess.run([sys.executable, *command[1:]], check=True)
    np.testing.assert_allclose(run("one.safetensors").layers[0].weights, STORED["flax-nnx>weights"], rtol=0, atol=7e-8)
    Path("config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(AttnctlError, match=r"The folder is a checkpoint, whose model runs all: model='\.'"):
        run("w.npz")
    write(one | {"query_ln.scale": np.ones(3, np.float32)})
    with pytest.raises(AttnctlError, match=r"holds query_ln.scale beside the projections, which changes the weights"):
        run()
    write(tensors_of("torch") | {"bias_k": np.ones((1, 1, 8), np.float32)})
    with pytest.raises(AttnctlError, match="bias_k"):
        run(n_heads=2)
    write(tensors_of("torch") | {"in_proj_weight": np.ones((8, 8), np.float32)})
    with pytest.raises(AttnctlError, match=r"in_proj_weight has shape \(8, 8\)"):
        run(n_heads=2)
    with pytest.raises(UsageError, match="n_heads=3"):
        write(one)
        run(n_heads=3)
    write(tensors_of("mlx"))
    with pytest.raises(AttnctlError, match="does not divide into 3 heads"):
        run(n_heads=3)
    write({"a.weight": np.ones((2, 2), np.float32)})
    with pytest.raises(AttnctlError, match="in_proj_weight with out_proj of torch"):
        run()
