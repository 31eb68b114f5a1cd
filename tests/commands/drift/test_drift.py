"""`attnctl drift` and `attnctl.drift`, against plain loops over transformers under eager."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.commands.drift import compute as drifting
from attnctl.commands.drift import forward
from attnctl.render.figure import raster
from attnctl.render.figure.layout import Panels
from tests.conftest import Refused, Run, check_schema

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from tests.tools import folders

SIZES: dict[str, Any] = {"vocab_size": len(folders.VOCABULARY) + 10}
LLAMA = LlamaConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, **SIZES
)
GPT2 = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=1024, **SIZES)
BERT = BertConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, pad_token_id=0, **SIZES
)
GPT_OSS = GptOssConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    num_local_experts=4, num_experts_per_tok=2, sliding_window=16, **SIZES
)  # fmt: skip
TEXTS = ["Alice will eat pizza, and Bob", "a 🍕 lic", "x", "Alice will eat <mask> at <mask>"]
MASK = folders.VOCABULARY["<mask>"]
# class, configuration, and the names of the modules that are W_O
FAMILIES: dict[str, tuple[Any, Any, str]] = {
    "llama": (LlamaForCausalLM, LLAMA, "model.layers.{}.self_attn.o_proj"),
    "gpt2": (GPT2LMHeadModel, GPT2, "transformer.h.{}.attn.c_proj"),
    "bert": (BertModel, BERT, "encoder.layer.{}.attention.output.dense"),
    "gpt_oss": (GptOssForCausalLM, GPT_OSS, "model.layers.{}.self_attn.o_proj"),
    "bert, masked": (BertForMaskedLM, BERT, "bert.encoder.layer.{}.attention.output.dense"),
}


def write_pair(folder: Path, kind: Any, config: Any) -> list[Path]:
    """Write a random checkpoint whose heads look somewhere, and a copy with noise on its weights."""
    places = []
    for name in "ab":
        torch.manual_seed(0)
        network = kind(config).eval()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.4 * torch.randn_like(parameter))
            for parameter in network.parameters() if name == "b" else ():
                parameter.add_(0.02 * torch.randn_like(parameter))
        network.save_pretrained(folder / name)
        folders.tokenizer().save(str(folder / name / "tokenizer.json"))
        tokens = {"pad_token": "<pad>", "mask_token": "<mask>"}
        (folder / name / "tokenizer_config.json").write_text(json.dumps(tokens))
        places.append(folder / name)
    return places


def ids_of(folder: Path, text: str) -> torch.Tensor:
    return torch.tensor([[token.id for token in attnctl.open_model(str(folder)).tokenize(text)]])


def eager(kind: Any, folder: Path, output_name: str, ids: torch.Tensor) -> tuple[Any, list[torch.Tensor]]:
    """Return what transformers gives under eager, and the output of W_O in each layer."""
    network = kind.from_pretrained(folder, attn_implementation="eager").eval()
    outputs: list[torch.Tensor] = []
    for layer in range(network.config.num_hidden_layers):
        network.get_submodule(output_name.format(layer)).register_forward_hook(
            lambda _, __, output: outputs.append(output[0])
        )
    with torch.no_grad():
        return network(ids, output_attentions=True), outputs


@pytest.mark.grid
@pytest.mark.parametrize("texts", [TEXTS, ["Alice will eat pizza at ten. " * 10]], ids=["short", "long"])
@pytest.mark.parametrize("family", FAMILIES)
def test_drift_is_that_of_a_plain_loop(
    family: str, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, config, output_name = FAMILIES[family]
    places = write_pair(tmp_path, kind, config)
    monkeypatch.setattr(drifting, "MEMORY", 48 * 4 * 240 * 11)  # blocks of some rows
    found = attnctl.drift(*map(str, places), texts)
    variations, sinks, sink_changes, cosines, divergences, agreements = ([] for _ in range(6))  # type: ignore[var-annotated]
    for text in texts:
        ids = ids_of(places[0], text)
        (a, ours), (b, theirs) = (eager(kind, place, output_name, ids) for place in places)
        pair = [torch.stack(side.attentions)[:, 0].double() for side in (a, b)]  # (layers, heads, n, n)
        left = [1 - weights.sum(-1) for weights in pair]  # what learned sinks take: (layers, heads, n)
        variations.append(((pair[0] - pair[1]).abs().sum(-1) + (left[0] - left[1]).abs()) / 2)  # (layers, heads, n)
        cosines.append(torch.cosine_similarity(torch.stack(ours).double(), torch.stack(theirs).double(), dim=-1))
        masses = [weights.mean(-2) for weights in pair]  # (layers, heads, n)
        taken = ((masses[0] >= 0.3) | (masses[1] >= 0.3)) & (ids.shape[1] >= 20)
        learned = [(taken_by * (taken_by > 1e-3)).mean(-1) for taken_by in left]  # (layers, heads)
        on_sinks = [(mass * taken).sum(-1) + part for mass, part in zip(masses, learned, strict=True)]
        have = taken.any(-1) | (learned[0] > 0) | (learned[1] > 0)
        for parts, values in ((sinks, on_sinks[0]), (sink_changes, on_sinks[1] - on_sinks[0])):
            parts.append(torch.where(have, values, torch.nan)[..., None].expand(*values.shape, ids.shape[1]))
        if kind is not BertModel:
            at = slice(None) if kind is not BertForMaskedLM else ids[0] == MASK
            logs = [side.logits[0, at].double().log_softmax(-1) for side in (a, b)]
            divergences.append((logs[0].exp() * (logs[0] - logs[1])).sum(-1))
            agreements.append((logs[0].argmax(-1) == logs[1].argmax(-1)).double())
    rows = torch.cat(variations, -1)
    heads = {(head.layer, head.head): head for head in found.heads}
    assert set(heads) == {(layer, head) for layer in range(rows.shape[0]) for head in range(rows.shape[1])}
    assert float(rows.mean()) > 0.001
    for (layer, number), head in heads.items():
        assert head.total_variation == pytest.approx(float(rows[layer, number].mean()), abs=1e-5)
        largest = head.largest
        assert largest.total_variation == pytest.approx(float(rows[layer, number].max()), abs=1e-5)
        assert largest.total_variation == pytest.approx(
            float(variations[largest.text][layer, number, largest.query]), abs=1e-5
        )
        for parts, value in ((sinks, head.sink), (sink_changes, head.sink_change)):
            mean = float(torch.cat(parts, -1)[layer, number].nanmean())
            assert value is None if np.isnan(mean) else value == pytest.approx(mean, abs=1e-5)
    assert len(texts) == 1 or any(head.sink is not None for head in found.heads)
    turned = torch.cat(cosines, -1)  # (layers, tokens)
    for layer in found.layers:
        assert layer.cosine == pytest.approx(float(turned[layer.layer].mean()), abs=1e-5)
        assert layer.smallest == pytest.approx(float(turned[layer.layer].min()), abs=1e-5)
    assert len(found.layers) == len(turned) and found.texts == len(texts) and found.tokens == rows.shape[-1]
    written = json.loads(attnctl_json(found))
    divergence, agreement = torch.cat(divergences or [torch.zeros(0)]), torch.cat(agreements or [torch.zeros(0)])
    assert found.predictions == len(divergence)
    if not len(divergence):
        assert not written.keys() & {"kl", "largest_kl", "top_token_agreement"}  # absent, not null
        return
    assert found.kl == pytest.approx(float(divergence.mean()), abs=1e-5) and found.kl > 1e-4
    assert found.largest_kl is not None and found.largest_kl.kl == pytest.approx(float(divergence.max()), abs=1e-5)
    assert found.top_token_agreement == pytest.approx(float(agreement.mean()))


def attnctl_json(found: Any) -> bytes:
    from attnctl.formats.documents.json_documents import write_json

    return write_json(found, "drift")


ZOO = (
    *("llama", "gpt2", "bert", "gemma2, soft cap and window", "gpt_oss, sinks", "t5, bias", "bloom, ALiBi"),
    *("albert, one layer shared", "deberta", "bart", "gpt2 of classes", "lfm2, convolutions"),
)


@pytest.mark.parametrize("case", ZOO)
def test_a_model_has_no_drift_from_itself(case: str, tmp_path: Path) -> None:
    """Also under a fused kernel: to compare its weights must not change how the model goes on."""
    folder = str(folders.write(tmp_path / "model", case))
    found = attnctl.drift(folder, folder, TEXTS[0])
    assert all(head.total_variation == head.largest.total_variation == 0 for head in found.heads)
    assert all(head.sink_change in (None, 0) for head in found.heads)
    assert all(layer.cosine == layer.smallest == 1 for layer in found.layers)
    assert (found.kl, found.top_token_agreement) in ((None, None), (0, 1))


def test_turns_and_last_positions_change_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [str(place) for place in write_pair(tmp_path, *FAMILIES["llama"][:2])]
    at_once = attnctl.drift(*places, TEXTS[0])
    monkeypatch.setattr(drifting, "KEPT_BYTES", 1)  # one layer at a time
    in_turns = attnctl.drift(*places, TEXTS[0])
    assert attnctl_json(at_once) == attnctl_json(in_turns)
    monkeypatch.setattr(forward, "LOGIT_BYTES", 4 * SIZES["vocab_size"] * 5)
    last = attnctl.drift(*places, TEXTS[0])
    assert last.predictions == 5 and any("last 5 tokens" in note for note in last.notes) and last.heads == at_once.heads


def test_a_kernel_and_a_dtype_of_b_alone(tmp_path: Path, run: Run) -> None:
    folder = str(write_pair(tmp_path, *FAMILIES["llama"][:2])[0])
    kernel = run("drift", folder, folder, TEXTS[0], "--json", "--kernel-b", "eager").json
    assert (
        kernel["kernels"] == ["sdpa", "eager"] and 0 < max(head["total_variation"] for head in kernel["heads"]) < 1e-4
    )
    half = run("drift", folder, folder, TEXTS[0], "--json", "--dtype-b", "bfloat16").json
    assert (half["a"]["dtype"], half["b"]["dtype"]) == ("float32", "bfloat16") and half["kl"] > 1e-6
    screen = run("drift", folder, folder, TEXTS[0], "--dtype-b", "bfloat16").out
    assert "a float32 → a bfloat16" in screen and max(map(len, screen.splitlines())) <= 80
    direct = run("compare", folder, folder, TEXTS[0], "--dtype-b", "bfloat16", "--json").json
    assert direct["largest"]["difference"] != 0


def test_many_texts_from_a_file_are_those_of_python(tmp_path: Path, run: Run) -> None:
    a, b = map(str, write_pair(tmp_path, *FAMILIES["gpt2"][:2]))
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS[:3]))
    written = run("drift", a, b, "--texts", str(texts), "--json").out
    assert written == attnctl_json(attnctl.drift(a, b, TEXTS[:3])).decode() + "\n"
    picture = tmp_path / "drift.png"
    assert run("drift", a, b, TEXTS[0], "-o", str(picture)).code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_held_against_each_other(tmp_path: Path, refused: Refused) -> None:
    llama = str(folders.write(tmp_path / "llama", "llama"))
    other = str(folders.write(tmp_path / "gpt2", "gpt2"))
    bos = str(folders.write(tmp_path / "bos", "llama", bos=True))
    assert "is LlamaModel, gpt2 GPT2Model: drift is between two" in refused("drift", llama, other, "a b")
    assert "drift is between models with one tokenizer" in refused("drift", llama, bos, "Alice")
    (tmp_path / "bad.txt").write_bytes(b"Alice\n\xff\n")
    (tmp_path / "bad.txt").write_bytes(b"\xff\n\n")
    everything = refused("drift", llama, llama, "--texts", str(tmp_path / "bad.txt"))
    assert "bad.txt, line 1: it is not UTF-8" in everything and "1 other text failed, too" in everything


def test_a_text_that_fails_is_skipped_and_the_others_keep_their_numbers(tmp_path: Path, run: Run) -> None:
    a, b = map(str, write_pair(tmp_path, *FAMILIES["gpt2"][:2]))  # which reads 1,024 positions
    texts = tmp_path / "texts.txt"
    texts.write_bytes("\n".join([TEXTS[0], "", "Alice will eat. " * 200, TEXTS[1], "?"]).encode() + b"\xff\n")
    command = ["drift", a, b, "--texts", str(texts)]
    made = run(*command, "--json")
    assert made.code == 3 and check_schema(made.json) == "drift"
    assert [skipped["number"] for skipped in made.json["skipped"]] == [1, 2, 4]
    assert (
        len(made.err.splitlines()) == 3
        and "text 1 (" in made.err
        and "line 2) is skipped: the text is empty" in made.err
    )
    python = attnctl.drift(a, b, TEXTS[:2])
    assert [made.json[name] for name in ("texts", "tokens", "kl")] == [2, python.tokens, python.kl]
    for ours, theirs in zip(made.json["heads"], python.heads, strict=True):
        assert ours["total_variation"] == theirs.total_variation
        assert ours["largest"]["text"] == {0: 0, 1: 3}[theirs.largest.text]
    assert "3 texts skipped" in run(*command).out


def test_failure_half_way_through_a_text_leaves_nothing_of_it(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = map(str, write_pair(tmp_path, *FAMILIES["gpt2"][:2]))
    add_outputs = drifting.DriftTally._add_outputs

    def fail(self: drifting.DriftTally, number: int, *rest: Any) -> None:
        if number == 1:
            raise attnctl.AttnctlError("it fails")
        add_outputs(self, number, *rest)

    monkeypatch.setattr(drifting.DriftTally, "_add_outputs", fail)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:2]))
    made = run("drift", a, b, "--texts", str(tmp_path / "texts.txt"), "--json")
    assert made.code == 3
    assert made.json["heads"] == json.loads(attnctl_json(attnctl.drift(a, b, TEXTS[0])))["heads"]


def test_label_of_classifiers_is_compared(tmp_path: Path, run: Run) -> None:
    config = BertConfig(**{**BERT.to_dict(), "id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": None})
    places = write_pair(tmp_path, BertForSequenceClassification, config)
    found = attnctl.drift(*map(str, places), TEXTS[:3])
    sides = []
    for place in places:
        network = BertForSequenceClassification.from_pretrained(place).eval()
        with torch.no_grad():
            logits = [network(ids_of(place, text)).logits[0] for text in TEXTS[:3]]
        sides.append(torch.stack(logits).double().log_softmax(-1))  # (texts, labels)
    divergence = (sides[0].exp() * (sides[0] - sides[1])).sum(-1)  # (texts,)
    agreeing = (sides[0].argmax(-1) == sides[1].argmax(-1)).double().mean()
    assert found.kl == pytest.approx(float(divergence.mean()), abs=1e-5) and found.kl > 1e-5
    assert found.largest_kl is not None and found.largest_kl.text == int(divergence.argmax())
    assert (found.top_token_agreement, found.predictions, found.predicted) == (float(agreeing), 3, "label")
    assert (
        "  label       KL"
        in run(
            "drift",
            *map(str, places),
            TEXTS[0],
        ).out
    )


def test_table_and_picture_have_the_numbers_of_the_result(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnctl.commands.drift.show import small_number

    a, b = map(str, write_pair(tmp_path, *FAMILIES["llama"][:2]))
    found = attnctl.drift(a, b, TEXTS[0])
    for suffix in ("csv", "parquet"):
        assert run("drift", a, b, TEXTS[0], "-o", str(tmp_path / f"drift.{suffix}")).code == 0
    with (tmp_path / "drift.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, record, head in zip(rows, found.to_records(), found.heads, strict=True):
        assert {name: "" if value is None else str(value) for name, value in record.items()} == row
        assert (record["layer"], record["head"]) == (head.layer, head.head)
        assert record["total_variation"] == head.total_variation and record["largest_token"] == head.largest.token
    import pyarrow.parquet

    assert pyarrow.parquet.read_table(tmp_path / "drift.parquet").to_pylist() == found.to_records()
    drawn: list[Panels] = []
    draw = raster.panels_bytes
    monkeypatch.setattr(raster, "panels_bytes", lambda grids, *rest: drawn.append(grids) or draw(grids, *rest))
    assert run("drift", a, b, TEXTS[0], "-o", str(tmp_path / "drift.svg")).code == 0
    scale, panel = drawn[0].scales[0], drawn[0].panels[0]
    texts = [scale.cell_number(value) for value in panel.array.ravel().tolist()]
    assert texts == [small_number(head.total_variation) for head in found.heads]
    assert "…" not in (tmp_path / "drift.svg").read_text()
