"""`shoal audit`: the log of who did what on the server, for its admins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from shoal.cli.shared.atomic_file import refuse_existing, whole_file
from shoal.cli.shared.format import clean
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_since
from shoal.cli.shared.session import connect
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.core.audit import AuditVerified

app = App(name="audit")


@app.command(name="list")
def list_(
    *,
    actor: str | None = None,
    action: str | None = None,
    workspace: str | None = None,
    since: str | None = None,
    limit: int = 100,
) -> None:
    """List who did what on the server, newest first.

    For example:

      shoal audit list
      shoal audit list --action session.start --since 1d
      shoal audit list --actor ada@example.org --action job
      shoal audit list --workspace vision --limit 1000 --json

    Parameters
    ----------
    actor
        List only what this person did: their e-mail address, or `server` for what the server did by itself.
    action
        List only this action (job.stop), or all actions on one kind of object (job).
    workspace
        List only actions in this workspace, given by name or id.
    since
        List only actions after this time: 7d (that long ago) or 2026-01-31.
    limit
        List at most this many.
    """
    if limit < 1:
        raise UsageError(f"--limit {limit}: give a number of at least 1.")
    start = parse_since(since) if since else None
    with connect() as client:
        found = client.audit.list(actor=actor, action=action, workspace=workspace, since=start, limit=limit)
    columns = [
        Column("ENTRY", lambda e: e.seq, is_right=True),
        Column("TIME", lambda e: e.at),
        Column("ACTOR", lambda e: e.actor),
        Column("ACTION", lambda e: e.action),
        Column("OBJECT", lambda e: e.object or e.object_id),
        Column("RESULT", lambda e: e.result, rank=1),
        Column("WORKSPACE", lambda e: e.workspace, rank=2),
        Column("ADDRESS", lambda e: e.address, rank=3),
        Column("KEY", lambda e: e.key_id, rank=5),
        Column("DETAIL", lambda e: e.detail, rank=4),
    ]
    out.show(found, lambda: out.table(found, columns, empty="No entries."))


@app.command
def verify(*, head: str | None = None) -> int:
    """Verify the audit log from the first entry to the last; exit 1 if anything was changed.

    Prints the head: number and hash of the last entry. Store it outside the
    server and pass it to a later check, to prove that the entries up to it
    were neither rewritten nor cut off. Each backup holds the head, too.

    For example:

      shoal audit verify
      shoal audit verify --head 812:5d41402abc4b2a76b9719d911017c592ae1a…

    Parameters
    ----------
    head
        Head printed by an earlier check, which the log must still contain.
    """
    with connect() as client:
        found = client.audit.verify(head=head)
    out.show(found, lambda: _print_verified(found))
    return 0 if found.whole else 1


@app.command
def export(
    *,
    actor: str | None = None,
    action: str | None = None,
    workspace: str | None = None,
    since: str | None = None,
    output: Path | None = None,
    force: bool = False,
) -> None:
    """Write the audit log as JSON lines, oldest first, to stdout or a file.

    For example:

      shoal audit export --output audit.jsonl
      shoal audit export --since 30d --action session > sign-ins.jsonl

    Parameters
    ----------
    actor
        Export only what this person did.
    action
        Export only this action (job.stop), or all actions on one kind of object (job).
    workspace
        Export only actions in this workspace, given by name or id.
    since
        Export only actions after this time: 7d (that long ago) or 2026-01-31.
    output
        Write to this file (default: stdout).
    force
        Replace an existing file.
    """
    start = parse_since(since) if since else None
    if output is not None:
        refuse_existing(output, "--output", force=force)
    with connect() as client:
        pieces = client.audit.export(actor=actor, action=action, workspace=workspace, since=start)
        if output is None:
            for piece in pieces:
                out.write(piece.decode("ascii"))
            return
        count = 0
        with whole_file(output) as file:
            for piece in pieces:
                count += piece.count(b"\n")
                file.write(piece)
        output.chmod(0o600)
    out.info(f"Wrote {_entries(count)} to {output}.")


def _print_verified(found: AuditVerified) -> None:
    if found.whole:
        out.info(f"The audit log is intact: {_entries(found.entries)} verified.")
        out.line(f"{found.seq}:{found.head}")
        return
    out.info("The audit log has been changed or damaged.")
    for problem in found.problems:
        which = "the log" if problem.seq is None else f"entry {problem.seq}"
        out.line(f"{which}: {clean(problem.what)}")
    out.info(f"Compare with a backup: {out.prog} server backup list --json shows the head of the log in each.")


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"
