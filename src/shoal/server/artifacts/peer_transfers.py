"""Data transfers between nodes: the server only gives each node a key and the addresses of other nodes with its data.

A key is valid for one manifest in one workspace. Without it a node learns neither the bytes nor that another node has them.
"""

from __future__ import annotations

import random

from sqlalchemy import select, tuple_

from shoal.core.agents import JoinRequest, Mount, PeerNodes
from shoal.core.states import NodeState
from shoal.server.artifacts.peer_index import Place
from shoal.server.context import Context
from shoal.server.models.jobs import Node
from shoal.server.policy import AgentIdentity

_HOLDERS = 8
"""Most nodes with complete data whose addresses one node gets."""


def remember(ctx: Context, who: AgentIdentity, request: JoinRequest) -> None:
    if request.giver_port is not None:
        ctx.givers.listens(who.attempt_id, who.node, f"{request.address}:{request.giver_port}")


def of_mounts(ctx: Context, who: AgentIdentity, workspace_id: str, mounts: list[Mount]) -> dict[str, PeerNodes]:
    """Return the nodes that share data, by manifest id; empty for a node that serves no data, as it reads from the store itself."""
    own = ctx.givers.at(who.attempt_id, who.node)
    if own is None or not mounts:
        return {}
    ctx.givers.mounts(who.attempt_id, workspace_id, [m.manifest_id for m in mounts])
    gang = ctx.givers.gang(who.attempt_id)
    return {
        mount.manifest_id: PeerNodes(
            key=ctx.vault.derive(f"neighbours {workspace_id} {mount.manifest_id}"),
            own=own,
            gang=gang,
            holders=_holders(ctx, who, workspace_id, mount.manifest_id),
        )
        for mount in mounts
    }


def _holders(ctx: Context, who: AgentIdentity, workspace_id: str, manifest_id: str) -> list[str]:
    """Return the addresses of running nodes, which have all they mount; removes those that have ended from the index."""
    able = ctx.givers.others(who.attempt_id, workspace_id, manifest_id)
    states = _states(ctx, list(able))
    ctx.givers.forget([place for place in able if NodeState(states.get(place, NodeState.EXITED)).is_terminal])
    found = [at for place, at in able.items() if states.get(place) == NodeState.RUNNING]
    return random.sample(found, min(len(found), _HOLDERS))


def _states(ctx: Context, places: list[Place]) -> dict[Place, str]:
    if not places:
        return {}
    query = select(Node.attempt_id, Node.index, Node.state).where(tuple_(Node.attempt_id, Node.index).in_(places))
    with ctx.db.read() as session:
        return {(attempt_id, index): state for attempt_id, index, state in session.execute(query)}
