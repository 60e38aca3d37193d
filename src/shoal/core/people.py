"""Accounts, keys, workspaces, members and secrets on the wire."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from pydantic import Field, field_validator

from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View


class Role(StrEnum):
    """Role of a member in a workspace. Each role includes the rights of those before it."""

    VIEWER = "viewer"
    MEMBER = "member"
    OWNER = "owner"

    @property
    def rank(self) -> int:
        return list(Role).index(self)

    def covers(self, needed: Role) -> bool:
        """Return whether this role includes the rights of `needed`."""
        return self.rank >= needed.rank


class Scope(StrEnum):
    """Rights of a key. A key can never do more than its owner's role allows."""

    READ = "read"
    """See jobs, logs, data and settings."""
    WRITE = "write"
    """Submit, stop and delete jobs; push data; manage secrets."""
    ADMIN = "admin"
    """Manage members, workspaces and keys."""


ALL_SCOPES = list(Scope)
OWNER_EMAIL = "owner@localhost"
"""Address of a private server's owner, who signs in with a key file; not a real one."""
MAX_KEY_LIFE = timedelta(days=3650)


def check_email(value: str) -> str:
    """Return the address in the form in which it is stored; raise ValueError if it is not an e-mail address."""
    value = value.strip()
    local, _, host = value.lower().partition("@")
    is_broken = not local or not host or " " in value or not value.isprintable()
    if is_broken or host.startswith(".") or host.endswith("."):
        raise ValueError(f"{value!r} is not an e-mail address")
    return f"{local}@{host}"


class SignUp(Schema):
    """A new account."""

    email: str = Field(max_length=254)
    password: str = Field(min_length=10, max_length=1024)
    name: str = Field(default="", max_length=100)
    setup_code: str = Field(default="", max_length=100)
    """Code for the first account of a shared server, which becomes its admin. `shoal server status` shows it on the server's
    machine."""
    invitation: str = Field(default="", max_length=200)
    """Code of an invitation to a workspace. It permits the sign-up and makes the new account a member."""

    @field_validator("email")
    @classmethod
    def _email(cls, value: str) -> str:
        return check_email(value)


class OwnerAccount(Schema):
    """E-mail address and password for the owner of a private server, who has signed in with the owner's key file so far."""

    email: str = Field(max_length=254)
    password: str = Field(min_length=10, max_length=1024)
    name: str = Field(default="", max_length=100)

    @field_validator("email")
    @classmethod
    def _email(cls, value: str) -> str:
        return check_email(value)


class SignIn(Schema):
    email: str = Field(max_length=254)
    password: str = Field(max_length=1024)


class PasswordChange(Schema):
    old_password: str = Field(max_length=1024)
    new_password: str = Field(min_length=10, max_length=1024)


class SessionView(View):
    """A new session."""

    token: str
    """Token of the session, shown only once. Send it as `Authorization: Bearer …`; browsers get it as a cookie."""
    user: UserView
    expires_at: Utc
    joined: WorkspaceView | None = None
    """Workspace that the account has joined through an invitation, if one was given."""


class UserView(View):
    """An account."""

    id: str
    email: str
    name: str
    is_admin: bool
    created_at: Utc
    email_verified: bool = False
    """True if the person has proved that the address is theirs, by a link in a mail or by a sign-in service."""


class ConnectedService(View):
    """A sign-in service of the server, such as Google, and the user's account there."""

    name: str
    title: str
    email: str | None
    """Address of the user's account there; None if it is not connected."""


class PasswordLost(Schema):
    """A request for a mail with a code that sets a new password."""

    email: str = Field(max_length=254)


class PasswordRecovery(Schema):
    """A new password, with the code from a mail."""

    code: str = Field(min_length=1, max_length=200)
    new_password: str = Field(min_length=10, max_length=1024)


class MailedCode(Schema):
    """The code from a mail."""

    code: str = Field(min_length=1, max_length=200)


class ProfileChange(Schema):
    """A new name to be shown for the account."""

    name: str = Field(max_length=100)

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("a name cannot contain control characters")
        return value.strip()


