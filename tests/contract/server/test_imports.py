"""Imports: what a URL names becomes a version, or an error of one line."""

import threading

import pytest
from importing import DATA, contents, error_of, run, tarred, wait_for, zipped
from local_web import serving

from shoal.core.datasets import DatasetStatus
from shoal.server.artifacts import datasets
from shoal.server.artifacts.imports import service as imports
from shoal.testing.server import AppClient, add_person, make_app


def test_a_file_becomes_a_version(pctx, access, web):
    web.pages["/d/train.csv"] = serving(DATA)
    view = run(pctx, access, f"{web.url}/d/train.csv?sig=SECRET", origin={"note": "mine", "progress": "fake"})
    assert contents(pctx, view) == {"train.csv": DATA}
    assert (view.version, view.files, view.size) == (1, 1, len(DATA))
    assert view.origin == {"kind": "http", "url": f"{web.url}/d/train.csv", "note": "mine"}


@pytest.mark.parametrize(("name", "pack"), [("a.zip", zipped), ("a.tar.gz", tarred), ("A.TGZ", tarred)])
def test_an_archive_becomes_what_is_in_it(pctx, access, web, name, pack):
    files = {"train/1.txt": b"one", "train/2.txt": b"two", "README": b"read me"}
    web.pages[f"/{name}"] = serving(pack(files))
    assert contents(pctx, run(pctx, access, f"{web.url}/{name}")) == files


def test_ignore_files_do_not_count_in_a_dataset(pctx, access, web):
    files = {".gitignore": b"*", "a/.git/config": b"x", "b/x.pyc": b"y", "c": b"z"}
    web.pages["/a.zip"] = serving(zipped(files))
    assert contents(pctx, run(pctx, access, f"{web.url}/a.zip")) == files


def test_the_same_again_makes_no_new_version(pctx, access, web):
    web.pages["/f"] = serving(DATA)
    first = run(pctx, access, f"{web.url}/f")
    assert run(pctx, access, f"{web.url}/f") is None
    assert [v.id for v in datasets.list_datasets(pctx, access)] == [first.id]
    web.pages["/f"] = serving(DATA + b"x")
    assert run(pctx, access, f"{web.url}/f").version == 2


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (lambda r: r.send(404), "nothing at"),
        (lambda r: r.send(403), "refuses access"),
        (lambda r: r.send(302, Location="file:///etc/passwd"), "only http"),
        (lambda r: r.send(200, b"<html>", Content_Type="text/html; charset=utf-8"), "web page"),
        (serving(zipped({"a": b"x" * 10_000})[:-40]), "damaged"),
        (serving(b"not a zip"), "damaged"),
        (serving(zipped({"bomb": bytes(30 << 20)})), "times the archive's size"),
        (serving(zipped({"../../evil": b"x"})), "points outside"),
    ],
)
def test_what_goes_wrong_is_told_in_one_line(pctx, access, web, page, words):
    web.pages["/a.zip"] = page
    assert words in error_of(run(pctx, access, f"{web.url}/a.zip?sig=SECRET"))
    assert "SECRET" not in datasets.list_datasets(pctx, access)[0].error


def test_more_than_the_limit_is_refused(pctx, access, web, monkeypatch):
    monkeypatch.setattr(imports, "max_bytes", lambda _: 1_000_000)
    web.pages["/f"] = serving(DATA)
    assert "larger than the 1.0 MB" in error_of(run(pctx, access, f"{web.url}/f"))
    web.pages["/a.zip"] = serving(zipped({"a": DATA[:600_000], "b": DATA[600_000:1_400_000]})[:999_999])
    error_of(run(pctx, access, f"{web.url}/a.zip"))


def test_a_full_disk_is_told_and_fills_no_further(pctx, access, web, monkeypatch):
    usage = type("Usage", (), {"free": 100_000_000})()
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    web.pages["/f"] = serving(DATA)
    assert "has only 100 MB free" in error_of(run(pctx, access, f"{web.url}/f"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://h/x", "imported from"),
        ("just-text", "imported from"),
        ("http://127.0.0.1:1/x", "private network"),
        ("http://user:pw@example.org/x", "user name or password"),
        ("s3://bucket/x?endpoint=http://169.254.169.254", "private network"),
        ("hf://models/a/b", "not a dataset"),
    ],
)
def test_a_url_that_can_never_work_is_refused_at_once(ctx, anna, as_anna, url, words):
    answer = as_anna.post("/workspaces/default/datasets/import", {"name": "data", "url": url})
    assert answer.status_code == 422
    assert words in answer.json()["error"]["message"]
    assert datasets.list_datasets(ctx, anna.access()) == []


def test_a_name_that_leads_inside_is_refused_when_it_is_looked_up(ctx, anna, canary):
    view = run(ctx, anna.access(), f"http://localhost:{canary.port}/x")
    assert "private network" in error_of(view)
    assert canary.visits == 0


def test_the_route_answers_before_the_data_is_there(pctx, web):
    person, go = add_person(pctx, "rita@example.org"), threading.Event()

    def page(request):
        go.wait(20)
        request.send(200, b"x")

    web.pages["/f"] = page
    client = AppClient(make_app(pctx), person.key)
    answer = client.post("/workspaces/default/datasets/import", {"name": "data", "url": f"{web.url}/f"})
    assert (answer.status_code, answer.json()["status"]) == (201, "importing")
    go.set()
    assert wait_for(pctx, person.access(), answer.json()["id"]).status == DatasetStatus.AVAILABLE
