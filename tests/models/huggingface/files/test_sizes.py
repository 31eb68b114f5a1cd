"""Sizes from configurations, against published figures."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnctl.errors import AttnctlError, UsageError
from attnctl.models.huggingface.configured_sizes import (
    counted_caches,
    counted_families,
    known_configurations,
    model_sizes,
    of_configuration,
)
from attnctl.models.huggingface.hub import KNOWN
from attnctl.models.huggingface.sizes import AFTER_PADDING, usable_positions


@pytest.mark.parametrize(
    ("name", "w_q", "in_all"),
    [("gpt2", 49_152, 7_077_888), ("gpt-3", 1_572_864, 14_495_514_624), ("llama-2-7b", 524_288, 536_870_912)],
)
def test_published_figures(name: str, w_q: int, in_all: int) -> None:
    assert model_sizes(name).per_head()["W_Q"] == w_q
    assert model_sizes(name).in_all()["W_Q"] == in_all


def test_what_queries_and_keys_spare_us() -> None:
    assert model_sizes("llama-2-7b").bytes_unfactored(8192) == pytest.approx(4.5e15, rel=0.01)
    assert model_sizes("gpt2").embedding_parameters() == 50_257 * 768


def test_grouped_heads_share_keys_and_values() -> None:
    llama = model_sizes("llama-3-8b")
    assert llama.per_layer() == {"W_Q": 4096**2, "W_K": 4096 * 1024, "W_V": 4096 * 1024, "W_O": 4096**2}
    assert llama.cache_per_token() == 131_072  # 128 KiB, as Meta states for 16 bits
    assert model_sizes("deepseek-v3").cache_per_token() == 61 * 576 * 2  # DeepSeek-V2 (2024), section 2.1
    assert model_sizes("minilm").cache_per_token() == 0


def test_the_table_agrees_with_the_networks() -> None:
    """As many parameters as transformers itself makes, for families whose attention has no biases."""
    transformers = pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    import torch

    for name in ("llama-3.2-1b", "qwen3-0.6b", "gemma-2-2b", "gemma-3-1b", "smollm2", "mistral-7b", "olmo-2-7b"):
        found = model_sizes(name)
        entry = {key: value for key, value in known_configurations()[name].items() if key not in ("title", "hub_id")}
        config = transformers.AutoConfig.for_model(entry.pop("model_type"), **(entry | {"num_hidden_layers": 1}))
        with torch.device("meta"):
            network = transformers.AutoModel.from_config(config)
        counted = sum(p.numel() for n, p in network.named_parameters() if "self_attn" in n and p.ndim == 2)
        assert counted == sum(found.per_layer().values()), name
        assert network.get_input_embeddings().weight.numel() == found.embedding_parameters(), name


def test_names_of_all_kinds(tmp_path: Path) -> None:
    assert model_sizes("openai-community/GPT2") == model_sizes("GPT2")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 32}))
    assert model_sizes(str(tmp_path)).per_head()["W_Q"] == 256
    inner = {"model_type": "x", "text_config": {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8}}
    assert of_configuration(inner, "x", "").heads == 2
    with pytest.raises(UsageError, match=r"did you mean gpt-3\?"):
        model_sizes("gpt3")
    with pytest.raises(UsageError, match="has no configuration"):
        model_sizes("random")
    with pytest.raises(AttnctlError, match="does not say its layers"):
        of_configuration({"model_type": "unheard-of"}, "x", "")


def test_the_command(run: Callable[..., Any], refused: Callable[..., str]) -> None:
    told = run("model", "gpt2").out
    assert "49,152" in told and "7,077,888" in told and "38,597,376" in told and "604 MB" in told
    assert max(map(len, told.splitlines())) <= 80
    assert "4.5 PB" in run("model", "llama-2-7b", "--length", "8192").out
    assert "12 that read, 12 that write" in run("model", "t5-base").out
    assert run("model", "gpt2", "--json").json["parameters"]["head"]["W_Q"] == 49_152
    assert len(run("model").out.splitlines()) == len(known_configurations())
    assert "--length 0" in refused("model", "gpt2", "--length", "0", code=2)


SMALL = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
DEEPSEEK = SMALL | {"kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2}


@pytest.mark.parametrize(
    "key",
    [
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
        "num_key_value_heads",
        "head_dim",
        "v_head_dim",
        "vocab_size",
        "max_position_embeddings",
        "sliding_window",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "num_decoder_layers",
    ],
)
@pytest.mark.parametrize("value", [-5, 10**9 + 1, 10**400, True, False, 2.5, "8", [4, 4]])
def test_sizes_that_cannot_be(refused: Callable[..., str], tmp_path: Path, key: str, value: Any) -> None:
    settings = DEEPSEEK | {"is_encoder_decoder": True, key: value}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    said = refused("model", str(tmp_path))
    assert f": {key} is {json.dumps(value)[:40]}, not a whole number from 1 to 1,000,000,000" in said


def test_sizes_that_do_not_divide() -> None:
    with pytest.raises(AttnctlError, match="d_model 33 does not divide by 4 heads, and no head_dim is given"):
        of_configuration(SMALL | {"hidden_size": 33}, "x", "")
    assert of_configuration(SMALL | {"hidden_size": 33, "head_dim": 8}, "x", "").d_k == 8
    with pytest.raises(AttnctlError, match="4 heads cannot share 3 key/value heads"):
        of_configuration(SMALL | {"num_key_value_heads": 3}, "x", "")
    with pytest.raises(AttnctlError, match="num_attention_heads is 0, not"):
        of_configuration(SMALL | {"num_attention_heads": 0}, "x", "")


def test_what_a_configuration_says_is_not_there() -> None:
    """As null, or as 0: a GGUF file of Phi 3 has a window of 0."""
    nothing = {"head_dim": None, "num_key_value_heads": None, "sliding_window": 0, "kv_lora_rank": 0}
    found = of_configuration(SMALL | nothing, "x", "")
    assert (found.d_k, found.kv_heads, found.window, found.latent) == (8, 4, None, None)


def test_the_largest_sizes_can_be_said(run: Callable[..., Any], tmp_path: Path) -> None:
    largest = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "hidden_size", "head_dim"), 10**9)
    (tmp_path / "config.json").write_text(json.dumps(SMALL | largest))
    assert "1,000,000,000" in run("model", str(tmp_path), "--length", str(10**12)).out


def test_a_text_longer_than_the_context(run: Callable[..., Any]) -> None:
    told = run("model", "smollm2", "--length", "8193", columns=60).out
    assert "  at 8,193 tokens, 32 bits a number\n  (longer than its context, only 8,192 tokens)\n" in told
    assert "longer" not in run("model", "smollm2", "--length", "8192").out


@pytest.mark.parametrize("name", known_configurations())
def test_what_explains_is_as_wide_as_the_window(run: Callable[..., Any], name: str) -> None:
    assert max(map(len, run("model", name).out.splitlines())) <= 80
    narrow = run("model", name, columns=60).out
    assert max(map(len, narrow.splitlines())) <= 60
    narrow = re.sub(r"  left out for width: .*\n", "", narrow)
    wide = run("model", name, columns=200).out
    assert not Counter(narrow.split()) - Counter(wide.split())  # a narrow table leaves columns out, and adds nothing
    explained = [text.partition("bits a number")[2] for text in (narrow, wide)]
    assert Counter(explained[0].split()) == Counter(explained[1].split())


def test_layers_with_a_window_keep_a_window_and_linear_ones_nothing() -> None:
    """Gemma 3 270M: 15 of 18 layers keep 512 tokens; Qwen3-Next: 12 of 48 layers attend, their queries with a gate."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 640, "head_dim": 256}
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 18, "sliding_window": 512, **sizes}
    found = of_configuration(gemma, "gemma", "")
    assert (found.layers, found.windowed_layers) == (18, 15)
    assert found.bytes_of_cache(32768) == 2 * 512 * (3 * 32768 + 15 * 512)
    assert found.bytes_of_cache(100) == 100 * found.cache_per_token()
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 12
    qwen = {"model_type": "qwen3_next", "num_hidden_layers": 48, "layer_types": kinds, **sizes}
    found = of_configuration(qwen, "qwen", "")
    assert (found.layers, found.cached_layers) == (12, 12)
    assert found.per_head()["W_Q"] == 2 * 640 * 256


