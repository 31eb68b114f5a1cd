"""Attention as people write it. Each model notes the weights that it should have, by an explicit softmax in float64.

`expected` holds one (batch, heads, n_q, n_k) for each attention of a forward, in order. It is computed from queries and keys that
are cut into heads here, by indexing, whatever way the model itself takes.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

D, H, N, B = 12, 3, 5, 2  # d_model, heads, tokens, texts
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
PADDED = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)


def softmax64(scores: Tensor) -> Tensor:
    shifted = (scores - scores.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)


def explicit(q: Tensor, k: Tensor, heads: int, *, scale=None, mask=None, bias=None, sink=False) -> Tensor:
    """Return weights (batch, heads, n_q, n_k) of queries (batch, n, heads · d), with all heads side by side."""
    q, k = q.detach().double(), k.detach().double()
    d = q.shape[-1] // heads
    groups = k.shape[-1] // d
    per_head = []
    for head in range(heads):
        shared = head // (heads // groups)
        queries, keys = q[..., head * d : (head + 1) * d], k[..., shared * d : (shared + 1) * d]
        per_head.append(torch.einsum("bid,bjd->bij", queries, keys) * (1 / math.sqrt(d) if scale is None else scale))
    scores = torch.stack(per_head, 1)
    scores = scores if bias is None else scores + bias.double()
    scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
    if sink:
        return softmax64(torch.cat([scores, torch.zeros_like(scores[..., :1])], -1))[..., :-1]
    return softmax64(scores)


class Written(nn.Module):
    heads = H

    def __init__(self, kv_heads: int | None = None) -> None:
        super().__init__()
        d, kv_heads = D // self.heads, kv_heads or self.heads
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, d * kv_heads), nn.Linear(D, d * kv_heads)
        self.out = nn.Linear(D, D)
        self.drop = nn.Dropout(0.2)
        self.expected: list[Tensor] = []

    def projected(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        y = x if y is None else y
        return self.q(x), self.k(y), self.v(y)

    def expect(self, q: Tensor, k: Tensor, **options: object) -> None:
        self.expected.append(explicit(q, k, self.heads, **options))

    def split(self, x: Tensor, heads: int | None = None) -> Tensor:
        return x.view(*x.shape[:2], heads or self.heads, -1).transpose(1, 2)

    def joined(self, x: Tensor) -> Tensor:
        return self.out(x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1))


class Fused(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        return self.joined(functional.scaled_dot_product_attention(*map(self.split, (q, k, v))))


class FusedCausal(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, mask=CAUSAL)
        return self.joined(functional.scaled_dot_product_attention(*map(self.split, (q, k, v)), is_causal=True))


class FusedUpperLeft(Written):
    """3 queries on 5 keys: torch counts causality from the upper left."""

    def forward(self, x):
        q, k, v = self.projected(x[:, :3].clone() * 1.5, x)
        self.expect(q, k, mask=CAUSAL[:3])
        return self.joined(functional.scaled_dot_product_attention(*map(self.split, (q, k, v)), is_causal=True))


class FusedPadded(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, mask=PADDED[:, None, None])
        return self.joined(
            functional.scaled_dot_product_attention(*map(self.split, (q, k, v)), attn_mask=PADDED[:, None, None])
        )


class FusedBias(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        bias = torch.linspace(-2, 2, H * N * N).reshape(H, N, N)
        self.expect(q, k, bias=bias, scale=0.3)
        return self.joined(
            functional.scaled_dot_product_attention(*map(self.split, (q, k, v)), attn_mask=bias, scale=0.3)
        )


class FusedGrouped(Written):
    def __init__(self) -> None:
        super().__init__(kv_heads=1)

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = self.split(q), self.split(k, 1), self.split(v, 1)
        return self.joined(functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))


class FusedAten(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        return self.joined(torch.ops.aten.scaled_dot_product_attention.default(*map(self.split, (q, k, v))))


class FusedFolded(Written):
    """Heads folded into the batch, as (batch · heads, n, d)."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = (self.split(part).flatten(0, 1) for part in (q, k, v))
        return self.joined(functional.scaled_dot_product_attention(q, k, v).unflatten(0, (-1, H)))


