"""The way out of a sandbox that has no network: CONNECT through a socket, to public addresses and nowhere else.

A name is resolved here, all its addresses are judged, and one of them is what gets dialled: no rebinding, no metadata service, no
neighbour. within.py is the other end, inside.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

from shoal.core.addresses import is_public
from shoal.core.loops import serve_each
from shoal.core.proxy import read_head

logger = logging.getLogger(__name__)

SOCKET = "egress.sock"
_CONNECT_S = 10.0
_MAX_OPEN = 256
_BLOCK = 256 << 10


class Egress:
    def __init__(self, folder: Path):
        """Listens on a socket in `folder`, which the sandbox sees."""
        self._closed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # By way of the folder's descriptor: the path itself may be longer than a socket's name can be.
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(FileNotFoundError):
                os.unlink(SOCKET, dir_fd=fd)
            self._listener.bind(f"/proc/self/fd/{fd}/{SOCKET}")
            os.chmod(SOCKET, 0o666, dir_fd=fd)  # noqa: S103  the folder decides who comes near
        finally:
            os.close(fd)
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="egress", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        serve_each(self._listener, _serve, self._closed, name="egress", at_once=_MAX_OPEN)


def _serve(client: socket.socket) -> None:
    try:
        client.settimeout(_CONNECT_S)
        host, port, early = _asked_for(client)
        with _connect(host, port) as upstream:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            upstream.sendall(early)
            _relay(client, upstream)
    except PermissionError as error:
        _answer(client, 403, str(error))
    except ValueError as error:
        _answer(client, 405, str(error))
    except OSError as error:
        _answer(client, 502, str(error))


def _asked_for(client: socket.socket) -> tuple[str, int, bytes]:
    """(host, port, what came with the request)."""
    head, early = read_head(client)
    method, target, *_ = head.split(b"\r\n")[0].decode("latin-1").split(" ")
    if method != "CONNECT":
        raise ValueError("only CONNECT (https) leads out of here")
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port), early


def _connect(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not all(is_public(address) for address in addresses):
        raise PermissionError(f"{host} is not a public address")
    failure = OSError("no address")
    for address in addresses[:4]:
        try:
            return socket.create_connection((address, port), timeout=_CONNECT_S)
        except OSError as error:
            failure = error
    raise failure


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Until both have nothing more to say."""
    for end in (one, other):
        end.settimeout(None)
    back = threading.Thread(target=_pour, args=(other, one), name="egress", daemon=True)
    back.start()
    _pour(one, other)
    back.join()


def _pour(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_BLOCK):
            sink.sendall(data)
    for end, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with suppress(OSError):
            end.shutdown(how)


def _answer(client: socket.socket, status: int, text: str) -> None:
    body = text.encode() + b"\n"
    with suppress(OSError):
        client.sendall(
            b"HTTP/1.1 %d no\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
        )
