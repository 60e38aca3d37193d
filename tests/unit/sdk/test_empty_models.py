"""Models made without memory: which weights they get, and what is refused; recomputed activations and regional compilation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.core.errors import Corrupt, InvalidSpec, NotFound, UsageError  # noqa: E402
from shoal.sdk.parallel import make  # noqa: E402
from shoal.sdk.parallel.empty import Filling, is_empty  # noqa: E402
from shoal.sdk.parallel.tuning import Tuning, read_tuning, tune_blocks  # noqa: E402

pytestmark = pytest.mark.torch

ALONE = SimpleNamespace(rank=0, local_rank=0, world_size=1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return x + torch.tanh(self.inner(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.2)


def empty(kind: type[nn.Module] = Net) -> Any:
    with shoal.empty_model():
        return kind()


def wrapped(model: Any, **tuning: Any) -> Any:
    way = make("none", None, ALONE, torch.device("cpu"), tuning=read_tuning(tuning))
    optimizer = torch.optim.AdamW(model.parameters())
    model = way.wrap(model)
    way.adopt(model, optimizer)
    return model, optimizer


def test_an_empty_model_has_buffers_and_tied_weights_but_no_memory() -> None:
    model = empty()
    assert is_empty(model) and all(param.is_meta for param in model.parameters())
    assert model.head.weight is model.embed.weight
    assert model.scale.tolist() == [0.5]
    assert not is_empty(Net()), "only inside"


def test_its_weights_depend_on_the_seed_and_the_names_only() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model, optimizer = wrapped(empty())
    assert torch.equal(torch.get_rng_state(), before)
    other = empty()
    blockwise = Filling(other, torch.initial_seed())
    for block in reversed(other.blocks):
        blockwise.fill(block.modules())
    done = {id(m) for block in other.blocks for m in block.modules()}
    blockwise.fill(m for m in other.modules() if id(m) not in done)
    for (name, one), two in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    assert model.head.weight is model.embed.weight
    assert not torch.equal(model.blocks[0].inner.weight, model.blocks[1].inner.weight)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]


def test_weights_are_read_from_safetensors_files_into_an_empty_model_and_another(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    source = Net()
    state = {name: value.clone() for name, value in source.state_dict().items() if name != "head.weight"}
    save_file(state, tmp_path / "model.safetensors")
    for model in (empty(), Net()):
        shoal.read_weights(model, tmp_path)
        made, _ = wrapped(model)
        for name, value in source.state_dict().items():
            assert torch.equal(made.state_dict()[name], value), name
    del state["blocks.1.inner.bias"]
    save_file(state, tmp_path / "some.safetensors")
    with pytest.raises(UsageError, match=r"no weights for blocks\.1\.inner\.bias"):
        shoal.read_weights(Net(), tmp_path / "some.safetensors")
    save_file({**state, "blocks.1.inner.bias": torch.zeros(7)}, tmp_path / "some.safetensors")
    with pytest.raises(UsageError, match="do not fit Net"):
        shoal.read_weights(Net(), tmp_path / "some.safetensors")
    (tmp_path / "some.safetensors").write_bytes(b"12345678{")
    with pytest.raises(Corrupt):
        shoal.read_weights(Net(), tmp_path / "some.safetensors")
    with pytest.raises(NotFound):
        shoal.read_weights(Net(), tmp_path / "none")


class Silent(Net):
    _init_weights = None  # type: ignore[assignment]


class Forgets(Net):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Parameter(torch.ones(2))


def test_weights_that_nobody_sets_are_refused() -> None:
    with pytest.raises(UsageError, match="nothing says what its weights are"):
        wrapped(empty(Silent))
    with pytest.raises(UsageError, match="leaves extra without a value"):
        wrapped(empty(Forgets))
    with torch.device("meta"):
        lost = Net()
    with pytest.raises(UsageError, match="buffer scale"):
        wrapped(lost)


@pytest.mark.parametrize("kind", ["none", "selective", "full"])
def test_recomputed_activations_change_neither_names_nor_gradients(kind: str) -> None:
    torch.manual_seed(0)
    plain = Net()
    other = Net()
    other.load_state_dict(plain.state_dict())
    calls: list[int] = []
    other.blocks[0].inner.register_forward_hook(lambda *_: calls.append(1))
    other, _ = wrapped(other, activation_checkpointing=kind)
    ids = torch.arange(9).reshape(3, 3)
    for model in (plain, other):
        model(ids).square().mean().backward()
    assert len(calls) == (1 if kind == "none" else 2)
    for (name, one), (same, two) in zip(plain.named_parameters(), other.named_parameters(), strict=True):
        assert name == same
        torch.testing.assert_close(one.grad, two.grad)


def test_each_block_is_compiled_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, *_: compiled.append(self))
    model = Net()
    tune_blocks(model, Tuning(compile=True))
    assert compiled == list(model.blocks)


def test_what_would_have_no_effect_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="needs a sharded model"):
        wrapped(Net(), precision="bf16")
    with pytest.raises(InvalidSpec, match="not one of"):
        wrapped(Net(), precision="fp8")
    with pytest.raises(InvalidSpec, match="not one of"):
        wrapped(Net(), activation_checkpointing="some")
    with pytest.raises(UsageError, match="no list of repeated blocks"):
        wrapped(nn.Linear(2, 2), compile=True)
