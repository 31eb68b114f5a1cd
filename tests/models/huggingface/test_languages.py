"""Checkpoints that translate: source and target in their languages, held against transformers' own tokenizer and network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnctl
from attnctl.errors import UsageError
from tests.conftest import Refused, Run
from tests.tools import translators

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

SOURCE, TARGET = "The house is small.", "La maison est petite."
# a family, and how it calls English, French and German
FAMILIES = {
    "nllb": ("eng_Latn", "fra_Latn", "deu_Latn"),
    "mbart": ("en_XX", "fr_XX", "de_DE"),
    "mbart50": ("en_XX", "fr_XX", "de_DE"),
    "m2m_100": ("en", "fr", "de"),
}
Translator = Callable[..., Path]


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """The folder of a tiny checkpoint of a family, written when it is first asked for."""
    root = tmp_path_factory.mktemp("translators")

    def folder(family: str, **how: Any) -> Path:
        if family in ("m2m_100", "marian"):
            pytest.importorskip("sentencepiece")
        path = root / "-".join([family, *map(str, how.values())])
        return path if path.exists() else translators.save(path, family, **how)

    return folder


def reference(folder: Path, target: str, source: str | None = None, language: str | None = None) -> tuple[Any, Any]:
    """The decoder's ids and the cross weights (layers, heads, n_q, n_k) that transformers makes of a text and its target."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if source is not None:
        tokenizer.src_lang = source
    if language is not None:
        tokenizer.tgt_lang = language
    made = tokenizer(SOURCE, text_target=target, return_tensors="pt")
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()
    seen: list[torch.Tensor] = []
    decoder = network.get_decoder()
    hook = decoder.register_forward_pre_hook(lambda _, __, given: seen.append(given["input_ids"]), with_kwargs=True)
    with torch.no_grad():
        out = network(**made, output_attentions=True)  # which shifts the labels itself
    hook.remove()
    return seen[0][0].tolist(), torch.cat(out.cross_attentions).numpy()


def held(trace: attnctl.Trace, ids: list[int], weights: np.ndarray) -> None:
    assert [token.id for token in trace.tokens] == ids
    np.testing.assert_allclose(np.stack([layer.weights for layer in trace.layers]), weights, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_target_is_encoded_in_the_language_of_the_folder(translator: Translator, family: str) -> None:
    english, french, _ = FAMILIES[family]
    folder = translator(family, src_lang=english, tgt_lang=french)
    held(attnctl.attend(SOURCE, folder, target=TARGET), *reference(folder, TARGET))


@pytest.mark.parametrize("family", FAMILIES)
def test_languages_that_are_named(translator: Translator, family: str) -> None:
    english, french, german = FAMILIES[family]
    folder = translator(family, src_lang=english, tgt_lang=french)
    trace = attnctl.attend(SOURCE, folder, target=TARGET, source_language=german, target_language=english)
    ids, weights = reference(folder, TARGET, german, english)
    held(trace, ids, weights)
    assert ids != reference(folder, TARGET)[0]
    assert not any("target_language" in note for note in trace.notes)


def test_marian_encodes_a_target_by_its_own_pieces(translator: Translator) -> None:
    folder = translator("marian")
    ids, weights = reference(folder, TARGET)
    held(attnctl.attend(SOURCE, folder, target=TARGET), ids, weights)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert ids[1:] != tokenizer(TARGET)["input_ids"][:-1]  # by the pieces of the source


@pytest.mark.parametrize("family", ["nllb", "mbart50"])
def test_a_forced_token_is_the_language_of_a_target(translator: Translator, family: str) -> None:
    english, french, german = FAMILIES[family]
    folder = translator(family, src_lang=english, tgt_lang=french, forced=german)
    held(attnctl.attend(SOURCE, folder, target=TARGET), *reference(folder, TARGET, language=german))
    made = attnctl.attend(SOURCE, folder, generate=4)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    given = transformers.AutoTokenizer.from_pretrained(folder)(SOURCE, return_tensors="pt")
    own = network.generate(**given, max_new_tokens=5, do_sample=False, num_beams=1)[0].tolist()
    assert [token.id for token in made.tokens] == own


def test_a_forced_token_that_is_no_language(tmp_path: Path) -> None:
    """BART's generation configuration forces <s> after the decoder's start; its tokenizer here adds none to a target."""
    from tests.tools import folders

    folder = folders.write(tmp_path / "bart", "bart", eos=True)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"forced_bos_token_id": 1}))
    tokens = attnctl.attend("will eat", folder, target="das eat").tokens
    assert [token.id for token in tokens[:2]] == [2, 1] and tokens[2].text == "d"


