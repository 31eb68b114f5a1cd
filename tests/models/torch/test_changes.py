"""Interventions and gradients in any torch module, against models that compute the change explicitly."""

import math
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import attnctl
from tests.models.torch.less_usual import LESS_USUAL
from tests.models.torch.test_written_by_hand import EXACT, built, texts
from tests.models.torch.written_by_hand import (
    CAUSAL,
    MODELS,
    B,
    Chunked,
    ChunkedFused,
    Cross,
    D,
    Fused,
    H,
    N,
    Plain,
    Sink,
    Written,
    explicit,
)


class Changeable(Written):
    """Causal attention that can hide keys before the softmax, and replace contexts: the explicit computation."""

    fused = False
    hidden: torch.Tensor | None = None
    replaced: dict[int, object] = {}

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        mask = CAUSAL.expand(H, N, N) if self.hidden is None else CAUSAL & ~self.hidden
        if self.fused:
            context = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = (q @ k.mT / math.sqrt(D // H)).masked_fill(~mask, -math.inf)
            self.weights = self.drop(scores.softmax(-1))
            context = self.weights @ v
        self.context = context
        for head, by in self.replaced.items():
            new = context[:, head].mean(1, keepdim=True).expand(-1, N, -1) if isinstance(by, str) else by
            context = torch.cat(
                [context[:, :head], (torch.zeros_like(context[:, head]) + new)[:, None], context[:, head + 1 :]], 1
            )
        return self.joined(context)


@pytest.mark.parametrize("fused", [False, True])
def test_edges_are_cut_before_the_softmax(fused: bool) -> None:
    model, explicit = built(Changeable), built(Changeable)
    model.fused = fused
    explicit.hidden = torch.zeros(H, N, N, dtype=torch.bool)
    explicit.hidden[1, 3, 1] = explicit.hidden[1, 4, 0] = True
    with attnctl.intervene(model, edges=[(3, 1), (-1, 0)], edge_heads=1), attnctl.capture(model) as traces:
        changed = model(texts())
    assert (changed - explicit(texts())).abs().max() < EXACT
    assert (changed - model(texts())).abs().max() > 1e-3
    assert (traces[0].weights - explicit.weights).abs().max() < EXACT


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("how", ["zero", "mean", "given mean", "resample"])
def test_heads_are_replaced(how: str, fused: bool) -> None:
    model, explicit = built(Changeable), built(Changeable)
    model.fused = fused
    reference = {"given mean": torch.randn(H, D // H), "resample": torch.randn(H, N, D // H)}.get(how)
    explicit.replaced = {2: {"zero": 0.0, "mean": "mean"}.get(how) if reference is None else reference[2]}
    by_layer = None if reference is None else {0: reference}
    with attnctl.intervene(model, heads={0: -1}, how=how.rpartition(" ")[2], reference=by_layer):
        changed = model(texts())
    assert (changed - explicit(texts())).abs().max() < EXACT
    assert torch.equal(model(texts()), built(Changeable)(texts())) or fused


def test_a_query_that_loses_its_only_key_sees_itself() -> None:
    model = built(Changeable)
    with attnctl.intervene(model, edges=[(0, 0), (1, 0), (1, 1)]), attnctl.capture(model) as traces:
        model(texts())
    assert (traces[0].weights[:, :, 0, 0] == 1).all()
    assert (traces[0].weights[:, :, 1, 1] == 1).all()


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind.__name__ not in ("FusedUpperLeft",)])
def test_every_model_can_lose_its_first_head(kind: type[Written]) -> None:
    """With head 0 off, the same model gives what it gives when the values of that head are 0 (a projection's bias aside)."""
    model = built(kind)
    with attnctl.capture(model, keep=["context"]) as traces:
        model(texts())
    kinds = {call.kind for call in traces}
    with (
        attnctl.intervene(model, heads={0: 0}, attention=kinds.pop()),
        attnctl.capture(model, keep=["context"]) as changed,
    ):
        model(texts())
    assert (changed[0].context[:, 0] == 0).all()
    assert torch.equal(changed[0].context[:, 1:], traces[0].context[:, 1:])
    assert torch.equal(changed[0].weights, traces[0].weights)


def test_edges_of_a_sink_and_of_another_text() -> None:
    model = built(Sink)
    with attnctl.intervene(model, edges=[(2, 1)]), attnctl.capture(model) as traces:
        model(texts())
    whole = model.expected[0]
    share = whole[:, :, 2] / (1 - whole[:, :, 2, 1:2])  # the sink keeps its part of what is left
    share[..., 1] = 0
    assert (traces[0].weights[:, :, 2] - share).abs().max() < EXACT
    model = built(Cross)
    with attnctl.intervene(model, edges=[(0, -1)], attention="cross"), attnctl.capture(model) as traces:
        model(texts())
    whole = model.expected[0]
    share = whole[:, :, 0] / (1 - whole[:, :, 0, -1:])
    share[..., -1] = 0
    assert (traces[0].weights[:, :, 0] - share).abs().max() < EXACT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": {3: 0}}, "layer=3"),
        ({"heads": {0: 9}}, "heads=9"),
        ({"heads": {-1: 0}}, "count from 0"),
        ({"edges": [(1, 0)], "layer": 2}, "layer=2"),
    ],
)
def test_what_does_not_exist_is_refused(arguments: dict, message: str) -> None:
    model = built(Plain)
    with pytest.raises(attnctl.AttnctlError, match=message), attnctl.intervene(model, **arguments):
        model(texts())


