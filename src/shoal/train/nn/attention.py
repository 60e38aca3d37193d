"""Attention over padded sequences. Positions beyond a sequence's length are ignored."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shoal.core.errors import UsageError
from shoal.train.nn.functions import sequence_mask

torch: Any = import_module("torch")
nn: Any = torch.nn


class Attention(nn.Module):  # type: ignore[misc]
    """Additive attention of a query over values (Bahdanau et al., 2015).

    Args:
        query_dim: Size of the query.
        values_dim: Size of the values.
        atten_dim: Size of the hidden layer.

    Example:
        >>> context = Attention(64, 128, 64)(query, values, real_len)
    """

    def __init__(self, query_dim: int, values_dim: int, atten_dim: int):
        super().__init__()
        self._query, self._values = nn.Linear(query_dim, atten_dim), nn.Linear(values_dim, atten_dim)
        self._logit = nn.Linear(atten_dim, 1)

    def forward(self, query: Any, values: Any, real_len: Any = None) -> Any:
        """Return [batch, dim] for query [batch, query_dim], values [batch, length, dim] and real_len [batch]."""
        logits = self._logit(torch.tanh(self._values(values) + self._query(query).unsqueeze(1))).squeeze(2)
        return _mixed(logits, values, real_len)


class AttentionPool(nn.Module):  # type: ignore[misc]
    """Sequence as one vector: the mean of its values, weighted by learned scores.

    Example:
        >>> pooled = AttentionPool(128)(values, real_len)
    """

    def __init__(self, dim: int):
        super().__init__()
        self._score = nn.Linear(dim, 1)

    def forward(self, values: Any, real_len: Any = None) -> Any:
        """Return [batch, dim] for values [batch, length, dim]."""
        return _mixed(self._score(values).squeeze(2), values, real_len)


class MultiHeadAttention(nn.Module):  # type: ignore[misc]
    """Multi-head attention with lengths instead of masks.

    Example:
        >>> output, weights = MultiHeadAttention(128, 4)(x, x, real_len)
    """

    def __init__(self, dim: int, multihead: int = 4, dropout: float = 0.0):
        super().__init__()
        self._multihead_att = nn.MultiheadAttention(dim, multihead, dropout=dropout, batch_first=True)

    def forward(self, query: Any, values: Any, real_len: Any = None) -> tuple[Any, Any]:
        """Return (output [batch, l, dim], weights [batch, l, s]) for query [batch, l, dim] and values [batch, s, dim]."""
        beyond = None if real_len is None else sequence_mask(real_len, values.size(1), key_padding_mask=True)
        output, weights = self._multihead_att(query, values, values, key_padding_mask=beyond)
        return output, weights


class InnerAttention(nn.Module):  # type: ignore[misc]
    """Sequence as one vector, by multi-head attention with a learned query."""

    def __init__(self, dim: int, atten_dim: int = 512, multihead: int = 4):
        super().__init__()
        self._input, self._output = nn.Linear(dim, atten_dim), nn.Linear(atten_dim, dim)
        self._multihead_att = MultiHeadAttention(atten_dim, multihead)
        self._query_weight = nn.Parameter(torch.rand(1, 1, atten_dim))

    def forward(self, values: Any, real_len: Any = None) -> Any:
        """Return [batch, dim] for values [batch, length, dim]."""
        values = self._input(values)
        query = self._query_weight.expand(values.size(0), 1, -1)
        return self._output(self._multihead_att(query, values, real_len)[0]).squeeze(1)


class PositionEmbedding(nn.Module):  # type: ignore[misc]
    """Learned vector for each position of a sequence, added to the input."""

    def __init__(self, max_len: int, dim: int):
        super().__init__()
        self._weight = nn.Parameter(torch.randn(max_len, dim) * 0.02)

    def forward(self, x: Any) -> Any:
        if x.size(1) > len(self._weight):
            raise UsageError(
                f"a sequence of length {x.size(1)} exceeds max_len={len(self._weight)}",
                hint="raise max_len, or truncate the sequence",
            )
        return x + self._weight[: x.size(1)]


class TransformerLayer(nn.Module):  # type: ignore[misc]
    """Transformer layer: self-attention and two linear layers, each with a norm before and a residual connection."""

    def __init__(self, dim: int, multihead: int = 4, hidden_dim: int | None = None, dropout: float = 0.0):
        super().__init__()
        self._norm1, self._norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self._attention = MultiHeadAttention(dim, multihead, dropout)
        hidden = hidden_dim or 4 * dim
        self._ffn = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim))
        self._dropout = nn.Dropout(dropout)

    def forward(self, x: Any, real_len: Any = None) -> Any:
        y = self._norm1(x)
        x = x + self._dropout(self._attention(y, y, real_len)[0])
        return x + self._dropout(self._ffn(self._norm2(x)))


class TransformerEncoder(nn.Module):  # type: ignore[misc]
    """Transformer encoder with learned positions and a final norm.

    Args:
        layer_num: Number of layers.
        input_dim: Size of the inputs.
        hidden_dim: Size of the layers and outputs.
        multi_head_num: Attention heads.
        max_len: Maximum length of a sequence.
        add_first_token: Prepend a learned token, whose output represents the whole sequence.
        out_dropout: Dropout inside the layers.

    Example:
        >>> hidden = TransformerEncoder(2, 128, 256)(embeddings, real_len)  # [batch, length, 256]
    """

    def __init__(
        self,
        layer_num: int,
        input_dim: int,
        hidden_dim: int,
        multi_head_num: int = 4,
        *,
        max_len: int = 512,
        add_first_token: bool = False,
        out_dropout: float = 0.0,
    ):
        super().__init__()
        self._input = nn.Identity() if input_dim == hidden_dim else nn.Linear(input_dim, hidden_dim)
        self._first_token = nn.Parameter(torch.randn(hidden_dim) * 0.02) if add_first_token else None
        self._positions = PositionEmbedding(max_len + add_first_token, hidden_dim)
        self._layers = nn.ModuleList(
            TransformerLayer(hidden_dim, multi_head_num, dropout=out_dropout) for _ in range(layer_num)
        )
        self._norm = nn.LayerNorm(hidden_dim)

    def forward(self, x: Any, real_len: Any = None) -> Any:
        """Return [batch, length (+ 1), hidden_dim] for x [batch, length, input_dim]."""
        x = self._input(x)
        if self._first_token is not None:
            x = torch.cat([self._first_token.expand(x.size(0), 1, -1), x], 1)
            real_len = None if real_len is None else real_len + 1
        x = self._positions(x)
        for layer in self._layers:
            x = layer(x, real_len)
        return self._norm(x)


def _mixed(logits: Any, values: Any, real_len: Any) -> Any:
    if real_len is not None:
        logits = logits.masked_fill(sequence_mask(real_len, values.size(1), key_padding_mask=True), float("-inf"))
    return (torch.softmax(logits, 1).unsqueeze(1) @ values).squeeze(1)
