"""Administration on the wire: accounts, and the server-wide limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, AliasChoices, Field

from shoal.core.model_prices import check_prices
from shoal.core.money import check_currency
from shoal.core.people import SignUp, UserView
from shoal.core.schema import Schema, Utc, View

Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
"""Price of one slot for one hour."""


class AccountView(UserView):
    """An account as an admin sees it."""

    disabled_at: Utc | None
    """Time the account was disabled; None while its owner can sign in."""
    has_password: bool
    workspaces: int
    """Number of workspaces the account is a member of."""
    jobs: int
    """Number of jobs the account has submitted."""


class AccountCreate(SignUp):
    """An account that an admin creates for someone else, who can change the password later."""

    is_admin: bool = False


class AccountChange(Schema):
    """Changes to an account. Omitted fields are left unchanged."""

    is_admin: bool | None = None
    disabled: bool | None = None


class PasswordReset(Schema):
    """A new password that an admin sets for an account."""

    password: str = Field(min_length=10, max_length=1024)


class LimitsView(View):
    """Settings that can be changed while the server runs; docs/reference/settings.md explains each of them."""

    sign_up: bool
    max_source_mb: int
    max_import_gb: int
    max_archive_ratio: int
    git_timeout_s: float
    stop_grace_s: float
    node_timeout_s: float
    lease_s: float
    """Old name of `node_timeout_s`."""
    start_timeout_s: float
    queue_half_life_h: float
    queue_patience_h: float
    queue_preempt: bool
    currency: str
    price_cpu: float
    price_cuda: float
    price_rocm: float
    price_xpu: float
    price_models: str
    fixed: dict[str, str | int | float | bool]
    """Settings that cannot be changed while the server runs, with their current values."""


class LimitsChange(Schema):
    """Changes to the settings of a running server. Omitted fields are left unchanged."""

    sign_up: bool | None = None
    max_source_mb: int | None = Field(default=None, ge=1, le=65_536)
    max_import_gb: int | None = Field(default=None, ge=1, le=1_000_000)
    max_archive_ratio: int | None = Field(default=None, ge=2, le=100_000)
    git_timeout_s: float | None = Field(default=None, ge=1, le=3_600)
    stop_grace_s: float | None = Field(default=None, ge=0, le=3_600)
    node_timeout_s: float | None = Field(
        default=None, ge=5, le=3_600, validation_alias=AliasChoices("node_timeout_s", "lease_s")
    )
    start_timeout_s: float | None = Field(default=None, ge=10, le=3_600)
    queue_half_life_h: float | None = Field(default=None, gt=0, le=10_000)
    queue_patience_h: float | None = Field(default=None, gt=0, le=10_000)
    queue_preempt: bool | None = None
    currency: Annotated[str, AfterValidator(check_currency)] | None = None
    price_cpu: Price | None = None
    price_cuda: Price | None = None
    price_rocm: Price | None = None
    price_xpu: Price | None = None
    price_models: Annotated[str, Field(max_length=4000), AfterValidator(check_prices)] | None = None
