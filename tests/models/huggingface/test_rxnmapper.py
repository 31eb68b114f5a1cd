"""An outside reference: rxnmapper's published confidences are functions of the weights of layer 10, head 5 of its ALBERT.

Its tests (rxn4chemistry/rxnmapper, tests/test_mapper.py) print them; its scorer turns one matrix of weights into one
number. Here the weights are attnctl's. The chemistry that it takes from rdkit is done by hand: neighbours and kinds of atoms.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import save_file

from attnctl.models import attend, open_model

found = importlib.util.find_spec("rxnmapper")
if found is None or not found.submodule_search_locations:
    pytest.skip("rxnmapper is not installed: pip install --no-deps rxnmapper==0.4.3", allow_module_level=True)

PACKAGE = Path(next(iter(found.submodule_search_locations)))
TOKEN = r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"

# reactions as the mapper hands them to its model, canonical where its test asks for that → the confidence it prints
PUBLISHED = {
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F": 0.9565619900376546,
    "CCBr.CC[O-]~[Na+].[H-]~[Na+]>>CCOCC": 0.9606074439250337,
    "CCO.BrCFC>>CCOCFC": 0.9730222157275086,
    "COC(=O)CCBr.O=C[O-]->[K+]>>COC(=O)CCOC(=O)C": 0.9322116305783666,
    "[1*]C=C.O>>*CCO": 0.9988284870307568,
}

# reactions in its tests with the numbers that it gives atoms: a product's is that of the reactant's that it was


def is_atom(token: str) -> bool:
    return token not in ("[CLS]", "[SEP]") and (token[0].isalpha() or token[0] in "[*")


def kinds_of_atoms(tokens: list[str]) -> list[str]:
    """The chemical symbol of each atom."""
    return [re.sub(r"^\[[0-9]*|[^A-Za-z].*$|H[0-9]*\]$", "", token).capitalize() for token in tokens if is_atom(token)]


def neighbours(tokens: list[str]) -> np.ndarray:
    """Which atoms are bound to which (atoms, atoms), read off a SMILES: branches in brackets, rings by number."""
    atoms = [token for token in tokens if is_atom(token)]
    bound = np.zeros((len(atoms), len(atoms)), dtype=int)
    last, at, branches, rings = -1, -1, [], {}
    for token in tokens:
        if is_atom(token):
            at += 1
            if last >= 0:
                bound[at, last] = bound[last, at] = 1
            last = at
        elif token in (".", "~", ">>"):
            last, branches, rings = -1, [], {}
        elif token == "(":
            branches.append(last)
        elif token == ")":
            last = branches.pop()
        elif token[0].isdigit() or token[0] == "%":
            if token in rings:
                other = rings.pop(token)
                bound[last, other] = bound[other, last] = 1
            else:
                rings[token] = last
    return bound


@pytest.fixture(scope="module")
def scorer() -> Iterator[Any]:
    """The package's AttentionScorer, its chemistry replaced by ours."""
    package, chemistry = ModuleType("rxnmapper"), ModuleType("rxnmapper.smiles_utils")
    package.__path__ = [str(PACKAGE)]
    symbols: dict[str, int] = {}

    def numbered(tokens: list[str], *_: Any) -> list[int]:
        count = iter(range(len(tokens)))
        return [next(count) if is_atom(token) else -1 for token in tokens]

    chemistry.number_tokens = numbered
    chemistry.get_mask_for_tokens = lambda tokens, *_: [int(is_atom(token)) for token in tokens]
    chemistry.tokens_to_adjacency = neighbours
    chemistry.get_atom_types_smiles = lambda smiles: [
        symbols.setdefault(kind, len(symbols)) for kind in kinds_of_atoms(re.findall(TOKEN, smiles))
    ]
    with patch.dict(sys.modules, {"rxnmapper": package, "rxnmapper.smiles_utils": chemistry}):
        spec = importlib.util.spec_from_file_location("rxnmapper.attention", PACKAGE / "attention.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module.AttentionScorer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its ALBERT as a checkpoint's folder: the pickled weights read as weights alone, the vocabulary as a tokenizer."""
    folder = tmp_path_factory.mktemp("rxnmapper")
    source = PACKAGE / "models" / "transformers" / "albert_heads_8_uspto_all_1310k"
    shutil.copy(source / "config.json", folder)
    weights = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    save_file({name: tensor.clone().contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    words = (source / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(TOKEN), "isolated")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, words.index(name)) for name in ("[CLS]", "[SEP]")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return open_model(str(folder))


@pytest.mark.parametrize("reaction", PUBLISHED)
def test_the_published_confidence_follows_from_our_weights(model: Any, scorer: Any, reaction: str) -> None:
    trace = attend(reaction, model, layer=10, head=5)
    tokens = [token.text for token in trace.tokens]
    assert tokens[1:-1] == re.findall(TOKEN, reaction)
    found = scorer(reaction, tokens, trace.layers[0].weights[0])
    confidences = found.generate_attention_guided_pxr_atom_mapping()["confidences"]
    assert float(np.prod(confidences)) == pytest.approx(PUBLISHED[reaction], abs=2e-6)
