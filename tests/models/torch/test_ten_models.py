"""Ten models in ten styles, written before anything was known of how they are read: each is exact, or an error names it."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import attnctl
from tests.models.torch.written_by_hand import softmax64

N, D = 6, 8


class Head(nn.Module):
    """One head of a character model, as in a well-known lecture."""

    def __init__(self, size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(D, size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(N, N)))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        B, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = functional.softmax(wei, dim=-1)
        self.seen = wei.detach().double()[:, None]
        return self.dropout(wei) @ self.value(x)


class Lecture(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([Head(4) for _ in range(2)])

    def forward(self, x):
        out = torch.cat([head(x) for head in self.heads], dim=-1)
        self.expected = [head.seen for head in self.heads]
        return out


class GraphAttention(nn.Module):
    """Nodes that attend to their neighbours by a sum of two ratings (Veličković et al. 2018)."""

    def __init__(self):
        super().__init__()
        self.W, self.a = nn.Parameter(torch.randn(D, 5)), nn.Parameter(torch.randn(10, 1))

    def forward(self, x):
        Wh = torch.mm(x[0], self.W)
        e = functional.leaky_relu(torch.matmul(Wh, self.a[:5]) + torch.matmul(Wh, self.a[5:]).T)
        adjacency = torch.eye(N) + torch.diag(torch.ones(N - 1), 1)
        attention = torch.where(adjacency > 0, e, -9e15 * torch.ones_like(e))
        attention = functional.softmax(attention, dim=1)
        self.expected = [attention.detach()[None, None]]
        return functional.elu(torch.matmul(attention, Wh))


class SetBlock(nn.Module):
    """A block of the Set Transformer: heads are split off and joined along the batch (Lee et al. 2019)."""

    def __init__(self):
        super().__init__()
        self.fc_q, self.fc_k, self.fc_v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, X):
        Q, K, V = self.fc_q(X), self.fc_k(X), self.fc_v(X)
        Q_, K_, V_ = (torch.cat(part.split(D // 2, 2), 0) for part in (Q, K, V))
        A = torch.softmax(Q_.bmm(K_.transpose(1, 2)) / math.sqrt(D), 2)
        self.expected = [torch.stack(A.detach().chunk(2, 0), 1)]
        return torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)


class Slots(nn.Module):
    """Slot attention: a softmax over slots, then each slot's shares are divided by their sum (Locatello et al. 2020)."""

    def __init__(self):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(3, D))
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        k, v, q = self.k(x), self.v(x), self.q(self.slots + x.mean(1, keepdim=True))
        attn = torch.einsum("bid,bjd->bij", q, k).softmax(dim=1) + 1e-8
        attn = attn / attn.sum(dim=-1, keepdim=True)
        self.expected = [attn.detach()[:, None]]
        return torch.einsum("bjd,bij->bid", v, attn)


class Relative(nn.Module):
    """Scores of content and of distance, the latter shifted into place (Dai et al. 2019)."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.r = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).view(*x.shape[:2], 2, -1) for part in (self.q, self.k, self.v))
        r = self.r(torch.randn(N, D, generator=torch.Generator().manual_seed(0))).view(N, 2, -1)
        content, distance = torch.einsum("bind,bjnd->bnij", q, k), torch.einsum("bind,jnd->bnij", q, r)
        padded = torch.cat([torch.zeros_like(distance[..., :1]), distance], -1)
        shifted = padded.view(*padded.shape[:2], N + 1, N)[:, :, 1:].view_as(distance)
        prob = functional.softmax((content + shifted) / 2, dim=-1)
        self.expected = [prob.detach()]
        return torch.einsum("bnij,bjnd->bind", prob, v).flatten(2)


class TopKeys(nn.Module):
    """Only the three best keys of each query."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        dots = q @ k.mT
        best, places = dots.topk(3, dim=-1)
        sparse = torch.full_like(dots, -torch.inf).scatter(-1, places, best)
        attn = sparse.softmax(-1)
        self.expected = [attn.detach()[:, None]]
        return attn @ v


class ProjectedKeys(nn.Module):
    """Keys and values projected to fewer places (Linformer)."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.places = (
            nn.Linear(D, D),
            nn.Linear(D, D),
            nn.Linear(D, D),
            nn.Parameter(torch.randn(N, 3)),
        )

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        k, v = (torch.einsum("bhnd,nm->bhmd", part, self.places) for part in (k, v))
        attn = torch.einsum("bhid,bhmd->bhim", q, k).softmax(-1)
        self.expected = [attn.detach()]
        return torch.einsum("bhim,bhmd->bhid", attn, v)


class Hops(nn.Module):
    """A question reads a memory three times (Sukhbaatar et al. 2015)."""

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        u, m, c, self.expected = x[:, 0], self.a(x), self.c(x), []
        for _ in range(3):
            p = functional.softmax(torch.bmm(m, u.unsqueeze(2)).squeeze(2), dim=1)
            self.expected.append(p.detach()[:, None, None])
            u = u + (p.unsqueeze(-1) * c).sum(1)
        return u


class LearnedScale(nn.Module):
    """Cosine attention with a learned temperature and a bias table for each head (Swin v2)."""

    def __init__(self):
        super().__init__()
        self.qkv, self.tau, self.bias = (
            nn.Linear(D, 3 * D),
            nn.Parameter(torch.ones(2, 1, 1)),
            nn.Parameter(torch.randn(2, N, N)),
        )

    def forward(self, x):
        B = x.shape[0]
        q, k, v = self.qkv(x).reshape(B, N, 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attn = functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.tau, max=4.6).exp() + self.bias.unsqueeze(0)
        self.expected = [softmax64(attn.detach().double())]
        return (nn.Softmax(-1)(attn) @ v).transpose(1, 2).reshape(B, N, D)


class Latents(nn.Module):
    """Latents read the input, then look at themselves (Perceiver)."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, D))
        self.cross, self.own = (
            nn.MultiheadAttention(D, 2, batch_first=True),
            nn.MultiheadAttention(D, 2, batch_first=True),
        )

    def forward(self, x):
        z = self.latents.unsqueeze(0).repeat(len(x), 1, 1)
        read, first = self.cross(z, x, x, average_attn_weights=False)
        z = z + read
        out, second = self.own(z, z, z, average_attn_weights=False)
        self.expected = [first.detach(), second.detach()]
        return out


MODELS = [Lecture, GraphAttention, SetBlock, Slots, Relative, TopKeys, ProjectedKeys, Hops, LearnedScale, Latents]


@pytest.mark.parametrize("kind", MODELS)
def test_it_is_exact(kind):
    torch.manual_seed(0)
    model = kind().eval()
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(torch.randn(2, N, D))
    assert not traces.unseen
    assert [call.weights.shape for call in traces] == [weights.shape for weights in model.expected]
    for call, expected in zip(traces, model.expected, strict=True):
        assert (call.weights - expected).abs().max() < 1e-6
