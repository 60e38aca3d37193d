"""T25: every route that changes something leaves the entries it should, and a route that is in neither table here fails."""

import pytest
from authz_rows import ROUTES, W
from test_authz_matrix import expected, template, world  # noqa: F401  fixtures

from shoal.server.audit import check, service

RECORDED = {
    "POST /auth/sign-up": ["account.create", "session.start"],
    "POST /auth/sign-in": ["session.start"],
    "DELETE /auth/sessions": ["session.end"],
    "DELETE /auth/sessions/{session}": ["session.end"],
    "POST /admin/users": ["account.create"],
    "PATCH /admin/users/{user}": ["account.promote"],
    "PUT /admin/users/{user}/password": ["account.reset-password"],
    "DELETE /admin/invitations/{invite}": ["invitation.revoke"],
    "PATCH /admin/limits": ["settings.change"],
    "PATCH /admin/quotas/{target}": ["quota.change"],
    "POST /keys": ["key.create"],
    "DELETE /keys/{key}": ["key.revoke"],
    "PATCH /pool/machines/{machine}": ["machine.drain"],
    "DELETE /pool/machines/{machine}": ["machine.remove"],
    "POST /workspaces": ["workspace.create"],
    f"PATCH {W}": ["workspace.rename"],
    f"DELETE {W}": ["workspace.delete"],
    f"PUT {W}/members": ["member.change"],
    f"POST {W}/invitations": ["invitation.create"],
    f"DELETE {W}/invitations/{{invite}}": ["invitation.revoke"],
    f"PUT {W}/secrets": ["secret.set"],
    f"DELETE {W}/secrets/{{name}}": ["secret.delete"],
    f"PUT {W}/registries": ["registry.connect"],
    f"DELETE {W}/registries/{{host}}": ["registry.disconnect"],
    f"DELETE {W}/datasets/{{dataset}}": ["dataset.delete"],
    f"DELETE {W}/checkpoints/{{checkpoint}}": ["checkpoint.delete"],
    f"POST {W}/jobs": ["job.create"],
    f"POST {W}/preflights": ["job.create"],
    f"POST {W}/jobs/{{job}}/stop": ["job.stop"],
    f"DELETE {W}/jobs/{{job}}": ["job.delete"],
    f"POST {W}/leases": ["lease.create"],
    f"POST {W}/leases/{{lease}}/extend": ["lease.extend"],
    f"DELETE {W}/leases/{{lease}}": ["lease.end"],
    f"DELETE {W}/snapshots/{{snapshot}}": ["snapshot.delete"],
    f"POST {W}/sweeps": ["sweep.create"],
    f"POST {W}/sweeps/{{sweep}}/stop": ["sweep.stop"],
    f"POST {W}/sweeps/{{sweep}}/rerun": ["sweep.rerun"],
    f"DELETE {W}/sweeps/{{sweep}}": ["sweep.delete"],
    f"POST {W}/swarms": ["swarm.create", "swarm.invite"],
    f"POST {W}/swarms/{{swarm}}/stop": ["swarm.stop"],
    f"POST {W}/swarms/{{swarm}}/resume": ["swarm.resume"],
    f"DELETE {W}/swarms/{{swarm}}": ["swarm.delete"],
    f"POST {W}/swarms/{{swarm}}/peers/{{peer}}/kick": ["swarm.kick"],
    f"POST {W}/swarms/{{swarm}}/invitations": ["swarm.invite"],
    f"DELETE {W}/swarms/{{swarm}}/invitations/{{invitation}}": ["swarm.uninvite"],
}
"""Route → the entries of its call in the matrix."""
RECORDED_ELSEWHERE = {
    "POST /auth/owner", "POST /auth/invitation", "POST /auth/sign-out", "POST /auth/password", f"DELETE {W}/members/{{member}}", "POST /admin/engines",
    "DELETE /admin/engines/{engine}", "POST /pool", "POST /pool/join-command", "POST /pool/join/join",
    f"POST {W}/leases/{{lease}}/restart", f"POST {W}/jobs/{{job}}/resume", f"POST {W}/jobs/{{job}}/attach",
    f"POST {W}/jobs/{{job}}/jupyter", "POST /auth/email/verify", "DELETE /auth/services/{service}",
}  # fmt: skip
"""Routes whose call in the matrix is refused; test_audit.py, test_recovery.py and test_oidc.py of the unit tests try what they do."""
NOT_RECORDED = {
    "PATCH /auth/me", "POST /auth/email/send", "POST /admin/engines/{engine}/check", "POST /store/check", "POST /store/gc", "POST /pool/check",
    f"POST {W}/git-sources", f"DELETE {W}/git-sources/{{name}}",
    f"POST {W}/sources", f"POST {W}/sources/git", f"POST {W}/sources/notebook", f"POST {W}/sources/check",
    f"POST {W}/store/missing", f"POST {W}/store/chunks", f"POST {W}/store/fetch", f"POST {W}/datasets",
    f"PUT {W}/datasets/{{dataset}}/manifest", f"POST {W}/datasets/{{dataset}}/fail", f"POST {W}/datasets/import",
    f"POST {W}/checkpoints", f"POST {W}/checkpoints/{{checkpoint}}/keep", f"POST {W}/checkpoints/{{checkpoint}}/export",
    f"POST {W}/preflights/advice", f"DELETE {W}/preflights/{{preflight}}", f"POST {W}/jobs/{{job}}/stacks",
    f"PATCH {W}/jobs/{{job}}", f"POST {W}/queue/simulate", f"POST {W}/snapshots", f"POST {W}/leases/{{lease}}/certificate",
    "POST /notices/read", f"POST {W}/notification-rules", f"DELETE {W}/notification-rules/{{rule}}",
    f"POST {W}/notification-rules/{{rule}}/test", f"POST {W}/jobs/{{job}}/notes", f"DELETE {W}/jobs/{{job}}/notes/{{note}}",
    f"PUT {W}/jobs/{{job}}/notes/{{note}}", f"PUT {W}/chart-layouts/{{page}}",
    f"DELETE {W}/chart-layouts/{{page}}", f"PUT {W}/chart-layouts/{{page}}/shared", f"DELETE {W}/chart-layouts/{{page}}/shared",
    f"POST {W}/quotes", f"PATCH {W}/runs", f"PUT {W}/run-views/{{view}}", f"DELETE {W}/run-views/{{view}}",
    f"POST {W}/imports", f"POST {W}/jobs/{{job}}/import/segments/{{stream}}", f"POST {W}/jobs/{{job}}/import/checkpoints",
    f"POST {W}/jobs/{{job}}/import/media", f"POST {W}/jobs/{{job}}/import/bugs", f"POST {W}/jobs/{{job}}/import/state",
}  # fmt: skip
"""Routes of people that only add data, measure or look."""
BEFORE_THE_END = ("/stop", "/extend", "/leases/{lease}", "/kick", "/invitations")


