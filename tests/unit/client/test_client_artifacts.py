"""Datasets, checkpoints and upkeep against a scripted server."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from stubserver import Stub, hang_up, reply

from shoal.client import Client
from shoal.core.errors import Corrupt, NotFound, Refused, StorageFull
from shoal.store.hashing import chunk_hash
from shoal.store.pack import Entry
from shoal.store.wire import encode_frames

W = "/workspaces/default"
DATA = {f"{i}": f"content {i}".encode() for i in range(5)}
HASHES = {chunk_hash(data): data for data in DATA.values()}
MANIFEST = {
    "version": 1,
    "files": [
        {
            "path": name,
            "size": len(data),
            "executable": False,
            "chunks": [{"hash": chunk_hash(data), "size": len(data)}],
        }
        for name, data in sorted(DATA.items())
    ],
}


def dataset(**changes):
    return {
        "id": "ds_1", "name": "d", "version": 1, "status": "available", "size": 1, "files": 1, "manifest_id": "m",
        "origin": {}, "error": None, "created_by": "me", "created_at": "2025-01-31T12:00:00Z", "available_at": None, **changes,
    }  # fmt: skip


def checkpoint(**changes):
    return {
        "id": "ckpt_1", "name": "c", "job_id": "job_1", "job": "hello", "attempt": 1, "node": 0, "step": 5, "train_loss": 1.0,
        "eval_loss": None, "model": None, "version": None, "inference_ready": False, "timestamp": "2025-01-31T12:00:00Z",
        "size": 1, "files": 1, "manifest_id": "m", "kept": False, **changes,
    }  # fmt: skip


@pytest.fixture
def client(stub: Stub):
    with Client(stub.url, "key-1") as client:
        client._http.sleep = lambda _: None
        yield client


@pytest.fixture
def entries(tmp_path: Path):
    (tmp_path / "a.txt").write_text("hello")
    return [Entry("a.txt", tmp_path / "a.txt")]


def paths(stub: Stub) -> list[str]:
    return [f"{a.method} {a.path.removeprefix('/api/v1' + W)}" for a in stub.asked]


def test_a_push_announces_sends_and_commits(stub, client, entries):
    stub.routes = {
        f"POST {W}/datasets": reply(201, dataset(status="uploading")),
        f"POST {W}/store/missing": reply(body={"missing": [chunk_hash(b"hello")]}),
        f"POST {W}/store/chunks": reply(body={"stored": 1}),
        f"PUT {W}/datasets/ds_1/manifest": reply(body={"missing": [], "dataset": dataset(version=2)}),
    }
    pushed = client.datasets.push("d", entries, {"kind": "file"})
    assert (pushed.dataset.version, pushed.unchanged, pushed.sent) == (2, False, 5)
    assert paths(stub) == ["POST /datasets", "POST /store/missing", "POST /store/chunks", "PUT /datasets/ds_1/manifest"]
    assert stub.asked[0].json == {"name": "d", "origin": {"kind": "file"}}
    assert [f["path"] for f in stub.asked[-1].json["files"]] == ["a.txt"]


def test_a_push_that_fails_tells_the_server_why(stub, client, entries):
    stub.routes = {
        f"POST {W}/datasets": reply(201, dataset(status="uploading")),
        f"POST {W}/store/missing": reply(body={"missing": [chunk_hash(b"hello")]}),
        f"POST {W}/store/chunks": reply(507, StorageFull().to_wire()),
        f"POST {W}/datasets/ds_1/fail": reply(204, b""),
    }
    with pytest.raises(StorageFull):
        client.datasets.push("d", entries)
    assert stub.asked[-1].json == {"error": StorageFull().message}


def test_a_push_that_is_interrupted_does_not(stub, client, entries):
    stub.routes = {f"POST {W}/datasets": reply(201, dataset()), f"POST {W}/store/missing": reply(body={"missing": []})}

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.datasets.push("d", entries, progress=interrupt)
    assert not any("fail" in path for path in paths(stub))


def test_an_import_is_waited_for(stub, client):
    answers = [dataset(status="importing", origin={"progress": "5"}), dataset(status="error", error="no such place")]
    stub.routes = {f"POST {W}/datasets/import": reply(201, answers[0])}
    stub.will(*(reply(body=answer) for answer in answers))
    made = client.datasets.import_url("d", "s3://b/p", credentials={"AWS_ACCESS_KEY_ID": "id"})
    seen = []
    assert client.datasets.wait(made, seen.append).error == "no such place"
    assert [view.status for view in seen] == ["importing", "error"]
    assert stub.asked[0].json["credentials"] == {"AWS_ACCESS_KEY_ID": "id"}


def test_an_import_of_what_is_there_already_ends_with_the_version_it_equals(stub, client):
    stub.routes = {
        f"POST {W}/datasets/import": reply(201, dataset(id="ds_2", version=2, status="importing")),
        f"GET {W}/datasets/ds_2": reply(404, NotFound("gone").to_wire()),
        f"GET {W}/datasets/d": reply(body=dataset()),
    }
    assert client.datasets.wait(client.datasets.import_url("d", "s3://b/p")).version == 1


def fetchable(stub: Stub, answer) -> None:
    stub.routes = {
        f"GET {W}/datasets/d/manifest": reply(body=MANIFEST),
        f"POST {W}/store/fetch": answer,
        **{f"GET {W}/store/chunks/{name}": reply(body=data) for name, data in HASHES.items()},
    }


def framed(names) -> bytes:
    return b"".join(encode_frames((name, HASHES[name]) for name in names))


def test_many_chunks_come_in_one_request(stub, client, tmp_path):
    fetchable(stub, lambda handler: reply(body=framed(stub.asked[-1].json["hashes"]))(handler))
    client.datasets.fetch("d", tmp_path / "out")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == DATA
    assert paths(stub) == ["GET /datasets/d/manifest", "POST /store/fetch"]


def test_an_answer_that_breaks_off_is_gone_on_with(stub, client, tmp_path):
    def two_and_a_half(handler):
        names = stub.asked[-1].json["hashes"]
        body = framed(names[:3])
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(framed(names[:2])) + 20])
        handler.close_connection = True

    fetchable(stub, two_and_a_half)
    client.datasets.fetch("d", tmp_path / "out")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == DATA
    asked = [len(a.json["hashes"]) for a in stub.asked if a.method == "POST"]
    assert asked == [5, 2], "what has come is not asked for again"


def test_a_damaged_chunk_is_told_apart_from_a_bad_line(stub, client, tmp_path):
    fetchable(stub, hang_up)
    bad = chunk_hash(DATA["0"])
    stub.routes[f"GET {W}/store/chunks/{bad}"] = reply(422, Corrupt("no", details={"hash": bad}).to_wire())
    with pytest.raises(Corrupt, match=r"^0 cannot be fetched"):
        client.datasets.fetch("d", tmp_path / "out")


def test_bytes_that_are_not_what_was_asked_for_are_refused(stub, client, tmp_path):
    def swapped(handler):
        names = stub.asked[-1].json["hashes"]
        reply(body=b"".join(encode_frames((name, b"something else") for name in names)))(handler)

    fetchable(stub, swapped)
    stub.routes[f"GET {W}/store/chunks/{chunk_hash(DATA['0'])}"] = reply(body=b"something else")
    with pytest.raises(Corrupt):
        client.datasets.fetch("d", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_are_listed_page_by_page(stub, client):
    stub.will(reply(body=[{"path": "a", "size": 1}]), reply(body=[{"path": "b", "size": 2}]), reply(body=[]))
    assert [f.path for f in client.datasets.files("d")] == ["a", "b"]
    assert "after=b" in stub.asked[-1].path


@pytest.mark.parametrize(
    ("views", "chosen"),
    [
        ([checkpoint(id="1"), checkpoint(id="2")], {0: "2"}),
        ([checkpoint(id="1"), checkpoint(id="2", damaged=True)], {0: "1"}),
        ([checkpoint(id="1"), checkpoint(id="2", node=1)], {0: "1", 1: "2"}),
        ([checkpoint(id="1"), checkpoint(id="logs", name=".", step=None)], {0: "1"}),
        ([checkpoint(id="1"), checkpoint(id="weights", name=".", step=None)], {0: "weights"}),
        ([checkpoint(id="1"), checkpoint(id="hf", name=".", inference_ready=True)], {0: "hf"}),
        ([checkpoint(id="logs", name=".", step=None)], {0: "logs"}),
        ([], {}),
    ],
)
def test_the_newest_checkpoint_is_one_with_a_model_where_there_is_one(stub, client, views, chosen):
    stub.routes = {
        f"GET {W}/checkpoints": reply(body=views),
        f"GET {W}/checkpoints/logs/manifest": reply(body={"files": [{"path": "log.txt", "size": 0, "chunks": []}]}),
        f"GET {W}/checkpoints/weights/manifest": reply(body={"files": [{"path": "m.pt", "size": 0, "chunks": []}]}),
    }
    assert {node: view.id for node, view in client.checkpoints.newest("hello").items()} == chosen


def test_a_checkpoint_of_a_job_is_asked_for_by_job_and_name(stub, client):
    stub.will(reply(body=checkpoint()))
    client.checkpoints.get("hello/checkpoint-5")
    assert stub.asked[-1].path == f"/api/v1{W}/checkpoints/hello%2Fcheckpoint-5"


def test_upkeep_is_asked_for_with_its_options(stub, client):
    stub.will(reply(body={"manifests_removed": 0, "chunks_kept": 1, "chunks_removed": 2, "bytes_freed": 3}))
    assert client.upkeep.gc(grace_s=5.0, dry_run=True).bytes_freed == 3
    assert stub.asked[-1].path == "/api/v1/store/gc?grace_s=5.0&dry_run=true"


class TestDownloadCheckpoint:
    @pytest.fixture
    def served(self, stub, monkeypatch, tmp_path):
        monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
        for name in ("SHOAL_URL", "SHOAL_API_KEY", "SHOAL_WORKSPACE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.chdir(tmp_path)
        spaces = [{"id": f"ws_{i}", "name": n, "role": "owner", "created_at": "2025-01-31T12:00:00Z", "jobs": 0, "datasets": 0}
                  for i, n in enumerate(["other", "default"])]  # fmt: skip
        stub.routes = {
            "GET /workspaces": reply(body=spaces),
            "GET /workspaces/ws_1/checkpoints": reply(404, NotFound("no such job").to_wire()),
            "GET /workspaces/ws_0/checkpoints": reply(body=[checkpoint(name="checkpoint-5")]),
            "GET /workspaces/ws_0/checkpoints/ckpt_1/manifest": reply(body=MANIFEST),
            "POST /workspaces/ws_0/store/fetch": lambda h: reply(body=framed(stub.asked[-1].json["hashes"]))(h),
        }
        return stub

    def test_it_finds_the_job_in_any_workspace(self, served, tmp_path):
        from shoal import download_checkpoint

        path = download_checkpoint(job_id="job_1", token="key-1", url=served.url)
        assert path == tmp_path / "hello-checkpoint-5"
        assert {p.name: p.read_bytes() for p in path.iterdir()} == DATA
        assert {a.headers["Authorization"] for a in served.asked} == {"Bearer key-1"}
        assert [a.path for a in served.asked][1:3] == [
            f"/api/v1/workspaces/ws_{i}/checkpoints?job=job_1" for i in (1, 0)
        ]

    def test_it_says_what_is_wrong(self, served):
        from shoal import download_checkpoint

        served.routes["GET /workspaces/ws_0/checkpoints"] = reply(body=[])
        with pytest.raises(NotFound, match=r"has no checkpoint \(yet\)"):
            download_checkpoint(job_id="job_1", token="key-1", url=served.url)
        served.routes["GET /workspaces/ws_0/checkpoints"] = reply(404, NotFound("no").to_wire())
        with pytest.raises(NotFound, match="no job 'job_1' in any workspace"):
            download_checkpoint(job_id="job_1", token="key-1", url=served.url)


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_a_long_download_tells_how_far_it_is():
    from shoal.client.download import DownloadProgress

    for to, told in ((Screen(), ["\rDownloading m: 50% of 4.0 MB", "\rDownloading m: 100% of 4.0 MB\n"]), (io.StringIO(), ["Downloading m: 50% of 4.0 MB\n"])):  # fmt: skip
        clock = iter([0.0, 0.1, 2.0, 2.1, 2.2])
        with DownloadProgress("m", 4_000_000, to, clock=lambda clock=clock: next(clock)) as bar:
            for num_bytes in (1_000_000, 1_000_000, 1_000_000, 1_000_000):
                bar.add(num_bytes)
        assert to.getvalue() == "".join(told)
    quiet = io.StringIO()
    with DownloadProgress("m", 1, quiet, quiet=True, clock=iter([0.0, 9.0]).__next__) as bar:
        bar.add(1)
    assert quiet.getvalue() == ""


def test_importing_shoal_loads_nothing():
    import subprocess
    import sys

    code = "import sys; before = set(sys.modules); import shoal; print(sorted(set(sys.modules) - before))"
    assert json.loads(subprocess.check_output([sys.executable, "-c", code]).decode().replace("'", '"')) == ["shoal"]


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    import shoal

    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        shoal.nope  # noqa: B018
    assert "download_checkpoint" in dir(shoal)


def test_the_refusal_of_a_server_passes(stub, client, entries):
    stub.routes = {f"POST {W}/datasets": reply(409, Refused("no").to_wire())}
    with pytest.raises(Refused):
        client.datasets.push("d", entries)
