"""`shoal machine rent` and what keeps a lease: extend, restart, release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shoal.cli._each import demand, each
from shoal.cli._output import Column, out
from shoal.cli._parse import DeviceName, parse_duration
from shoal.cli._session import connect
from shoal.core.durations import duration
from shoal.core.errors import Refused, UsageError

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.leases import LeaseAsk, LeaseView

_MANY = Parameter(negative=(), consume_multiple=False)


def rent(
    *,
    accels: int = 1,
    device: DeviceName = "auto",
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
    """Rent a share of a machine, and use it by SSH.

    It gets its slots as a job does: at once, or when it is its turn. Its time
    begins when it can be used; then the command to reach it is printed. Your
    public keys (~/.ssh/*.pub) open it, and `shoal machine ssh` does without any.

    For example:

      shoal machine rent
      shoal machine rent --name box --accels 2 --time 2d --dataset wikitext
      shoal machine rent --device cuda
      shoal machine rent --repository-url https://github.com/me/exp
      shoal machine rent --no-wait --json

    Parameters
    ----------
    accels
        Slots (default 1).
    device
        Kind of slots: cpu, cuda, rocm, xpu; any: whichever are free. Default auto: accelerators where the pool has any, else CPUs.
    time
        For how long, at most seven days (default 8h); it can be extended.
    name
        What to call it (default: one is made up).
    prefer
        A machine to have it on, where that has room; may be given several times.
    dataset
        A dataset to have at /input/NAME; may be given several times.
    source
        A named repository (`shoal source list`) to have there.
    repository_url
        A git repository to have there.
    repository_revision
        Its branch, tag or commit.
    dir
        A folder of this machine to have a copy of there.
    ssh_key
        A public key that opens it, instead of yours in ~/.ssh; may be given several times.
    password
        Make a password too, where the server allows them. It is shown once.
    restore
        A snapshot to begin with: its id, or the name of the lease it was taken from.
    wait
        Wait until it can be used (default: yes; --no-wait returns at once).
    """
    from shoal.core.leases import LeaseCreated

    keys = _keys(ssh_key)
    seconds = _seconds(time)
    with connect() as client:
        ask = _ask(
            name=name,
            accels=accels,
            device=device,
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
            out.say(f"Password of '{made.name}', shown only now: {made.password}")
        lease: LeaseView = made
        if wait:
            out.say(f"Lease '{made.name}' was asked for. Ctrl-C leaves it waiting; see: {out.prog} machine list")
            lease = client.leases.wait(made.id)
    out.show(LeaseCreated(**lease.model_dump() | {"password": made.password}), lambda: _tell(lease))
    return Refused.exit_code if wait and lease.status != "running" else 0


def extend(lease: str, /, *, time: str = "8h") -> None:
    """Give a lease more time. What runs on it goes on.

    For example:

      shoal machine extend box
      shoal machine extend box --time 2d

    Parameters
    ----------
    lease
        Its name or id.
    time
        How much to add (default 8h); no more than seven days can be left.
    """
    seconds = _seconds(time)
    with connect() as client:
        view = client.leases.extend(lease, seconds)
    out.show(view, lambda: out.say(f"Lease '{view.name}' ends in {duration(view.left_s or seconds)}."))


def restart(lease: str, /) -> int:
    """Start a lease again whose machine was lost; on the same one if it is back.

    For example:

      shoal machine restart box

    Parameters
    ----------
    lease
        Its name or id.
    """
    with connect() as client:
        client.leases.restart(lease)
        view = client.leases.wait(lease)
    out.show(view, lambda: _tell(view))
    return 0 if view.status == "running" else Refused.exit_code


def release(*leases: str) -> int:
    """Give leases back now: all sessions are closed and running processes are stopped.

    For example:

      shoal machine release box

    Parameters
    ----------
    leases
        Their names or ids.
    """
    demand(leases, "machine")
    with connect() as client:

        def act(name: str) -> LeaseView:
            view = client.leases.release(name)
            out.say(f"Lease '{view.name}' was released.")
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


def _tell(lease: LeaseView) -> None:
    if lease.status != "running":
        more = f": {lease.reason or lease.waiting}" if lease.reason or lease.waiting else ""
        out.say(f"Lease '{lease.name}' is {lease.status}{more}")
        return
    out.say(
        f"Lease '{lease.name}' ends in {duration(lease.left_s or 0)}. Without a key: {out.prog} machine ssh {lease.name}"
    )
    out.line(lease.command)


def _seconds(time: str) -> int:
    from shoal.core.leases import MAX_TIME, MIN_TIME

    seconds = round(parse_duration(time, "--time"))
    if not MIN_TIME.total_seconds() <= seconds <= MAX_TIME.total_seconds():
        least, most = (duration(limit.total_seconds()) for limit in (MIN_TIME, MAX_TIME))
        raise UsageError(
            f"--time {time}: a lease has at least {least} and at most {most}.", hint="--time 8h, or --time 7d"
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
            raise UsageError(f"{path} is a private key, which stays with you.", hint=f"--ssh-key {path}.pub")
        if given or "-cert-" not in text:
            lines.append(text.strip())
    return lines


def _ask(**values: Any) -> LeaseAsk:
    """Or what is wrong with it, in a person's words."""
    from pydantic import ValidationError

    from shoal.core.leases import LeaseAsk

    try:
        return LeaseAsk(**values)
    except ValidationError as error:
        first = error.errors()[0]
        option = {"ssh_keys": "--ssh-key", "name": "--name", "accels": "--accels"}
        place = option.get(str(first["loc"][0]), str(first["loc"][0])) if first["loc"] else ""
        text = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{place}: {text}.", hint=f"{out.prog} machine rent --help") from None


def _source(
    client: Client, source: str | None, url: str | None, revision: str | None, folder: Path | None
) -> str | None:
    from shoal.cli._source import MAX_BYTES, MAX_FILES, deliver

    given = [option for option, value in (("--source", source), ("--repository-url", url), ("--dir", folder)) if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other.")
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
        out.warn(f"left out: {line}")
    return deliver(client, packed, {"kind": "folder", "path": str(folder.absolute())})
