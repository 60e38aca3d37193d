"""Real git repositories, and a small HTTP server for them (git's own http-backend), to fetch from in tests."""

import base64
import os
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@example.org",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@example.org",
}


def git(repo, *args, **env):
    done = subprocess.run(["git", "-C", str(repo), *args], env=_ENV | env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def make_repo(path: Path) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main", "--template=")
    return path


def commit(repo: Path, files: dict[str, str | bytes], message="change") -> str:
    for name, content in files.items():
        file = repo / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(repo, "rev-parse", "HEAD")


class GitHttp:
    """Serves the repositories below a directory; with a `token`, only to who sends it. Records what it was sent."""

    def __init__(self, root: Path, token: str | None = None, redirect_to: str | None = None, during=None):
        self.root, self.token, self.redirect_to, self.during = root, token, redirect_to, during or (lambda: None)
        self.authorizations: list[str | None] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port = self.server.server_address[1]
        self.netloc = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.netloc}"

    @contextmanager
    def serving(self):
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join()

    def _is_let_in(self, header: str | None) -> bool:
        if self.token is None:
            return True
        given = base64.b64decode(header.partition(" ")[2]).decode() if header else ""
        return given.partition(":")[2] == self.token

    def _handler(outer):
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def _serve(self):
                header = self.headers.get("Authorization")
                outer.authorizations.append(header)
                if outer.redirect_to:
                    self.send_response(301)
                    self.send_header("Location", outer.redirect_to + self.path)
                    self.end_headers()
                elif not outer._is_let_in(header):
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="git"')
                    self.end_headers()
                else:
                    outer.during()
                    self._backend()

            def _backend(self):
                path, _, query = self.path.partition("?")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                env = _ENV | {
                    "GIT_PROJECT_ROOT": str(outer.root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                }
                out = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True).stdout
                head, _, content = out.partition(b"\r\n\r\n")
                headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
                self.send_response(int(headers.pop("Status", "200").split()[0]))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _serve

        return Handler
