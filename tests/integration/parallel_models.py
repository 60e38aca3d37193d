"""Small models and a plain training loop for the parallelism tests: no Shoal in here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY, LENGTH, ROWS = 61, 12, 8


class Block(nn.Module):
    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=dropout, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor, *, shift: torch.Tensor | None = None) -> torch.Tensor:
        seen = self.before_attention(x)
        x = x + self.attention(seen, seen, seen, attn_mask=mask, need_weights=False)[0]
        if shift is not None:
            x = x + shift
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """About 50k parameters; the head is tied to the embedding."""

    def __init__(self, *, depth: int = 4, width: int = 32, dropout: float = 0.0, recompute: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.head.weight = self.tokens.weight
        self.recompute = recompute

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        mask = torch.triu(torch.full((ids.shape[1], ids.shape[1]), float("-inf")), 1)
        for block in self.blocks:
            x = checkpoint(block, x, mask, use_reentrant=False) if self.recompute else block(x, mask)
        return self.head(self.norm(x))


class Conditioned(GPT):
    """Something learned outside the blocks goes into each of them, by keyword."""

    def __init__(self) -> None:
        super().__init__(depth=3)
        self.shift = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 32))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        mask = torch.triu(torch.full((ids.shape[1], ids.shape[1]), float("-inf")), 1)
        shift = self.shift(ids.float().mean(1, keepdim=True) / VOCABULARY)[:, None]
        for block in self.blocks:
            x = block(x, mask, shift=shift)
        return self.head(self.norm(x))


class OwnAttention(nn.Module):
    """Blocks with their own attention: without torch's function for it, or with positions that they make themselves."""

    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY)
        self.blocks = nn.ModuleList(OwnAttentionBlock(by_hand) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class OwnAttentionBlock(nn.Module):
    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.project, self.by_hand = nn.Linear(32, 96), by_hand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        if self.by_hand:
            return x + torch.softmax(query @ key.transpose(1, 2), -1) @ value
        places = torch.arange(x.shape[1])[:, None] / LENGTH
        return x + functional.scaled_dot_product_attention(query + places, key + places, value, is_causal=True)


class ResidualOutside(nn.Module):
    """Pairs of layers in lists of lists, the residual added by the loop around them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 32)
        pair = lambda: nn.ModuleList([nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32)), nn.Linear(32, 32)])  # noqa: E731
        self.layers = nn.ModuleList(pair() for _ in range(3))
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for first, second in self.layers:
            x = first(x) + x
            x = functional.gelu(second(x)) + x
        return self.head(x)


class Chain(nn.Module):
    """A sequential model of unequal layers."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [32, 64, 48, 16, VOCABULARY]
        layers: list[nn.Module] = [nn.Embedding(VOCABULARY, 32)]
        for inner, outer in pairwise(sizes):
            layers += [nn.Linear(inner, outer), nn.Tanh()]
        self.body = nn.Sequential(*layers[:-1])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.body(ids)


class SideBySide(nn.Module):
    """Equal blocks that do not feed one another."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 32)
        self.towers = nn.ModuleList(nn.Linear(32, VOCABULARY) for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        return torch.stack([tower(x) for tower in self.towers]).mean(0)


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    """Weight decay on matrices only, as everybody does."""
    params = list(model.parameters())
    groups = [
        {"params": [param for param in params if param.dim() > 1], "weight_decay": 0.1},
        {"params": [param for param in params if param.dim() < 2], "weight_decay": 0.0, "lr": 1e-3},
    ]
    # Some gradients are zero but for rounding (biases of keys): eps keeps that noise from becoming whole steps.
    return torch.optim.AdamW(groups, lr=3e-3, eps=1e-6)


def batches(
    steps: int, share: int = 0, shares: int = 1, rows: int = ROWS
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This share's part of each global batch."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(steps):
        starts = torch.randint(0, VOCABULARY, (rows, 1), generator=generator)
        data = (starts + torch.arange(LENGTH + 1)) % 8
        data = data[share * rows // shares : (share + 1) * rows // shares]
        yield data[:, :-1], data[:, 1:]


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.float().reshape(-1, VOCABULARY), target.reshape(-1))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    share: int = 0,
    shares: int = 1,
    clip: float = 0.5,
    skip: int = 0,
) -> list[float]:
    """The loop a user would write."""
    losses = []
    for step, (x, y) in enumerate(batches(skip + steps, share, shares)):
        if step < skip:
            continue
        loss = cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def hf_model(kind: str) -> nn.Module:
    """A tiny Hugging Face language model with random weights."""
    import transformers

    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=3, n_head=2,
            bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def hf_batches(steps: int, share: int = 0, shares: int = 1) -> Iterator[dict[str, torch.Tensor]]:
    """Padded batches; the padding differs from row to row, so that shares of rows are not shares of tokens."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(steps):
        ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator)
        lengths = torch.randint(4, LENGTH + 1, (ROWS, 1), generator=generator)
        if shares > 1:
            lengths = torch.full_like(lengths, LENGTH - 2)
        mask = (torch.arange(LENGTH)[None] < lengths).long()
        part = slice(share * ROWS // shares, (share + 1) * ROWS // shares)
        labels = ids.masked_fill(mask == 0, -100)
        yield {"input_ids": ids[part], "attention_mask": mask[part], "labels": labels[part]}


def hf_train(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterator[dict[str, torch.Tensor]]
) -> list[float]:
    losses = []
    for batch in data:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