def test_families_said_to_be_counted_are_counted_right() -> None:
    """Every family that can be built small: parameters and cache told are those of the built network. 13 s."""
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    from tests.sweep.counted import counted
    from tests.sweep.families import families

    found = counted(families())
    assert set(counted_families()) <= set(found["families"]) and set(counted_caches()) <= set(found["caches"])
    assert len(counted_families()) > 180 and len(counted_caches()) >= 39


def test_sizes_of_layers_that_differ(run: Callable[..., Any], tmp_path: Path) -> None:
    """Gemma 4: layers with a window and without have other heads, and the last read the keys of others."""
    kinds = ["sliding_attention", "full_attention"] * 2
    sizes = SMALL | {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}
    gemma = sizes | {
        "model_type": "gemma4_text",
        "layer_types": kinds,
        "num_kv_shared_layers": 2,
        "global_head_dim": 16,
    }
    found = of_configuration(gemma, "gemma", "")
    assert found.in_all() == {name: 32 * 2 * heads * 24 for name, heads in (("W_Q", 4), ("W_O", 4))} | dict.fromkeys(
        ("W_K", "W_V"), 32 * 2 * 24
    )
    assert found.bytes_of_cache(100) == 2 * 2 * 2 * (4 * 8 + 100 * 16)
    (tmp_path / "config.json").write_text(json.dumps(gemma))
    told = " ".join(run("model", str(tmp_path)).out.split())
    assert "1 of 4 heads, 2 of keys, d_k 16, which read another layer's keys and values" in told
    same = of_configuration(gemma | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}, "gemma", "")
    assert same.in_all()["W_V"] == 32 * 2 * 8 and same.in_all()["W_K"] == 32 * (2 * 8 + 16)


