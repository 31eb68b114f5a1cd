"""Sizes from configurations, against published figures and against the networks that transformers builds of them."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

from attnctl.commands.model import compute
from attnctl.commands.model.compute import known_configurations, model_sizes
from attnctl.errors import AttnctlError, UsageError
from attnctl.models import configurations
from attnctl.models.configurations import sizes_of_settings, stated_sizes
from attnctl.models.huggingface.hub import KNOWN
from attnctl.models.sizes import NAMES, ModelSizes
from tests.conftest import Refused, Run
from tests.tools import architectures as zoo
from tests.tools.sweep.counted import attention_parameters, verdicts
from tests.tools.sweep.families import Family, build, configuration

SMALL = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
UNKNOWN = SMALL | {"model_type": "unheard-of"}
Told = Callable[[dict[str, Any]], str]

sizes_of = cache(model_sizes)


@cache
def laid_out(settings: str, name: str, source: str) -> ModelSizes:
    """The sizes of a known configuration, written as JSON; its network is laid out once in the file."""
    return sizes_of_settings(json.loads(settings), name, source)


@pytest.fixture(autouse=True)
def known_ones_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compute, "sizes_of_settings", lambda settings, *names: laid_out(json.dumps(settings, sort_keys=True), *names)
    )


@pytest.fixture
def told(run: Run, tmp_path: Path) -> Told:
    """What `attnctl model` tells of a configuration, in one line."""

    def text(settings: dict[str, Any]) -> str:
        (tmp_path / "config.json").write_text(json.dumps(settings))
        return " ".join(run("model", tmp_path).out.split())

    return text


@pytest.mark.parametrize(
    ("name", "w_q", "in_all"),
    [("gpt2", 49_152, 7_077_888), ("gpt-3", 1_572_864, 14_495_514_624), ("llama-2-7b", 524_288, 536_870_912)],
)
def test_published_figures(name: str, w_q: int, in_all: int) -> None:
    assert (sizes_of(name).per_head() or {})["W_Q"] == w_q
    assert sizes_of(name).in_all()["W_Q"] == in_all


def test_grouped_heads_latents_and_encoders() -> None:
    llama, deepseek = sizes_of("llama-3-8b"), sizes_of("deepseek-v3")
    assert llama.per_layer() == {"W_Q": 4096**2, "W_K": 4096 * 1024, "W_V": 4096 * 1024, "W_O": 4096**2}
    assert llama.cache_bytes(1) == 131_072  # 128 KiB, as Meta states for 16 bits
    assert deepseek.cache_bytes(1) == 61 * 576 * 2  # DeepSeek-V2 (2024), section 2.1
    assert sizes_of("minilm").cache_bytes(1) == 0
    assert sizes_of("llama-2-7b").bytes_unfactored(8192) == pytest.approx(4.5e15, rel=0.01)
    assert sizes_of("gpt2").embedding == 50_257 * 768
    # DeepSeek-V3 (2024), table of hyperparameters: 187 M parameters of attention a layer
    layer = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert sum(deepseek.in_all().values()) == 61 * layer


def test_the_known_configurations_are_those_of_their_sources() -> None:
    """Of transformers' own defaults, and of the files in packages that hold a checkpoint."""
    for name in ("gpt2", "bert-base", "gpt-neox-20b", "gemma-2-2b", "gpt-oss-120b"):
        entry = known_configurations()[name]
        own = transformers.CONFIG_MAPPING[entry["model_type"]]()
        assert {key: getattr(own, key) for key in entry.keys() - {"title", "hub_id"}}.items() <= entry.items(), name


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_the_known_configurations_are_those_of_packages(name: str) -> None:
    known = KNOWN[name]
    spec = importlib.util.find_spec(known.package or "")
    if spec is None or spec.origin is None:
        pytest.skip(f"{known.package} is not installed")
    in_package = model_sizes(str(Path(spec.origin).parent / known.path))
    assert replace(in_package, name="", source="", file_facts={}) == replace(sizes_of(name), name="", source="")


def test_the_command(run: Run) -> None:
    assert "4.5 PB" in run("model", "llama-2-7b", "--length", "8192").out
    assert "12 that read, 12 that write" in run("model", "t5-base").out
    assert run("model", "gpt2", "--json").json["parameters"]["head"]["W_Q"] == 49_152
    assert len(run("model").out.splitlines()) == len(known_configurations())
    longer = run("model", "smollm2", "--length", "8193", columns=60).out
    assert "  at 8,193 tokens, 32 bits a number\n  (longer than its context, only 8,192 tokens)\n" in longer
    assert "longer" not in run("model", "smollm2", "--length", "8192").out


