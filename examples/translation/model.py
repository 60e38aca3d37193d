"""An encoder-decoder transformer, small enough for a laptop's CPU."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Attention of one sequence to another, or to itself."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key_value, self.out = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: torch.Tensor, other: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._split(part) for part in (self.query(x), *self.key_value(other).chunk(2, -1)))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(attended.transpose(1, 2).flatten(2))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A block of the transformer. With `cross`, it also attends to the output of the encoder."""

    def __init__(self, width: int, heads: int, dropout: float, *, cross: bool):
        super().__init__()
        self.own, self.cross = Attention(width, heads), Attention(width, heads) if cross else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if cross else 2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        normed = self.norms[0](x)
        x = x + self.dropout(self.own(normed, normed, mask))
        if self.cross is not None:
            x = x + self.dropout(self.cross(self.norms[1](x), memory, memory_mask))
        return x + self.dropout(self.mlp(self.norms[-1](x)))


class Translator(nn.Module):
    def __init__(self, source_words: int, target_words: int, width: int, *, length: int, pad: int = 0, depth: int = 2,
                 heads: int = 4, dropout: float = 0.1):  # fmt: skip
        super().__init__()
        self.pad = pad
        self.source, self.target = nn.Embedding(source_words, width), nn.Embedding(target_words, width)
        for words in (self.source, self.target):
            nn.init.normal_(words.weight, std=width**-0.5)
        self.register_buffer("positions", waves(length, width), persistent=False)
        self.encoder = nn.ModuleList(Block(width, heads, dropout, cross=False) for _ in range(depth))
        self.decoder = nn.ModuleList(Block(width, heads, dropout, cross=True) for _ in range(depth))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.head = nn.Linear(width, target_words)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Logits of the word that follows each of the target's."""
        return self.decode(target, *self.encode(source))

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = (source != self.pad)[:, None, None, :]
        x = self._placed(self.source(source))
        for block in self.encoder:
            x = block(x, mask)
        return self.norms[0](x), mask

    def decode(self, target: torch.Tensor, memory: torch.Tensor, memory_mask: torch.Tensor) -> torch.Tensor:
        length = target.shape[1]
        # Padding comes last, so nothing that counts ever looks at it.
        seen = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        x = self._placed(self.target(target))
        for block in self.decoder:
            x = block(x, seen, memory, memory_mask)
        return self.head(self.norms[1](x))

    @torch.no_grad()
    def translate(self, source: torch.Tensor, *, start: int, end: int) -> torch.Tensor:
        """The likeliest word, one after the other."""
        encoded = self.encode(source)
        found = torch.full((len(source), 1), start, device=source.device)
        for _ in range(source.shape[1] - 1):
            found = torch.cat([found, self.decode(found, *encoded)[:, -1:].argmax(-1)], dim=1)
            if (found == end).any(1).all():
                break
        return found

    def _placed(self, x: torch.Tensor) -> torch.Tensor:
        return x * math.sqrt(x.shape[-1]) + self.positions[: x.shape[1]]


def waves(length: int, width: int) -> torch.Tensor:
    """Return the positions of words, encoded as sines and cosines."""
    turns = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    return torch.stack([turns.sin(), turns.cos()], dim=-1).flatten(1)
