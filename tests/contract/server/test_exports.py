"""Exports: all of a checkpoint arrives, verified, and doing it again does only what is left. F17: also when S3 fails."""

import http.client
import logging
import os
import sys
import threading
from urllib.parse import urlsplit

import pytest
from blake3 import blake3
from local_s3 import KEYS, VALUES, add_secrets

from shoal.core.artifacts import Chunk, FileEntry, Manifest
from shoal.core.checkpoints import CheckpointExport, CheckpointPush
from shoal.core.errors import Corrupt, Forbidden, InvalidSpec, MissingExtra, NotFound, Refused, Unreachable
from shoal.server.artifacts import checkpoints, chunks, exports
from shoal.server.artifacts.imports.proxy import GuardedProxy
from shoal.server.artifacts.imports.s3 import Bucket, parse_s3_url
from shoal.server.ssrf_guard import Guard
from shoal.store.hashing import chunk_hash
from shoal.testing.extras import needs
from shoal.testing.server import AppClient, add_person, make_app

pytestmark = needs("obstore", "moto")


@pytest.fixture
def owner(private_ctx):
    someone = add_person(private_ctx, "olga@example.org")
    add_secrets(private_ctx, someone.access())
    return someone


SMALL = {"config.json": b'{"model_type": "gpt2"}', "empty": b"", "deep/er/é #1 %.bin": os.urandom(100_000)}
LARGE = os.urandom(5 << 20) * 4


def push(ctx, person, files, name="model"):
    """A checkpoint of these files, in chunks of at most 4 MiB."""
    entries = []
    for path, data in sorted(files.items()):
        parts = [data[at : at + (4 << 20)] for at in range(0, len(data), 4 << 20)]
        named = [(chunk_hash(part), part) for part in parts]
        ctx.store.put_many(named)
        chunks.own(ctx, person.workspace_id, [h for h, _ in named])
        entries.append(FileEntry(path=path, size=len(data), chunks=[Chunk(hash=h, size=len(p)) for h, p in named]))
    request = CheckpointPush(name=name, manifest=Manifest(files=entries))
    return checkpoints.push(ctx, person.access(), request).checkpoint.id


def export(ctx, person, checkpoint, destination, credentials=KEYS):
    request = CheckpointExport(destination=destination, credentials=credentials)
    return exports.export(ctx, person.access(), checkpoint, request)


# --- to S3 ---


def test_every_file_arrives_with_its_hash(private_ctx, owner, s3):
    files = SMALL | {"weights.bin": LARGE}
    done = export(private_ctx, owner, push(private_ctx, owner, files), s3.place("out/model"))
    assert done == {
        "files": 4,
        "bytes": sum(map(len, files.values())),
        "destination": f"s3://{s3.bucket}/out/model",
    }
    for path, data in files.items():
        body, headers = s3.get(f"out/model/{path}")
        assert body == data
        assert headers["x-amz-meta-shoal-blake3"] == blake3(data).hexdigest()


def test_again_writes_nothing_and_what_was_changed_is_written_again(private_ctx, owner, s3):
    checkpoint = push(private_ctx, owner, SMALL)
    export(private_ctx, owner, checkpoint, s3.place("out"))
    assert s3.count("PUT") == 3
    export(private_ctx, owner, checkpoint, s3.place("out"))
    assert s3.count("PUT") == 3
    s3.put("out/config.json", b'{"model_type": "gpt3"}')
    export(private_ctx, owner, checkpoint, s3.place("out"))
    assert s3.count("PUT") == 4
    assert s3.get("out/config.json")[0] == SMALL["config.json"]


def test_errors_that_pass_do_not_show(private_ctx, owner, s3):
    left = {"PUT": [500, "drop", 503], "HEAD": [500, "drop"], "POST": [500]}
    s3.fault = lambda method, path: left[method].pop() if left.get(method) else None
    export(private_ctx, owner, push(private_ctx, owner, SMALL | {"weights.bin": LARGE}), s3.place("out"))
    assert not any(left.values())
    assert s3.get("out/weights.bin")[0] == LARGE


