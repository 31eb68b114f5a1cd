"""A transformer of one's own, for `attnctl explain TEXT --model samples/own_model/tiny.py:build`."""

import torch
from torch import nn


class Tiny(nn.Module):
    """Two layers of torch's own encoder over the letters of a text, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, 32)
        self.places = nn.Embedding(512, 32)
        layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next letter: ids (batch, n) → (batch, n, 256)."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.layers(x, mask=mask, is_causal=True))


class Letters:
    """A tokenizer: encode and decode are all that attnctl needs."""

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        """Return the text of some bytes."""
        return bytes(ids).decode(errors="replace")


def build() -> tuple[nn.Module, Letters]:
    """Return the model and its tokenizer. A trained model loads its weights here."""
    torch.manual_seed(0)
    return Tiny(), Letters()
