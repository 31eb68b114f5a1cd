"""A transformers model of one's own: its texts by attend, and its heads measured while it trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

import attnctl
from attnctl.api.log import AttentionLog, head_measures
from attnctl.errors import AttnctlError
from tests.models.huggingface.conftest import Shelf
from tests.tools import architectures as zoo
from tests.tools.folders import VOCABULARY, tokenizer

TEXT = "Alice will eat pizza"
SIZES = {"vocab_size": len(VOCABULARY) + 10, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def test_a_model_in_memory_is_read_as_its_folder(shelf: Shelf) -> None:
    network = zoo.build("llama", **SIZES)
    trace = attnctl.attend(TEXT, network, tokenizer=tokenizer())
    for ours, theirs in zip(trace.layers, attnctl.attend(TEXT, shelf("llama")).layers, strict=True):
        np.testing.assert_allclose(ours.weights, theirs.weights, atol=1e-6)
    assert len(attnctl.heads(TEXT, network, tokenizer=tokenizer())) == 8


@pytest.mark.parametrize("case", ["llama", "gemma2, soft cap and window", "gpt2", "bert"])
def test_the_extreme_logits_of_heads_are_those_of_eagers_softmax(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, softmax = list[np.ndarray](), torch.nn.functional.softmax
    eager = zoo.build(case, "eager", **SIZES).eval()
    found = attnctl.heads(TEXT, zoo.build(case, **SIZES), tokenizer=tokenizer())
    ids = torch.tensor([tokenizer().encode(TEXT).ids])
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(
            torch.nn.functional, "softmax", lambda x, *a, **how: scores.append(x[0].numpy()) or softmax(x, *a, **how)
        )
        eager(ids)
    for head in found:
        logits = scores[head.layer][head.head]
        assert head["max_logit"] == pytest.approx(logits.max(), rel=1e-5)
        assert (head["max_logit_query"], head["max_logit_key"]) == np.unravel_index(logits.argmax(), logits.shape)
        assert head["min_logit"] == pytest.approx(logits[logits > -1e30].min(), rel=1e-5)  # a hidden key has finfo.min


def test_what_is_lacking_is_said() -> None:
    network = zoo.build("llama", **SIZES)
    for given, says in ((None, "give its tokenizer"), (object(), "give one of transformers or of tokenizers")):
        with pytest.raises(AttnctlError, match=says):
            attnctl.attend(TEXT, network, tokenizer=given)
    with pytest.raises(AttnctlError, match=r"call model.eval\(\)"):
        attnctl.attend(TEXT, zoo.build("llama", **SIZES, attention_dropout=0.1).train(), tokenizer=tokenizer())


def test_measures_count_neither_padding_nor_the_first_query() -> None:
    weights = torch.tensor([[[[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.5, 0], [0.9, 0.1, 0, 0]]]])
    entropy, sink = head_measures(weights, torch.tensor([[1, 1, 1, 0]]))
    assert sink.item() == pytest.approx((0.5 + 0.25) / 2)
    assert entropy.item() == pytest.approx((0 + np.log(2) + 1.5 * np.log(2)) / 3, abs=1e-6)
    left = torch.tensor([[[[1.0, 0, 0], [0, 1, 0], [0, 0.75, 0.25]]]])
    assert head_measures(left, torch.tensor([[0, 1, 1]]))[1].item() == pytest.approx(0.75)


def test_a_trainer_logs_every_head(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    network = zoo.build("llama", **SIZES).train()
    ids = torch.tensor([tokenizer().encode(TEXT).ids])  # (1, n)
    rows = [{"input_ids": ids[0], "labels": ids[0]}] * 8
    told: list[dict[str, float]] = []
    log = AttentionLog({"input_ids": ids}, every=2, layer=[0], report=told.append)
    how = {"logging_steps": 2, "report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    arguments = TrainingArguments(str(tmp_path), max_steps=4, per_device_train_batch_size=2, **how)
    trainer = Trainer(network, arguments, train_dataset=rows, callbacks=[log])
    trainer.train()
    heads = network.config.num_attention_heads
    assert [row["step"] for row in log.history] == sorted([0, 2, 4] * heads) and len(told) == 3
    assert all(row["entropy"] >= 0 and 0 <= row["sink"] <= 1 and row["layer"] == 0 for row in log.history)
    assert network.training
    assert trainer.state.log_history[0][f"attention/0.{heads - 1}/sink"] == told[1][f"attention/0.{heads - 1}/sink"]


@torch.no_grad()
@pytest.mark.parametrize("case", ["llama", "gemma2, soft cap and window", "gpt2", "t5, bias"])
def test_the_largest_logit_is_that_of_eagers_softmax(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each head over a padded batch; above the limit one line warns, and names the largest."""
    inputs, masks = zoo.inputs(case, batch=2), ["attention_mask", "decoder_attention_mask"]
    for name in masks if "decoder_input_ids" in inputs else masks[:1]:
        inputs[name] = torch.ones_like(inputs["decoder_input_ids" if "decoder" in name else "input_ids"])
        inputs[name][1, -3:] = 0
    network, scores = zoo.build(case, "eager").eval(), list[torch.Tensor]()
    softmax = torch.nn.functional.softmax
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", lambda x, *a, **how: scores.append(x) or softmax(x, *a, **how))
        network(**inputs)
    kinds = ["encoder"] * 2 + ["decoder", "cross"] * 2 if "decoder_input_ids" in inputs else ["self"] * 2
    expected = [
        part.masked_fill(inputs[masks[kind in ("decoder", "cross")]][:, None, :, None] == 0, -torch.inf).amax((0, 2, 3))
        for kind, part in zip(kinds, scores, strict=True)
    ]
    largest = max(float(part.max()) for part in expected)
    log = AttentionLog(inputs, logit_limit=largest - 1e-3)
    with pytest.warns(
        UserWarning, match=rf"^step 3: the largest logit of head .* is {largest:.4g}, above logit_limit="
    ):
        log.measure(zoo.build(case), 3)
    found = {(row["kind"], row["layer"], row["head"]): row["max_logit"] for row in log.history}
    layers = dict.fromkeys(kinds, 0)
    for kind, heads in zip(kinds, expected, strict=True):
        for head, value in enumerate(heads.tolist()):
            assert found.pop((kind, layers[kind], head)) == pytest.approx(value, rel=1e-5)
        layers[kind] += 1
    assert not found


