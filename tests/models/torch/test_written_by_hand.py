"""Attention that models write themselves, against an explicit softmax in float64."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import attnctl
from tests.models.torch.less_usual import LESS_USUAL, Decayed, Gated, RowByRow, SummariesInPlace
from tests.models.torch.written_by_hand import MODELS, B, D, H, N, Plain, Written
from tests.models.torch.written_by_strangers import STRANGERS

EXACT = 1e-6  # float32 against float64


def texts() -> torch.Tensor:
    return torch.randn(B, N, D, generator=torch.Generator().manual_seed(1))


def built(kind: type[Written]) -> Written:
    torch.manual_seed(0)
    return kind().eval()


@pytest.mark.grid
@pytest.mark.parametrize("kind", [*MODELS, *STRANGERS, *LESS_USUAL])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_weights_are_those_of_an_explicit_softmax(kind: type[Written], mode: str) -> None:
    model = built(kind).train(mode == "train")
    with attnctl.capture(model) as traces:
        model(texts())
    assert not traces.unseen
    assert [call.weights.shape for call in traces] == [weights.shape for weights in model.expected]
    for call, expected in zip(traces, model.expected, strict=True):
        assert (call.weights - expected).abs().max() < EXACT


@pytest.mark.grid
@pytest.mark.parametrize("kind", [*MODELS, *STRANGERS, *LESS_USUAL])
def test_capture_changes_nothing(kind: type[Written]) -> None:
    model = built(kind).train()
    torch.manual_seed(3)
    plain = model(texts())
    torch.manual_seed(3)
    with attnctl.capture(model):
        watched = model(texts())
    assert torch.equal(plain, watched)


@pytest.mark.parametrize("kind", STRANGERS)
def test_tokens_that_look_at_each_other_are_self_attention(kind: type[Written]) -> None:
    """Also where the scores are no product: distances, a network for each pair."""
    model = built(kind)
    with attnctl.capture(model) as traces:
        model(texts())
    assert {call.kind for call in traces} == {"self"}


class Turned(Plain):
    """Queries and keys are turned by a table of cosines, which a caller gives, or the module keeps."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.arange(N)[:, None] / 10.0 ** torch.arange(D // H // 2)  # (n, d / 2)
        self.plain = torch.cat([angles, angles], -1)  # no buffer
        self.in_a_dictionary = {"angles": self.plain}

    def forward(self, x, table=None, is_fused=False):
        table = table if isinstance(table, torch.Tensor) else getattr(self, table)
        table = table["angles"] if isinstance(table, dict) else table
        q, k, v = self.projected(x)
        q, k, v = (self.split(part) for part in (q, k, v))
        q, k = (self.turned(part, table) for part in (q, k))
        self.expect(*(part.transpose(1, 2).reshape(B, N, D) for part in (q, k)))
        if is_fused:
            return self.joined(functional.scaled_dot_product_attention(q, k, v))
        return self.joined((q @ k.mT / math.sqrt(D // H)).softmax(-1) @ v)

    def turned(self, part, table):
        table = table[: part.shape[-2]]
        first, second = part.chunk(2, -1)
        return part * table.cos() + torch.cat([-second, first], -1) * table.sin()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("table", ["plain", "in_a_dictionary", torch.randn(N, D // H)])
def test_queries_and_keys_that_the_same_table_turns_are_self_attention(table: str | torch.Tensor, fused: bool) -> None:
    model = built(Turned)
    for _ in range(2):
        with attnctl.capture(model) as traces:
            model(texts(), table, fused)
        assert [(call.kind, call.layer) for call in traces] == [("self", 0)]
        assert (traces[0].weights - model.expected[-1]).abs().max() < EXACT


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", [(N, D // H), (B, 1, N, D // H)])
def test_the_order_of_factors_makes_no_cross_attention(shape: tuple[int, ...], fused: bool) -> None:
    class KeysTurnedByOtherCode(Turned):
        count = 0

        def turned(self, part, table):
            self.count += 1
            if self.count % 2:  # queries
                return super().turned(part, table)
            first, second = part.chunk(2, -1)
            return table.sin() * torch.cat([-second, first], -1) + table.cos() * part

    model, table = built(KeysTurnedByOtherCode), torch.randn(shape)
    with attnctl.capture(model) as traces:
        model(texts(), table, fused)
    assert [(call.kind, call.layer) for call in traces] == [("self", 0)]
    assert (traces[0].weights - model.expected[-1]).abs().max() < EXACT


def test_two_texts_with_the_same_places_are_cross_attention() -> None:
    """Also if they are as long as each other."""

    class Reader(Plain):
        def forward(self, x, other, places):
            q, k, v = map(self.split, self.projected(x + places, other + places))
            return self.joined((q @ k.mT).softmax(-1) @ v)

    model, places = built(Reader), torch.randn(1, N, D)
    with attnctl.capture(model) as traces:
        model(texts(), torch.randn(B, N, D), places)
        model(texts(), texts(), places)
    assert [call.kind for call in traces] == ["cross", "cross"]


@pytest.mark.parametrize("embedded", ["", "x", "other", "both"])
@pytest.mark.parametrize("pooled", [False, True])
def test_two_texts_that_change_each_other_are_cross_attention(embedded: str, pooled: bool) -> None:
    class Gated(Plain):
        def forward(self, x, other):
            x = self.out(x) if embedded in ("x", "both") else x
            other = self.out(other) if embedded in ("other", "both") else other
            of_x, of_other = ((part.mean(1, keepdim=True) if pooled else part).sigmoid() for part in (x, other))
            q, k, v = self.projected(x * of_other, other * of_x)
            return self.joined((self.split(q) @ self.split(k).mT).softmax(-1) @ self.split(v))

    model = built(Gated)
    with attnctl.capture(model) as traces:
        model(texts(), torch.randn(B, N, D))
    assert [call.kind for call in traces] == ["cross"]


def test_queries_and_keys_to_which_the_same_places_are_added_are_self_attention() -> None:
    class Placed(Plain):
        def forward(self, x, places):
            q, k, v = self.q(x + places), self.k(x + places), self.v(x)
            self.expect(q, k)
            q, k, v = map(self.split, (q, k, v))
            return self.joined((q @ k.mT / math.sqrt(D // H)).softmax(-1) @ v)

    model = built(Placed)
    with attnctl.capture(model) as traces:
        model(texts(), torch.randn(1, N, D))
    assert [call.kind for call in traces] == ["self"]
    assert (traces[0].weights - model.expected[-1]).abs().max() < EXACT


@pytest.mark.parametrize("fused", [False, True])
def test_a_loop_over_texts_is_no_loop_over_queries(fused: bool) -> None:
    """Also if there are as many texts as tokens."""

    class TextByText(Plain):
        def forward(self, x):
            parts = []
            for i in range(N):
                q, k, v = self.projected(x[i : i + 1])
                self.expect(q, k)
                q, k, v = (self.split(part)[i : i + 1] for part in self.projected(x))
                weights = (q @ k.mT / math.sqrt(D // H)).softmax(-1)
                parts.append(functional.scaled_dot_product_attention(q, k, v) if fused else weights @ v)
            return self.joined(torch.cat(parts))

    model = built(TextByText)
    with attnctl.capture(model) as traces:
        model(torch.randn(N, N, D))
    assert [call.weights.shape for call in traces] == [(1, H, N, N)] * N and not traces.unseen
    for call, expected in zip(traces, model.expected, strict=True):
        assert (call.weights - expected).abs().max() < EXACT


def test_a_row_of_a_loop_looks_at_its_own_text() -> None:
    model = built(RowByRow)
    with attnctl.capture(model) as traces:
        model(texts())
    assert {call.kind for call in traces} == {"self"}


@pytest.mark.parametrize("kind", [Gated, Decayed])
def test_weights_that_are_scaled_after_the_softmax_have_a_note(kind: type[Written]) -> None:
    """The scores of a row lead to its weights only if one number scales the whole row."""
    model = built(kind)
    with attnctl.capture(model) as traces:
        model(texts())
    trace = traces.trace()
    assert any("after the softmax" in note and "less than 1" in note for note in trace.notes)
    assert np.allclose(trace.layers[0].weights.sum(-1) + trace.layers[0].sink_weights, 1, atol=1e-6)
    assert (trace.layers[0].scaled_scores is not None) == (kind is Gated)


@pytest.mark.parametrize("kind", [Gated, Decayed])
def test_a_cut_edge_leaves_the_other_weights_their_gates(kind: type[Written]) -> None:
    model = built(kind)
    with attnctl.intervene(model, edges=[(4, 0)]), attnctl.capture(model) as traces:
        model(texts())
    factor = model.gates(texts()).double() if kind is Gated else Decayed.far.double()
    shares = (model.expected[-1] / factor)[:, :, 4]  # (batch, heads, n_k)
    shares[..., 0] = 0
    expected = shares / shares.sum(-1, keepdim=True) * factor.expand(B, H, N, -1)[:, :, 4]
    assert (traces[0].weights[:, :, 4] - expected).abs().max() < EXACT


def test_parameters_that_functional_call_puts_in_are_no_activations() -> None:
    model = built(Plain)
    others = {name: part.detach() * 1.5 for name, part in model.named_parameters()}
    with attnctl.capture(model) as traces:
        torch.func.functional_call(model, others, (texts(),))
    assert not traces.unseen and (traces[0].weights - model.expected[-1]).abs().max() < EXACT


def test_a_head_is_off_in_results_that_are_divided_in_place() -> None:
    class Contexts(SummariesInPlace):
        def joined(self, x):
            return x

    model = built(Contexts)
    with torch.no_grad(), attnctl.intervene(model, heads={0: [1]}):
        context = model(texts())
    assert not context[:, 1].any() and context[:, 0].any()


def test_a_head_is_off_in_a_tensor_that_the_model_gave() -> None:
    class Into(Plain):
        def forward(self, x):
            q, k, v = map(self.split, self.projected(x))
            context = torch.empty_like(v)
            torch.matmul((q @ k.mT).softmax(-1), v, out=context)
            return context

    with torch.no_grad(), attnctl.intervene(model := built(Into), heads={0: [1]}):
        context = model(texts())
    assert not context[:, 1].any() and context[:, 0].any()


def test_memory_that_is_used_again_is_not_what_was_written_into_it_before() -> None:
    class Buffers(Plain):
        def forward(self, x, others):
            buffers = [torch.zeros(x.shape) for _ in others]
            for buffer, other in zip(buffers, others, strict=True):
                buffer[:] = other
            del buffers, buffer
            q, k, v = map(self.split, self.projected(x))
            return self.joined((q @ k.mT).softmax(-1) @ v)

    model = built(Buffers)
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(texts(), torch.randn(20, B, N, D).unbind())
    assert [call.kind for call in traces] == ["self"]


def test_copies_of_weights_that_take_turns_at_the_same_memory_are_all_seen() -> None:
    class Copies(torch.nn.Module):
        def forward(self, q, k, v):
            weights = (q @ k.mT).softmax(-1)
            return torch.cat([weights[[head]] @ v[[head]] for head in range(len(weights))])

    q, k, v = torch.randn(3, 64, 64, 4, generator=torch.Generator().manual_seed(0)).unbind()
    model = Copies()
    with torch.no_grad(), attnctl.capture(model, layer=63, keep=()) as traces:
        model(q, k, v)
    assert (traces[0].weights[0, 0] - (q[63].double() @ k[63].double().mT).softmax(-1)).abs().max() < EXACT
