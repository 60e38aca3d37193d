"""Building blocks of models. Each can be used alone.

functions   masks, sequences, sampling, checks for NaN
losses      label smoothing, focal loss, masked cross entropy
layers      Dense, FFN, activations, TextCNN, recurrent layers
attention   attention over padded sequences, transformer encoder
"""

from __future__ import annotations

from shoal.train.batch import to_device
from shoal.train.nn.attention import (
    Attention,
    AttentionPool,
    InnerAttention,
    MultiHeadAttention,
    PositionEmbedding,
    TransformerEncoder,
    TransformerLayer,
)
from shoal.train.nn.functions import (
    count_parameters,
    entropy,
    freeze,
    has_non_finite,
    masked_max,
    masked_mean,
    one_hot,
    pad_sequences,
    reverse_sequence,
    run_rnn,
    sample_classes,
    scale_to_unit,
    sequence_mask,
    subtract_mean,
    top_k_logits,
    top_p_logits,
)
from shoal.train.nn.layers import (
    FFN,
    AttentionDense,
    Dense,
    DropPath,
    Gelu,
    PenalizedTanh,
    PreNorm,
    RecurrentDecoder,
    Residual,
    ResidualGRU,
    Swish,
    TextCNN,
)
from shoal.train.nn.losses import FocalLoss, label_smoothing_loss, masked_cross_entropy

__all__ = [
    "FFN",
    "Attention",
    "AttentionDense",
    "AttentionPool",
    "Dense",
    "DropPath",
    "FocalLoss",
    "Gelu",
    "InnerAttention",
    "MultiHeadAttention",
    "PenalizedTanh",
    "PositionEmbedding",
    "PreNorm",
    "RecurrentDecoder",
    "Residual",
    "ResidualGRU",
    "Swish",
    "TextCNN",
    "TransformerEncoder",
    "TransformerLayer",
    "count_parameters",
    "entropy",
    "freeze",
    "has_non_finite",
    "label_smoothing_loss",
    "masked_cross_entropy",
    "masked_max",
    "masked_mean",
    "one_hot",
    "pad_sequences",
    "reverse_sequence",
    "run_rnn",
    "sample_classes",
    "scale_to_unit",
    "sequence_mask",
    "subtract_mean",
    "to_device",
    "top_k_logits",
    "top_p_logits",
]
