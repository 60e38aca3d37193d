"""Streaming from a real server over HTTP: little moves before the first record, nothing is lost to faults, kills or damage."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

import shoal.data
from shoal.core.errors import Corrupt, NotFound, NotSignedIn, Refused, TimedOut, Unreachable
from shoal.data.filesystem import ShoalFileSystem
from shoal.store.pack import pack_tree
from shoal.testing.engines import eventually
from shoal.testing.forks import Fork
from shoal.testing.patience import patient

ROUNDS = int(os.environ.get("SHOAL_ROUNDS", "1"))
RECORDS = 12_000
READER = """
import json, os, sys
import shoal.data
options = json.loads(sys.argv[1])
loader = options.pop("loader", None)
stream = shoal.data.stream(options.pop("name"), **options)
source = stream.loader(**loader) if loader else stream
for batch in source:
    ids = batch["id"].tolist() if loader else [batch["id"]]
    sys.stdout.write("".join(f"{i}\\n" for i in ids))
    sys.stdout.flush()
from shoal.data.filesystem import ShoalFileSystem
print("fetched", ShoalFileSystem().fetched, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """About 130 MB that do not compress, in eight files."""
    root, rng = tmp_path_factory.mktemp("data"), random.Random(0)
    for n in range(8):
        with (root / f"part-{n}.jsonl").open("w") as file:
            for i in range(n * RECORDS // 8, (n + 1) * RECORDS // 8):
                file.write(f'{{"id": {i}, "noise": "{rng.randbytes(5400).hex()}"}}\n')
    return root


@pytest.fixture(scope="module")
def big(server, folder):
    with server.client() as client:
        return client.datasets.push("big", pack_tree(folder, ignore=False)).dataset


@pytest.fixture
def here(server, tmp_path, monkeypatch):
    """This process as a user of the server, with a cache of its own."""
    return _settle(server, tmp_path / "cache", monkeypatch)


def _settle(server, cache, monkeypatch):
    for name in ("SHOAL_URL", "SHOAL_API_KEY", "SHOAL_WORKSPACE", "SHOAL_JOB_TOKEN", "SHOAL_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_HOME", str(server.home))
    monkeypatch.setenv("SHOAL_DATA_CACHE", str(cache))
    return cache


def push(server, name, files, tmp_path):
    root = tmp_path / "pushed" / name
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    with server.client() as client:
        return client.datasets.push(name, pack_tree(root, ignore=False)).dataset


def lines(start, stop):
    return "".join(f'{{"id": {i}, "pad": "{"x" * (i % 97)}"}}\n' for i in range(start, stop))


def ids(stream):
    return [record["id"] for record in stream]


def reader(server, cache, limit_gb=20, **options):
    env = {"SHOAL_DATA_CACHE": str(cache), "SHOAL_DATA_CACHE_GB": str(limit_gb), "PYTHONWARNINGS": "ignore"}
    script = cache.parent / "reader.py"
    script.write_text(READER)
    command = [sys.executable, script, json.dumps(options)]
    return Fork(command, env=server.env() | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def outcome(process):
    out, err = process.communicate(timeout=patient(240))
    assert process.returncode == 0, err
    return [int(line) for line in out.split()], int(err.split("fetched ")[1])


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class TestLittleMoves:
    def test_the_first_records_need_a_small_part_of_the_bytes(self, big, here):
        stream = iter(shoal.data.stream("big", shuffle=False))
        assert [next(stream)["id"] for _ in range(10)] == list(range(10))
        assert size_of(here / "chunks") < 0.15 * big.size
        assert ShoalFileSystem().fetched < 0.15 * big.size

    def test_so_do_the_first_of_a_shuffled_stream(self, big, here):
        stream = iter(shoal.data.stream("big"))
        assert len({next(stream)["id"] for _ in range(10)}) == 10
        assert ShoalFileSystem().fetched < 0.25 * big.size

    def test_a_record_by_number_needs_its_chunks_once_all_are_counted(self, big, here, monkeypatch):
        shoal.data.stream("big", shuffle=False).as_map()[0]  # counts
        (here / "chunks").rename(here / "gone")
        monkeypatch.setenv("SHOAL_WORKSPACE", "default")  # a new connection, with nothing in memory
        view = shoal.data.stream("big").as_map()
        assert [view[i]["id"] for i in (0, 6_234, RECORDS - 1)] == [0, 6_234, RECORDS - 1]
        assert size_of(here / "chunks") < 0.1 * big.size

    def test_ranks_fetch_their_share_once_all_are_counted(self, server, big, here, tmp_path):
        order = ids(shoal.data.stream("big"))
        assert sorted(order) == list(range(RECORDS))
        cache = tmp_path / "another"
        cache.mkdir()
        (here / "counts").rename(cache / "counts")
        got, fetched = outcome(reader(server, cache, name="big", rank=1, world_size=4))
        assert got == order[1::4]
        # A quarter, and the chunks that its blocks share with their neighbours: here blocks are little larger than chunks.
        assert fetched < 0.7 * big.size


@pytest.mark.torch
class TestProcesses:
    def test_ranks_get_every_sample_once_and_fetch_every_chunk_once_together(self, server, big, here, tmp_path):
        order = ids(shoal.data.stream("big"))
        ranks = [reader(server, tmp_path / "shared", name="big", rank=rank, world_size=2) for rank in range(2)]
        shares = [outcome(process) for process in ranks]
        assert [got for got, _ in shares] == [order[0::2], order[1::2]]
        assert sum(fetched for _, fetched in shares) <= 1.05 * big.size

    def test_so_do_their_workers(self, server, big, here, tmp_path):
        order, loader = ids(shoal.data.stream("big")), {"batch_size": 16, "num_workers": 2}
        ranks = [reader(server, here, name="big", rank=rank, world_size=2, loader=loader) for rank in range(2)]
        assert [outcome(process)[0] for process in ranks] == [order[0::2], order[1::2]]

    def test_workers_that_are_spawned_find_the_server(self, server, big, here):
        loader = {"batch_size": 50, "num_workers": 1, "multiprocessing_context": "spawn"}
        stream = shoal.data.stream("big/part-3.jsonl").loader(**loader)
        got = [i for batch in stream for i in batch["id"].tolist()]
        assert got == ids(shoal.data.stream("big/part-3.jsonl"))

    def test_readers_killed_at_any_point_leave_a_cache_that_serves_the_next(self, server, big, tmp_path):
        cache, rng = tmp_path / "cache", random.Random(1)
        expected = None
        for _ in range(ROUNDS):
            readers = [reader(server, cache, name="big", seed=seed) for seed in range(3)]
            for process in readers:
                process.stdout.readline()
            time.sleep(rng.uniform(0, 0.5))
            for process in readers:
                process.send_signal(signal.SIGKILL)
                process.communicate()
            got, _ = outcome(reader(server, cache, name="big"))
            expected = expected or got
            assert got == expected
            assert sorted(got) == list(range(RECORDS))


class TestCache:
    def test_damaged_chunks_are_fetched_again(self, server, big, here, monkeypatch):
        order = ids(shoal.data.stream("big/part-0.jsonl"))
        kept = [path for path in (here / "chunks").rglob("*") if path.is_file()]
        for n, path in enumerate(kept):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data if n % 2 else data[:-1])
        monkeypatch.setenv("SHOAL_WORKSPACE", "default")  # a new connection, with nothing in memory
        assert ids(shoal.data.stream("big/part-0.jsonl")) == order
        assert ShoalFileSystem().fetched >= sum(path.stat().st_size for path in kept)

    def test_it_stays_small_while_several_read(self, server, big, tmp_path):
        readers = [reader(server, tmp_path / "cache", limit_gb=0.02, name="big", seed=seed) for seed in range(2)]
        for process in readers:
            threading.Thread(target=process.communicate, daemon=True).start()
        largest = 0
        while any(process.poll() is None for process in readers):
            largest = max(largest, _size_while_changing(tmp_path / "cache" / "chunks"))
            time.sleep(0.05)
        assert [process.returncode for process in readers] == [0, 0]
        assert 0 < largest < 50_000_000


def _size_while_changing(folder):
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


class TestFaults:
    def test_a_server_that_is_killed_and_comes_back_only_delays(self, own_server, tmp_path, monkeypatch):
        _settle(own_server, tmp_path / "cache", monkeypatch)
        monkeypatch.setenv("SHOAL_DATA_CACHE_GB", "0")
        push(own_server, "set", {f"{n}.jsonl": lines(n * 9000, (n + 1) * 9000) for n in range(6)}, tmp_path)
        stream = iter(shoal.data.stream("set", storage_options={"timeout_s": 60}))
        got = [next(stream)["id"] for _ in range(100)]
        own_server.kill()
        threading.Timer(1.0, own_server.start).start()
        got += ids(stream)
        eventually(lambda: own_server.is_up)
        assert sorted(got) == list(range(54_000))

    @pytest.mark.parametrize("fault", ["503", "drop", "cut", "flip"])
    def test_requests_that_fail_now_and_then_are_made_again(self, server, here, tmp_path, fault):
        push(server, "set", {f"{n}.jsonl": lines(n * 5000, (n + 1) * 5000) for n in range(4)}, tmp_path)
        with Proxy(server) as proxy:
            proxy.fault = lambda count: fault if count % 3 == 1 else None
            got = ids(shoal.data.stream("set", storage_options=proxy.options))
            assert sorted(got) == list(range(20_000))
            assert proxy.done >= 2

    def test_a_server_that_hangs_is_an_error_in_time(self, server, big, here):
        with Proxy(server) as proxy:
            stream = iter(shoal.data.stream("big", storage_options=proxy.options | {"timeout_s": 2}))
            next(stream)
            proxy.fault = lambda count: "hang"
            started = time.monotonic()
            with pytest.raises(TimedOut, match="No data from"):
                ids(stream)
            assert time.monotonic() - started < patient(30)

    def test_a_chunk_the_server_gives_wrong_every_time_is_corrupt(self, server, here, tmp_path):
        push(server, "set", {"a.jsonl": lines(0, 5000)}, tmp_path)
        with Proxy(server) as proxy:
            stream = shoal.data.stream("set", storage_options=proxy.options)
            proxy.fault = lambda count: "flip"
            with pytest.raises(Corrupt):
                ids(stream)

    def test_no_server_is_an_error_in_time(self, server, here):
        with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9"):
            shoal.data.stream("set", storage_options={"server": "http://127.0.0.1:9", "key": "k", "timeout_s": 1})

    def test_a_wrong_key_is_refused_at_once(self, server, here, big):
        with Proxy(server) as proxy, pytest.raises(NotSignedIn):
            shoal.data.stream("big", storage_options=proxy.options | {"key": "wrong"})

    def test_an_unknown_dataset_is_not_found(self, server, here, big):
        with pytest.raises(NotFound, match="Did you mean 'big'"):
            shoal.data.stream("bigg")
        with pytest.raises(NotFound, match=r"big@7"):
            shoal.data.stream("big@7")


class TestVersions:
    def test_a_stream_stays_with_its_version_and_so_does_its_state(self, server, here, tmp_path, monkeypatch):
        push(server, "grows", {"a.jsonl": lines(0, 3000)}, tmp_path)
        stream = shoal.data.stream("grows")
        order = ids(shoal.data.stream("grows"))
        iterator = iter(stream)
        got = [next(iterator)["id"] for _ in range(1000)]
        push(server, "grows", {"b.jsonl": lines(3000, 4000)}, tmp_path)
        state = stream.state_dict()
        assert (state["source"], got + ids(iterator)) == ("grows@1", order)
        monkeypatch.setenv("SHOAL_WORKSPACE", "default")  # as a new process, which finds the new version
        resumed = shoal.data.stream("grows", rank=0, world_size=1)
        assert resumed.source.pinned == "grows@2"
        resumed.load_state_dict(state)
        assert ids(resumed) == order[1000:]

    def test_libraries_read_it_by_url(self, server, here, tmp_path):
        pandas = pytest.importorskip("pandas")
        push(server, "table", {"x/t.csv": "a,b\n1,2\n3,4\n"}, tmp_path)
        assert pandas.read_csv("shoal://table/x/t.csv")["b"].tolist() == [2, 4]
        datasets = pytest.importorskip("datasets")
        rows = datasets.load_dataset("csv", data_files="shoal://table@1/x/*.csv", streaming=True, split="train")
        assert list(rows) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_a_job_streams_with_a_token_of_its_own(server, code, tmp_path):
    push(server, "letters", {"a.jsonl": lines(0, 1000)}, tmp_path)
    script = """
import os, shoal.data
from shoal.data.filesystem import ShoalFileSystem
assert "SHOAL_API_KEY" not in os.environ
got = sorted(record["id"] for record in shoal.data.stream("letters"))
print("STREAMED", len(got), got[-1], ShoalFileSystem().fetched > 0)
"""
    run = server.cli(
        "training", "run", "streams", "--dir", str(code({"train.py": script})), "-f",
        "--env", f"SHOAL_DATA_CACHE={tmp_path}/cache", "--", "train.py",
    )  # fmt: skip
    assert "STREAMED 1000 999 True" in run.stdout


def test_a_bucket_is_streamed_as_it_is(tmp_path, monkeypatch):
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("obstore")
    moto = pytest.importorskip("moto.server")
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    service = moto.ThreadedMotoServer("127.0.0.1", port=0)
    service.start()
    try:
        endpoint = "http://{}:{}".format(*service.get_host_and_port())
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        for n in range(3):
            body = lines(n * 2000, (n + 1) * 2000).encode()
            client.put_object(Bucket="bucket", Key=f"set/train/{n}.jsonl", Body=body)
        order = ids(shoal.data.stream("s3://bucket/set/train"))
        assert sorted(order) == list(range(6000))
        shares = [ids(shoal.data.stream("s3://bucket/set/train/*.jsonl", rank=r, world_size=2)) for r in range(2)]
        assert shares == [order[0::2], order[1::2]]
        assert shoal.data.stream("s3://bucket/set").as_map()[4321]["id"] == 4321
        assert ids(shoal.data.stream("s3://bucket/set/train/1.jsonl", shuffle=False)) == list(range(2000, 4000))
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        named = f"s3://bucket/set/train/*.jsonl?endpoint={endpoint}&region=us-east-1"
        assert ids(shoal.data.stream(named)) == order, "the endpoint may stand in the URL, as in all other places"
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(NotFound):
            shoal.data.stream("s3://bucket/nothing")
        loader = shoal.data.stream("s3://bucket/set/train").loader(batch_size=8, num_workers=1)
        with pytest.raises(Refused, match="forked"):
            next(iter(loader))
    finally:
        service.stop()


class Proxy:
    """Passes requests for chunks on to the server, except where `fault(how many came before)` names something to do to one."""

    def __init__(self, server):
        with server.client() as client:
            upstream, key = urlsplit(client.url), client._http._client.headers["Authorization"].removeprefix("Bearer ")
        self.fault, self.count, self.done = (lambda count: None), 0, 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = proxy.decide() if "/store/" in self.path else None
                if fault == "hang":
                    proxy.closed.wait(60)
                if fault in ("drop", "hang"):
                    self.close_connection = True
                    return
                link = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=patient(30))
                link.request(self.command, self.path, body, dict(self.headers))
                reply = link.getresponse()
                data = bytearray(reply.read())
                if fault == "flip":
                    data[-1] ^= 1
                self.send_response(503 if fault == "503" else reply.status)
                self.send_header("Content-Type", reply.getheader("Content-Type") or "")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
                self.close_connection = fault == "cut"

            do_GET = do_POST = answer

            def log_message(self, *_):
                pass

        self.closed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.options = {"server": f"http://127.0.0.1:{self._server.server_port}", "key": key}

    def decide(self):
        self.count += 1
        fault = self.fault(self.count)
        self.done += fault is not None
        return fault

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
