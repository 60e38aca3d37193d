"""JupyterLab in a job, as a browser reaches it: by the console's login, on an origin of its own, and by nobody else."""

import json
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from shoal.core.people import Role
from shoal.testing.engines import eventually
from shoal.testing.live import live_server, processes_of
from shoal.testing.patience import patient
from shoal.testing.processes import command

pytest.importorskip("jupyterlab", reason="needs jupyterlab")
websocket = pytest.importorskip("websocket", reason="needs websocket-client")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with live_server(home, slots=2, warm=False, sign_up=True) as server:
        yield server


@contextmanager
def shell(server, name, cwd, *options):
    """`training shell --jupyter`, and the link it prints."""
    argv = [sys.executable, "-m", "shoal.cli", "training", "shell", name, "--jupyter", "--json", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    process = subprocess.Popen(argv, cwd=cwd, env=server.env(), text=True, **pipes)
    try:
        said = ""
        while not said.endswith("}\n") and (line := process.stdout.readline()):
            said += line
        assert said, process.communicate()
        yield process, json.loads(said)["url"]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=patient(120))


class Browser:
    """Cookies, redirects, and the origin it is at."""

    def __init__(self, link):
        self.http = httpx.Client(follow_redirects=True, timeout=patient(60))
        self.landed = self.http.get(link)
        while "refresh" in self.landed.headers:
            self.landed = self.http.get(self.landed.url)
        self.origin = f"{self.landed.url.scheme}://{self.landed.url.netloc.decode()}"

    def send(self, method, path, *, origin=None, **options):
        headers = {"Origin": origin or self.origin, **options.pop("headers", {})}
        return self.http.request(method, self.origin + path, headers=headers, follow_redirects=False, **options)

    def cookie(self):
        host = urlsplit(self.origin).hostname
        jar = [c for c in self.http.cookies.jar if c.domain.removesuffix(".local") == host]
        return "; ".join(f"{c.name}={c.value}" for c in jar)

    def socket(self, path, *, origin=None, cookie=None):
        url = self.origin.replace("http://", "ws://") + path
        told = {"origin": origin or self.origin, "cookie": self.cookie() if cookie is None else cookie}
        return websocket.create_connection(url, timeout=patient(60), **told)


def computed(socket, code):
    """Run code in the kernel and return what it prints."""
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": "execute_request",
        "username": "",
        "session": uuid.uuid4().hex,
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    asked = {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }
    socket.send(json.dumps(asked))
    printed = ""
    while True:
        told = json.loads(socket.recv())
        if told["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        if told["msg_type"] == "stream":
            printed += told["content"]["text"]
        if told["msg_type"] == "error":
            return "\n".join(told["content"]["traceback"])
        if told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
            return printed


@pytest.fixture(scope="module")
def session(server, tmp_path_factory):
    """One that runs, with a file of its own."""
    source = tmp_path_factory.mktemp("code")
    (source / "model.py").write_text("ANSWER = 42\n")
    with shell(server, "lab", source, "--env", "COLOUR=red") as (process, link):
        browser = Browser(link)
        browser.process, browser.link = process, link
        yield browser


def test_the_link_signs_in_and_ends_in_jupyterlab_on_an_origin_of_its_own(server, session):
    assert session.landed.status_code == 200 and "JupyterLab" in session.landed.text
    assert session.landed.url.path == "/lab"
    with server.client() as client:
        console = urlsplit(client.url)
    assert console.hostname == "127.0.0.1" and session.landed.url.host == "localhost", "so that no cookie is shared"
    assert session.landed.url.port != console.port
    assert session.landed.headers["cache-control"] == "no-store"
    assert "set-cookie" not in session.landed.headers
    assert Browser(session.link).landed.status_code in (401, 404), "it works once"
    asked = session.send("GET", "/lab/api/settings/@jupyterlab/apputils-extension:notification").json()
    assert asked["schema"]["properties"]["fetchNews"]["default"] == "false", "nobody is asked about news"


def test_a_kernel_computes_with_the_code_and_the_environment_of_the_job(server, session):
    files = session.send("GET", "/api/contents/").json()["content"]
    assert "model.py" in [file["name"] for file in files]
    kernel = session.send("POST", "/api/kernels", json={}).json()["id"]
    socket = session.socket(f"/api/kernels/{kernel}/channels")
    job = server.inspect("lab")
    code = "import os, model; print(model.ANSWER, os.environ['COLOUR'], os.environ['SHOAL_JOB_ID'])"
    assert computed(socket, code).split() == ["42", "red", job["id"]]
    socket.close()
    assert any("opened JupyterLab" in event["message"] for event in job["events"])
    large = {"type": "file", "format": "text", "content": "x" * 300_000}
    assert session.send("PUT", "/api/contents/large.txt", json=large).status_code == 201
    assert session.send("GET", "/files/large.txt").text == large["content"]


def test_its_own_token_is_neither_shown_nor_in_any_argument_and_it_has_no_port(server, session):
    job = server.inspect("lab")["id"]
    [found] = server.layout.nodes_dir.rglob("attach/jupyter.json")
    token = json.loads(found.read_text())["token"]
    assert len(token) >= 32 and found.stat().st_mode & 0o077 == 0
    answers = [session.send("GET", path) for path in ("/lab", "/api/status", "/api/contents/")]
    shown = "".join(f"{answer.headers} {answer.text}" for answer in [session.landed, *answers])
    assert token not in shown and token not in server.layout.server_log.read_text()
    for process in psutil.process_iter(["cmdline"]):
        assert token not in " ".join(process.info["cmdline"] or [])
    labs = [p for p in processes_of(job) if "--ServerApp.sock" in command(p)]
    assert labs and not [c for p in labs for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]


def test_nobody_comes_in_without_the_cookie_or_from_another_sites_page(session):
    kernel = session.send("GET", "/api/kernels").json()[0]["id"]
    channels = f"/api/kernels/{kernel}/channels"
    session.socket(channels).close()
    for told, status in (({"cookie": ""}, 404), ({"cookie": "shoal_jupyter_1=x"}, 404), ({"origin": "http://evil.example"}, 403),
                         ({"origin": session.origin.replace("localhost", "127.0.0.1")}, 403)):  # fmt: skip
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            session.socket(channels, **told)
        assert refused.value.status_code == status, told
    assert httpx.get(f"{session.origin}/lab").status_code == 404
    assert httpx.get(f"{session.origin}/_shoal/enter/{'x' * 43}").status_code == 404
    assert session.send("GET", "/api/status").status_code == 200, "else the next would mean nothing"
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Service-Worker": "script"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
    ):
        assert session.send("GET", "/api/status", headers=headers).status_code == 403, headers
    for origin in ("http://evil.example", session.origin.replace("localhost", "127.0.0.1")):
        assert session.send("POST", "/api/kernels", origin=origin, json={}).status_code == 403, origin
    without = session.http.post(f"{session.origin}/api/kernels", json={})
    assert without.status_code == 403, "a change without an origin"
    assert len(session.send("GET", "/api/kernels").json()) == 1


