"""A transformers model of one's own: its texts by attend, and its heads measured while it trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

import attnctl
from attnctl.errors import AttnctlError
from attnctl.log import AttentionLog, head_measures
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


def test_a_measurement_leaves_frozen_modules_in_evaluation_mode() -> None:
    network = zoo.build("llama", **SIZES).train()
    network.model.layers[0].eval()
    before = {name: module.training for name, module in network.named_modules()}
    AttentionLog({"input_ids": torch.tensor([tokenizer().encode(TEXT).ids])}).measure(network, 1)
    assert {name: module.training for name, module in network.named_modules()} == before
