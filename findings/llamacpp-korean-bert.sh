#!/usr/bin/env bash
# xllamacpp 2026.10.11549 (llama.cpp b11549), gguf 0.19.0, tokenizers 0.23.3
#
# A BERT vocabulary that ignores accents: BERT decomposes each character (NFD) and drops the marks that have no width (Mn).
# A Korean syllable decomposes into its letters, which are no marks: 한 becomes ᄒ ᅡ ᆫ, and all three are kept. A Hindi vowel
# sign such as ि has a width (Mc), and is kept as well.
#
# llama.cpp keeps the first letter of a decomposed character only, and drops every mark (M): 한국 has the tokens of ᄒ ᄀ, so
# that 한국 (Korea) and 하고 (and then) are the same text to a model; कि and क are the same too. The file is what llama.cpp's
# converter writes for bert-base-uncased: tokenizer.ggml.model bert, words with ▁ before them.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet xllamacpp==2026.10.11549 gguf==0.19.0 tokenizers==0.23.3
cd "$work"
env/bin/python - <<'PY'
import ctypes, glob, unicodedata
import gguf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

letters = [chr(c) for c in range(0x1100, 0x1200)] + ["क", "ि"]
special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
tokens = special + ["▁" + c for c in letters] + letters
writer = gguf.GGUFWriter("bert.gguf", "bert")
writer.add_context_length(64); writer.add_embedding_length(8); writer.add_block_count(1); writer.add_head_count(1)
writer.add_feed_forward_length(8); writer.add_layer_norm_eps(1e-12); writer.add_causal_attention(False)
writer.add_tokenizer_model("bert"); writer.add_token_list(tokens); writer.add_token_types([3] * 4 + [1] * 2 * len(letters))
writer.add_bos_token_id(2); writer.add_sep_token_id(3); writer.add_unk_token_id(1); writer.add_pad_token_id(0)
writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()

class Params(ctypes.Structure):  # llama_model_params; vocab_only is byte 72 in this version
    _fields_ = [("bytes", ctypes.c_ubyte * 512)]
lib = ctypes.CDLL(glob.glob("env/lib/python*/site-packages/xllamacpp/xllamacpp*.so")[0])
log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
quiet = log(lambda *_: None)
lib.llama_log_set(quiet, None)
lib.llama_model_default_params.restype = Params
load, vocab = lib.llama_model_load_from_file, lib.llama_model_get_vocab
load.restype, load.argtypes = ctypes.c_void_p, [ctypes.c_char_p, Params]
vocab.restype, vocab.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
tokenize = lib.llama_tokenize
i32 = ctypes.c_int32
tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, i32, ctypes.POINTER(i32), i32, ctypes.c_bool, ctypes.c_bool]
params = lib.llama_model_default_params(); params.bytes[72] = 1
vocabulary = vocab(load(b"bert.gguf", params))

def llamacpp(text):
    ids = (i32 * 64)()
    return [tokens[n] for n in ids[: tokenize(vocabulary, text.encode(), len(text.encode()), ids, 64, False, False)]]

hf = Tokenizer(models.WordPiece({t: n for n, t in enumerate(tokens)}, unk_token="[UNK]", continuing_subword_prefix=""))
hf.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
hf.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Metaspace(split=False)])

same = True
for first, second in (("한국", "하고"), ("कि", "क")):
    for text in (first, second):
        print(f"{text}: llama.cpp {llamacpp(text)}, tokenizers {hf.encode(text).tokens}")
    same &= llamacpp(first) == llamacpp(second) and hf.encode(first).ids != hf.encode(second).ids
raise SystemExit(0 if same else "changed: llama.cpp keeps what follows the first letter")
PY
echo "as described: llama.cpp reads 한국 and 하고 as the same tokens, and कि and क"