def signed_in(server, email):
    """A browser of somebody who has just made an account."""
    with server.client() as client:
        url = client.url
    browser = httpx.Client(base_url=url, timeout=patient(60), headers={"Origin": url})
    made = browser.post("/sign-up", data={"email": email, "password": "correct horse battery", "name": "B"})
    assert made.status_code == 303, made.text
    return browser


def test_another_tenant_finds_nothing_and_a_viewer_may_not(server, session):
    with server.client() as client:
        mine = next(w.id for w in client.workspaces.list() if w.name == "default")
    way = f"/w/{mine}/jobs/lab/jupyter"
    berta = signed_in(server, "berta@example.org")
    assert berta.get(way).status_code == 404
    with server.client() as client:
        client.members.set("berta@example.org", Role.VIEWER)
        assert berta.get(way).status_code == 403
        client.members.set("berta@example.org", Role.MEMBER)
        let_in = berta.get(way)
        assert let_in.status_code == 303
        theirs = httpx.Client(timeout=patient(60), follow_redirects=True)
        assert theirs.get(let_in.headers["location"]).status_code == 200
        assert theirs.get(f"{session.origin}/api/status").status_code == 200
        assert httpx.get(let_in.headers["location"]).status_code == 404, "the code works once"
        client.members.remove("berta@example.org")
    assert theirs.get(f"{session.origin}/api/status").status_code == 404, "not a member any more"
    assert session.send("GET", "/api/status").status_code == 200


def test_a_server_that_was_killed_finds_it_again_with_its_kernels(server, session):
    [kernel] = session.send("GET", "/api/kernels").json()
    socket = session.socket(f"/api/kernels/{kernel['id']}/channels")
    assert computed(socket, "kept = 17; print(kept)").split() == ["17"]
    server.kill()
    server.start()
    with server.client() as client:
        eventually(lambda: client.jobs.get("lab").status == "running")
        again = Browser(f"{client.url}{client.auth.console_path()}?next=/w/default/jobs/lab/jupyter")
    assert again.landed.status_code == 200, again.landed.text
    socket = again.socket(f"/api/kernels/{kernel['id']}/channels")
    assert computed(socket, "print(kept)").split() == ["17"]
    session.again, session.open = again, socket


def test_signing_out_ends_what_is_open_and_leaving_ends_the_job(server, session):
    again, socket = session.again, session.open
    with server.client() as client:
        console = client.url
    assert again.http.post(f"{console}/sign-out", headers={"Origin": console}).status_code == 200
    assert again.send("GET", "/api/status").status_code == 404
    with pytest.raises(websocket.WebSocketConnectionClosedException):
        while socket.recv():
            pass
    job = server.inspect("lab")["id"]
    session.process.send_signal(signal.SIGINT)
    assert session.process.wait(120) == 0
    server.wait_for("lab", lambda job: job.status == "stopped")
    eventually(lambda: not processes_of(job))
    eventually(lambda: not _answers(again.origin))
    assert not [
        p
        for p in psutil.process_iter(["cmdline"])
        if str(server.home) in " ".join(p.info["cmdline"] or []) and "ServerApp" in " ".join(p.info["cmdline"])
    ]


def _answers(origin):
    try:
        return httpx.get(origin).status_code
    except httpx.TransportError:
        return None
