"""Machines that join by themselves: a command is pasted there, with a token that admits one machine and expires."""

from __future__ import annotations

import hashlib
import shlex
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from fastapi import Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.agent.devices.device import Inventory
from shoal.core.audit import AuditAction
from shoal.core.errors import InvalidName, NotSignedIn, Refused, ShoalError
from shoal.core.ids import new_id
from shoal.core.names import check_name
from shoal.core.pool import (
    JOIN_HEADER,
    OWN_MACHINE,
    JoinAddresses,
    JoinCommand,
    JoinCommandRequest,
    JoinDone,
    JoinFacts,
    JoinKnock,
    JoinPlan,
    Problem,
)
from shoal.core.schema import utcnow
from shoal.core.settings import ServerSettings
from shoal.engines.kinds import pool_kind
from shoal.server import actor
from shoal.server.audit.record import record_action
from shoal.server.context import Context, Ctx
from shoal.server.edge.certificates import PrivateCA
from shoal.server.models.pool import PoolJoin, PoolRow
from shoal.server.people.keys import new_token
from shoal.server.policy import Policy, hash_token
from shoal.server.pool import pool_rows
from shoal.server.pool.add import wait_until_up
from shoal.server.pool.bootstrap import kind_of
from shoal.server.pool.cluster import our_address
from shoal.server.pool.problems import diagnose, inventory_problems, share
from shoal.server.pool.runtime import runtime, torch_builds, torch_given, torch_indexes
from shoal.server.pool.ssh import program
from shoal.server.pool.ssh_check import knock

TOKEN_PREFIX = "shoalp_"
_SOMEWHERE = "192.0.2.1"
"""Address that is never assigned; the route to it shows the server's default outgoing address."""
_LOADER = "; ".join(
    [
        "import hashlib, ssl, sys, urllib.request as u",
        # What is fetched is checked by its hash, which is why its sender need not be known yet.
        "t = u.HTTPSHandler(context=ssl._create_unverified_context())",
        's = u.build_opener(u.ProxyHandler({{}}), t).open(sys.argv[1] + "/api/v1/pool/join/script", timeout=30).read()',
        'exec(compile(s, "shoal-join", "exec"), {{"SOURCE": s.decode(), "__name__": "__main__"}}) '
        'if hashlib.sha256(s).hexdigest() == "{sha256}" else sys.exit("error: the server has changed; get a new join command")',
    ]
)


@dataclass(frozen=True, slots=True)
class Joiner:
    """Machine that presented a valid join token."""

    join_id: str
    ask: JoinCommandRequest
    address: str
    """Address of this server that the machine uses."""
    machine_id: str | None


class JoinOnly(Policy):
    """Policy of routes that need a join token."""

    def __call__(self, request: Request, ctx: Ctx) -> Joiner:
        token = request.headers.get(JOIN_HEADER, "")
        with ctx.db.read() as session:
            row = session.scalar(select(PoolJoin).where(PoolJoin.token_hash == hash_token(token)))
            used = row is not None and row.machine_id is not None and _is_in(session.get(PoolRow, row.machine_id))
        if row is None or row.expires_at <= utcnow() or used:
            raise NotSignedIn(
                "This join command was already used or has expired.", hint="On the server: shoal pool join-command"
            )
        return Joiner(row.id, JoinCommandRequest.model_validate(row.ask), row.address, row.machine_id)


def command(ctx: Context, ask: JoinCommandRequest) -> JoinCommand:
    address = _our_address(ctx, ask)
    url = ctx.pool.url_at(address)
    token, expires_at = new_token(TOKEN_PREFIX), utcnow() + timedelta(seconds=ask.expires_in_s)
    row = PoolJoin(
        id=new_id("join"),
        token_hash=hash_token(token),
        ask=ask.model_dump(mode="json"),
        address=address,
        expires_at=expires_at,
        machine_id=None,
    )

    def work(session: Session) -> None:
        session.add(row)
        record_action(session, AuditAction.MACHINE_JOIN_COMMAND, ask.name or "", row.id)

    ctx.db.write(work)
    made = script(PrivateCA(ctx.layout).pem, ctx.settings)
    loader = _LOADER.format(sha256=hashlib.sha256(made).hexdigest())
    # The token is passed in the environment: every user of the machine can read arguments.
    line = f"SHOAL_JOIN={token} python3 -c {shlex.quote(loader)} {url}"
    return JoinCommand(command=line, expires_at=expires_at)


def script(ca: str, settings: ServerSettings) -> bytes:
    """Return the program that a joining machine runs; it contains the hash of the wheel it installs, and our CA."""
    return _script(ca, settings.torch_index, settings.wheelhouse)


@cache
def _script(ca: str, torch_index: str, wheelhouse: str) -> bytes:
    ours = runtime()
    task = {"python": list(sys.version_info[:2]), "runtime": ours.name, "wheel_name": ours.wheel_name,
             "sha256": ours.sha256, "extras": ours.extras, "constraints": ours.constraints, "builds": torch_builds(torch_indexes(torch_index)),
             "wheelhouse": wheelhouse, "ca": ca, "daemon": pool_kind().daemon(), "packages": list(pool_kind().packages)}  # fmt: skip
    return program(task, entry="join").encode()


