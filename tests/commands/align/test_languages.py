"""`attnctl align` of texts in languages: held against transformers' own tokenizer and network."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
import transformers

from tests.conftest import Run
from tests.models.huggingface import test_languages as languages
from tests.models.huggingface.test_languages import SOURCE, TARGET, Translator, reference

translator = languages.translator


def test_align_takes_languages(translator: Translator, run: Run) -> None:
    folder = translator("nllb", src_lang="eng_Latn", tgt_lang="fra_Latn")
    how = ("--heads", "1.0", "--source-language", "deu_Latn", "--target-language", "eng_Latn")
    found = run("align", SOURCE, "--model", folder, "--target", TARGET, *how, "--json").json
    ids, weights = reference(folder, TARGET, "deu_Latn", "eng_Latn")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    space = tokenizer.convert_tokens_to_ids("▁")  # which is no word
    columns = [at for at, one in enumerate(tokenizer(SOURCE)["input_ids"]) if at and one not in (space, 2)]
    rows = [at for at, one in enumerate(ids) if at > 1 and one != space]
    assert [link["weight"] for link in found["links"]] == pytest.approx(
        weights[1, 0][np.ix_(rows, columns)].max(1).tolist(), abs=1e-5
    )
