"""`attnctl.leaks` of any torch module: a planted leak is found, with its segments, and its healthy twin keeps them apart."""

import json
from pathlib import Path

import pytest
import torch

import attnctl
from attnctl.commands.leaks.result import Leaks
from attnctl.errors import UsageError
from tests.conftest import SAMPLES, Run
from tests.models.torch.faulty import DOCUMENTS, IDS, SHOWN, Writer, causal, full

TINY = f"{SAMPLES / 'own_model' / 'tiny.py'}:build"


def pairs(found: Leaks) -> set[tuple[int, int]]:
    return {(one.query, one.key) for one in found.wrong if not found.segments[one.query].row}


@pytest.mark.parametrize(
    ("model", "twin", "given", "expected", "cause"),
    [
        (Writer(causal, causal, fault="documents"), Writer(causal, causal), {"doc_ids": DOCUMENTS}, {(1, 0), (2, 0), (2, 1)}, "own-mask"),
        (Writer(full, full, fault="documents"), Writer(full, full), {"doc_ids": DOCUMENTS}, {(a, b) for a in range(3) for b in range(3) if a != b}, "own-mask"),
        (Writer(full, fault="padding"), Writer(full), {"doc_ids": DOCUMENTS, "attention_mask": SHOWN.flip(0)}, {(1, 2)}, "padding"),
        (Writer(causal, causal, fault="convolution"), Writer(causal, causal), {"doc_ids": DOCUMENTS}, {(0, 1), (1, 2)}, "state"),
    ],
)  # fmt: skip
def test_a_planted_leak_is_found(model, twin, given, expected, cause) -> None:
    assert attnctl.leaks(twin, IDS, **given).apart
    found = attnctl.leaks(model, IDS, **given)
    assert expected <= pairs(found) and cause in {one.cause for one in found.wrong}
    if cause == "own-mask":
        assert expected == pairs(found) and {one.first_layer for one in found.wrong} == {1}


def test_the_numbers_are_those_of_the_model() -> None:
    """The weight that crosses, from the softmax by hand; the change, from a run with other tokens by hand."""
    model = Writer(causal)
    found = attnctl.leaks(model, IDS, segments=DOCUMENTS)
    one = next(pair for pair in found.pairs if (pair.query, pair.key) == (1, 0))
    with torch.no_grad():
        x = model.blocks[0].norm(model.words(IDS[:1]) + model.places(torch.arange(8)))
        q, k, _ = model.blocks[0].qkv(x).view(8, 3, 2, 8).permute(1, 2, 0, 3).double()
        weights = (q @ k.mT / 8**0.5).masked_fill(~causal(8), -torch.inf).softmax(-1)  # (heads, n, n)
        assert one.largest == pytest.approx(float(weights[:, 3:6, :3].sum(-1).max()), abs=1e-6)
        assert one.visible == (1.0,)
        assert found.outputs == "logits" and one.change > 0.01


def test_the_future_of_a_segment() -> None:
    from functools import partial

    assert attnctl.leaks(Writer(causal), IDS, segments=DOCUMENTS, expect="causal").apart
    found = attnctl.leaks(Writer(partial(causal, ahead=1)), IDS, segments=DOCUMENTS, expect="causal")
    assert {(0, 0), (1, 1), (2, 2), (0, 1), (1, 2)} == pairs(found)


def test_what_is_no_packed_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="each row of the batch is one segment"):
        attnctl.leaks(Writer(causal), IDS)
    with pytest.raises(UsageError, match="no argument of Conv2d holds tokens"):
        attnctl.leaks(torch.nn.Conv2d(3, 4, 2).eval(), torch.ones(1, 3, 8, 8))


def test_a_module_of_ones_own_in_a_terminal(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "batch.json"
    file.write_text(json.dumps({"input_ids": IDS.tolist(), "segments": DOCUMENTS.tolist()}))
    assert run("leaks", str(file), "--model", TINY, "--expect", "causal").code == 0
    assert run("leaks", str(file), "--model", TINY).code == 4
    done = run("leaks", "eat pizza", "see me", "--pack", "--model", TINY, "--json")
    found = json.loads(done.out)
    assert done.code == 4 and [one["tokens"] for one in found["segments"]] == [9, 6]
