"""Tiny checkpoints that translate, saved as people save them: random weights, a tokenizer of each family."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

SENTENCES = ("The house is small.", "La maison est petite.", "Das Haus ist klein.", "A cat sat on the mat.")
SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
}


def _sentencepiece(folder: Path, name: str, sentences: tuple[str, ...], size: int = 50) -> Path:
    """A sentencepiece model that was trained on a few sentences."""
    import sentencepiece

    corpus = folder / f"{name}.txt"
    corpus.write_text("\n".join(sentences * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / name), vocab_size=size, hard_vocab_limit=False, minloglevel=9
    )
    corpus.unlink()
    return folder / f"{name}.model"


def _pieces(model: Path) -> list[str]:
    import sentencepiece

    known = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [known.id_to_piece(number) for number in range(3, known.get_piece_size())]


def tokenizer(family: str, folder: Path, **how: Any) -> Any:
    """A tokenizer of a family that translates: nllb, mbart, mbart50, m2m_100 or marian."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted({letter for sentence in SENTENCES for letter in sentence if letter != " "})
    if family == "nllb":
        words = ["<s>", "<pad>", "</s>", "<unk>", "▁", *letters, "▁T", "▁L", "ma", "is"]
        merges = [("▁", "T"), ("▁", "L"), ("m", "a"), ("i", "s")]
        return transformers.NllbTokenizer(vocab={word: at for at, word in enumerate(words)}, merges=merges, **how)
    if family in ("mbart", "mbart50"):
        words = ["<s>", "<pad>", "</s>", "<unk>", "▁", *letters, "▁The", "▁La", "mais", "on"]
        kind = transformers.MBartTokenizer if family == "mbart" else transformers.MBart50Tokenizer
        return kind(vocab=[(word, -float(at)) for at, word in enumerate(words)], **how)
    vocabulary, both = folder / "words.json", SENTENCES[:2]
    files = [
        _sentencepiece(folder, "one", both[:1], 30),
        _sentencepiece(folder, "two", (both[1], *both[1].split()), 60),  # whole words
    ]
    pieces = dict.fromkeys([*_pieces(files[0]), *_pieces(files[1])])
    words = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    vocabulary.write_text(json.dumps({word: at for at, word in enumerate(words)}))
    if family == "m2m_100":
        file = _sentencepiece(folder, "both", both, 40)
        words = ["<s>", "<pad>", "</s>", "<unk>", *_pieces(file)]
        vocabulary.write_text(json.dumps({word: at for at, word in enumerate(words)}))
        return transformers.M2M100Tokenizer(str(vocabulary), str(file), **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends sacremoses
        return transformers.MarianTokenizer(str(files[0]), str(files[1]), str(vocabulary), **how)


def save(folder: Path, family: str, *, forced: str | None = None, **how: Any) -> Path:
    """A checkpoint of a family; `how` are arguments of its tokenizer, `forced` a language that `generate` begins with."""
    made = tokenizer(family, folder.parent / f"{folder.name}-made", **how)
    network = {
        "nllb": transformers.M2M100ForConditionalGeneration,
        "m2m_100": transformers.M2M100ForConditionalGeneration,
        "mbart": transformers.MBartForConditionalGeneration,
        "mbart50": transformers.MBartForConditionalGeneration,
        "marian": transformers.MarianMTModel,
    }[family]
    torch.manual_seed(0)
    size = max(len(made), *(number + 1 for number in (getattr(made, "lang_code_to_id", None) or {"": 0}).values()))
    settings = SIZES | {"vocab_size": size, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0}
    model = network(network.config_class(**settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name and "shared" not in name:
                parameter.mul_(0.3 / (parameter.std() + 1e-6))
    if forced is not None:
        model.generation_config.forced_bos_token_id = made.convert_tokens_to_ids(forced)
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return folder
