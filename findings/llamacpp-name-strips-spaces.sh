#!/usr/bin/env bash
# xllamacpp 2026.10.11549 (llama.cpp b11549), gguf 0.19.0
#
# general.name of a GGUF file is a name for people ("the name of the model", says the description of the format). Two files
# that differ in nothing else should give a text the same tokens.
#
# llama.cpp looks for "phi-3" or "phi3" in the name, in any case: then white space after each special token of the text is
# left out, except after <s>, <unk> and <|endoftext|>. A file that someone renames, or a merge called "not-phi-3", gets other
# tokens: "<|user|>\n hello" loses its line end and its space.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet xllamacpp==2026.10.11549 gguf==0.19.0
cd "$work"
env/bin/python - <<'PY'
import ctypes, glob
import gguf

tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), "▁", *"helo", "<|user|>", "<|endoftext|>"]
types = [2, 3, 3] + [6] * 256 + [1] * 5 + [3, 3]
def write(path, name):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_context_length(64); writer.add_embedding_length(8); writer.add_block_count(1); writer.add_head_count(1)
    writer.add_feed_forward_length(8); writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama"); writer.add_token_list(tokens); writer.add_token_types(types)
    writer.add_token_scores([-float(n) for n in range(len(tokens))])
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

read = {}
for name in ("a chat model", "not-phi-3"):
    write("m.gguf", name)
    text, ids = b"<|user|>\n hello", (i32 * 64)()
    read[name] = [tokens[n] for n in ids[: tokenize(vocab(load(b"m.gguf", params)), text, len(text), ids, 64, True, True)]]
    print(f"general.name {name!r}: {read[name]}")
same = read["a chat model"] == ["<s>", "<|user|>", "▁", "<0x0A>", "▁", *"hello"]
raise SystemExit(0 if same and read["not-phi-3"] == ["<s>", "<|user|>", "▁", *"hello"] else "changed: other tokens")
PY
echo "as described: the name of a file decides whether white space after special tokens is read"
