"""The pieces of models: padding is never looked at, and each does what it says."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from shoal.core.errors import UsageError  # noqa: E402
from shoal.train import nn  # noqa: E402

functional = torch.nn.functional


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def test_masks_and_padding():
    lengths = torch.tensor([1, 3])
    assert nn.sequence_mask(lengths).tolist() == [[True, False, False], [True, True, True]]
    assert nn.sequence_mask(lengths, 4, key_padding_mask=True)[1].tolist() == [False, False, False, True]
    padded, found = nn.pad_sequences([[1, 2, 3], torch.tensor([4])], value=9)
    assert padded.tolist() == [[1, 2, 3], [4, 9, 9]] and found.tolist() == [3, 1]
    assert nn.pad_sequences([[1, 2, 3]], max_size=2)[0].tolist() == [[1, 2]]


def test_sequences_turn_round_and_padding_stays():
    x = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0]])
    assert nn.reverse_sequence(x, [3, 2]).tolist() == [[3, 2, 1, 0], [5, 4, 0, 0]]
    deep = torch.randn(2, 4, 3)
    assert torch.equal(nn.reverse_sequence(deep, torch.tensor([4, 2]))[0], deep[0].flip(0))


def test_masked_means_and_maxima():
    values = torch.tensor([[[1.0], [5.0], [100.0]]])
    mask = torch.tensor([[True, True, False]])
    assert nn.masked_mean(values, mask).item() == 3 and nn.masked_max(values, mask).item() == 5
    assert nn.masked_mean(values, torch.zeros(1, 3, dtype=torch.bool)).item() == 0


@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM])
def test_a_recurrent_layer_does_not_read_padding(kind):
    layer = kind(3, 5, batch_first=True, bidirectional=True)
    x, lengths = torch.randn(2, 6, 3), torch.tensor([6, 2])
    out = nn.run_rnn(layer, x, lengths)
    assert torch.allclose(out[1, :2], nn.run_rnn(layer, x[1:, :2])[0], atol=1e-6)
    assert out.shape == (2, 6, 10) and not out[1, 2:].any()


def test_one_hot_and_choices():
    assert nn.one_hot(torch.tensor([2, 0]), 3, 0.5).tolist() == [[0, 0, 0.5], [0.5, 0, 0]]
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    assert torch.softmax(nn.top_k_logits(logits, 2), 1)[0, 0] == 0
    assert torch.equal(nn.top_k_logits(logits, 0), logits)
    kept = torch.isfinite(nn.top_p_logits(torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])), 0.7))
    assert kept.tolist() == [[True, True, False, False]]
    assert torch.isfinite(nn.top_p_logits(logits, 1e-6)).sum() == 1, "one at least"
    drawn = nn.sample_classes(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    assert drawn.tolist() == [1, 0]
    many = nn.sample_classes(torch.tensor([0.2, 0.8]).expand(4000, 2))
    assert float(many.float().mean()) == pytest.approx(0.8, abs=0.03)


def test_entropy_and_scaling():
    assert float(nn.entropy(torch.zeros(3, 8))) == pytest.approx(math.log(8))
    assert float(nn.entropy(torch.tensor([[0.0, float("-inf")]]))) == 0
    scaled = nn.scale_to_unit(torch.tensor([[1.0, 5.0], [3.0, 5.0], [2.0, 5.0]]))
    assert scaled.tolist() == [[0, 0], [1, 0], [0.5, 0]]
    assert nn.subtract_mean(torch.randn(4, 3, 2)).reshape(-1, 2).mean(0).abs().max() < 1e-6
    assert nn.has_non_finite(torch.tensor([1.0, float("inf")])) and not nn.has_non_finite(None)


def test_parameters_are_counted_and_frozen():
    layer = torch.nn.Linear(3, 2)
    assert nn.count_parameters(layer) == 8
    assert nn.count_parameters(nn.freeze(layer)) == 0 and nn.count_parameters(layer, trained=False) == 8
    assert nn.count_parameters(nn.freeze(layer, False)) == 8


def test_label_smoothing_is_cross_entropy_without_and_least_at_its_target():
    logits, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    assert torch.allclose(nn.label_smoothing_loss(logits, labels, 0.0), functional.cross_entropy(logits, labels))
    target = torch.tensor([[0.9, 0.1 / 3, 0.1 / 3, 0.1 / 3]]).log()
    assert float(nn.label_smoothing_loss(target, torch.tensor([0]), 0.1)) == pytest.approx(0, abs=1e-6)
    with pytest.raises(UsageError, match="logits are"):
        nn.label_smoothing_loss(torch.randn(2, 3, 4), labels, 0.1)


def test_focal_loss_counts_what_is_right_already_less():
    logits, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    assert torch.allclose(nn.FocalLoss(0)(logits, labels), functional.cross_entropy(logits, labels))
    p = torch.softmax(logits, 1)[range(6), labels]
    assert torch.allclose(nn.FocalLoss(2)(logits, labels), (-((1 - p) ** 2) * p.log()).mean())


def test_masked_cross_entropy_is_that_of_the_tokens_that_count():
    logits, labels = torch.randn(2, 3, 5), torch.randint(0, 5, (2, 3))
    mask = torch.tensor([[True, False, True], [False, False, True]])
    expected = functional.cross_entropy(logits[mask], labels[mask])
    assert torch.allclose(nn.masked_cross_entropy(logits, labels, mask), expected)
    assert float(nn.masked_cross_entropy(logits, labels, torch.zeros_like(mask))) == 0


def test_layers_have_the_shapes_they_say():
    x = torch.randn(4, 6)
    assert nn.Dense(torch.nn.Linear(6, 3))(x).shape == (4, 3)
    assert torch.equal(nn.Dense(linear := torch.nn.Linear(6, 3), None)(x), linear(x))
    assert nn.FFN(6, 12, 3, dropout=0.1)(x).shape == (4, 3)
    assert nn.AttentionDense(torch.nn.Linear(6, 3), max_emb_num=2)(torch.randn(4, 5, 6)).shape == (4, 5, 3)
    assert nn.ResidualGRU(6)(torch.randn(4, 5, 6)).shape == (4, 5, 6)
    wrapped = nn.Residual(nn.PreNorm(torch.nn.Linear(6, 6), 6))
    assert torch.allclose(wrapped(x) - x, wrapped._layer(x), atol=1e-6)
    decoder = nn.RecurrentDecoder(6, 8, 10)
    output, hidden = decoder(x, torch.zeros(4, 8), torch.randn(4, 5, 10), torch.tensor([5, 1, 2, 3]))
    assert output.shape == hidden.shape == (4, 8)


def test_activations_are_their_formulae():
    x = torch.linspace(-3, 3, 13)
    assert torch.allclose(nn.Swish()(x), x * torch.sigmoid(x), atol=1e-6)
    assert torch.allclose(nn.Gelu()(x), x * 0.5 * (1 + torch.erf(x / math.sqrt(2))), atol=1e-6)
    tanh = torch.tanh(x)
    assert torch.allclose(nn.PenalizedTanh()(x), 0.75 * torch.relu(tanh) + 0.25 * tanh, atol=1e-6)


def test_dropped_paths_are_whole_samples_and_keep_the_mean():
    layer = nn.DropPath(0.25)
    out = layer(torch.ones(4000, 3))
    assert out.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert bool(((out == 0).all(1) | (out > 0).all(1)).all())
    assert float(out.mean()) == pytest.approx(1, abs=0.05)
    assert torch.equal(layer.eval()(torch.ones(2, 3)), torch.ones(2, 3))


def test_textcnn_takes_the_largest_of_each_window_at_any_length():
    layer = nn.TextCNN(kernels=[2, 3], in_channel=1, out_channel=4, max_seq_len=9, dim=5)
    assert layer(torch.randn(2, 1, 9, 5)).shape == (2, 8)
    assert layer(torch.randn(2, 30, 5)).shape == (2, 8) and layer(torch.randn(2, 1, 5)).shape == (2, 8)
    x = torch.randn(1, 1, 7, 5)
    conv = layer._cnns_1[0]
    windows = torch.stack([(conv.weight[:, 0] * x[0, 0, i : i + 3]).sum((1, 2)) + conv.bias for i in range(5)])
    expected = functional.leaky_relu(windows).amax(0)
    assert torch.allclose(layer(x).view(4, 2)[:, 1], expected, atol=1e-5)


ATTENDING = {
    "additive": (lambda: nn.Attention(8, 8, 6), lambda layer, x, n: layer(torch.ones(2, 8), x, n)),
    "pool": (lambda: nn.AttentionPool(8), lambda layer, x, n: layer(x, n)),
    "inner": (lambda: nn.InnerAttention(8, 12), lambda layer, x, n: layer(x, n)),
    "heads": (lambda: nn.MultiHeadAttention(8), lambda layer, x, n: layer(x[:, :1], x, n)[0]),
    "encoder": (lambda: nn.TransformerEncoder(2, 8, 12), lambda layer, x, n: layer(x, n)[:, 0]),
    "layer": (lambda: nn.TransformerLayer(8), lambda layer, x, n: layer(x, n)[:, 0]),
}


@pytest.mark.parametrize("name", ATTENDING)
def test_attention_never_looks_beyond_a_sequences_length(name):
    make, call = ATTENDING[name]
    layer = make()
    x, lengths, whole = torch.randn(2, 5, 8), torch.tensor([5, 3]), torch.tensor([5, 5])
    other = x.clone()
    other[1, 3:] = torch.randn(2, 8) * 5
    assert torch.allclose(call(layer, x, lengths), call(layer, other, lengths), atol=1e-5)
    assert not torch.allclose(call(layer, x, whole), call(layer, other, whole), atol=1e-4)


def test_the_encoder_adds_a_first_token_and_refuses_what_is_too_long():
    encoder = nn.TransformerEncoder(1, 6, 8, 2, max_len=5, add_first_token=True)
    assert encoder(torch.randn(2, 5, 6), torch.tensor([5, 2])).shape == (2, 6, 8)
    with pytest.raises(UsageError, match="max_len"):
        encoder(torch.randn(2, 6, 6))


def test_nests_of_tensors_are_moved():
    moved = nn.to_device({"a": [torch.ones(1), "x"]}, torch.device("meta"))
    assert moved["a"][0].device.type == "meta" and moved["a"][1] == "x"
