"""Attention that goes block by block, in code of its own: LongT5, BigBird, BigBird Pegasus, Pegasus-X."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from attnctl import capture, intervene
from attnctl.errors import AttnctlError
from tests.tools.sweep import families
from tests.tools.sweep.families import Family
from tests.tools.sweep.modes import MODES
from tests.tools.sweep.verdict import EXACT, verdicts

SMALL = {"d_model": 16, "vocab_size": 50}
BART = SMALL | dict.fromkeys(("encoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 2)
BART |= {"decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64}
T5 = SMALL | {"num_heads": 2, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_decoder_layers": 1, "local_radius": 3}
BIRD = SMALL | {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
BIRD |= {"max_position_embeddings": 64}
BLOCKS = {"block_size": 2, "num_random_blocks": 2}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def built(name: str, kind: str, **settings: Any) -> Any:
    """A small network whose queries and keys are large enough for peaks."""
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}{kind}")(config).eval()
    for part_name, part in model.named_parameters():
        if any(part_name.endswith(f"{q}.weight") for q in (".q", ".k", "query", "key", "q_proj", "k_proj")):
            part.copy_(0.4 * torch.randn_like(part))
    return model


def ids(n: int) -> torch.Tensor:
    return torch.randint(5, 50, (2, n))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("longt5", {}),
        ("longt5", {"encoder_attention_type": "transient-global"}),
        ("pegasus_x", {}),
        ("bigbird_pegasus", {"block_size": 1, "num_random_blocks": 2}),
    ],
)
def test_rows_are_those_of_the_softmaxes(kind: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of the library's own softmaxes, put where its key is; the model's output stays what it was."""
    monkeypatch.setitem(families.NEEDS, kind, settings)
    modes = [mode for mode in MODES if mode.name in ("plain", "left-padded", "half", "one head", "commands")]
    found = list(verdicts(Family(kind, "seq2seq"), modes))
    assert len(found) == 5 and [verdict for verdict in found if verdict.outcome != EXACT] == []


def explicit_row(scores: np.ndarray, keys: list[int]) -> np.ndarray:
    """The weights (n,) of a softmax over these keys in float64; a key that stands there twice counts twice."""
    shares = np.exp(scores[keys] - scores[keys].max())
    row = np.zeros(len(scores))
    np.add.at(row, keys, shares / shares.sum())
    return row