def test_a_service_that_keeps_failing_is_named_and_the_next_export_goes_on(private_ctx, owner, s3):
    checkpoint = push(private_ctx, owner, SMALL | {"weights.bin": LARGE})
    s3.fault = lambda method, path: 500 if "partNumber=2" in path else None
    with pytest.raises(Unreachable, match="S3 service") as caught:
        export(private_ctx, owner, checkpoint, s3.place("out"))
    assert "\n" not in caught.value.message
    assert s3.get("out/weights.bin") is None
    assert b"<Upload>" not in s3.ask("GET", f"/{s3.bucket}?uploads")[2], "parts that are paid for were left behind"
    s3.fault = lambda method, path: None
    s3.seen.clear()
    export(private_ctx, owner, checkpoint, s3.place("out"))
    assert {urlsplit(path).path.rpartition("/")[2] for method, path, _ in s3.seen if method == "PUT"} == {"weights.bin"}
    assert s3.get("out/weights.bin")[0] == LARGE


def test_a_damaged_checkpoint_is_not_exported_at_all(private_ctx, owner, s3):
    checkpoint = push(private_ctx, owner, SMALL)
    for file in private_ctx.layout.store_dir.rglob("chunks/*/*"):
        if file.stat().st_size > 50_000:
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
    with pytest.raises(Corrupt, match="cannot be exported"):
        export(private_ctx, owner, checkpoint, s3.place("out"))
    assert s3.seen == []


def test_what_does_not_stay_as_written_is_told(private_ctx, owner, s3):
    checkpoint = push(private_ctx, owner, {"config.json": b"{}"})
    other = threading.Event()

    def fault(method, path):
        if method == "HEAD" and s3.count("PUT") and not other.is_set():
            other.set()
            s3.put("out/config.json", b"somebody else's")

    s3.fault = fault
    with pytest.raises(Refused, match="differs from what was just written"):
        export(private_ctx, owner, checkpoint, s3.place("out"))


