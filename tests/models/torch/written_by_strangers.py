"""More attention written by hand, by someone who had not read how attnctl recognises it; as in `written_by_hand`."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.models.torch.written_by_hand import CAUSAL, B, D, H, N, Written, softmax64

d = D // H


def in_heads(x: Tensor) -> Tensor:
    """(batch, n, heads * d) → (batch, heads, n, d) in float64, by indexing."""
    return torch.stack([x[..., h * d : h * d + d] for h in range(H)], 1).detach().double()


class OddLetters(Written):
    """The keys are the second axis, the queries the last."""

    def forward(self, x):
        q, k, v = (part.view(B, N, H, d) for part in self.projected(x))
        self.expect(q.flatten(2), k.flatten(2))
        weights = torch.einsum("xlyw,xmyw->ymxl", q, k).mul(d**-0.5).softmax(1)
        return self.out(torch.einsum("ymxl,xmyz->xlyz", weights, v).flatten(2))


class BiasInBaddbmm(Written):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(H, N, N))

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, bias=2 * self.bias.detach())
        q, k, v = (self.split(part).reshape(B * H, N, d) for part in (q, k, v))
        scores = torch.baddbmm(self.bias.repeat(B, 1, 1), q, k.mT, beta=2.0, alpha=d**-0.5)
        context = torch.baddbmm(torch.zeros(1, 1, 1), functional.softmax(scores, -1), v, beta=0)
        return self.joined(context.view(B, H, N, d))


class ProductsSummed(Written):
    """No product of matrices at all."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = map(self.split, (q, k, v))
        weights = ((q[:, :, :, None] * k[:, :, None]).sum(-1) / math.sqrt(d)).softmax(-1)
        return self.joined((weights[..., None] * v[:, :, None]).sum(3))


class Cosines(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        a, b = (part / part.norm(dim=-1, keepdim=True) for part in (in_heads(q), in_heads(k)))
        self.expected.append(softmax64(5 * a @ b.mT))
        q, k, v = map(self.split, (q, k, v))
        scores = functional.cosine_similarity(q.unsqueeze(3), k.unsqueeze(2), dim=-1) * 5
        return self.joined(scores.softmax(-1) @ v)


class Distances(Written):
    """Nearer keys count more."""

    def forward(self, x):
        q, k, v = self.projected(x)
        gaps = in_heads(q)[:, :, :, None] - in_heads(k)[:, :, None]
        self.expected.append(softmax64(-(gaps**2).sum(-1) / 10))
        q, k, v = map(self.split, (q, k, v))
        return self.joined(
            (-(torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist") ** 2) / 10).softmax(-1) @ v
        )


class ThreeBestScattered(Written):
    """The softmax of the three largest scores, put back where they were."""

    def forward(self, x):
        q, k, v = self.projected(x)
        scores = in_heads(q) @ in_heads(k).mT / math.sqrt(d)
        least = scores.sort(-1).values[..., -3:-2]
        self.expected.append(softmax64(scores.masked_fill(scores < least, -math.inf)))
        q, k, v = map(self.split, (q, k, v))
        scores = q @ k.mT / d**0.5
        best, place = scores.topk(3, -1)
        return self.joined(torch.zeros_like(scores).scatter(-1, place, best.softmax(-1)) @ v)


class LogOfTheSum(Written):
    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k)
        q, k, v = map(self.split, (q, k, v))
        scores = q @ k.mT * d**-0.5
        return self.joined(torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ v)


class MaskedAfterwards(Written):
    """What is hidden is set to 0 after the softmax, and rows are made to sum to 1 again."""

    def forward(self, x):
        q, k, v = self.projected(x)
        self.expect(q, k, mask=CAUSAL)
        q, k, v = map(self.split, (q, k, v))
        weights = (q @ k.mT * d**-0.5).softmax(-1).masked_fill(~CAUSAL, 0.0)
        return self.joined((weights / weights.sum(-1, keepdim=True)) @ v)


class Additive(Written):
    """A small network rates each pair (Bahdanau et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Linear(d, 1, bias=False)

    def forward(self, x):
        q, k, v = self.projected(x)
        pairs = (in_heads(q)[:, :, :, None] + in_heads(k)[:, :, None]).tanh()
        self.expected.append(softmax64(pairs @ self.rate.weight[0].detach().double()))
        q, k, v = map(self.split, (q, k, v))
        scores = self.rate(torch.tanh(q[:, :, :, None] + k[:, :, None])).squeeze(-1)
        return self.joined(scores.softmax(-1) @ v)


class KeysOfDistances(Written):
    """Shaw et al. 2018: keys and values for each distance."""

    def __init__(self) -> None:
        super().__init__()
        self.far_keys, self.far_values = nn.Embedding(2 * N, d), nn.Embedding(2 * N, d)

    def forward(self, x):
        q, k, v = self.projected(x)
        far = torch.arange(N)[:, None] - torch.arange(N) + N
        keys = self.far_keys.weight.detach().double()[far]
        of_distance = (in_heads(q)[:, :, :, None] * keys).sum(-1)
        self.expected.append(softmax64((in_heads(q) @ in_heads(k).mT + of_distance) / math.sqrt(d)))
        q, k, v = map(self.split, (q, k, v))
        keys = self.far_keys(far)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) + torch.einsum("bhid,ijd->bhij", q, keys)
        weights = (scores / d**0.5).softmax(-1)
        return self.joined(weights @ v + torch.einsum("bhij,ijd->bhid", weights, self.far_values(far)))


class GrowingCache(Written):
    """One token after the other; keys and values are written into a buffer."""

    def forward(self, x):
        keys, values = x.new_zeros(B, H, 2 * N, d), x.new_zeros(B, H, 2 * N, d)
        out = []
        for t in range(N):
            q, k, v = self.projected(x[:, t : t + 1])
            keys, values = keys.clone(), values.clone()
            keys[:, :, t], values[:, :, t] = self.split(k)[:, :, 0], self.split(v)[:, :, 0]
            self.expect(q, self.k(x[:, : t + 1]))
            weights = torch.softmax(self.split(q) @ keys[:, :, : t + 1].mT / math.sqrt(d), -1)
            out.append(self.joined(weights @ values[:, :, : t + 1]))
        return torch.cat(out, 1)


STRANGERS = [kind for kind in Written.__subclasses__() if kind.__module__ == __name__]