def test_latents_as_they_are_stored() -> None:
    """DeepSeek-V3 (2024), table of hyperparameters: 187 M parameters of attention a layer."""
    deepseek = model_sizes("deepseek-v3")
    layer = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert deepseek.stored_in_all() == 61 * layer


def test_windows_of_llama_4_and_layers_of_albert() -> None:
    llama = SMALL | {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 4}
    found = of_configuration(llama | {"model_type": "llama4_text"}, "x", "")
    assert found.bytes_of_cache(100) == 2 * 2 * 32 * (4 + 100)
    albert = of_configuration(SMALL | {"model_type": "albert", "num_hidden_groups": 1}, "x", "")
    assert albert.in_all() == albert.per_layer()


def test_families_that_have_more_are_said_to(
    run: Callable[..., Any], refused: Callable[..., str], tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    from tests.sweep.counted import attention_parameters
    from tests.sweep.families import Family, build

    network = build(Family("doge", "causal"))
    network.config.to_json_file(tmp_path / "config.json")
    told = " ".join(run("model", str(tmp_path)).out.split())
    assert "dt_proj 32 64" in told and f"together 3,104 {attention_parameters(network):,}" in told
    assert "the matrices as transformers builds doge, by its names" in told
    for kind, more in (("unheard-of", True), ("llama", False)):
        (tmp_path / "config.json").write_text(json.dumps(SMALL | {"model_type": kind}))
        told = " ".join(run("model", str(tmp_path)).out.split())
        assert ("is not among the families of which this was held against the built network" in told) is more
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"model_type": "mamba2"}))
    assert "no layers of softmax attention" in refused("model", str(tmp_path))


