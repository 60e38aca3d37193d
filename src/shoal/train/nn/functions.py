"""Functions on tensors. `lengths` are the lengths of the sequences in a padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")


def sequence_mask(lengths: Any, max_size: int | None = None, key_padding_mask: bool = False) -> Any:
    """Return a mask [batch, max_size] that is true where a sequence has a token.

    Args:
        lengths: Lengths of the sequences, [batch].
        max_size: Size of the mask; by default the longest length.
        key_padding_mask: Invert the mask: true where there is no token.

    Example:
        >>> sequence_mask(torch.tensor([2, 1])).tolist()
        [[True, True], [True, False]]
    """
    size = int(lengths.max()) if max_size is None else max_size
    mask = torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)
    return ~mask if key_padding_mask else mask


def pad_sequences(sequences: Sequence[Any], value: float = 0, *, max_size: int | None = None) -> tuple[Any, Any]:
    """Return ([batch, longest, …], lengths) of sequences of different lengths.

    Args:
        sequences: Tensors or lists.
        value: Padding value.
        max_size: Length at which longer sequences are truncated.

    Example:
        >>> padded, lengths = pad_sequences([[1, 2, 3], [4]])
    """
    tensors = [torch.as_tensor(s)[:max_size] for s in sequences]
    lengths = torch.tensor([len(t) for t in tensors])
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value), lengths


def reverse_sequence(inputs: Any, lengths: Any) -> Any:
    """Return [batch, length, …] with each sequence reversed; padding stays at the end.

    Example:
        >>> reverse_sequence(torch.tensor([[1, 2, 0]]), [2]).tolist()
        [[2, 1, 0]]
    """
    at = torch.arange(inputs.size(1), device=inputs.device).expand(inputs.size(0), -1)
    lengths = torch.as_tensor(lengths, device=inputs.device).unsqueeze(1)
    source = torch.where(at < lengths, lengths - 1 - at, at)
    return inputs.gather(1, source.view(*source.shape, *[1] * (inputs.dim() - 2)).expand_as(inputs))


def masked_mean(values: Any, mask: Any) -> Any:
    """Return [batch, dim]: the mean of [batch, length, dim] where the mask is true; 0 if it is nowhere true.

    Example:
        >>> pooled = masked_mean(hidden, sequence_mask(lengths))
    """
    weights = mask.to(values.dtype).unsqueeze(-1)
    return (values * weights).sum(1) / weights.sum(1).clamp(min=1)


def masked_max(values: Any, mask: Any) -> Any:
    """Return [batch, dim]: the maximum of [batch, length, dim] where the mask is true.

    Example:
        >>> pooled = masked_max(hidden, sequence_mask(lengths))
    """
    return values.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(1)


def run_rnn(layer: Any, inputs: Any, lengths: Any = None, hidden: Any = None) -> Any:
    """Return the outputs of a batch-first RNN, GRU or LSTM.

    Args:
        layer: The recurrent layer, with batch_first=True.
        inputs: [batch, length, dim].
        lengths: Lengths of the sequences. Padding is then not read, and its outputs are 0.
        hidden: Initial hidden state.

    Example:
        >>> outputs = run_rnn(torch.nn.GRU(8, 16, batch_first=True), inputs, lengths)
    """
    if lengths is None:
        return layer(inputs, hidden)[0]
    rnn = torch.nn.utils.rnn
    packed = rnn.pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
    outputs, _ = layer(packed, hidden)
    return rnn.pad_packed_sequence(outputs, batch_first=True, total_length=inputs.size(1))[0]


def one_hot(labels: Any, classes: int, value: float = 1.0) -> Any:
    """Return […, classes] with `value` at the label and 0 elsewhere.

    Example:
        >>> one_hot(torch.tensor([1]), 3).tolist()
        [[0.0, 1.0, 0.0]]
    """
    return torch.nn.functional.one_hot(labels, classes).to(torch.get_default_dtype()) * value


def top_k_logits(logits: Any, k: int) -> Any:
    """Return the logits with all except the k largest of the last dimension set to -inf; k of 0 or less keeps all.

    Example:
        >>> token = torch.distributions.Categorical(logits=top_k_logits(logits, 50)).sample()
    """
    if k <= 0 or k >= logits.size(-1):
        return logits
    kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, logits.topk(k).indices, True)
    return logits.masked_fill(~kept, float("-inf"))


def top_p_logits(logits: Any, p: float) -> Any:
    """Return the logits with all except the most likely, which together reach probability p, set to -inf.

    At least one stays (nucleus sampling).

    Example:
        >>> token = torch.distributions.Categorical(logits=top_p_logits(logits, 0.9)).sample()
    """
    if not 0 < p < 1:
        return logits
    ordered, at = logits.sort(dim=-1, descending=True)
    probabilities = torch.softmax(ordered, -1)
    beyond = probabilities.cumsum(-1) - probabilities >= p
    return logits.masked_fill(torch.zeros_like(beyond).scatter(-1, at, beyond), float("-inf"))


def sample_classes(probabilities: Any) -> Any:
    """Return one class for each row, drawn with the probabilities in the last dimension.

    Example:
        >>> classes = sample_classes(torch.softmax(logits, -1))
    """
    flat = probabilities.reshape(-1, probabilities.size(-1))
    return torch.multinomial(flat, 1).view(probabilities.shape[:-1])


def entropy(logits: Any) -> Any:
    """Return the entropy of the distributions given by logits: the mean over rows, in nats."""
    logs = torch.log_softmax(logits, -1)
    return -(logs.exp() * logs.masked_fill(logs == float("-inf"), 0)).sum(-1).mean()


def scale_to_unit(values: Any) -> Any:
    """Return the values with each column of the last dimension scaled to [0, 1]; constant columns become 0."""
    columns = values.reshape(-1, values.size(-1))
    low, high = columns.amin(0), columns.amax(0)
    return (values - low) / torch.where(high > low, high - low, torch.ones_like(high))


def subtract_mean(values: Any) -> Any:
    """Return the values with the mean of each column of the last dimension subtracted."""
    return values - values.reshape(-1, values.size(-1)).mean(0)


def has_non_finite(values: Any) -> bool:
    """Check whether a tensor has a NaN or an infinity; False for None."""
    return values is not None and not bool(torch.isfinite(values).all())


def count_parameters(module: Any, *, trained: bool = True) -> int:
    """Return the number of trained parameters; with `trained=False`, of all parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trained)


def freeze(module: Any, frozen: bool = True) -> Any:
    """Exclude a module's parameters from training (or include them again) and return the module.

    Example:
        >>> freeze(model.encoder)
    """
    return module.requires_grad_(not frozen)