# of each family the known model with the fewest layers
LAYERS = {name: sum(entry.get(key, 0) for key in NAMES["layers"]) for name, entry in known_configurations().items()}
OF_EACH_FAMILY = {
    known_configurations()[name]["model_type"]: name for name in sorted(LAYERS, key=LAYERS.__getitem__, reverse=True)
}.values()


@pytest.mark.grid
@pytest.mark.parametrize("name", OF_EACH_FAMILY)
def test_a_known_model_in_windows_of_every_width(run: Run, name: str) -> None:
    """Four matrices of what its configuration states are those of its network, where it has four."""
    built = sizes_of(name)
    if built.built and built.per_head() is not None:
        stated = stated_sizes(known_configurations()[name], name, "")
        assert (stated.in_all(), stated.layers) == (built.in_all(), built.layers)
    narrow, wide = (run("model", name, columns=columns).out for columns in (60, 200))
    assert max(map(len, narrow.splitlines())) <= 60
    narrow = re.sub(r"  left out for width: .*\n", "", narrow)
    assert not Counter(narrow.split()) - Counter(wide.split())  # a narrow table leaves columns out, and adds nothing
    explained = [text.partition("bits a number")[2] for text in (narrow, wide)]
    assert Counter(explained[0].split()) == Counter(explained[1].split())


