"""`shoal checkpoint …`, `shoal store …` and what a job's checkpoints are shown and fetched with."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import pytest
import wireviews as views
from stubserver import reply

from shoal.cli.checkpoint.show import export_url
from shoal.cli.shared.tree_diff import compare, compare_tensors
from shoal.core.artifacts import Manifest
from shoal.core.errors import UsageError
from shoal.store.hashing import chunk_hash
from shoal.store.pack import pack_files
from shoal.store.wire import encode_frames

W = "/workspaces/default"
TITLES = ["ID", "NAME", "NODE", "STEP", "TRAIN LOSS", "EVAL LOSS", "MODEL", "VERSION", "INFERENCE READY", "TIMESTAMP"]


def checkpoint(**changes):
    return {
        "id": "ckpt_1", "name": "checkpoint-5", "job_id": "job_1", "job": "hello", "attempt": 1, "node": 0, "step": 5,
        "train_loss": 1.23456, "eval_loss": None, "model": "GPT2LMHeadModel", "version": "4.57.0", "inference_ready": True,
        "timestamp": "2025-01-31T12:00:00Z", "size": 5, "files": 1, "manifest_id": "m", "kept": False, **changes,
    }  # fmt: skip


def with_content(stub, data=b"hello"):
    name = chunk_hash(data)
    manifest = {"files": [{"path": "sub/m.pt", "size": len(data), "chunks": [{"hash": name, "size": len(data)}]}]}
    stub.routes |= {
        f"GET {W}/checkpoints": reply(body=[checkpoint()]),
        f"GET {W}/checkpoints/ckpt_1": reply(body=checkpoint()),
        f"GET {W}/checkpoints/ckpt_1/manifest": reply(body=manifest),
        f"POST {W}/store/fetch": reply(body=b"".join(encode_frames([(name, data)]))),
        f"GET {W}/store/chunks/{name}": reply(body=data),
    }


def test_the_columns_are_the_ones_people_know(cli, stub):
    stub.will(reply(body=[checkpoint(), checkpoint(id="ckpt_2", damaged=True)]))
    ran = cli("training", "checkpoints", "hello")
    header, row, _ = ran.out.splitlines()
    assert [title.strip() for title in header.split("  ") if title.strip()] == TITLES
    assert row.split() == [
        "ckpt_1",
        "checkpoint-5",
        "0",
        "5",
        "1.235",
        "-",
        "GPT2LMHeadModel",
        "4.57.0",
        "yes",
        "2025-01-31T12:00:00Z",
    ]
    assert "ckpt_2 is damaged" in ran.err
    assert stub.asked[0].path.endswith("/checkpoints?job=hello")


def test_json_has_at_least_what_is_promised(cli, stub):
    stub.will(reply(body=[checkpoint()]))
    (found,) = json.loads(cli("training", "checkpoints", "hello", "--json").out)
    assert found.keys() >= {"id", "name", "node", "step", "train_loss", "eval_loss", "model", "timestamp", "size"}


def test_fetching_a_jobs_output_gives_the_archive_people_know(cli, stub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_content(stub)
    ran = cli("training", "fetch", "hello")
    assert (ran.code, ran.out) == (0, "output_0.zip\n")
    with zipfile.ZipFile("output_0.zip") as archive:
        assert archive.namelist() == ["output/", "output/sub/m.pt"]
        assert archive.read("output/sub/m.pt") == b"hello"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith((".", "output"))] == ["output_0.zip"]
    assert cli("training", "fetch", "hello").code == 4
    assert cli("training", "fetch", "hello", "--force").code == 0


def test_fetching_a_jobs_output_as_a_folder(cli, stub, tmp_path):
    with_content(stub)
    assert cli("training", "fetch", "hello", "--no-zip", "--destination", str(tmp_path / "new/place")).code == 0
    assert (tmp_path / "new/place/output_0/sub/m.pt").read_bytes() == b"hello"


def test_a_job_without_checkpoints_has_nothing_to_fetch(cli, stub):
    stub.will(reply(body=[]))
    ran = cli("training", "fetch", "hello")
    assert ran.code == 3 and "no checkpoint that can be downloaded" in ran.err


def test_a_checkpoint_is_fetched_to_a_folder_of_its_name(cli, stub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_content(stub)
    ran = cli("checkpoint", "fetch", "ckpt_1")
    assert ran.out == f"{tmp_path / 'checkpoint-5'}\n"
    assert (tmp_path / "checkpoint-5/sub/m.pt").read_bytes() == b"hello"


def test_resuming_says_which_checkpoint_is_given(cli, stub):
    stub.routes = {
        f"POST {W}/jobs/hello/resume": reply(body=views.job("queued")),
        f"GET {W}/checkpoints": reply(body=[checkpoint(), checkpoint(id="ckpt_2", step=9, damaged=True)]),
    }
    assert (
        "'hello' is queued again. Its next attempt is given checkpoint-5 (step 5)."
        in cli("training", "resume", "hello").err
    )
    stub.routes[f"GET {W}/checkpoints"] = reply(body=[])
    assert "It has no checkpoint and starts from the beginning." in cli("training", "resume", "hello").err


def test_retention_options_reach_the_job(cli, stub, tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    stub.routes = {
        f"POST {W}/store/missing": reply(body={"missing": []}),
        f"POST {W}/sources": reply(201, {"id": "src_1", "manifest_id": "m", "size": 0, "files": 1}),
        f"POST {W}/jobs": reply(201, views.job("queued")),
    }
    assert cli("training", "run", "j", "--keep-last", "2", "--keep-best", "-accuracy", "--", "train.py").code == 0
    assert {k: stub.asked[-1].json[k] for k in ("keep_last", "keep_best")} == {"keep_last": 2, "keep_best": "-accuracy"}
    assert cli("training", "run", "j", "--keep-last", "0", "--", "train.py").code == 2


def test_a_pushed_checkpoint_brings_what_its_files_say(cli, stub, tmp_path):
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2/config.json").write_text(
        '{"architectures": ["GPT2LMHeadModel"], "transformers_version": "4.57.0"}'
    )
    (tmp_path / "gpt2/model.safetensors").write_bytes(safetensors(a=b"1234"))
    stub.routes = {
        f"POST {W}/store/missing": reply(body={"missing": []}),
        f"POST {W}/checkpoints": reply(201, {"missing": [], "checkpoint": checkpoint(job=None, name="gpt2-base")}),
    }
    ran = cli("checkpoint", "push", "gpt2-base", "--file", str(tmp_path / "gpt2"))
    assert ran.out == "ckpt_1\n"
    facts = stub.asked[-1].json["facts"]
    assert (facts["model"], facts["version"], facts["inference_ready"], facts["step"]) == (
        "GPT2LMHeadModel",
        "4.57.0",
        True,
        None,
    )


@pytest.mark.parametrize(
    ("path", "provider", "url"),
    [
        ("s3://b/p", None, "s3://b/p"),
        ("s3://b/p", "s3", "s3://b/p"),
        ("b/p", "s3", "s3://b/p"),
        ("b/p", "https://minio:9000", "s3://b/p?endpoint=https%3A%2F%2Fminio%3A9000"),
        ("s3://b/p?region=eu", "https://minio:9000", "s3://b/p?region=eu&endpoint=https%3A%2F%2Fminio%3A9000"),
        ("/mnt/x", None, "/mnt/x"),
        ("/mnt/x", "folder", "/mnt/x"),
    ],
)
def test_exports_go_where_they_are_meant_to(path, provider, url):
    assert export_url(path, provider) == url


def test_a_relative_folder_is_ones_own():
    assert export_url("./x", None) == str(Path("x").absolute())


@pytest.mark.parametrize(("path", "provider"), [("b/p", None), ("b/p", "gcs")])
def test_an_export_that_is_not_clear_is_refused(path, provider):
    with pytest.raises(UsageError):
        export_url(path, provider)


def safetensors(**tensors):
    at, header = 0, {}
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + b"".join(tensors.values())


def stored(tmp_path, data, name="m.safetensors"):
    (tmp_path / name).write_bytes(data)
    return pack_files([tmp_path / name]).manifest.files[0]


class TestTensorDiff:
    def diff(self, tmp_path, old, new):
        a, b = stored(tmp_path, old), stored(tmp_path, new)
        content, reads = {id(a): old, id(b): new}, []

        class Counted(io.BytesIO):
            def read(self, size=-1):
                reads.append(size)
                return super().read(size)

        before, after = Manifest.model_construct(files=[a]), Manifest.model_construct(files=[b])
        found = compare(before, after)
        compare_tensors(found, before, after, lambda entry: Counted(content[id(entry)]))
        return found.changed[0].tensors, reads

    def test_it_names_the_tensors_that_changed(self, tmp_path):
        tensors, _ = self.diff(
            tmp_path,
            safetensors(same=b"1" * 10, changed=b"2" * 10, gone=b"3", shaped=b"44"),
            safetensors(same=b"1" * 10, changed=b"2" * 9 + b"x", new=b"5", shaped=b"444"),
        )
        assert (tensors.changed, tensors.added, tensors.removed, tensors.reshaped, tensors.unchanged) == (
            ["changed"], ["new"], ["gone"], ["shaped"], 1,
        )  # fmt: skip

    def test_large_tensors_are_told_by_their_hashes_alone(self, tmp_path):
        frozen, old, new = (bytes([i]) * 700_000 for i in range(3))
        tensors, reads = self.diff(tmp_path, safetensors(frozen=frozen, head=old), safetensors(frozen=frozen, head=new))
        assert (tensors.changed, tensors.unchanged) == (["head"], 1)
        assert len(reads) == 4, "two headers were read, and nothing else"

    @pytest.mark.parametrize("bad", [b"", b"x" * 5, struct.pack("<Q", 1 << 60) + b"{}", struct.pack("<Q", 2) + b"[]"])
    def test_a_file_that_is_not_what_its_name_says_only_differs(self, tmp_path, bad):
        assert self.diff(tmp_path, safetensors(a=b"1"), bad)[0] is None


class TestStore:
    def test_damage_is_named_and_exits_with_1(self, cli, stub):
        hurt = [{"kind": "dataset", "id": "ds_1", "name": "wiki@2"}]
        stub.will(reply(body={"chunks": 9, "size": 100, "damaged_chunks": ["a"], "missing_chunks": [], "hurt": hurt}))
        ran = cli("store", "check")
        assert ran.code == 1 and "wiki@2" in ran.out and "--quarantine" in ran.err

    def test_a_sound_store_exits_with_0(self, cli, stub):
        stub.will(reply(body={"chunks": 9, "size": 100, "damaged_chunks": [], "missing_chunks": [], "hurt": []}))
        ran = cli("store", "check", "--quarantine")
        assert ran.code == 0 and "No damage found" in ran.err
        assert stub.asked[0].path.endswith("?quarantine=true")

    @pytest.mark.parametrize(
        ("given", "seconds"), [([], 86400.0), (["--grace", "1h"], 3600.0), (["--grace", "0"], 0.0)]
    )
    def test_the_grace_is_a_length_of_time(self, cli, stub, given, seconds):
        stub.will(reply(body={"manifests_removed": 0, "chunks_kept": 1, "chunks_removed": 2, "bytes_freed": 3}))
        assert "Removed 2 chunks, 3 B" in cli("store", "gc", *given).err
        assert f"grace_s={seconds}" in stub.asked[0].path

    def test_usage_tells_what_sharing_saves(self, cli, stub):
        stub.will(reply(body={"size": 100, "chunks": 3, "packs": 1, "manifests": 2, "logical": 250, "trash": 0}))
        assert "2.5 ×" in cli("store", "usage").out


class TestWordsBeforeTheDashes:
    def test_more_than_a_name_is_refused(self, cli, stub):
        ran = cli("training", "run", "a", "b", "--", "train.py", "--x")
        assert ran.code == 2 and "Unexpected argument 'b'" in ran.err and "-- train.py --x" in ran.err
        assert not stub.asked
