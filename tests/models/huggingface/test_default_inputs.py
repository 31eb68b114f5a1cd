"""A note where a network reads more than a text tells: boxes, languages, global attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import attnctl
from attnctl.models.huggingface.readers.text import default_input_notes
from tests.tools import architectures as zoo
from tests.tools.folders import VOCABULARY, tokenizer

SIZES = {"vocab_size": len(VOCABULARY) + 10, "pad_token_id": 0}
XLM = {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": SIZES["vocab_size"], "pad_index": 0}


def layoutlm() -> Any:
    return transformers.LayoutLMModel(transformers.LayoutLMConfig(**zoo.TINY | SIZES)).eval()


def xlm(n_langs: int) -> Any:
    return transformers.XLMModel(transformers.XLMConfig(**XLM, n_langs=n_langs)).eval()


def notes_of(network: Any) -> list[str]:
    return [
        note for note in attnctl.attend("Alice will eat", network, tokenizer=tokenizer()).notes if "also reads" in note
    ]


def test_boxes_that_are_not_given_are_noted() -> None:
    network = layoutlm()
    (note,) = notes_of(network)
    assert note.startswith("LayoutLMModel also reads bbox, which a text does not contain")
    ids = torch.tensor([[5, 6, 7]])  # they matter
    with torch.no_grad():
        first, second = (
            network(input_ids=ids, bbox=torch.full((1, 3, 4), place)).last_hidden_state for place in (0, 500)
        )
    assert float((first - second).abs().max()) > 1e-3


def test_languages_are_noted_where_there_are_several() -> None:
    assert len(notes_of(xlm(3))) == 1 and not notes_of(xlm(1))


@pytest.mark.parametrize("case", ["bert", "roberta", "llama", "gpt2", "distilbert", "deberta", "bart", "t5, bias"])
def test_most_networks_have_nothing_to_note(case: str) -> None:
    import inspect

    network = zoo.build(case)
    assert not default_input_notes(network, set(inspect.signature(network.forward).parameters))


def test_the_note_stands_beside_every_result(run: Any, tmp_path: Any) -> None:
    network = layoutlm()
    network.save_pretrained(tmp_path)
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    for command in (("heatmap",), ("heads",), ("explain", "--top", "1"), ("ablate", "--layer", "0")):
        found = run(command[0], "Alice will eat", "--model", tmp_path, *command[1:])
        assert "also reads bbox" in " ".join((found.out + found.err).split()), command