def test_names_of_all_kinds(told: Told, tmp_path: Path) -> None:
    assert model_sizes("openai-community/GPT2") == model_sizes("GPT2")
    told({"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 32})
    assert (model_sizes(str(tmp_path)).per_head() or {})["W_Q"] == 256
    inner = {"model_type": "x", "text_config": {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8}}
    assert sizes_of_settings(inner, "x", "").main_layers.heads == 2
    for name, said in (("gpt3", r"did you mean gpt-3\?"), ("random", "has no configuration")):
        with pytest.raises(UsageError, match=said):
            model_sizes(name)


SIZES = "num_hidden_layers num_attention_heads hidden_size num_key_value_heads head_dim v_head_dim vocab_size "
SIZES += "max_position_embeddings sliding_window kv_lora_rank qk_nope_head_dim qk_rope_head_dim num_decoder_layers"


NUMBERS = [-5, 10**9 + 1, 10**400, True, False, "8", [4, 4]]


@pytest.mark.parametrize(
    ("key", "value"), [*((key, 2.5) for key in SIZES.split()), *(("hidden_size", value) for value in NUMBERS)]
)
def test_sizes_that_cannot_be(refused: Refused, tmp_path: Path, key: str, value: Any) -> None:
    deepseek = SMALL | {"kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "is_encoder_decoder": True}
    (tmp_path / "config.json").write_text(json.dumps(deepseek | {key: value}))
    said = refused("model", str(tmp_path))
    assert f": {key} is {json.dumps(value)[:40]}, not a whole number from 1 to 1,000,000,000" in said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_type": "unheard-of"}, "does not say its layers"),
        ({"model_type": "mamba2", "num_hidden_layers": 2}, "no layers of softmax attention"),
        (SMALL | {"num_attention_heads": 0}, "num_attention_heads is 0, not"),
        (SMALL | {"vocab_size": None}, "the configuration of x cannot be read: vocab_size is null$"),
        (UNKNOWN | {"hidden_size": 33}, "d_model 33 does not divide by 4 heads, and no head_dim is given"),
        (UNKNOWN | {"num_key_value_heads": 3}, "4 heads cannot share 3 key/value heads"),
        # layers of other kinds are not told by four matrices, of a family that transformers does not build here
        (
            UNKNOWN | {"layer_types": ["full_attention", "conv"]},
            "its layer_types needs a version of transformers that can build",
        ),
        (UNKNOWN | {"kv_lora_rank": 8}, "its kv_lora_rank needs a version of transformers that can build it"),
        (UNKNOWN | {"num_hidden_groups": 1}, "its num_hidden_groups needs a version of transformers that can build it"),
    ],
)
def test_configurations_that_say_too_little(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(AttnctlError, match=said):
        sizes_of_settings(settings, "x", "")


def test_what_a_configuration_says_is_not_there() -> None:
    """As null, or as 0: a GGUF file of Phi 3 has a window of 0."""
    nothing = {"head_dim": None, "num_key_value_heads": None, "sliding_window": 0, "kv_lora_rank": 0}
    for settings in (SMALL, UNKNOWN | {"hidden_size": 32.0}):
        found = sizes_of_settings(settings | nothing, "x", "")
        assert (found.main_layers.d_k, found.main_layers.kv_heads, found.window) == (8, 4, None)
    assert sizes_of_settings(UNKNOWN | {"hidden_size": 33, "head_dim": 8}, "x", "").main_layers.d_k == 8


def test_the_largest_sizes_can_be_said(run: Run, told: Told, tmp_path: Path) -> None:
    told(SMALL | dict.fromkeys(("num_hidden_layers", "num_attention_heads", "hidden_size", "head_dim"), 10**9))
    assert "1,000,000,000" in run("model", tmp_path, "--length", str(10**12)).out


@pytest.mark.parametrize("key", ["num_local_experts", "decoder_layers", "num_mem_blocks", "n_layer"])
def test_parts_without_end_are_not_built(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """A configuration of a billion experts would fill the memory with modules that have none."""
    monkeypatch.setattr(configurations, "built_network", lambda *_: pytest.fail("it was built"))
    endless = SMALL | {"model_type": "jetmoe", key: 10**9}
    for settings in (endless, SMALL | {"text_config": endless}):
        assert sizes_of_settings(settings, "x", "").layers == 2


# of each way through the counting that a family takes one or two; `python -m tests.tools.sweep.counted` runs all 266
COUNTED = """
albert masked, bart causal, bert causal, camembert causal, deepseek_v3 causal, deepseek_v32 causal, doge causal, falcon causal,
falcon_h1 causal, gemma4_text causal, git causal, gpt2 causal, gpt_neo causal, granitemoehybrid causal, inkling_text causal,
kimi_linear causal, lfm2_moe causal, lfm3 causal, llama causal, longformer masked, longt5 seq2seq, mimo_v2_flash causal,
mistral causal, modernbert masked, musicgen_melody causal, nemotron_h causal, nystromformer masked, opt causal,
prophetnet causal, qwen3_next causal, reformer masked, squeezebert masked, t5 seq2seq, t5gemma seq2seq, whisper causal,
xlm causal, zamba2 causal, zaya causal
"""
OWN_CACHES = """
blt causal, cpmant causal, dbrx causal, deepseek_v4 causal, encoder-decoder seq2seq, jetmoe causal, longcat_flash causal,
minimax_m3_vl_text causal, recurrent_gemma causal, reformer causal, xlnet causal, xmod causal
"""


@pytest.mark.parametrize(("names", "verdict"), [(COUNTED, "exact"), (OWN_CACHES, "cache not counted")])
def test_what_is_told_of_a_family_is_that_of_its_network(names: str, verdict: str) -> None:
    """Parameters are the network's; the cache is what it keeps, or is not counted, and never guessed."""
    every = names.replace("\n", " ").strip().split(", ")
    assert verdicts(Family(*name.split()) for name in every) == dict.fromkeys(every, verdict)


def test_a_cache_of_its_own_kind_is_not_told(run: Run, told: Told, tmp_path: Path) -> None:
    assert "KV cache: that of deepseek_v4 is not counted here" in told(configuration("deepseek_v4").to_dict())
    assert "cache_bytes" not in run("model", tmp_path, "--json").json


def test_layers_with_a_window_keep_a_window_and_linear_ones_nothing() -> None:
    """Gemma 3 270M: 15 of 18 layers keep 512 tokens; Qwen3-Next: 12 of 48 layers attend, their queries with a gate."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 640, "head_dim": 256}
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 18, "sliding_window": 512, **sizes}
    found = sizes_of_settings(gemma, "gemma", "")
    assert (found.layers, found.window) == (18, 512)
    assert found.cache_bytes(32768) == 2 * 512 * (3 * 32768 + 15 * 512)
    assert found.cache_bytes(100) == 100 * (found.cache_bytes(1) or 0)
    qwen = {"model_type": "qwen3_next", "num_hidden_layers": 8, **sizes}  # its file gives no list of layers
    found = sizes_of_settings(qwen, "", "")
    assert (found.layers, found.main_layers.d_k, found.cache_bytes(1)) == (2, 256, 2 * 2 * 512)
    assert found.per_layer()["q_proj"] == 4 * 2 * 640 * 256


def test_sizes_of_layers_that_differ(told: Told) -> None:
    """Gemma 4: layers with a window and without have other heads, and the last read the keys of others."""
    gemma = SMALL | {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}
    gemma |= {"model_type": "gemma4_text", "num_kv_shared_layers": 2, "global_head_dim": 16}
    gemma["layer_types"] = ["sliding_attention", "full_attention"] * 2
    found = sizes_of_settings(gemma, "gemma", "")
    matrices = found.in_all()
    assert matrices["q_proj"] == matrices["o_proj"] == 32 * 2 * 4 * 24 and matrices["k_proj"] == 32 * 2 * 24
    assert found.cache_bytes(100) == 2 * 2 * 2 * (4 * 8 + 100 * 16)
    text = told(gemma)
    assert "0: 4 heads, 2 of keys, d_k 8; 3,072 parameters" in text
    assert "3: 4 heads, 2 of keys, d_k 16; 4,096 parameters" in text


def test_windows_of_llama_4_and_layers_of_albert(told: Told, tmp_path: Path) -> None:
    llama = SMALL | {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 4, "head_dim": 8}
    llama |= {"num_key_value_heads": 4, "intermediate_size": 64, "intermediate_size_mlp": 64}
    assert sizes_of_settings(llama | {"model_type": "llama4_text"}, "x", "").cache_bytes(100) == 2 * 2 * 32 * (4 + 100)
    text = told(SMALL | {"model_type": "albert", "num_hidden_groups": 1})
    albert = model_sizes(str(tmp_path))
    assert albert.in_all() == albert.per_layer() and albert.layers == 2
    assert "(2 layers share the parameters of 1)" in text
    several = zoo.build("albert, one layer shared", inner_group_num=2).config  # layers of a group
    assert sizes_of_settings(several.to_dict(), "albert", "").layers == 4


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("zamba", {}),
        ("zamba2", {}),
        ("zamba2", {"num_mem_blocks": 2}),
        ("zamba2", {"use_shared_attention_adapter": True}),
    ],
)
def test_a_block_that_layers_share_counts_once(told: Told, tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    """Held against the network, whose layers have copies of the block over the same memory."""
    network = build(Family(kind, "causal"))
    family, config = type(network), network.config
    network = family(type(config).from_dict(config.to_dict() | more))
    shared = {
        part.data_ptr(): part.numel()
        for name, part in network.named_parameters(remove_duplicate=False)
        if ".self_attn." in name and part.ndim == 2
    }
    text = told(network.config.to_dict())
    sizes = model_sizes(str(tmp_path))
    assert sum(sizes.in_all().values()) == sum(shared.values()) and sizes.layers == 2
    assert ("2 layers share the parameters of 1" in text) == ("num_mem_blocks" not in more)


def test_families_that_have_more_are_said_to(told: Told) -> None:
    network = build(Family("doge", "causal"))
    text = told(network.config.to_dict())
    assert "dt_proj 32 64" in text and f"together 3,104 {attention_parameters(network):,}" in text
    assert "the matrices as transformers builds doge, by its names" in text
    for settings in (SMALL, UNKNOWN):
        text = told(settings)
        unbuilt = "by the configuration alone: unheard-of was not built here, and may have more" in text
        assert unbuilt is ("KV cache: that of unheard-of is not counted here" in text) is (settings is UNKNOWN)


def test_what_files_leave_out() -> None:
    """Gemma 3 12B says no head_dim, Falcon 40B that many heads share a key."""
    text = {"model_type": "gemma3_text", "hidden_size": 3840, "num_attention_heads": 16, "num_key_value_heads": 8}
    text |= {"num_hidden_layers": 6, "sliding_window": 1024}
    gemma = sizes_of_settings({"model_type": "gemma3", "text_config": text}, "", "")
    assert (gemma.main_layers.d_k, [part.layers for part in gemma.cache or () if part.window == 1024]) == (256, [5])
    falcon = {"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8}
    falcon |= {"num_hidden_layers": 2, "multi_query": True, "new_decoder_architecture": True}
    assert sizes_of_settings(falcon, "", "").main_layers.kv_heads == 8
