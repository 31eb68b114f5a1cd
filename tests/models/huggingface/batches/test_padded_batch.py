"""Several texts in one pass through a checkpoint: each as if it were alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

import attnctl
from attnctl.batching import census_work
from attnctl.batching.items import Item
from attnctl.batching.work import SharedPasses, Work, Worker
from attnctl.errors import AttnctlError
from attnctl.models import open_model
from attnctl.models.huggingface import padded_batch
from attnctl.readings.traces.trace import Trace
from attnctl.source import record_trace
from tests.tools import architectures as zoo
from tests.tools import folders

TEXTS = [
    "Alice eats",
    "a",
    "Alice eats pizza with Bob",
    "é 🍕",
    "Bob",
    "eats eats Alice",
    "with pizza Bob eats Alice a a",
]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    root = tmp_path_factory.mktemp("several")

    def folder(case: str) -> str:
        path: Path = root / case.replace(",", "-")
        return str(path if path.exists() else folders.write(path, case))

    return folder


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


@pytest.mark.parametrize("case", [*zoo.DECODERS, *(name for name in zoo.ENCODERS if name != "vit"), *zoo.SPARSE])
def test_each_text_is_as_if_alone(shelf: Callable[[str], str], case: str) -> None:
    model: Any = open_model(shelf(case))
    assert padded_batch.can_batch(model)
    for got, text in zip(attnctl.batch(TEXTS, model, batch_size=4), TEXTS, strict=True):
        assert_same(got, record_trace(model, text))


def test_selections_hold_for_each(shelf: Callable[[str], str]) -> None:
    model: Any = open_model(shelf("llama"))
    for got, text in zip(attnctl.batch(TEXTS, model, head=[1, 3], layer=1, query=0), TEXTS, strict=True):
        assert_same(got, record_trace(model, text, heads=[1, 3], layers=[1], rows=[0]))


def test_one_that_fails_leaves_the_others(shelf: Callable[[str], str]) -> None:
    model: Any = open_model(shelf("llama"))
    items = [Item(at, "here", text) for at, text in enumerate(TEXTS)]
    items[2] = Item(2, "here", "Alice " * (model.pieces.limit + 1))
    done = Worker(Work({}, (), batch_size=4), model).chunk_results(items)
    assert [result.error is not None for result in done] == [at == 2 for at in range(len(TEXTS))]
    assert "llama reads 64" in str(done[2].error)
    with pytest.raises(AttnctlError, match="text 2: .* llama reads 64"):
        list(attnctl.batch([item.text for item in items], model))


def test_a_model_that_minds_padding_reads_one_text_at_a_time(
    shelf: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = open_model(shelf("bert"))
    asked: list[bool] = []
    own = padded_batch.padded_inputs

    def blind(*args: Any) -> Any:  # as if the network took padding for text
        inputs, at = own(*args)
        asked.append("attention_mask" in inputs)
        inputs.pop("attention_mask", None)
        return inputs, at

    monkeypatch.setattr(padded_batch, "padded_inputs", blind)
    for got, text in zip(attnctl.batch(TEXTS, model, batch_size=4), TEXTS, strict=True):
        assert_same(got, record_trace(model, text))
    assert any(asked), "nothing was padded, so nothing was tested"


@pytest.mark.parametrize("kind", ["doge", "deepseek_v32"])
def test_keys_that_are_picked_are_not_picked_beside_padding(kind: str) -> None:
    """Doge looks at the best 4 keys, and at others beside padding: each of its texts is read alone."""
    from tests.tools.sweep.checkpoints import opened
    from tests.tools.sweep.families import Family, build

    model: Any = opened(
        Family(kind, "causal"), build(Family(kind, "causal"), "sdpa" if kind == "doge" else "eager"), "self"
    )
    short, long = (model.tokenize(" ".join(f"w{at}" for at in range(n))) for n in (5, 9))
    assert padded_batch.padding_changes_weights(model, short, long)
    texts = ["w10 w33 w71 w20 w10 w45 w90 w12", "w99", "w50 w51 w52", "w10 w33"]
    for got, text in zip(attnctl.batch(texts, model, batch_size=4), texts, strict=True):
        assert_same(got, record_trace(model, text))


def test_padding_is_tried_where_a_pass_is_longer_than_those_before(
    shelf: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.parametrize(("size", "most"), [(600, 6), (5000, 1)])
def test_tokens_of_a_pass_are_counted_with_their_padding(shelf: Callable[[str], str], size: int, most: int) -> None:
    passes = SharedPasses(open_model(shelf("llama")), 32)
    assert passes.next_size([["token"] * size] * 10) == most
    assert passes.next_size([["token"]] * 3 + [["token"] * 4000]) == 3
    assert passes.next_size([["token"]] * 3 + [["token"] * 1024]) == 4


def test_a_census_tries_padding_behind_sentences_of_one_length(
    shelf: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(census_work, "FIRST_TOGETHER", 2)
    tried: list[int] = []
    monkeypatch.setattr(
        padded_batch, "padding_changes_weights", lambda _, short, long: tried.append(len(long)) or len(long) > 0
    )
    sentence = "1\tBob\tBob\tNOUN\t_\t_\t0\troot\t_\t_\n"
    longer = sentence + "2\teats\teat\tVERB\t_\t_\t1\tdep\t_\t_\n"
    (tmp_path / "some.conllu").write_text("\n".join([sentence, sentence, sentence, longer, ""]))
    attnctl.evaluate(tmp_path / "some.conllu", open_model(shelf("llama")))
    assert len(tried) == 1
