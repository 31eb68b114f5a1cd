"""The line of the first screen that says what a model predicts, held against the library's own logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import attnctl
from tests.conftest import Run
from tests.models.huggingface.conftest import Shelf


def masked_folder(folder: Path) -> Path:
    """Write a masked model whose tokenizer has a mask."""
    from transformers import BertConfig, BertForMaskedLM

    from tests.tools import folders

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=len(folders.VOCABULARY), **sizes)).save_pretrained(folder)
    folders.tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>", "mask_token": "<mask>"}))
    return folder


def told(shares: torch.Tensor, names: list[str]) -> str:
    """Return the three likeliest with their shares, as the screen has them: two digits below ten percent."""
    values, places = shares.topk(3)
    share = [f"{100 * x:.0f} %" if x >= 0.0995 else f"{100 * x:#.2g} %" for x in values.tolist()]
    return ", ".join(f"“{names[place]}” {x}" for place, x in zip(places.tolist(), share, strict=True))


@pytest.mark.parametrize(
    ("case", "head", "text", "begins"),
    [
        ("llama", "CausalLM", "at will", "predicted next: "),
        ("", "MaskedLM", "at <mask> will", "predicted in place of “<mask>”: "),
        ("bert of classes", "SequenceClassification", "at will", "predicted label: "),
    ],
)
def test_the_first_screen_says_what_the_model_predicts(
    case: str, head: str, text: str, begins: str, shelf: Shelf, run: Run, tmp_path: Path
) -> None:
    """Without an option: the next word of a causal model, the blank of a masked one, the label of a classifier."""
    import transformers

    folder = str(masked_folder(tmp_path)) if head == "MaskedLM" else shelf(case)
    screen = run("explain", text, "--model", folder, columns=200)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    network = getattr(transformers, f"AutoModelFor{head}").from_pretrained(folder).eval()
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = network(**inputs).logits[0]
    if head == "SequenceClassification":
        names = [network.config.id2label[number] for number in range(len(logits))]
    else:
        place = -1 if head == "CausalLM" else int((inputs.input_ids[0] == tokenizer.mask_token_id).nonzero()[0])
        logits = logits[place]
        names = [tokenizer.decode([number]).strip() for number in range(len(logits))]
    (line,) = (line.strip() for line in screen.out.splitlines() if line.strip().startswith("predicted"))
    assert line == begins + told(torch.softmax(logits, -1), names)


def test_a_chosen_token_has_its_prediction_and_many_have_a_hint(run: Run) -> None:
    text = "Alice will ____ pizza"
    document = run("explain", text, "--predict", "pizza", "--json").json
    best = document["predictions"][0]
    screen = run("explain", text, "--predict", "pizza").out
    assert f"predicted in place of “pizza”: “{best['text']}” " in screen
    every = run("explain", text, "--predict", "all").out
    assert every.count("  predicted ") == 3 and "1 more position: --steps prediction" in every
    assert "predicted next: " in run("explain", text.replace("____", "eat"), "--model", "demo-causal", "--words").out


def test_a_small_probability_is_held_against_chance(run: Run) -> None:
    """The demo chooses among 24,308 words: 100 / 24,308 is 0.0041."""
    text = "The children ____ their homework"
    best = run("explain", text, "--json").json["predictions"][0]
    assert best["among"] == len(attnctl.open_model("demo").vocabulary) == 24308 and best["probability"] < 0.1
    screen = run("explain", text).out
    times = f"{best['probability'] * 24308:,.0f}"
    assert f"of 24,308 words, each has 0.0041 % by chance; “{best['text']}” {times} times that" in screen


@pytest.mark.parametrize("asked", [[], ["--query", "l"], ["--layer", "1", "--head", "0"], ["--story"]])
def test_what_is_asked_for_is_shown_even_if_no_head_stands_out(shelf: Shelf, run: Run, asked: list[str]) -> None:
    shown = " ".join(run("explain", "Al", "--model", shelf("llama"), *asked).out.split())
    assert ("No head stands out in this text" in shown) == (asked == [])
    assert ("scores = Q Kᵀ" in shown) == (asked != [])
