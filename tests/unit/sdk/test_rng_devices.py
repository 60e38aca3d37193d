"""Generators of accelerators: saved per kind, restored by device, and a warning where that is not possible."""

from __future__ import annotations

import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.sdk.saving import rng  # noqa: E402

pytestmark = pytest.mark.torch


class Devices:
    """Stand-in for torch.cuda or torch.xpu: as many devices with a generator each as given."""

    def __init__(self, count: int, *, current: int = 0, seed: int = 0):
        self.generators = [torch.Generator().manual_seed(seed + i) for i in range(count)]
        self.current = current

    def is_available(self) -> bool:
        return bool(self.generators)

    is_initialized = is_available

    def device_count(self) -> int:
        return len(self.generators)

    def current_device(self) -> int:
        return self.current

    def get_rng_state_all(self) -> list[Any]:
        return [g.get_state() for g in self.generators]

    def set_rng_state(self, state: Any, device: int) -> None:
        self.generators[device].set_state(state)

    def manual_seed_all(self, seed: int) -> None:
        for generator in self.generators:
            generator.manual_seed(seed)

    def draw(self) -> list[float]:
        return [float(torch.rand((), generator=g)) for g in self.generators]


class Apple(Devices):
    """Stand-in for torch.mps: one device, whose functions have no numbers."""

    get_rng_state_all = None  # type: ignore[assignment]
    current_device = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(1)

    def get_rng_state(self) -> Any:
        return self.generators[0].get_state()

    def set_rng_state(self, state: Any) -> None:  # type: ignore[override]
        self.generators[0].set_state(state)

    def manual_seed(self, seed: int) -> None:
        self.generators[0].manual_seed(seed)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that lets torch have these devices; all others are absent."""

    def choose(**kinds: Any) -> None:
        for kind in ("cuda", "xpu"):
            monkeypatch.setattr(torch, kind, kinds.get(kind, Devices(0)))
        monkeypatch.setattr(torch, "mps", kinds.get("mps", Apple()))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in kinds)

    return choose


@pytest.mark.parametrize(
    ("kind", "devices"), [("cuda", Devices(2)), ("xpu", Devices(2)), ("mps", Apple())], ids=["cuda", "xpu", "mps"]
)
def test_each_kind_of_device_draws_the_same_numbers_again(use: Any, kind: str, devices: Any, caplog: Any) -> None:
    use(**{kind: devices})
    state = rng.rng_state()
    drawn = devices.draw()
    assert devices.draw() != drawn
    rng.set_rng_state(state)
    assert devices.draw() == drawn and not caplog.records


def test_a_worker_that_sees_other_devices_gets_the_generator_of_its_own_and_says_so(use: Any, caplog: Any) -> None:
    before = Devices(4, current=2, seed=10)
    use(cuda=before)
    state, expected = rng.rng_state(), before.draw()[2]
    now = Devices(1)
    use(cuda=now)
    with caplog.at_level(logging.WARNING):
        rng.set_rng_state(state)
    assert now.draw() == [expected]
    assert "4 cuda devices" in caplog.text and "1" in caplog.text


@pytest.mark.parametrize(
    ("now", "words"),
    [({}, "no cuda device"), ({"xpu": Devices(2)}, "no cuda device"), ({"cuda": Devices(1)}, "2 cuda devices")],
)
def test_a_generator_that_cannot_be_restored_is_a_warning(use: Any, caplog: Any, now: Any, words: str) -> None:
    use(cuda=Devices(2))
    state = rng.rng_state()
    state.pop("current", None)  # as in checkpoints of older versions
    use(**now)
    with caplog.at_level(logging.WARNING):
        rng.set_rng_state(state)
    assert words in caplog.text


def test_a_generator_that_refuses_its_state_is_a_warning_and_the_others_are_restored(use: Any, caplog: Any) -> None:
    devices = Devices(2)
    use(xpu=devices)
    state, drawn = rng.rng_state(), devices.draw()
    state["xpu"][0] = torch.zeros(3, dtype=torch.uint8)
    with caplog.at_level(logging.WARNING):
        rng.set_rng_state(state)
    assert devices.draw()[1] == drawn[1] and "xpu:0" in caplog.text


def test_checkpoints_of_older_versions_restore_their_cuda_generators(use: Any, caplog: Any) -> None:
    devices = Devices(2)
    use(cuda=devices)
    state, drawn = rng.rng_state(), devices.draw()
    rng.set_rng_state({name: state[name] for name in ("python", "torch", "cuda")})
    assert devices.draw() == drawn and not caplog.records


def test_all_devices_are_seeded(use: Any) -> None:
    cuda, xpu, mps = Devices(2), Devices(1), Apple()
    use(cuda=cuda, xpu=xpu, mps=mps)
    rng.seed_everything(3)
    drawn = [*cuda.draw(), *xpu.draw(), *mps.draw()]
    rng.seed_everything(3)
    assert [*cuda.draw(), *xpu.draw(), *mps.draw()] == drawn and len(set(drawn)) == 1


def test_a_resumed_run_warns_once_and_records_it(use: Any, tmp_path: Any) -> None:
    def start() -> Any:
        return shoal.init("t", dir=tmp_path, checkpoint_every_s=None, device="cpu")

    use(cuda=Devices(3))
    run = start()
    run.prepare(nn.Linear(1, 1))
    run.step()
    run.checkpoint(wait=True)
    run.finish()
    use()
    run = start()
    with pytest.warns(UserWarning, match="no cuda device"):
        run.prepare(nn.Linear(1, 1))
    run.step()
    run.finish()
    recorded = [line for path in tmp_path.glob("**/*.jsonl") for line in path.read_text().splitlines()]
    assert sum("no cuda device" in line for line in recorded) == 1
