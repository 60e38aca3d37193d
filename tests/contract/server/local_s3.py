"""An S3 service on this machine that fails when told to, and credentials for it."""

import http.client
import os
from http.server import ThreadingHTTPServer
from socket import SHUT_RDWR
from urllib.parse import quote

from local_web import QuietHandler

from shoal.core.people import SecretSet
from shoal.server.people import secrets

SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/x/us-east-1/s3/aws4_request"}
KEYS = {"AWS_ACCESS_KEY_ID": "s3-id", "AWS_SECRET_ACCESS_KEY": "s3-key"}
"""Environment name → secret name."""
VALUES = {"s3-id": "AKIDPLANTED", "s3-key": "planted/secret/value"}


class S3:
    """A real S3-protocol server, seen through a proxy that misbehaves where `fault(method, path)` says so."""

    def __init__(self, port):
        self.port, self.fault, self.seen = port, lambda method, path: None, []
        s3 = self

        class Handler(QuietHandler):
            def _pass(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                s3.seen.append((self.command, self.path, dict(self.headers)))
                what = s3.fault(self.command, self.path)
                if what == "drop":
                    self.connection.shutdown(SHUT_RDWR)
                    self.close_connection = True
                elif what is not None:
                    location = what if isinstance(what, str) else None
                    self._answer(307 if location else what, [("Location", location)] if location else [], b"<Error/>")
                else:
                    self._answer(*s3.ask(self.command, self.path, body, dict(self.headers)))

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

            def _answer(self, status, headers, data):
                self.send_response(status)
                length = dict(headers).get("Content-Length") if self.command == "HEAD" else None
                for name, value in headers:
                    if name.lower() not in ("content-length", "connection", "transfer-encoding", "server", "date"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length or str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def ask(self, method, path, body=b"", headers=SIGNED):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            link.request(method, path, body, headers)
            answer = link.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            link.close()

    def put(self, key, body=b""):
        assert self.ask("PUT", f"/{self.bucket}/{quote(key)}", body)[0] == 200

    def get(self, key):
        status, headers, body = self.ask("GET", f"/{self.bucket}/{quote(key)}")
        return (body, {name.lower(): value for name, value in headers}) if status == 200 else None

    def place(self, prefix=""):
        return f"s3://{self.bucket}/{prefix}?endpoint={self.url}&region=us-east-1"

    def count(self, method):
        return sum(m == method for m, _, _ in self.seen)

    def clean(self, bucket):
        self.bucket, self.fault = bucket, lambda method, path: None
        assert self.ask("PUT", f"/{bucket}")[0] == 200
        self.seen.clear()


def no_aws_environment(monkeypatch):
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)


def add_secrets(ctx, access):
    for name, value in VALUES.items():
        secrets.set_secret(ctx, access, SecretSet(name=name, value=value))