@pytest.mark.parametrize("n", [24, 23])  # 23 tokens are padded to 24
@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("BigBirdPegasus", "ForConditionalGeneration", BART | BLOCKS),
        ("BigBird", "ForMaskedLM", BIRD | BLOCKS | {"attn_implementation": "eager"}),
    ],
)
def test_big_bird_sees_the_first_block_again(name: str, kind: str, settings: dict[str, Any], n: int) -> None:
    """Outside training, random blocks are the first block; the library's own matrix holds these keys once, and sums to less."""
    model = built(name, kind, **settings)
    core = next(part for part in model.modules() if type(part).__name__.endswith("BlockSparseAttention"))
    kept: dict[str, np.ndarray] = {}
    for part in ("query", "key"):
        core.get_submodule(part).register_forward_hook(
            lambda _, __, out, part=part: kept.update(
                {part: out.unflatten(-1, (2, -1)).transpose(1, 2).double().numpy()}
            )
        )
    text = ids(n)
    with capture(model, layer=0, attention="encoder" if name == "BigBirdPegasus" else None) as traces:
        model(text, decoder_input_ids=text[:, :3]) if name == "BigBirdPegasus" else model(text)
    scores = (kept["query"] @ kept["key"].swapaxes(-1, -2))[..., :n] / np.sqrt(core.attention_head_size)
    assert traces[0].weights.shape == (2, 2, n, n)
    for query in range(n):
        block, last = query // 2, 11
        seen = {0: range(12), 1: [0, 1, 2, last, 0, 0], last - 1: [0, 9, 10, last, 0, 0], last: range(12)}
        blocks = seen.get(block, [0, block - 1, block, block + 1, last, 0, 0])
        keys = [key for number in blocks for key in (2 * number, 2 * number + 1) if key < n]
        for item, head in np.ndindex(2, 2):
            row = explicit_row(scores[item, head, query], keys)
            assert np.abs(traces[0].weights[item, head, query].numpy() - row).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "settings", "output"),
    [
        ("LongT5", T5, "o"),
        ("LongT5", T5 | {"encoder_attention_type": "transient-global", "global_block_size": 5}, "o"),
        ("PegasusX", BART | {"block_size": 4, "num_global_tokens": 3}, "out_proj"),
        ("BigBirdPegasus", BART | BLOCKS, "output"),
    ],
)
def test_a_head_that_is_off_adds_nothing(name: str, settings: dict[str, Any], output: str) -> None:
    model = built(name, "ForConditionalGeneration", **settings)
    given = {"input_ids": ids(23), "decoder_input_ids": ids(3)}
    plain = model(**given).logits
    with intervene(model, heads={0: [0], 1: [1]}, attention="encoder"):
        ours = model(**given).logits

    def hook(head: int) -> Any:
        def zero(_: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            columns = torch.arange(16) // 8 != head
            return (args[0] * columns,)

        return zero

    attending = [
        part for part in model.get_encoder().modules() if hasattr(part, output) and "Attention" in type(part).__name__
    ]
    for number, part in enumerate(attending):
        getattr(part, output).register_forward_pre_hook(hook(number))
    assert (ours - model(**given).logits).abs().max() < 1e-6 < (ours - plain).abs().max()


def test_an_edge_that_is_cut_and_gradients() -> None:
    """The other keys share the row; gradients are those of the model alone."""
    model = built("LongT5", "ForConditionalGeneration", **T5)
    given = {"input_ids": ids(11), "decoder_input_ids": ids(3)}
    with capture(model, layer=0, attention="encoder") as plain:
        model(**given)
    with intervene(model, edges=[(4, 2)], attention="encoder"), capture(model, layer=0, attention="encoder") as cut:
        model(**given)
    expected = plain[0].weights.double().numpy().copy()
    expected[:, :, 4, 2] = 0
    expected[:, :, 4] /= expected[:, :, 4].sum(-1, keepdims=True)
    assert np.abs(cut[0].weights.numpy() - expected).max() < 1e-6
    weight = model.encoder.block[0].layer[0].LocalSelfAttention.q.weight
    with torch.enable_grad():
        model(**given).logits.square().sum().backward()
        alone, weight.grad = weight.grad, None
        with capture(model, layer=0, attention="encoder", grad=True) as traces:
            answer = model(**given).logits
        answer.square().sum().backward()
    assert alone is not None and weight.grad is not None and traces[0].weights.grad is not None
    assert (weight.grad - alone).abs().max() < 1e-4 * alone.abs().max()


def test_what_is_drawn_at_random_in_training_is_refused() -> None:
    model = built(
        "BigBirdPegasus", "ForConditionalGeneration", **BART | BLOCKS | dict.fromkeys(("dropout",), 0.0)
    ).train()
    with (
        torch.enable_grad(),
        pytest.raises(AttnctlError, match=r"picks its blocks at random in training mode: call model\.eval\(\)"),
        capture(model, attention="encoder", grad=True),
    ):
        model(input_ids=ids(24), decoder_input_ids=ids(3))
    model = built("LongT5", "ForConditionalGeneration", **T5).train()
    with torch.enable_grad(), pytest.raises(AttnctlError, match="drops weights"), capture(model, grad=True):
        model(input_ids=ids(11), decoder_input_ids=ids(3))


@pytest.mark.parametrize("kind", ["neomme", "zaya"])
def test_a_part_of_a_module_that_was_seen_is_not_missing(kind: str) -> None:
    """A module named after attention that only projects, or follows it."""
    model = families.build(Family(kind, "base"))
    with capture(model) as traces:
        model(input_ids=torch.arange(5, 16)[None])
    assert len(traces) and traces.unseen == ""
