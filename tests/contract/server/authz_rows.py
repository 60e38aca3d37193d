"""T1, the table: every route, and who may call it. Written apart from the code's own policy; a body is one that is valid."""

import json
from dataclasses import dataclass, field
from typing import Any

from shoal.core.people import Role, Scope


@dataclass(frozen=True)
class Row:
    """Row of the matrix: who may call a route (anyone, agents, admins, people with a scope, or members with a role and a scope)."""

    who: str
    role: Role | None = None
    scope: Scope = Scope.READ
    body: Any = None
    params: dict[str, Any] = field(default_factory=dict)
    foreign: str | tuple[str, ...] | None = None
    """The part (or parts) of the path or body that names a thing of another tenant's."""
    content: bytes | None = None
    use: dict[str, str] = field(default_factory=dict)
    """Objects that path parameters stand for, if not the one of the same name."""


def public(body=None):
    return Row("anyone", body=body)


def person(scope, body=None, foreign=None):
    return Row("person", scope=scope, body=body, foreign=foreign)


def admin(body=None):
    return Row("admin", scope=Scope.ADMIN, body=body)


def member(role, scope, body=None, foreign=None, **more):
    return Row("member", role=role, scope=scope, body=body, foreign=foreign, **more)


def agent(body=None, **more):
    return Row("agent", body=body, **more)


def joiner(body=None):
    return Row("joiner", body=body)


def guest(body=None):
    """A caller with an invitation to a swarm."""
    return Row("guest", body=body)


def peer(body=None, **more):
    return Row("peer", body=body, **more)


VIEW = (Role.VIEWER, Scope.READ)
WORK = (Role.MEMBER, Scope.WRITE)
OWN = (Role.OWNER, Scope.ADMIN)
W = "/workspaces/{workspace}"
PASSWORD = "long enough, this"
EMPTY = {"files": []}
UPLOAD = {"dataset": "upload"}
JOIN = {"pid": 1, "boot_id": "b", "host": "h", "address": "127.0.0.1", "port": 1}
RUN = {"run_id": "another", "name": "another", "created": "2026-01-31T12:00:00Z"}
IMPORTED = {"job": "imported"}
MEDIUM = {
    "rank": 0, "n": 9, "t": 1.0, "step": 1, "name": "m", "type": "image", "manifest": {"files": [{"path": "m.png", "size": 0, "chunks": []}]},
}  # fmt: skip
SWEEP = {
    "name": "s2", "job": {"name": "s2", "entry": ["train.py"], "source_id": "<source>"}, "space": {"lr": {"kind": "choice", "values": [1]}},
}  # fmt: skip
SWARM = {"name": "w2", "entry": ["train.py"], "source_id": "<source>", "target_batch_size": 8}
PEER = {"name": "p", "public_key": "a" * 64, "version": "0", "code": "", "time": 0}
PREFLIGHT = {"name": "p2", "entry": ["train.py"], "source_id": "<source>"}
SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE5ld0tleU9mVGhlVGVzdE5ld0tleU9mVGhlVGVzdDAw"
BUG = {"rank": 0, "n": 9, "t": 1.0, "step": 1, "name": "step-1-rank-0", "error": "E", "manifest": EMPTY}

