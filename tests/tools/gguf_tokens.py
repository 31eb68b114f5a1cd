"""Invented vocabularies as GGUF files, and what llama.cpp makes of texts with them.

    python -m tests.tools.gguf_tokens > tests/models/gguf/llamacpp_tokens.json   # needs xllamacpp

A vocabulary has pieces that join letters across the ends of words, so that each rule for splitting words shows in the ids.
"""

from __future__ import annotations

import json
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from attnctl.models.gguf.pretokenizers import PRE_TOKENIZERS

SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
TEXTS = (
    "",
    "  two spaces, then a word",
    "many     spaces   between  words   ",
    "line one\nline two\n\nparagraph\r\n\n\n   indented\n\ttab",
    "1234567 12 3,456.78 2024-01-02 x100y20 007  1 abc1234 99",
    "I'm sure you'll say it's Bob's; THEY'RE WE'VE don't CAN'T",
    "我爱北京天安门，東京タワーは高い。カタカナ 한국어 문장",
    "नमस्ते दुनिया, यह हिन्दी में है।",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "emoji 👍🏽 👨‍👩‍👧 🙂!! ok",
    "def f(x):\n    return {'a': x**2 + 1}  # c\n\tif (a != b) && ~c: a_b->c[0] += 1;",
    "naïve café déjà Ångström ÅÉ",
    unicodedata.normalize("NFD", "naïve café déjà Ångström ÅÉ"),
    "<|user|> hi <s>there</s>\n<|im_end|> x <unk>",
    "HelloWorld camelCase XMLHttpRequest ÀlphaBeta ΑΒγδ ЖЩжщ",
    "¿Qué? «Non» — “quotes”… №5 ½ ² Ⅷ ~tilde~ a~b $5 <=> ^| `code`",
    "word\u00a0nbsp\u3000wide\u2003em\u200bzero\u200czwnj\u0085nel\u2028ls",
    "ไทยภาษา বাংলা தமிழ் ＡＢＣ １２ ﬁ ㎏ ｶﾅ",
    "the rain on the stone and the hand in the sand. " * 4,
)
SIZES = {"context_length": 64, "embedding_length": 8, "feed_forward_length": 8, "block_count": 1, "head_count": 1}


@dataclass(frozen=True)
class Vocabulary:
    """The keys `tokenizer.ggml.*` of a file; `more` are further ones, `name` is general.name."""

    model: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    pre: str | None = None
    more: Mapping[str, bool | int | bytes] = field(default_factory=dict)
    name: str = "invented"


def write_vocabulary(path: Path, vocabulary: Vocabulary) -> Path:
    """Write a GGUF file of a vocabulary alone."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(vocabulary.name)
    for key, size in SIZES.items():
        getattr(writer, f"add_{key}")(size)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges is not None:
        writer.add_token_merges(vocabulary.merges)
    if vocabulary.pre is not None:
        writer.add_tokenizer_pre(vocabulary.pre)
    adders: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32, bytes: writer.add_array}
    for key, value in vocabulary.more.items():
        adders[type(value)](f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _letters_of_bytes() -> dict[int, str]:
    """Return GPT-2's letter for each byte."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return {byte: chr(byte if byte in kept else next(others)) for byte in range(256)}


