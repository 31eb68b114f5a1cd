"""A sentence-transformers folder: the tokens of a text are those that the library feeds to its network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attnctl import open_model
from tests.conftest import Refused, Run
from tests.models.huggingface.conftest import Shelf
from tests.tools import folders

TRANSFORMER = "sentence_transformers.models.Transformer"


def sentence_folder(
    shelf: Shelf, top: Path, inner: str = "", prompts: dict[str, Any] | None = None, kind: str = TRANSFORMER, **own: Any
) -> str:
    """Write a folder as sentence-transformers saves it, with the tokenizer of the shelf between <s> and </s>."""
    folder = top / inner
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    shutil.copytree(shelf("bert", bos=True, eos=True, settings=settings), folder)
    modules = [{"idx": 0, "name": "0", "path": inner, "type": kind}]
    (top / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps(own))
    if prompts is not None:
        (top / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return str(top)


PROMPTS = {"prompts": {"query": "q: ", "other": "X"}, "default_prompt_name": "query"}
# settings → the ids that sentence-transformers 6.2.0 feeds for each of TEXTS: model[0].preprocess([text], prompt=…)
TEXTS = ("Eat at Ö", "a b c d e f g h i j k l m n o p")
LETTERS = [
    1,
    68,
    224,
    69,
    224,
    70,
    224,
    71,
    262,
    224,
    73,
    224,
    74,
    224,
    75,
    224,
    76,
    224,
    77,
    224,
    78,
    224,
    79,
    224,
    80,
    224,
    81,
    224,
    82,
    224,
    83,
]
FED: list[tuple[dict[str, Any], list[list[int]]]] = [
    ({}, [[1, 40, 263, 224, 263, 224, 131, 248, 2], [*LETTERS, 2]]),
    ({"prompts": PROMPTS}, [[1, 84, 29, 224, 40, 263, 224, 263, 224, 131, 248, 2], [1, 84, 29, 224, *LETTERS[1:], 2]]),
    ({"prompts": PROMPTS | {"default_prompt_name": None}}, [[1, 40, 263, 224, 263, 224, 131, 248, 2], [*LETTERS, 2]]),
    ({"max_seq_length": 6}, [[1, 40, 263, 224, 263, 2], [1, 68, 224, 69, 224, 2]]),
    ({"max_seq_length": 6, "truncation_side": "left"}, [[1, 263, 224, 131, 248, 2], [1, 224, 82, 224, 83, 2]]),
    ({"processor_kwargs": {"model_max_length": 5}, "max_seq_length": 9}, [[1, 40, 263, 224, 2], [1, 68, 224, 69, 2]]),
    ({"processing_kwargs": {"text": {"max_length": 6}}}, [[1, 40, 263, 224, 263, 2], [1, 68, 224, 69, 224, 2]]),
    ({"do_lower_case": True}, [[1, 72, 263, 224, 263, 224, 131, 118, 2], [*LETTERS, 2]]),
    (
        {"prompts": PROMPTS, "max_seq_length": 7, "do_lower_case": True},
        [[1, 84, 29, 262, 263, 224, 2], [1, 84, 29, 224, 68, 224, 2]],
    ),
    (
        {"prompts": PROMPTS, "max_seq_length": 9, "inner": "0_Transformer"},
        [[1, 84, 29, 224, 40, 263, 224, 263, 2], [1, 84, 29, 224, 68, 224, 69, 224, 2]],
    ),
]


@pytest.mark.parametrize(("settings", "right"), FED)
def test_the_ids_are_those_of_the_library(
    settings: dict[str, Any], right: list[list[int]], shelf: Shelf, tmp_path: Path
) -> None:
    changed = {key: settings[key] for key in ("truncation_side",) if key in settings}
    own = {key: value for key, value in settings.items() if key not in changed}
    folder = sentence_folder(shelf, tmp_path / "m", **own)
    file = tmp_path / "m" / own.get("inner", "") / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    model = open_model(folder)
    assert [[token.id for token in model.tokenize(text)] for text in TEXTS] == right


def test_positions_refer_to_the_text_and_the_prompt_has_none(shelf: Shelf, tmp_path: Path) -> None:
    """The prompt "q: " ends with a space, which is one token with the first letter of the text."""
    folder = sentence_folder(shelf, tmp_path / "m", prompts=PROMPTS, do_lower_case=True)
    tokens = open_model(folder).tokenize("Eat it")
    assert [(token.text, token.start, token.end) for token in tokens[1:5]] == [
        ("q", None, None), (":", None, None), ("E", 0, 1), ("at", 1, 3),
    ]  # fmt: skip


def test_notes_say_what_was_done_to_the_text(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    folder = sentence_folder(shelf, tmp_path / "m", prompts=PROMPTS, do_lower_case=True, max_seq_length=7)
    printed = run("heatmap", "Eat at nine", "--model", folder).err
    assert "its prompt “q: ” (query) stands before the text, and the text is read in lower case" in printed
    assert "m reads only the first 7 tokens: sentence-transformers leaves out the text from 'at nine' on" in printed


def test_a_folder_without_prompt_and_a_short_text_need_no_note(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    folder = sentence_folder(shelf, tmp_path / "m", prompts=PROMPTS | {"default_prompt_name": None}, max_seq_length=9)
    printed = run("heatmap", "eat at", "--model", folder, "--format", "csv").err
    assert "sentence-transformers" not in printed and "reads only" not in printed


def test_settings_that_are_not_applied_are_named(shelf: Shelf, run: Run, tmp_path: Path) -> None:
    folder = sentence_folder(shelf, tmp_path / "m", query_expansion={"length": 32})
    assert "with query_expansion, which attnctl does not apply" in run("heatmap", "eat at", "--model", folder).err


def test_modules_are_followed_although_the_top_folder_has_a_configuration(
    shelf: Shelf, run: Run, tmp_path: Path
) -> None:
    folder = sentence_folder(shelf, tmp_path / "m", "0_Transformer")
    shutil.copy(Path(shelf("llama")) / "config.json", folder)
    printed = [run("heatmap", "at eat", "--quiet", "-m", name) for name in (folder, f"{folder}/0_Transformer")]
    assert printed[0].code == 0 and printed[0].out == printed[1].out and "4" in printed[0].out


def test_a_folder_whose_first_module_has_no_attention_is_named(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "", "type": "sentence_transformers.models.BoW"}]))
    assert "its first module is BoW, which has no attention" in refused("heatmap", "a b", "-m", str(tmp_path))


def test_a_router_names_its_folders(shelf: Shelf, refused: Refused, tmp_path: Path) -> None:
    for route in ("query_0_Transformer", "document_0_Transformer"):
        shutil.copytree(shelf("bert"), tmp_path / route)
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "", "type": "sentence_transformers.models.Router"}]))
    line = refused("heatmap", "a b", "--model", str(tmp_path))
    assert "a model for each kind of text: name document_0_Transformer or query_0_Transformer" in line


@pytest.mark.parametrize("side", ["left", "right"])
def test_truncate_cuts_where_the_tokenizer_of_transformers_cuts(side: str, shelf: Shelf, tmp_path: Path) -> None:
    """Of any folder, and of both texts of a pair."""
    from transformers import PreTrainedTokenizerFast

    names = {"tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": side, "model_max_length": 9}
    folders.write(tmp_path / "m", "bert", bos=True, eos=True, settings=names)
    library = PreTrainedTokenizerFast.from_pretrained(tmp_path / "m")
    model = open_model(str(tmp_path / "m"), truncate=True)
    assert [token.id for token in model.tokenize("a b c d e f g")] == library("a b c d e f g", truncation=True)[
        "input_ids"
    ]
    pair = model.with_text_pair("h i j k l m n")
    right = library("a b c d e f g", "h i j k l m n", truncation=True)["input_ids"]
    assert [token.id for token in pair.tokenize("a b c d e f g")] == right
    assert any(
        "leaves out" in note and ("before" in note) == (side == "left")
        for note in model.run(model.tokenize("a b c d e f g"), lambda layer: None, "a b c d e f g").subject.notes
    )
