"""Attention as papers beside the main road write it, by someone who had not read how attnctl recognises it."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.models.torch.written_by_hand import CAUSAL, PADDED, B, D, H, N, Written, explicit, softmax64
from tests.models.torch.written_by_strangers import d, in_heads


class SetTransformer(Written):
    """Lee et al. 2019: a learned set looks at the tokens, and as many seeds as texts look at what it took in."""

    def __init__(self) -> None:
        super().__init__()
        self.induced, self.seeds = (nn.Parameter(torch.randn(1, n, D)) for n in (4, B))

    def forward(self, x):
        h = self.block(self.induced.repeat(B, 1, 1), x)
        return self.block(self.seeds.repeat(B, 1, 1), self.block(x, h))

    def block(self, x, y):
        q, k, v = self.q(x), self.k(y), self.v(y)
        self.expected.append(softmax64(in_heads(q) @ in_heads(k).mT / math.sqrt(D)))
        q, k, v = (torch.cat(part.split(d, 2), 0) for part in (q, k, v))
        weights = torch.softmax(q.bmm(k.transpose(1, 2)) / math.sqrt(D), 2)
        return torch.cat((q + weights.bmm(v)).split(B, 0), 2)


class Agents(Written):
    """Han et al. 2024: means of queries look at the tokens, and the tokens at them."""

    def forward(self, x):
        q, k, v = self.projected(x)
        means = torch.stack([in_heads(q)[:, :, :2].mean(2), in_heads(q)[:, :, 2:4].mean(2)], 2)
        self.expected += [softmax64(means @ in_heads(k).mT), softmax64(in_heads(q) @ means.mT)]
        q, k, v = map(self.split, (q, k, v))
        means = q[:, :, :4].reshape(B, H, 2, 2, d).mean(3)
        return self.joined((q @ means.mT).softmax(-1) @ ((means @ k.mT).softmax(-1) @ v))


class BothWays(Written):
    """BiDAF (Seo et al. 2017): each token looks at the others, and one row at those with a high score."""

    def forward(self, x):
        q, k, v = self.projected(x)
        scores = q.detach().double() @ k.detach().double().mT
        self.expected += [softmax64(part)[:, None] for part in (scores, scores.amax(2)[:, None])]
        scores = q @ k.mT
        return self.out(scores.softmax(2) @ v + scores.max(2).values.softmax(1).unsqueeze(1) @ v)


class DividedAfterwards(Written):
    """Exponentials meet the values first; the sum divides the result."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, mask=CAUSAL)
        q, k, v = map(self.split, (q, k, v))
        shares = (q @ k.mT / math.sqrt(d)).exp() * CAUSAL
        return self.joined(torch.einsum("bhij,bhjd->bhid", shares, v) / shares.sum(-1, keepdim=True))


class DividedByMore(Written):
    """The divisor is the sum and a small number, rows before heads. Its first row sees no key, which is why it is added."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        shares = (q @ k.mT / math.sqrt(d)).exp() * (torch.arange(N) > 0)[:, None]
        exact = shares.detach().double()
        self.expected.append(exact / (exact.sum(-1, keepdim=True) + 0.05))
        mixed = torch.einsum("bhij,bhjd->bihd", shares, v)
        return self.out((mixed / (shares.sum(-1).mT.unsqueeze(-1) + 0.05)).flatten(2))


class SinkInTheDivisor(Written):
    """A learned sink of each head, which the divisor holds after the values (flash-linear-attention 0.6.0)."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(H))

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        scores, sinks = q @ k.mT / math.sqrt(d), self.sinks[None, :, None]
        exact = torch.cat([scores, sinks[..., None].expand(B, H, N, 1)], -1).detach().double()
        self.expected.append(softmax64(exact)[..., :-1])
        largest = torch.maximum(scores.max(-1).values, sinks)
        shares = (scores - largest[..., None]).exp()
        divisor = shares.sum(-1) + (sinks - largest).exp()
        mixed = torch.einsum("bhij,bhjd->bihd", shares, v)
        return self.out((mixed / divisor.mT[..., None]).flatten(2))