class OpenSession(View):
    """One of the user's own sessions."""

    id: str
    program: str
    """Program that started the session, such as 'Firefox on Linux'."""
    created_at: Utc
    expires_at: Utc
    current: bool
    """True for the session that made this request."""


class KeyCreate(Schema):
    """A new API key."""

    name: str
    scopes: list[Scope] = Field(default_factory=lambda: list(ALL_SCOPES), min_length=1)
    expires_in_s: int | None = Field(default=None, ge=1, le=int(MAX_KEY_LIFE.total_seconds()))

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "key name")


class KeyView(View):
    """An API key, without its secret part."""

    id: str
    name: str
    scopes: list[Scope]
    hint: str
    """Last characters of the key, to tell keys apart."""
    created_at: Utc
    expires_at: Utc | None
    last_used_at: Utc | None
    revoked_at: Utc | None


class KeyCreated(KeyView):
    key: str
    """The key itself. It is shown only once; the server stores only its hash."""


class WorkspaceCreate(Schema):
    name: str

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "workspace name")


class WorkspaceRename(WorkspaceCreate):
    """The new name of a workspace."""


class WorkspaceView(View):
    id: str
    name: str
    role: Role
    """Role of the current user."""
    jobs: int
    datasets: int
    created_at: Utc


class MemberSet(Schema):
    """A member to add, or the new role of one."""

    email: str
    role: Role


class MemberView(View):
    user_id: str
    email: str
    name: str
    role: Role


class WorkspaceInvite(Schema):
    """A new invitation. One person can use it, with a new or an existing account."""

    email: str = Field(default="", max_length=254)
    """Only an account with this address can use the invitation; empty: anyone who has the link."""
    role: Role = Role.MEMBER
    expires_in_s: int = Field(default=7 * 86_400, ge=60, le=30 * 86_400)

    @field_validator("email")
    @classmethod
    def _email(cls, value: str) -> str:
        return check_email(value) if value.strip() else ""


class WorkspaceInvitationView(View):
    """An invitation to a workspace."""

    id: str
    workspace: str
    email: str
    """Address of the account that can use the invitation; empty: anyone who has the link."""
    role: Role
    created_by: str
    created_at: Utc
    expires_at: Utc
    used_by: str | None = None
    used_at: Utc | None = None
    revoked_at: Utc | None = None
    is_open: bool
    """True if it was not used or revoked and has not expired."""


class WorkspaceInvitationCreated(WorkspaceInvitationView):
    """A new invitation with its code."""

    code: str
    """Code of the invitation. It is shown only once; the server stores only its hash."""
    path: str
    """Path of the page to join on, on this server."""


class InvitationCode(Schema):
    """Code of an invitation to accept."""

    code: str = Field(min_length=1, max_length=200)


class SecretSet(Schema):
    """A secret to create or replace."""

    name: str
    value: str = Field(min_length=1, max_length=65_536)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "secret name")


class SecretView(View):
    """A secret without its value: values are write-only and are passed to jobs only."""

    name: str
    created_at: Utc
    updated_at: Utc
    readable: bool = True
    """False if it was encrypted with a secret.key that the server no longer has: set it again."""


class RegistryConnect(Schema):
    """A git host and a token with access to its private repositories."""

    host: str = Field(default="github.com", pattern=r"^[A-Za-z0-9.-]+(:\d+)?$")
    token: str = Field(min_length=1, max_length=4096)
    username: str = Field(default="x-access-token", max_length=255)


class RegistryView(View):
    """A connected git host. Its token is write-only."""

    host: str
    username: str


class GitSourceAdd(Schema):
    """A named git repository, for `training run --source-name`."""

    name: str
    url: str = Field(max_length=2048)
    revision: str | None = Field(default=None, max_length=255)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "source name")


class GitSourceView(View):
    name: str
    url: str
    revision: str | None
    created_at: Utc


class GitFetch(Schema):
    """A request to the server to fetch a git repository at a revision and store it as a source."""

    url: str | None = Field(default=None, max_length=2048)
    source_name: str | None = None
    revision: str | None = Field(default=None, max_length=255)
