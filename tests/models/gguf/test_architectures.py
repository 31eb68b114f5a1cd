"""The weights of GGUF files are llama.cpp's, for each way of storing a checkpoint; what is not read is refused by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.models import attend
from tests.tools.gguf_table import accounting, small

pytest.importorskip("gguf")
pytest.importorskip("transformers")

from attnctl.models.gguf.families import FAMILIES, architectures
from attnctl.models.gguf.opening import opened_file
from attnctl.models.gguf.settings import NEUTRAL, NO_EFFECT, READ_BY_SOME
from attnctl.models.gguf.tensors import GgufFile

EXACT, WITH_GELU = 1e-4, 4e-3  # llama.cpp looks gelu up in a table of half precision


@pytest.fixture(scope="module")
def answers() -> Any:
    """Return llama.cpp's answers (b11549, float32, flash attention off); tests/tools/gguf_table/small.py stores them."""
    return np.load(small.ANSWERS)


def written(folder: Path, name: str, **settings: Any) -> Path:
    """Write a small file; `settings` change its own, None takes one away."""
    header = small.headers()[name]
    kept = header["settings"] | {f"{header['settings']['general.architecture']}.{k}": v for k, v in settings.items()}
    return small.write_file(
        folder / f"{name}.gguf", header | {"settings": {k: v for k, v in kept.items() if v is not None}}
    )


@pytest.mark.parametrize("name", list(small.headers()))
def test_the_weights_are_those_of_llama_cpp(name: str, tmp_path: Path, answers: Any) -> None:
    trace = attend(small.TEXT, str(written(tmp_path, name)))
    assert [token.id for token in trace.tokens] == answers["ids"].tolist()
    n = len(trace.tokens)
    rows, columns = np.tril_indices(n)
    architecture = name.partition("--")[0]
    limit = WITH_GELU if FAMILIES[architecture].uses_gelu else EXACT
    compared = 0
    for layer in trace.layers:
        if f"{name}/{layer.layer}" in answers:
            assert layer.weights is not None
            theirs = np.zeros_like(layer.weights)
            theirs[:, rows, columns] = answers[f"{name}/{layer.layer}"]
            np.testing.assert_allclose(layer.weights, theirs, rtol=0, atol=limit)
            assert np.ptp(theirs[:, -1]) > 0.05  # the numbers bite
            compared += 1
    assert compared


@pytest.mark.parametrize("name", ["llama--biases--linear-scaling", "gpt-oss--yarn--a-wide-head"])
def test_each_setting_is_used_or_without_effect_or_refused_by_name(name: str, tmp_path: Path) -> None:
    """The names are the gguf library's. That those without effect have none is measured: gguf_table/accounting.py."""
    file = GgufFile.open(written(tmp_path, name))
    architecture = name.partition("--")[0]
    for key in accounting.library_keys():
        for value in accounting.values_of(key, file.metadata.get(f"{architecture}.{key}")):
            changed = file.header.entries | {f"{architecture}.{key}": value}
            try:
                opened = opened_file(replace(file, header=replace(file.header, entries=changed)), "m.gguf")
            except AttnctlError as error:
                assert "\n" not in str(error) and (f"{architecture}.{key} is" in str(error) or key in OTHERS_NAMED)
            else:
                if f"{architecture}.{key}" in opened.settings.unread():
                    assert key in READ_BY_SOME and any(f"{architecture}.{key} " in note for note in opened.notes)
                else:
                    assert key in opened.settings.used or key in NO_EFFECT or value in NEUTRAL[key]


OTHERS_NAMED = ("embedding_length", "attention.head_count", "attention.key_length")  # another size no longer fits


def test_what_is_not_read_is_refused_in_a_line_that_names_it(tmp_path: Path) -> None:
    llama = "llama--biases--linear-scaling"
    with pytest.raises(AttnctlError, match=r"its setting llama\.rope\.scaling\.attn_factor is 1\.5, and attnctl"):
        attend("a", str(written(tmp_path, llama, **{"rope.scaling.attn_factor": 1.5})))
    header = small.headers()[llama]
    more = header | {"tensors": header["tensors"] | {"blk.0.attn_sinks.weight": [4]}}
    with pytest.raises(AttnctlError, match=r"attnctl does not use its tensor blk\.0\.attn_sinks\.weight for llama"):
        attend("a", str(small.write_file(tmp_path / "more.gguf", more)))
    fewer = {key: shape for key, shape in header["tensors"].items() if key != "blk.1.attn_k.weight"}
    with pytest.raises(AttnctlError, match=r"lacks 1 of its weights, model\.layers\.1\.self_attn\.k_proj\.weight"):
        attend("a", str(small.write_file(tmp_path / "fewer.gguf", header | {"tensors": fewer})))
    other = header | {"settings": header["settings"] | {"general.architecture": "rwkv7"}}
    with pytest.raises(AttnctlError, match=r"is of the architecture rwkv7: attnctl reads apertus, .*, starcoder2$"):
        attend("a", str(small.write_file(tmp_path / "other.gguf", other)))
    assert len(architectures()) >= 45


LACKING = {  # a setting → another value or none (None), and the line
    "llama.block_count": (1, "attnctl does not use its tensor blk.1."),
    "llama.attention.layer_norm_rms_epsilon": (None, "its setting llama.attention.layer_norm_rms_epsilon is missing"),
}


@pytest.mark.parametrize("key", LACKING)
def test_what_llama_cpp_does_not_open_is_not_opened_with_a_default(key: str, tmp_path: Path) -> None:
    """llama.cpp b11549: "wrong number of tensors"; "key not found in model". Both files were opened in silence."""
    header, (value, line) = small.headers()["llama--biases--linear-scaling"], LACKING[key]
    settings = {name: stated for name, stated in header["settings"].items() if name != key}
    settings |= {} if value is None else {key: value}
    with pytest.raises(AttnctlError) as caught:
        attend("a", str(small.write_file(tmp_path / "other.gguf", header | {"settings": settings})))
    assert line in str(caught.value)


def test_a_neutral_setting_is_no_reason_to_refuse(tmp_path: Path) -> None:
    """Converters write settings of other models with values that say nothing."""
    neutral = {"attn_logit_softcapping": 0.0, "expert_count": 0, "attention.causal": True, "vocab_size": 320}
    attend("a", str(written(tmp_path, "llama--biases--linear-scaling", **neutral)))


def test_a_setting_that_llama_cpp_does_not_have_is_noted(tmp_path: Path) -> None:
    """Phi-3's windows: with 5, the weights would be others (the answer of llama.cpp is that of the file without them)."""
    name = "phi3--three-quarters-rotary--as-phi-4-mini"
    plain = attend(small.TEXT, str(written(tmp_path, name)))
    windowed = attend(small.TEXT, str(written(tmp_path, name, **{"attention.sliding_window": 5})))
    assert plain.layers[0].weights is not None and windowed.layers[0].weights is not None
    np.testing.assert_array_equal(plain.layers[0].weights, windowed.layers[0].weights)
    (note,) = [note for note in windowed.notes if "sliding_window" in note]
    assert note.startswith("The file says phi3.attention.sliding_window 5. llama.cpp does not read it")
    assert not [note for note in plain.notes if "sliding_window" in note]
