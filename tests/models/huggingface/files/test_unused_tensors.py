"""Tensors of a checkpoint's files that its network has no place for: used, harmless, or named.

The right weights are NumPy's, from the bytes of the file.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import attnctl
from attnctl.errors import AttnctlError
from attnctl.models import open_model
from attnctl.models.check import check_attention
from attnctl.models.huggingface.loading import file_report, left_out_settings
from tests.conftest import Run
from tests.models.huggingface.conftest import Shelf
from tests.tools.numpy_llama import attention, tensors_of

TEXT = "Alice will eat"
Tensors = dict[str, torch.Tensor]
LAYER = "model.layers.1.self_attn"


@pytest.fixture
def folder(shelf: Shelf, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shelf("llama"), tmp_path / "m"))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 2


def with_tensors(folder: Path, tensors: Tensors, **settings: Any) -> Path:
    save_file(load_file(folder / "model.safetensors") | tensors, folder / "model.safetensors", {"format": "pt"})
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | settings))
    return folder


def notes_on_file(folder: Path) -> list[str]:
    notes = attnctl.attend(TEXT, str(folder)).notes
    return [note for note in notes if "its file" in note or "warns" in note or "config.json" in note]


def test_biases_that_the_configuration_denies_are_used(folder: Path) -> None:
    sizes = {"q_proj": 32, "k_proj": 16, "v_proj": 16}
    biases = {f"model.layers.{n}.self_attn.{part}.bias": drawn(size) for n in (0, 1) for part, size in sizes.items()}
    with_tensors(folder, biases, attention_bias=False)
    trace = attnctl.attend(TEXT, str(folder))
    settings = json.loads((folder / "config.json").read_text())
    right = attention(tensors_of(folder / "model.safetensors"), settings, [token.id or 0 for token in trace.tokens])
    for layer, weights in zip(trace.layers, right, strict=True):
        np.testing.assert_allclose(layer.weights, weights, atol=1e-5)
    assert any("tensors for attention_bias" in note for note in notes_on_file(folder))


NEEDED: dict[str, tuple[Tensors, str]] = {
    "a norm of queries": ({f"{LAYER}.q_norm.weight": drawn(8)}, r"1 tensor .*self_attn\.q_norm\.weight"),
    "a norm's bias": ({"model.layers.0.input_layernorm.bias": drawn(32)}, "input_layernorm.bias"),
    "an adapter": (
        {f"{LAYER}.q_proj.lora_A.default.weight": drawn(4, 32), f"{LAYER}.q_proj.lora_B.default.weight": drawn(32, 4)},
        "2 tensors .*lora_A.*merge the adapter",
    ),
    "positions": ({"model.embed_tokens.position.weight": drawn(64, 32)}, "embed_tokens.position"),
}


@pytest.mark.parametrize("case", NEEDED)
def test_tensors_that_would_change_the_attention_are_refused_by_name(case: str, folder: Path) -> None:
    tensors, names = NEEDED[case]
    with_tensors(folder, tensors)
    with pytest.raises(AttnctlError, match=f"m has {names if names[0].isdigit() else '.*' + names}") as caught:
        open_model(str(folder))
    assert "\n" not in str(caught.value)


HARMLESS: dict[str, Tensors] = {
    "tables of positions": {
        f"{LAYER}.rotary_emb.inv_freq": drawn(4),
        "model.rotary_emb.inv_freq": drawn(4),
        "model.embed_tokens.position_ids": torch.arange(64)[None],
    },
    "a mask": {f"{LAYER}.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool), f"{LAYER}.masked_bias": torch.tensor(-1e4)},
    "a block that predicts more tokens": {
        "model.layers.2.eh_proj.weight": drawn(32, 64),
        "model.layers.2.self_attn.q_proj.weight": drawn(32, 32),
        "mtp.layers.0.self_attn.q_proj.weight": drawn(32, 32),
    },
    "heads of other tasks": {
        "score.weight": drawn(2, 32),
        "v_head.summary.weight": drawn(1, 32),
        "other.weight": drawn(3),
    },
    "a pooler": {"model.pooler.dense.weight": drawn(32, 32)},
    "a counter": {"model.layers.0.mlp.num_batches_tracked": torch.tensor(7)},
    "biases of zeros": {f"{LAYER}.q_proj.bias": torch.zeros(32)},
    "an adapter before its training": {
        f"{LAYER}.q_proj.lora_A.weight": drawn(4, 32),
        f"{LAYER}.q_proj.lora_B.weight": torch.zeros(32, 4),
    },
}


@pytest.mark.parametrize("case", HARMLESS)
def test_harmless_tensors_change_nothing_and_are_not_mentioned(case: str, folder: Path) -> None:
    before = attnctl.attend(TEXT, str(folder)).layers
    with_tensors(folder, HARMLESS[case])
    assert notes_on_file(folder) == []
    for layer, same in zip(attnctl.attend(TEXT, str(folder)).layers, before, strict=True):
        np.testing.assert_array_equal(layer.weights, same.weights)


def test_settings_that_a_class_sets_when_it_is_made_are_known(shelf: Shelf) -> None:
    """ModernBERT's decoder saves its window under a name that is no field of its configuration."""
    folder = Path(shelf("modernbert-decoder causal"))
    assert "sliding_window" in json.loads((folder / "config.json").read_text())
    network: Any = open_model(str(folder)).network  # type: ignore[attr-defined]
    assert file_report(network).notes == ()