def test_keys_come_from_secrets_and_go_nowhere_else(private_ctx, owner, s3, caplog, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-server")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    caplog.set_level(logging.DEBUG)
    checkpoint, app = push(private_ctx, owner, SMALL), make_app(private_ctx)
    body = {"destination": s3.place("out"), "credentials": KEYS}
    answer = AppClient(app, owner.key).post(f"/workspaces/default/checkpoints/{checkpoint}/export", body)
    assert answer.status_code == 200, answer.text
    for _, _, headers in s3.seen:
        sent = {name.lower(): value for name, value in headers.items()}
        assert "Credential=AKIDPLANTED/" in sent["authorization"]
        assert "x-amz-security-token" not in sent
    s3.fault = lambda method, path: 403
    refused = AppClient(app, owner.key).post(f"/workspaces/default/checkpoints/{checkpoint}/export", body)
    assert refused.status_code == 403 and "refused the given credentials" in refused.text
    for text in (answer.text, refused.text, caplog.text):
        assert not any(value in text for value in VALUES.values())


def test_the_servers_own_keys_count_on_a_private_server_only(ctx, private_ctx, owner, s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OWNKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
    export(private_ctx, owner, push(private_ctx, owner, SMALL), s3.place("out"), credentials={})
    assert all("Credential=OWNKEY/" in headers["authorization"] for _, _, headers in s3.seen)
    s3.seen.clear()
    guard = Guard(allows=lambda address: True)
    anonymous = Bucket(parse_s3_url(s3.place("out"), guard), {}, guard, stop=lambda: False)
    with anonymous as bucket, pytest.raises(Forbidden, match="not open to everyone"):
        bucket.attributes("config.json")
    assert s3.seen and not any("authorization" in {n.lower() for n in headers} for _, _, headers in s3.seen)


@pytest.mark.parametrize(
    ("destination", "credentials", "kind", "words"),
    [
        ("gs://bucket/x", {}, InvalidSpec, "exported to"),
        ("relative/path", {}, InvalidSpec, "exported to"),
        ("s3://", {}, InvalidSpec, "not an S3 URL"),
        ("s3://key:secret@bucket/x", {}, InvalidSpec, "keys come from secrets"),
        ("s3://bucket/x?access_key_id=1", {}, InvalidSpec, "only 'endpoint' and 'region'"),
        ("s3://bucket/../x", {}, InvalidSpec, "safe relative path"),
        ("s3://bucket/x?endpoint=ftp://h", {}, InvalidSpec, "such as https://"),
        ("s3://bucket/x?endpoint=https://h/?key=1", {}, InvalidSpec, "without user and query"),
        ("s3://bucket/x?region=a/b", {}, InvalidSpec, "not a region"),
        ("s3://bucket/x", {"HOME": "s3-id"}, InvalidSpec, "not a credential"),
        ("s3://bucket/x", {"AWS_ACCESS_KEY_ID": "s3-id"}, InvalidSpec, "both"),
        ("s3://bucket/x", KEYS | {"AWS_SESSION_TOKEN": "nope"}, NotFound, "no secret 'nope'"),
    ],
)
def test_what_can_never_work_is_refused_in_one_line(private_ctx, owner, destination, credentials, kind, words):
    checkpoint = push(private_ctx, owner, {"config.json": b"{}"})
    with pytest.raises(kind, match=words) as caught:
        export(private_ctx, owner, checkpoint, destination, credentials)
    assert "\n" not in caught.value.message


def test_without_the_extra_it_says_what_to_install(private_ctx, owner, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match="extra 's3'") as caught:
        export(private_ctx, owner, push(private_ctx, owner, {"config.json": b"{}"}), "s3://bucket/x")
    assert caught.value.hint == "pip install 'shoal-train[s3]'"


def test_another_tenants_checkpoint_is_not_found(ctx, anna, as_berta):
    checkpoint = push(ctx, anna, {"config.json": b"{}"})
    answer = as_berta.post(f"/workspaces/default/checkpoints/{checkpoint}/export", {"destination": "s3://bucket/x"})
    assert answer.status_code == 404


def test_a_stopping_server_ends_an_export_that_can_be_taken_up(private_ctx, owner, s3):
    checkpoint = push(private_ctx, owner, SMALL)

    def fault(method, path):
        if method == "PUT":
            private_ctx.live.closing = True

    s3.fault = fault
    with pytest.raises(Unreachable, match="stopping"):
        export(private_ctx, owner, checkpoint, s3.place("out"))
    assert s3.count("PUT") == 1


# --- S3 on a shared server: only through the guarded proxy ---


def opened(url, guard):
    return Bucket(parse_s3_url(url, guard), {n: VALUES[s] for n, s in KEYS.items()}, guard, stop=lambda: False)


def test_through_the_proxy_everything_works_as_without(s3, tmp_path):
    guard = Guard(allows=lambda address: True)
    with opened(s3.place("p"), guard) as bucket:
        bucket.put("a/b", 3, lambda: iter([b"abc"]), {"x": "1"})
        bucket.put("large", len(LARGE), lambda: iter([LARGE[: 7 << 20], LARGE[7 << 20 :]]), {})
        assert bucket.attributes("a/b") == (3, {"x": "1", "content-type": "binary/octet-stream"})
        assert bucket.attributes("absent") is None
        files = {file.path: file for file in bucket.objects()}
        assert {path: file.size for path, file in files.items()} == {"a/b": 3, "large": len(LARGE)}
        bucket.fetch(files["large"], tmp_path / "large", lambda _: None)
    assert (tmp_path / "large").read_bytes() == LARGE


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:{p}", "https://127.0.0.1:{p}", "http://localhost:{p}", "https://localhost:{p}", "http://2130706433:{p}",
     "http://[::ffff:127.0.0.1]:{p}", "http://0.0.0.0:{p}", "http://u:p@127.0.0.1:{p}", "http://rebind.example:{p}",
     "https://rebind.example:{p}"],
)  # fmt: skip
def test_no_endpoint_leads_inside(canary, endpoint, monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "*")
    answers = {"rebind.example": ["127.0.0.1"], "localhost": ["127.0.0.1"]}
    guard = Guard(resolve=lambda host, port: answers.get(host, [host]))
    url = f"s3://bucket/x?endpoint={endpoint.format(p=canary.port)}"
    with pytest.raises(InvalidSpec), opened(url, guard) as bucket:
        bucket.attributes("a")
    assert canary.visits == 0