@cache
def _joined(texts: tuple[str, ...]) -> dict[str, list[tuple[str, str]]]:
    """Return the pieces of two and three letters in texts, each with its merges, in the order of their first place."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for text in texts:
        for left, right in zip(text, text[1:], strict=False):
            pairs.setdefault(left + right, [(left, right)])
    triples: dict[str, list[tuple[str, str]]] = {}
    for text in texts:
        for first, middle, last in zip(text, text[1:], text[2:], strict=False):
            triples.setdefault(first + middle + last, [(first + middle, last), (first, middle + last)])
    del triples["<s>"]  # a special token
    return pairs | triples


def merged_bytes(pre: str | None, **more: bool | int) -> Vocabulary:
    """Return a vocabulary of merges of bytes (gpt2)."""
    letters = _letters_of_bytes()
    joined = _joined(tuple("".join(letters[byte] for byte in text.encode()) for text in TEXTS))
    special = {"<s>": CONTROL, "</s>": CONTROL, "<|im_end|>": NORMAL, "<|user|>": USER_DEFINED, "     ": USER_DEFINED}
    tokens = [*letters.values(), *joined, *special]
    types = [NORMAL] * (256 + len(joined)) + [*special.values()]
    merges = [f"{left} {right}" for pairs in joined.values() for left, right in pairs]
    ids = {"bos_token_id": tokens.index("<s>"), "eos_token_id": tokens.index("</s>")}
    return Vocabulary("gpt2", tokens, types, merges=merges, pre=pre, more=ids | more)


def _spaced_pieces() -> tuple[list[str], dict[str, list[tuple[str, str]]]]:
    """Return single letters, without those that bytes must spell, and joined ones; a space is ▁."""
    texts = tuple(text.replace(" ", SPACE) for text in TEXTS)
    letters = sorted({letter for text in texts for letter in text if ord(letter) < 0x4E00})
    joined = {piece: pairs for piece, pairs in _joined(texts).items() if set(piece) <= set(letters)}
    return letters, joined


def scored(name: str = "invented", runs: int = 0, **more: bool | int) -> Vocabulary:
    """Return a vocabulary of SentencePiece's merges; `runs`: user-defined runs of up to so many spaces, as Gemma has them."""
    letters, joined = _spaced_pieces()
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    spaces = [SPACE * count for count in range(2, runs + 1)]
    pieces = [*letters, *(piece for piece in joined if piece not in spaces)]
    added = {"<|user|>": USER_DEFINED, "<|im_end|>": CONTROL, "<|endoftext|>": CONTROL}
    tokens = [*head, *spaces, *pieces, *added]
    types += [USER_DEFINED] * len(spaces) + [NORMAL] * len(pieces) + [*added.values()]
    scores = (
        [0.0] * (len(head) + len(spaces)) + [-float(place) for place in range(len(pieces))] + [-1000.0] * len(added)
    )
    return Vocabulary("llama", tokens, types, scores, more=more, name=name)


def merged_letters(pre: str | None, model: str = "gpt2") -> Vocabulary:
    """Return a vocabulary of merges of letters, with bytes as <0x..> (Gemma 4)."""
    base = scored()
    _, joined = _spaced_pieces()
    merges = [f"{left} {right}" for pairs in joined.values() for left, right in pairs]
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    return Vocabulary(model, base.tokens, base.types, merges=merges, pre=pre, more=ids)


def unigrams(charsmap: bytes = b"", **more: bool | int) -> Vocabulary:
    """Return a vocabulary of unigrams (t5)."""
    letters, joined = _spaced_pieces()
    letters = [letter for letter in letters if letter not in "½γ"]  # unknown ones
    pieces = [*letters, *joined]
    tokens = ["<pad>", "</s>", "<unk>", "<|user|>", *pieces]
    types = [CONTROL, CONTROL, UNKNOWN, USER_DEFINED, *[NORMAL] * len(pieces)]
    scores = [0.0] * 4 + [-3.0 - place * 7919 % 101 / 13 for place in range(len(pieces))]
    table: dict[str, bool | int | bytes] = {"precompiled_charsmap": charsmap} if charsmap else {}
    return Vocabulary("t5", tokens, types, scores, more={"unknown_token_id": 2, "eos_token_id": 1} | table | more)