@pytest.mark.parametrize("case", ["gpt2", "bert"])
def test_masks_of_other_families_are_not_mentioned(case: str, shelf: Shelf, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(shelf(case), tmp_path / "m"))
    mask = {"gpt2": "transformer.h.0.attn.bias", "bert": "bert.embeddings.position_ids"}[case]
    with_tensors(folder, {mask: torch.ones(1, 1, 64, 64) if case == "gpt2" else torch.arange(64)[None]})
    assert notes_on_file(folder) == []


def test_parts_elsewhere_are_named_in_a_note_and_by_check(folder: Path) -> None:
    with_tensors(folder, {"model.vision_tower.patch.weight": drawn(4, 4)})
    (note,) = notes_on_file(folder)
    assert "no place for 1 tensor of its file: model.vision_tower.patch.weight" in note
    finding = check_attention(open_model(str(folder)), TEXT)[-1]
    assert finding.holds is None and "model.vision_tower.patch.weight" in finding.result


def test_check_says_that_every_tensor_is_used(folder: Path) -> None:
    finding = check_attention(open_model(str(folder)), TEXT)[-1]
    count = len(load_file(folder / "model.safetensors"))
    assert finding.holds and finding.result.startswith(f"{count} tensors, all used")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sliding_window": 2}, "sliding_window 2"),
        ({"alibi": True}, "alibi True"),
        ({"sliding_window": None}, None),
        ({"attention_chunk_size": 2}, "attention_chunk_size 2"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),  # Llama turns all of a head
        ({"partial_rotary_factor": 1.0}, None),
    ],
)
def test_settings_that_a_class_does_not_know_are_named(
    folder: Path, settings: dict[str, Any], said: str | None
) -> None:
    with_tensors(folder, {}, **settings)
    notes = notes_on_file(folder)
    assert notes == [] if said is None else said in notes[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alibi_bias_max": 16}, "attn_config.alibi_bias_max 16"),
        ({"alibi": False}, "attn_config.alibi False"),
        ({}, None),
    ],
)
def test_settings_that_a_network_never_reads_are_named(
    shelf: Shelf, tmp_path: Path, settings: dict[str, Any], said: str | None
) -> None:
    folder = Path(shutil.copytree(shelf("mpt causal"), tmp_path / "m"))
    before = AutoModelForCausalLM.from_pretrained(folder)(torch.arange(5)[None]).logits
    stated = json.loads((folder / "config.json").read_text())
    with_tensors(folder, {}, attn_config=stated["attn_config"] | settings)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(folder)(torch.arange(5)[None]).logits, before)
    assert [str(said) in note for note in notes_on_file(folder)] == ([] if said is None else [True])


def test_a_setting_without_a_note_changes_numbers_and_one_with_a_note_does_not(folder: Path, shelf: Shelf) -> None:
    """transformers' own logits: Llama ignores partial_rotary_factor, unless its positions are scaled; StableLM reads it."""
    linear = {"rope_type": "linear", "factor": 1.0, "rope_theta": 10000.0}
    scaled = {"rope_parameters": linear | {"partial_rotary_factor": 0.5}}
    for place, settings in ((folder, {}), (folder, scaled), (Path(shelf("stablelm causal")), {})):
        other = folder.parent / "other"
        shutil.rmtree(other, ignore_errors=True)
        shutil.copytree(place, other)
        with_tensors(other, {}, **settings, partial_rotary_factor=0.5)
        config = AutoModelForCausalLM.from_pretrained(other).config
        stated = json.loads((other / "config.json").read_text())
        ignored = any("partial_rotary_factor" in setting for setting in left_out_settings(stated, config))
        angles = {}
        for factor in (0.5, 1.0):
            text = copy.deepcopy(config)
            text.rope_parameters["partial_rotary_factor"] = factor
            (angles[factor],) = {
                len(buffer) for name, buffer in AutoModelForCausalLM.from_config(text).named_buffers()
                if name.endswith("rotary_emb.inv_freq")
            }  # fmt: skip
        assert ignored == (angles[0.5] == angles[1.0])


