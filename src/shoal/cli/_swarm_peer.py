"""One peer on this machine: fetches code and data, runs the script beside beats to the server, comes back, leaves no trace."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import __version__
from shoal.cli._format import size
from shoal.cli._local import Ended, LocalRun
from shoal.cli._output import out
from shoal.cli._run_dir import RunDir
from shoal.cli._signals import terminable
from shoal.cli._swarm_beats import Beats
from shoal.cli._swarm_checks import candidates, reachable
from shoal.client.swarm_peers import Door, PeerLink
from shoal.core.errors import Forbidden, ShoalError, Unreachable
from shoal.core.invitations import new_key
from shoal.core.private import write_private
from shoal.core.settings import Layout
from shoal.core.swarm import LOST_SWARM, VARIABLE, Ticket
from shoal.core.swarm_views import Offer, PeerJoin, PeerJoined, PeerOrders, PeerState, SwarmState

if TYPE_CHECKING:
    from shoal.cli._swarm_join import Place

PAUSES_S = (1.0, 3.0, 10.0, 20.0, 30.0)
"""Before the script is started again after the network failed; a run of ten minutes starts the count anew."""
_LASTING_S = 600.0
_KEEPER_S = 60.0
_NETWORK = re.compile(
    r"P2PDaemonError|P2PHandlerError|DialFailed|ConnectionError|ConnectionResetError|ConnectionRefusedError|BrokenPipeError|"
    r"MatchmakingException|AllreduceException|TimeoutError|no route to host|network is unreachable",
    re.IGNORECASE,
)
_KEPT = ("SHOAL_HOME", "SHOAL_SANDBOX", "SHOAL_DEBUG")


def take_part(door: Door, offer: Offer, facts: dict[str, str], place: Place, *, base: Path, name: str) -> int:
    """Join, train until told otherwise, leave; the exit code."""
    signing_key, public_key = new_key()
    request = PeerJoin(
        name=name,
        public_key=public_key,
        version=__version__,
        code=offer.code,
        time=time.time(),
        client_mode=place.client_mode,
        facts=facts,
    )
    joined = door.join(request)
    peer = Peer(door.url, offer, joined, place, base=base, name=name, signing_key=signing_key)
    with terminable():
        try:
            return peer.run()
        except KeyboardInterrupt:
            out.end_line()
            return 0
        finally:
            peer.leave()


def is_network_fault(code: int, reason: str | None) -> bool:
    return code == LOST_SWARM or bool(_NETWORK.search(reason or ""))


class Peer:
    def __init__(
        self, server: str, offer: Offer, joined: PeerJoined, place: Place, *, base: Path, name: str, signing_key: str
    ):
        self._server, self._offer, self._joined, self._place = server, offer, joined, place
        self._base, self._name, self._signing_key = base, name, signing_key
        self._home = base / joined.peer
        self._link = PeerLink(server, joined.token)
        self._data: dict[str, Path] = {}
        self._python = sys.executable

    def run(self) -> int:
        with Beats(self._link, self._joined.orders, PeerState.JOINING) as beats:
            self._fetch()
            self._enter()
        if beats.verdict is not None:
            return self._obey(beats) or 0
        role = "it connects to others" if self._place.client_mode else "others can connect to it"
        out.say(f"Joined swarm '{self._offer.swarm}' as '{self._name}' ({self._joined.peer}); {role}. Ctrl-C leaves.")
        orders = beats.orders
        return self._train(orders if orders.addresses else self._next_orders(orders))

    def leave(self) -> None:
        """Keys, code and state go; the logs stay."""
        os.chdir("/")
        for path in self._home.glob("*"):
            if path.name == "run":
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        with suppress(ShoalError):
            self._link.leave()
            out.say(f"Left swarm '{self._offer.swarm}'.")
        self._link.close()

    def _fetch(self) -> None:
        """Data is shared by all peers of this machine; each has code of its own, which scripts may write to."""
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._base / "fetch.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            received = self._link.fetch(self._joined.code, self._home / "code").received
            for one in self._joined.inputs:
                dest = self._base / "data" / one.manifest_id[:24] / one.name
                dest.parent.mkdir(parents=True, exist_ok=True)
                received += self._link.fetch(one.manifest_id, dest).received
                self._data[one.name] = dest
        out.dim(f"Code and data: {size(self._offer.size)} ({size(received)} fetched)")

    def _enter(self) -> None:
        """What runs from here on is somebody else's code: it sees of our environment what a job would."""
        from shoal.agent.environment import Builder
        from shoal.agent.runtime import base_env
        from shoal.agent.sandbox import Walls, choose

        kept = base_env(os.environ) | {k: v for k in _KEPT if (v := os.environ.get(k))}
        for key in set(os.environ) - set(kept):
            del os.environ[key]
        code = self._home / "code"
        os.chdir(code)
        layout = Layout()
        walls = Walls(choose(layout.cache_dir), layout.private_paths())
        # The swarm's code says which torch it needs; a peer has no other job to keep its own for.
        builder = Builder(
            layout.cache_dir, sys.executable, out.say, lambda: False, walls=walls, allow_torch_change=True
        )
        self._python = builder.interpreter(code, dict(os.environ), self._joined.code)

    def _train(self, orders: PeerOrders) -> int:
        failures = 0
        while True:
            began = time.monotonic()
            with Beats(self._link, orders, PeerState.TRAINING) as beats:
                ended = self._run_script(orders)
            if not ended.stopped:
                beats.look()
            if beats.verdict is not None:
                code = self._obey(beats)
            else:
                failures = 0 if time.monotonic() - began > _LASTING_S else failures
                code = self._judge(ended, failures)
                if code is None:
                    time.sleep(PAUSES_S[failures])
                    failures += 1
            if code is not None:
                return code
            orders = self._next_orders(beats.orders)

    def _next_orders(self, known: PeerOrders) -> PeerOrders:
        """Once the server's own peer is up, without which nobody finds the others; what is known already if the server is down."""
        deadline = time.monotonic() + _KEEPER_S
        while True:
            try:
                known = self._link.beat(PeerState.JOINING)
            except ShoalError:
                return known
            is_over = known.kicked or known.status is not SwarmState.RUNNING
            if known.addresses or is_over or time.monotonic() > deadline:
                return known
            time.sleep(0.5)

    def _run_script(self, orders: PeerOrders) -> Ended:
        root = self._home / "run"
        run_dir = RunDir(root)
        if not run_dir.facts:
            run_dir = RunDir.create(self._offer.swarm, self._joined.entry, 1, root)
        return LocalRun(
            entry=self._joined.entry,
            run_dir=run_dir,
            env=self._joined.env | {VARIABLE: str(self._write_ticket(orders))},
            data=self._data,
            python=self._python,
            stdout=2 if out.json else 1,
        ).run()

    def _write_ticket(self, orders: PeerOrders) -> Path:
        known = candidates(orders.addresses, self._server)
        ticket = Ticket(
            **self._joined.terms.model_dump(),
            swarm=self._offer.swarm,
            run_id=orders.run_id,
            peer=self._joined.peer,
            peer_name=self._name,
            initial_peers=reachable(known) or known,
            client_mode=self._place.client_mode,
            listen=self._place.listen,
            announce=self._place.announce,
            state_dir=str(self._home / "state"),
            server=self._server,
            token=self._joined.token,
            signing_key=self._signing_key,
            members=orders.members,
            owner_key=self._joined.owner_key,
            fingerprint=orders.fingerprint,
            snapshot_url=self._link.snapshot_url if orders.has_snapshot else None,
        )
        path = self._home / "ticket.json"
        write_private(path, ticket.model_dump_json())
        return path

    def _judge(self, ended: Ended, failures: int) -> int | None:
        """The exit code; None to try again."""
        if ended.stopped:
            return 0
        if ended.code == 0:
            out.say("The script has ended: this peer's work is done.")
            return 0
        if not is_network_fault(ended.code, ended.reason):
            out.error(f"The script failed: {ended.reason}", hint=f"Its output is in {self._home / 'run' / 'logs'}")
            return ended.code
        if failures >= len(PAUSES_S):
            raise Unreachable(
                f"The swarm was lost {failures + 1} times in a row: {ended.reason}.",
                hint=f"{out.prog} swarm doctor LINK",
            )
        out.warn(f"The swarm was lost ({ended.reason}). Joining again in {PAUSES_S[failures]:.0f} s …")
        return None

    def _obey(self, beats: Beats) -> int | None:
        """The exit code; None to go on with new orders."""
        if beats.verdict == "kicked":
            raise Forbidden(beats.orders.reason)
        if beats.verdict == "stopped":
            out.say(f"The swarm has stopped: {beats.orders.reason}.")
            return 0
        out.say("The swarm was resumed; joining it again.")
        return None
