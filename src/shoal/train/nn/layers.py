"""Layers that torch does not have, or only as separate parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from shoal.train.nn.attention import Attention

torch: Any = import_module("torch")
nn: Any = torch.nn


class Dense(nn.Module):  # type: ignore[misc]
    """Linear layer with an activation.

    Args:
        linear_layer: The layer.
        activation: Module after it; by default LeakyReLU, None for none.

    Example:
        >>> layer = Dense(torch.nn.Linear(8, 16))
    """

    def __init__(self, linear_layer: Any, activation: Any = ...):
        super().__init__()
        after = nn.LeakyReLU() if activation is ... else activation
        self._layer = linear_layer if after is None else nn.Sequential(linear_layer, after)

    def forward(self, x: Any) -> Any:
        return self._layer(x)


class FFN(nn.Module):  # type: ignore[misc]
    """Two linear layers with an activation (default GELU) and dropout between them.

    Example:
        >>> layer = FFN(8, 32, 8, dropout=0.1)
    """

    def __init__(self, input_dim: int, hidden_dim: int, output_dim: int, activation: Any = None, dropout: float = 0.0):
        super().__init__()
        between = nn.GELU() if activation is None else activation
        self._layer = nn.Sequential(
            nn.Linear(input_dim, hidden_dim), between, nn.Dropout(dropout), nn.Linear(hidden_dim, output_dim)
        )

    def forward(self, x: Any) -> Any:
        return self._layer(x)


class PenalizedTanh(nn.Module):  # type: ignore[misc]
    """Activation: tanh, multiplied by 0.25 below 0 (Eger et al., 2018)."""

    def forward(self, x: Any) -> Any:
        y = torch.tanh(x)
        return torch.where(y > 0, y, 0.25 * y)


class Swish(nn.Module):  # type: ignore[misc]
    """Activation x·sigmoid(x)."""

    def forward(self, x: Any) -> Any:
        return nn.functional.silu(x)


class Gelu(nn.Module):  # type: ignore[misc]
    """Activation: x times the cumulative normal distribution of x."""

    def forward(self, x: Any) -> Any:
        return nn.functional.gelu(x)


class PreNorm(nn.Module):  # type: ignore[misc]
    """Layer norm before a layer and dropout after it.

    Example:
        >>> block = Residual(PreNorm(FFN(64, 256, 64), 64, dropout=0.1))
    """

    def __init__(self, layer: Any, input_dim: int, dropout: float = 0.0):
        super().__init__()
        self._layer, self._layer_norm, self._dropout = layer, nn.LayerNorm(input_dim), nn.Dropout(dropout)

    def forward(self, x: Any, *args: Any, **options: Any) -> Any:
        return self._dropout(self._layer(self._layer_norm(x), *args, **options))


class Residual(nn.Module):  # type: ignore[misc]
    """Residual connection: the input of a layer is added to its output."""

    def __init__(self, layer: Any):
        super().__init__()
        self._layer = layer

    def forward(self, x: Any, *args: Any, **options: Any) -> Any:
        return x + self._layer(x, *args, **options)


class DropPath(nn.Module):  # type: ignore[misc]
    """Stochastic depth: in training, all values of a sample become 0 with probability `p`; the others are scaled up."""

    def __init__(self, p: float = 0.0):
        super().__init__()
        self._p = p

    def forward(self, x: Any) -> Any:
        if not self._p or not self.training:
            return x
        kept = torch.rand(x.size(0), *[1] * (x.dim() - 1), device=x.device) >= self._p
        return x * kept / (1 - self._p)


class AttentionDense(nn.Module):  # type: ignore[misc]
    """Dense layer whose inputs are extended by a mixture of learned vectors, weighted by similarity."""

    def __init__(self, linear_layer: Any, activation: Any = ..., max_emb_num: int | None = None, dropout: float = 0.0):
        super().__init__()
        count = min(linear_layer.out_features, max_emb_num or linear_layer.out_features)
        self._atten_emb = nn.Parameter(torch.randn(count, linear_layer.in_features) * 0.1)
        self._dropout = nn.Dropout(dropout)
        self._dense = Dense(linear_layer, activation)

    def forward(self, x: Any) -> Any:
        likeness = torch.softmax(self._dropout(x) @ self._atten_emb.T, -1)
        return self._dense(x + likeness @ self._atten_emb)


class TextCNN(nn.Module):  # type: ignore[misc]
    """Convolutions of several widths over words with max pooling (Kim, 2014). The output has len(kernels)·out_channel values.

    Args:
        kernels: Widths in words.
        in_channel: Input channels; 1 for plain embeddings.
        out_channel: Filters per width.
        max_seq_len: Ignored; any length works.
        dim: Size of the embeddings.
        activation: Module after each convolution; by default LeakyReLU.
        dropout: Dropout of the output.

    Example:
        >>> features = TextCNN([2, 3, 4], 1, 64, dim=128)(embeddings)  # [batch, 192]
    """

    def __init__(
        self,
        kernels: Sequence[int],
        in_channel: int,
        out_channel: int,
        max_seq_len: int | None = None,
        dim: int = 128,
        activation: Any = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self._names = [f"_cnns_{i}" for i in range(len(kernels))]
        self._widest = max(kernels)
        for name, kernel in zip(self._names, kernels, strict=True):
            conv = nn.Conv2d(in_channel, out_channel, (kernel, dim))
            self.add_module(name, nn.Sequential(conv, nn.LeakyReLU() if activation is None else activation))
        self._out_dropout = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        """Return features of x, [batch, channel, words, dim], or [batch, words, dim] for one channel."""
        x = x.unsqueeze(1) if x.dim() == 3 else x
        if x.size(2) < self._widest:
            x = nn.functional.pad(x, (0, 0, 0, self._widest - x.size(2)))
        found = [getattr(self, name)(x).amax((2, 3)) for name in self._names]
        # For each channel the widths side by side: the layout that existing trained models expect.
        return self._out_dropout(torch.stack(found, -1).flatten(1))


class ResidualGRU(nn.Module):  # type: ignore[misc]
    """Bidirectional GRU of the same width, with residual connection and layer norm."""

    def __init__(self, hidden_size: int, dropout: float = 0.1, num_layers: int = 2):
        super().__init__()
        self._enc_layer = nn.GRU(
            hidden_size, hidden_size // 2, num_layers, batch_first=True, dropout=dropout, bidirectional=True
        )
        self._out_norm = nn.LayerNorm(hidden_size)

    def forward(self, x: Any) -> Any:
        return self._out_norm(self._enc_layer(x)[0] + x)


class RecurrentDecoder(nn.Module):  # type: ignore[misc]
    """One step of a decoder with attention to the encoder's outputs between two GRU cells."""

    def __init__(self, emb_dim: int, hidden_dim: int, enc_outputs_dim: int, out_dropout: float = 0.0):
        super().__init__()
        self._rnn_cell1 = nn.GRUCell(emb_dim, hidden_dim)
        self._enc_attn = Attention(hidden_dim, enc_outputs_dim, enc_outputs_dim)
        self._rnn_cell2 = nn.GRUCell(enc_outputs_dim, hidden_dim)
        self._x_dense = Dense(nn.Linear(emb_dim, hidden_dim))
        self._attn_dense: Callable[[Any], Any] = (
            nn.Identity() if enc_outputs_dim == hidden_dim else nn.Linear(enc_outputs_dim, hidden_dim)
        )
        self._out_dropout = nn.Dropout(out_dropout)

    def forward(self, x: Any, hidden: Any, enc_outputs: Any, enc_real_len: Any) -> tuple[Any, Any]:
        """Return (output, hidden) for x [batch, emb], hidden [batch, hidden] and enc_outputs [batch, length, dim]."""
        hidden = self._rnn_cell1(x, hidden)
        attended = self._enc_attn(hidden, enc_outputs, enc_real_len)
        hidden = self._rnn_cell2(attended, hidden)
        output = torch.tanh(self._x_dense(x) + self._attn_dense(attended) + hidden)
        return self._out_dropout(output), hidden