def first_caller(route):
    callers = ("owner", "admin") if ROUTES[route].who != "anyone" else ("anonymous",)
    return next(caller for caller in callers if expected(caller, ROUTES[route]) is None)


def new_entries(world, before):  # noqa: F811
    return [e for e in reversed(service.list_entries(world.ctx, limit=1000)) if e.seq > before]


def newest(world):  # noqa: F811
    return service.list_entries(world.ctx, limit=1)[0].seq


def test_every_route_that_changes_something_is_in_one_table():
    changing = {r for r, row in ROUTES.items() if not r.startswith("GET ") and row.who in ("person", "admin", "member")}
    listed = [*RECORDED, *RECORDED_ELSEWHERE, *NOT_RECORDED]
    assert len(listed) == len(set(listed))
    assert changing <= set(listed), changing - set(listed)
    assert set(listed) <= set(ROUTES), set(listed) - set(ROUTES)


@pytest.mark.parametrize("route", RECORDED)
def test_an_action_leaves_its_entry_with_who_did_it_and_from_where(world, route):  # noqa: F811
    caller, row = first_caller(route), ROUTES[route]
    if not route.endswith(BEFORE_THE_END):
        world.finish_jobs()
    before = newest(world)
    answer = world.call(caller, route)
    found = new_entries(world, before)
    assert [e.action for e in found] == RECORDED[route], answer.text
    assert len({e.request for e in found}) == 1 and found[0].request.startswith("req_")
    for entry in found:
        assert entry.address == "127.0.0.1"
        assert entry.result == ("ok" if answer.is_success else "failed")
        assert entry.at.tzinfo is not None
        if caller != "anonymous":
            assert entry.actor == f"{caller}@example.org"
            assert entry.key_id.startswith("key_")
        if row.who == "member":
            assert entry.workspace_id == world.facts.ids["workspace"] and entry.workspace
    text = "".join(e.model_dump_json() for e in service.list_entries(world.ctx, limit=1000))
    for secret in ("hidden", "long enough", "shoal_", "shoals_", "shoali_", "shoalp_", *world.facts.tokens.values()):
        assert secret not in text
    assert check.verify(world.ctx).whole


def test_other_routes_leave_no_entry(world):  # noqa: F811
    before = newest(world)
    for route in sorted(NOT_RECORDED):
        world.call(first_caller(route), route)
    assert new_entries(world, before) == []


def test_only_admins_read_the_log_and_may_filter_it(world):  # noqa: F811
    admin, owner = world.callers["admin"], world.callers["owner"]
    world.call("owner", f"PUT {W}/secrets")
    for path in ("", "/verify", "/export"):
        assert owner.get(f"/admin/audit{path}").status_code == 403
    entries = admin.get("/admin/audit", params={"actor": "owner@example.org", "limit": 1}).json()
    assert [e["action"] for e in entries] == ["secret.set"] and entries[0]["object"] == "s2"
    assert admin.get("/admin/audit", params={"action": "secret", "limit": 1}).json() == entries
    assert admin.get("/admin/audit", params={"action": "secret.delete"}).json() == []
    assert admin.get("/admin/audit", params={"action": "sec"}).json() == []
    by_name = admin.get("/admin/audit", params={"workspace": "default", "actor": "owner@example.org"}).json()
    assert by_name == entries
    assert admin.get("/admin/audit", params={"since": "2100-01-01T00:00:00Z"}).json() == []
    older = admin.get("/admin/audit", params={"before": entries[0]["seq"]}).json()
    assert older[0]["seq"] == entries[0]["seq"] - 1
    lines = admin.get("/admin/audit/export").text.splitlines()
    assert len(lines) == entries[0]["seq"]
    verified = admin.get("/admin/audit/verify").json()
    assert verified["whole"] and verified["entries"] == len(lines) and verified["head"] == entries[0]["hash"]
