"""Bugs in access control: routes, workspaces, keys, secrets, and what is fetched or unpacked for people."""

from __future__ import annotations

from bugs.mutant import Mutant

_MATRIX = "tests/contract/server/test_authz_matrix.py"

ACCESS = (
    Mutant(
        name="route-without-policy",
        fault="a route that anybody may call, signed in or not",
        file="src/shoal/server/routers/secrets.py",
        old="def list_secrets(ctx: Ctx, access: Viewer)",
        new="def list_secrets(ctx: Ctx)",
        tests=(f"{_MATRIX}::test_every_route_has_a_row_and_every_row_a_route",),
    ),
    Mutant(
        name="route-with-weaker-policy",
        fault="those who may only look at a workspace delete its secrets",
        file="src/shoal/server/routers/secrets.py",
        old="def delete_secret(ctx: Ctx, access: Worker, name: str)",
        new="def delete_secret(ctx: Ctx, access: Viewer, name: str)",
        tests=(f"{_MATRIX}::test_those_who_may_not_are_refused",),
    ),
    Mutant(
        name="open-by-default",
        fault="the app starts though a route has no policy",
        file="src/shoal/server/policy.py",
        old="for d in dependant.dependencies) != 1:",
        new="for d in dependant.dependencies) > 1:",
        tests=("tests/unit/server/test_policy.py::test_a_route_without_a_policy_stops_the_app",),
    ),
    Mutant(
        name="query-without-workspace",
        fault="jobs of other workspaces are found by their id",
        file="src/shoal/server/lookup.py",
        old="found = session.scalar(select(table).where(table.workspace_id == access.workspace_id, column == name_or_id))",
        new="found = session.scalar(select(table).where(column == name_or_id))",
        tests=(f"{_MATRIX}::test_another_tenants_things_are_not_found_from_ones_own_place",),
    ),
    Mutant(
        name="list-without-workspace",
        fault="checkpoints of all workspaces are listed",
        file="src/shoal/server/artifacts/checkpoints.py",
        old="query = select(Checkpoint).where(Checkpoint.workspace_id == access.workspace_id).order_by(Checkpoint.id)",
        new="query = select(Checkpoint).order_by(Checkpoint.id)",
        tests=(f"{_MATRIX}::test_what_is_listed_in_ones_own_place_holds_nothing_of_another_tenants",),
    ),
    Mutant(
        name="key-stored-unhashed",
        fault="API keys are kept and compared as they are, without a hash",
        file="src/shoal/server/policy.py",
        old="return hashlib.sha256(token.encode()).digest()",
        new="return token.encode()",
        tests=("tests/unit/server/test_keys.py::test_a_key_is_shown_once_and_stored_as_a_hash",),
    ),
    Mutant(
        name="expired-key-accepted",
        fault="a key that has expired still opens everything",
        file="src/shoal/server/policy.py",
        old="if key.ApiKey.revoked_at or (key.ApiKey.expires_at and key.ApiKey.expires_at <= now):",
        new="if key.ApiKey.revoked_at:",
        tests=("tests/unit/server/test_keys.py::test_an_expired_key_says_so",),
    ),
    Mutant(
        name="secret-in-inspect",
        fault="`training inspect` shows the values of a job's secrets",
        file="src/shoal/server/jobs/service.py",
        old="        view = views.job_view(session, job, access.workspace, waiting)\n",
        new="""\
        view = views.job_view(session, job, access.workspace, waiting)
        from shoal.server.people.secrets import open_secrets

        view.spec.env.update(open_secrets(ctx, access.workspace_id, view.spec.secrets))
""",
        tests=("tests/unit/server/test_secrets.py::test_a_jobs_view_names_its_secrets_and_holds_no_value",),
    ),
    Mutant(
        name="zip-slip",
        fault="members of an archive are written outside its folder",
        file="src/shoal/store/archives/members.py",
        old="""\
    if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in name.split("/"):
        raise _hostile(f"{shown}: {name!r} points outside the archive's folder.")
    parts = [p for p in name.split("/") if p not in ("", ".")]
""",
        new="""\
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if ".." in parts:
        return name
""",
        tests=(
            "tests/unit/store/test_store_archives.py::test_a_hostile_member_is_refused_by_name_and_nothing_is_left",
        ),
    ),
    Mutant(
        name="ssrf-loopback-address",
        fault="the server fetches from its own loopback addresses",
        file="src/shoal/core/addresses.py",
        old="    inside = any(ip in network for network in _ALSO_INSIDE)\n",
        new="    if ip.is_loopback:\n        return True\n    inside = any(ip in network for network in _ALSO_INSIDE)\n",
        tests=("tests/contract/server/test_fetch_guard.py::test_everything_inside_is_not",),
    ),
    Mutant(
        name="ssrf-name-not-judged",
        fault="a host name that resolves to an inner address is connected to",
        file="src/shoal/server/ssrf_guard.py",
        old="            if not found or not all(self.allows(address) for address in found):\n",
        new="            if not found:\n",
        tests=("tests/contract/server/test_fetch_guard.py::test_a_name_that_resolves_inside_is_refused",),
    ),
    Mutant(
        name="token-outlives-its-attempt",
        fault="the token of an agent whose attempt has ended still reads chunks and manifests",
        file="src/shoal/server/policy.py",
        old="return attempt.state != AttemptState.ENDED and not NodeState(node.state).is_terminal",
        new="return True",
        tests=(
            "tests/contract/server/test_agent_tokens.py"
            "::test_the_token_of_an_ended_attempt_reads_nothing_and_still_delivers_its_logs",
        ),
    ),
)
