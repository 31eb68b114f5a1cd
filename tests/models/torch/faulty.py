"""A language model as people write it, with one planted fault: in its mask, its padding, its documents, or beside attention."""

import math

import torch
from torch import Tensor, nn

D, HEADS, WORDS, N = 16, 2, 20, 8


def causal(n: int, ahead: int = 0) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril(ahead)


def full(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(D // HEADS)
        context = scores.masked_fill(~mask, -1e9).softmax(-1) @ v
        x = x + self.out(context.transpose(1, 2).reshape(batch, n, -1))
        return x + self.mlp(x)


class Writer(nn.Module):
    """`masks` are those of its layers, by the number of tokens; `fault` is what is wrong beside them."""

    def __init__(self, *masks, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.masks, self.fault = masks, fault
        self.words, self.places = nn.Embedding(WORDS, D), nn.Embedding(32, D)
        self.blocks = nn.ModuleList(Block() for _ in masks)
        self.head = nn.Linear(D, WORDS)
        self.eval()

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, doc_ids: Tensor | None = None) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        if self.fault == "rows before the layers":
            x = x + x.mean(0, keepdim=True)
        for number, (block, mask) in enumerate(zip(self.blocks, self.masks, strict=True)):
            shown = mask(ids.shape[1])[None, None]
            if attention_mask is not None and self.fault != "padding":
                shown = shown & attention_mask[:, None, None].bool()
            if doc_ids is not None and (self.fault, number) != ("documents", 1):
                shown = shown & (doc_ids[:, None, :, None] == doc_ids[:, None, None])
            x = block(x, shown)
            if self.fault == "convolution" and number == 1:
                x = x + x.roll(-1, 1)
        if self.fault == "rows":
            x = x + x.roll(1, 0)
        return self.head(x)


IDS = torch.randint(0, WORDS, (2, N), generator=torch.Generator().manual_seed(1))
SHOWN = torch.ones(2, N, dtype=torch.long)
SHOWN[1, 5:] = 0
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]] * 2)
