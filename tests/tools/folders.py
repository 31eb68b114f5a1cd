"""Tiny checkpoints on disk: random weights, a byte-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from tests.tools import architectures as zoo

CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
SPECIAL = ["<pad>", "<s>", "</s>", "<mask>"]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCABULARY = {piece: at for at, piece in enumerate([*SPECIAL, *ALPHABET, "Ġwill", "lic", "Ġe", "at"])}


def tokenizer(bos: bool = False, eos: bool = False) -> Tokenizer:
    """Bytes and a few pieces: every text can be read, most characters beyond ASCII split over tokens."""
    merges = [("Ġ", "e"), ("a", "t")]
    made = Tokenizer(
        models.BPE(vocab={p: i for p, i in VOCABULARY.items() if p not in ("Ġwill", "lic")}, merges=merges)
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    if bos or eos:
        single = " ".join(["<s>"] * bos + ["$A"] + ["</s>"] * eos)
        made.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1), ("</s>", 2)])
    return made


def write(
    folder: Path, case: str, *, bos: bool = False, eos: bool = False, settings: dict[str, Any] | None = None, **how: Any
) -> Path:
    """A checkpoint of a case of the zoo, its vocabulary the byte-level one."""
    vocabulary = {"vocab_size": len(VOCABULARY) + 10, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = zoo.build(case, **vocabulary, **how)
    model.config.dtype = torch.float32
    model.save_pretrained(folder)
    tokenizer(bos, eos).save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"} | (settings or {})
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder
