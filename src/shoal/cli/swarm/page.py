"""Display of a swarm and of its join command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.cli.shared.format import size
from shoal.cli.shared.output import Column, out
from shoal.client.config import is_loopback
from shoal.core.invitations import link_of

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.swarm_views import SwarmSummary, SwarmView

_EVENTS = 15
PEER_COLUMNS = [
    Column("NAME", lambda p: p.name),
    Column("STATE", lambda p: p.state, is_status=True),
    Column("ROUND", lambda p: p.round, is_right=True, rank=3),
    Column("SAMPLES", lambda p: p.samples, is_right=True, rank=5),
    Column("ACCEPTED", lambda p: p.accepted, is_right=True, rank=4),
    Column("SHARE", lambda p: f"{100 * p.share:.1f} %", is_right=True, rank=1),
    Column("PER SECOND", lambda p: number(p.samples_per_s), is_right=True, rank=5),
    Column("LOSS", lambda p: number(p.loss), is_right=True, rank=2),
    Column("SENT", lambda p: size(p.bytes_out), is_right=True, rank=6),
    Column("SEEN", lambda p: p.seen_at, rank=2),
    Column("ID", lambda p: p.id, is_id=True),
]
REPORTED_COLUMNS = [
    Column("NAME", lambda p: p.name),
    Column("STATE", lambda p: p.state, is_status=True),
    Column("REPORTED BY", lambda p: ", ".join(f"{len(m.by)} of {m.of} (round {m.round})" for m in p.evidence[-5:])),
    Column("ACCEPTED", lambda p: p.accepted, is_right=True, rank=1),
    Column("ID", lambda p: p.id, is_id=True),
]
SWARM_COLUMNS = [
    Column("NAME", lambda s: s.name),
    Column("STATUS", lambda s: s.status, is_status=True),
    Column("PEERS", lambda s: s.peers, is_right=True, rank=1),
    Column("ROUND", lambda s: s.round, is_right=True, rank=2),
    Column("SAMPLES", lambda s: samples_of(s), is_right=True, rank=4),
    Column("LOSS", lambda s: number(s.loss), is_right=True, rank=3),
    Column("CREATED", lambda s: s.created_at, rank=3),
    Column("ID", lambda s: s.id, is_id=True),
]


def number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def samples_of(swarm: SwarmSummary) -> int | None:
    """Return the samples of all rounds, or those of the current round while no other is known."""
    return swarm.total_samples or swarm.samples


def join_link(client: Client, token: str, address: str | None = None) -> str:
    """Return the join link with the server's URL as others reach it, or with another address."""
    known = client.address()
    return link_of(address or known.url, token, known.ca_fingerprint)


def print_link(link: str, *, address: str | None) -> None:
    """Print the join command on stdout (it is data, to be passed on) and advice on stderr."""
    out.line(f"{out.prog} swarm join {link}")
    out.info("Share it only with people you trust: anyone with the link can join and read the code and data.")
    if address is None and is_loopback(link):
        out.warn(
            "This server listens on this machine only. For peers on other machines: "
            f"{out.prog} server share --email YOU@example.org, then {out.prog} swarm invite NAME"
        )


def print_swarm(swarm: SwarmView) -> None:
    spec, coordinator = swarm.spec, swarm.keeper
    away = f"{spec.local_steps} local steps" if spec.mode == "local-steps" else "every batch averaged"
    out.fields(
        [
            ("Name", swarm.name),
            ("Status", swarm.status.value),
            ("Reason", swarm.reason),
            ("Peers", swarm.peers),
            ("Round", swarm.round),
            ("Samples", samples_of(swarm)),
            ("Loss", number(swarm.loss)),
            ("Samples/s", number(swarm.performance)),
            ("Terms", f"batch {spec.target_batch_size}, {away}, {spec.compression}, {spec.aggregation}, {spec.trust}"),
            ("Script", " ".join(spec.entry)),
            (
                "Coordinator",
                coordinator.state + (f" (restarted {coordinator.restarts}×)" if coordinator.restarts else ""),
            ),
            ("Problem", coordinator.problem),
            ("Addresses", ", ".join(coordinator.addresses)),
            ("Checkpoints", f"{swarm.checkpoints}, newest {swarm.checkpoint}" if swarm.checkpoint else "none yet"),
            ("Invitations", f"{swarm.invitations} open"),
            ("Page", "public" if swarm.public else None),
            ("Created", swarm.created_at),
            ("By", swarm.created_by),
            ("Id", swarm.id),
        ]
    )
    if swarm.reported:
        out.heading("Reported peers")
        out.table(swarm.reported, REPORTED_COLUMNS)
    if swarm.events:
        out.heading("Events")
        columns = [Column("WHEN", lambda e: e.at), Column("WHAT", lambda e: e.message, is_text=True)]
        out.table(swarm.events[-_EVENTS:], columns)
