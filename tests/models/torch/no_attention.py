"""Models that have a softmax and a product, and no attention of tokens: what a capture must not show, and must name."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.models.torch.written_by_hand import CAUSAL, B, D, H, N, Written


class Router(nn.Module):
    """A mixture of experts: the weights of a token's experts multiply that token's own results."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(D, 4), nn.ModuleList(nn.Linear(D, D) for _ in range(4))

    def forward(self, x):
        results = torch.stack([expert(x) for expert in self.experts], -2)
        return torch.einsum("bne,bned->bnd", self.router(x).softmax(-1), results)


class RouterByExponentials(Router):
    def forward(self, x):
        results = torch.stack([expert(x) for expert in self.experts], -2)
        shares = self.router(x).exp()
        return torch.einsum("bne,bned->bnd", shares / shares.sum(-1, keepdim=True), results)


class TopRouter(Router):
    def forward(self, x):
        results = torch.stack([expert(x) for expert in self.experts], -2)
        scores, chosen = self.router(x).topk(2, dim=-1)
        picked = results.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, D))
        return (scores.softmax(-1).unsqueeze(-1) * picked).sum(-2)


class CosineRouter(Router):
    """Experts by their similarity to a learned vector."""

    def __init__(self):
        super().__init__()
        self.directions = nn.Parameter(torch.randn(4, D))

    def forward(self, x):
        results = torch.stack([expert(x) for expert in self.experts], -2)
        weights = (functional.normalize(x, dim=-1) @ functional.normalize(self.directions, dim=-1).T).softmax(-1)
        return (weights.unsqueeze(-2) @ results).squeeze(-2)


class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(D, 8), nn.Linear(D, 8)

    def forward(self, x):
        a, b = functional.normalize(self.a(x[0]), dim=-1), functional.normalize(self.b(x[1]), dim=-1)
        logits = a @ b.T / 0.07
        labels = torch.arange(N)
        soft = -(torch.eye(N) * functional.log_softmax(logits, -1)).sum(-1).mean()
        return (
            functional.cross_entropy(logits, labels)
            + functional.cross_entropy(logits.T, labels)
            + soft
            + (logits.softmax(-1) * torch.eye(N)).sum()
        )


class SoftTargets(Contrastive):
    """A loss in which one table of similarities is the target of another."""

    def forward(self, x):
        a, b = self.a(x[0]), self.b(x[1])
        return -(functional.softmax(a @ a.T, -1) * functional.log_softmax(a @ b.T, -1)).sum(-1).mean()


class LanguageHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, D)

    def forward(self, x):
        hidden = x + self.embedding(torch.arange(N))
        return (hidden @ self.embedding.weight.T).softmax(-1) @ self.embedding.weight


class ExpectedToken(nn.Module):
    """A vocabulary's softmax, and the mean of its embedding: no learned keys and values."""

    def __init__(self):
        super().__init__()
        self.head, self.embedding = nn.Linear(D, 9), nn.Parameter(torch.randn(9, D))

    def forward(self, x):
        return self.head(x).softmax(-1) @ self.embedding


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        return self.gate(x).softmax(-1) * self.up(x)


