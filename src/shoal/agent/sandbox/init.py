"""The first program in a sandbox, run as a file by `python -I -S`: `init.py PORT=SOCKET,… ARGV…`. Built-in modules only.

It becomes ARGV. It first forks a process that forwards connections to each port to a socket of the agent: the egress proxy and
the server. These are the only connections to the network. `-` means none.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

_BLOCK = 64 << 10


def main(forwards: str, argv: list[str]) -> None:
    if forwards != "-" and (listeners := _listen(forwards)):
        if os.fork() == 0:
            try:
                _close_all_but(set(listeners))
                _serve(listeners)
            finally:
                os._exit(0)
        for fd in listeners:
            os.close(fd)
    os.execvp(argv[0], argv)  # noqa: S606


def _listen(forwards: str) -> dict[int, str]:
    """Return descriptor → path of the listening sockets."""
    import _socket  # the public module takes ten milliseconds to import, which the process that serves can afford

    found = {}
    for pair in forwards.split(","):
        port, _, path = pair.partition("=")
        end = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        end.bind(("127.0.0.1", int(port)))
        end.listen(128)
        found[end.detach()] = path
    return found


def _serve(listeners: dict[int, str]) -> None:
    import socket

    _pass_on({socket.socket(fileno=fd): path for fd, path in listeners.items()})


def _close_all_but(fds: set[int]) -> None:
    """Close all other descriptors, so that the workers' pipes end with the workers."""
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    after = 3
    for fd in sorted(fds):
        os.closerange(after, fd)
        after = fd + 1
    os.closerange(after, 1 << 16)


def _pass_on(listeners: dict[socket.socket, str]) -> None:
    import select

    flows: dict[socket.socket, socket.socket] = {}
    """Socket → its other end, as long as data may still come from it."""
    waiting: dict[socket.socket, bytes] = {}
    """Socket → data read from it that its other end has not accepted yet; until then no more is read from this socket."""
    while True:
        sources = [end for end in flows if end not in waiting]
        sinks = {flows[end]: end for end in waiting}
        readable, writable, _ = select.select([*listeners, *sources], list(sinks), [])
        for source in [*readable, *(sinks[end] for end in writable)]:
            if source in listeners:
                _join(source.accept()[0], listeners[source], flows)
            elif source in flows:
                _move(source, flows, waiting)


def _join(client: socket.socket, path: str, flows: dict[socket.socket, socket.socket]) -> None:
    import socket

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
        sink.shutdown(1)  # SHUT_WR
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
    main(sys.argv[1], sys.argv[2:])
