"""The wait of a prepared node for the rest of its gang, so that no worker waits at a rendezvous while data is still fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.agent.link import Link, backoff
from shoal.agent.wire import JoinReply, ReadyReply
from shoal.agent.workers.workers import wait_readable
from shoal.core.errors import ShoalError, Unreachable
from shoal.core.ports import free_port

if TYPE_CHECKING:
    from shoal.agent.node.heartbeat import NodeControl

_LEAST_S, _MOST_S = 0.05, 0.5


def wait_for_gang(link: Link, join: JoinReply, control: NodeControl) -> None:
    """Return when the workers may start, or when a stop is requested; put the address where they meet into `join`.

    The port is chosen now and not when the node joined: preparing it may have taken minutes, in which others could take it.
    `link` belongs to the calling thread.
    """
    if not join.start_barrier:
        if join.world_size > 1 and join.num_nodes == 1:
            join.master_port = free_port()
        return
    asks, body = backoff(_LEAST_S, _MOST_S), dict[str, Any]()
    while not control.any:
        try:
            reply = ReadyReply(link.post("/ready", body))
        except (Unreachable, OSError):
            reply, body = ReadyReply({}), {}
        except ShoalError:  # refused: the next heartbeat brings the reason
            reply = ReadyReply({})
        if reply.go:
            join.master_addr, join.master_port = reply.master_addr, reply.master_port
            return
        if reply.choose_port and not body:
            body = {"port": free_port()}
            continue
        body = {}
        wait_readable([control.signals.wake_r], next(asks))
        control.signals.clear()
