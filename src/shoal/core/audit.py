"""The audit log on the wire: recorded actions, entries, and the result of a verification."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from shoal.core.schema import Utc, View

AuditResult = Literal["ok", "failed"]


class AuditAction(StrEnum):
    """Action that the audit log records. The first part is the kind of its object."""

    SESSION_START = "session.start"
    """Sign-in with a password, a sign-in service, a link from `shoal console` or a new account. A failed one has the result
    `failed`."""
    SESSION_END = "session.end"
    ACCOUNT_CREATE = "account.create"
    ACCOUNT_DISABLE = "account.disable"
    ACCOUNT_ENABLE = "account.enable"
    ACCOUNT_PROMOTE = "account.promote"
    """An account became an admin of the server."""
    ACCOUNT_DEMOTE = "account.demote"
    ACCOUNT_RESET_PASSWORD = "account.reset-password"
    """An admin set a new password for someone else."""
    ACCOUNT_CHANGE_PASSWORD = "account.change-password"
    ACCOUNT_RECOVER = "account.recover"
    """A person set a new password with a link from a mail."""
    ACCOUNT_VERIFY_EMAIL = "account.verify-email"
    IDENTITY_CONNECT = "identity.connect"
    """An account at a sign-in service was connected to an account of this server."""
    IDENTITY_DISCONNECT = "identity.disconnect"
    ACCOUNT_CLAIM = "account.claim"
    """The owner of a private server got an e-mail address and a password."""
    KEY_CREATE = "key.create"
    KEY_REVOKE = "key.revoke"
    WORKSPACE_CREATE = "workspace.create"
    WORKSPACE_RENAME = "workspace.rename"
    WORKSPACE_DELETE = "workspace.delete"
    MEMBER_ADD = "member.add"
    MEMBER_CHANGE = "member.change"
    MEMBER_REMOVE = "member.remove"
    INVITATION_CREATE = "invitation.create"
    INVITATION_REVOKE = "invitation.revoke"
    SECRET_SET = "secret.set"
    SECRET_DELETE = "secret.delete"
    REGISTRY_CONNECT = "registry.connect"
    REGISTRY_DISCONNECT = "registry.disconnect"
    JOB_CREATE = "job.create"
    JOB_STOP = "job.stop"
    JOB_RESUME = "job.resume"
    JOB_DELETE = "job.delete"
    JOB_ATTACH = "job.attach"
    """Request for a shell or a notebook inside a running job."""
    SWEEP_CREATE = "sweep.create"
    SWEEP_STOP = "sweep.stop"
    SWEEP_RERUN = "sweep.rerun"
    SWEEP_DELETE = "sweep.delete"
    SWARM_CREATE = "swarm.create"
    SWARM_STOP = "swarm.stop"
    SWARM_RESUME = "swarm.resume"
    SWARM_DELETE = "swarm.delete"
    SWARM_INVITE = "swarm.invite"
    SWARM_UNINVITE = "swarm.uninvite"
    """An invitation to a swarm was revoked."""
    SWARM_KICK = "swarm.kick"
    DATASET_DELETE = "dataset.delete"
    CHECKPOINT_DELETE = "checkpoint.delete"
    LEASE_CREATE = "lease.create"
    LEASE_EXTEND = "lease.extend"
    LEASE_RESTART = "lease.restart"
    LEASE_END = "lease.end"
    SNAPSHOT_DELETE = "snapshot.delete"
    MACHINE_ADD = "machine.add"
    MACHINE_REMOVE = "machine.remove"
    MACHINE_DRAIN = "machine.drain"
    MACHINE_RESUME = "machine.resume"
    MACHINE_JOIN_COMMAND = "machine.join-command"
    ENGINE_ADD = "engine.add"
    ENGINE_REMOVE = "engine.remove"
    SETTINGS_CHANGE = "settings.change"
    QUOTA_CHANGE = "quota.change"
    BACKUP_CREATE = "backup.create"
    BACKUP_RESTORE = "backup.restore"


class AuditEntry(View):
    """An entry of the audit log."""

    seq: int
    """Number of the entry. The first is 1, and none is left out."""
    at: Utc
    actor: str
    """E-mail address of the person; `server` for what the server did by itself; `local:NAME` for a user of the server's machine.
    Empty for a failed sign-in."""
    key_id: str
    """Id of the API key or session that was used; empty if none was."""
    address: str
    """Network address that the request came from; empty if there was no request."""
    request: str
    """Id that the entries of one request share; empty if there was no request."""
    action: str
    object: str
    """Name of the object: of a job, a secret, a machine; the e-mail address of an account."""
    object_id: str
    """Id of the object; empty if it has none."""
    workspace: str
    """Name of the workspace at that time; empty for actions on the whole server."""
    workspace_id: str
    result: AuditResult
    detail: str
    """More about the action: a role, the names of changed settings. Never a secret value."""
    previous: str
    """Hash of the previous entry."""
    hash: str
    """BLAKE3 hash of this entry, which includes the hash of the previous one."""


class AuditProblem(View):
    """An inconsistency found in the audit log."""

    seq: int | None
    """Number of the entry; None if the problem concerns the log as a whole."""
    what: str


class AuditVerified(View):
    """Result of a verification of the audit log."""

    entries: int
    whole: bool
    seq: int
    head: str
    """Hash of the last entry. A copy kept elsewhere later proves that no earlier entry was changed or removed."""
    problems: list[AuditProblem]
