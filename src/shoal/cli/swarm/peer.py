"""One peer on this machine: download code and data, run the script with heartbeats, rejoin after failures, clean up."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shoal import __version__
from shoal.cli.run.local import Ended, LocalRun
from shoal.cli.run.run_dir import RunDir
from shoal.cli.shared.format import size
from shoal.cli.shared.output import out
from shoal.cli.shared.signals import terminable
from shoal.cli.swarm.checks import candidates, reachable
from shoal.cli.swarm.heartbeat import Beats
from shoal.client.config import known_ca
from shoal.client.swarm_peers import InvitationClient, PeerLink
from shoal.core import system
from shoal.core.errors import Forbidden, ShoalError, Unreachable
from shoal.core.invitations import new_key
from shoal.core.private import write_private
from shoal.core.settings import Layout
from shoal.core.swarm import LOST_SWARM, VARIABLE, Ticket
from shoal.core.swarm_views import Offer, PeerInstructions, PeerJoin, PeerJoined, PeerState, SwarmState
from shoal.core.tls import CA_VAR

if TYPE_CHECKING:
    from shoal.cli.swarm.join import Place

PAUSES_S = (1.0, 3.0, 10.0, 20.0, 30.0)
"""Seconds before each restart of the script after a network failure. After a run of ten minutes, the count starts again."""
_LASTING_S = 600.0
_COORDINATOR_S = 60.0
_NETWORK = re.compile(
    r"P2PDaemonError|P2PHandlerError|DialFailed|ConnectionError|ConnectionResetError|ConnectionRefusedError|BrokenPipeError|"
    r"MatchmakingException|AllreduceException|TimeoutError|no route to host|network is unreachable",
    re.IGNORECASE,
)
_KEPT = ("SHOAL_HOME", "SHOAL_SANDBOX", "SHOAL_DEBUG")


def join_and_train(
    invitation: InvitationClient, offer: Offer, facts: dict[str, str], place: Place, *, base: Path, name: str
) -> int:
    """Join the swarm, train until stopped, leave it, and return the exit code."""
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
    joined = invitation.join(request)
    peer = Peer(invitation.url, offer, joined, place, base=base, name=name, signing_key=signing_key)
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
        ca = known_ca(server) if server.startswith("https://") else None
        self._trust = {CA_VAR: ca} if ca else {}
        """The server's CA for the script's process, which has no other way to know it."""

    def run(self) -> int:
        with Beats(self._link, self._joined.orders, PeerState.JOINING) as beats:
            self._fetch()
            self._enter()
        if beats.verdict is not None:
            return self._obey(beats) or 0
        role = "it connects to other peers" if self._place.client_mode else "other peers can connect to it"
        out.info(
            f"Joined swarm '{self._offer.swarm}' as '{self._name}' ({self._joined.peer}); {role}. Press Ctrl-C to leave."
        )
        instructions = beats.instructions
        return self._train(instructions if instructions.addresses else self._wait_for_instructions(instructions))

    def leave(self) -> None:
        """Delete keys, code and state (the logs are kept), and tell the server that this peer leaves."""
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
            out.info(f"Left swarm '{self._offer.swarm}'.")
        self._link.close()

    def _fetch(self) -> None:
        """Download code and data. All peers of this machine share the data; each has its own copy of the code to write to.

        A file lock lets one process download at a time, so that two peers never write the same dataset.
        """
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._base / "fetch.lock").open("a") as lock:
            system.flock(lock, system.LOCK_EX)
            received = self._link.fetch(self._joined.code, self._home / "code").received
            for one in self._joined.inputs:
                dest = self._base / "data" / one.manifest_id[:24] / one.name
                dest.parent.mkdir(parents=True, exist_ok=True)
                received += self._link.fetch(one.manifest_id, dest).received
                self._data[one.name] = dest
        out.dim(f"Code and data: {size(self._offer.size)} ({size(received)} fetched)")

    def _enter(self) -> None:
        """Remove all environment variables that a job would not get, as the swarm's code may be untrusted; build its venv."""
        from shoal.agent.sandbox.mounts import Walls, choose
        from shoal.agent.workers.environment import Builder
        from shoal.agent.workers.runtime import base_env

        kept = base_env(os.environ) | {k: v for k in _KEPT if (v := os.environ.get(k))}
        for key in set(os.environ) - set(kept):
            del os.environ[key]
        code = self._home / "code"
        os.chdir(code)
        layout = Layout()
        walls = Walls(choose(layout.cache_dir), layout.private_paths())
        # The swarm's requirements may replace torch: this environment is used by no other job.
        builder = Builder(
            layout.cache_dir, sys.executable, out.info, lambda: False, walls=walls, allow_torch_change=True
        )
        self._python = builder.interpreter(code, dict(os.environ), self._joined.code)

    def _train(self, instructions: PeerInstructions) -> int:
        failures = 0
        while True:
            began = time.monotonic()
            with Beats(self._link, instructions, PeerState.TRAINING) as beats:
                ended = self._run_script(instructions)
            if not ended.stopped:
                beats.send_last()
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
            instructions = self._wait_for_instructions(beats.instructions)

    def _wait_for_instructions(self, known: PeerInstructions) -> PeerInstructions:
        """Wait for the swarm coordinator, through which peers find each other, and return the server's instructions.

        Returns the known instructions if the server does not answer.
        """
        deadline = time.monotonic() + _COORDINATOR_S
        while True:
            try:
                known = self._link.beat(PeerState.JOINING)
            except ShoalError:
                return known
            is_over = known.kicked or known.status is not SwarmState.RUNNING
            if known.addresses or is_over or time.monotonic() > deadline:
                return known
            time.sleep(0.5)

    def _run_script(self, instructions: PeerInstructions) -> Ended:
        root = self._home / "run"
        run_dir = RunDir(root)
        if not run_dir.facts:
            run_dir = RunDir.create(self._offer.swarm, self._joined.entry, 1, root)
        return LocalRun(
            entry=self._joined.entry,
            run_dir=run_dir,
            env=self._joined.env | self._trust | {VARIABLE: str(self._write_ticket(instructions))},
            data=self._data,
            python=self._python,
            stdout=2 if out.json else 1,
        ).run()

    def _write_ticket(self, instructions: PeerInstructions) -> Path:
        known = candidates(instructions.addresses, self._server)
        ticket = Ticket(
            **self._joined.terms.model_dump(),
            swarm=self._offer.swarm,
            run_id=instructions.run_id,
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
            members=instructions.members,
            owner_key=self._joined.owner_key,
            fingerprint=instructions.fingerprint,
            snapshot_url=self._link.state_url if instructions.has_snapshot else None,
        )
        path = self._home / "ticket.json"
        write_private(path, ticket.model_dump_json())
        return path

    def _judge(self, ended: Ended, failures: int) -> int | None:
        """Return the exit code, or None to join again."""
        if ended.stopped:
            return 0
        if ended.code == 0:
            out.info("The script has finished; this peer is done.")
            return 0
        if not is_network_fault(ended.code, ended.reason):
            out.error(f"The script failed: {ended.reason}", hint=f"Its output is in {self._home / 'run' / 'logs'}")
            return ended.code
        if failures >= len(PAUSES_S):
            raise Unreachable(
                f"The connection to the swarm was lost {failures + 1} times in a row: {ended.reason}.",
                hint=f"{out.prog} swarm doctor LINK",
            )
        out.warn(f"Lost the connection to the swarm ({ended.reason}). Joining again in {PAUSES_S[failures]:.0f} s …")
        return None

    def _obey(self, beats: Beats) -> int | None:
        """Act on the verdict of the heartbeats; return the exit code, or None to continue with new instructions."""
        if beats.verdict == "kicked":
            raise Forbidden(beats.instructions.reason)
        if beats.verdict == "stopped":
            out.info(f"The swarm has stopped: {beats.instructions.reason}.")
            return 0
        out.info("The swarm was resumed; joining it again.")
        return None
