"""The staging copy of a state that is on several devices: it waits for, and ends after, the work on each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shoal.sdk.saving.staging import Buffers, StagedCopy, storages  # noqa: E402

pytestmark = pytest.mark.torch


class Stream:
    """Queue of the work on one device. Nothing is done before someone waits for it, as on a device that is slow."""

    def __init__(self, device: Any):
        self.device, self.queue = device, []  # type: ignore[var-annotated]

    def wait_stream(self, other: Stream) -> None:
        self.queue.append(other.synchronize)

    def synchronize(self) -> None:
        while self.queue:
            self.queue.pop(0)()


class Kind:
    """Stand-in for torch.cuda or torch.xpu."""

    def __init__(self, kind: str):
        self.kind = kind
        self.training: dict[Any, Stream] = {}
        self.active: Stream | None = None
        self.made: list[Stream] = []

    def current_stream(self, device: Any) -> Stream:
        if self.active is not None and self.active.device == device:
            return self.active
        return self.training.setdefault(device, Stream(device))

    def Stream(self, device: Any) -> Stream:
        self.made.append(Stream(device))
        return self.made[-1]

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.active = self.active, stream
        yield
        self.active = before


KINDS: dict[str, Kind] = {}


class OnDevice(torch.Tensor):  # type: ignore[misc]
    """Tensor that claims to be on a device; copies from it are queued in the stream that is current there."""

    where: Any

    @property
    def device(self) -> Any:  # type: ignore[override]
        return self.where

    def detach(self) -> Any:
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_ and isinstance(args[1], cls):
            target, source = args[0], args[1]
            stream = KINDS[source.where.type].current_stream(source.where)
            stream.queue.append(lambda: target.copy_(source.as_subclass(torch.Tensor)))
            if not (kwargs or {}).get("non_blocking"):
                stream.synchronize()
            return target
        return super().__torch_function__(func, types, args, kwargs or {})


def on(device: str) -> Any:
    found = torch.zeros(1 << 15).as_subclass(OnDevice)
    found.where = torch.device(device)
    return found


def compute(tensor: Any, value: float) -> None:
    """Queue the training's work that gives the tensor its value."""
    KINDS[tensor.where.type].current_stream(tensor.where).queue.append(
        lambda: tensor.as_subclass(torch.Tensor).data.fill_(value)
    )


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> dict[str, Kind]:
    KINDS.clear()
    KINDS.update(cuda=Kind("cuda"), xpu=Kind("xpu"))
    for kind, module in KINDS.items():
        monkeypatch.setattr(torch, kind, module)
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, pin_memory=False, **more: real(*args, **more))
    return KINDS


@pytest.mark.parametrize("devices", [["cuda:0"], ["cuda:0", "cuda:1", "cuda:2"], ["cuda:1", "xpu:0"]])
def test_the_copy_has_what_every_device_was_still_computing(kinds: dict[str, Kind], devices: list[str]) -> None:
    state = {device: on(device) for device in devices} | {"cpu": torch.full((1 << 15,), 9.0)}
    for number, device in enumerate(devices):
        compute(state[device], number + 1.0)
    snapshot = StagedCopy(1, {"model.pt": state}, storages(state), Buffers())
    assert snapshot.is_copying and snapshot.complete()
    copied = {name: float(value.mean()) for name, value in snapshot.files["model.pt"].items()}
    assert copied == {**{device: number + 1.0 for number, device in enumerate(devices)}, "cpu": 9.0}


def test_each_device_has_one_side_stream_and_the_training_s_own_is_not_used(kinds: dict[str, Kind]) -> None:
    state = {name: on(name.partition("/")[0]) for name in ("cuda:0/a", "cuda:0/b", "cuda:1/a")}
    for tensor in state.values():
        compute(tensor, 1.0)
    StagedCopy(1, {"model.pt": state}, storages(state), Buffers()).complete()
    assert [stream.device.index for stream in kinds["cuda"].made] == [0, 1]