@pytest.mark.parametrize(
    ("kind", "line"), [("ntk", "the rotary positions are 'ntk', and transformers has default, dynamic")]
)
def test_rotary_positions_that_transformers_lacks_are_named(folder: Path, kind: str, line: str) -> None:
    with_tensors(folder, {}, rope_scaling={"type": kind, "factor": 2.0}, rope_parameters=None)
    with pytest.raises(AttnctlError, match=line):
        open_model(str(folder))


def test_weights_under_another_name_are_named(folder: Path) -> None:
    """transformers: "no file named model.safetensors", and not what is there; weights.safetensors was read as one layer."""
    for name in ("model.fp16.safetensors", "weights.safetensors"):
        (file,) = folder.glob("*.safetensors")
        file.rename(folder / name)
        with pytest.raises(AttnctlError, match=f"its weights are in {name}, and transformers reads model.safetensors"):
            open_model(str(folder))


# --- files and sizes ---------------------------------------------------------------------------------------------


def in_two_files(folder: Path, repeated: str, chosen: int, **other: torch.Tensor) -> None:
    """The tensors in two files; `repeated` is in both, with other numbers in the one that the index does not choose."""
    tensors = load_file(folder / "model.safetensors")
    files = [f"model-{part:05}-of-00002.safetensors" for part in (1, 2)]
    index = {name: files[number % 2] for number, name in enumerate(tensors)} | {repeated: files[chosen]}
    for number, file in enumerate(files):
        part = {name: tensor for name, tensor in tensors.items() if index[name] == file}
        save_file(part | ({} if number == chosen else {repeated: drawn(*tensors[repeated].shape)}), folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


@pytest.mark.parametrize("chosen", [0, 1])
def test_of_two_files_with_one_tensor_the_index_chooses(folder: Path, chosen: int) -> None:
    before = attnctl.attend(TEXT, str(folder)).layers
    in_two_files(folder, f"{LAYER}.q_proj.weight", chosen)
    for layer, same in zip(attnctl.attend(TEXT, str(folder)).layers, before, strict=True):
        np.testing.assert_array_equal(layer.weights, same.weights)


def test_a_missing_index_is_named(folder: Path) -> None:
    in_two_files(folder, f"{LAYER}.q_proj.weight", 0)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(AttnctlError, match=r"parts of a checkpoint without model\.safetensors\.index\.json"):
        open_model(str(folder))


@pytest.mark.parametrize("wrapper", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_a_wrapper_within_a_name_is_named(folder: Path, wrapper: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    inside = {name.replace(".self_attn", f".{wrapper}.self_attn"): tensor for name, tensor in tensors.items()}
    save_file(inside, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(AttnctlError, match=rf"has other names for its weights \(.*{wrapper}.*rename them"):
        open_model(str(folder))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"vocab_size": 10**7}, r"(lm_head|embed_tokens).weight is \(\d+, 32\) in its file and \(10000000, 32\)"),
        ({"intermediate_size": 10**7}, r"_proj.weight is \(.*\) in its file and \(.*10000000.*\)"),
        ({"head_dim": 10**7}, r"_proj.weight is \(.*\) in its file and \(.*[24]0000000.*\)"),
    ],
)
def test_sizes_are_compared_with_the_file_before_memory_is_taken(
    folder: Path, settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest of these networks takes 1.3 GB; transformers takes it before it says that the sizes differ."""

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", no_memory)
    with_tensors(folder, {}, **settings)
    with pytest.raises(AttnctlError, match=said) as caught:
        open_model(str(folder))
    assert "\n" not in str(caught.value)


# --- what libraries print ----------------------------------------------------------------------------------------


def noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that prints a banner, a warning and a bar when a network is read."""
    from attnctl.models.huggingface.loading import Loading

    real: Callable[..., Any] = Loading.read

    def read(self: Loading) -> Any:
        print("BANNER of a library")
        print("BAR of a library", file=sys.stderr)
        return real(self)

    monkeypatch.setattr(Loading, "read", read)
    monkeypatch.setattr("attnctl.runtime.light_import.alone", True)


def test_a_librarys_banner_leaves_json_whole_and_quiet_silences_it(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy(monkeypatch)
    told = run("explain", TEXT, "--model", str(folder), "--json")
    assert json.loads(told.out)["schema"] == "attnctl.trace/1" and "BANNER" in told.err and "BAR of" in told.err
    told = run("explain", TEXT, "--model", str(folder), "--json", "--quiet")
    assert json.loads(told.out)["schema"] == "attnctl.trace/1" and told.err == ""
    told = run("explain", TEXT, "--model", str(folder), "--layer", "9", "--quiet")
    assert told.code == 2 and told.err.startswith("attnctl: --layer 9: ")
