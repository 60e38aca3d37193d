"""Notifications on the wire: rules of people and workspaces, channels, and the notices in the console."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shoal.core.schema import Schema, Utc, View

NoticeKind = Literal[
    "job_ended", "job_failed", "job_stalled", "metric_nan", "metric_above", "metric_below", "budget", "lease_ending",
    "device_drained",
]  # fmt: skip
ChannelType = Literal["email", "webhook", "slack", "discord"]
MAX_CHANNELS = 5
DEFAULT_LEASE_S, DEFAULT_BUDGET = 3600.0, 0.8


class Channel(Schema):
    """Way to send notices. All notices are also in the console."""

    type: ChannelType
    to: str = Field(default="", max_length=2000)
    """URL; for e-mail the address of a member, or empty for those whom the rule is for."""

    @model_validator(mode="after")
    def _has_url(self) -> Self:
        if self.type != "email" and not self.to.startswith(("https://", "http://")):
            raise ValueError(f"a channel of type {self.type} needs a URL: https://…")
        return self


class RuleSave(Schema):
    """Rule: what to be told of, and how."""

    kind: NoticeKind
    jobs: str = Field(default="", max_length=200)
    """Only jobs with this name; `*` stands for any text. Empty for all."""
    metric: str = Field(default="", max_length=500)
    """Metric of metric_above and metric_below; for metric_nan empty for any."""
    value: float | None = Field(default=None, allow_inf_nan=False)
    """Limit of a metric; share of a budget (0.8); seconds before the end of a lease (3600)."""
    channels: list[Channel] = Field(default=[], max_length=MAX_CHANNELS)
    shared: bool = False
    """True for a rule of the workspace, which tells all its members."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.kind in ("metric_above", "metric_below") and (not self.metric or self.value is None):
            raise ValueError(f"a rule of kind {self.kind} needs metric and value")
        if self.kind == "budget" and self.value is not None and not 0 < self.value <= 1:
            raise ValueError("the value of a budget rule is a share: above 0 and at most 1")
        return self


class RuleView(View):
    """Rule with the state of its last delivery."""

    id: str
    kind: NoticeKind
    jobs: str
    metric: str
    value: float | None
    channels: list[Channel]
    shared: bool
    created_by: str
    created_at: Utc
    last_sent_at: Utc | None = None
    last_error: str | None = None
    """Reason why the newest delivery failed, or will be tried again; None if it arrived."""


class RuleMade(View):
    """New rule with the secret that signs its webhooks, which is shown only here."""

    rule: RuleView
    secret: str


class Notice(View):
    """Notice in the console."""

    id: int
    kind: NoticeKind
    title: str
    text: str
    path: str
    """Page of the console."""
    at: Utc
    read: bool


class Inbox(View):
    """Notices of a person, newest first."""

    notices: list[Notice]
    unread: int
