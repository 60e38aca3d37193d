"""Imports from the Hub: the files of one commit, verified; the token goes to the Hub alone."""

import hashlib
import json
import logging
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from importing import DATA, contents, error_of, run
from local_web import serving, web_server

from shoal.core.errors import InvalidSpec
from shoal.core.people import SecretSet
from shoal.server.artifacts.imports.hub import HubPlace, parse_hub_url
from shoal.server.people import secrets


class FakeHub:
    """The part of the Hub's HTTP API that imports use: revisions, listings by page, small files here, large ones elsewhere."""

    COMMIT = "a" * 40

    def __init__(self, web, cdn):
        self.web, self.cdn, self.files, self.large, self.token, self.page_size = web, cdn, {}, set(), None, 2
        self.repo, self.gated, self.wrong = "org/demo", False, set()
        web.answer = self.answer

    def answer(self, request):
        parts = urlsplit(request.path)
        path = unquote(parts.path)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return request.send(401, b"{}", X_Error_Code="RepoNotFound")
        if path == f"/api/datasets/{self.repo}/revision/main" or path.endswith("/revision/v1/x"):
            return request.send(200, json.dumps({"sha": self.COMMIT}).encode())
        if path.startswith(f"/api/datasets/{self.repo}/revision/"):
            return request.send(404, b"{}", X_Error_Code="RevisionNotFound")
        tree = f"/api/datasets/{self.repo}/tree/{self.COMMIT}"
        if path.startswith(tree):
            return self._list(request, path.removeprefix(tree).strip("/"), parse_qs(parts.query))
        resolve = f"/datasets/{self.repo}/resolve/{self.COMMIT}/"
        if path.startswith(resolve):
            return self._file(request, path.removeprefix(resolve))
        return request.send(404, b"{}", X_Error_Code="RepoNotFound")

    def _list(self, request, folder, query):
        inside = sorted(f for f in self.files if not folder or f.startswith(f"{folder}/"))
        entries = [self._entry(f) for f in inside]
        if query["recursive"] == ["false"]:
            depth = len(folder) + 1 if folder else 0
            tops = {f[depth:].partition("/")[0] for f in inside if "/" in f[depth:]}
            above = f"{folder}/" if folder else ""
            entries = [self._entry(f) for f in inside if "/" not in f[depth:]]
            entries += [{"type": "directory", "path": above + top, "oid": "0" * 40, "size": 0} for top in sorted(tops)]
        at = int(query.get("cursor", ["0"])[0])
        more = {}
        if at + self.page_size < len(entries):
            address = f"https://huggingface.co{request.path.partition('&cursor')[0]}&cursor={at + self.page_size}"
            more = {"Link": f'<{address}>; rel="next"'}
        request.send(200, json.dumps(entries[at : at + self.page_size]).encode(), **more)

    def _entry(self, path):
        data = self.files[path]
        entry = {"type": "file", "path": path, "size": len(data)}
        if path in self.large:
            entry["oid"] = "1" * 40
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        else:
            entry["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return entry

    def _file(self, request, path):
        if self.gated:
            return request.send(403, b"", X_Error_Code="GatedRepo")
        data = self.files[path]
        if path in self.wrong:
            data = bytes(len(data))
        if path not in self.large:
            return request.send(200, data, ETag=f'"{path}"')
        self.cdn.pages[f"/blob/{path}"] = serving(data, etag=f'"{path}"')
        return request.send(302, Location=f"{self.cdn.url}/blob/{path}?X-Signature=SECRET")


@pytest.fixture
def hub(web, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with web_server() as cdn:
        made = FakeHub(web, cdn)
        made.files = {
            ".gitattributes": b"*.parquet filter=lfs",
            "README.md": b"# demo",
            "data/train-0.parquet": DATA,
            "data/train-1.parquet": DATA[::-1],
            "data/sub dir/é#1.txt": b"odd name",
            "empty.txt": b"",
        }
        made.large = {"data/train-0.parquet", "data/train-1.parquet"}
        yield made


def test_a_hub_dataset_comes_whole_with_its_commit(pctx, access, hub):
    view = run(pctx, access, "hf://datasets/org/demo")
    assert contents(pctx, view) == hub.files
    assert view.origin == {"kind": "hf", "url": "hf://datasets/org/demo", "revision": FakeHub.COMMIT}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data", {"train-0.parquet", "train-1.parquet", "sub dir/é#1.txt"}),
        ("@v1%2Fx/data/sub dir", {"é#1.txt"}),
        ("@main/data/train-1.parquet", {"train-1.parquet"}),
        ("/README.md", {"README.md"}),
    ],
)
def test_a_folder_or_file_of_it_comes_alone(pctx, access, hub, path, expected):
    assert contents(pctx, run(pctx, access, f"hf://datasets/org/demo{path}")).keys() == expected


