"""`shoal machine rent`, `extend`, `restart` and `release`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shoal.cli.shared.bulk import demand, each
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import DeviceName, device_requirements, parse_duration
from shoal.cli.shared.session import connect
from shoal.core.durations import duration
from shoal.core.errors import Refused, UsageError

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.leases import LeaseRequest, LeaseView

_MANY = Parameter(negative=(), consume_multiple=False)


def rent(
    *,
    accels: int = 1,
    device: DeviceName = "auto",
    gpu: str | None = None,
    gpu_memory: str | None = None,
    label: Annotated[list[str] | None, _MANY] = None,
    time: str = "8h",
    name: str | None = None,
    prefer: Annotated[list[str] | None, _MANY] = None,
    dataset: Annotated[list[str] | None, _MANY] = None,
    source: str | None = None,
    repository_url: Annotated[str | None, Parameter(name=("--repository-url", "-u"))] = None,
    repository_revision: Annotated[str | None, Parameter(name=("--repository-revision", "-b"))] = None,
    dir: Path | None = None,
    ssh_key: Annotated[list[Path] | None, _MANY] = None,
    password: bool = False,
    restore: str | None = None,
    wait: Annotated[bool, Parameter(negative="--no-wait")] = True,
) -> int:
    """Rent a share of a machine and use it by SSH.

    A lease waits in the queue for its slots, as a job does. Its time starts
    when it is ready; then the SSH command is printed. Your public keys
    (~/.ssh/*.pub) are authorized. `shoal machine ssh` works without a key.

    For example:

      shoal machine rent
      shoal machine rent --name box --accels 2 --time 2d --dataset wikitext
      shoal machine rent --device cuda
      shoal machine rent --repository-url https://github.com/me/exp
      shoal machine rent --no-wait --json

    Parameters
    ----------
    accels
        Number of slots (default 1).
    device
        Kind of slots: cpu, gpu (an accelerator of any kind), cuda, rocm, xpu, or any (whichever is free).
        Default auto: accelerators if the pool has any, else CPUs.
    gpu
        Model of the GPUs: H100, or H100:2 for two.
    gpu_memory
        Memory that each GPU must have at least (40G).
    label
        Label that the machine must have, as KEY=VALUE (repeatable).
    time
        Duration of the lease, at most seven days (default 8h). It can be extended.
    name
        Name of the lease (default: a generated name).
    prefer
        Machine to use if it has room (repeatable).
    dataset
        Dataset to mount at /input/NAME (repeatable).
    source
        Registered git repository (`shoal source list`) to copy to the lease.
    repository_url
        URL of a git repository to copy to the lease.
    repository_revision
        Branch, tag or commit of the repository.
    dir
        Folder on this machine to copy to the lease.
    ssh_key
        Public key file to authorize instead of those in ~/.ssh (repeatable).
    password
        Also create a password, if the server allows passwords. It is shown once.
    restore
        Snapshot to start from: its id, or the name of the lease it was taken from.
    wait
        Wait until the lease is ready (default); --no-wait returns immediately.
    """
    from shoal.core.leases import LeaseCreated

    keys = _keys(ssh_key)
    seconds = _seconds(time)
    with connect() as client:
        ask = _lease_request(
            name=name,
            **device_requirements(accels, device, gpu, gpu_memory, label),
            time_s=seconds,
            prefer=prefer or [],
            datasets=dataset or [],
            source_id=_source(client, source, repository_url, repository_revision, dir),
            ssh_keys=keys,
            password=password,
            restore=restore,
        )
        made = client.leases.rent(ask)
        if made.password:
            out.info(f"Password of '{made.name}', shown only now: {made.password}")
        lease: LeaseView = made
        if wait:
            out.info(f"Lease '{made.name}' is requested. Ctrl-C only stops this command; see: {out.prog} machine list")
            lease = client.leases.wait(made.id)
    out.show(LeaseCreated(**lease.model_dump() | {"password": made.password}), lambda: _print_lease(lease))
    return Refused.exit_code if wait and lease.status != "running" else 0


def extend(lease: str, /, *, time: str = "8h") -> None:
    """Extend a lease. Running processes are not affected.

    For example:

      shoal machine extend box
      shoal machine extend box --time 2d

    Parameters
    ----------
    lease
        Name or id of the lease.
    time
        Time to add (default 8h). At most seven days can remain.
    """
    seconds = _seconds(time)
    with connect() as client:
        view = client.leases.extend(lease, seconds)
    out.show(view, lambda: out.info(f"Lease '{view.name}' ends in {duration(view.left_s or seconds)}."))


def restart(lease: str, /) -> int:
    """Restart a lease whose machine was lost, on the same machine if it is back.

    For example:

      shoal machine restart box

    Parameters
    ----------
    lease
        Name or id of the lease.
    """
    with connect() as client:
        client.leases.restart(lease)
        view = client.leases.wait(lease)
    out.show(view, lambda: _print_lease(view))
    return 0 if view.status == "running" else Refused.exit_code


def release(*leases: str) -> int:
    """End leases now. All sessions are closed and running processes are stopped.

    For example:

      shoal machine release box

    Parameters
    ----------
    leases
        Names or ids of the leases.
    """
    demand(leases, "machine")
    with connect() as client:

        def act(name: str) -> LeaseView:
            view = client.leases.release(name)
            out.info(f"Lease '{view.name}' was released.")
            return view

        return each(leases, act)


def lease_columns() -> list[Column]:
    return [
        Column("LEASE", lambda v: v.name),
        Column("STATUS", lambda v: v.status, is_status=True),
        Column("MACHINE", lambda v: v.machine, rank=2),
        Column("SLOTS", lambda v: v.accels, is_right=True, rank=3),
        Column("SANDBOX", lambda v: v.sandbox, rank=4),
        Column("ENDS", lambda v: v.ended_at or v.expires_at, rank=1),
        Column("SSH", lambda v: v.command if v.status == "running" else v.reason or v.waiting, is_text=True),
    ]


def _print_lease(lease: LeaseView) -> None:
    if lease.status != "running":
        more = f": {lease.reason or lease.waiting}" if lease.reason or lease.waiting else ""
        out.info(f"Lease '{lease.name}' is {lease.status}{more}")
        return
    out.info(
        f"Lease '{lease.name}' ends in {duration(lease.left_s or 0)}. Without a key: {out.prog} machine ssh {lease.name}"
    )
    out.line(lease.command)


def _seconds(time: str) -> int:
    from shoal.core.leases import MAX_TIME, MIN_TIME

    seconds = round(parse_duration(time, "--time"))
    if not MIN_TIME.total_seconds() <= seconds <= MAX_TIME.total_seconds():
        least, most = (duration(limit.total_seconds()) for limit in (MIN_TIME, MAX_TIME))
        raise UsageError(
            f"--time {time}: a lease lasts at least {least} and at most {most}.", hint="--time 8h, or --time 7d"
        )
    return seconds


def _keys(given: list[Path] | None) -> list[str]:
    paths = given or sorted(Path("~/.ssh").expanduser().glob("*.pub"))
    lines = []
    for path in paths:
        try:
            text = path.expanduser().read_text("utf-8", "replace")
        except OSError as error:
            raise UsageError(f"--ssh-key {path}: {error.strerror}.", hint="ssh-keygen -t ed25519") from None
        if "PRIVATE KEY" in text:
            raise UsageError(f"{path} is a private key. Give the public key.", hint=f"--ssh-key {path}.pub")
        if given or "-cert-" not in text:
            lines.append(text.strip())
    return lines


def _lease_request(**values: Any) -> LeaseRequest:
    """Return the lease request; raise UsageError that names the option if a value is invalid."""
    from pydantic import ValidationError

    from shoal.core.leases import LeaseRequest

    try:
        return LeaseRequest(**values)
    except ValidationError as error:
        first = error.errors()[0]
        option = {"ssh_keys": "--ssh-key", "name": "--name", "accels": "--accels"}
        place = option.get(str(first["loc"][0]), str(first["loc"][0])) if first["loc"] else ""
        text = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{place}: {text}.", hint=f"{out.prog} machine rent --help") from None


def _source(
    client: Client, source: str | None, url: str | None, revision: str | None, folder: Path | None
) -> str | None:
    from shoal.cli.shared.source import MAX_BYTES, MAX_FILES, deliver

    given = [option for option, value in (("--source", source), ("--repository-url", url), ("--dir", folder)) if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined.")
    if revision and not (source or url):
        raise UsageError("--repository-revision needs --repository-url or --source.")
    if source or url:
        out.dim(f"Fetching {url or source} …")
        return client.sources.fetch_git(url=url, source_name=source, revision=revision).id
    if folder is None:
        return None
    from shoal.store.pack import pack_tree

    packed = pack_tree(folder, max_bytes=MAX_BYTES, max_files=MAX_FILES)
    for line in packed.skipped:
        out.warn(f"skipped: {line}")
    return deliver(client, packed, {"kind": "folder", "path": str(folder.absolute())})
