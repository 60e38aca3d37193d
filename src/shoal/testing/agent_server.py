"""Small server for tests of real agents: it serves one gang and stores its beats, and its segments by sequence number."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import zstandard

from shoal.core.agents import (
    TOKEN_HEADER,
    BeatReply,
    BeatRequest,
    JoinReply,
    JoinRequest,
    Mount,
    ReadyReply,
    ReadyRequest,
    SegmentReply,
    SpoolRecord,
)
from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.errors import Fenced, Forbidden, NotFound, OutOfSequence, ShoalError
from shoal.testing.patience import patient


class AgentServer:
    """Server for agents with tokens `token-<node>`. It may stop and start on another port; it keeps acknowledged records."""

    def __init__(
        self,
        folder: Path,
        entry: list[str],
        *,
        files: dict[str, str | bytes] | None = None,
        num_nodes: int = 1,
        **reply: Any,
    ):
        self.server_file = folder / "server.json"
        self._chunks: dict[str, bytes] = {}
        self._manifests: dict[str, bytes] = {}
        self.reply = JoinReply(ready=True, num_nodes=num_nodes, entry=entry, source=self.manifest(files or {}), **reply)
        self.joined: dict[int, JoinRequest] = {}
        self.beats: dict[int, list[tuple[float, BeatRequest]]] = {n: [] for n in range(num_nodes)}
        self.records: dict[tuple[int, str], list[dict[str, Any]]] = {}
        self.segments = 0
        self.answer = BeatReply()
        self.prepared: set[int] = set()
        self.meeting_port: int | None = None
        """Port that node 0 has named, with `start_barrier=True`."""
        self.fenced = False
        """Refuse every join as fenced."""
        self.refusal: ShoalError | None = None
        """Error with which every join is refused, or None."""
        self._changed = threading.Condition()
        self._http: _Http | None = None
        self.start()

    def start(self, port: int = 0) -> None:
        self._http = _Http(("127.0.0.1", port), self)
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        self.server_file.write_text(json.dumps({"url": self.url}))

    def stop(self) -> None:
        """Stop answering and break all open connections."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http.break_connections()
            self._http = None

    @property
    def url(self) -> str:
        assert self._http is not None
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def manifest(self, files: dict[str, str | bytes]) -> Manifest:
        from shoal.store.hashing import chunk_hash

        entries = []
        for path, content in sorted(files.items()):
            data = content.encode() if isinstance(content, str) else content
            chunks = []
            if data:
                self._chunks[chunk_hash(data)] = data
                chunks = [Chunk(hash=chunk_hash(data), size=len(data))]
            entries.append(FileEntry(path=path, size=len(data), chunks=chunks))
        return Manifest(files=entries)

    def mount(self, path: str, files: dict[str, str | bytes]) -> Mount:
        from shoal.store.manifest import dump_manifest, manifest_id

        manifest = self.manifest(files)
        found = manifest_id(manifest)
        self._manifests[found] = dump_manifest(manifest)
        return Mount(path=path, manifest_id=found, name=path.rpartition("/")[2])

    def log(self, node: int = 0, *, rank: int | None = None, stream: str | None = None) -> list[str]:
        """Return log lines as they would be shown."""
        with self._changed:
            found = [SpoolRecord.model_validate(r) for r in self.records.get((node, "log"), [])]
        return [r.m for r in found if (rank is None or r.r == rank) and (stream is None or r.e == stream)]

    def last(self, node: int = 0) -> BeatRequest | None:
        return self.beats[node][-1][1] if self.beats[node] else None

    def wait(self, condition: Callable[[], Any], timeout_s: float = 30.0) -> Any:
        """Wait until requests of the agents make the condition true; return its value, or raise with the last beats."""
        deadline = time.monotonic() + patient(timeout_s)
        with self._changed:
            while not (value := condition()):
                if time.monotonic() > deadline:
                    last = {n: b[-1][1].model_dump() for n, b in self.beats.items() if b}
                    raise TimeoutError(
                        f"not within {timeout_s} s; last beats {last}; log {[self.log(n)[-5:] for n in self.beats]}"
                    )
                self._changed.wait(0.05)
            return value

    def wait_final(self, node: int = 0, timeout_s: float = 30.0) -> BeatRequest:
        self.wait(lambda: (last := self.last(node)) is not None and last.final, timeout_s)
        last = self.last(node)
        assert last is not None
        return last

    def handle(self, node: int, route: str, query: dict[str, str], body: bytes) -> bytes:
        """Handle one request of an agent; return JSON or the bytes of a chunk."""
        with self._changed:
            try:
                if route == "join":
                    return self._join(node, JoinRequest.model_validate_json(body)).model_dump_json().encode()
                if route == "ready":
                    return self._ready(node, ReadyRequest.model_validate_json(body)).model_dump_json().encode()
                if route == "beat":
                    self.beats[node].append((time.monotonic(), BeatRequest.model_validate_json(body)))
                    return self.answer.model_dump_json().encode()
                if route.startswith("segments/"):
                    stream = route.removeprefix("segments/")
                    return self._segment(node, stream, int(query["seq_first"]), int(query["count"]), body)
                kind, _, name = route.partition("/")
                return (self._manifests if kind == "manifests" else self._chunks)[name]
            except KeyError:
                raise NotFound() from None
            finally:
                self._changed.notify_all()

    def _join(self, node: int, request: JoinRequest) -> JoinReply:
        if self.fenced:
            raise Fenced()
        if self.refusal is not None:
            raise self.refusal
        self.joined[node] = request
        if len(self.joined) < self.reply.num_nodes:
            return JoinReply(ready=False)
        first = self.joined[0]
        return self.reply.model_copy(update={"master_addr": first.address, "master_port": first.port})

    def _ready(self, node: int, request: ReadyRequest) -> ReadyReply:
        self.prepared.add(node)
        if len(self.prepared) < self.reply.num_nodes:
            return ReadyReply(go=False)
        if node == 0 and self.meeting_port is None:
            self.meeting_port = request.port
        if self.meeting_port is None:
            return ReadyReply(go=False, choose_port=node == 0)
        return ReadyReply(go=True, master_addr=self.joined[0].address, master_port=self.meeting_port)

    def _segment(self, node: int, stream: str, first: int, count: int, body: bytes) -> bytes:
        plain = zstandard.ZstdDecompressor().decompressobj().decompress(body)
        records = [json.loads(line) for line in plain.split(b"\n")]
        assert len(plain) <= 1 << 21 and len(records) == count
        assert [r["s"] for r in records] == list(range(first, first + count))
        kept = self.records.setdefault((node, stream), [])
        if first > len(kept):
            raise OutOfSequence(details={"next_seq": len(kept)})
        kept.extend(records[len(kept) - first :])
        self.segments += 1
        return SegmentReply(next_seq=len(kept)).model_dump_json().encode()


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], server: AgentServer):
        self.agents = server
        self._open: list[Any] = []
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        request, address = super().get_request()
        self._open.append(request)
        return request, address

    def break_connections(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(2)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: connections are broken on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            token = self.headers.get(TOKEN_HEADER, "")
            if not token.startswith("token-"):
                raise Forbidden()
            answer = self.server.agents.handle(
                int(token.removeprefix("token-")), parts.path.removeprefix("/api/v1/agent/"), query, body
            )
            self._send(200, answer)
        except ShoalError as error:
            self._send(error.http_status, json.dumps(error.to_wire()).encode())

    do_GET = do_POST

    def _send(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