def awaited(ctx: Context) -> set[str]:
    """Return the server's addresses for which there are join tokens that have not expired."""
    with ctx.db.read() as session:
        return set(session.scalars(select(PoolJoin.address).where(PoolJoin.expires_at > utcnow())))


def addresses_to_reach(ctx: Context, who: Joiner, theirs: str, request: JoinKnock) -> JoinAddresses:
    """Return the addresses the machine must reach; with a port in the request, connect to it to test the other direction."""
    if request.port is not None:
        knock(theirs, request.port)
        return JoinAddresses(reach=[])
    url = ctx.pool.connect_at(ctx, who.address)
    return JoinAddresses(reach=ctx.pool.probe_request(url)["reach"])


def add_machine(ctx: Context, who: Joiner, request: JoinFacts) -> JoinPlan:
    """Add a machine that passed its checks, and return the plan of what it must start; raise if it cannot join.

    A machine calls this twice: before the runtime is installed, and with the inventory that the runtime has read, which
    decides its slots.
    """
    facts, ask = request.facts, who.ask
    try:
        found, joining = _examine(ctx, request, ask)
        name, home, address = ask.name or _name(facts["hostname"]), str(facts["home"]), str(facts["address"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"The machine's report is not valid: {error}.") from None
    if fatal := [problem for problem in found if problem.is_fatal]:
        raise Refused("\n".join(["This machine cannot join:", *(f"- {p.text}. {p.fix}" for p in fatal)]))
    url = ctx.pool.connect_at(ctx, who.address)
    task = ctx.pool.daemon_instructions(
        name, slots=joining["slots"], python="{python}", home=home, address=address, gpus=ask.gpus
    )
    actor.identified(f"machine:{name}", who.join_id)
    machine_id = pool_rows.make(ctx, name, ask, via="join", again=who.machine_id)
    problems = [problem.model_dump() for problem in found]
    pool_rows.change(ctx, machine_id, **joining, address=address, home=home, url=url, facts=_without_inventory(facts),
                     problems=problems)  # fmt: skip
    ctx.db.write(lambda session: setattr(session.get_one(PoolJoin, who.join_id), "machine_id", machine_id))
    return JoinPlan(name=name, home=home, argv=task["argv"], token=task["token"])


def _examine(ctx: Context, request: JoinFacts, ask: JoinCommandRequest) -> tuple[list[Problem], dict[str, Any]]:
    """Return a machine's problems, and the values of its row that its inventory decides."""
    facts = request.facts
    given, skew_s = torch_given(ctx.settings, kind_of(facts)), request.time - time.time()
    found = diagnose(facts, needs_runtime=True, skew_s=skew_s, gpus=ask.gpus, torch=given)
    inventory = Inventory.from_json(facts.get("inventory") or {})
    if "inventory" in facts:
        found += inventory_problems(inventory, ask.gpus)
        kind, slots, devices = share(inventory, cores=int(facts["cores"]), gpus=ask.gpus, slots=ask.slots)
    else:
        kind, slots, devices = "cpu", 1, []
    return found, {
        "kind": kind,
        "slots": slots,
        "gpus": ask.gpus,
        "devices": [device.to_json() for device in devices],
    }


def _without_inventory(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "inventory"}


def wheel() -> bytes:
    return runtime().wheel


def done(ctx: Context, who: Joiner, request: JoinDone) -> None:
    if who.machine_id is None:
        raise Refused("This machine has not been added yet.")
    machine_id = who.machine_id
    if not request.ok:
        _fail(ctx, machine_id, request.error or "it could not be set up")
        return
    pool_rows.change(ctx, machine_id, state=pool_rows.UP, python=request.python)
    ctx.pool.refresh(ctx)
    ctx.pool.submit(lambda: _wait(ctx, machine_id))


def _wait(ctx: Context, machine_id: str) -> None:
    with ctx.db.read() as session:
        name = session.get_one(PoolRow, machine_id).name
    try:
        wait_until_up(ctx, name)
    except ShoalError as error:
        _fail(ctx, machine_id, error.message)


def _fail(ctx: Context, machine_id: str, text: str) -> None:
    problem = Problem(text=text, fix="Then get a new command: shoal pool join-command", is_fatal=True)
    pool_rows.change(ctx, machine_id, state=pool_rows.FAILED, problems=[problem.model_dump()])
    ctx.pool.refresh(ctx)
    ctx.pool.disconnect(ctx)


def _is_in(row: PoolRow | None) -> bool:
    return row is not None and row.state in pool_rows.MEMBERS


def _our_address(ctx: Context, ask: JoinCommandRequest) -> str:
    if ask.address is not None:
        try:
            return str(socket.getaddrinfo(ask.address, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            raise Refused(f"The name '{ask.address}' cannot be resolved on the server.") from None
    return ctx.pool.main_address() or our_address(_SOMEWHERE)


def _name(hostname: str) -> str:
    try:
        return check_name(hostname if hostname != OWN_MACHINE else "")
    except InvalidName:
        raise Refused(f"'{hostname}' cannot be its name.", hint="shoal pool join-command --name NAME") from None