BUILT = (
    "mimo_v2_flash causal: heads of keys that differ by layer, a window in some",
    "deepseek_v32 causal: latents, an indexer's key in the cache",
    "longcat_flash causal: two attentions a layer",
    "nemotron_h causal: one layer of four attends",
    "kimi_linear causal: one layer of two",
    "zamba2 causal: queries of twice d_model",
    "t5gemma seq2seq: an encoder and a decoder with configurations of their own",
    "longformer masked: matrices for global tokens",
    "xglm causal: names of its own",
    "bart causal: a decoder alone",
)


@pytest.mark.parametrize("case", BUILT)
def test_a_file_as_transformers_saves_it(tmp_path: Path, case: str) -> None:
    """What equals its class's defaults is left out of it: parameters and cache are those of the network all the same."""
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    from tests.sweep.counted import attention_parameters, cache_agrees
    from tests.sweep.families import Family, build

    family = Family(*case.partition(":")[0].rsplit(" ", 1))
    network = build(family)
    network.config.architectures = [type(network).__name__]
    network.config.save_pretrained(tmp_path)
    found = model_sizes(str(tmp_path))
    assert found.stored_in_all() == attention_parameters(network)
    assert found.embedding_parameters() == network.get_input_embeddings().weight.numel()
    assert found.cache_told and cache_agrees(family, network, found)


OWN_CACHES: tuple[tuple[str, dict[str, Any], tuple[int, ...]], ...] = (
    ("deepseek_v4 causal", {}, (2, 3, 4, 5, 17, 33)),  # slots of 4 tokens and of 16, and what waits to be compressed
    ("hrm_text causal", {}, (7,)),  # its low layers attend thrice as often as its high ones
    ("cpmant causal", {}, (7,)),  # 4 tokens of its own
    ("xlnet causal", {"mem_len": None}, (7,)),
    ("xlnet causal", {"mem_len": 5}, (4, 7)),  # hidden states of the last 5 tokens
    ("reformer causal", {"lsh_attn_chunk_length": 4, "num_buckets": 4}, (4, 8)),  # buckets beside the hidden states
    ("minimax_m3_vl_text causal", {}, (7,)),  # an indexer's key in a sparse layer
    ("blt causal", {}, (7,)),  # bytes in, bytes out, and patches between that are not kept
)


@pytest.mark.parametrize(("name", "settings", "lengths"), OWN_CACHES)
def test_a_cache_of_its_own_kind(name: str, settings: dict[str, Any], lengths: tuple[int, ...]) -> None:
    """At each length what is told is what transformers keeps; of a window it keeps one less."""
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    from tests.sweep.counted import bytes_kept, cache_of, told_of_cache
    from tests.sweep.families import Family, build
    from tests.sweep.modes import ids

    network = build(Family(*name.split()))
    if settings:
        network = type(network)(type(network.config).from_dict(network.config.to_dict() | settings)).eval()
    told = told_of_cache(network)
    assert told.cache_told
    for n in lengths:
        cache = cache_of(network, {"input_ids": ids(1, n)})
        parts = [getattr(cache, "self_attention_cache", cache), getattr(cache, "cross_attention_cache", None)]
        assert told.bytes_of_cache(n) == bytes_kept(parts), n


