"""A stand-in for `python -m shoal.server`: says where it is, answers /health, goes on SIGTERM. Marks each start."""

from __future__ import annotations

import argparse
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
    def do_GET(self) -> None:
        body = json.dumps({"status": "ok", "version": "0", "private": True}).encode()
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
    parser.add_argument("--slow", type=float, default=0)
    args = parser.parse_args()
    layout = Layout(args.home)
    (layout.server_dir / f"started-{os.getpid()}").touch()
    if args.fail:
        print(args.fail)
        sys.exit(3)
    time.sleep(args.slow)
    server = HTTPServer(("127.0.0.1", 0), Handler)
    me = psutil.Process()
    record = {"pid": me.pid, "url": f"http://127.0.0.1:{server.server_port}", "boot_id": boot_id()}
    layout.owner_key.write_text("owner-key\n")
    layout.owner_key.chmod(0o600)
    aside = layout.server_file.with_suffix(".tmp")
    aside.write_text(json.dumps({**record, "create_time": me.create_time()}))
    aside.replace(layout.server_file)

    def end(*_: object) -> None:
        layout.server_file.unlink()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    server.serve_forever()


if __name__ == "__main__":
    main()
