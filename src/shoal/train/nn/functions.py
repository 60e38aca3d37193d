"""Functions on tensors. `lengths` are those of the sequences in a padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")


def sequence_mask(lengths: Any, max_size: int | None = None, key_padding_mask: bool = False) -> Any:
    """[batch, max_size]: true where a sequence has a token; with `key_padding_mask` true where it has none."""
    size = int(lengths.max()) if max_size is None else max_size
    mask = torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)
    return ~mask if key_padding_mask else mask


def pad_sequences(sequences: Sequence[Any], value: float = 0, *, max_size: int | None = None) -> tuple[Any, Any]:
    """([batch, longest, …], lengths) of sequences of tensors or lists; what is beyond `max_size` is cut off."""
    tensors = [torch.as_tensor(s)[:max_size] for s in sequences]
    lengths = torch.tensor([len(t) for t in tensors])
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value), lengths


def reverse_sequence(inputs: Any, lengths: Any) -> Any:
    """Each sequence of [batch, length, …] back to front; padding stays where it is."""
    at = torch.arange(inputs.size(1), device=inputs.device).expand(inputs.size(0), -1)
    lengths = torch.as_tensor(lengths, device=inputs.device).unsqueeze(1)
    source = torch.where(at < lengths, lengths - 1 - at, at)
    return inputs.gather(1, source.view(*source.shape, *[1] * (inputs.dim() - 2)).expand_as(inputs))


def masked_mean(values: Any, mask: Any) -> Any:
    """[batch, dim] of [batch, length, dim]: the mean where the mask is true; 0 where it nowhere is."""
    weights = mask.to(values.dtype).unsqueeze(-1)
    return (values * weights).sum(1) / weights.sum(1).clamp(min=1)


def masked_max(values: Any, mask: Any) -> Any:
    """[batch, dim] of [batch, length, dim]: the largest where the mask is true."""
    return values.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(1)


def run_rnn(layer: Any, inputs: Any, lengths: Any = None, hidden: Any = None) -> Any:
    """Outputs of a batch-first RNN, GRU or LSTM over [batch, length, dim]. With lengths, padding is not read and gives 0."""
    if lengths is None:
        return layer(inputs, hidden)[0]
    rnn = torch.nn.utils.rnn
    packed = rnn.pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
    outputs, _ = layer(packed, hidden)
    return rnn.pad_packed_sequence(outputs, batch_first=True, total_length=inputs.size(1))[0]


def one_hot(labels: Any, classes: int, value: float = 1.0) -> Any:
    """[…, classes] with `value` at the label and 0 elsewhere."""
    return torch.nn.functional.one_hot(labels, classes).to(torch.get_default_dtype()) * value


def top_k_logits(logits: Any, k: int) -> Any:
    """Only the k largest of the last dimension stay; the others cannot be drawn. k of 0 or less keeps all."""
    if k <= 0 or k >= logits.size(-1):
        return logits
    kept = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, logits.topk(k).indices, True)
    return logits.masked_fill(~kept, float("-inf"))


def top_p_logits(logits: Any, p: float) -> Any:
    """Only the likeliest that together reach probability p stay, one at least (nucleus sampling)."""
    if not 0 < p < 1:
        return logits
    ordered, at = logits.sort(dim=-1, descending=True)
    probabilities = torch.softmax(ordered, -1)
    beyond = probabilities.cumsum(-1) - probabilities >= p
    return logits.masked_fill(torch.zeros_like(beyond).scatter(-1, at, beyond), float("-inf"))


def sample_classes(probabilities: Any) -> Any:
    """One class of the last dimension for each row, as likely as it says."""
    flat = probabilities.reshape(-1, probabilities.size(-1))
    return torch.multinomial(flat, 1).view(probabilities.shape[:-1])


def entropy(logits: Any) -> Any:
    """Mean over rows, in nats."""
    logs = torch.log_softmax(logits, -1)
    return -(logs.exp() * logs.masked_fill(logs == float("-inf"), 0)).sum(-1).mean()


def scale_to_unit(values: Any) -> Any:
    """Each column of the last dimension moved and scaled to lie between 0 and 1; one that is constant becomes 0."""
    columns = values.reshape(-1, values.size(-1))
    low, high = columns.amin(0), columns.amax(0)
    return (values - low) / torch.where(high > low, high - low, torch.ones_like(high))


def subtract_mean(values: Any) -> Any:
    """Each column of the last dimension moved to have mean 0."""
    return values - values.reshape(-1, values.size(-1)).mean(0)


def has_non_finite(values: Any) -> bool:
    """Whether there is a NaN or an infinity; None has none."""
    return values is not None and not bool(torch.isfinite(values).all())


def count_parameters(module: Any, *, trained: bool = True) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trained)


def freeze(module: Any, frozen: bool = True) -> Any:
    """The same module, whose parameters are not trained (or are again)."""
    return module.requires_grad_(not frozen)