def test_what_files_leave_out(run: Callable[..., Any], tmp_path: Path) -> None:
    """Gemma 3 12B says no head_dim, Qwen3-Next no list of layers, Falcon 40B that many heads share a key."""
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    text = {"model_type": "gemma3_text", "hidden_size": 3840, "num_attention_heads": 16, "num_key_value_heads": 8}
    files: dict[str, dict[str, Any]] = {
        "gemma": {"model_type": "gemma3", "text_config": text | {"num_hidden_layers": 48, "sliding_window": 1024}},
        "qwen": {"model_type": "qwen3_next", "num_hidden_layers": 48, "num_key_value_heads": 2, "head_dim": 256},
        "falcon": {"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8}
        | {"num_hidden_layers": 60, "multi_query": True, "new_decoder_architecture": True},
        "xlnet": {"model_type": "xlnet", "n_layer": 2, "n_head": 4, "d_model": 32},
    }
    found = {}
    for name, settings in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(settings))
        found[name] = model_sizes(str(tmp_path / name))
    assert (found["gemma"].d_k, found["gemma"].windowed_layers) == (256, 40)
    assert (found["qwen"].layers, found["qwen"].d_k) == (12, 256)
    assert found["falcon"].kv_heads == 8
    told = run("model", tmp_path / "xlnet")
    assert "2 layers × 32 numbers of hidden states" in " ".join(told.out.split())


def test_a_cache_of_a_kind_that_nobody_counted(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not guessed."""
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    from attnctl.models.huggingface import configured_sizes

    monkeypatch.setattr(configured_sizes, "counted_caches", frozenset)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlnet", "n_layer": 2, "n_head": 4, "d_model": 32}))
    told = run("model", tmp_path)
    assert "keeps one of its own kind, not counted here" in " ".join(told.out.split())
    assert "cache_bytes" not in run("model", tmp_path, "--json").json


DEFAULTS = ("gpt2", "bert-base", "gpt-neox-20b", "gemma-2-2b", "gpt-oss-120b")


def test_the_known_configurations_are_those_of_their_sources() -> None:
    """Of transformers' own defaults, and of the files in packages that hold a checkpoint."""
    transformers = pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    for name in DEFAULTS:
        entry = known_configurations()[name]
        own = transformers.CONFIG_MAPPING[entry["model_type"]]()
        assert {key: getattr(own, key) for key in entry.keys() - {"title", "hub_id"}}.items() <= entry.items(), name


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_the_known_configurations_are_those_of_packages(name: str) -> None:
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    known = KNOWN[name]
    assert known.package is not None
    spec = importlib.util.find_spec(known.package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{known.package} is not installed")
    in_package = model_sizes(str(Path(spec.origin).parent / known.path))
    assert replace(in_package, name="", source="") == replace(model_sizes(name), name="", source="")


@pytest.mark.parametrize("kind", sorted(AFTER_PADDING))
def test_positions_that_begin_after_the_padding_tokens_id(kind: str) -> None:
    """A text as long as is said is read, and one a token longer is not."""
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    import torch

    from tests.sweep.families import Family, build
    from tests.sweep.modes import ids

    network = build(Family(kind, "causal" if kind == "prophetnet" else "base"))
    longest = usable_positions(network.config.to_dict(), network.config.max_position_embeddings)
    with torch.no_grad():
        network(input_ids=ids(1, longest))
        with pytest.raises(Exception, match=r"index|size|expand|shape"):
            network(input_ids=ids(1, longest + 1))


def test_the_known_configurations_leave_nothing_out() -> None:
    """With what transformers' classes fill in, their sizes are the same."""
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    from attnctl.models.huggingface.configured_sizes import of_config_file

    for name, settings in known_configurations().items():
        assert of_config_file(settings, name, "") == of_configuration(settings, name, ""), name


@pytest.mark.parametrize("key", ["num_local_experts", "decoder_layers", "num_mem_blocks", "n_layer"])
def test_parts_without_end_are_not_built(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """A configuration of a billion experts would fill the memory with modules that have none."""
    from attnctl.models.huggingface import built_sizes
    from attnctl.models.huggingface.configured_sizes import of_config_file

    def built(_: object) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr(built_sizes, "filled_settings", built)
    assert of_config_file(SMALL | {"model_type": "jetmoe", key: 10**9}, "x", "").layers == 2
    assert of_config_file(SMALL | {"text_config": SMALL | {"model_type": "jetmoe", key: 10**9}}, "x", "").layers == 2
