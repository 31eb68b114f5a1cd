"""Tokenizers of transformers that are written in Python and tell no offsets: their pieces are found in the text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnctl
from attnctl.models.huggingface.library_tokenizer import match_pieces
from tests.conftest import Run
from tests.tools import architectures as zoo
from tests.tools import translators

ACIDS = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO", ".", "-", "<null_1>", "<mask>"]
PROTEIN = "MKTAYIAKQRQISFVKSHFSRQ"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of "esm", "byt5" or "canine": random weights, saved as people save them."""
    root = tmp_path_factory.mktemp("slow")

    def of(name: str) -> Path:
        path = root / name
        if path.exists():
            return path
        tokenizer: Any
        network: Any
        torch.manual_seed(0)
        if name == "esm":
            words = root / "vocab.txt"
            words.write_text("\n".join(ACIDS))
            tokenizer = transformers.EsmTokenizer(str(words))
            settings = zoo.TINY | {"vocab_size": len(ACIDS), "pad_token_id": 1, "mask_token_id": 31}
            how = {"position_embedding_type": "rotary", "token_dropout": True}
            network = transformers.EsmForMaskedLM(transformers.EsmConfig(**settings | how))
        elif name == "byt5":
            tokenizer = transformers.ByT5Tokenizer()
            network = transformers.T5ForConditionalGeneration(transformers.T5Config(**zoo.T5 | {"vocab_size": 384}))
        else:
            tokenizer = transformers.CanineTokenizer()
            sizes = {"num_hash_buckets": 64, "num_hash_functions": 2, "local_transformer_stride": 16}
            kept = {key: value for key, value in zoo.TINY.items() if key != "vocab_size"}
            network = transformers.CanineModel(transformers.CanineConfig(**kept | sizes))
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.3)
        network.eval().save_pretrained(path)
        tokenizer.save_pretrained(path)
        return path

    return of


def test_proteins_are_read_letter_by_letter(folder: Callable[[str], Path]) -> None:
    path = folder("esm")
    trace = attnctl.attend(PROTEIN, path)
    given = transformers.AutoTokenizer.from_pretrained(path)(PROTEIN, return_tensors="pt")
    network = transformers.EsmForMaskedLM.from_pretrained(path, attn_implementation="eager").eval()
    with torch.no_grad():
        weights = torch.cat(network(**given, output_attentions=True).attentions)
    assert [token.id for token in trace.tokens] == given["input_ids"][0].tolist()
    np.testing.assert_allclose(np.stack([layer.weights for layer in trace.layers]), weights, atol=1e-5)
    assert [token.text for token in trace.tokens] == ["<cls>", *PROTEIN, "<eos>"]
    assert [(token.start, token.end) for token in trace.tokens[1:-1]] == [(at, at + 1) for at in range(len(PROTEIN))]


def test_a_network_of_ones_own_with_such_a_tokenizer(folder: Callable[[str], Path]) -> None:
    path = folder("esm")
    network, tokenizer = (
        transformers.EsmForMaskedLM.from_pretrained(path),
        transformers.EsmTokenizer.from_pretrained(path),
    )
    ours = attnctl.attend(PROTEIN, network.eval(), tokenizer=tokenizer)
    np.testing.assert_array_equal(ours.layers[0].weights, attnctl.attend(PROTEIN, path).layers[0].weights)


@pytest.mark.parametrize("command", ["heads", "ablate", "check", "view", "batch"])
def test_commands_on_proteins(folder: Callable[[str], Path], run: Run, tmp_path: Path, command: str) -> None:
    text = "MKT<mask>YI"
    how = {
        "heads": (text, "--words", "--json"),
        "ablate": (text, "--layer", "0", "--json"),
        "check": (text,),
        "view": (text, "-o", tmp_path / "page.html", "--no-open"),
        "batch": ("-",),
    }[command]
    found = run(command, *how, "--model", folder("esm"), stdin=b"MKTA\nMKTAYI\n")
    assert found.code == 0, found.err


