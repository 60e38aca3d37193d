"""The SSH server of a lease, which is the worker inside its sandbox: shells, commands, file transfer and port forwarding.

It listens on a Unix socket in the folder shared with the agent, so it needs no network; the sandbox limits what it can do.
Run as `python -m shoal.agent.lease.ssh_server`.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pwd
import signal
import socket
import struct
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import asyncssh

from shoal.agent.wire import GATEWAY_MARK, LEASE_SOCKET, TELL

SERVER_ENV = "SHOAL_LEASE_SERVER"
"""Environment variable with the JSON {host_key, keys}: our private host key, and the authorized keys."""
HOME_ENV = "SHOAL_LEASE_HOME"
_LAST_OUTPUT_S = 0.5
"""Seconds to wait for a shell's last output after it ended; its background processes may keep the terminal open forever."""
_NOT_FOUND = 127
_LOGIN_S = 30
_terminals: set[asyncssh.SSHServerProcess[bytes]] = set()
"""Terminals that the gateway cannot write to, of people who connected directly or with `ssh -J`."""


async def serve(details: dict[str, Any], folder: Path) -> None:
    """Serve SSH on a socket in `folder` until the process ends. `details` is the content of SERVER_ENV."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Through the folder's descriptor, because the path of a socket has at most 107 bytes.
    path = Path(f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)}/{LEASE_SOCKET}")
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    listener.bind(str(aside))
    acceptor = await asyncssh.listen(
        sock=listener,
        server_factory=_Server,
        server_host_keys=[asyncssh.import_private_key(details["host_key"])],
        authorized_client_keys=asyncssh.import_authorized_keys("\n".join(details["keys"])),
        process_factory=_run,
        sftp_factory=True,
        allow_scp=True,
        encoding=None,
        line_editor=False,
        agent_forwarding=False,
        gss_host=None,
        login_timeout=_LOGIN_S,
        config=None,
    )
    aside.rename(path)  # the socket accepts connections from the moment it is visible
    await acceptor.wait_closed()


class _Server(asyncssh.SSHServer):
    """Allows all forwarding: a person with the key may do everything that the sandbox permits."""

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        return True


async def _run(process: asyncssh.SSHServerProcess[bytes]) -> None:
    if process.subsystem is not None:
        await _serve_subsystem(process)
        return
    shell = _shell()
    # A dash before the name makes it a login shell.
    argv = [f"-{Path(shell).name}"] if process.command is None else [shell, "-c", process.command]
    try:
        start = _on_terminal if process.term_type else _on_pipes
        code = await start(process, shell, argv)
    except OSError as error:
        process.stderr.write(f"cannot start {shell}: {error.strerror}\r\n".encode())
        process.exit(_NOT_FOUND)
        return
    if code < 0:
        process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
    else:
        process.exit(code)
    await process.wait_closed()


async def _serve_subsystem(process: asyncssh.SSHServerProcess[bytes]) -> None:
    if process.subsystem != TELL or not _is_gateway(process):
        process.exit(_NOT_FOUND)
        return
    text = await process.stdin.read()
    for terminal in _terminals:
        terminal.stdout.write(b"\r\n[shoal] " + text + b"\r\n")
    process.exit(0)


def _is_gateway(process: asyncssh.SSHServerProcess[bytes]) -> bool:
    connection = cast(asyncssh.SSHServerConnection, process.channel.get_connection())
    return bool(connection.get_key_option(GATEWAY_MARK))


async def _on_pipes(process: asyncssh.SSHServerProcess[bytes], shell: str, argv: list[str]) -> int:
    # A pipe, not a stream: asyncssh would cut the whole connection for input that a stream does not take any more.
    theirs, ours = os.pipe2(os.O_CLOEXEC)
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            executable=shell,
            env=_env(process),
            stdin=theirs,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    # One of stdout and stderr may close long before the other, so neither sends the end of the output.
    await process.redirect(stdin=ours, stdout=child.stdout, stderr=child.stderr, send_eof=False)
    await process.stdout.drain()
    await process.stderr.drain()
    return await child.wait()


async def _on_terminal(process: asyncssh.SSHServerProcess[bytes], shell: str, argv: list[str]) -> int:
    ours, theirs = os.openpty()
    width, height, pix_width, pix_height = process.term_size
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pix_width, pix_height))
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            executable=shell,
            env=_env(process) | {"TERM": process.term_type or "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    finally:
        os.close(theirs)
    await process.redirect(stdin=os.dup(ours), stdout=ours)
    if not _is_gateway(process):
        _terminals.add(process)
    ends = [asyncio.ensure_future(child.wait()), asyncio.ensure_future(process.channel.wait_closed())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if not ends[0].done():
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGHUP)
    _terminals.discard(process)
    ends[1].cancel()
    code = await ends[0]
    with suppress(TimeoutError):
        await asyncio.wait_for(process.stdout.drain(), _LAST_OUTPUT_S)
    return int(code or 0)


def _shell() -> str:
    with suppress(KeyError):
        found = pwd.getpwuid(os.getuid()).pw_shell
        if found and os.access(found, os.X_OK) and not found.endswith(("nologin", "false")):
            return found
    return next(s for s in ("/bin/bash", "/bin/sh") if os.access(s, os.X_OK))


def _env(process: asyncssh.SSHServerProcess[bytes]) -> dict[str, str]:
    asked = {_text(k): _text(v) for k, v in dict(process.env).items()}
    return {**os.environ, **asked, "HOME": str(Path.cwd()), "SHELL": _shell()}


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def main() -> int:
    details = json.loads(os.environ.pop(SERVER_ENV))
    if home := os.environ.pop(HOME_ENV, None):
        os.chdir(home)
    asyncio.run(serve(details, Path(os.environ["SHOAL_SPOOL"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
