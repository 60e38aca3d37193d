"""How a swarm and its join command are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli._format import size
from shoal.cli._output import Column, out
from shoal.client.config import is_loopback
from shoal.core.invitations import link_of

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.swarm_views import SwarmView

_EVENTS = 15
PEER_COLUMNS = [
    Column("NAME", lambda p: p.name),
    Column("STATE", lambda p: p.state, is_status=True),
    Column("ROUND", lambda p: p.round, is_right=True, rank=3),
    Column("SAMPLES", lambda p: p.samples, is_right=True, rank=4),
    Column("SHARE", lambda p: f"{100 * p.share:.1f} %", is_right=True, rank=1),
    Column("PER SECOND", lambda p: number(p.samples_per_s), is_right=True, rank=5),
    Column("LOSS", lambda p: number(p.loss), is_right=True, rank=2),
    Column("SENT", lambda p: size(p.bytes_out), is_right=True, rank=6),
    Column("SEEN", lambda p: p.seen_at, rank=2),
    Column("ID", lambda p: p.id, is_id=True),
]


def number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def join_link(client: Client, token: str, address: str | None = None) -> str:
    """As whoever reaches the server as we do would open it, or by another address."""
    return link_of(address or client.url, token)


def tell_link(link: str, *, address: str | None) -> None:
    """The command is data: it is what one passes on."""
    out.line(f"{out.prog} swarm join {link}")
    out.say("Pass it on: whoever has it can join, and sees the code and the data.")
    if address is None and is_loopback(link):
        out.warn(
            "this server listens on this machine only; for others: shoal server start --host 0.0.0.0 --shared, "
            "then shoal swarm invite NAME --address http://THIS_MACHINE:PORT"
        )


def print_swarm(swarm: SwarmView) -> None:
    spec, keeper = swarm.spec, swarm.keeper
    away = f"{spec.local_steps} local steps" if spec.mode == "local-steps" else "every batch averaged"
    out.fields(
        [
            ("Name", swarm.name),
            ("Status", swarm.status.value),
            ("Reason", swarm.reason),
            ("Peers", swarm.peers),
            ("Round", swarm.round),
            ("Samples", swarm.total_samples or swarm.samples),
            ("Loss", number(swarm.loss)),
            ("Samples/s", number(swarm.performance)),
            ("Terms", f"batch {spec.target_batch_size}, {away}, {spec.compression}, {spec.aggregation}, {spec.trust}"),
            ("Script", " ".join(spec.entry)),
            ("Keeper", keeper.state + (f" (restarted {keeper.restarts}×)" if keeper.restarts else "")),
            ("Problem", keeper.problem),
            ("Addresses", ", ".join(keeper.addresses)),
            ("Checkpoints", f"{swarm.checkpoints}, newest {swarm.checkpoint}" if swarm.checkpoint else "none yet"),
            ("Invitations", f"{swarm.invitations} open"),
            ("Page", "public" if swarm.public else None),
            ("Created", swarm.created_at),
            ("By", swarm.created_by),
            ("Id", swarm.id),
        ]
    )
    if swarm.events:
        out.heading("What happened")
        columns = [Column("WHEN", lambda e: e.at), Column("WHAT", lambda e: e.message, is_text=True)]
        out.table(swarm.events[-_EVENTS:], columns)
