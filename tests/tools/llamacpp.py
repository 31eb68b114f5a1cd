"""llama.cpp as the referee of GGUF files: its token ids, logits and attention weights, by ctypes.

PyPI's `xllamacpp` holds the whole library in its extension module; its C interface (include/llama.h) is called here. The cache
is float32 and flash attention is off, so that the tensors `kq_soft_max-LAYER` exist; a callback copies them while they run.

    pip install --no-deps xllamacpp==2026.10.11549
    python -m tests.tools.llamacpp FILE.gguf "a text"        # JSON: ids, pieces, the largest logit of each position
    python -m tests.tools.llamacpp FILE.gguf "a text" x.npz  # ids, logits, weights of each layer

Numbers of quantised files are no referee of single weights: llama.cpp quantises the activations as well.
"""

from __future__ import annotations

import ctypes
import functools
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

PACKAGE = "xllamacpp==2026.10.11549"
LACKS = f"llama.cpp is not installed: pip install --no-deps {PACKAGE}"
F32, F16 = 0, 1  # ggml_type
KINDS = {"int": 0, "float": 1, "bool": 2, "str": 3}  # llama_model_kv_override_type
SPACE = c_int8 * 512  # behind the fields that are used: more than any version has
WEIGHTS = re.compile(r"kq_soft_max-(\d+)")

Setting = int | float | bool | str