ROUTES = {
    "GET /health": public(),
    "GET /health/live": public(),
    "GET /health/ready": public(),
    "GET /ca": public(),
    "GET /address": person(Scope.READ),
    "POST /auth/sign-up": public({"email": "new@example.org", "password": PASSWORD}),
    "POST /auth/sign-in": public({"email": "new@example.org", "password": PASSWORD}),
    "POST /auth/owner": person(Scope.ADMIN, {"email": "new@example.org", "password": PASSWORD}),
    "POST /auth/invitation": person(Scope.ADMIN, {"code": "shoali_nobody-made-it"}),
    "POST /auth/sign-out": person(Scope.READ),
    "POST /auth/password": person(Scope.ADMIN, {"old_password": PASSWORD, "new_password": PASSWORD}),
    "POST /auth/password/lost": public({"email": "new@example.org"}),
    "POST /auth/password/recover": public({"code": "shoalr_nobody-made-it", "new_password": PASSWORD}),
    "POST /auth/email/send": person(Scope.ADMIN),
    "POST /auth/email/verify": person(Scope.ADMIN, {"code": "shoalr_nobody-made-it"}),
    "GET /auth/services": person(Scope.READ),
    "DELETE /auth/services/{service}": person(Scope.ADMIN),
    "GET /auth/me": person(Scope.READ),
    "PATCH /auth/me": person(Scope.ADMIN, {"name": "Another"}),
    "GET /auth/sessions": person(Scope.READ),
    "DELETE /auth/sessions": person(Scope.ADMIN),
    "DELETE /auth/sessions/{session}": person(Scope.ADMIN, foreign="session"),
    "GET /admin/users": admin(),
    "POST /admin/users": admin({"email": "new@example.org", "password": PASSWORD}),
    "PATCH /admin/users/{user}": admin({"is_admin": True}),
    "PUT /admin/users/{user}/password": admin({"password": PASSWORD}),
    "GET /admin/invitations": admin(),
    "DELETE /admin/invitations/{invite}": admin(),
    "GET /admin/limits": admin(),
    "PATCH /admin/limits": admin({"max_source_mb": 100}),
    "GET /admin/audit": admin(),
    "GET /admin/audit/verify": admin(),
    "GET /admin/audit/export": admin(),
    "GET /admin/engines": admin(),
    "POST /admin/engines": admin({"name": "another", "slurm": {"login": "a@b"}}),
    "POST /admin/engines/{engine}/check": admin(),
    "DELETE /admin/engines/{engine}": admin(),
    "GET /keys": person(Scope.READ),
    "POST /keys": person(Scope.ADMIN, {"name": "another", "scopes": ["read"]}),
    "DELETE /keys/{key}": person(Scope.ADMIN, foreign="key"),
    "GET /store/usage": admin(),
    "POST /store/check": admin(),
    "POST /store/gc": admin(),
    "GET /machines": person(Scope.READ),
    "GET /machines/device-history": person(Scope.READ),
    "GET /pool": admin(),
    "POST /pool": admin({"host": "never.invalid", "name": "thing"}),
    "POST /pool/check": admin(),
    "POST /pool/join-command": admin({"address": "127.0.0.1"}),
    "GET /pool/machines/{machine}": admin(),
    "PATCH /pool/machines/{machine}": admin({"draining": True}),
    "DELETE /pool/machines/{machine}": admin(),
    "GET /pool/join/script": public(),
    "GET /schemas/openapi": public(),
    "GET /schemas/project-file": public(),
    "POST /pool/join/knock": joiner({}),
    "POST /pool/join/join": joiner({"facts": {}, "time": 0}),
    "GET /pool/join/wheel": joiner(),
    "POST /pool/join/done": joiner({"ok": False}),
    "GET /workspaces": person(Scope.READ),
    "POST /workspaces": person(Scope.ADMIN, {"name": "another"}),
    f"PATCH {W}": member(*OWN, {"name": "renamed"}),
    f"DELETE {W}": member(*OWN),
    f"GET {W}/members": member(*VIEW),
    f"PUT {W}/members": member(*OWN, {"email": "member@example.org", "role": "viewer"}),
    f"DELETE {W}/members/{{member}}": member(Role.VIEWER, Scope.ADMIN, foreign="member"),
    f"GET {W}/invitations": member(*OWN),
    f"POST {W}/invitations": member(*OWN, {"email": "new@example.org", "role": "viewer"}),
    f"DELETE {W}/invitations/{{invite}}": member(*OWN, foreign="invite"),
    f"GET {W}/secrets": member(*VIEW),
    f"PUT {W}/secrets": member(*WORK, {"name": "s2", "value": "v"}),
    f"DELETE {W}/secrets/{{name}}": member(*WORK, foreign="name"),
    f"GET {W}/registries": member(*VIEW),
    f"PUT {W}/registries": member(*WORK, {"host": "h2", "token": "t"}),
    f"DELETE {W}/registries/{{host}}": member(*WORK, foreign="host"),
    f"GET {W}/git-sources": member(*VIEW),
    f"POST {W}/git-sources": member(*WORK, {"name": "g2", "url": "https://github.com/a/b"}),
    f"DELETE {W}/git-sources/{{name}}": member(*WORK, foreign="name"),
    f"POST {W}/sources": member(*WORK, {"manifest": EMPTY}),
    f"POST {W}/sources/git": member(*WORK, {"url": "ext::never"}),
    f"POST {W}/sources/notebook": member(*WORK, {"url": "ftp://never"}),
    f"POST {W}/sources/check": member(*VIEW, PREFLIGHT, foreign="source_id"),
    f"GET {W}/sources/{{source}}/receipt": member(*VIEW, foreign="source"),
    f"POST {W}/store/missing": member(*WORK, {"hashes": []}),
    f"POST {W}/store/chunks": member(*WORK, content=b""),
    f"GET {W}/store/chunks/{{hash}}": member(*VIEW, foreign="hash"),
    f"POST {W}/store/fetch": member(*VIEW, {"hashes": ["<hash>"]}, foreign="hashes"),
    f"GET {W}/datasets": member(*VIEW),
    f"POST {W}/datasets": member(*WORK, {"name": "d2"}),
    f"GET {W}/datasets/{{dataset}}": member(*VIEW, foreign="dataset"),
    f"DELETE {W}/datasets/{{dataset}}": member(*WORK, foreign="dataset", use={"dataset": "name"}),
    f"GET {W}/datasets/{{dataset}}/files": member(*VIEW, foreign="dataset"),
    f"GET {W}/datasets/{{dataset}}/manifest": member(*VIEW, foreign="dataset"),
    f"PUT {W}/datasets/{{dataset}}/manifest": member(*WORK, foreign="dataset", use=UPLOAD, content=json.dumps(EMPTY).encode()),
    f"POST {W}/datasets/{{dataset}}/fail": member(*WORK, {"error": "no"}, foreign="dataset", use=UPLOAD),
    f"POST {W}/datasets/import": member(*WORK, {"name": "d3", "url": "ftp://never"}),
    f"POST {W}/checkpoints/{{checkpoint}}/export": member(*WORK, {"destination": "ftp://never"}, foreign="checkpoint"),
    f"GET {W}/checkpoints": member(*VIEW),
    f"POST {W}/checkpoints": member(*WORK, {"name": "c2", "manifest": EMPTY}),
    f"GET {W}/checkpoints/{{checkpoint}}": member(*VIEW, foreign="checkpoint"),
    f"DELETE {W}/checkpoints/{{checkpoint}}": member(*WORK, foreign="checkpoint"),
    f"GET {W}/checkpoints/{{checkpoint}}/manifest": member(*VIEW, foreign="checkpoint"),
    f"GET {W}/checkpoints/{{checkpoint}}/archive": member(*VIEW, foreign="checkpoint"),
    f"GET {W}/checkpoints/{{checkpoint}}/files/{{path}}": member(*VIEW, foreign="checkpoint"),
    f"POST {W}/checkpoints/{{checkpoint}}/keep": member(*WORK, {"keep": True}, foreign="checkpoint"),
    f"POST {W}/jobs": member(*WORK, {"name": "j2", "entry": ["train.py"], "source_id": "<source>"}, foreign="source_id"),
    f"POST {W}/preflights": member(*WORK, PREFLIGHT, foreign="source_id"),
    f"POST {W}/preflights/advice": member(*VIEW, PREFLIGHT),
    f"GET {W}/preflights/{{preflight}}": member(*VIEW, foreign="preflight"),
    f"DELETE {W}/preflights/{{preflight}}": member(*WORK, foreign="preflight"),
    f"GET {W}/jobs": member(*VIEW),
    f"GET {W}/jobs/{{job}}": member(*VIEW, foreign="job"),
    f"DELETE {W}/jobs/{{job}}": member(*WORK, foreign="job"),
    f"POST {W}/jobs/{{job}}/stop": member(*WORK, foreign="job"),
    f"POST {W}/jobs/{{job}}/resume": member(*WORK, foreign="job"),
    f"GET {W}/jobs/{{job}}/why": member(*VIEW, foreign="job"),
    f"POST {W}/jobs/{{job}}/stacks": member(*WORK, foreign="job"),
    f"GET {W}/jobs/{{job}}/stacks": member(*VIEW, foreign="job"),
    f"PATCH {W}/jobs/{{job}}": member(*WORK, {"priority": 1}, foreign="job"),
    f"POST {W}/queue/simulate": member(*VIEW, {}),
    "GET /queue": person(Scope.READ),
    "GET /admin/quotas": admin(),
    "PATCH /admin/quotas/{target}": Row("admin", scope=Scope.ADMIN, body={"slots": 4}, use={"target": "workspace"}),
    f"POST {W}/jobs/{{job}}/attach": member(*WORK, {"public_key": SSH_KEY}, foreign="job"),
    f"POST {W}/jobs/{{job}}/jupyter": member(*WORK, {}, foreign="job"),
    f"GET {W}/snapshots": member(*VIEW),
    f"POST {W}/snapshots": member(*WORK, params={"lease": "thing"}),
    f"GET {W}/snapshots/{{snapshot}}": member(*VIEW, foreign="snapshot"),
    f"DELETE {W}/snapshots/{{snapshot}}": member(*WORK, foreign="snapshot"),
    f"POST {W}/leases": member(*WORK, {"name": "l2", "source_id": "<source>"}, foreign="source"),
    f"GET {W}/leases": member(*VIEW),
    f"GET {W}/leases/{{lease}}": member(*VIEW, foreign="lease"),
    f"POST {W}/leases/{{lease}}/extend": member(*WORK, {"time_s": 60}, foreign="lease"),
    f"POST {W}/leases/{{lease}}/restart": member(*WORK, foreign="lease"),
    f"POST {W}/leases/{{lease}}/certificate": member(*WORK, {"public_key": SSH_KEY}, foreign="lease"),
    f"DELETE {W}/leases/{{lease}}": member(*WORK, foreign="lease"),
    f"POST {W}/swarms": member(*WORK, SWARM, foreign="source_id"),
    f"GET {W}/swarms": member(*VIEW),
    f"GET {W}/swarms/{{swarm}}": member(*VIEW, foreign="swarm"),
    f"DELETE {W}/swarms/{{swarm}}": member(*WORK, foreign="swarm"),
    f"GET {W}/swarms/{{swarm}}/peers": member(*VIEW, foreign="swarm"),
    f"GET {W}/swarms/{{swarm}}/rounds": member(*VIEW, foreign="swarm"),
    f"GET {W}/swarms/{{swarm}}/checkpoints": member(*VIEW, foreign="swarm"),
    f"POST {W}/swarms/{{swarm}}/stop": member(*WORK, foreign="swarm"),
    f"POST {W}/swarms/{{swarm}}/resume": member(*WORK, foreign="swarm"),
    f"POST {W}/swarms/{{swarm}}/peers/{{peer}}/kick": member(*WORK, {}, foreign=("swarm", "peer")),
    f"GET {W}/swarms/{{swarm}}/invitations": member(*VIEW, foreign="swarm"),
    f"POST {W}/swarms/{{swarm}}/invitations": member(*WORK, {}, foreign="swarm"),
    f"DELETE {W}/swarms/{{swarm}}/invitations/{{invitation}}": member(*WORK, foreign=("swarm", "invitation")),
    "GET /swarm/offer": guest(),
    "POST /swarm/knock": guest({"port": 1}),
    "POST /swarm/join": guest(PEER),
    "POST /swarm/beat": peer({"state": "training"}),
    "POST /swarm/leave": peer(),
    "GET /swarm/manifests/{manifest}": peer(),
    "POST /swarm/fetch": peer({"hashes": ["<hash>"]}),
    "GET /swarm/chunks/{hash}": peer(),
    "GET /swarm/snapshot": peer(),
    "GET /swarm/snapshot/{checkpoint}/{path}": peer(),
    f"POST {W}/sweeps": member(*WORK, SWEEP, foreign="job"),
    f"GET {W}/sweeps": member(*VIEW),
    f"GET {W}/sweeps/{{sweep}}": member(*VIEW, foreign="sweep"),
    f"GET {W}/sweeps/{{sweep}}/trials": member(*VIEW, foreign="sweep"),
    f"POST {W}/sweeps/{{sweep}}/stop": member(*WORK, foreign="sweep"),
    f"POST {W}/sweeps/{{sweep}}/rerun": member(*WORK, foreign="sweep"),
    f"DELETE {W}/sweeps/{{sweep}}": member(*WORK, foreign="sweep"),
    "GET /billing/prices": person(Scope.READ),
    "GET /billing/usage": person(Scope.READ),
    "GET /admin/billing/usage": admin(),
    "GET /admin/billing/verify": admin(),
    f"GET {W}/billing/usage": member(*VIEW),
    f"GET {W}/billing/verify": member(*VIEW),
    f"POST {W}/quotes": member(*VIEW, {"entry": ["train.py"], "source_id": "<source>"}, foreign="source_id"),
    f"GET {W}/jobs/{{job}}/checkpoint-archive": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/share": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/logs": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/follow": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/metrics": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/metric-names": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/media": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/media/{{media_id}}": member(*VIEW, foreign=("job", "media_id")),
    f"GET {W}/jobs/{{job}}/bugs": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/bugs/{{bug}}/manifest": member(*VIEW, foreign=("job", "bug")),
    f"GET {W}/jobs/{{job}}/source/manifest": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/ledger": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/config": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/diff/{{other}}": member(*VIEW, foreign=("job", "other"), use={"other": "imported"}),
    f"GET {W}/runs/query": member(*VIEW),
    "GET /notices": person(Scope.READ),
    "POST /notices/read": person(Scope.WRITE),
    f"GET {W}/notification-rules": member(*VIEW),
    f"POST {W}/notification-rules": member(Role.VIEWER, Scope.WRITE, {"kind": "job_failed"}),
    f"DELETE {W}/notification-rules/{{rule}}": member(Role.VIEWER, Scope.WRITE, foreign="rule"),
    f"POST {W}/notification-rules/{{rule}}/test": member(Role.VIEWER, Scope.WRITE, foreign="rule"),
    "GET /search": Row("person", scope=Scope.READ, params={"q": "thing"}),
    f"GET {W}/metrics/query": member(*VIEW, params={"job": "thing", "name": "loss"}, foreign="job"),
    f"GET {W}/jobs/{{job}}/marks": member(*VIEW, foreign="job"),
    f"GET {W}/jobs/{{job}}/notes": member(*VIEW, foreign="job"),
    f"PUT {W}/jobs/{{job}}/notes/{{note}}": member(*WORK, {"step": 2, "text": "y"}, foreign=("job", "note")),
    f"POST {W}/jobs/{{job}}/notes": member(*WORK, {"step": 1, "text": "x"}, foreign="job"),
    f"DELETE {W}/jobs/{{job}}/notes/{{note}}": member(*WORK, foreign=("job", "note")),
    f"GET {W}/jobs/{{job}}/chart-definitions": member(*VIEW, foreign="job"),
    f"GET {W}/chart-layouts/{{page}}": member(*VIEW),
    f"PUT {W}/chart-layouts/{{page}}": member(Role.VIEWER, Scope.WRITE, {"layout": {}}),
    f"DELETE {W}/chart-layouts/{{page}}": member(Role.VIEWER, Scope.WRITE),
    f"PUT {W}/chart-layouts/{{page}}/shared": member(*WORK, {"layout": {}}),
    f"DELETE {W}/chart-layouts/{{page}}/shared": member(*WORK),
    f"GET {W}/runs/csv": member(*VIEW),
    f"GET {W}/runs/columns": member(*VIEW),
    f"PATCH {W}/runs": member(*WORK, {"jobs": ["<job>"], "starred": True}, foreign="job"),
    f"GET {W}/run-views": member(*VIEW),
    f"GET {W}/run-views/{{view}}": member(*VIEW, foreign="view"),
    f"PUT {W}/run-views/{{view}}": member(*WORK, {"q": "tag:x"}),
    f"DELETE {W}/run-views/{{view}}": member(*WORK, foreign="view"),
    f"POST {W}/imports": member(*WORK, RUN),
    f"POST {W}/jobs/{{job}}/import/segments/{{stream}}": member(*WORK, foreign=("job", "stream"), use=IMPORTED, content=b"not zstd", params={"part": "a", "seq_first": 0, "count": 1}),
    f"POST {W}/jobs/{{job}}/import/checkpoints": member(*WORK, {"name": "c", "manifest": EMPTY}, foreign="job", use=IMPORTED),
    f"POST {W}/jobs/{{job}}/import/media": member(*WORK, MEDIUM, foreign="job", use=IMPORTED),
    f"POST {W}/jobs/{{job}}/import/bugs": member(*WORK, BUG, foreign="job", use=IMPORTED),
    f"POST {W}/jobs/{{job}}/import/state": member(*WORK, {"status": "stopped"}, foreign="job", use=IMPORTED),
    "POST /agent/join": agent(JOIN),
    "POST /agent/ready": agent({}),
    "POST /agent/beat": agent({"state": "preparing"}),
    "POST /agent/segments/{stream}": agent(params={"seq_first": 0, "count": 1}, content=b"not zstd"),
    "GET /agent/manifests/{manifest}": agent(),
    "GET /agent/chunks/{hash}": agent(),
    "POST /agent/chunks": agent(content=b""),
    "POST /agent/checkpoints": agent({"name": "c", "manifest": EMPTY}),
    "POST /agent/media": agent(MEDIUM),
    "POST /agent/snapshots": agent({"manifest": EMPTY}),
    "POST /agent/attach": agent({"order": "none"}),
    "POST /agent/bugs": agent(BUG),
    "POST /agent/stacks": agent({"order": "none", "ranks": []}),
}  # fmt: skip

