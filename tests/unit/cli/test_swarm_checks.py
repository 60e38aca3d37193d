"""Checks before a machine joins a swarm: each problem is one line that ends with what to do."""

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from shoal import __version__
from shoal.cli.shared.signals import terminable
from shoal.cli.swarm import heartbeat
from shoal.cli.swarm.checks import Machine, candidates, checks, reachable, refuse
from shoal.cli.swarm.heartbeat import Beats, judge
from shoal.cli.swarm.peer import PAUSES_S, is_network_fault
from shoal.core.errors import MissingExtra, Refused
from shoal.core.swarm import SwarmTerms
from shoal.core.swarm_views import Offer, PeerInstructions, PeerState

ADDRESS = "/ip4/10.0.0.1/tcp/4001/p2p/Qm"
OFFER = Offer(
    swarm="reef",
    status="running",
    time=0.0,
    version=__version__,
    hivemind="1.1.12",
    code="c" * 64,
    size=10 << 20,
    state_size=5 << 20,
    addresses=[ADDRESS],
    keeper="ready",
    terms=SwarmTerms(target_batch_size=8),
)
MACHINE = Machine(
    python="3.11.9",
    packages={"torch": "2.6.0", "hivemind": "1.1.12", "numpy": "2.3.5"},
    free_bytes=10 << 30,
    folder=Path("/data"),
    skew_s=0.2,
    routes=[ADDRESS],
    tried=[ADDRESS],
    congestion="bbr",
)
TROUBLES = {
    "stopped": (OFFER.model_copy(update={"status": "stopped"}), MACHINE, "is stopped", "shoal swarm resume reef"),
    "other version": (OFFER.model_copy(update={"version": "9.9.0"}), MACHINE, "runs on 9.9.0", "shoal-train[swarm]==9.9.0"),
    "other hivemind": (OFFER.model_copy(update={"hivemind": "1.2.0"}), MACHINE, "runs on 1.2.0", "hivemind==1.2.0"),
    "no hivemind": (OFFER, replace(MACHINE, packages=MACHINE.packages | {"hivemind": None}), "not installed", "shoal-train[swarm]"),
    "no torch": (OFFER, replace(MACHINE, packages=MACHINE.packages | {"torch": None}), "PyTorch", "pip install torch"),
    "new numpy": (OFFER, replace(MACHINE, packages=MACHINE.packages | {"numpy": "2.4.1"}), "numpy 2.4.1", "numpy>=2.2,<2.4"),
    "clock": (OFFER, replace(MACHINE, skew_s=-3600.0), "3600 s behind", "timedatectl"),
    "disk": (OFFER, replace(MACHINE, free_bytes=100 << 20), "The disk of /data has only 100 MiB free", "--dir"),
    "no route": (OFFER, replace(MACHINE, routes=[]), "no answer at 10.0.0.1:4001", "shoal swarm doctor"),
    "no keeper": (OFFER, replace(MACHINE, routes=[], tried=[]), "is not running", "shoal swarm inspect reef"),
}  # fmt: skip


def test_a_machine_that_is_well_may_join():
    found = checks(OFFER, MACHINE)
    assert all(check.is_fine for check in found)
    refuse(found)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_trouble_is_one_line_with_what_to_do(trouble):
    offer, machine, text, fix = TROUBLES[trouble]
    with pytest.raises((Refused, MissingExtra)) as told:
        refuse(checks(offer, machine))
    assert text in told.value.message and "\n" not in told.value.message
    assert fix in told.value.hint


def test_a_slow_line_is_worth_a_word_and_no_more():
    found = checks(OFFER, replace(MACHINE, congestion="reno"))
    refuse(found)
    assert [check.what for check in found if not check.is_fine] == ["tcp"]


def test_the_server_is_also_tried_where_the_link_has_it():
    assert candidates([ADDRESS], "https://a.example/x") == [ADDRESS, "/dns/a.example/tcp/4001/p2p/Qm"]
    assert candidates([ADDRESS], "http://10.0.0.1:80") == [ADDRESS]


def test_only_addresses_where_somebody_answers_are_routes():
    with socket.socket() as listener, socket.socket() as closed:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        closed.bind(("127.0.0.1", 0))
        ports = listener.getsockname()[1], closed.getsockname()[1]
        addresses = [f"/ip4/127.0.0.1/tcp/{port}/p2p/Qm" for port in ports]
        assert reachable([*reversed(addresses), "/ip4/127.0.0.1/udp/1"]) == [addresses[0]]


def test_a_network_fault_is_told_from_a_bug_of_the_script():
    assert is_network_fault(75, None)
    assert is_network_fault(1, "hivemind.p2p.P2PDaemonError: Daemon failed to start")
    assert is_network_fault(1, "ConnectionResetError: [Errno 104]")
    assert not is_network_fault(1, "KeyError: 'lr'")
    assert not is_network_fault(0, None)
    assert len(PAUSES_S) == 5


def test_a_peer_goes_when_it_is_sent_away_or_the_swarm_stops_and_comes_back_when_it_is_resumed():
    orders = PeerInstructions(status="running", run_id="r-1")
    assert judge("r-1", orders) is None
    assert judge("r-1", orders.model_copy(update={"kicked": True})) == "kicked"
    assert judge("r-1", PeerInstructions(status="stopped", run_id="r-1")) == "stopped"
    assert judge("r-1", PeerInstructions(status="running", run_id="r-2")) == "resumed"


class Told:
    """A link to a server that gives these orders, one with each beat, and the last one from then on."""

    def __init__(self, *orders):
        self._orders, self.beaten = list(orders), threading.Event()

    def beat(self, state):
        if len(self._orders) > 1:
            return self._orders.pop(0)
        self.beaten.set()
        return self._orders[0]


@pytest.mark.parametrize(("change", "verdict"), [({"kicked": True}, "kicked"), ({"status": "stopped"}, "stopped")])
def test_a_peer_that_is_sent_away_while_it_fetches_knows_why(monkeypatch, change, verdict):
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.2)  # later than the thread takes to start, also on a busy machine
    orders = PeerInstructions(status="running", run_id="r-1")
    with terminable(), Beats(Told(PeerInstructions(**{**dict(orders), **change})), orders, PeerState.JOINING) as beats:
        threading.Event().wait(20)
        raise AssertionError("it was not interrupted")
    assert beats.verdict == verdict


def test_a_peer_that_fetches_while_the_swarm_is_resumed_begins_with_the_new_run(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.001)
    link = Told(PeerInstructions(status="running", run_id="r-2"), PeerInstructions(status="running", run_id="r-2"))
    with terminable(), Beats(link, PeerInstructions(status="running", run_id="r-1"), PeerState.JOINING) as beats:
        assert link.beaten.wait(20)
    assert (beats.verdict, beats.instructions.run_id) == (None, "r-2")


def test_ctrl_c_while_a_peer_fetches_is_ctrl_c():
    link = Told(PeerInstructions(status="running", run_id="r-1"))
    with (
        pytest.raises(KeyboardInterrupt),
        Beats(link, PeerInstructions(status="running", run_id="r-1"), PeerState.JOINING),
    ):
        raise KeyboardInterrupt