class NearKeys(Written):
    """The softmin of distances, in functions with other names."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        distances = (q.double()[..., None, :] - k.double()[..., None, :, :]).detach().norm(dim=-1)
        self.expected.append(softmax64(-distances))
        return self.joined(torch.linalg.matmul(functional.softmin(torch.cdist(q, k), -1), v))


class ByFunctionsOfLinalg(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = map(self.split, (q, k, v))
        scores = torch.linalg.matmul(q, k.mT) / math.sqrt(d)
        return self.joined(torch.linalg.matmul(torch.special.softmax(scores, -1), v))


class Gated(Written):
    """A gate for each query and head multiplies the weights: a row may look at nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, H)

    def gates(self, x: Tensor) -> Tensor:
        return self.gate(x).sigmoid().mT.unsqueeze(-1)

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        self.expected[-1] *= self.gates(x).detach().double()
        q, k, v = map(self.split, (q, k, v))
        return self.joined(((q @ k.mT / math.sqrt(d)).softmax(-1) * self.gates(x)) @ v)


class Decayed(Written):
    """Far tokens lose a part of their weight."""

    far = 0.9 ** (torch.arange(N)[:, None] - torch.arange(N)).abs()

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        self.expected[-1] *= self.far.double()
        q, k, v = map(self.split, (q, k, v))
        return self.joined(((q @ k.mT / math.sqrt(d)).softmax(-1) * self.far) @ v)


class RowByRow(Written):
    """A loop over queries, each with the keys up to its own."""

    def forward(self, x):
        q, k, v = map(self.split, self.projected(x))
        rows = []
        for i in range(N):
            self.expect(self.q(x[:, i : i + 1]), self.k(x[:, : i + 1]))
            rows.append((q[:, :, i : i + 1] @ k[:, :, : i + 1].mT / math.sqrt(d)).softmax(-1) @ v[:, :, : i + 1])
        return self.joined(torch.cat(rows, 2))


class OneMore(Written):
    """A row may look at nothing: a softmax with 1 added to the sum (Miller 2023), which is a sink with the score 0."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, scale=1, sink=True)
        q, k, v = map(self.split, (q, k, v))
        shares = (q @ k.mT).exp()
        return self.joined(shares / (1 + shares.sum(-1, keepdim=True)) @ v)


class OneMoreBelowTheLargest(Written):
    """The same without large numbers."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, sink=True)
        q, k, v = map(self.split, (q, k, v))
        scores = q @ k.mT / math.sqrt(d)
        largest = scores.detach().amax(-1, keepdim=True).clamp(min=0)
        shares = (scores - largest).exp()
        return self.joined(shares / ((-largest).exp() + shares.sum(-1, keepdim=True)) @ v)


class HeadsInTurn(Written):
    """One softmax for all heads, whose weights meet the values of each head in a loop."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expected += list(explicit(q, k, H)[:, :, None].unbind(1))
        q, k, v = map(self.split, (q, k, v))
        weights = (q @ k.mT / math.sqrt(d)).softmax(-1)
        return self.joined(torch.stack([weights[:, head] @ v[:, head] for head in range(H)], 1))


class TextsInTurn(Written):
    """One softmax for all texts, and a loop over them: the weights meet two tensors of each text."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expected += list(explicit(q, k, H)[:, None].unbind(0))
        q, k, v = map(self.split, (q, k, v))
        weights = (q @ k.mT / math.sqrt(d)).softmax(-1)
        return self.joined(
            torch.stack([text @ value + text @ key for text, value, key in zip(weights, v, k, strict=True)])
        )


