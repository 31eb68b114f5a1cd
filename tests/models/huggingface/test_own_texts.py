"""The text that an encoder-decoder writes is the one that `generate` of transformers writes with its generation_config."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from attnctl import align, open_model
from tests.conftest import Run
from tests.models.huggingface.conftest import Shelf

SETTINGS: list[dict[str, Any]] = [
    {"max_length": 12},
    {"max_new_tokens": 7},
    {"max_length": 15, "num_beams": 4, "no_repeat_ngram_size": 2},
    {"max_length": 9, "forced_bos_token_id": 7},
    {"max_new_tokens": 9, "forced_bos_token_id": 7},
    {"max_length": 10, "num_beams": 3, "num_return_sequences": 3},
]


def configured(shelf: Shelf, folder: Path, settings: dict[str, Any]) -> str:
    """Copy a tiny BART, and write these settings into its generation_config.json."""
    shutil.copytree(shelf("bart", eos=True), folder)
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return str(folder)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_target_is_what_generate_writes(settings: dict[str, Any], shelf: Shelf, tmp_path: Path) -> None:
    folder = configured(shelf, tmp_path / "m", settings)
    model = open_model(folder, attention="cross")
    ids = torch.tensor([[token.id for token in model.pieces.tokenize_text("Eat at nine")]])
    right = model.network.generate(input_ids=ids, attention_mask=torch.ones_like(ids))[0].tolist()
    assert [token.id for token in model.tokenize("Eat at nine")] == right
    assert align("Eat at nine", folder).target == model.pieces.tokenizer.decode(right)


def test_the_length_is_the_users_where_it_is_given(shelf: Shelf, tmp_path: Path) -> None:
    folder = configured(shelf, tmp_path / "m", {"max_length": 12, "forced_bos_token_id": 7})
    tokens = open_model(folder, attention="cross", generate=3).tokenize("Eat at nine")
    assert len(tokens) == 5 and tokens[1].id == 7  # start, forced token, three new ones


def test_a_length_beyond_the_positions_of_the_decoder_is_cut_to_them(shelf: Shelf, tmp_path: Path) -> None:
    folder = configured(shelf, tmp_path / "m", {"max_length": 5000, "eos_token_id": None})
    model = open_model(folder, attention="cross")
    assert len(model.tokenize("Eat at nine")) == model.network.config.max_position_embeddings


def test_a_note_says_beams_and_chance_that_is_left_out(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    folder = configured(shelf, tmp_path / "m", {"max_length": 9, "num_beams": 3, "do_sample": True})
    printed = [run("heatmap", "Eat at nine", "--model", folder, "--attention", "cross") for _ in range(2)]
    assert "the likeliest text of 3 beams, although its generation_config draws them by chance" in printed[0].err
    assert printed[0].out == printed[1].out
