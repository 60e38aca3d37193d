"""A stand-in for `python -m shoal.server`: holds the lock, says where it is, answers /health, goes on SIGTERM. Marks each start."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil

from shoal.core.boot import boot_id
from shoal.core.settings import Layout


class Handler(BaseHTTPRequestHandler):
    instance = ""
    hold: Path | None = None

    def do_GET(self) -> None:
        while self.hold is not None and self.hold.exists():
            time.sleep(0.02)
        body = json.dumps({"status": "ok", "version": "0", "private": True, "instance": self.instance}).encode()
        self.send_response(200 if self.path == "/api/v1/health" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("--fail", default="")
    parser.add_argument("--code", type=int, default=3)
    parser.add_argument("--slow", type=float, default=0)
    parser.add_argument("--start-after", type=Path, help="does not come up before this file exists")
    parser.add_argument("--busy-while", type=Path, help="does not answer while this file exists")
    parser.add_argument("--old", action="store_true", help="as 0.1: neither instance id nor place in its file")
    args = parser.parse_args()
    layout = Layout(args.home)
    (layout.server_dir / f"started-{os.getpid()}").touch()
    if args.fail:
        print(args.fail)
        sys.exit(args.code)
    lock = layout.server_lock.open("a")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    layout.server_file.unlink(missing_ok=True)
    me = psutil.Process()
    who: dict[str, Any] = {"pid": me.pid, "create_time": me.create_time(), "boot_id": boot_id()}
    if not args.old:
        from shoal.core.directory_identity import place
        from shoal.core.instance import claim

        Handler.instance = claim(layout).id
        who |= {"instance": Handler.instance, "place": place(layout.server_dir)}
        layout.starting_file.write_text(json.dumps({**who, "doing": "migrating the database"}))
    time.sleep(args.slow)
    while args.start_after is not None and not args.start_after.exists():
        time.sleep(0.02)
    Handler.hold = args.busy_while
    server = HTTPServer(("127.0.0.1", 0), Handler)
    layout.owner_key.write_text("owner-key\n")
    layout.owner_key.chmod(0o600)
    aside = layout.server_file.with_suffix(".tmp")
    aside.write_text(json.dumps({**who, "url": f"http://127.0.0.1:{server.server_port}"}))
    aside.replace(layout.server_file)
    if not args.old:
        layout.starting_file.unlink()

    def end(*_: object) -> None:
        layout.server_file.unlink()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    server.serve_forever()


if __name__ == "__main__":
    main()