class Gram(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(D, D)

    def forward(self, x):
        y = self.up(x)
        return (y.mT @ y).softmax(-1).diagonal(dim1=-2, dim2=-1).sum(-1)


class Streams(nn.Module):
    """Hyper-connections (Zhu et al. 2025) as hyper-connections 0.4.11 writes them: each token mixes its own streams."""

    def __init__(self):
        super().__init__()
        self.mixes = nn.ParameterList(torch.randn(D, 5) for _ in range(3))
        self.branches = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.beta = nn.Parameter(torch.randn(D))

    def weights(self, normed, mix):
        """Return how streams are mixed (batch, n, streams, 5), and what is added to each (batch, n, streams)."""
        return (normed @ mix).tanh() * 0.01 + torch.eye(4, 5), (normed @ self.beta).tanh()

    def forward(self, x):
        streams = x.repeat_interleave(4, 0)  # (batch * streams, n, d)
        for mix, branch in zip(self.mixes, self.branches, strict=True):
            apart = streams.unflatten(0, (len(x), 4)).permute(0, 2, 1, 3)  # (batch, n, streams, d)
            alpha, beta = self.weights(functional.normalize(apart, dim=-1), mix)
            mixed = torch.einsum("...st,...sd->...td", alpha, apart)
            added = torch.einsum("bnd,bns->bnsd", branch(mixed[..., 0, :]), beta)
            streams = (mixed[..., 1:, :] + added).permute(0, 2, 1, 3).flatten(0, 1)
        return streams.unflatten(0, (len(x), 4)).sum(1)


class ConstrainedStreams(Streams):
    """Manifold-constrained hyper-connections, as FTTransformer of tab-transformer-pytorch 0.6.1: rows and columns sum to 1."""

    def weights(self, normed, mix):
        alpha = normed @ mix * 0.01 + torch.eye(4, 5)
        into, between = alpha[..., :1].sigmoid(), alpha[..., 1:].exp()
        for _ in range(3):
            between = between / between.sum(-2, keepdim=True)
            between = between / between.sum(-1, keepdim=True)
        return torch.cat([into, between], -1), 2 * (normed @ self.beta).sigmoid()


class StreamsAddedUp(nn.Module):
    """Streams to which each layer adds its result, as much as a token says, and which a token reads by weights of its own."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.branch, self.into, self.read = nn.Linear(D, D), nn.Linear(D, 4), nn.Linear(D, 4)

        def forward(self, x, streams):
            streams = streams + torch.einsum("bns,bnd->bnsd", self.into(x), self.branch(x))
            return torch.einsum("bns,bnsd->bnd", self.read(x), streams), streams

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, x):
        streams = torch.zeros(1, 1, 4, D)
        for layer in self.layers:
            x, streams = layer(x, streams)
        return x


class Bilinear(nn.Module):
    """Each token's features, pair by pair, read by that token's own features: no token is summed over."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(D, 4) for _ in range(3))
        self.out = nn.Linear(16, D)

    def forward(self, x):
        a, b, c = (part(x) for part in self.parts)
        pairs = a[..., None] * b[..., None, :]
        return self.out(pairs.flatten(2)) + (pairs * c[..., None]).sum(-2).mean(-1, keepdim=True)


SILENT = [
    Streams,
    StreamsAddedUp,
    Bilinear,
    ConstrainedStreams,
    Router,
    RouterByExponentials,
    TopRouter,
    CosineRouter,
    Contrastive,
    SoftTargets,
    LanguageHead,
    ExpectedToken,
    Gate,
    Gram,
]


class OverQueries(Written):
    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        return self.joined((q @ k.mT).softmax(-2) @ v)


class Sigmoid(Written):
    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        return self.joined(torch.sigmoid(q @ k.mT) @ v)


class OverFeaturesAndTokens(Written):
    """A softmax of queries over features, and of keys over tokens (linear-attention-transformer 0.19.1)."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        context = torch.einsum("bhnd,bhne->bhde", k.softmax(-2), v)
        return self.joined(torch.einsum("bhnd,bhde->bhne", q.softmax(-1), context))


class Synthesizer(Written):
    """Tay et al. 2021: a linear layer of each token gives its weights for all places."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(D, H * N)

    def forward(self, x):
        weights = self.weights(x).view(B, N, H, N).transpose(1, 2).softmax(-1)
        return self.joined(weights @ self.split(self.v(x)))


class SynthesizerOfEachHead(Written):
    """The same with a matrix for each head: its columns are no learned keys, since they weigh the tokens of the text."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(H, D // H, N))

    def forward(self, x):
        return self.joined((self.split(x) @ self.weights).softmax(-1) @ self.split(self.v(x)))


class Outlook(Written):
    """Yuan et al. 2021 (VOLO): a linear layer of each place gives the weights within the window around it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(D, 81 * H)

    def forward(self, x):
        grid = torch.cat([x, x[:, :1]], 1).view(B, 2, 3, D)
        windows = functional.unfold(self.v(grid).permute(0, 3, 1, 2), 3, padding=1)
        windows = windows.reshape(B, H, D // H, 9, 6).permute(0, 1, 4, 3, 2)
        weights = self.weights(grid).reshape(B, 6, H, 9, 9).permute(0, 2, 1, 3, 4).softmax(-1)
        context = (weights @ windows).permute(0, 1, 4, 3, 2).reshape(B, D * 9, 6)
        return functional.fold(context, (2, 3), 3, padding=1)


class NonLocal(Written):
    """Scores divided by their number (Wang et al. 2018)."""

    def forward(self, x):
        q, k, v = self.projected(x)
        return (q @ k.mT / N) @ v


class LinearAttention(Written):
    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        return self.joined(q @ (k.mT @ v))


class EfficientAttention(Written):
    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        return self.joined(q.softmax(-1) @ (k.softmax(-2).mT @ v))


class Channels(Written):
    """Channels look at channels (XCiT)."""

    def forward(self, x):
        q, k, v = (self.split(part).mT for part in self.projected(x))
        return self.joined(((q @ k.mT).softmax(-1) @ v).mT)


class Differential(Written):
    """One softmax minus another (Ye et al. 2024)."""

    def forward(self, x):
        q, k, v = self.projected(x)
        (q1, q2), (k1, k2) = (part.view(B, N, H, 2, -1).permute(3, 0, 2, 1, 4) for part in (q, k))
        return self.joined(((q1 @ k1.mT).softmax(-1) - 0.8 * (q2 @ k2.mT).softmax(-1)) @ self.split(v))


class TalkingHeads(Written):
    """Heads are mixed after the softmax."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(H, H)

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        weights = (q @ k.mT / math.sqrt(D // H)).masked_fill(~CAUSAL, -math.inf).softmax(-1)
        return self.joined(self.mix(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v)


class TalkingHeadsByConvolution(Written):
    """The same by a convolution of 1 x 1 over the map, as x-transformers writes it."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(H, H, 1, bias=False)

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        weights = (q @ k.mT / math.sqrt(D // H)).masked_fill(~CAUSAL, -math.inf).softmax(-1)
        return self.joined(self.mix(weights) @ v)


class TalkingHeadsAtTheirStart(Written):
    """CaiT (Touvron et al. 2021) as timm 1.0.31 builds it: so small a mix that no row sums to much, or goes far below 0."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(H, H), nn.Linear(H, H)
        for layer in (self.before, self.after):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        nn.init.constant_(self.after.bias, -1e-4)

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        scores = self.before((q @ k.mT / math.sqrt(D // H)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = self.after(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.joined(weights * 0.02 @ v)


class DifferentialAtItsStart(Written):
    """One softmax minus another of nearly the same scores: no weight is below 0, and rows sum to 0.2."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        one, other = ((q @ k.mT * scale).softmax(-1) for scale in (0.01, 0.011))
        return self.joined((one - 0.8 * other) * 0.9 @ v)


class DifferentialOfManyTokens(Written):
    """One softmax minus another, of so many keys that each weight is small."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x.repeat(1, 300, 1)))
        one, other = ((q[:, :, :N] @ k.mT * scale).softmax(-1) for scale in (1.0, -1.0))
        return self.joined((one - 0.8 * other) @ v)


class Shuffled(Written):
    """Weights go through a function that is not followed."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        weights = (q @ k.mT).softmax(-1)
        return self.joined(functional.interpolate(weights, scale_factor=2)[..., ::2, ::2] @ v)


class Edges(Written):
    """GATConv and TransformerConv (PyTorch Geometric 2.8.1): a weight for each edge, by sums over the edges of a node."""

    def forward(self, x):
        q, k, v = (part[0].view(N, H, D // H) for part in self.projected(x))
        source, target = torch.tensor([[0, 1, 2, 3, 0, 2], [1, 2, 3, 0, 2, 1]])
        scores = (q[target] * k[source]).sum(-1) / math.sqrt(D // H)  # (edges, heads)
        index = target.view(-1, 1).expand_as(scores)
        top = scores.new_zeros(N, H).scatter_reduce_(0, index, scores.detach(), reduce="amax", include_self=False)
        shares = (scores - top.index_select(0, target)).exp()
        total = shares.new_zeros(N, H).scatter_add_(0, index, shares) + 1e-16
        weights = shares / total.index_select(0, target)
        messages = v[source] * weights.view(-1, H, 1)
        return messages.new_zeros(N, H, D // H).scatter_add_(0, index[..., None].expand_as(messages), messages)


class Nested(Written):
    def forward(self, x):
        q, k, v = (torch.nested.as_nested_tensor(list(part), layout=torch.jagged) for part in self.projected(x))
        heads = (part.unflatten(-1, [H, D // H]).transpose(1, 2) for part in (q, k, v))
        return functional.scaled_dot_product_attention(*heads).transpose(1, 2).to_padded_tensor(0.0)


class Divided(Written):
    """Scores above 0 are divided by a number of each text: a row may sum to less than 1, but by no sink."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        lengths = (x[:, :1, :1] * 0 + 1000)[:, None].expand(B, H, N, 1)
        return self.joined((q @ k.mT).relu() / lengths @ v)


class RowsWritten(Written):
    """Rows that are written into a tensor, each as long as its own past."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        weights = x.new_zeros(B, H, N, N)
        for i in range(N):
            weights[:, :, i, : i + 1] = (q[:, :, i : i + 1] @ k[:, :, : i + 1].mT).softmax(-1).squeeze(2)
        return self.joined(weights @ v)


class Online(Written):
    """Keys block by block, with a running maximum and sum (flash attention in Python)."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        top, total, context = q.new_full((B, H, N, 1), -math.inf), q.new_zeros(B, H, N, 1), torch.zeros_like(q)
        for keys, values in zip(k.split(2, 2), v.split(2, 2), strict=True):
            scores = q @ keys.mT
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            shares, before = (scores - new).exp(), (top - new).exp()
            total, context, top = total * before + shares.sum(-1, keepdim=True), context * before + shares @ values, new
        return self.joined(context / total)


class ExponentialsLost(Written):
    """What the sums divide is an interpolation of the products with values."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        e = (q @ k.mT).exp()
        context = functional.interpolate(e @ v, scale_factor=1.0, mode="nearest")
        return self.joined(context / e.sum(-1, keepdim=True))


class Retention(Written):
    """Sun et al. 2023, as torchscale 0.3.0 writes it: a decay in place of a softmax."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        far = (torch.arange(N)[:, None] - torch.arange(N)).clamp(min=0)
        scores = q @ k.mT * 0.9**far * CAUSAL
        return self.joined(scores / scores.sum(-1, keepdim=True).abs().clamp(min=1) @ v)


class RetentionInOneEinsum(Retention):
    """Queries, keys and the decay at once (flash-linear-attention 0.6.0)."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        decay = (0.9 ** (torch.arange(N)[:, None] - torch.arange(N))) * CAUSAL
        scores = torch.einsum("bhid,bhjd,hij->bhij", q, k, decay.expand(H, N, N))
        return self.joined(scores @ v)


class ThreeAtOnce(Written):
    """Weights, values and the output projection in one einsum."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        return torch.einsum("bhij,bhjd,hde->bie", (q @ k.mT).softmax(-1), v, self.out.weight.view(H, D // H, D))


class Mapped(Written):
    """The batch is hidden by torch.vmap."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        return self.joined(torch.vmap(torch.vmap(lambda q, k, v: (q @ k.T).softmax(-1) @ v))(q, k, v))


class Itself(Written):
    """Each token looks at itself besides."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        return self.joined(((q @ k.mT).softmax(-1) + torch.eye(N)) @ v)


class TwoParts(Written):
    """One softmax over the keys of two tables, which meet their values apart (criss-cross attention, Huang et al. 2019)."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        weights = torch.cat([q @ k.mT, q @ x.view(B, 1, N, H, -1)[:, :, :, 0].mT], -1).softmax(-1)
        return self.joined(weights[..., :N] @ v + weights[..., N:] @ x.view(B, 1, N, H, -1)[:, :, :, 0])


class OverLandmarks(Written):
    """Two tables of weights are multiplied (Xiong et al. 2021)."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        return self.joined(((q @ k[:, :, :2].mT).softmax(-1) @ (q[:, :, :2] @ k.mT).softmax(-1)) @ v)


class Nystroem(Written):
    """Xiong et al. 2021 as nystrom-attention 0.0.14 writes it: one table of weights is inverted by Newton's steps."""

    values_first = False

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        marks_q, marks_k = q[:, :, ::2], k[:, :, ::2]
        self.expect(marks_q.transpose(1, 2).flatten(2), k.transpose(1, 2).flatten(2), scale=1)
        to_marks, of_marks, from_marks = (
            (a @ b.mT).softmax(-1) for a, b in ((q, marks_k), (marks_q, marks_k), (marks_q, k))
        )
        inverse = of_marks.mT / (of_marks.sum(-1).max() * of_marks.sum(-2).max())
        eye = torch.eye(of_marks.shape[-1])
        for _ in range(6):
            both = of_marks @ inverse
            inverse = 0.25 * inverse @ (13 * eye - both @ (15 * eye - both @ (7 * eye - both)))
        if self.values_first:
            return self.joined((to_marks @ inverse) @ (from_marks @ v))
        return self.joined(((to_marks @ inverse) @ from_marks) @ v)


class Recurrent(Written):
    """Gated linear attention as flash-linear-attention 0.6.0 writes it in torch: a state that decays, token by token."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, D)

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        kept = self.split(self.gate(x)).sigmoid()
        state, out = torch.zeros(B, H, D // H, D // H), torch.zeros_like(v)
        for i in range(N):
            state = state * kept[:, :, i, :, None] + k[:, :, i, :, None] * v[:, :, i, None, :]
            out[:, :, i] = (q[:, :, i, :, None] * state).sum(-2)
        return self.joined(out)


class DeltaRule(Written):
    """Yang et al. 2024: what the state has for a key is taken off its value."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        state, results = torch.zeros(B, H, D // H, D // H), []
        for query, key, value in zip(q.unbind(2), k.unbind(2), v.unbind(2), strict=True):
            rest = value - torch.einsum("bhkv,bhk->bhv", state, key)
            state = state + key.unsqueeze(-1) * rest.unsqueeze(-2)
            results.append((query.unsqueeze(-2) @ state).squeeze(-2))
        return self.joined(torch.stack(results, 2))


class RunningSum(Written):
    """Performer's causal attention as performer-pytorch 1.1.4 writes it without CUDA."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        total = 1 / torch.einsum("...nd,...nd->...n", q, k.cumsum(-2))
        state = torch.einsum("...nd,...ne->...nde", k, v).cumsum(-3)
        return self.joined(torch.einsum("...nde,...nd,...n->...ne", state, q, total))


class LinearInOneEinsum(Written):
    """Katharopoulos et al. 2020, with the sum of the keys in the same einsum."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        total = 1 / torch.einsum("bhnd,bhd->bhn", q, k.sum(2))
        return self.joined(torch.einsum("bhnd,bhde,bhn->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v), total))


class SoftmaxInNumpy(Written):
    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        shares = np.exp((q @ k.mT).detach().numpy())
        return self.joined(torch.from_numpy(shares / shares.sum(-1, keepdims=True)) @ v)


class ValuesInNumpy(Written):
    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        return self.joined(torch.from_numpy((q @ k.mT).softmax(-1).detach().numpy() @ v.detach().numpy()))


NAMED = {
    SoftmaxInNumpy: r"leave torch \(numpy\)",
    ValuesInNumpy: "go through numpy",
    TwoParts: "only a part of the keys",
    Edges: "the edges of a graph",
    OverLandmarks: "another softmax",
    Nystroem: "another softmax",
    LinearInOneEinsum: "linear attention",
    Recurrent: "linear attention",
    DeltaRule: "linear attention",
    RunningSum: "linear attention",
    Divided: "do not sum to 1",
    RowsWritten: "a tensor that holds others",
    Online: "a part of the keys at a time",
    ExponentialsLost: "sees no division",
    Retention: "some are negative",
    RetentionInOneEinsum: "some are negative",
    OverFeaturesAndTokens: "linear attention",
    ThreeAtOnce: "an einsum of several tensors",
    Mapped: "torch.vmap",
    Itself: "changed after the softmax",
    OverQueries: "over the queries",
    Sigmoid: "do not sum to 1",
    NonLocal: "some are negative",
    SynthesizerOfEachHead: "there are no keys",
    Synthesizer: "there are no keys",
    Outlook: "there are no keys",
    LinearAttention: "linear attention",
    EfficientAttention: "linear attention",
    Channels: "channels",
    Differential: "changed after the softmax",
    TalkingHeads: "a mix of heads",
    TalkingHeadsByConvolution: "a mix of heads",
    TalkingHeadsAtTheirStart: "a mix of heads",
    DifferentialAtItsStart: r"changed after the softmax \(sub\)",
    DifferentialOfManyTokens: "changed after the softmax",
    Shuffled: "interpolate",
    Nested: "nested",
}
