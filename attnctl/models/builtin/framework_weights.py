"""Read the projections of one attention as other frameworks name and lay them out: torch, flax, Keras, MLX and others."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.models.unread import checkpoint_around
from attnctl.runtime.arrays import Floats
from attnctl.text import counted, for_pasting, shortened

# names of the projections of queries, keys and values; of the output
STEMS = (
    ("query", "key", "value"),  # flax, Keras, BERT
    ("to_q", "to_k", "to_v"),  # x-transformers, diffusers
    ("q_proj", "k_proj", "v_proj"),  # transformers
    ("query_proj", "key_proj", "value_proj"),  # MLX, Equinox
    ("q", "k", "v"),  # T5
    ("wq", "wk", "wv"),  # Llama as published
)
OUTPUTS = ("out_proj", "out", "attention_output", "to_out", "to_out.0", "o_proj", "output_proj", "o", "wo")
FUSED = "in_proj_weight"
# the output of a layer whose query head h has the keys of head h modulo their number, as x-transformers repeats them; in
# other libraries, also in diffusers (to_out.0), neighbouring heads of queries share a head of keys
TAKES_TURNS = ("to_q", "to_out.weight")
# what stands beside the projections and changes scores or keys: torch's extra key, norms of queries and keys
_CHANGES_SCORES = re.compile(r"(bias_[kv]|(q|k|query|key|qk)_?(norm|ln|layernorm)|rel|mem_kv|null_kv)", re.I)


def layouts() -> str:
    """Return the names that a file of weights may have, as the end of a sentence."""
    return (
        "W_Q, W_K and W_V; in_proj_weight with out_proj of torch; query.kernel, key.kernel and value.kernel of flax and "
        f"Keras; or, with {option_name('n_heads')}, to_q, q_proj or query_proj .weight and their like (attnctl docs "
        "my-checkpoint)"
    )


@dataclass(frozen=True)
class Projections:
    """Where the projections of one attention are in a file."""

    prefix: str  # of all its names
    names: tuple[str, ...]  # of queries, keys and values, or the fused one
    joint: str = "."  # between a stem and weight or kernel
    ending: str = "weight"


def converted(
    tensors: Mapping[str, Floats], path: str, n_heads: int | None, n_kv_heads: int | None
) -> tuple[dict[str, Floats], tuple[str, ...]] | None:
    """Return the tensors of a framework's file as W_Q (heads, d_model, d_k), W_K, W_V, b_Q, …, and notes; else None.

    Raises UsageError if the file does not say how many heads it has, or has another number of them, AttnctlError for
    several attentions, or for one with tensors that change scores in other ways.
    """
    places = _places(tensors)
    if not places:
        return None
    if len(places) > 1:
        raise AttnctlError(_several(places, path))
    place = places[0]
    made, used = _by_head(place, tensors, path, n_heads)
    for option, number, name in (("n_heads", n_heads, "W_Q"), ("n_kv_heads", n_kv_heads, "W_K")):
        heads = made[name].shape[0]
        if number not in (None, heads):
            raise UsageError(f"{path} has {counted(heads, 'head')} there", option=option, value=number)
    notes: tuple[str, ...] = ()
    shared = made["W_K"].shape[0]
    turns, rest = divmod(made["W_Q"].shape[0], shared)
    if shared > 1 and turns > 1 and not rest and _takes_turns(place, tensors):
        made |= {name: np.concatenate([array] * turns) for name, array in made.items() if name[-1] in "KV"}
        notes = (f"Head h of {path} has keys and values of head h modulo {shared}: x-transformers shares them so.",)
    left = [name for name in tensors if name not in used]
    beside = [name for name in left if name.startswith(place.prefix)]
    if changing := next((name for name in beside if _CHANGES_SCORES.match(name.removeprefix(place.prefix))), None):
        raise AttnctlError(
            f"{path} holds {changing[:60]} beside the projections, which changes the weights: a function that returns the "
            f"module shows them, {option_name('model', 'file.py:function')}"
        )
    if not left:
        return made, notes
    shown = ", ".join(shortened(name, 40) for name in left[:3]) + (", …" if len(left) > 3 else "")
    return made, (
        *notes,
        f"Of {path}, the attention alone is computed: {counted(len(left), 'other tensor')} not used ({shown}).",
    )


def _places(tensors: Mapping[str, Floats]) -> list[Projections]:
    """Return each attention whose three projections, or their fused one with an output, are in the file."""
    places = []
    for name, tensor in tensors.items():
        if name.endswith(FUSED) and f"{name.removesuffix(FUSED)}out_proj.weight" in tensors:
            places.append(Projections(name.removesuffix(FUSED), (name,)))
        for stems in STEMS:
            match = re.fullmatch(rf"(|.*[./]){stems[0]}([./])(weight|kernel)", name)
            if match is not None and tensor.ndim in (2, 3):
                prefix, joint, ending = match.groups()
                names = tuple(f"{prefix}{stem}{joint}{ending}" for stem in stems)
                if all(other in tensors for other in names):
                    places.append(Projections(prefix, names, joint, ending))
    return places


def _takes_turns(place: Projections, tensors: Mapping[str, Floats]) -> bool:
    """Return whether heads of queries take the heads of keys in turn, as those of a layer of x-transformers."""
    stem, output = TAKES_TURNS
    return place.names[0].removeprefix(place.prefix).startswith(stem) and f"{place.prefix}{output}" in tensors


def _several(places: list[Projections], path: str) -> str:
    """Return why a file with several attentions is not read, and the command that writes one of them to a file."""
    prefixes = [place.prefix for place in places]
    target, source = str(Path(path).with_name("one.safetensors")), shlex.quote(path)
    load = "numpy.load(p)" if path.lower().endswith(".npz") else "safetensors.numpy.load_file(p)"
    # safetensors 0.8 writes an array of another order than C with its numbers in the wrong places; a copy has C's
    script = (
        f"import sys, numpy, safetensors.numpy; p, to, of = sys.argv[1:]; safetensors.numpy.save_file("
        f"{{k: w.copy() for k, w in {load}.items() if k.startswith(of)}}, to)"
    )
    folder = checkpoint_around(path)
    whole = (
        f"A function that returns the module runs all, {option_name('model', 'file.py:function')}"
        if folder is None
        else f"The folder is a checkpoint, whose model runs all: {option_name('model', folder)}"
    )
    return (
        f"{path} holds {len(places)} attentions, and what stands between them is not computed: "
        f"{', '.join(map(repr, prefixes[:3]))}{', …' if len(places) > 3 else ''}. {whole}; this writes one alone: "
        f"python -c {shlex.quote(script)} {source} {shlex.quote(target)} {shlex.quote(prefixes[0])}"
    )


def _by_head(
    place: Projections, tensors: Mapping[str, Floats], path: str, n_heads: int | None
) -> tuple[dict[str, Floats], set[str]]:
    """Return the tensors of an attention by attnctl's names and in its layout, and the names that were used."""
    names, joint = place.names, place.joint
    used = set(names)
    biases: list[Floats | None]
    first = tensors[names[0]]
    if n_heads is None and first.ndim == 2 and (folder := checkpoint_around(path)) is not None:
        raise UsageError(
            f"{path} is a file in the folder of a checkpoint: give the folder, {for_pasting(folder)}; or "
            f"{option_name('n_heads')}, to read the one attention in it",
            value=path,
        )
    if n_heads is None and first.ndim == 2:
        raise UsageError(
            f"{path} holds {names[0]} {first.shape}, which does not say how many heads it has: give their number",
            option="n_heads",
        )
    if len(names) == 1:
        if first.ndim != 2 or first.shape[0] != 3 * first.shape[1]:
            raise AttnctlError(f"{path}: {names[0]} has shape {first.shape}: it is (3 · d_model, d_model)")
        matrices = [part.T for part in np.split(first, 3)]  # (d_model, heads · d_k) each
        fused = tensors.get(f"{place.prefix}in_proj_bias")
        biases = [None] * 3 if fused is None else list(np.split(fused, 3))
        used.add(f"{place.prefix}in_proj_bias")
    else:
        matrices = [
            tensors[name] if place.ending == "kernel" else _two_axes(tensors[name], name, path).T for name in names
        ]
        bias_names = [f"{name.removesuffix(place.ending)}bias" for name in names]
        biases = [tensors.get(name) for name in bias_names]
        used |= set(bias_names)
    made: dict[str, Floats] = {}
    width = 0  # of a head of queries
    for letter, name, matrix, bias in zip(
        "QKV", names * 3 if len(names) == 1 else names, matrices, biases, strict=True
    ):
        heads = n_heads if letter == "Q" else made["W_K"].shape[0] if letter == "V" else None
        made[f"W_{letter}"] = _heads_first(matrix, heads, width, f"{path}: {name}")
        width = width or made["W_Q"].shape[2]
        if bias is not None:
            made[f"b_{letter}"] = bias.reshape(made[f"W_{letter}"].shape[0], -1)  # (heads, d)
    for stem in OUTPUTS:
        name = f"{place.prefix}{stem}{joint}{place.ending}"
        if name in tensors:
            output = tensors[name] if place.ending == "kernel" else _two_axes(tensors[name], name, path).T
            made["W_O"] = np.ascontiguousarray(output.reshape(-1, output.shape[-1]))  # (heads · d_v, d_out)
            bias_name = f"{name.removesuffix(place.ending)}bias"
            if bias_name in tensors:
                made["b_O"] = tensors[bias_name]
            used |= {name, bias_name}
            break
    return made, used


def _two_axes(tensor: Floats, name: str, path: str) -> Floats:
    if tensor.ndim != 2:
        raise AttnctlError(f"{path}: {name} has shape {tensor.shape}: it is (heads · d_k, d_model)")
    return tensor


def _heads_first(matrix: Floats, heads: int | None, width: int, name: str) -> Floats:
    """Return a projection (d_model, heads, d) or (d_model, heads · d) as (heads, d_model, d).

    Without `heads`, a head is `width` numbers wide, as those of the queries. Raises AttnctlError if that does not fit.
    """
    if matrix.ndim == 2:
        count = heads or matrix.shape[1] // max(width, 1)
        if not count or matrix.shape[1] % count or (width and not heads and count * width != matrix.shape[1]):
            raise AttnctlError(f"{name} {matrix.shape} does not divide into {heads or 'such'} heads")
        matrix = matrix.reshape(matrix.shape[0], count, -1)
    if matrix.ndim != 3 or 0 in matrix.shape:
        raise AttnctlError(f"{name} has shape {matrix.shape}: it is (d_model, heads, d_k)")
    return np.ascontiguousarray(matrix.transpose(1, 0, 2))  # (heads, d_model, d)
