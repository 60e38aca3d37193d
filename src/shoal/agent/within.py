"""The first program in a sandbox, run as a file by `python -I -S`: `within.py PORT SOCKET ARGV…`. Built-in modules only.

Where PORT is not 0 it leaves a process behind that passes connections to that port on to the socket, the only way out; and becomes ARGV.
"""

from __future__ import annotations

import os
import select
import socket
import sys

_BLOCK = 64 << 10


def main(port: int, path: str, argv: list[str]) -> None:
    if port:
        listener = socket.create_server(("127.0.0.1", port))
        if os.fork() == 0:
            try:
                _close_all_but(listener.fileno())
                _pass_on(listener, path)
            finally:
                os._exit(0)
        listener.close()
    os.execvp(argv[0], argv)  # noqa: S606


def _close_all_but(fd: int) -> None:
    """The pipes of the workers must end with the workers."""
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(3, fd)
    os.closerange(fd + 1, 1 << 16)


def _pass_on(listener: socket.socket, path: str) -> None:
    flows: dict[socket.socket, socket.socket] = {}
    """From each end to its other one, for as long as something may come from there."""
    waiting: dict[socket.socket, bytes] = {}
    """What came from an end and was not taken yet: no more is read there until it is, and nobody else waits for that."""
    while True:
        sources = [end for end in flows if end not in waiting]
        sinks = {flows[end]: end for end in waiting}
        readable, writable, _ = select.select([listener, *sources], list(sinks), [])
        for source in [*readable, *(sinks[end] for end in writable)]:
            if source is listener:
                _join(listener.accept()[0], path, flows)
            elif source in flows:
                _move(source, flows, waiting)


def _join(client: socket.socket, path: str, flows: dict[socket.socket, socket.socket]) -> None:
    way_out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        way_out.connect(path)
    except OSError:
        way_out.close()
        client.close()
        return
    for end in (client, way_out):
        end.setblocking(False)
    flows[client], flows[way_out] = way_out, client


def _move(
    source: socket.socket, flows: dict[socket.socket, socket.socket], waiting: dict[socket.socket, bytes]
) -> None:
    sink = flows[source]
    try:
        data = waiting.pop(source, b"") or source.recv(_BLOCK)
        if data:
            if rest := data[_sent(sink, data) :]:
                waiting[source] = rest
            return
        sink.shutdown(socket.SHUT_WR)
    except BlockingIOError:
        return
    except OSError:
        flows.pop(sink, None)
        waiting.pop(sink, None)
    del flows[source]
    if sink not in flows:
        source.close()
        sink.close()


def _sent(sink: socket.socket, data: bytes) -> int:
    try:
        return sink.send(data)
    except BlockingIOError:
        return 0


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
