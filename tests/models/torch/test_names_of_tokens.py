"""Which tokens the rows and columns of a captured attention stand for: parts of a text, tokens in another order, mixtures."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import attnctl
from attnctl.api.captures import Captures
from attnctl.errors import UsageError
from attnctl.layer.interventions import Intervention
from attnctl.models.torch.module_model import ModuleModel
from tests.conftest import Run
from tests.models.torch.test_written_by_hand import EXACT, built
from tests.models.torch.written_by_hand import D, H, Written, explicit, softmax64
from tests.models.torch.written_by_strangers import d, in_heads

N = 8
ORDER = torch.tensor([3, 0, 7, 1, 6, 2, 5, 4])
FACTOR = 1 / math.sqrt(d)


def texts() -> torch.Tensor:
    return torch.randn(2, N, D, generator=torch.Generator().manual_seed(1))


def captured(model: nn.Module) -> Captures:
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(texts())
    assert not traces.unseen
    return traces


# --- a part of the queries at a time ---


class Parts(Written):
    """Each part looks at all keys."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expected.append(explicit(q, k, H))
        q, k, v = map(self.split, (q, k, v))
        return self.joined(torch.cat(self.parts(q * FACTOR, k, v), 2))

    def look(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v


class Blocks(Parts):
    def parts(self, q, k, v):
        blocks = q.reshape(*q.shape[:2], 4, 2, -1)
        return [self.look(blocks[:, :, i], k, v) for i in range(4)]


class BlocksFirst(Parts):
    def parts(self, q, k, v):
        return [self.look(block, k, v) for block in q.unflatten(2, (4, 2)).permute(2, 0, 1, 3, 4)]


class BlocksFused(Parts):
    def parts(self, q, k, v):
        blocks = q.unflatten(2, (4, 2)).unbind(2)
        return [functional.scaled_dot_product_attention(block, k, v, scale=1.0) for block in blocks]


class PartsOfScores(Parts):
    def parts(self, q, k, v):
        return [scores.softmax(-1) @ v for scores in (q @ k.mT).split(3, 2)]


class PartsOfWeights(Parts):
    def parts(self, q, k, v):
        return [weights @ v for weights in (q @ k.mT).softmax(-1).split(3, 2)]


class RowByNumber(Parts):
    def parts(self, q, k, v):
        return [self.look(q[:, :, i, None], k, v) for i in range(N)]


class RowByRow(Parts):
    def parts(self, q, k, v):
        return [self.look(row.unsqueeze(2), k, v) for row in q.unbind(2)]


class RowSelected(Parts):
    def parts(self, q, k, v):
        return [self.look(q.select(2, i).unsqueeze(2), k, v) for i in range(N)]


class PartsByList(Parts):
    def parts(self, q, k, v):
        return [self.look(q[:, :, [i, i + 1]], k, v) for i in range(0, N, 2)]


@pytest.mark.parametrize("kind", Parts.__subclasses__())
def test_parts_of_the_queries_are_joined(kind: type[Parts]) -> None:
    model = built(kind)
    (call,) = captured(model)
    assert (call.kind, call.rows, call.unnamed) == ("self", None, None)
    assert (call.weights - model.expected[-1]).abs().max() < EXACT


def test_a_part_alone_has_its_own_rows() -> None:
    class Last(Parts):
        def parts(self, q, k, v):
            return [self.look(q[:, :, [-3, -2, -1]], k, v)]

    (call,) = captured(model := built(Last))
    assert (call.kind, call.rows) == ("self", (5, 6, 7))
    assert (call.weights - model.expected[-1][:, :, 5:]).abs().max() < EXACT


class ClassAttention(Written):
    """The first token, which is a parameter, looks at all (CaiT, XCiT in timm 1.0.31)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, 1, D))

    def forward(self, x):
        x, first = self.out(x), self.first.expand(len(x), -1, -1)
        for _ in range(2):
            x = torch.cat([first, x[:, -N:]], 1)
            q, k, v = self.q(x[:, 0]).unsqueeze(1), self.k(x), self.v(x)
            self.expect(q, k)
            q, k, v = map(self.split, (q, k, v))
            first = first + self.joined(functional.scaled_dot_product_attention(q, k, v))
        return first


def test_a_token_that_looks_at_all_has_its_own_row() -> None:
    """The first layer was cross attention, and in the second the row stood for the last token."""
    traces = captured(model := built(ClassAttention))
    assert [(call.kind, call.layer, call.rows) for call in traces] == [("self", 0, (0,)), ("self", 1, (0,))]
    for call, expected in zip(traces, model.expected, strict=True):
        assert (call.weights - expected).abs().max() < EXACT
    trace = traces.trace(["CLS", *"abcdefgh"])
    assert [[trace.tokens[row].text for row in layer.rows] for layer in trace.layers] == [["CLS"], ["CLS"]]


def test_keys_that_are_taken_from_a_stack_are_no_part_of_them() -> None:
    """As those of several pictures, each with a softmax of its own (diffusers' IP-Adapter)."""

    class Pictures(Written):
        def forward(self, x):
            pictures = torch.stack([self.out(x), self.out(x.flip(0))], 1)
            q, parts = self.split(self.q(x)), []
            for i in range(2):
                k, v = self.k(pictures[:, i]), self.v(pictures[:, i])
                self.expect(self.q(x), k)
                parts.append((q @ self.split(k).mT * FACTOR).softmax(-1) @ self.split(v))
            return self.joined(sum(parts))

    traces = captured(model := built(Pictures))
    for call, expected in zip(traces, model.expected, strict=True):
        assert (call.weights - expected).abs().max() < EXACT


# --- tokens in another order ---


class EverySecond(Parts):
    """No part: the second row is token 2."""

    def parts(self, q, k, v):
        self.expected[-1] = self.expected[-1][:, :, ::2]
        return [self.look(q[:, :, ::2], k, v)]


class Backwards(Parts):
    def parts(self, q, k, v):
        self.expected[-1] = self.expected[-1].flip(2)
        return [self.look(q.flip(2), k, v)]


class Picked(Parts):
    def parts(self, q, k, v):
        self.expected[-1] = self.expected[-1][:, :, ORDER]
        return [functional.scaled_dot_product_attention(q.index_select(2, ORDER), k, v, scale=1.0)]


@pytest.mark.parametrize("kind", [EverySecond, Backwards, Picked])
def test_queries_in_another_order_have_numbers(kind: type[Parts]) -> None:
    traces = captured(model := built(kind))
    (call,) = traces
    assert call.kind == "cross" and call.unnamed.queries and not call.unnamed.keys
    assert (call.weights - model.expected[-1]).abs().max() < EXACT
    names = list("abcdefgh")
    with pytest.raises(UsageError, match="queries in the root were taken by an index"):
        traces.trace(names[: len(call.weights[0, 0])])
    trace = traces.trace(key_tokens=names)
    assert [token.text for token in trace.tokens] == [str(i) for i in range(call.weights.shape[2])]
    assert any("The queries in the root were taken by an index" in note for note in trace.notes)


class Clustered(Written):
    """Each head orders queries and keys by themselves, and puts what they saw back (routing-transformer 1.6.1)."""

    windows = 1

    def forward(self, x):
        q, k, v = self.projected(x)
        of_queries, of_keys = (in_heads(part).sum(-1).argsort(-1) for part in (q, k))
        wide = [torch.stack([part[:, h].gather(1, places[:, h, :, None].expand(-1, -1, d)) for h in range(H)], 1)
                for part, places in ((in_heads(q), of_queries), (in_heads(k), of_keys))]  # fmt: skip
        a, b = (part.unflatten(2, (self.windows, -1)) for part in wide)
        self.expected.append(softmax64(a @ b.mT * FACTOR).transpose(1, 2).flatten(0, 1))  # windows are items
        q, k, v = map(self.split, (q, k, v))
        q, k, v = (
            part.gather(2, places.unsqueeze(-1).expand(-1, -1, -1, d)).unflatten(2, (self.windows, -1))
            for part, places in ((q, of_queries), (k, of_keys), (v, of_keys))
        )
        context = ((q @ k.mT * FACTOR).softmax(-1) @ v).flatten(2, 3)
        return self.joined(self.back(context, of_queries))

    def back(self, context, places):
        return torch.zeros_like(context).scatter_add(2, places.unsqueeze(-1).expand(-1, -1, -1, d), context)


class ClusteredInWindows(Clustered):
    windows = 2


class BackByIndex(Clustered):
    def back(self, context, places):
        return context.gather(2, places.argsort(-1).unsqueeze(-1).expand(-1, -1, -1, d))


class BackByKeywords(Clustered):
    def back(self, context, places):
        index = places.unsqueeze(-1).expand(-1, -1, -1, d)
        return torch.zeros_like(context).scatter_(dim=2, index=index, src=context)


class BackAdded(Clustered):
    """All heads have one order."""

    def forward(self, x):
        q, k, v = (part[:, ORDER] for part in self.projected(x))
        self.expected.append(explicit(q, k, H))
        q, k, v = map(self.split, (q, k, v))
        context = (q @ k.mT * FACTOR).softmax(-1) @ v
        return self.joined(torch.zeros_like(context).index_add(2, ORDER, context))


class BackAlongDim(Clustered):
    def back(self, context, places):
        return context.take_along_dim(places.argsort(-1)[..., None], dim=2)


class Layers(nn.Module):
    """A layer of sorted tokens, and one of all tokens on what it gave."""

    def __init__(self, kind: type[Written]) -> None:
        super().__init__()
        self.sorted, self.plain = kind(), Parts()
        self.plain.parts = lambda q, k, v: [self.plain.look(q, k, v)]

    def forward(self, x):
        return self.plain(self.sorted(x))


@pytest.mark.parametrize("kind", [Clustered, ClusteredInWindows, BackByIndex, BackByKeywords, BackAdded, BackAlongDim])
def test_tokens_that_are_put_back_have_their_names_again(kind: type[Written]) -> None:
    torch.manual_seed(0)
    model = Layers(kind).eval()
    clustered, plain = captured(model)
    assert clustered.kind == ("self" if kind is BackAdded else "cross")
    assert clustered.unnamed.queries and clustered.unnamed.keys
    assert (clustered.weights - model.sorted.expected[-1]).abs().max() < EXACT
    assert (plain.kind, plain.unnamed) == ("self", None)
    assert (plain.weights - model.plain.expected[-1]).abs().max() < EXACT
    trace = plain.trace(list("abcdefgh"))
    assert not any("taken by an index" in note for note in trace.notes)


def test_kept_tokens_look_at_each_other_without_names() -> None:
    """Queries and keys are the same tokens, in the same order."""

    class Kept(Written):
        def forward(self, x):
            x = self.out(x)
            best = x.sum(-1).topk(4, -1).indices
            x = x[torch.arange(2)[:, None], best]
            q, k, v = self.projected(x)
            self.expected.append(explicit(q, k, H))
            q, k, v = map(self.split, (q, k, v))
            return self.joined((q @ k.mT * FACTOR).softmax(-1) @ v)

    traces = captured(model := built(Kept))
    assert traces[0].kind == "self" and (traces[0].weights - model.expected[-1]).abs().max() < EXACT
    trace = traces.trace()
    assert [token.text for token in trace.tokens] == list("0123")
    assert any("Queries and keys in the root were taken by an index" in note for note in trace.notes)


def test_every_second_token_is_in_order() -> None:
    """A coarser grid, as in LeViT: the tokens that are left look at each other."""

    class Coarser(Written):
        def forward(self, x):
            q, k, v = self.projected(self.out(x)[:, ::2])
            self.expected.append(explicit(q, k, H))
            q, k, v = map(self.split, (q, k, v))
            return self.joined((q @ k.mT * FACTOR).softmax(-1) @ v)

    traces = captured(model := built(Coarser))
    assert (traces[0].kind, traces[0].unnamed) == ("self", None)
    assert (traces[0].weights - model.expected[-1]).abs().max() < EXACT
    assert [token.text for token in traces.trace(list("aceg")).tokens] == list("aceg")


def test_a_causal_mask_of_sorted_tokens_holds() -> None:
    """The mask follows the places in the text, not those in the sorted order."""

    class Sorted(Written):
        def forward(self, x):
            x = self.out(x)
            places = x[..., 0].argsort(-1)
            q, k, v = map(self.split, self.projected(x.gather(1, places[..., None].expand_as(x))))
            sees = (places[:, :, None] >= places[:, None])[:, None]
            y = ((q @ k.mT).masked_fill(~sees, -1e9).softmax(-1) @ v).transpose(1, 2).flatten(2)
            return torch.zeros_like(y).scatter(1, places[..., None].expand_as(y), y)

    found = attnctl.mask(built(Sorted), texts(), expect="causal")
    assert found.holds and len(found.groups) == 2


def test_an_index_that_takes_nothing_is_no_error() -> None:
    class Empty(Parts):
        def parts(self, q, k, v):
            nothing = [q[:, :, []], q.index_select(2, ORDER[:0]), q.flip(2)[:, :, :0], q[:, :, torch.zeros(N).bool()]]
            return [*nothing, self.look(q, torch.cat([k, k[:, :, N:]], 2), v)]

    (call,) = captured(model := built(Empty))
    assert (call.kind, call.unnamed) == ("self", None)
    assert (call.weights - model.expected[-1]).abs().max() < EXACT


def test_an_index_that_changes_no_order_changes_no_name() -> None:
    class Same(Parts):
        def parts(self, q, k, v):
            places = torch.arange(N)
            return [self.look(q[:, :, places], k.flip(2).flip(2), v.index_select(2, places))]

    (call,) = captured(model := built(Same))
    assert (call.kind, call.unnamed) == ("self", None)
    assert (call.weights - model.expected[-1]).abs().max() < EXACT


# --- mixtures of tokens ---


class Linformer(Written):
    """Wang et al. 2020, with as many mixtures as tokens, as linformer 0.2.3 writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(N, N))

    def mixed(self, x):
        return torch.einsum("bnd,nk->bkd", x, self.mix)

    def forward(self, x):
        q, k, v = self.projected(x)
        k, v = self.mixed(k), self.mixed(v)
        self.expected.append(explicit(q, k, H))
        q, k, v = map(self.split, (q, k, v))
        return self.joined(self.look(q, k, v))

    def look(self, q, k, v):
        return (q @ k.mT * FACTOR).softmax(-1) @ v


class LinformerFused(Linformer):
    def look(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v)


class LinformerOfLayers(Linformer):
    def __init__(self) -> None:
        super().__init__()
        self.mixes = nn.Linear(N, N)

    def mixed(self, x):
        return self.mixes(x.mT).mT


@pytest.mark.parametrize("kind", [Linformer, LinformerFused, LinformerOfLayers])
def test_mixtures_of_tokens_are_no_tokens(kind: type[Linformer]) -> None:
    traces = captured(model := built(kind))
    (call,) = traces
    assert (call.kind, call.unnamed.queries) == ("cross", "")
    assert (call.weights - model.expected[-1]).abs().max() < EXACT
    trace = traces.trace(list("abcdefgh"))
    assert [token.text for token in trace.key_tokens] == list("01234567")
    assert any("The keys in the root are mixtures of all tokens" in note for note in trace.notes)


# --- on the command line ---

OWN = """
import torch
from tests.models.torch.test_names_of_tokens import BackAdded, Clustered, Layers, Linformer

class Letters:
    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode()

class Reads(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attend = torch.nn.Embedding(256, 12), kind()

    def forward(self, ids):
        return self.attend(self.embed(ids))

def clustered():
    return Reads(Clustered).eval(), Letters()

def mixed():
    return Reads(Linformer).eval(), Letters()

class PlainFirst(Layers):
    def __init__(self):
        super().__init__(BackAdded)

    def forward(self, x):
        return self.sorted(self.plain(x))

def plain_first():
    return Reads(PlainFirst).eval(), Letters()
"""


@pytest.mark.parametrize(("function", "queries"), [("clustered", "01234567"), ("mixed", "abcdefgh")])
def test_the_text_names_no_tokens_in_another_order(
    function: str, queries: str, run: Run, tmp_path, monkeypatch
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert run("explain", "abcdefgh", "--model", f"own.py:{function}", "--json", "-o", "out.json").code == 0
    trace = attnctl.load("out.json")
    assert [token.text for token in trace.tokens] == list(queries)
    assert [token.text for token in trace.key_tokens] == list("01234567")
    assert any("they have numbers, not the names of tokens" in note for note in trace.notes)


def test_a_layer_of_sorted_tokens_is_not_shown_beside_the_names_of_the_text(run: Run, tmp_path, monkeypatch) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert run("explain", "abcdefgh", "--model", "own.py:plain_first", "--json", "-o", "out.json").code == 0
    trace = attnctl.load("out.json")
    assert [token.text for token in trace.tokens] == list("abcdefgh") and len(trace.layers) == 1
    assert any("Not shown: self attention of attend.sorted" in note for note in trace.notes)


def test_the_weights_of_sorted_tokens_are_not_taken_for_those_of_the_text() -> None:
    """As ablate and needle would."""

    class Vectors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.attend = nn.Embedding(9, D), Layers(BackAdded)

        def forward(self, ids):
            return self.attend(self.embed(ids))

    model = ModuleModel.of_parts(Vectors().eval(), lambda text: torch.arange(N)[None], "own")
    with pytest.raises(attnctl.AttnctlError, match="layer 0 cannot be read token by token"):
        model.weights_under(Intervention(), "a text", lambda *_: None)