class HeadsWritten(Written):
    """Weights of each head are written into a tensor of all heads."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, mask=CAUSAL)
        q, k, v = map(self.split, (q, k, v))
        weights = torch.empty(B, H, N, N)
        for head in range(H):
            scores = (q[:, head] @ k[:, head].mT / math.sqrt(d)).masked_fill(~CAUSAL, -math.inf)
            weights[:, head] = scores.softmax(-1)
        return self.joined(weights @ v)


class TextsWritten(Written):
    """Weights of each text are written into a tensor of all texts; scores of each head into one of all heads."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        self.expect(q, k, scale=1)
        q, k, v = map(self.split, (q, k, v))
        weights, scores = x.new_zeros(B, H, N, N), x.new_zeros(B, H, N, N)
        for text in range(B):
            weights[text] = (q[text] @ k[text].mT / math.sqrt(d)).softmax(-1)
        for head in range(H):
            scores[:, head] = q[:, head] @ k[:, head].mT
        return self.joined(weights @ v) + self.joined(scores.softmax(-1) @ v)


class PooledInHeads(Written):
    """MViT (Fan et al. 2021): a convolution goes over the tokens of each head; heads and texts are one axis for it."""

    def __init__(self) -> None:
        super().__init__()
        self.of_queries, self.of_keys = nn.Conv1d(d, d, 3, padding=1, groups=d), nn.AvgPool1d(2)

    def forward(self, x):
        q, k, v = (self.split(part).reshape(B * H, N, d).mT for part in self.projected(x))
        q, k, v = self.of_queries(q), self.of_keys(k), self.of_keys(v)
        of_heads = (part.detach().double().view(B, H, d, -1).mT for part in (q, k))
        self.expected.append(softmax64(torch.einsum("bhid,bhjd->bhij", *of_heads)))
        return torch.bmm(torch.bmm(q.mT, k).softmax(-1), v.mT)


class OneKey(Written):
    """The first step of a decoder with a cache: a single token looks at itself, and dropout is off."""

    def forward(self, x):
        q, k, v = self.projected(x[:, :1])
        self.expect(q, k)
        q, k, v = (part.view(B, 1, H, d).permute(1, 0, 2, 3).reshape(1, B * H, d).transpose(0, 1) for part in (q, k, v))
        weights = nn.functional.dropout(torch.bmm(q, k.mT).softmax(-1).type_as(q), 0.1, False)
        return torch.bmm(weights, v)