class Plain(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        w = torch.softmax(self.split(q) @ self.split(k).transpose(-2, -1) / math.sqrt(D // H), -1)
        return self.joined(self.drop(w) @ self.split(v))


class PlainCausal(Written):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", CAUSAL)

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, mask=CAUSAL)
        att = (self.split(q) @ self.split(k).transpose(-2, -1)) * (1.0 / math.sqrt(D // H))
        att = att.masked_fill(self.mask[None, None, :N, :N] == 0, float("-inf"))
        att = self.drop(functional.softmax(att, dim=-1))
        return self.joined(att @ self.split(v))


class OneHead(Written):
    heads = 1

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, mask=CAUSAL)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(CAUSAL == 0, float("-inf")).softmax(dim=-1)
        return wei @ v


class TwoDimensional(Written):
    """One text without a batch axis: softmax(q @ k.T) @ v."""

    heads = 1

    def forward(self, x):
        q, k, v = self.projected(x[0])
        self.expect(q[None], k[None])
        return torch.softmax(q @ k.T / math.sqrt(D), dim=-1) @ v


class ByEinsum(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = (part.unflatten(-1, (H, -1)) for part in (q, k, v))
        w = torch.einsum("blhd,bshd->bhls", q / math.sqrt(D // H), k).softmax(-1)
        return self.out(torch.einsum("bhls,bshd->blhd", w, v).flatten(2))


class KeysTimesQueries(Written):
    """Scores are (keys, queries), and the softmax is over the first of them."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, scale=1)
        w = (self.split(k) @ self.split(q).mT).softmax(-2)
        return self.joined(w.mT @ self.split(v))


class FoldedHeads(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = (part.reshape(B, N, H, -1).permute(0, 2, 1, 3).reshape(B * H, N, -1) for part in (q, k, v))
        w = torch.bmm(q, k.transpose(1, 2)).div_(math.sqrt(D // H)).softmax(-1)
        return self.out(torch.bmm(w, v).view(B, H, N, -1).permute(0, 2, 1, 3).reshape(B, N, D))


class HeadsFirst(Written):
    """Heads folded before the batch: (heads · batch, n, d), as in the first code of "Attention is all you need"."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = (torch.cat(torch.split(part, D // H, dim=2), dim=0) for part in (q, k, v))
        w = functional.softmax(q @ k.mT / math.sqrt(D // H), -1)
        return self.out((w @ v).unflatten(0, (H, B)).permute(1, 2, 0, 3).flatten(2))


class StackedHeads(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = (torch.stack(part.chunk(H, -1)) for part in (q, k, v))
        w = functional.softmax(q @ k.mT / math.sqrt(D // H), -1)
        return self.out((w @ v).permute(1, 2, 0, 3).flatten(2))


class SequenceFirst(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = (part.transpose(0, 1).reshape(N, B * H, D // H).transpose(0, 1) for part in (q, k, v))
        w = torch.baddbmm(torch.zeros(1, N, N), q / math.sqrt(D // H), k.transpose(-2, -1)).softmax(-1)
        return self.out((w @ v).transpose(0, 1).reshape(N, B, D).transpose(0, 1))


class GroupedQueries(Written):
    """Key heads are repeated for their queries, as transformers' repeat_kv does."""

    def __init__(self) -> None:
        super().__init__(kv_heads=1)

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        k, v = (self.split(p, 1)[:, :, None].expand(B, 1, H, N, -1).reshape(B, H, N, -1) for p in (k, v))
        w = (self.split(q) @ k.transpose(2, 3) / math.sqrt(D // H)).softmax(-1, dtype=torch.float32).to(q.dtype)
        return self.joined(w @ v)


class MultiQuery(Written):
    """One key head for all queries, spread by matmul itself."""

    def __init__(self) -> None:
        super().__init__(kv_heads=1)

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        w = (self.split(q) @ self.split(k, 1).mT / math.sqrt(D // H)).softmax(-1)
        return self.joined(w @ self.split(v, 1))


class PackedGroups(Written):
    """All query heads of a key head stand in the rows of one table."""

    def __init__(self) -> None:
        super().__init__(kv_heads=1)

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q = q.view(B, N, 1, H, -1).permute(0, 2, 3, 1, 4).reshape(B, 1, H * N, -1)
        w = (q @ self.split(k, 1).mT / math.sqrt(D // H)).softmax(-1)
        return self.joined((w @ self.split(v, 1)).reshape(B, H, N, -1))


class Cross(Written):
    def forward(self, x):
        memory = x[:, :4].flip(1) + 0.5
        q, k, v = self.projected(x, memory)
        self.expect(q, k)
        w = (self.split(q) @ self.split(k).mT / math.sqrt(D // H)).softmax(-1)
        return self.joined(w @ self.split(v))


class LearnedQueries(Written):
    """Queries are a parameter: attention pooling, Perceiver, Q-Former."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(2, D))

    def forward(self, x):
        q, k, v = self.q(self.latents), self.k(x), self.v(x)
        self.expect(q.expand(B, -1, -1), k)
        q = q.view(2, H, -1).transpose(0, 1)
        w = (q @ self.split(k).mT / math.sqrt(D // H)).softmax(-1)
        return self.joined(w @ self.split(v))


class OneLearnedQuery(Written):
    heads = 1

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(D))

    def forward(self, x):
        self.expect(self.query.expand(B, 1, D), self.k(x), scale=1)
        w = (self.k(x) @ self.query).softmax(-1)
        return torch.bmm(w.unsqueeze(1), self.v(x)).squeeze(1)


class PoolingByLinear(Written):
    """A linear layer rates the tokens: sum(softmax(rate(x)) · x)."""

    heads = 1

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Linear(D, 1, bias=False)

    def forward(self, x):
        self.expect(self.rate.weight.expand(B, 1, D), x, scale=1)
        weights = functional.softmax(self.rate(x), dim=1)
        return (weights * x).sum(dim=1)


class GatedPooling(Written):
    """Gated attention over the instances of a bag (Ilse et al. 2018), without a batch."""

    heads = 1

    def forward(self, x):
        bag = x[0]
        rated = torch.tanh(self.q(bag)) * torch.sigmoid(self.k(bag))
        scores = rated @ self.v.weight[:1].T
        self.expected.append(softmax64(scores.detach().double().T)[None, None])
        a = torch.softmax(scores.transpose(1, 0), dim=1)
        return torch.mm(a, bag)


class Additive(Written):
    """Scores without a product: v · tanh(W q + U k) (Bahdanau et al. 2015)."""

    heads = 1

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(D, 1)

    def forward(self, x):
        memory = x[:, :4] * 2
        energy = self.score(torch.tanh(self.q(x).unsqueeze(2) + self.k(memory).unsqueeze(1))).squeeze(-1)
        self.expected.append(softmax64(energy.detach().double())[:, None])
        return torch.bmm(functional.softmax(energy, dim=-1), memory)


class Sink(Written):
    """A column of zeros takes a part of each row, and is sliced off after the softmax."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, sink=True)
        scores = self.split(q) @ self.split(k).mT / math.sqrt(D // H)
        scores = torch.cat([scores, torch.zeros(B, H, N, 1)], dim=-1)
        return self.joined(scores.softmax(-1)[..., :-1] @ self.split(v))


class LearnedSink(Written):
    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(H))

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, sink=True)
        scores = torch.einsum("bhid,bhjd->bhij", self.split(q), self.split(k)) * (D // H) ** -0.5
        both = torch.cat([scores, self.sinks.reshape(1, -1, 1, 1).expand(B, -1, N, -1)], dim=-1)
        both = both - both.max(dim=-1, keepdim=True).values
        return self.joined(functional.softmax(both, dim=-1)[..., :-1] @ self.split(v))


class ByExponentials(Written):
    """A softmax written out: exp, sum, division."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        scores = self.split(q) @ self.split(k).mT / math.sqrt(D // H)
        e = torch.exp(scores - scores.amax(-1, keepdim=True))
        return self.joined((e / e.sum(-1, keepdim=True)) @ self.split(v))


class ByLogSoftmax(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        scores = self.split(q) @ self.split(k).mT / math.sqrt(D // H)
        weights = functional.log_softmax(scores, -1).exp()
        self.drawn = scores.detach().numpy(), weights.detach().numpy()  # for a picture
        return self.joined(weights @ self.split(v))


class Chunked(Written):
    """A part of the queries at a time."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = map(self.split, (q, k, v))
        parts = [(part * (D // H) ** -0.5 @ k.mT).softmax(-1) @ v for part in q.split(2, dim=-2)]
        return self.joined(torch.cat(parts, -2))


class ChunkedFused(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = map(self.split, (q, k, v))
        return self.joined(
            torch.cat([functional.scaled_dot_product_attention(q[:, :, i : i + 2], k, v) for i in range(0, N, 2)], 2)
        )


class Rotary(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        angles = torch.arange(N)[:, None] / torch.tensor([1.0, 10.0])
        turned = []
        for part in (q, k):
            a, b = self.split(part).chunk(2, -1)
            turned.append(torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1))
        q, k = turned
        self.expect(*(part.transpose(1, 2).reshape(B, N, -1) for part in turned))
        return self.joined((q @ k.mT / math.sqrt(D // H)).softmax(-1) @ self.split(v))


class SoftCapped(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        d = D // H
        per_head = [
            torch.tanh(q[..., h * d : h * d + d].double() @ k[..., h * d : h * d + d].double().mT / 0.5) * 0.5
            for h in range(H)
        ]
        self.expected.append(softmax64(torch.stack(per_head, 1).detach()))
        scores = torch.tanh(self.split(q) @ self.split(k).mT / 0.5) * 0.5
        return self.joined(scores.softmax(-1) @ self.split(v))


class Windows(Written):
    """Attention within windows of a picture (Swin): each window is an item of the batch."""

    def forward(self, x):
        grid = torch.cat([x, x[:, :3]], 1).view(B, 2, 2, 2, D)
        tokens = grid.permute(0, 2, 1, 3, 4).reshape(-1, 4, D)
        q, k, v = self.projected(tokens)
        self.expect(q, k)
        q, k, v = (part.reshape(-1, 4, H, D // H).permute(0, 2, 1, 3) for part in (q, k, v))
        return ((q @ k.transpose(-2, -1)) * (D // H) ** -0.5).softmax(-1) @ v


class Convolved(Written):
    """Queries and keys by 1 × 1 convolutions, tokens last (SAGAN)."""

    heads = 1

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = nn.Conv1d(D, 4, 1), nn.Conv1d(D, 4, 1), nn.Conv1d(D, D, 1)

    def forward(self, x):
        x = x.transpose(1, 2)
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        self.expect(q.transpose(1, 2), k.transpose(1, 2), scale=1)
        w = functional.softmax(torch.bmm(q.permute(0, 2, 1), k), dim=-1)
        return torch.bmm(v, w.permute(0, 2, 1))


class ThroughTime(Written):
    """Axial attention: over the tokens of a row, with rows in the batch, five axes."""

    def forward(self, x):
        rows = torch.stack([x, x * 2], 1)  # (batch, rows, n, d)
        q, k, v = self.projected(rows)
        self.expect(q.flatten(0, 1), k.flatten(0, 1))
        q, k, v = (part.unflatten(-1, (H, -1)).transpose(2, 3) for part in (q, k, v))
        return (q @ k.transpose(-1, -2) / math.sqrt(D // H)).softmax(-1) @ v


class MixedHeads(Written):
    """Talking heads before the softmax: the weights are those of the mixed scores."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(H, H))

    def forward(self, x):
        q, k, v = self.projected(x)
        d = D // H
        raw = torch.stack(
            [q[..., h * d : h * d + d].double() @ k[..., h * d : h * d + d].double().mT for h in range(H)], 1
        )
        self.expected.append(softmax64(torch.einsum("bhij,hg->bgij", raw, self.mix.double()).detach()))
        scores = torch.einsum("bhij,hg->bgij", self.split(q) @ self.split(k).mT, self.mix)
        return self.joined(scores.softmax(-1) @ self.split(v))


MODELS = list(Written.__subclasses__())