def test_no_redirect_of_a_service_leads_inside(s3, canary):
    """The service is where everybody can reach it, and sends us on."""
    asked = []

    def resolve(host, port):
        asked.append((host, port))
        return ["127.0.0.1"] if host == "s3.example" else ["10.0.0.1"]

    guard = Guard(resolve=resolve, allows=lambda address: address == "127.0.0.1" and asked[-1][0] == "s3.example")
    s3.fault = lambda method, path: f"http://inner.example:{canary.port}{path}"
    endpoint = s3.url.replace("127.0.0.1", "s3.example")
    url = f"s3://{s3.bucket}/x?endpoint={endpoint}"
    with pytest.raises((InvalidSpec, Unreachable)), opened(url, guard) as bucket:
        bucket.attributes("a")
    assert s3.seen
    assert canary.visits == 0


def test_the_proxy_serves_nobody_without_its_password(canary):
    proxy = GuardedProxy(Guard(private=True))
    try:
        link = http.client.HTTPConnection("127.0.0.1", urlsplit(proxy.url).port, timeout=5)
        for headers in ({}, {"Proxy-Authorization": "Basic c2hvYWw6"}, {"Proxy-Authorization": "Bearer x"}):
            link.request("GET", f"http://127.0.0.1:{canary.port}/", headers=headers)
            assert link.getresponse().status == 407
            link.close()
    finally:
        proxy.close()
    assert canary.visits == 0


# --- to a folder of a private server's machine ---


def test_a_folder_receives_the_files_and_again_writes_nothing(private_ctx, owner, tmp_path):
    checkpoint, out = push(private_ctx, owner, SMALL), tmp_path / "new" / "out"
    done = export(private_ctx, owner, checkpoint, str(out), credentials={})
    assert done == {"files": 3, "bytes": sum(map(len, SMALL.values())), "destination": str(out)}
    assert {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()} == SMALL
    before = {p: p.stat().st_ino for p in out.rglob("*")}
    export(private_ctx, owner, checkpoint, f"file://{out}", credentials={})
    assert {p: p.stat().st_ino for p in out.rglob("*")} == before
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_only_what_differs_is_written_and_other_files_stay(private_ctx, owner, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("stays")
    (out / "elsewhere").write_text("not to be written through a link")
    (out / "config.json").symlink_to(out / "elsewhere")
    (out / "empty").write_bytes(b"")
    kept = (out / "empty").stat().st_ino
    export(private_ctx, owner, push(private_ctx, owner, SMALL), str(out), credentials={})
    assert (out / "config.json").read_bytes() == SMALL["config.json"]
    assert not (out / "config.json").is_symlink()
    assert (out / "elsewhere").read_text() == "not to be written through a link"
    assert (out / "mine.txt").read_text() == "stays"
    assert (out / "empty").stat().st_ino == kept


def test_a_shared_server_writes_to_no_folder(ctx, anna, tmp_path):
    checkpoint = push(ctx, anna, SMALL)
    for destination in (str(tmp_path / "out"), f"file://{tmp_path}/out"):
        with pytest.raises(InvalidSpec, match=r"s3://bucket/prefix or hf://org/name\."):
            export(ctx, anna, checkpoint, destination, credentials={})
    assert not (tmp_path / "out").exists()


def test_the_servers_own_folder_and_files_are_refused(private_ctx, owner, tmp_path):
    checkpoint = push(private_ctx, owner, SMALL)
    (tmp_path / "file").write_text("x")
    (tmp_path / "way").symlink_to(private_ctx.layout.root)
    for place, words in (
        (private_ctx.layout.root, "belongs to the server"),
        (private_ctx.layout.store_dir / "x", "belongs to the server"),
        (tmp_path / "way" / "store", "belongs to the server"),
        (tmp_path / "file", "is not a folder"),
        (tmp_path / "file" / "below", "cannot be written"),
    ):
        with pytest.raises((InvalidSpec, Refused), match=words):
            export(private_ctx, owner, checkpoint, str(place), credentials={})