def test_the_model_writes_in_the_language_that_is_named(translator: Translator) -> None:
    folder = translator("nllb", src_lang="eng_Latn", tgt_lang="fra_Latn")
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given, german = tokenizer(SOURCE, return_tensors="pt"), tokenizer.convert_tokens_to_ids("deu_Latn")
    own = network.generate(**given, forced_bos_token_id=german, max_new_tokens=20)  # its default
    trace = attnctl.attend(SOURCE, folder, target_language="deu_Latn")
    assert [token.id for token in trace.tokens] == own[0].tolist()


def test_notes_name_options_as_the_reader_writes_them(translator: Translator, run: Run) -> None:
    folder = translator("nllb")
    found = run("heatmap", SOURCE, "--model", folder, "--attention", "cross").err
    assert "--target gives others" in found and "--target-language sets" in found
    notes = " ".join(attnctl.attend(SOURCE, folder, attention="cross").notes)
    assert "target= gives others" in notes and "target_language= sets" in notes and "--" not in notes


def test_a_target_in_no_language_is_noted_or_refused(translator: Translator) -> None:
    notes = attnctl.attend(SOURCE, translator("nllb"), target=TARGET).notes
    assert any("eng_Latn, the language of the source: target_language= sets another" in note for note in notes)
    with pytest.raises(UsageError, match=r"name it with target_language= \(af, am,"):
        attnctl.attend(SOURCE, translator("m2m_100"), target=TARGET)


def test_an_unknown_language_is_answered_with_those_that_are_known(translator: Translator, refused: Refused) -> None:
    nllb, m2m = translator("nllb"), translator("m2m_100")
    said = refused("explain", SOURCE, "--model", nllb, "--target", TARGET, "--target-language", "fr", code=2)
    assert said == "--target-language fr: nllb knows fra_Latn, … (202 in all)"
    said = refused("explain", SOURCE, "--model", m2m, "--source-language", "english", code=2)
    assert "knows af, am, ar" in said and " zu" in said
    said = refused("heatmap", SOURCE, "--model", nllb, "--source-language", "xx", code=2)
    assert "knows ace_Arab, ace_Latn" in said


def test_languages_are_refused_where_there_are_none(translator: Translator, refused: Refused) -> None:
    marian = translator("marian")
    said = refused("explain", SOURCE, "--model", marian, "--target-language", "fr", code=2)
    assert said == "--target-language fr: the tokenizer of marian has no languages"
    nllb = translator("nllb")
    said = refused(
        "heatmap", SOURCE, "--model", nllb, "--attention", "encoder", "--target-language", "fra_Latn", code=2
    )
    assert said == "--target-language has no effect with --attention encoder"
    assert "--model demo" in refused("explain", SOURCE, "--source-language", "fra_Latn", code=2)


def test_the_word_watched_stands_behind_its_language(translator: Translator, run: Run) -> None:
    folder = translator("nllb", src_lang="eng_Latn", tgt_lang="fra_Latn")
    found = run(
        "ablate", SOURCE, "--model", folder, "--target", "maison", "--target-language", "deu_Latn", "--json"
    ).json
    assert [token["text"] for token in found["tokens"]] == ["</s>", "deu_Latn"]
