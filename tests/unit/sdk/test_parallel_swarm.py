"""`parallel="swarm"` where there is no swarm, and where it cannot be one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import shoal  # noqa: E402
from shoal.core.errors import UsageError  # noqa: E402
from shoal.sdk.parallel.swarm import SwarmPeer, make_peer  # noqa: E402

CPU = torch.device("cpu")


def test_without_a_swarm_the_same_script_trains_alone_and_says_how_to_join(tmp_path: Path, caplog):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.WARNING), shoal.init(parallel="swarm", dir=tmp_path, checkpoint_every_s=None) as run:
        model, optimizer = run.prepare(model, optimizer)
        before = model.weight.clone()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        run.step(loss=1.0)
        assert run.swarm is None
        assert not torch.equal(model.weight, before)
    assert "shoal swarm join" in caplog.text


def test_a_peer_is_one_process():
    with pytest.raises(UsageError, match="one process") as caught:
        make_peer(CPU, 2, None)
    assert "torchrun" in str(caught.value.hint)


def test_a_swarm_trains_with_one_optimizer_and_one_schedule():
    pytest.importorskip("hivemind")
    peer = make_peer(CPU, 1, {"run_id": "test", "target_batch_size": 8})
    assert isinstance(peer, SwarmPeer)
    model = peer.wrap(torch.nn.Linear(2, 1))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    peer.adopt(model, optimizers[0])
    with pytest.raises(UsageError, match="one optimizer"):
        peer.adopt(model, optimizers[1])
    schedulers = [torch.optim.lr_scheduler.ConstantLR(optimizers[0]) for _ in range(2)]
    with pytest.raises(UsageError, match="one schedule"):
        peer.begin(schedulers, lambda: None)


def test_samples_are_those_the_loader_tells_or_those_that_went_through_the_model():
    peer = SwarmPeer(CPU, make_peer(CPU, 1, {"run_id": "test", "target_batch_size": 8})._settings)
    model = peer.wrap(torch.nn.Linear(2, 1))
    peer._loader_samples = lambda: None
    model(torch.ones(5, 2))
    model(torch.ones(3, 2))
    with torch.no_grad():
        model(torch.ones(100, 2))
    assert peer._samples() == 8
    peer._loader_samples = lambda: 7
    assert peer._samples() == 7
