"""A small transformer that reads letters: forwards as a GPT, or in both directions as a BERT."""

import torch
from sums import LENGTH, LETTERS, PAD
from torch import nn
from torch.nn import functional as F


class LetterModel(nn.Module):
    def __init__(self, task: str, width: int = 64, depth: int = 2, heads: int = 4):
        super().__init__()
        self.is_causal = task == "gpt"
        self.token, self.position = nn.Embedding(len(LETTERS), width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, len(LETTERS))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        hidden = self.layers(hidden, mask=self.mask if self.is_causal else None, is_causal=self.is_causal)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten(), ignore_index=PAD)