def test_bytes_of_a_character_are_numbered(folder: Callable[[str], Path]) -> None:
    path = folder("byt5")
    trace = attnctl.attend("né", path, target="é")
    assert [token.text for token in trace.key_tokens or ()] == ["n", "é₁", "é₂", "</s>"]
    assert [token.id for token in trace.tokens] == [0, 198, 172]


def test_characters_of_canine(folder: Callable[[str], Path], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its middle layers pool the characters: the first one has a row for each, and the others are refused in one line."""
    # each of its tokenizers lists all characters of Unicode twice: these end behind its own
    monkeypatch.setattr("transformers.models.canine.tokenization_canine.UNICODE_VOCAB_SIZE", 0xE010)
    path = folder("canine")
    rows = run("heatmap", "né e", "--model", path, "--layer", "0", "--head", "0").out.splitlines()
    assert [row.split("\t")[3] for row in rows[1:]] == ["U+E000", "n", "é", "␣", "e", "U+E001"]
    network = transformers.CanineModel.from_pretrained(path, attn_implementation="eager").eval()
    given = transformers.AutoTokenizer.from_pretrained(path)("né e", return_tensors="pt")
    with torch.no_grad():
        weights = network(**given, output_attentions=True).attentions[0][0, 0]
    np.testing.assert_allclose([list(map(float, row.split("\t")[4:])) for row in rows[1:]], weights, atol=1e-5)
    found = run("heatmap", "né e", "--model", path)
    assert found.code == 1 and found.err.count("\n") == 1 and "Traceback" not in found.err


@pytest.mark.parametrize(
    ("text", "pieces", "spans"),
    [
        (
            "Ich ging, ça va",
            ["▁ich", "▁gin", "g", ",", "▁ca", "▁va"],
            [(0, 3), (4, 7), (7, 8), (8, 9), (10, 12), (13, 15)],
        ),
        ("a ☃ b", ["▁a", None, "▁b"], [(0, 1), (2, 3), (4, 5)]),
        ("☃ ☂", [None, None], [(0, 1), (2, 3)]),
        ("low@@er", ["low", "@@", "er"], [(0, 3), (3, 5), (5, 7)]),
        ("lower", ["low@@", "er</w>"], [(0, 3), (3, 5)]),
        ("one two", ["▁one", "▁three"], [None, None]),
        ("a", ["▁a", None], [None, None]),
        ("", [], []),
    ],
)
def test_pieces_are_found_from_left_to_right(text: str, pieces: list[str | None], spans: list[Any]) -> None:
    assert match_pieces(text, pieces) == spans


def test_pieces_that_do_not_spell_the_text_are_shown_as_they_are(folder: Callable[[str], Path], run: Run) -> None:
    path = folder("esm")
    tokenizer = transformers.EsmTokenizer.from_pretrained(path)
    ordinary = tokenizer.convert_ids_to_tokens
    tokenizer.convert_ids_to_tokens = lambda ids: [f"acid {piece}" for piece in ordinary(ids)]  # as no text has it
    network = transformers.EsmForMaskedLM.from_pretrained(path).eval()
    trace = attnctl.attend("MKT", network, tokenizer=tokenizer)
    assert [(token.text, token.start) for token in trace.tokens[1:-1]] == [(f"acid {one}", None) for one in "MKT"]
    assert any("its pieces do not spell it" in note for note in trace.notes)
    assert len(attnctl.heads("MKT", network, tokenizer=tokenizer, words=True)) == 8


def test_sentencepiece_is_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    path = translators.save(tmp_path / "m2m", "m2m_100")
    # None in sys.modules: a package that is not there; a process of its own, as transformers keeps what it has imported
    script = "import sys; sys.modules['sentencepiece'] = None; from attnctl.__main__ import main; main()"
    line = [sys.executable, "-c", script, "heatmap", "a b", "--model", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.endswith("(sentencepiece.bpe.model needs sentencepiece: pip install sentencepiece)\n")