def test_the_token_goes_to_the_hub_and_nowhere_else(pctx, access, hub, caplog):
    caplog.set_level(logging.DEBUG)
    hub.token = "hf_planted_token"
    secrets.set_secret(pctx, access, SecretSet(name="my-hub", value="hf_planted_token"))
    assert "private" in error_of(run(pctx, access, "hf://datasets/org/demo"))
    view = run(pctx, access, "hf://datasets/org/demo", credentials={"HF_TOKEN": "my-hub"})
    assert contents(pctx, view) == hub.files
    assert hub.cdn.seen and not any(r.headers["Authorization"] for r in hub.cdn.seen)
    assert "hf_planted_token" not in caplog.text + view.model_dump_json()


def test_the_environments_token_counts_on_a_private_server_only(ctx, anna, pctx, access, hub, monkeypatch):
    hub.token = "hf_own"
    monkeypatch.setenv("HF_TOKEN", "hf_own")
    assert contents(pctx, run(pctx, access, "hf://datasets/org/demo/README.md"))
    assert "private" in error_of(run(ctx, anna.access(), "hf://datasets/org/demo/README.md"))


def test_a_shared_server_may_use_the_operators_mirror_but_not_be_sent_inside_by_it(ctx, anna, hub):
    assert contents(ctx, run(ctx, anna.access(), "hf://datasets/org/demo/README.md"))
    assert "private network" in error_of(run(ctx, anna.access(), "hf://datasets/org/demo/data/train-0.parquet"))
    assert hub.cdn.seen == []


def test_bytes_that_do_not_match_the_hubs_digest_are_not_taken(pctx, access, hub):
    for name in ("README.md", "data/train-0.parquet"):
        hub.wrong = {name}
        assert f"{name} of hf://datasets/org/demo does not match" in error_of(
            run(pctx, access, "hf://datasets/org/demo")
        )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hf://datasets/org/absent", "There is no hf://datasets/org/absent on the Hub, or it is private"),
        ("hf://datasets/org/demo@nope", "no revision 'nope'"),
        ("hf://datasets/org/demo/nope.txt", "no file or folder 'nope.txt'"),
    ],
)
def test_what_the_hub_does_not_have_is_named(pctx, access, hub, url, words):
    assert words in error_of(run(pctx, access, url))


def test_a_gated_dataset_says_what_to_do(pctx, access, hub):
    hub.gated = True
    assert "accept its terms" in error_of(run(pctx, access, "hf://datasets/org/demo"))


def test_hub_urls_are_read_as_the_hub_means_them():
    assert parse_hub_url("hf://datasets/a/b") == HubPlace("a/b", "main", "")
    assert parse_hub_url("hf://datasets/a/b@v1/x/y.csv") == HubPlace("a/b", "v1", "x/y.csv")
    assert parse_hub_url("hf://datasets/a/b@refs%2Fpr%2F1/x") == HubPlace("a/b", "refs/pr/1", "x")
    assert parse_hub_url("hf://datasets/a/b@refs/convert/parquet/x") == HubPlace("a/b", "refs/convert/parquet", "x")
    for bad in (
        "hf://a/b",
        "hf://datasets/a",
        "hf://datasets/../b",
        "hf://datasets/a/b/../c",
        "hf://datasets/a/b/x//y",
    ):
        with pytest.raises(InvalidSpec):
            parse_hub_url(bad)