def test_each_kind_of_attention_has_its_own_masks_and_names() -> None:
    inputs = zoo.inputs("t5, bias", batch=2)
    inputs = {name: value[:, :4] if name == "input_ids" else value for name, value in inputs.items()}
    inputs["attention_mask"] = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    told: list[dict[str, float]] = []
    log = AttentionLog(inputs, report=told.append, logit_limit=1e9)
    log.measure(zoo.build("t5, bias"), 0)
    assert len(told[0]) == 3 * len(log.history) and {row["kind"] for row in log.history} == {
        "encoder",
        "decoder",
        "cross",
    }
    alone = AttentionLog({name: value[:1] for name, value in inputs.items()})
    alone.measure(zoo.build("t5, bias"), 0)
    assert told[0].keys() == {
        f"attention/{r['kind']}.{r['layer']}.{r['head']}/{n}"
        for r in alone.history
        for n in ("entropy", "sink", "max_logit")
    }
    outside = AttentionLog({"input_ids": torch.tensor([[1, 2, 3]])})
    outside.measure(zoo.build("bloom, ALiBi", "eager"), 0)
    assert "max_logit" not in outside.history[0] and "entropy" in outside.history[0]


def test_a_measurement_leaves_frozen_modules_in_evaluation_mode() -> None:
    network = zoo.build("llama", **SIZES).train()
    network.model.layers[0].eval()
    before = {name: module.training for name, module in network.named_modules()}
    AttentionLog({"input_ids": torch.tensor([tokenizer().encode(TEXT).ids])}).measure(network, 1)
    assert {name: module.training for name, module in network.named_modules()} == before
