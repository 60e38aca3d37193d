"""Shells inside running jobs, on the wire."""

from __future__ import annotations

from pydantic import Field

from shoal.core.leases import PublicKey
from shoal.core.schema import Count64, Schema, View


class AttachAsk(Schema):
    public_key: PublicKey
    """Made for the occasion: it opens this and nothing else."""
    node: Count64 = 0


class AttachView(View):
    login: str
    host: str
    port: int
    host_key: str
    """The gateway's public key."""
    is_ready: bool
    """False until the job's agent has opened the way: ask again."""


class JupyterAsk(Schema):
    node: Count64 = 0


class JupyterView(View):
    job: str
    node: int
    is_ready: bool
    """False while it starts: ask again. Then browsers that are signed in are let in at the job's page of the console, below `/jupyter`."""


class AttachFetch(Schema):
    order: str = Field(max_length=64)


class AttachOrder(View):
    """What the agent needs to let people in."""

    gateway_port: int
    gateway_key: str
    public_key: str
    """Of the SSH server: the same one means that the way is open already."""
    server: str
    """For the SSH server: its own key, and who may come."""
