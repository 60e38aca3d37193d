"""Machines that come by themselves: one line is pasted there, with a token that takes in one machine and expires."""

from __future__ import annotations

import hashlib
import shlex
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from fastapi import Request
from sqlalchemy import select

from shoal.core.errors import InvalidName, NotSignedIn, Refused, ShoalError
from shoal.core.ids import new_id
from shoal.core.names import check_name
from shoal.core.pool import (
    JOIN_HEADER,
    OWN_MACHINE,
    JoinAsk,
    JoinCommand,
    JoinDone,
    JoinFacts,
    JoinKnock,
    JoinPlan,
    JoinWays,
    Problem,
)
from shoal.core.schema import utcnow
from shoal.server.context import Context, Ctx
from shoal.server.models.pool import PoolJoin, PoolRow
from shoal.server.policy import Policy, hash_token
from shoal.server.pool import our_address
from shoal.server.services import pool_rows
from shoal.server.services.keys import new_token
from shoal.server.services.pool_add import wait_until_up
from shoal.server.services.pool_look import knock
from shoal.server.services.pool_problems import diagnose, share
from shoal.server.services.pool_runtime import runtime
from shoal.server.services.pool_ssh import program

TOKEN_PREFIX = "shoalp_"
_SOMEWHERE = "192.0.2.1"
"""An address nobody has: the way there is the way out."""
_LOADER = "; ".join(
    [
        "import hashlib, sys, urllib.request as u",
        's = u.build_opener(u.ProxyHandler({{}})).open(sys.argv[1] + "/api/v1/pool/join/script", timeout=30).read()',
        'exec(compile(s, "shoal-join", "exec"), {{"SOURCE": s.decode(), "__name__": "__main__"}}) '
        'if hashlib.sha256(s).hexdigest() == "{sha256}" else sys.exit("error: the server has changed; ask for a new line")',
    ]
)


@dataclass(frozen=True, slots=True)
class Joiner:
    """The machine that holds a token."""

    join_id: str
    ask: JoinAsk
    address: str
    """Of ours."""
    machine_id: str | None


class JoinOnly(Policy):
    def __call__(self, request: Request, ctx: Ctx) -> Joiner:
        token = request.headers.get(JOIN_HEADER, "")
        with ctx.db.read() as session:
            row = session.scalar(select(PoolJoin).where(PoolJoin.token_hash == hash_token(token)))
            used = row is not None and row.machine_id is not None and _is_in(session.get(PoolRow, row.machine_id))
        if row is None or row.expires_at <= utcnow() or used:
            raise NotSignedIn(
                "This line was used, or has expired.", hint="Ask for a new one on the server: shoal pool join-command"
            )
        return Joiner(row.id, JoinAsk.model_validate(row.ask), row.address, row.machine_id)


def command(ctx: Context, ask: JoinAsk) -> JoinCommand:
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
    ctx.db.write(lambda session: session.add(row))
    loader = _LOADER.format(sha256=hashlib.sha256(script()).hexdigest())
    # The token goes by the environment: arguments are for all to see.
    line = f"SHOAL_JOIN={token} python3 -c {shlex.quote(loader)} {url}"
    return JoinCommand(command=line, expires_at=expires_at)


@cache
def script() -> bytes:
    """What a machine runs; all it installs is named in it by its hash."""
    ours = runtime()
    order = {"python": list(sys.version_info[:2]), "runtime": ours.name, "wheel_name": ours.wheel_name,
             "sha256": ours.sha256, "extras": ours.extras, "constraints": ours.constraints}  # fmt: skip
    return program(order, entry="join").encode()


def awaited(ctx: Context) -> set[str]:
    """Addresses of ours at which somebody may still come."""
    with ctx.db.read() as session:
        return set(session.scalars(select(PoolJoin.address).where(PoolJoin.expires_at > utcnow())))


def ways(ctx: Context, who: Joiner, theirs: str, request: JoinKnock) -> JoinWays:
    """Where it must get through to; tries whether we get through to it."""
    if request.port is not None:
        knock(theirs, request.port)
        return JoinWays(reach=[])
    url = ctx.pool.connect_at(ctx, who.address)
    return JoinWays(reach=ctx.pool.ways(url)["reach"])


def take_in(ctx: Context, who: Joiner, request: JoinFacts) -> JoinPlan:
    facts, ask = request.facts, who.ask
    try:
        found = diagnose(facts, needs_runtime=True, skew_s=request.time - time.time(), gpus=ask.gpus)
        kind, slots, gpus = share(facts, gpus=ask.gpus, slots=ask.slots)
        name, home, address = ask.name or _name(facts["hostname"]), str(facts["home"]), str(facts["address"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"What the machine says of itself is not understood: {error}.") from None
    if fatal := [problem for problem in found if problem.is_fatal]:
        raise Refused("\n".join(["This machine cannot join:", *(f"- {p.text}. {p.fix}" for p in fatal)]))
    url = ctx.pool.connect_at(ctx, who.address)
    order = ctx.pool.node_order(name, slots=slots, python="{python}", home=home, address=address)
    machine_id = pool_rows.make(ctx, name, ask, via="join", again=who.machine_id)
    problems = [problem.model_dump() for problem in found]
    pool_rows.change(ctx, machine_id, kind=kind, slots=slots, gpus=gpus, address=address, home=home, url=url, facts=facts,
                     problems=problems)  # fmt: skip
    ctx.db.write(lambda session: setattr(session.get_one(PoolJoin, who.join_id), "machine_id", machine_id))
    return JoinPlan(name=name, home=home, argv=order["argv"], token=order["token"])


def wheel() -> bytes:
    return runtime().wheel


def done(ctx: Context, who: Joiner, request: JoinDone) -> None:
    if who.machine_id is None:
        raise Refused("This machine has not been taken in yet.")
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
    problem = Problem(text=text, fix="Then a new line: shoal pool join-command", is_fatal=True)
    pool_rows.change(ctx, machine_id, state=pool_rows.FAILED, problems=[problem.model_dump()])
    ctx.pool.refresh(ctx)
    ctx.pool.disconnect(ctx)


def _is_in(row: PoolRow | None) -> bool:
    return row is not None and row.state in pool_rows.MEMBERS


def _our_address(ctx: Context, ask: JoinAsk) -> str:
    if ask.address is not None:
        try:
            return str(socket.getaddrinfo(ask.address, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            raise Refused(f"The name '{ask.address}' is not known to the name service here.") from None
    return ctx.pool.main_address() or our_address(_SOMEWHERE)


def _name(hostname: str) -> str:
    try:
        return check_name(hostname if hostname != OWN_MACHINE else "")
    except InvalidName:
        raise Refused(f"'{hostname}' cannot be its name.", hint="shoal pool join-command --name NAME") from None
