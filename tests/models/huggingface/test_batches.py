"""Several texts in one pass through a checkpoint: each as if it were alone; the products of packed weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnctl
from attnctl.batching.items import Item
from attnctl.batching.passes import SharedPasses
from attnctl.batching.work import Work, Worker
from attnctl.errors import AttnctlError
from attnctl.models import open_model
from attnctl.models.huggingface import padded_batch
from attnctl.models.huggingface.attention_interface import watch_attention
from attnctl.models.huggingface.padded_batch import weights_of_several
from attnctl.runtime.arrays import as_numpy
from attnctl.source import record_trace
from attnctl.trace import Trace
from tests.models.huggingface.conftest import FamilyTrace, Shelf
from tests.tools import architectures as zoo
from tests.tools import folders

TEXTS = ["Alice eats", "a", "Alice eats pizza with Bob", "é 🍕", "Bob"]


def assert_same(one: Trace, other: Trace) -> None:
    assert (one.text, one.tokens, one.model, one.notes) == (other.text, other.tokens, other.model, other.notes)
    for mine, theirs in zip(one.predictions, other.predictions, strict=True):
        assert (mine.position, mine.id) == (theirs.position, theirs.id)
        assert mine.probability == pytest.approx(theirs.probability, abs=1e-5)
    for layer, alone in zip(one.layers, other.layers, strict=True):
        for field in dataclasses.fields(layer):
            a, b = getattr(layer, field.name), getattr(alone, field.name)
            if isinstance(b, np.ndarray):
                assert a.shape == b.shape and a.dtype == b.dtype, field.name
                # sums over a batch are rounded in another order: the weights differ in the last bits, raw numbers by their size
                near = 2e-6 if field.name == "weights" else 1e-5 * max(1.0, float(np.abs(b).max(initial=0.0)))
                np.testing.assert_allclose(a, b, rtol=0, atol=near, err_msg=field.name)
            else:
                assert a is None or isinstance(a, (tuple, int, dict)), field.name


@pytest.mark.grid
@pytest.mark.parametrize("case", [*zoo.DECODERS, *(name for name in zoo.ENCODERS if name != "vit"), *zoo.SPARSE])
def test_each_text_is_as_if_alone(shelf: Shelf, case: str) -> None:
    model: Any = open_model(shelf(case))
    assert padded_batch.can_batch(model)
    for got, text in zip(attnctl.batch(TEXTS, model, batch_size=3), TEXTS, strict=True):
        assert_same(got, record_trace(model, text))


def classifier(kind: str) -> Any:
    """A random classifier of three classes, which reads the words w0 to w127."""
    from transformers import AutoModelForSequenceClassification

    from tests.tools.sweep.checkpoints import opened
    from tests.tools.sweep.families import Family, configuration

    torch.manual_seed(0)
    config = configuration(kind)
    config.num_labels = 3
    network = AutoModelForSequenceClassification.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(5 if parameter.ndim > 1 else 1)
    return opened(Family(kind, "sequence"), network, "self")


@pytest.mark.parametrize("kind", ["bert", "gpt2", "biogpt", "llama", "modernbert"])
def test_classes_of_texts_that_share_a_pass(kind: str) -> None:
    """Held against the network itself, which reads each text alone."""
    model = classifier(kind)
    texts = ["w10 w33 w71", "w99 w12", "w50 w51 w52 w10 w45"]
    assert SharedPasses(model, 3).next_size([model.tokenize(text) for text in sorted(texts, key=len)]) == 3
    for trace in attnctl.batch(texts, model, batch_size=3):
        with torch.no_grad():
            logits = model.network(input_ids=torch.tensor([[token.id for token in trace.tokens]])).logits[0]
        shares = {one.id: one.probability for one in trace.predictions}
        assert all(one.is_class for one in trace.predictions)
        assert shares == pytest.approx(dict(enumerate(torch.softmax(logits, -1).tolist())), abs=1e-5)


def test_a_class_that_minds_padding() -> None:
    """A head that reads the last place, padding or not: such texts are read alone."""
    model = classifier("bert")
    model.network.bert.pooler.register_forward_hook(lambda _, args, __: args[0][:, -1])
    texts = ["w10 w33 w71", "w99 w12", "w50 w51 w52 w10 w45"]
    for got, text in zip(attnctl.batch(texts, model, batch_size=3), texts, strict=True):
        assert_same(got, record_trace(model, text))


def test_selections_hold_for_each_and_one_that_fails_leaves_the_others(shelf: Shelf) -> None:
    model: Any = open_model(shelf("llama"))
    for got, text in zip(attnctl.batch(TEXTS, model, head=[1, 3], layer=1, query=0), TEXTS, strict=True):
        assert_same(got, record_trace(model, text, heads=[1, 3], layers=[1], rows=[0]))
    items = [Item(at, "here", text) for at, text in enumerate(TEXTS)]
    items[2] = Item(2, "here", "Alice " * (model.pieces.limit + 1))
    done = Worker(Work({}, (), batch_size=4), model).chunk_results(items)
    assert [result.error is not None for result in done] == [at == 2 for at in range(len(TEXTS))]
    assert "llama reads 64" in str(done[2].error)
    with pytest.raises(AttnctlError, match="text 2: .* llama reads 64"):
        list(attnctl.batch([item.text for item in items], model))


def test_a_model_that_minds_padding_reads_one_text_at_a_time(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = open_model(shelf("bert"))
    hidden: list[torch.Tensor | None] = []
    own = padded_batch.padded_inputs

    def blind(*args: Any) -> Any:  # as if the network took padding for text
        inputs, at = own(*args)
        hidden.append(inputs.pop("attention_mask", None))
        return inputs, at

    monkeypatch.setattr(padded_batch, "padded_inputs", blind)
    for got, text in zip(attnctl.batch(TEXTS, model, batch_size=4), TEXTS, strict=True):
        assert_same(got, record_trace(model, text))
    assert any(mask is not None for mask in hidden), "nothing was padded, so nothing was tested"


@pytest.mark.parametrize("kind", ["doge", "deepseek_v32"])
def test_keys_that_are_picked_are_not_picked_beside_padding(family: FamilyTrace, kind: str) -> None:
    """Doge looks at the best 4 keys, and at others beside padding: each of its texts is read alone."""
    model, _ = family(kind, kernel="sdpa" if kind == "doge" else "eager")
    short, long = (model.tokenize(" ".join(f"w{at}" for at in range(n))) for n in (5, 9))
    assert padded_batch.padding_changes_weights(model, short, long)
    texts = ["w10 w33 w71 w20 w10 w45 w90 w12", "w99", "w50 w51 w52"]
    for got, text in zip(attnctl.batch(texts, model, batch_size=4), texts, strict=True):
        assert_same(got, record_trace(model, text))


def test_padding_is_tried_where_a_pass_is_longer_than_those_before(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In later chunks too, and behind one whose texts are of one length; a single token has a weight of 1 in any company."""
    tried: list[tuple[int, int]] = []

    def changes_long(_: Any, short: Any, long: Any) -> bool:
        tried.append((len(short), len(long)))
        return len(long) > 6

    monkeypatch.setattr(padded_batch, "padding_changes_weights", changes_long)
    passes = SharedPasses(open_model(shelf("llama")), 4)
    sizes = [[3, 3, 3], [1, 4], [2, 5, 5], [3, 4], [4, 4, 6], [2, 2, 7], [2, 2, 5], [2, 9]]
    texts = [[["token"] * n for n in chunk] for chunk in sizes]
    assert [passes.next_size(chunk) for chunk in texts] == [3, 2, 3, 2, 3, 2, 3, 1]
    assert tried == [(2, 5), (4, 6), (2, 7)]


