"""Accounts, keys, workspaces, members and secrets on the wire."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from pydantic import Field, field_validator

from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View


class Role(StrEnum):
    VIEWER = "viewer"
    MEMBER = "member"
    OWNER = "owner"

    @property
    def rank(self) -> int:
        return list(Role).index(self)

    def covers(self, needed: Role) -> bool:
        return self.rank >= needed.rank


class Scope(StrEnum):
    """What a key may do; a key's reach is its scopes and its owner's roles, whichever is less."""

    READ = "read"
    """See jobs, logs, data and settings."""
    WRITE = "write"
    """Submit, stop and delete jobs; push data; manage secrets."""
    ADMIN = "admin"
    """Manage members, workspaces and keys."""


ALL_SCOPES = list(Scope)
MAX_KEY_LIFE = timedelta(days=3650)


def check_email(value: str) -> str:
    """The address in the form it is stored in; ValueError if it is none."""
    value = value.strip()
    local, _, host = value.lower().partition("@")
    is_broken = not local or not host or " " in value or not value.isprintable()
    if is_broken or host.startswith(".") or host.endswith("."):
        raise ValueError(f"{value!r} is not an e-mail address")
    return f"{local}@{host}"


class SignUp(Schema):
    email: str = Field(max_length=254)
    password: str = Field(min_length=10, max_length=1024)
    name: str = Field(default="", max_length=100)
    setup_code: str = Field(default="", max_length=100)
    """For the first account of a shared server, which is its admin's: as `shoal server status` shows it on that machine."""
    invitation: str = Field(default="", max_length=200)
    """The code of an invitation to a workspace. It allows the sign-up and makes the account a member."""

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
    token: str
    """Shown once. Send it as `Authorization: Bearer …`; browsers get it as a cookie."""
    user: UserView
    expires_at: Utc
    joined: WorkspaceView | None = None
    """The workspace that an invitation has opened, if one was given."""


class UserView(View):
    id: str
    email: str
    name: str
    is_admin: bool
    created_at: Utc


class ProfileChange(Schema):
    name: str = Field(max_length=100)

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("a name cannot hold control characters")
        return value.strip()


class OpenSession(View):
    """A session of one's own, wherever it is."""

    id: str
    program: str
    """What it was started with, such as 'Firefox on Linux'."""
    created_at: Utc
    expires_at: Utc
    current: bool
    """The one that asks."""


class KeyCreate(Schema):
    name: str
    scopes: list[Scope] = Field(default_factory=lambda: list(ALL_SCOPES), min_length=1)
    expires_in_s: int | None = Field(default=None, ge=1, le=int(MAX_KEY_LIFE.total_seconds()))

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "key name")


class KeyView(View):
    id: str
    name: str
    scopes: list[Scope]
    hint: str
    """The last characters, to tell keys apart."""
    created_at: Utc
    expires_at: Utc | None
    last_used_at: Utc | None
    revoked_at: Utc | None


class KeyCreated(KeyView):
    key: str
    """The key itself: shown this once, stored only as a hash."""


class WorkspaceCreate(Schema):
    name: str

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "workspace name")


class WorkspaceRename(WorkspaceCreate):
    """The name it is to have from now on."""


class WorkspaceView(View):
    id: str
    name: str
    role: Role
    """Yours."""
    jobs: int
    datasets: int
    created_at: Utc


class MemberSet(Schema):
    email: str
    role: Role


class MemberView(View):
    user_id: str
    email: str
    name: str
    role: Role


class WorkspaceInvite(Schema):
    """An invitation to make: one person joins by it, with a new account or one they have."""

    email: str = Field(default="", max_length=254)
    """Only an account with this address can use it; empty for anyone who has the link."""
    role: Role = Role.MEMBER
    expires_in_s: int = Field(default=7 * 86_400, ge=60, le=30 * 86_400)

    @field_validator("email")
    @classmethod
    def _email(cls, value: str) -> str:
        return check_email(value) if value.strip() else ""


class WorkspaceInvitationView(View):
    id: str
    workspace: str
    email: str
    """Whose it is; empty for anyone who has the link."""
    role: Role
    created_by: str
    created_at: Utc
    expires_at: Utc
    used_by: str | None = None
    used_at: Utc | None = None
    revoked_at: Utc | None = None
    is_open: bool
    """Nobody has used it yet, and it was neither revoked nor has it expired."""


class WorkspaceInvitationCreated(WorkspaceInvitationView):
    code: str
    """Shown this once, stored only as a hash."""
    path: str
    """The page to join on, on this server."""


class InvitationCode(Schema):
    code: str = Field(min_length=1, max_length=200)


class SecretSet(Schema):
    name: str
    value: str = Field(min_length=1, max_length=65_536)

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "secret name")


class SecretView(View):
    """Values are write-only: they reach jobs, and nobody else."""

    name: str
    created_at: Utc
    updated_at: Utc
    readable: bool = True
    """False for one that was encrypted with a secret.key the server has no more: set it again."""


class RegistryConnect(Schema):
    """A git host and the token that opens its private repositories."""

    host: str = Field(default="github.com", pattern=r"^[A-Za-z0-9.-]+(:\d+)?$")
    token: str = Field(min_length=1, max_length=4096)
    username: str = Field(default="x-access-token", max_length=255)


class RegistryView(View):
    """A connected host. Its token is write-only."""

    host: str
    username: str


class GitSourceAdd(Schema):
    """A named repository, for `training run --source-name`."""

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
    """Ask the server to fetch a repository at a revision and keep it as a source."""

    url: str | None = Field(default=None, max_length=2048)
    source_name: str | None = None
    revision: str | None = Field(default=None, max_length=255)
