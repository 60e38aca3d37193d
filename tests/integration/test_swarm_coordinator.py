"""A swarm's keeper: one at any time, whoever is killed; nothing it tells is lost or counted twice."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy import func, select

from shoal.core.swarm import SwarmSpec
from shoal.core.swarm_views import Kick, PeerJoin
from shoal.server.models.swarm import Swarm, SwarmCheckpoint, SwarmEventRow, SwarmRound
from shoal.server.swarms import kick as swarm_kick
from shoal.server.swarms import peers as swarm_peers
from shoal.server.swarms import service as swarms
from shoal.server.swarms import swarm_rows
from shoal.server.swarms.invitations import guest
from shoal.server.swarms.process import MARK
from shoal.testing.engines import eventually
from shoal.testing.extras import needs
from shoal.testing.patience import patient
from shoal.testing.server import add_person, add_source, make_context

# Not imported to see whether it is there: that takes seconds.
pytestmark = needs("hivemind")

HERE = Path(__file__).parent
KILLS = int(os.environ.get("SHOAL_SWARM_KILLS", "1"))


class World:
    """A home with one swarm, of which this process is a second reader and writer beside the server's."""

    def __init__(self, home, servers):
        self.home, self.servers, self.ctx = home, servers, make_context(home)
        self.person = add_person(self.ctx, "anna@example.org")
        self.access = self.person.access()
        spec = SwarmSpec(
            name="reef", entry=["train.py"], source_id=add_source(self.ctx, self.person), target_batch_size=8
        )
        self.made = swarms.create(self.ctx, self.access, spec)
        self.id = self.made.swarm.id
        self.folder = swarm_rows.folder(self.ctx, self.id)
        self.peers = []

    @contextmanager
    def server(self):
        self.servers.stdin.write(f"{self.home}\n".encode())
        self.servers.stdin.flush()
        process = psutil.Process(int(self.servers.stdout.readline()))
        try:
            yield process
        finally:
            kill(process)

    def keepers(self):
        """The processes of the swarm that are leaders of a session: there must never be two."""
        return [p for p in self.processes() if os.getsid(p.pid) == p.pid]

    def processes(self):
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, ProcessLookupError):
                continue
        return found

    def row(self):
        with self.ctx.db.read() as session:
            return session.get_one(Swarm, self.id)

    def round(self):
        return (self.row().progress or {}).get("round") or 0

    def rounds(self):
        with self.ctx.db.read() as session:
            return list(session.scalars(select(SwarmRound.round).where(SwarmRound.swarm_id == self.id)))

    def count(self, kind):
        mine = (SwarmEventRow.swarm_id == self.id, SwarmEventRow.kind == kind)
        with self.ctx.db.read() as session:
            return session.scalar(select(func.count()).select_from(SwarmEventRow).where(*mine))

    def heard(self):
        try:
            return [json.loads(line) for line in (self.folder / "heard.jsonl").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def close(self):
        for process in self.processes():
            process.kill()
        psutil.wait_procs(self.processes(), timeout=patient(10))
        self.ctx.db.close()


@pytest.fixture(scope="module")
def servers():
    """The process that forks servers."""
    argv = [sys.executable, str(HERE / "swarm_server.py"), str(HERE / "swarm_coordinator.py")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def world(tmp_path, servers):
    made = World(tmp_path / "home", servers)
    yield made
    made.close()


def kill(process):
    with suppress(psutil.NoSuchProcess):
        process.kill()
    process.wait(patient(10))


def is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_there_is_one_keeper_whoever_is_killed_and_no_word_of_it_is_lost(world):
    with world.server() as server:
        eventually(lambda: world.round() >= 3, 60, "the keeper tells nothing")
        [keeper] = world.keepers()
        kill(server)
    told = world.folder / "told.1.jsonl"
    eventually(
        lambda: told.stat().st_size > world.row().coordinator_read + 300, 60, "it does not go on without a server"
    )
    for _ in range(KILLS):
        with world.server() as server:
            before = world.round()
            eventually(lambda before=before: world.round() > before + 2, 60, "what it tells is not read")
            assert [p.pid for p in world.keepers()] == [keeper.pid], "it was not adopted"
            kill(server)
    rounds = world.rounds()
    assert rounds == list(range(1, max(rounds) + 1)), "a round is missing"
    assert world.row().coordinator_starts == 1 and world.count("ready") == 1
    # Now the keeper, too: its child, which ignores SIGTERM, is left.
    left = [p for p in world.processes() if p.pid != keeper.pid]
    keeper.kill()
    assert left and all(map(is_alive, left))
    with world.server():
        for starts in range(2, KILLS + 3):
            eventually(lambda starts=starts: world.count("ready") == starts, 60, "it is not started again")
            [now] = world.keepers()
            assert now.pid != keeper.pid and not any(map(is_alive, left)), "something of the one before is left"
            keeper, left = now, world.processes()
            keeper.kill()
        eventually(lambda: world.count("ready") == KILLS + 3, 60, "it is not started again")
        assert len(world.keepers()) == 1


def test_a_keeper_hears_of_its_peers_keeps_a_last_checkpoint_and_goes_on_from_it(world):
    with world.server():
        eventually(lambda: world.round() >= 5, 60, "the keeper tells nothing")
        join(world, "one", "a" * 64)
        join(world, "two", "b" * 64)
        swarm_kick.kick(world.ctx, world.access, "reef", "two", Kick(reason="noise"))
        eventually(lambda: {"do": "kick", "peer": banned(world)[0]} in world.heard(), 60, "the ban is not told")
        eventually(lambda: members(world) == (["a" * 64], banned(world)), 60, "the members are told after the ban")
        swarms.stop(world.ctx, world.access, "reef")
        eventually(lambda: not world.row().addresses, 60, "its address is still shown")
        assert not world.processes(), "the keeper does not leave"
        with world.ctx.db.read() as session:
            [kept] = session.scalars(select(SwarmCheckpoint).where(SwarmCheckpoint.swarm_id == world.id))
        assert kept.round >= 5
        leave(world)
        swarms.resume(world.ctx, world.access, "reef")
        eventually(lambda: world.round() > kept.round, 60, "it does not go on")
        order = json.loads((world.folder / "order.json").read_text())
        assert order["snapshot"].endswith(kept.checkpoint_id) and order["ticket"]["run_id"] == f"{world.id}-2"
        rounds = world.rounds()
        assert rounds == list(range(1, max(rounds) + 1))
        swarms.stop(world.ctx, world.access, "reef")
        swarms.delete(world.ctx, world.access, "reef")
        eventually(lambda: not world.processes() and not world.folder.exists(), 60, "something of it is left")


def join(world, name, key):
    who = guest(world.ctx, world.made.invitation.token)
    offer = swarm_peers.offer(world.ctx, who)
    asked = PeerJoin(name=name, public_key=key, version=offer.version, code=offer.code, time=time.time())
    world.peers.append(swarm_peers.join(world.ctx, who, asked).peer)


def leave(world):
    for peer in world.peers:
        swarm_peers.leave(world.ctx, swarm_peers.Peer(peer, world.id))


def members(world):
    """Return the keys of the members and the banned peers that the coordinator was told last."""
    told = [message for message in world.heard() if message["do"] == "members"]
    return (list(told[-1]["members"].values()), told[-1]["banned"]) if told else None


def banned(world):
    return [world.peers[1]]
