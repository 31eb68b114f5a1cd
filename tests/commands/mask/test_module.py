"""`attnctl.mask` of any torch module: each planted fault is found, with its place, and its healthy twin holds."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import attnctl
from attnctl.errors import AttnctlError, UsageError
from tests.conftest import SAMPLES, Run
from tests.models.torch.faulty import DOCUMENTS, IDS, SHOWN, Writer, causal, full
from tests.models.torch.written_by_hand import B, D, N

TINY = f"{SAMPLES / 'own_model' / 'tiny.py'}:build"
OFF_BY_ONE = partial(causal, ahead=1)


def too_narrow(n: int) -> Tensor:
    return causal(n) & ~causal(n, -3)


ALL = torch.ones(8, 8, dtype=torch.bool)
BLOCKS = DOCUMENTS[0][:, None] == DOCUMENTS[0]

# model, its twin, what both are given → kind of violation, layer, query, key or row of the batch
FAULTS = {
    "a mask off by one": (Writer(causal, OFF_BY_ONE, causal), Writer(causal, causal, causal), {"expect": "causal"}, ("sees", 1, 0, 1)),
    "a mask that hides too much": (Writer(causal, too_narrow), Writer(causal, causal), {"expect": "causal"}, ("misses", 1, 3, 0)),
    "no mask": (Writer(causal, full), Writer(causal, causal), {"expect": "causal"}, ("sees", 1, 0, 1)),
    "padding": (Writer(full, full, fault="padding"), Writer(full, full), {"attention_mask": SHOWN}, ("sees", 0, 0, 5)),
    "documents": (Writer(causal, causal, fault="documents"), Writer(causal, causal), {"doc_ids": DOCUMENTS}, ("sees", 1, 3, 0)),
    "rows": (Writer(causal, fault="rows"), Writer(causal), {}, ("mixes", None, None, 1)),
    "rows before the layers": (Writer(causal, fault="rows before the layers"), Writer(causal), {}, ("mixes", None, None, 1)),
    "a convolution that looks ahead": (Writer(causal, causal, fault="convolution"), Writer(causal, causal), {}, ("reaches", None, 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_its_twin_holds(name: str) -> None:
    model, twin, given, (how, layer, query, other) = FAULTS[name]
    assert attnctl.mask(twin, IDS, **given).holds
    found = attnctl.mask(model, IDS, **given)
    assert found.holds is False
    worst = min((one for one in found.violations if one.how == how), key=lambda one: (one.layer or 0, one.row))
    assert worst.layer == layer and other in (worst.key, worst.other_row)
    assert query in (None, worst.query)
    assert how == "misses" or worst.change > 0.01


def test_the_masks_are_those_of_the_module() -> None:
    found = attnctl.mask(Writer(causal, OFF_BY_ONE), IDS, doc_ids=DOCUMENTS)
    masks = {layer: group.mask for group in found.groups for layer in group.layers}
    assert (masks[0] == (ALL.tril() & BLOCKS).numpy()).all() and (masks[1] == (ALL.tril(1) & BLOCKS).numpy()).all()
    assert "No rule says what Writer should see" in found.notes[-1]


def test_a_change_is_that_of_the_output() -> None:
    """The layer's own output, with the key's rows exchanged by hand, moves by the change that is told."""
    from attnctl.models.exchange import other_rows

    model, inputs = Writer(OFF_BY_ONE), []
    model.blocks[0].register_forward_pre_hook(lambda _, args: inputs.append(args))
    one = attnctl.mask(model, IDS, expect="causal").violations[0]
    x, shown = inputs[0]
    changed = x.clone()
    changed[one.row, one.key] = other_rows(x)[one.row, one.key]
    with torch.no_grad():
        before, after = (model.blocks[0](rows, shown)[one.row, one.query] for rows in (x, changed))
    assert one.change == pytest.approx(float((before - after).abs().max() / before.abs().max()), rel=1e-5)


class Root(nn.Module):
    """Two attentions in one module, without a list of layers."""

    def __init__(self, window: int = N) -> None:
        super().__init__()
        self.qkv, self.window = nn.Linear(D, 3 * D), window

    def forward(self, x: Tensor) -> Tensor:
        shown = ALL[: x.shape[-2], : x.shape[-2]]
        shown = shown.tril() & ~shown.tril(-self.window)
        for _ in range(2):
            q, k, v = self.qkv(x).chunk(3, -1)
            x = x + functional.scaled_dot_product_attention(q, k, v, attn_mask=shown)
        return x


VECTORS = torch.randn(B, N, D, generator=torch.Generator().manual_seed(0))
PADDING = torch.zeros(B, N, dtype=torch.bool)
PADDING[1, 3:] = True
SQUARE = nn.Transformer.generate_square_subsequent_mask(N)
ENCODER = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 8, batch_first=True), 2).eval()
TURNED = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 3, 8), 2, enable_nested_tensor=False).eval()


@pytest.mark.parametrize(
    ("model", "args", "given", "sentence"),
    [
        (ENCODER, (VECTORS,), {"src_key_padding_mask": PADDING}, "full, padding 3–4 hidden"),
        (TURNED, (VECTORS.transpose(0, 1),), {"mask": SQUARE, "is_causal": True, "expect": "causal"}, "causal"),
        (Root().eval(), (VECTORS,), {"expect": "causal"}, "causal"),
        (Root().eval(), (VECTORS[0],), {"expect": "causal"}, "causal"),
        (Root(3).eval(), (VECTORS,), {"expect": "causal window 3"}, "causal, window 3"),
        (Root(3).eval(), (VECTORS,), {"expect": "window 3"}, "causal, window 3"),
    ],
)
def test_modules_of_many_forms_hold(model: nn.Module, args: tuple, given: dict, sentence: str) -> None:
    found = attnctl.mask(model, *args, **given)
    assert found.holds and found.exchanges, str(found)
    assert sentence in [group.sentence for group in found.groups]


def test_a_window_too_wide_is_found() -> None:
    found = attnctl.mask(Root(3).eval(), VECTORS, expect="causal window 2")
    assert [(one.how, one.query, one.key) for one in found.violations[:1]] == [("sees", 2, 0)]


def test_a_model_of_states_is_checked_by_its_outputs() -> None:
    assert attnctl.mask(nn.LSTM(D, D, batch_first=True).eval(), VECTORS, expect="causal").holds
    found = attnctl.mask(nn.LSTM(D, D, batch_first=True, bidirectional=True).eval(), VECTORS, expect="causal")
    assert {one.how for one in found.violations} == {"reaches"}


def test_what_cannot_be_checked_is_an_error() -> None:
    with pytest.raises(AttnctlError, match="no attention of LSTM was seen"):
        attnctl.mask(nn.LSTM(D, D).eval(), VECTORS)
    with pytest.raises(UsageError, match="missing a required argument: 'x'"):
        attnctl.mask(Root().eval(), y=3)
    with pytest.raises(AttnctlError, match="training mode"):
        attnctl.mask(nn.TransformerEncoderLayer(D, 3, 8), VECTORS)
    with pytest.raises(UsageError, match="a number for each token"):
        attnctl.mask(Root().eval(), VECTORS, segments=[[0, 1]])


def test_a_module_of_ones_own_in_a_terminal(run: Run, tmp_path: Path) -> None:
    assert run("mask", "eat pizza", "--model", TINY, "--expect", "causal").code == 0
    done = run("mask", "eat pizza", "--model", TINY, "--expect", "bidirectional")
    assert done.code == 4 and "does not see token 1 “a” (36 pairs" in " ".join(done.out.split())
    file = tmp_path / "batch.json"
    file.write_text(json.dumps({"input_ids": IDS.tolist(), "segments": DOCUMENTS.tolist()}))
    done = run("mask", str(file), "--model", TINY, "--json")
    found = json.loads(done.out)
    assert done.code == 4 and found["violations"][0]["expected"] == "its own mask, segments apart"
