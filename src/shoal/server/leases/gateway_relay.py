"""Sessions through the gateway (shell, command, sftp, scp): each is opened again inside the lease, and the two are joined."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import asyncssh

from shoal.core.durations import duration
from shoal.core.schema import utcnow

if TYPE_CHECKING:
    from shoal.server.leases.gateway_visits import Visit

_STDERR = asyncssh.EXTENDED_DATA_STDERR
_UNREACHED = 255
"""Exit code for an unreachable lease; `ssh` uses the same one."""


class _Joined:
    """One of two joined sessions: data for the other one is dropped once that one has closed.

    asyncssh raises BrokenPipeError for such data and would cut the whole connection: the exit status would be lost, and all
    other channels of that person.
    """

    def data_received(self, data: bytes, datatype: int | None) -> None:
        with suppress(BrokenPipeError):
            super().data_received(data, datatype)  # type: ignore[misc]


class _Twin(_Joined, asyncssh.SSHClientProcess[bytes]):
    """The session inside the lease."""


class Session(_Joined, asyncssh.SSHServerProcess[bytes]):
    """Server side of a person's session; forwards every request unchanged, also sftp, which asyncssh would serve itself."""

    def __init__(self, visit: Visit):
        super().__init__(lambda process: _relay(process, visit), None, 0, False)

    def subsystem_requested(self, subsystem: str) -> bool:
        return True

    def session_started(self) -> None:
        assert self._chan is not None and self._conn is not None  # noqa: S101
        stdin = asyncssh.SSHReader[bytes](self, self._chan)
        stdout, stderr = (asyncssh.SSHWriter[bytes](self, self._chan, kind) for kind in (None, _STDERR))
        self._conn.create_task(cast(Any, self._start_process(stdin, stdout, stderr)))


async def _relay(process: asyncssh.SSHServerProcess[bytes], visit: Visit) -> None:
    try:
        inner = await visit.inner()
    except (OSError, asyncssh.Error) as error:
        process.stderr.write(f"[shoal] {getattr(error, 'reason', None) or error}\r\n".encode())
        process.exit(_UNREACHED)
        return
    if process.term_type:
        visit.terminals.add(process)
    try:
        if process.term_type and process.command is None:
            process.stdout.write(_greeting(visit))
        await _join(process, inner)
    except (OSError, asyncssh.Error):
        process.exit(_UNREACHED)
    finally:
        visit.terminals.discard(process)


async def _join(process: asyncssh.SSHServerProcess[bytes], inner: asyncssh.SSHClientConnection) -> None:
    """Run the same request inside the lease and connect the two.

    Input, window sizes and signals go in, output and the exit status come back. When one side ends, so does the other.
    """
    _, session = await inner.create_session(
        _Twin,
        process.command or (),
        subsystem=process.subsystem,
        env=list(process.env.items()),
        request_pty="force" if process.term_type else False,
        term_type=process.term_type,
        term_size=process.term_size,
        term_modes=process.term_modes,
        encoding=None,
    )
    twin = cast(_Twin, session)
    await twin.redirect(stdin=process.stdin, stdout=process.stdout, stderr=process.stderr)
    ends = [asyncio.ensure_future(twin.wait()), asyncio.ensure_future(process.channel.wait_closed())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if not ends[0].done():
        twin.close()
        ends[0].cancel()
        return
    ends[1].cancel()
    if twin.exit_signal:
        name, core_dumped, message, lang = twin.exit_signal
        process.exit_with_signal(name, core_dumped, message, lang)
    elif twin.exit_status is None and process.subsystem is None:
        process.exit(_UNREACHED)
    else:
        process.exit(twin.exit_status or 0)  # sftp reports no exit status


def _greeting(visit: Visit) -> bytes:
    assert visit.opening is not None  # noqa: S101
    left_s = (visit.opening.expires_at - utcnow()).total_seconds()
    return f"[shoal] lease '{visit.opening.name}' ends in {duration(left_s)}\r\n".encode()
