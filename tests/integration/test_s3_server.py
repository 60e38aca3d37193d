"""A server that keeps its chunks in an S3 bucket: the same jobs, datasets and checkpoints, through a real S3 protocol server."""

from pathlib import Path

import pytest

from shoal.testing.live import live_server

SCRIPT = """
import os, pathlib
text = pathlib.Path("/input/words/words.txt").read_text()
pathlib.Path("/output-checkpoint/final").mkdir()
pathlib.Path("/output-checkpoint/final/model.bin").write_text(text.upper())
print("READ", len(text))
"""

MOUNTED = """
import pathlib
print("SEES", {p.name: p.read_text() for p in pathlib.Path("/data").iterdir()})
"""


@pytest.fixture
def bucket(monkeypatch):
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    service = moto.ThreadedMotoServer("127.0.0.1", port=0)
    service.start()
    host, port = service.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="shoal")
    yield client, f"s3://shoal/store?endpoint={endpoint}&region=us-east-1"
    service.stop()


def test_jobs_datasets_and_checkpoints_live_in_a_bucket(bucket, tmp_path, code):
    client, url = bucket
    (tmp_path / "words.txt").write_text("small words " * 1000)
    with live_server(tmp_path / "home", store=url) as server:
        server.cli("dataset", "push", "words", "--file", str(tmp_path / "words.txt"))
        folder = code({"train.py": SCRIPT})
        run = server.cli(
            "training", "run", "in-a-bucket", "--dir", str(folder), "--dataset", "words", "-f", "--", "train.py"
        )
        assert "READ 12000" in run.stdout
        [found] = server.json("training", "checkpoints", "in-a-bucket")
        server.cli("checkpoint", "fetch", found["id"], "--destination", str(tmp_path / "fetched"))
        assert (tmp_path / "fetched" / "model.bin").read_text() == "SMALL WORDS " * 1000
        assert not (server.home / "store" / "chunks").exists()
        assert client.list_objects_v2(Bucket="shoal", Prefix="store/")["KeyCount"] > 0
        assert server.json("store", "check")["damaged_chunks"] == []
        client.put_object(Bucket="shoal", Key="images/a.txt", Body=b"alpha")
        mount = f"s3://shoal/images?endpoint={url.partition('endpoint=')[2].partition('&')[0]}:/data"
        keys = []
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            server.cli("secret", "create", f"s3-{name[4:].lower()}", "--value-stdin", input="test")
            keys += ["--secret", f"{name}=s3-{name[4:].lower()}"]
        folder = code({"train.py": MOUNTED})
        run = server.cli(
            "training", "run", "mounted", "--dir", str(folder), "--mount", mount, *keys, "-f", "--", "train.py"
        )
        assert "SEES {'a.txt': 'alpha'}" in run.stdout
        assert str(server.home) not in Path("/proc/self/mounts").read_text(), (
            "the folder is unmounted when the job ends"
        )