ANSWERS = {
    "POST /auth/sign-in": 401,  # nobody has that password
    "POST /auth/owner": 409,  # of a private server only
    "POST /auth/invitation": 404,  # nobody made that code
    "GET /ca": 404,  # the server of the tests speaks plain HTTP
    "POST /auth/sign-out": 409,  # a key has no session
    "POST /auth/password": 409,  # nor a password
    "POST /auth/password/lost": 409,  # without a mail server
    "POST /auth/password/recover": 404,  # nobody made that code
    "POST /auth/email/send": 409,  # without a mail server
    "POST /auth/email/verify": 404,  # nobody made that code
    "DELETE /auth/services/{service}": 404,  # none is set up
    f"DELETE {W}/members/{{member}}": 409,  # the last owner stays
    f"POST {W}/datasets/import": 422,  # not a URL to fetch from
    f"POST {W}/checkpoints/{{checkpoint}}/export": 422,  # not a place to write to
    f"POST {W}/sources/git": 422,  # not a URL to fetch from
    f"POST {W}/sources/notebook": 422,
    f"GET {W}/sources/{{source}}/receipt": 404,  # it was not made of a notebook
    f"POST {W}/snapshots": 409,  # the lease does not run
    f"POST {W}/jobs/{{job}}/attach": 409,  # it does not run
    f"POST {W}/jobs/{{job}}/jupyter": 409,
    "POST /agent/attach": 404,  # nobody does
    f"POST {W}/leases/{{lease}}/restart": 409,  # it is not offline
    f"POST {W}/jobs/{{job}}/resume": 409,  # it succeeded
    f"PATCH {W}/jobs/{{job}}": 409,  # nor does it wait
    f"POST {W}/jobs/{{job}}/stacks": 409,  # nor has it workers
    f"GET {W}/jobs/{{job}}/stacks": 404,
    f"GET {W}/jobs/{{job}}/checkpoint-archive": 404,  # it wrote none
    "POST /admin/engines": 422,  # no directory on its shared file system
    "POST /admin/engines/{engine}/check": 404,
    "DELETE /admin/engines/{engine}": 404,
    "POST /pool": 409,  # there is another machine of that name
    "POST /pool/join-command": 409,  # this server has no door
    "POST /pool/join/knock": 409,
    "POST /pool/join/join": 409,  # those are no facts
    "POST /swarm/join": 409,  # of another version
    "POST /pool/join/done": 409,  # it has not been taken in
    "POST /agent/segments/{stream}": 422,  # not zstd
    f"POST {W}/jobs/{{job}}/import/segments/{{stream}}": 422,
}
"""Routes whose correct answer to a permitted caller is not a success."""
