#!/usr/bin/env bash
# xllamacpp 2026.10.11549 (llama.cpp b11549), gguf 0.19.0, tokenizers 0.23.3
#
# The tokenizers of Youtu and Tiny Aya split words where a capital follows a small letter: their expression, which stands in the
# source of llama.cpp as in their tokenizer.json, has \p{Lu} for capitals and \p{Ll} for small letters. HelloWorld is two words.
#
# llama.cpp replaces each character by its main category before it runs an expression, and reads \p{Lu}, \p{Ll}, \p{Lt}, \p{Lm} and
# \p{Lo} all as "a letter": HelloWorld stays one word, and a merge of o and W is applied. For GPT-4o, whose expression has the
# same meaning, the source has another one with [^a-z] and [^A-Z], which splits there.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet xllamacpp==2026.10.11549 gguf==0.19.0 tokenizers==0.23.3
cd "$work"
env/bin/python - <<'PY'
import ctypes, glob
import gguf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
more = iter(range(256, 512))
letter = {n: chr(n if n in kept else next(more)) for n in range(256)}
merges = ["o W"]
tokens = [*letter.values(), *(m.replace(" ", "") for m in merges), "<s>"]
def write(path, pre):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64); writer.add_embedding_length(8); writer.add_block_count(1); writer.add_head_count(1)
    writer.add_feed_forward_length(8); writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2"); writer.add_tokenizer_pre(pre); writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3]); writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 1); writer.add_eos_token_id(len(tokens) - 1); writer.add_add_bos_token(False)
    writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()

class Params(ctypes.Structure):  # llama_model_params; vocab_only is byte 72 in this version
    _fields_ = [("bytes", ctypes.c_ubyte * 512)]
lib = ctypes.CDLL(glob.glob("env/lib/python*/site-packages/xllamacpp/xllamacpp*.so")[0])
log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
quiet = log(lambda *_: None)
lib.llama_log_set(quiet, None)
lib.llama_model_default_params.restype = Params
load, vocab, tokenize, i32 = lib.llama_model_load_from_file, lib.llama_model_get_vocab, lib.llama_tokenize, ctypes.c_int32
load.restype, load.argtypes = ctypes.c_void_p, [ctypes.c_char_p, Params]
vocab.restype, vocab.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, i32, ctypes.POINTER(i32), i32, ctypes.c_bool, ctypes.c_bool]
params = lib.llama_model_default_params(); params.bytes[72] = 1
def llamacpp(pre, text):
    write("m.gguf", pre)
    ids, raw = (i32 * 64)(), text.encode()
    return [tokens[n] for n in ids[: tokenize(vocab(load(b"m.gguf", params)), raw, len(raw), ids, 64, False, False)]]

ending = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
expression = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + ending +
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + ending +
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
hf = Tokenizer(models.BPE({t: n for n, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
hf.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(expression), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
)
read = {"tokenizers, by the expression": hf.encode("HelloWorld").tokens}
for pre in ("youtu", "tiny_aya", "gpt-4o"):
    read[pre] = llamacpp(pre, "HelloWorld")
for name, pieces in read.items():
    print(f"HelloWorld, {name}: {pieces}")
as_described = ["oW" in pieces for pieces in read.values()] == [False, True, True, False]
raise SystemExit(0 if as_described else "changed: words end elsewhere")
PY
echo "as described: under youtu and tiny_aya llama.cpp does not split HelloWorld, and the expression does"
