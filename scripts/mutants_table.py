"""The planted bugs of ./scripts/mutants: where each goes, and the tests that should notice it.

To add one: a name, the fault in a few words, the file, a text that is found there exactly once, what stands there instead,
and the one or two test files (or `file::test`) that should notice. tests/unit/testing/test_mutants.py checks the texts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    fault: str
    file: str
    old: str
    """Found exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """For pytest: files, or file::test."""
    tier: str = "fast"


MUTANTS = (
    # What was acknowledged outlives a power cut.
    Mutant(
        name="sqlite-normal",
        fault="the database syncs only now and then",
        file="src/shoal/server/db.py",
        old='synchronous: str = "FULL"):',
        new='synchronous: str = "NORMAL"):',
        tests=("tests/unit/server/test_db.py",),
    ),
    Mutant(
        name="store-missing-fsync",
        fault="chunks are published without being synced",
        file="src/shoal/store/files.py",
        old="            _sync_files([blob.place for blob in staged])\n",
        new="",
        tests=("tests/unit/store/test_store_deposit.py",),
    ),
    Mutant(
        name="store-rename-before-fsync",
        fault="chunks are visible under their name before they are on the disk",
        file="src/shoal/store/files.py",
        old="""\
            _sync_files([blob.place for blob in staged])
            folders = {self._folder(blob.key) for blob in staged}
            for blob in staged:
                os.rename(blob.place, self._path(blob.key))
""",
        new="""\
            folders = {self._folder(blob.key) for blob in staged}
            for blob in staged:
                os.rename(blob.place, self._path(blob.key))
            _sync_files([self._path(blob.key) for blob in staged])
""",
        tests=("tests/unit/store/test_store_deposit.py",),
    ),
    Mutant(
        name="store-chunk-not-verified",
        fault="a damaged chunk is handed out as if it were sound",
        file="src/shoal/store/blobstore.py",
        old="                plain = decode(codec, payload)\n                verify(name, plain)\n",
        new="                plain = decode(codec, payload)\n",
        tests=("tests/unit/store/test_store_local.py",),
    ),
    Mutant(
        name="sdk-retention-counts-torn",
        fault="a checkpoint that was never finished pushes out the last good one",
        file="src/shoal/sdk/saving/layout.py",
        old="whole = [path for path in saved_in(directory) if (path / ABOUT).exists()]",
        new="whole = saved_in(directory)",
        tests=("tests/unit/sdk/test_resume.py::test_only_the_newest_are_kept_and_leftovers_swept",),
    ),
    Mutant(
        name="server-retention-keeps-oldest",
        fault="retention removes the newest checkpoint, which is the last good one",
        file="src/shoal/core/checkpoints.py",
        old="rows[-(self.keep_last or 1) :]",
        new="rows[: self.keep_last or 1]",
        tests=("tests/contract/server/test_resume_choice.py", "tests/contract/server/test_only_logs.py"),
    ),
    # Of an attempt that was given up nothing counts.
    Mutant(
        name="fenced-attempt-saves",
        fault="an attempt that was given up commits checkpoints",
        file="src/shoal/server/services/checkpoints.py",
        old="    if session.get_one(Attempt, who.attempt_id).fenced:\n        raise Fenced()\n",
        new="    return\n",
        tests=("tests/unit/server/test_attempts.py",),
    ),
    Mutant(
        name="fenced-attempt-joins",
        fault="an attempt that was given up is let in again",
        file="src/shoal/server/services/agents.py",
        old="if attempt.fenced or attempt.state == AttemptState.ENDED or job.stop_requested_at is not None:",
        new="if job.stop_requested_at is not None:",
        tests=("tests/unit/server/test_attempts.py",),
    ),
    # Who may see and do what.
    Mutant(
        name="route-without-policy",
        fault="a route that anybody may call, signed in or not",
        file="src/shoal/server/routers/secrets.py",
        old="def list_secrets(ctx: Ctx, access: Viewer)",
        new="def list_secrets(ctx: Ctx)",
        tests=("tests/unit/server/test_policy.py",),
    ),
    Mutant(
        name="open-by-default",
        fault="the app starts though a route has no policy",
        file="src/shoal/server/policy.py",
        old="for d in dependant.dependencies) != 1:",
        new="for d in dependant.dependencies) > 1:",
        tests=("tests/unit/server/test_policy.py",),
    ),
    Mutant(
        name="query-without-workspace",
        fault="jobs of other workspaces are found by their id",
        file="src/shoal/server/services/find.py",
        old="found = session.scalar(select(table).where(table.workspace_id == access.workspace_id, column == name_or_id))",
        new="found = session.scalar(select(table).where(column == name_or_id))",
        tests=("tests/contract/server/test_authz_matrix.py",),
    ),
    Mutant(
        name="list-without-workspace",
        fault="checkpoints of all workspaces are listed",
        file="src/shoal/server/services/checkpoints.py",
        old="query = select(Checkpoint).where(Checkpoint.workspace_id == access.workspace_id).order_by(Checkpoint.id)",
        new="query = select(Checkpoint).order_by(Checkpoint.id)",
        tests=("tests/contract/server/test_authz_matrix.py",),
    ),
    Mutant(
        name="key-stored-unhashed",
        fault="API keys are kept and compared as they are, without a hash",
        file="src/shoal/server/policy.py",
        old="return hashlib.sha256(token.encode()).digest()",
        new="return token.encode()",
        tests=("tests/unit/server/test_keys.py",),
    ),
    Mutant(
        name="expired-key-accepted",
        fault="a key that has expired still opens everything",
        file="src/shoal/server/policy.py",
        old="if key.ApiKey.revoked_at or (key.ApiKey.expires_at and key.ApiKey.expires_at <= now):",
        new="if key.ApiKey.revoked_at:",
        tests=("tests/unit/server/test_keys.py",),
    ),
    Mutant(
        name="secret-in-inspect",
        fault="`training inspect` shows the values of a job's secrets",
        file="src/shoal/server/services/jobs.py",
        old="        view = views.job_view(session, job, access.workspace, waiting)\n",
        new="""\
        view = views.job_view(session, job, access.workspace, waiting)
        from shoal.server.services.secrets import open_secrets

        view.spec.env.update(open_secrets(ctx, access.workspace_id, view.spec.secrets))
""",
        tests=("tests/unit/server/test_secrets.py",),
    ),
    Mutant(
        name="zip-slip",
        fault="members of an archive are written outside its folder",
        file="src/shoal/store/archive_members.py",
        old="""\
    if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in name.split("/"):
        raise _hostile(f"{shown}: {name!r} leads out of the archive's folder.")
    parts = [p for p in name.split("/") if p not in ("", ".")]
""",
        new="""\
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if ".." in parts:
        return name
""",
        tests=("tests/unit/store/test_store_archives.py",),
    ),
    Mutant(
        name="ssrf-loopback-address",
        fault="the server fetches from its own loopback addresses",
        file="src/shoal/core/addresses.py",
        old="    inside = any(ip in network for network in _ALSO_INSIDE)\n",
        new="    if ip.is_loopback:\n        return True\n    inside = any(ip in network for network in _ALSO_INSIDE)\n",
        tests=("tests/contract/server/test_fetch_guard.py",),
    ),
    Mutant(
        name="ssrf-name-not-judged",
        fault="a host name that resolves to an inner address is connected to",
        file="src/shoal/server/services/import_guard.py",
        old="            if not found or not all(self.allows(address) for address in found):\n",
        new="            if not found:\n",
        tests=("tests/contract/server/test_fetch_guard.py",),
    ),
    # Numbers that people rely on.
    Mutant(
        name="metric-doubled-after-reconnect",
        fault="lines that an agent sends again after it reconnects count twice",
        file="src/shoal/server/metrics/intake.py",
        old="            if line < made.heads.get(rank, 0):\n                continue\n",
        new="",
        tests=("tests/contract/server/test_metrics.py",),
    ),
    Mutant(
        name="segment-doubled-after-reconnect",
        fault="a segment of the log that is sent again is stored again",
        file="src/shoal/server/services/streams.py",
        old="_in_time(session, who, records[head.next_seq - seq_first :]) if r is not None]",
        new="_in_time(session, who, records) if r is not None]",
        tests=("tests/contract/server/test_runs.py",),
    ),
    Mutant(
        name="ledger-hour-doubled",
        fault="hours that were entered are entered again",
        file="src/shoal/server/services/ledger_rules.py",
        old="return replace(open_, start_ms=split), list(_pieces(open_.start_ms, split))",
        new="return open_, list(_pieces(open_.start_ms, split))",
        tests=("tests/contract/server/test_billing.py",),
    ),
    Mutant(
        name="sample-dealt-twice",
        fault="two ranks are given the same samples of a global batch",
        file="src/shoal/sdk/order.py",
        old="first = piece * each + min(piece, more)",
        new="first = piece * each",
        tests=("tests/unit/sdk/test_order.py",),
    ),
    Mutant(
        name="true-gradient-weight",
        fault="the true gradient is too small by the number of workers",
        file="src/shoal/train/gradients.py",
        old="factor = pieces * self._world_size / samples",
        new="factor = pieces / samples",
        tests=("tests/unit/train/test_true_gradient.py",),
    ),
    Mutant(
        name="accumulation-weight",
        fault="pieces of a global batch count the same though they differ in size",
        file="src/shoal/sdk/order.py",
        old="weight = 1.0 if count * self.world == total else count * self.world / total",
        new="weight = 1.0 / parts",
        tests=("tests/unit/sdk/test_order.py",),
    ),
    Mutant(
        name="swarm-averages-nan",
        fault="a peer's NaN becomes part of everybody's average",
        file="src/shoal/swarm/guards.py",
        old="        if not torch.isfinite(tensor).all():\n",
        new="        if False:\n",
        tests=("tests/unit/swarm/test_swarm_guards.py",),
    ),
    # Machines, queue and quotas.
    Mutant(
        name="device-promise-not-checked",
        fault="a job on a GPU's slot trains on the CPU because its torch is a CPU build",
        file="src/shoal/core/device_promise.py",
        old="    if build != kind:\n",
        new="    if False:\n",
        tests=("tests/unit/core/test_device_promise.py",),
    ),
    Mutant(
        name="preempts-what-must-stay",
        fault="a job that must not be preempted makes way",
        file="src/shoal/server/scheduler/reserve.py",
        old="if candidate.priority >= job.priority or candidate.keeps or candidate.stopping:",
        new="if candidate.priority >= job.priority or candidate.stopping:",
        tests=("tests/unit/server/test_decide.py",),
    ),
    Mutant(
        name="preempts-its-equals",
        fault="a job makes way for another of the same priority",
        file="src/shoal/server/scheduler/reserve.py",
        old="if candidate.priority >= job.priority or candidate.keeps or candidate.stopping:",
        new="if candidate.priority > job.priority or candidate.keeps or candidate.stopping:",
        tests=("tests/unit/server/test_decide.py",),
    ),
    Mutant(
        name="quota-exceeded-by-one",
        fault="a workspace holds one slot more than its quota",
        file="src/shoal/server/services/quotas.py",
        old="return quota is None or held(session, workspace_id) + slots <= quota",
        new="return quota is None or held(session, workspace_id) + slots <= quota + 1",
        tests=("tests/contract/server/test_queue.py::test_a_quota_lowered_between_the_decision_and_the_start_holds",),
    ),
)
