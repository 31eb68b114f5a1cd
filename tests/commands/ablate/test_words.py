"""`attnctl ablate --spans words`, `sentences`: against forwards of transformers with the same keys masked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import torch
import transformers
from tokenizers import Tokenizer, processors

from attnctl.commands.ablate.figure import effects_drawing
from tests.conftest import Refused, Run, check_schema
from tests.tools import folders

pytestmark = pytest.mark.usefixtures("no_gradients")

TINY: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "vocab_size": len(folders.VOCABULARY) + 10, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "two": ("BertForSequenceClassification", {"id2label": {0: "NEGATIVE", 1: "POSITIVE"}}),
    "several": ("BertForSequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"}),
    "score": ("BertForSequenceClassification", {"num_labels": 1}),
    "last": ("LlamaForSequenceClassification", {"num_labels": 3}),
    "next": ("LlamaForCausalLM", {}),
    "masked": ("BertForMaskedLM", {}),
}
TEXT = "Alice will not eat it. Bob eats at noon"


def saved(folder: Path, case: str) -> str:
    """A classifier or language model of MODELS on disk; it reads bytes, between <s> and </s> if it is a BERT."""
    name, settings = MODELS[case]
    torch.manual_seed(1)
    made = getattr(transformers, name)
    network = made(made.config_class(**TINY | settings)).eval()
    for parameter in network.parameters():
        parameter.mul_(12 if parameter.ndim > 1 else 1)
    network.save_pretrained(folder)
    tokenizer = folders.tokenizer()
    if name.startswith("Bert"):
        pieces = {"single": "<s> $A </s>", "pair": "<s> $A </s> $B:1 </s>:1"}
        tokenizer.post_processor = processors.TemplateProcessing(**pieces, special_tokens=[("<s>", 1), ("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    names: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
    names |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    names |= {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return str(folder)


def words_by_offsets(encoding: Any, text: str, pair: str | None) -> list[tuple[str, list[int]]]:
    """Each word or mark of the text, and of the second text, with its tokens and that of the space before it.

    The space before a special token, which is no part of the text, belongs to the word before.
    """
    found = []
    for number, part in enumerate([text] if pair is None else [text, pair]):
        for match in re.finditer(r" ?(?:\w+|[^\w\s])(?: (?=<mask>))?", part):
            tokens = [
                index
                for index, ((a, b), sequence) in enumerate(zip(encoding.offsets, encoding.sequence_ids, strict=True))
                if sequence == number and match.start() < b and a < match.end()
            ]
            found.append((match[0].strip(), tokens))
    return found


def logits_without(network: Any, inputs: dict[str, Any], hidden: list[int]) -> torch.Tensor:
    """The logits of one forward, these tokens hidden from all others by a mask of four axes."""
    n = inputs["input_ids"].shape[1]
    seen = torch.ones(n, n, dtype=torch.bool)
    seen[[[query] for query in range(n) if query not in hidden], hidden] = False
    if not type(network).__name__.startswith("Bert"):
        seen &= torch.ones(n, n, dtype=torch.bool).tril()
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    return network(**inputs, attention_mask=mask).logits[0].double()


@pytest.mark.parametrize(
    ("case", "text", "pair"),
    [("two", TEXT, None), ("two", TEXT, "Eve sleeps!"), ("several", TEXT, None), ("score", TEXT, None),
     ("last", TEXT, None), ("next", TEXT, None), ("masked", "Alice will <mask> it at noon", None)],
)  # fmt: skip
def test_each_word_as_if_its_keys_were_masked(case: str, text: str, pair: str | None, run: Run, tmp_path: Path) -> None:
    folder = saved(tmp_path / case, case)
    result = run(
        "ablate", text, "--spans", "words", "-m", folder, *([] if pair is None else ["--text-pair", pair]), "--json"
    )
    document = result.json
    assert check_schema(document) == "effects"
    network = getattr(transformers, MODELS[case][0]).from_pretrained(folder, attn_implementation="eager").eval()
    encoding = Tokenizer.from_file(f"{folder}/tokenizer.json").encode(text, pair)
    inputs = {"input_ids": torch.tensor([encoding.ids])}
    if pair is not None and case == "two":
        inputs["token_type_ids"] = torch.tensor([[token.get("type") or 0 for token in document["tokens"]]])
    words = [
        (name, tokens) for name, tokens in words_by_offsets(encoding, text, pair) if name not in ("<", "mask", ">")
    ]
    assert [span["name"] for span in document["spans"]] == [name for name, _ in words]

    def score(hidden: list[int]) -> float:
        logits = logits_without(network, inputs, hidden)
        logits = logits[document["query"]] if logits.ndim > 1 else logits
        scale = {"several": torch.nn.functional.logsigmoid, "score": lambda x: x}.get(case, lambda x: x.log_softmax(-1))
        return float(scale(logits)[document["target"]["id"]])

    name = "number" if case == "score" else "log_probability"
    for span, (_, tokens) in zip(document["spans"], words, strict=True):
        assert span[name] == pytest.approx(score(tokens) - score([]), abs=1e-5)
    assert max(abs(span[name]) for span in document["spans"]) > 1e-3
    if case in ("last", "next"):  # no token sees the last word but its own
        assert abs(document["spans"][-1][name]) < 1e-5 and "Hiding “noon” changes nothing" in result.err


def test_the_label_is_named_and_the_text_shaded(run: Run, tmp_path: Path) -> None:
    asked = ("ablate", f"{TEXT} <b>", "--spans", "words", "-m", saved(tmp_path / "two", "two"))
    document = run(*asked, "--label", "negative", "--json").json
    assert document["target"] == {"text": "NEGATIVE", "id": 0, "is_class": True} and document["parts"] == "words"
    sizes = {span["name"]: span["log_probability"] for span in document["spans"]}
    first = max(sizes, key=lambda name: abs(sizes[name]))
    screen = run(*asked, "--label", "NEGATIVE", "--top", "1").out
    assert f"{first}({sizes[first]:+.2f})" in screen and f"Without “{first}”, “NEGATIVE” " in screen
    assert f"{len(sizes) - 1} more do less" in screen
    assert run(*asked, "-o", str(tmp_path / "w.html")).code == 0
    page = (tmp_path / "w.html").read_text()
    assert page.count("<span data-map=difference") == len(sizes) + 2 and "&lt;" in page and "<b></span>" not in page
    assert run(*asked, "--label", "NEGATIVE", "-o", str(tmp_path / "w.svg")).code == 0
    drawn = (tmp_path / "w.svg").read_text()
    assert f"<!-- {sizes[first]:+.2f} -->" in drawn and f"<!-- {first} -->" in drawn and "“NEGATIVE”, two" in drawn


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Stop", ["Stop"]),
        ("הילד אכל 🙂 היום", ["הילד", "אכל", "🙂", "היום"]),
        ("今天 好。", ["今", "天", "好", "。"]),
    ],
)
def test_words_of_any_script_are_drawn(text: str, names: list[str], run: Run, tmp_path: Path) -> None:
    import attnctl

    found = attnctl.ablate(text, spans="words")
    assert [span.name for span in found.spans] == names
    drawing = effects_drawing(found)
    numbers = [
        part.get_text() for part in drawing.figure.axes[0].texts if re.fullmatch(r"[+-]?\d\.\d\d", part.get_text())
    ]
    assert len(numbers) == len(names)
    assert run("ablate", text, "--spans", "words", "-o", str(tmp_path / "w.png")).code == 0


def test_more_words_than_a_matrix_has_rows(run: Run) -> None:
    found = run("ablate", "Alice will eat pizza " * 60, "--spans", "words", "--json").json
    assert len(found["spans"]) == 240
    assert sum(span["looked_at"] for span in found["spans"]) == pytest.approx(1, abs=1e-4)


def test_sentences_in_turn(run: Run) -> None:
    screen = run("ablate", "Mr. Lee eats. Alice will ____ it", "--spans", "sentences").out
    assert "0 Mr. Lee eats. (0–" in screen and "1 Alice will" in screen and "Without sentence" in screen


def test_a_family_that_cannot_be_changed(refused: Refused, tmp_path: Path) -> None:
    outside = str(folders.write(tmp_path / "outside", "bloom, ALiBi"))
    assert "code of its own" in refused("ablate", TEXT, "--spans", "words", "--model", outside)


def test_a_page_of_probabilities_needs_them(refused: Refused, tmp_path: Path) -> None:
    said = refused(
        "view", TEXT, "--effects", "-m", saved(tmp_path / "score", "score"), "-o", "v.html", "--no-open", code=2
    )
    assert "score puts out a number" in said


def test_a_label_that_is_nearly_certain_is_held_against_the_next_by_logits(run: Run, tmp_path: Path) -> None:
    """Probabilities of 0.9999 hardly move; logits do. The right values are the network's own logits."""
    import transformers

    folder = Path(saved(tmp_path / "two", "two"))
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        network.classifier.bias[1] += 12
    network.save_pretrained(folder)
    made = run("ablate", TEXT, "--spans", "words", "-m", str(folder), "--json")
    document = made.json
    encoding = Tokenizer.from_file(f"{folder}/tokenizer.json").encode(TEXT)
    inputs = {"input_ids": torch.tensor([encoding.ids])}
    before = logits_without(network, inputs, [])
    assert document["against"]["text"] == network.config.id2label[0] and "--against" in made.err
    assert document["baseline"]["logit_difference"] == pytest.approx(float(before[1] - before[0]), abs=1e-4)
    for span, (_, tokens) in zip(document["spans"], words_by_offsets(encoding, TEXT, None), strict=True):
        after = logits_without(network, inputs, tokens)
        assert span["logit_difference"] == pytest.approx(
            float((after[1] - after[0]) - (before[1] - before[0])), abs=1e-4
        )
    assert "Δ logits" in run("ablate", TEXT, "--spans", "words", "-m", str(folder)).out
