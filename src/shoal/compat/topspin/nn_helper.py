"""Model parts that TopSpin scripts import from `topspin`, `topspin.tools.nn_helper` or `palframe.pytorch.nlp_torch`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shoal.compat.topspin.logs import Logger
from shoal.train.nn import (  # noqa: F401
    FFN,
    Attention,
    Dense,
    FocalLoss,
    Gelu,
    InnerAttention,
    MultiHeadAttention,
    PenalizedTanh,
    ResidualGRU,
    Swish,
    TextCNN,
    label_smoothing_loss,
    reverse_sequence,
    run_rnn,
    sequence_mask,
    to_device,
    top_k_logits,
    top_p_logits,
)
from shoal.train.nn import AttentionDense as AttenDense  # noqa: F401
from shoal.train.nn import PreNorm as _PreNorm
from shoal.train.nn import RecurrentDecoder as VallinaDecoder  # noqa: F401
from shoal.train.nn import has_non_finite as _has_non_finite
from shoal.train.nn import sample_classes as uniform_sample  # noqa: F401
from shoal.train.nn import scale_to_unit as norm_0_1  # noqa: F401
from shoal.train.nn import subtract_mean as norm_mean  # noqa: F401
from shoal.train.table import parameter_table

torch: Any = import_module("torch")

__all__ = """
    AttenDense Attention Dense FFN FocalLoss Gelu InnerAttention MultiHeadAttention PenalizedTanh PrePostProcessingWrapper
    ResidualGRU Swish TextCNN VallinaDecoder check_nan display_model_parameters isabnormal label_smoothing_loss nan_tensor
    norm_0_1 norm_mean one_hot reverse_sequence run_rnn_seq sequence_mask to_device topK_mask_logits uniform_sample
""".split()


class PrePostProcessingWrapper(_PreNorm):
    def __init__(self, layer: Any, input_dim: int, dropout_to_drop_prob: float = 0.0):
        super().__init__(layer, input_dim, dropout_to_drop_prob)


def nan_tensor() -> Any:
    return torch.tensor(float("nan"))


def isabnormal(x: Any) -> bool:
    """Check whether a tensor has a NaN or an infinity; False for None."""
    return x is not None and _has_non_finite(x)


def check_nan(tensor: Any, name: str) -> None:
    if bool(torch.isnan(tensor).any()):
        Logger.error(f"{name} is_nan")


def display_model_parameters(model: Any) -> int:
    """Log the parameters, the largest first; return the total number of values."""
    Logger.info("\n" + parameter_table(model))
    return sum(p.numel() for p in model.parameters())


def run_rnn_seq(layer: Any, x: Any, real_len: Any, hidden: Any, packed_input: bool) -> Any:
    """Return the outputs for x [batch, length, dim]. With `packed_input` padding has no influence."""
    outputs = run_rnn(layer, x, real_len if packed_input else None, hidden)
    return outputs[0] if isinstance(outputs, tuple) else outputs


def one_hot(batch: int, label_num: int, y: Any, value: float = 1) -> Any:
    return torch.zeros(batch, label_num, device=y.device).scatter_(1, y.unsqueeze(1), value)


def topK_mask_logits(logits: Any, topk: int = -1, acum_prob_limit: float = -1) -> Any:
    """Set the logits to -inf except the `topk` largest, or the most likely up to `acum_prob_limit`."""
    if 0 < topk < logits.size(-1):
        return top_k_logits(logits, topk)
    return top_p_logits(logits, acum_prob_limit) if 0 < acum_prob_limit < 1 else logits