class Summaries(Written):
    """The products of exponentials with values are stacked, and divided at the end (memory-efficient-attention-pytorch)."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, mask=CAUSAL)
        q, k, v = map(self.split, (q, k, v))
        parts = [self.summary(part, k, v, CAUSAL[i : i + 2]) for i, part in zip((0, 2, 4), q.split(2, 2), strict=True)]
        return self.joined(torch.cat(parts, 2))

    def summary(self, q, k, v, sees):
        scores = (q @ k.mT / math.sqrt(d)).masked_fill(~sees, -1e9)
        top = scores.amax(-1, keepdim=True).detach()
        e = (scores - top).exp()
        values, sums, tops = (torch.stack([part], -1) for part in (e @ v, e.sum(-1), top[..., 0]))
        factor = (tops - tops.amax(-1, keepdim=True)).exp()
        return (values * factor[..., None, :]).sum(-1) / ((sums * factor).sum(-1)[..., None] + 1e-8)


class SummariesInPlace(Summaries):
    """Sums and results are written into tensors of all queries (its flash attention)."""

    def summary(self, q, k, v, sees):
        context = torch.zeros_like(q)
        scores = (q @ k.mT / math.sqrt(d)).masked_fill(~sees, -1e9)
        e = (scores - scores.amax(-1, keepdim=True)).exp()
        context.mul_(0.5).add_(e @ v)
        context.div_(e.sum(-1, keepdim=True))
        return context


class InputOfEachHead(Written):
    """The input is repeated for each head, whose weights are a matrix of their own, as TransformerLens's use_split_qkv_input."""

    def each(self, layer, x):
        weights = layer.weight.view(H, d, D).mT
        return torch.einsum("bnhm,hmd->bnhd", x[:, :, None].expand(B, N, H, D), weights) + layer.bias.view(H, d)

    def forward(self, x):
        self.expect(*self.projected(x)[:2])
        q, k, v = (self.each(layer, x).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.joined((q @ k.mT / math.sqrt(d)).softmax(-1) @ v)


class InputOfEachHeadFused(InputOfEachHead):
    def forward(self, x):
        self.expect(*self.projected(x)[:2])
        q, k, v = (self.each(layer, x).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.joined(nn.functional.scaled_dot_product_attention(q, k, v))


class WeightsOfEachText(Written):
    """The same weights are repeated for each text: these are no heads."""

    heads = 1

    def forward(self, x):
        self.expect(*(x @ layer.weight.mT for layer in (self.q, self.k)))
        q, k, v = (x.bmm(layer.weight.mT.repeat(B, 1, 1)) for layer in (self.q, self.k, self.v))
        return torch.bmm((q @ k.mT / math.sqrt(D)).softmax(-1), v)


class DrawnQueries(Written):
    """Queries that are drawn for each text (slot attention 1.5.2): several texts are no heads."""

    heads = 1

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Parameter(torch.zeros(1, 1, D)), nn.Parameter(torch.ones(1, 1, D))

    def forward(self, x):
        drawn = self.mean + self.spread * torch.randn(B, 3, D)
        q, k, v = self.q(drawn), self.k(x), self.v(x)
        self.expect(q, k)
        return torch.einsum("bij,bjd->bid", (torch.einsum("bid,bjd->bij", q, k) / math.sqrt(D)).softmax(-1), v)


class PooledByExponentials(Written):
    """Yang et al. 2016 as many notebooks write it: exponentials of a rating, masked, and divided by their sum."""

    heads = 1

    def __init__(self) -> None:
        super().__init__()
        self.context, self.bias = nn.Parameter(torch.randn(D, 1)), nn.Parameter(torch.randn(N))

    def forward(self, x):
        x = self.q(x)
        rating = torch.tanh(torch.mm(x.contiguous().view(-1, D), self.context).view(-1, N) + self.bias)
        self.expected.append(softmax64(rating.detach().double().masked_fill(~PADDED, -math.inf))[:, None, None])
        weights = torch.exp(rating) * PADDED.float()
        weights = weights / (torch.sum(weights, 1, keepdim=True) + 1e-10)
        return torch.sum(x * torch.unsqueeze(weights, -1), 1)


class PooledByAProduct(PooledByExponentials):
    def forward(self, x):
        x = self.q(x)
        rating = torch.tanh(x @ self.context)
        self.expected.append(softmax64(rating.detach().double().mT)[:, None])
        weights = rating.exp().squeeze(-1)
        weights = weights / weights.sum(1, keepdim=True)
        return torch.bmm(weights.unsqueeze(1), x)


class ExponentialsPlaceByPlace(Written):
    """Shares of exponentials that multiply values place by place, without a product of matrices."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = map(self.split, (q, k, v))
        weights = (q @ k.mT / math.sqrt(d)).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return self.joined((weights[..., None] * v[:, :, None]).sum(-2))


class Prompted(Written):
    """A learned prompt beside the text, with a softmax of its own and a gate (LLaMA-Adapter, peft 0.21.2)."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt, self.gate = nn.Parameter(torch.randn(1, 4, D)), nn.Parameter(torch.tensor([0.3]))

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        learned_k, learned_v = (layer(self.prompt).repeat(B, 1, 1) for layer in (self.k, self.v))
        self.expect(q, learned_k)
        self.expected[-1] *= 0.3
        q, k, v, learned_k, learned_v = map(self.split, (q, k, v, learned_k, learned_v))
        context = (q @ k.mT / math.sqrt(d)).softmax(-1) @ v
        return self.joined(context + self.gate * (q @ learned_k.mT / math.sqrt(d)).softmax(-1) @ learned_v)


LESS_USUAL = [kind for kind in Written.__subclasses__() if kind.__module__ == __name__] + [
    InputOfEachHeadFused,
    SummariesInPlace,
    PooledByAProduct,
]
