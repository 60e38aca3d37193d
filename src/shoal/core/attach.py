"""Shells and JupyterLab inside running jobs, on the wire."""

from __future__ import annotations

from pydantic import Field

from shoal.core.leases import PublicKey
from shoal.core.schema import Count64, Schema, View


class AttachRequest(Schema):
    """A request for a shell on one node of a running job."""

    public_key: PublicKey
    """SSH public key generated for this session; it gives access to this job only."""
    node: Count64 = 0


class AttachView(View):
    """Connection details of a shell in a job."""

    login: str
    host: str
    port: int
    host_key: str
    """Public key of the SSH gateway."""
    is_ready: bool
    """False until the job's agent has connected to the gateway: send the request again."""


class JupyterRequest(Schema):
    """A request for JupyterLab on one node of a running job."""

    node: Count64 = 0


class JupyterView(View):
    """State of the JupyterLab of a job."""

    job: str
    node: int
    is_ready: bool
    """False while JupyterLab starts: send the request again. Once true, signed-in browsers reach it from the job's page in the
    console, below `/jupyter`."""


class AttachFetch(Schema):
    """An agent's request for the details of an attach command."""

    order: str = Field(max_length=64)


class AttachInstructions(View):
    """Settings an agent needs to run the SSH server of a shell."""

    gateway_port: int
    gateway_key: str
    public_key: str
    """Public key of the SSH server. If it equals that of the running one, the connection exists already."""
    server: str
    """Configuration of the SSH server: its private key and the keys that may sign in."""
