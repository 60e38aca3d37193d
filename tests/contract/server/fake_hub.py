"""A Hugging Face Hub on loopback that takes models: just enough of its HTTP API for the real client to push files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_writes"
LARGE = 1000
"""Bytes from which a file is uploaded as a large one."""


class FakeHub:
    """`repos`: repository → path → content. `fail` makes an upload of a large file fail."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.large: dict[str, bytes] = {}
        self.private: set[str] = set()
        self.commits: list[str] = []
        self.uploads = 0
        self.fail = False
        self.url = ""

    def answer(self, method: str, path: str, body: bytes, token: str) -> tuple[int, Any]:
        path = path.partition("?")[0]
        if path.startswith("/lfs/"):
            if self.fail:
                return 400, {"error": "no"}  # a client repeats other errors for a minute
            self.uploads += 1
            self.large[path.removeprefix("/lfs/")] = body
            return 200, {}
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization', 'me')}/{asked['name']}"
            if name in self.repos:
                return 409, {"error": "exists", "url": f"{self.url}/{name}"}
            self.repos[name] = {}
            self.private |= {name} if asked.get("private") or asked.get("visibility") == "private" else set()
            return 200, {"url": f"{self.url}/{name}", "name": name, "id": "1"}
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit|paths-info|branch)/(.+)", path):
            repo, what, revision = found.groups()
            if repo not in self.repos:
                return 404, {"error": "Repository not found"}
            return getattr(self, f"_{what.replace('-', '_')}")(repo, revision, body)
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return 200, {"transfer": "basic", "objects": [self._action(o) for o in json.loads(body)["objects"]]}
        return 404, {"error": f"{method} {path}"}

    def _preupload(self, repo: str, revision: str, body: bytes) -> tuple[int, Any]:
        files = json.loads(body)["files"]
        mode = {True: "lfs", False: "regular"}
        return 200, {"files": [{"path": f["path"], "uploadMode": mode[f["size"] >= LARGE], "shouldIgnore": False} for f in files]}  # fmt: skip

    def _action(self, wanted: dict[str, Any]) -> dict[str, Any]:
        oid = wanted["oid"]
        upload = {"upload": {"href": f"{self.url}/lfs/{oid}", "header": {}}}
        return {"oid": oid, "size": wanted["size"], **({} if oid in self.large else {"actions": upload})}

    def _commit(self, repo: str, revision: str, body: bytes) -> tuple[int, Any]:
        lines = [json.loads(line) for line in body.splitlines()]
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                self.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                data = self.large[value["oid"]]
                assert hashlib.sha256(data).hexdigest() == value["oid"]
                self.repos[repo][value["path"]] = data
        self.commits.append(lines[0]["value"]["summary"])
        oid = f"{len(self.commits):040x}"
        return 200, {"success": True, "commitOid": oid, "commitUrl": f"{self.url}/{repo}/commit/{oid}"}

    def _paths_info(self, repo: str, revision: str, body: bytes) -> tuple[int, Any]:
        return 200, []

    def _branch(self, repo: str, revision: str, body: bytes) -> tuple[int, Any]:
        return 200, {}


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = hub.answer(self.command, self.path, body, self.headers.get("Authorization", ""))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _serve

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