def words(**more: bool | int) -> Vocabulary:
    """Return a vocabulary of WordPiece (bert)."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<|user|>"]
    nfd = partial(unicodedata.normalize, "NFD")
    forms = tuple(form for text in TEXTS for form in (text, text.lower(), nfd(text.lower())))
    letters = sorted({letter for form in forms for letter in form if not letter.isspace() and letter != "ж"})
    joined = [piece for piece in _joined(forms) if not any(letter.isspace() for letter in piece)][::3]
    tokens = [*special, *(SPACE + piece for piece in (*letters, *joined)), *letters, *joined]
    types = [CONTROL] * 5 + [USER_DEFINED] + [NORMAL] * (len(tokens) - len(special))
    ids = {"bos_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1, "padding_token_id": 0, "mask_token_id": 4}
    return Vocabulary("bert", tokens, types, more=ids | more)


def _codes(text: str) -> str:
    return " ".join(f"{ord(letter):X}" for letter in text)


def small_charsmap() -> bytes:
    """Return a table of characters that SentencePiece made: full-width letters, a half, and kinds of white space."""
    import io
    from importlib import import_module

    trainer: Any = import_module("sentencepiece").SentencePieceTrainer
    messages: Any = import_module("sentencepiece.sentencepiece_model_pb2")
    rules = {
        "Ａ": "A",
        "Ｂ": "B",
        "Ｃ": "C",
        "½": "1/2",
        "\u00a0": " ",
        "\t": " ",
        "\n": " ",
        "ﬁ": "fi",
        "e\u0301": "é",
    }
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "rules.tsv"
        table.write_text("".join(f"{_codes(old)}\t{_codes(new)}\n" for old, new in rules.items()))
        model = io.BytesIO()
        trainer.train(
            sentence_iterator=iter(TEXTS[1:]), model_writer=model, vocab_size=400, hard_vocab_limit=False, minloglevel=2,
            normalization_rule_tsv=str(table),
        )  # fmt: skip
    proto = messages.ModelProto.FromString(model.getvalue())
    return bytes(proto.normalizer_spec.precompiled_charsmap)


def vocabularies(charsmap: bytes) -> dict[str, Callable[[], Vocabulary]]:
    """Return what makes each vocabulary, under the name of what it shows."""
    of_names = {
        f"gpt2 {name}": partial(merged_bytes if form.spells_bytes else merged_letters, name)
        for name, form in PRE_TOKENIZERS.items()
    }
    return of_names | {
        "gpt2 without a name": partial(merged_bytes, None),
        "gpt2 with an end": partial(merged_bytes, "qwen2", add_bos_token=True, add_eos_token=True),
        "gpt2 without a beginning": partial(merged_bytes, "llama-bpe", add_bos_token=False),
        "gemma4": partial(merged_letters, None, "gemma4"),
        "llama": scored,
        "llama without a first space": partial(scored, add_space_prefix=False),
        "llama with an end": partial(scored, add_bos_token=False, add_eos_token=True),
        "llama with runs of spaces": partial(scored, runs=12, add_space_prefix=False),
        "llama called Phi-3": partial(scored, name="Phi-3 mini"),
        "t5": unigrams,
        "t5 with a first space": partial(unigrams, add_space_prefix=True),
        "t5 without double spaces": partial(unigrams, add_space_prefix=True, remove_extra_whitespaces=True),
        "t5 with a table of characters": partial(
            unigrams, charsmap, add_space_prefix=True, remove_extra_whitespaces=True
        ),
        "bert": words,
        "bert with capitals": partial(words, **{"normalizer.lowercase": False}),
        "bert with accents": partial(words, **{"normalizer.strip_accents": False}),
    }


def main() -> None:
    """Write the ids of llama.cpp as JSON; equal answers are stored once."""
    import base64

    from tests.tools.llamacpp import PACKAGE, LlamaCpp

    charsmap = small_charsmap()
    answers: list[list[list[int]]] = []
    names: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in vocabularies(charsmap).items():
            model = LlamaCpp(write_vocabulary(Path(folder) / "vocabulary.gguf", make()), vocab_only=True)
            answer = [model.tokenize(text) for text in TEXTS]
            if answer not in answers:
                answers.append(answer)
            names[name] = answers.index(answer)
    head = {"from": f"llama_tokenize of {PACKAGE}", "charsmap": base64.b64encode(charsmap).decode(), "names": names}
    lines = ",\n".join(json.dumps(answer, separators=(",", ":")) for answer in answers)
    sys.stdout.write(json.dumps(head)[:-1] + f', "answers": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
