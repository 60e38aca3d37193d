"""A person's shell, command, sftp or scp through the gateway: each is opened again inside the lease, and the two joined."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import asyncssh

from shoal.core.durations import duration
from shoal.core.schema import utcnow

if TYPE_CHECKING:
    from shoal.server.gateway_visits import Visit

_STDERR = asyncssh.EXTENDED_DATA_STDERR
_UNREACHED = 255
"""What ssh itself exits with."""


class Session(asyncssh.SSHServerProcess[bytes]):
    """What is asked for is passed on as it is; also sftp, which the library would serve by itself."""

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
    """Bytes, window sizes and signals one way, bytes and the end the other; either side's end is the other's."""
    twin = await inner.create_process(
        process.command or (),
        subsystem=process.subsystem,
        env=dict(process.env),
        request_pty="force" if process.term_type else False,
        term_type=process.term_type,
        term_size=process.term_size,
        term_modes=process.term_modes,
        encoding=None,
        stdin=process.stdin,
        stdout=process.stdout,
        stderr=process.stderr,
    )
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
        process.exit(twin.exit_status or 0)  # of sftp nothing is said


def _greeting(visit: Visit) -> bytes:
    assert visit.opening is not None  # noqa: S101
    left_s = (visit.opening.expires_at - utcnow()).total_seconds()
    return f"[shoal] lease '{visit.opening.name}' ends in {duration(left_s)}\r\n".encode()