class ModelParams(ctypes.Structure):
    """The beginning of `llama_model_params`."""

    _fields_ = (
        ("devices", c_void_p),
        ("buffers", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("main_gpu", c_int32),
        ("load_mode", c_int),
        ("tensor_split", c_void_p),
        ("progress", c_void_p),
        ("progress_data", c_void_p),
        ("unknown", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("rest", SPACE),
    )


class ContextParams(ctypes.Structure):
    """The beginning of `llama_context_params`."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("unknown", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope", c_float * 8),
        ("cb_eval", c_void_p),
        ("cb_eval_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("rest", SPACE),
    )


class Override(ctypes.Structure):
    """`llama_model_kv_override`: another value for a key of the header; the union is 128 bytes."""

    _fields_ = (("tag", c_int), ("key", ctypes.c_char * 128), ("_", c_int), ("value", c_int8 * 128))


class Batch(ctypes.Structure):
    """`llama_batch`."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


class TensorHead(ctypes.Structure):
    """The beginning of `ggml_tensor`: the shape, fastest axis first."""

    _fields_ = (("type", c_int), ("buffer", c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", c_size_t * 4))


CALLBACK = CFUNCTYPE(c_bool, c_void_p, c_bool, c_void_p)
LOG = CFUNCTYPE(None, c_int, c_char_p, c_void_p)
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (LOG, c_void_p)),
    "llama_version": (c_char_p, ()),
    "llama_model_default_params": (ModelParams, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_free": (None, (c_void_p,)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_model_has_decoder": (c_bool, (c_void_p,)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_vocab_get_text": (c_char_p, (c_void_p, c_int32)),
    "llama_tokenize": (c_int32, (c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool)),
    "llama_batch_init": (Batch, (c_int32, c_int32, c_int32)),
    "llama_batch_free": (None, (Batch,)),
    "llama_encode": (c_int32, (c_void_p, Batch)),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_get_logits_ith": (POINTER(c_float), (c_void_p, c_int32)),
    "ggml_get_name": (c_char_p, (c_void_p,)),
    "ggml_backend_tensor_get": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
}
_log_lines: list[str] = []
_log = LOG(lambda _level, text, _data: _log_lines.append(text.decode(errors="replace").strip()))


@dataclass(frozen=True)
class Answer:
    """What llama.cpp computes for one row of token ids.

    `weights`: layer → (heads, n, n), after the softmax; a layer without attention is absent. `logits`: (n, vocabulary), none
    of a model that only embeds. `tensors`: other tensors that were asked for, by name, axes in numpy's order.
    """

    ids: list[int]
    logits: np.ndarray | None
    weights: dict[int, np.ndarray]
    tensors: dict[str, np.ndarray]


def library_file() -> Path | None:
    """Return the extension module of xllamacpp; None where it is not installed."""
    spec = find_spec("xllamacpp")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(Path(spec.submodule_search_locations[0]).glob("xllamacpp*.so"), None)


@functools.cache
def library() -> ctypes.CDLL:
    """Load llama.cpp. Raises LookupError where it is absent, or where its structs are others than those above."""
    path = library_file()
    if path is None:
        raise LookupError(LACKS)
    loaded = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL | os.RTLD_LAZY)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # a failed assertion calls no debugger
    loaded.llama_log_set(_log, None)
    loaded.llama_backend_init()
    context, model = loaded.llama_context_default_params(), loaded.llama_model_default_params()
    numbers = (context.n_ctx, context.n_batch, context.n_ubatch, context.n_threads)
    choices = (context.ctx_type, context.flash_attn_type, context.type_k, context.type_v)
    if (numbers, choices, model.main_gpu, model.load_mode) != ((512, 2048, 512, 4), (0, -1, F16, F16), -1, 1):
        raise LookupError(f"this version of llama.cpp has other structs: pip install --no-deps {PACKAGE}")
    return loaded


class LlamaCpp:
    """One GGUF file in llama.cpp. `settings` are other values for keys of its header.

    Raises ValueError, with llama.cpp's reason, where it refuses the file. A failed assertion of ggml ends the process: where a
    file may do that, ask by `isolated`.
    """

    def __init__(self, path: Path, *, settings: Mapping[str, Setting] | None = None, vocab_only: bool = False) -> None:
        self.library, self.vocab_only = library(), vocab_only
        params = self.library.llama_model_default_params()
        params.vocab_only, params.n_gpu_layers = vocab_only, 0
        overrides = _overrides(settings or {})
        params.kv_overrides = ctypes.cast(overrides, c_void_p) if settings else None
        _log_lines.clear()
        self.model = self.library.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise ValueError("; ".join(line for line in _log_lines if "rror" in line or "fail" in line) or "not loaded")
        self.vocabulary = self.library.llama_model_get_vocab(self.model)

    def __del__(self) -> None:
        if getattr(self, "model", None):
            self.library.llama_model_free(self.model)

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the ids of a text; with the tokens that the file adds, and with special tokens read in the text."""
        raw = text.encode()
        ids = (c_int32 * (2 * len(raw) + 16))()
        arguments = (self.vocabulary, raw, len(raw), ids, len(ids), add_special, parse_special)
        return ids[: self.library.llama_tokenize(*arguments)]

    def token(self, token_id: int) -> str:
        """Return a token as the vocabulary spells it."""
        return str(self.library.llama_vocab_get_text(self.vocabulary, token_id).decode(errors="replace"))

    def run(self, ids: Sequence[int], *, context_length: int = 512, tensors: Sequence[str] = ()) -> Answer:
        """Run the ids as one sequence from position 0.

        `context_length`: of the cache; Phi-3 chooses its rotary factors by it. `tensors`: names of further float32 tensors
        of the graph to copy, such as `Qcur-0`; those of one name that come later replace the earlier.
        """
        if self.vocab_only:
            raise ValueError("only the vocabulary of this file was read")
        copied: dict[str, np.ndarray] = {}

        def callback(tensor: int, ask: bool, _data: object) -> bool:
            name = self.library.ggml_get_name(tensor).decode()
            wanted = WEIGHTS.fullmatch(name) is not None or name in tensors
            if wanted and not ask:
                copied[name] = self._copy(tensor)
            return wanted or not ask

        kept = CALLBACK(callback)
        params = self.library.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = max(context_length, len(ids))
        params.n_threads = params.n_threads_batch = 1
        params.flash_attn_type, params.type_k, params.type_v = 0, F32, F32
        params.cb_eval = ctypes.cast(kept, c_void_p)
        context = self.library.llama_init_from_model(self.model, params)
        if not context:
            raise ValueError("; ".join(_log_lines[-3:]))
        try:
            logits = self._compute(context, ids)
        finally:
            self.library.llama_free(context)
        weights = {
            int(name.partition("-")[2]): copied.pop(name)[0, :, : len(ids), : len(ids)]
            for name in list(copied)
            if WEIGHTS.fullmatch(name)
        }
        return Answer(list(ids), logits, dict(sorted(weights.items())), copied)

    def _compute(self, context: int, ids: Sequence[int]) -> np.ndarray | None:
        batch = self.library.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for index, token_id in enumerate(ids):
            batch.token[index], batch.pos[index], batch.logits[index] = token_id, index, 1
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
        encodes = self.library.llama_model_has_encoder(self.model)
        call = self.library.llama_encode if encodes else self.library.llama_decode
        try:
            code = call(context, batch)
        finally:
            self.library.llama_batch_free(batch)
        if code:
            raise ValueError(f"llama.cpp returned {code}: {'; '.join(_log_lines[-3:])}")
        if not self.library.llama_model_has_decoder(self.model) or encodes:
            return None
        size = self.library.llama_vocab_n_tokens(self.vocabulary)
        rows = [self.library.llama_get_logits_ith(context, index) for index in range(len(ids))]
        return np.stack([np.ctypeslib.as_array(row, (size,)).copy() for row in rows]) if all(rows) else None

    def _copy(self, tensor: int) -> np.ndarray:
        """Return a tensor's numbers, axes in numpy's order (slowest first)."""
        head = TensorHead.from_address(tensor)
        if head.type != F32:
            raise ValueError(f"a tensor of type {head.type} where float32 is expected")
        array = np.empty(tuple(head.ne)[::-1], np.float32)
        self.library.ggml_backend_tensor_get(tensor, array.ctypes.data_as(c_void_p), 0, array.nbytes)
        return array


def isolated(function: Any, *arguments: object) -> Any:
    """Call a function of a module in a process of its own, where an assertion of ggml cannot end ours.

    Raises ValueError where that process ends early.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise ValueError("llama.cpp ended its process") from error


def ask(
    path: Path, texts: Sequence[str | Sequence[int]], settings: Mapping[str, Setting] | None = None
) -> list[Answer]:
    """Return the answers of a file to texts, or to rows of ids; for `isolated`."""
    model = LlamaCpp(path, settings=settings)
    return [model.run(model.tokenize(text) if isinstance(text, str) else text) for text in texts]


def _overrides(settings: Mapping[str, Setting]) -> Any:
    """Return a `llama_model_kv_override` array; an entry without a key ends it."""
    array = (Override * (len(settings) + 1))()
    for entry, (key, value) in zip(array, settings.items(), strict=False):
        entry.tag, entry.key = KINDS[type(value).__name__], key.encode()
        place = ctypes.addressof(entry) + Override.value.offset
        if isinstance(value, bool):
            c_bool.from_address(place).value = value
        elif isinstance(value, int):
            ctypes.c_int64.from_address(place).value = value
        elif isinstance(value, float):
            ctypes.c_double.from_address(place).value = value
        else:
            ctypes.memmove(place, value.encode()[:127], min(len(value.encode()), 127))
    return array


def main(path: str, text: str, target: str | None = None) -> None:
    """Print or store what llama.cpp says of a text."""
    model = LlamaCpp(Path(path))
    answer = model.run(model.tokenize(text))
    if target is not None:
        arrays: dict[str, Any] = {f"weights_{layer}": array for layer, array in answer.weights.items()}
        np.savez(target, ids=answer.ids, logits=() if answer.logits is None else answer.logits, **arrays)
        return
    top = None if answer.logits is None else answer.logits.argmax(-1).tolist()
    print(json.dumps({"ids": answer.ids, "tokens": [model.token(one) for one in answer.ids], "top": top}))


if __name__ == "__main__":
    main(*sys.argv[1:])
