"""torch's own modules of attention, against the weights that they return and an explicit softmax of their parameters."""

import math
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

import attnctl
from attnctl.errors import AttnctlError
from tests.models.torch.test_written_by_hand import EXACT, built, texts
from tests.models.torch.written_by_hand import CAUSAL, PADDED, B, D, H, N, Plain, Written, explicit, softmax64

MASKS = {
    "none": {},
    "padding": {"key_padding_mask": ~PADDED},
    "causal": {"attn_mask": ~CAUSAL},
    "numbers": {"attn_mask": torch.linspace(-3, 3, N * N).reshape(N, N)},
    "each head": {"attn_mask": torch.linspace(-3, 3, B * H * N * N).reshape(B * H, N, N)},
}


def projected(module: nn.MultiheadAttention, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries and keys of in_proj, by hand: x, y (batch, n, d)."""
    weight, bias = module.in_proj_weight, module.in_proj_bias
    return x @ weight[:D].T + bias[:D], y @ weight[D : 2 * D].T + bias[D : 2 * D]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_multihead_attention(mask: str, batch_first: bool, need_weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(D, H, batch_first=batch_first).eval()
    nn.init.normal_(module.in_proj_bias)
    x = texts()
    inputs = x if batch_first else x.transpose(0, 1)
    with attnctl.capture(module) as traces:
        _, returned = module(
            inputs, inputs, inputs, need_weights=need_weights, average_attn_weights=False, **MASKS[mask]
        )
    hidden, bias = MASKS[mask].get("key_padding_mask"), MASKS[mask].get("attn_mask")
    visible = None if hidden is None else ~hidden[:, None, None]
    if bias is not None:
        visible, bias = (
            (~bias, None) if bias.dtype == torch.bool else (None, bias.reshape(-1, H, N, N) if bias.ndim > 2 else bias)
        )
    expected = explicit(*projected(module, x, x), H, mask=visible, bias=bias)
    (call,) = traces
    assert call.kind == "self"
    assert (call.weights - expected).abs().max() < EXACT
    assert call.way == ("softmax" if need_weights else "kernel")
    if need_weights:
        assert torch.equal(call.weights, returned)
    else:
        assert call.error < EXACT


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_across_two_texts(need_weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(D, H, kdim=7, vdim=9).eval()
    x, key, value = torch.randn(3, B, D), torch.randn(N, B, 7), torch.randn(N, B, 9)
    with attnctl.capture(module) as traces:
        _, weights = module(x, key, value, average_attn_weights=False)
        module(x, key, value, need_weights=need_weights)
    assert [call.kind for call in traces] == ["cross", "cross"]
    for call in traces:
        assert (call.weights - weights).abs().max() < EXACT
    trace = traces.trace(list("abc"), key_tokens=list("vwxyz"))
    assert [token.text for token in trace.tokens] == ["a", "b", "c"]


def test_multihead_attention_with_keys_of_its_own_in_training() -> None:
    module = nn.MultiheadAttention(D, H, add_bias_kv=True, add_zero_attn=True, dropout=0.5, batch_first=True).train()
    torch.manual_seed(2)
    _, dropped = module(texts(), texts(), texts(), average_attn_weights=False)
    torch.manual_seed(2)
    with attnctl.capture(module) as traces:
        module(texts(), texts(), texts())
    weights = traces[0].weights  # before dropout, and the module returns them after it
    assert weights.shape == (B, H, N, N + 2)
    kept = dropped != 0
    assert (weights - dropped / 2)[kept].abs().max() < EXACT
    assert not kept.all()
    assert (weights.sum(-1) - 1).abs().max() < EXACT


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoder(norm_first: bool, training: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, H, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    states = []
    for block in model.layers:  # what each attention reads, from hooks of torch
        block.self_attn.register_forward_pre_hook(lambda _, args: states.append(args[0].detach()))
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(texts(), src_key_padding_mask=~PADDED)
    assert [call.name for call in traces] == ["layers.0.self_attn", "layers.1.self_attn"]
    for call, block, state in zip(traces, model.layers, states, strict=True):
        expected = explicit(*projected(block.self_attn, state, state), H, mask=PADDED[:, None, None])
        assert (call.weights - expected).abs().max() < EXACT


def test_the_fast_path_is_the_same_at_real_tokens() -> None:
    """A mode turns off torch's fast path, which leaves 0 at padded tokens."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H - 1, 16, batch_first=True), 2).eval()
    with torch.no_grad():
        with warnings.catch_warnings():  # torch's own, of nested tensors
            warnings.simplefilter("ignore")
            fast = model(texts(), src_key_padding_mask=~PADDED)
        with attnctl.capture(model):
            slow = model(texts(), src_key_padding_mask=~PADDED)
    real = PADDED[:, : fast.shape[1]]
    assert (fast[real] - slow[:, : fast.shape[1]][real]).abs().max() < EXACT * 10


def test_the_context_runs_what_the_module_runs_with_gradients() -> None:
    """Under no_grad the fast path makes a text with padding on the left NaN, and lets is_causal alone hide nothing."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x, future = torch.randn(1, 4, 8), torch.ones(4, 4).triu(1).bool()
    padded = {"mask": future, "src_key_padding_mask": torch.tensor([[True, True, False, False]])}
    right = model(x, **padded)
    with torch.no_grad():
        assert model(x, **padded).isnan().all() and model(x, is_causal=True).equal(model(x))
        with attnctl.capture(model) as traces:
            assert (model(x, **padded) - right).abs().max() < EXACT
        with pytest.raises(RuntimeError, match="Need attn_mask"), attnctl.capture(model):
            model(x, is_causal=True)
    assert traces[1].weights[0, :, 2].tolist() == [[0, 0, 1, 0]] * 2


def test_transformer_has_three_kinds_of_sites() -> None:
    model = nn.Transformer(D, 2, 1, 1, 16, batch_first=True).eval()
    with attnctl.capture(model) as traces:
        model(texts(), texts()[:, :3] + 1)
    assert [(call.kind, call.layer, call.name) for call in traces] == [
        ("self", 0, "encoder.layers.0.self_attn"),
        ("self", 1, "decoder.layers.0.self_attn"),
        ("cross", 0, "decoder.layers.0.multihead_attn"),
    ]
    with attnctl.capture(model, layer=0, stop=True) as traces:
        model(texts(), texts()[:, :3] + 1)
    assert [(call.kind, call.name) for call in traces] == [("self", "encoder.layers.0.self_attn")]
    with attnctl.capture(model, attention="cross", layer=0, stop=True) as traces:
        model(texts(), texts()[:, :3] + 1)
    assert [call.kind for call in traces] == ["cross"]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    class Flex(Written):
        def forward(self, x):
            q, k, v = self.projected(x)
            gap = torch.arange(N)[:, None] - torch.arange(N)
            self.expect(q, k, bias=-0.3 * gap, mask=gap >= 0)
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device="cpu")
            scores = lambda score, b, h, i, j: score - 0.3 * (i - j)  # noqa: E731
            return self.joined(flex_attention(*map(self.split, (q, k, v)), score_mod=scores, block_mask=mask))

    model = built(Flex)
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(texts())
    assert traces[0].way == "flex"
    assert (traces[0].weights - model.expected[0]).abs().max() < EXACT


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("kind", "is_shown"), [("none", False), ("full", False), ("each head", False), ("own", True), ("window", True)]
)
def test_blocks_that_only_the_compiled_flex_attention_goes_by(kind: str, is_shown: bool) -> None:
    """torch 2.13: an uncompiled flex_attention sees every key that mask_mod shows, whatever blocks are listed."""
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

    number = torch.tensor([[[1, 1]]], dtype=torch.int32)
    index = torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)  # a block of queries sees its own block of keys
    past = lambda b, h, i, j: i >= j  # noqa: E731
    if kind == "window":
        near = lambda b, h, i, j: (i >= j) & (i - j < 20 * (h + b + 1))  # noqa: E731
        mask = create_block_mask(near, B, H, 256, 256, device="cpu")
    elif kind == "each head":
        mask = BlockMask.from_kv_blocks(number.expand(1, H, 2), index.expand(1, H, 2, 2))
    else:
        own = {"none": None, "full": past, "own": lambda b, h, i, j: i // 128 == j // 128}[kind]
        full = (number, index) if kind == "full" else (None, None)
        mask = BlockMask.from_kv_blocks(number, index, *full, mask_mod=own)

    class Flex(Written):
        def forward(self, x):
            return self.joined(flex_attention(*map(self.split, self.projected(x)), block_mask=mask))

    model = built(Flex)
    with torch.no_grad(), nullcontext() if is_shown else pytest.raises(AttnctlError, match="blocks of its block mask"):
        with attnctl.capture(model) as traces:
            model(torch.randn(B, 256, D))
        assert len(traces) == 1 and not traces.unseen


def test_a_row_that_sees_nothing_is_0_from_the_kernel_and_nan_from_a_softmax() -> None:
    class Blind(Plain):
        fused = True

        def forward(self, x):
            q, k, v = map(self.split, self.projected(x))
            mask = CAUSAL.clone()
            mask[0, 0] = False
            if self.fused:
                return self.joined(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
            return self.joined((q @ k.mT).masked_fill(~mask, -math.inf).softmax(-1) @ v)

    model = built(Blind)
    with attnctl.capture(model) as traces:
        model(texts())
        model.fused = False
        model(texts())
    assert (traces[0].weights[:, :, 0] == 0).all()
    assert traces[1].weights[:, :, 0].isnan().all()
    assert traces.trace(step=1).layers[0].weights[:, 0].max() == 0


@pytest.mark.parametrize("kind", ["fused", "plain"])
def test_autocast(kind: str) -> None:
    class Either(Plain):
        def forward(self, x):
            q, k, v = self.projected(x)
            self.expect(q, k)
            if kind == "fused":
                return self.joined(functional.scaled_dot_product_attention(*map(self.split, (q, k, v))))
            w = (self.split(q) @ self.split(k).mT / math.sqrt(D // H)).softmax(-1)
            self.own = w
            return self.joined(w @ self.split(v))

    model = built(Either)
    with torch.autocast("cpu", torch.bfloat16), attnctl.capture(model) as traces:
        model(texts())
    assert (traces[0].weights - model.expected[0]).abs().max() < (1e-6 if kind == "fused" else 1e-2)
    if kind == "plain":
        assert torch.equal(traces[0].weights, model.own)  # the model's own tensor, to the bit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_number_types(dtype: torch.dtype) -> None:
    module = nn.MultiheadAttention(D, H, batch_first=True).to(dtype).eval()
    x = texts().to(dtype)
    with torch.no_grad(), attnctl.capture(module) as traces:
        module(x, x, x, need_weights=False)
    q, k = projected(module, x, x)
    assert (traces[0].weights - explicit(q, k, H)).abs().max() < (1e-6 if dtype == torch.float64 else 2e-2)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_is_seen_once(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Plain):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    model = built(Checkpointed)
    with attnctl.capture(model) as traces:
        model(texts().requires_grad_()).sum().backward()
    assert len(traces) == 1
    assert (traces[0].weights - model.expected[0]).abs().max() < EXACT


def test_an_exported_program() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(D, H, batch_first=True).eval()
    x = texts()
    program = torch.export.export(module, (x, x, x), {"need_weights": False}).module()
    with torch.no_grad(), attnctl.capture(program) as traces:
        program(x, x, x, need_weights=False)
    assert (traces[0].weights - explicit(*projected(module, x, x), H)).abs().max() < EXACT


def test_a_compiled_module_runs_uncompiled() -> None:
    model = built(Plain)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad(), attnctl.capture(compiled) as traces:
        compiled(texts())
    assert (traces[0].weights - model.expected[0]).abs().max() < EXACT


def test_a_cache_of_keys_names_the_last_tokens() -> None:
    class Cached(Plain):
        keys = None

        def forward(self, x):
            q, k, v = self.projected(x)
            past = self.keys
            k, v = (k, v) if past is None else (torch.cat([past[0], k], 1), torch.cat([past[1], v], 1))
            self.keys = k, v
            return self.joined(
                functional.scaled_dot_product_attention(*map(self.split, (q, k, v)), is_causal=past is None)
            )

    model = built(Cached)
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(texts()[:, :4])
        model(texts()[:, 4:])
    assert [(call.kind, call.step, call.layer) for call in traces] == [("self", 0, 0), ("self", 1, 0)]
    assert traces.trace(list("abcde"), step=1).layers[0].rows == (4,)


def test_a_buffer_as_a_cache() -> None:
    class Buffered(Plain):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(2, B, 9, D))

        def forward(self, x, start):
            q, k, v = self.projected(x)
            end = start + x.shape[1]
            self.cache[0, :, start:end] = k
            self.cache[1, :, start:end] = v
            k, v = self.cache[:, :, :end]
            w = (self.split(q) @ self.split(k).mT / math.sqrt(D // H)).softmax(-1)
            self.expect(q, k)
            return self.joined(w @ self.split(v))

    model = built(Buffered)
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(texts()[:, :4], 0)
        model(texts()[:, 4:], 4)
    for call, expected in zip(traces, model.expected, strict=True):
        assert call.kind == "self"
        assert (call.weights - expected).abs().max() < EXACT


def test_a_module_that_runs_twice_in_a_forward() -> None:
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Plain()

        def forward(self, x):
            return self.block(self.block(x))

    model = Twice().eval()
    with attnctl.capture(model) as traces:
        model(texts())
        model(texts())
    assert [(call.layer, call.recurrence, call.step) for call in traces] == [(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]


@pytest.mark.parametrize("layer", [0, -1, [1, -1], None])
def test_layers_heads_rows_and_steps(layer: object) -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D, H, 16, batch_first=True), 3, enable_nested_tensor=False
    ).eval()
    with attnctl.capture(model) as every:
        model(texts())
    with attnctl.capture(model, layer, head=[0, -1], rows=[1, -1], keep=["queries"]) as traces:
        model(texts())
    chosen = {0: [0], -1: [2], None: [0, 1, 2]}.get(layer if not isinstance(layer, list) else "list", [1, 2])
    assert [call.layer for call in traces] == chosen
    for call in traces:
        assert torch.equal(call.weights, every[call.layer].weights[:, [0, 2]][:, :, [1, 4]])
        assert torch.equal(call.queries, every[call.layer].queries[:, [0, 2]][:, :, [1, 4]])
        assert call.keys is None and call.rows == (1, 4)


def test_a_wrong_reference_fails() -> None:
    """The comparison is able to fail: another scale is another softmax."""
    model = built(Plain)
    with attnctl.capture(model) as traces:
        model(texts())
    assert (traces[0].weights - softmax64(model.expected[0].log() * 1.01)).abs().max() > EXACT


def test_a_key_under_a_large_negative_number_is_hidden() -> None:
    """Written out with -1e9: the mask of the trace is the model's own, and no statistic reads the number."""
    from tests.models.torch.faulty import DOCUMENTS, IDS, Writer, causal

    model = Writer(causal)
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(IDS, doc_ids=DOCUMENTS)
    shown = causal(8) & (DOCUMENTS[0][:, None] == DOCUMENTS[0])
    assert (traces[0].mask == shown).all()
    assert min(one.values["min_logit"] for one in attnctl.heads(traces.trace())) > -100


@pytest.mark.parametrize("zero", [False, True])
def test_keys_that_are_no_tokens_have_names(zero: bool) -> None:
    """In the order in which nn.MultiheadAttention joins them to its keys."""
    module, x = nn.MultiheadAttention(D, 2, batch_first=True, add_bias_kv=True, add_zero_attn=zero).eval(), texts()
    names = ["a", "b", "c", "d", "e"]
    added = ["[learned key]", "[key of zeros]"][: 1 + zero]
    with attnctl.capture(module) as traces:
        _, weights = module(x, x, x, average_attn_weights=False)
    trace = traces.trace(names)
    assert [token.text for token in trace.key_axis] == [*names, *added]
    assert torch.equal(torch.tensor(trace.layers[0].weights), weights[0])
    with attnctl.capture(module) as traces:
        module(x, x[:, :3], x[:, :3])
    assert [token.text for token in traces.trace(names).key_axis] == ["0", "1", "2", *added]


def test_learned_keys_before_the_tokens_have_names() -> None:
    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.Parameter(torch.randn(1, 2, D))

        def forward(self, x):
            keys = torch.cat([self.memory.expand(len(x), -1, -1), x], 1)
            return nn.functional.scaled_dot_product_attention(x, keys, keys)

    with attnctl.capture(model := Memory()) as traces:
        model(texts())
    names = [token.text for token in traces.trace(list("abcde")).key_axis]
    assert names == ["[learned key 1]", "[learned key 2]", "a", "b", "c", "d", "e"]
