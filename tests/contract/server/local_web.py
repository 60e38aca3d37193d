"""A web server of this process whose every path is a function, and one that only notices who came."""

import socket
import threading
from collections.abc import Callable
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """Logs nothing, and takes a client that left for what it is."""

    protocol_version = "HTTP/1.1"

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        pass


@contextmanager
def running(server):
    """The HTTP server, answering from a thread of its own meanwhile."""
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Request:
    """Request to a path of a `Web`, to inspect and answer."""

    def __init__(self, handler):
        self.handler, self.path = handler, handler.path
        self.headers: Message = handler.headers

    def send(self, status=200, body=b"", **headers):
        self.head(status, **{"Content-Length": str(len(body)), **headers})
        self.handler.wfile.write(body)

    def head(self, status=200, **headers):
        self.handler.send_response(status)
        for name, value in headers.items():
            self.handler.send_header(name.replace("_", "-"), value)
        self.handler.end_headers()

    def write(self, data):
        self.handler.wfile.write(data)
        self.handler.wfile.flush()

    def write_chunk(self, data):
        self.write(b"%x\r\n%s\r\n" % (len(data), data))

    def cut(self):
        self.handler.wfile.flush()
        self.handler.connection.shutdown(socket.SHUT_RDWR)

    @property
    def offset(self):
        """Return the start of the requested range, or None without one."""
        asked = self.headers.get("Range")
        return int(asked.removeprefix("bytes=").rstrip("-")) if asked else None


class Web:
    """A web server whose every path is a function."""

    def __init__(self, address="127.0.0.1", port=0, tls=None):
        self.pages: dict[str, Callable[[Request], None]] = {}
        self.seen: list[Request] = []
        web = self

        class Handler(QuietHandler):
            def do_GET(self):
                request = Request(self)
                web.seen.append(request)
                web.answer(request)

        self.server = ThreadingHTTPServer((address, port), Handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        self.url = f"{'https' if tls else 'http'}://{address}:{self.port}"

    def answer(self, request):
        page = self.pages.get(request.path.partition("?")[0])
        page(request) if page else request.send(404)


@contextmanager
def web_server(**options):
    web = Web(**options)
    with running(web.server):
        yield web


def serving(body, *, etag='"v1"', cut_at=(), **headers):
    """A file that can be had in parts; the n-th answer breaks off at the n-th offset of `cut_at`."""
    cuts = iter(cut_at)

    def page(request):
        start = request.offset or 0
        if start and request.headers.get("If-Range") != etag:
            start = 0
        common = {"ETag": etag, **headers} if etag else headers
        if start:
            common["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        cut = next(cuts, None)
        request.head(206 if start else 200, **{"Content-Length": str(len(body) - start), **common})
        request.write(body[start:cut])
        if cut is not None:
            request.cut()

    return page


class Canary:
    """Listens everywhere on this machine and remembers that somebody came."""

    def __init__(self):
        self.visits = 0
        self._socket = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                visitor, _ = self._socket.accept()
            except OSError:
                return
            self.visits += 1
            visitor.close()

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