# --- gradients ---


@pytest.mark.parametrize("kind", [*MODELS, *LESS_USUAL])
def test_gradients_of_the_weights(kind: type[Written]) -> None:
    """Output and parameters have the gradients that they have without a capture, and the weights have one of their own."""
    model = built(kind)
    torch.manual_seed(0)  # a model may draw numbers in its forward
    (model(texts()) ** 2).sum().backward()
    plain = {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}
    model.zero_grad()
    torch.manual_seed(0)
    with attnctl.capture(model, grad=True) as traces:
        output = model(texts())
    (output**2).sum().backward()
    for name, part in model.named_parameters():
        if part.grad is not None:
            assert (part.grad - plain[name]).abs().max() < 1e-4 * max(1.0, float(plain[name].abs().max()))
    assert traces[0].weights.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", [Chunked, ChunkedFused])
def test_the_gradient_of_weights_that_come_in_parts(kind: type[Written]) -> None:
    """Through the model, and through a loss on the weights themselves."""
    model = built(kind)
    with attnctl.capture(model, grad=True) as traces:
        output = model(texts())
    ((output**2).sum() + (traces[0].weights[..., 0] ** 2).sum()).backward()
    q, k, v = map(model.split, model.projected(texts()))
    weights = (q @ k.mT / math.sqrt(D // H)).softmax(-1)
    weights.retain_grad()
    ((model.joined(weights @ v) ** 2).sum() + (weights[..., 0] ** 2).sum()).backward()
    assert (traces[0].weights.grad - weights.grad).abs().max() < EXACT * max(1.0, float(weights.grad.abs().max()))


@pytest.mark.parametrize("kind", [Plain, Chunked])
def test_weights_with_gradients_are_freed_with_their_traces(kind: type[Written]) -> None:
    model = built(kind)
    with attnctl.capture(model, grad=True) as traces:
        output = model(texts())
    output.sum().backward()
    weights = weakref.ref(traces[0].weights)
    del traces, output
    assert weights() is None


def test_gradients_in_a_checkpoint_are_refused() -> None:
    model = built(Plain)
    with pytest.raises(attnctl.AttnctlError, match="in a gradient checkpoint"), attnctl.capture(model, grad=True):
        checkpoint(model, texts(), use_reentrant=False)


def test_the_gradient_of_the_weights_is_that_of_autograd() -> None:
    model, explicit = built(Changeable).train(), built(Changeable).train()
    torch.manual_seed(5)
    with attnctl.capture(model, grad=True, head=[0, 2], rows=[1, 4]) as traces:
        output = model(texts())
    (output**2).sum().backward()
    torch.manual_seed(5)
    q, k, v = map(explicit.split, explicit.projected(texts()))
    weights = (q @ k.mT / math.sqrt(D // H)).masked_fill(~CAUSAL, -math.inf).softmax(-1)
    weights.retain_grad()
    (explicit.joined(explicit.drop(weights) @ v) ** 2).sum().backward()
    expected = weights.grad[:, [0, 2]][:, :, [1, 4]]
    assert (traces[0].weights.grad - expected).abs().max() < EXACT * max(1.0, float(expected.abs().max()))


def test_gradients_of_a_frozen_model() -> None:
    model = built(Fused).requires_grad_(False)
    with attnctl.capture(model, grad=True) as traces:
        (model(texts()) ** 2).sum().backward()
    assert traces[0].weights.grad.abs().sum() > 0


def test_dropout_in_a_kernel_is_refused() -> None:
    class Dropped(Fused):
        def forward(self, x):
            return functional.scaled_dot_product_attention(*map(self.split, self.projected(x)), dropout_p=0.5)

    with (
        pytest.raises(attnctl.AttnctlError, match="random numbers"),
        attnctl.capture(model := built(Dropped), grad=True),
    ):
        model(texts())
    with attnctl.capture(model) as traces:
        model(texts())
    assert (traces[0].weights.sum(-1) - 1).abs().max() < EXACT  # before dropout
    assert traces[0].error is None  # which hides the kernel's own weights


# --- with and without transformers ---


def test_a_module_that_holds_a_transformers_model_uses_both_ways() -> None:
    from transformers import BertConfig, BertModel

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            config = BertConfig(
                hidden_size=D, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=9
            )
            self.encoder, self.head = BertModel(config), Plain()

        def forward(self, ids):
            return self.head(self.encoder(ids).last_hidden_state)

    torch.manual_seed(0)
    model = Both().eval()
    model.encoder.set_attn_implementation("eager")
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    with attnctl.capture(model) as traces:
        model(ids)
    attentions = model.encoder(ids, output_attentions=True).attentions
    assert [(call.layer, call.way) for call in traces] == [(0, "interface"), (1, "interface"), (2, "softmax")]
    assert traces[0].name.startswith("encoder.")
    for call, expected in zip(traces, [*attentions, model.head.expected[-1]], strict=True):
        assert (call.weights - expected).abs().max() < EXACT
    assert "2 through transformers' attention interface" in traces.report
    assert traces.trace(list("abcde")).model.n_layers == 3
    with pytest.raises(attnctl.AttnctlError, match="give that part, .encoder"), attnctl.intervene(model, heads={0: 0}):
        pass


class PromptedAttention(nn.Module):
    """Wraps an attention of transformers, and lets its queries look at a prompt, too (AdaptionPrompt of peft 0.21.2)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.prompt = inner, nn.Parameter(torch.randn(1, 3, 16))
        self.expected: list[torch.Tensor] = []

    def forward(self, hidden_states, **keywords):
        output, *others = self.inner(hidden_states, **keywords)
        q, k, v = (layer(x) for layer, x in zip(self.layers(), (hidden_states, self.prompt, self.prompt), strict=True))
        self.expected.append(explicit(q, k, 2))
        q, k, v = (x.view(1, -1, 2, 8).transpose(1, 2) for x in (q, k, v))
        context = (q @ k.mT / math.sqrt(8)).softmax(-1) @ v
        return (output + context.transpose(1, 2).reshape(output.shape), *others)

    def layers(self):
        return self.inner.query, self.inner.key, self.inner.value


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_module_that_wraps_attention_of_transformers_and_attends_itself(is_inside: bool) -> None:
    """It was passed over without a word, since the model around it is transformers'."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=9)
    network = BertModel._from_config(config, attn_implementation="eager").eval()
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    for layer in network.encoder.layer:
        layer.attention.self = PromptedAttention(layer.attention.self)
    model = nn.Sequential(network) if is_inside else network
    inner = []
    for layer in network.encoder.layer:
        layer.attention.self.inner.register_forward_hook(lambda _, __, output: inner.append(output[1]))
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(ids)
    with torch.no_grad():
        inner.clear()
        model(ids)
    assert [(call.kind, call.layer) for call in traces] == [("self", 0), ("cross", 0), ("self", 1), ("cross", 1)]
    prompted = [layer.attention.self.expected[0] for layer in network.encoder.layer]
    for call, expected in zip(traces, [inner[0], prompted[0], inner[1], prompted[1]], strict=True):
        assert (call.weights - expected).abs().max() < EXACT


WITHOUT = """
import sys
sys.modules["transformers"] = None
import attnctl, torch
from tests.models.torch.written_by_hand import Plain, N, B, D
model, x = Plain().eval(), torch.randn(B, N, D)
with attnctl.intervene(model, heads={0: 0}), attnctl.capture(model) as traces:
    model(x)
log = attnctl.AttentionLog({"x": x}, every=1)
log.measure(model, 0)
print(len(traces), len(log.history), sorted(log.history[0]))
"""


def test_without_transformers() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "1 3 ['entropy', 'head', 'kind', 'layer', 'max_logit', 'sink', 'step']\n"


def test_the_log_measures_any_module() -> None:
    model = built(Plain)
    log = attnctl.AttentionLog({"x": texts()})
    log.measure(model, 7)
    expected = model.expected[-1]
    entropy = -(expected * expected.log()).sum(-1).mean((0, 2))
    sink = expected[:, :, 1:, 0].mean((0, 2))
    with torch.no_grad():
        q, k, _ = map(model.split, model.projected(texts()))
    largest = (q @ k.mT / math.sqrt(D // H)).amax((0, 2, 3))
    for head, row in enumerate(log.history):
        assert (row["step"], row["layer"], row["head"]) == (7, 0, head)
        assert row["entropy"] == pytest.approx(float(entropy[head]), abs=1e-5)
        assert row["sink"] == pytest.approx(float(sink[head]), abs=1e-6)
        assert row["max_logit"] == pytest.approx(float(largest[head]), abs=1e-5)
    assert B == 2


def test_a_transformers_model_outside_the_interface_is_read_as_any_module() -> None:
    from transformers import FalconConfig, FalconModel

    torch.manual_seed(0)
    config = FalconConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, vocab_size=30)
    config.bos_token_id = config.eos_token_id = 0
    model, ids = FalconModel._from_config(config, attn_implementation="sdpa").eval(), torch.arange(2, 8)[None]
    with attnctl.capture(model) as traces:
        model(ids)
    eager = FalconModel._from_config(config, attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    attentions = eager(ids, output_attentions=True).attentions
    assert {call.way for call in traces} == {"kernel"}
    for call, expected in zip(traces, attentions, strict=True):
        assert (call.weights - expected).abs().max() < EXACT
