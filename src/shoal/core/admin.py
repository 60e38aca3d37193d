"""What admins of a server see and change: accounts, and the limits that hold for everyone."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from shoal.core.money import check_currency
from shoal.core.people import SignUp, UserView
from shoal.core.schema import Schema, Utc, View

Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
"""Of one slot for an hour."""


class AccountView(UserView):
    disabled_at: Utc | None
    """Since when nobody can sign in to it."""
    has_password: bool
    workspaces: int
    """It is a member of."""
    jobs: int
    """It has submitted."""


class AccountCreate(SignUp):
    """An account made for someone; they change the password themselves."""

    is_admin: bool = False


class AccountChange(Schema):
    """What is not given stays."""

    is_admin: bool | None = None
    disabled: bool | None = None


class PasswordReset(Schema):
    password: str = Field(min_length=10, max_length=1024)


class LimitsView(View):
    """The settings that take effect at once; see docs/reference/settings.md for their meaning."""

    sign_up: bool
    max_source_mb: int
    max_import_gb: int
    max_archive_ratio: int
    git_timeout_s: float
    stop_grace_s: float
    lease_s: float
    start_timeout_s: float
    queue_half_life_h: float
    queue_patience_h: float
    queue_preempt: bool
    currency: str
    price_cpu: float
    price_cuda: float
    price_rocm: float
    price_xpu: float
    fixed: dict[str, str | int | float | bool]
    """Those that a running server does not change."""


class LimitsChange(Schema):
    """What is not given stays."""

    sign_up: bool | None = None
    max_source_mb: int | None = Field(default=None, ge=1, le=65_536)
    max_import_gb: int | None = Field(default=None, ge=1, le=1_000_000)
    max_archive_ratio: int | None = Field(default=None, ge=2, le=100_000)
    git_timeout_s: float | None = Field(default=None, ge=1, le=3_600)
    stop_grace_s: float | None = Field(default=None, ge=0, le=3_600)
    lease_s: float | None = Field(default=None, ge=5, le=3_600)
    start_timeout_s: float | None = Field(default=None, ge=10, le=3_600)
    queue_half_life_h: float | None = Field(default=None, gt=0, le=10_000)
    queue_patience_h: float | None = Field(default=None, gt=0, le=10_000)
    queue_preempt: bool | None = None
    currency: Annotated[str, AfterValidator(check_currency)] | None = None
    price_cpu: Price | None = None
    price_cuda: Price | None = None
    price_rocm: Price | None = None
    price_xpu: Price | None = None