def test_tokens_of_a_pass_are_counted_with_their_padding(shelf: Shelf) -> None:
    passes = SharedPasses(open_model(shelf("llama")), 32)
    for sizes, most in (
        ([600] * 10, 6),
        ([5000] * 10, 1),
        ([1, 1, 1, 4000], 3),
        ([1, 1, 1, 22], 4),
        ([1, 1, 1, 23], 3),
    ):
        assert passes.next_size([["token"] * size for size in sizes]) == most


SHORT, LONG = "the cat sat", "the cat sat on the mat because it was warm"


@pytest.mark.parametrize("case", ["llama", "mistral, window"])
def test_a_kernel_is_run_until_it_was_held_against_calls_of_a_length(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    model: Any = open_model(shelf(case))
    runs: list[int] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def counted_kernel(*args: torch.Tensor, **how: object) -> torch.Tensor:
        runs.append(1)
        return kernel(*args, **how)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted_kernel)

    def weights_of(*texts: str) -> list[np.ndarray]:
        kept: list[np.ndarray] = []
        runs.clear()
        weights_of_several(model, [model.tokenize(text) for text in texts], lambda _, own: kept.append(as_numpy(own)))
        return kept

    fused = model.network.config._attn_implementation == "sdpa"
    first = weights_of(SHORT)
    assert len(runs) == fused * len(first)
    for texts, is_checked in (((SHORT,), True), ((LONG,), False), ((SHORT, LONG), False), ((SHORT, LONG), True)):
        found = weights_of(*texts)
        assert len(runs) == fused * (not is_checked) * len(found)
        if texts[0] == SHORT:
            n = first[0].shape[-1]
            for own, alone in zip(found, first, strict=True):
                assert np.abs(own[:1, :, :n, :n] - alone).max() < 1e-6
    with watch_attention(model.network, lambda *_: None):  # who watches beside it sees the model's own kernel
        weights_of(SHORT)
        assert len(runs) == fused * len(first)


TEXT = "Alice eats pizza with Bob " * 2


def batch_weights(model: Any) -> np.ndarray:
    return [trace.layers[-1].weights for trace in attnctl.batch([TEXT] * 4, model)][0]


def several_weights(model: Any) -> np.ndarray:
    kept: list[np.ndarray] = []
    weights_of_several(model, [model.tokenize(TEXT)] * 4, lambda _, weights: kept.append(as_numpy(weights)[0]))
    return kept[-1]


def part_measures(model: Any) -> np.ndarray:
    found = attnctl.sources("Alice eats pizza with Bob\n" * 2, model, answer="pizza", spans="lines")
    return np.array([found.answer.log_probability, *(part.matters for part in found.parts)], dtype=float)


@pytest.mark.parametrize("measure", [batch_weights, several_weights, part_measures])
def test_a_network_changed_in_place_is_read_as_it_is_now(tmp_path: Path, measure: Callable[[Any], np.ndarray]) -> None:
    """Not with the weights of the first run; `.data` changes a tensor without raising its version."""
    model: Any = open_model(str(folders.write(tmp_path / "model", "llama")))
    before = measure(model)
    for parameter in model.network.parameters():
        parameter.data.mul_(1.5)
    changed = measure(model)
    assert np.abs(changed - before).max() > 0.01
    model.network.save_pretrained(tmp_path / "model")
    np.testing.assert_allclose(changed, measure(open_model(str(tmp_path / "model"))), atol=1e-5)
