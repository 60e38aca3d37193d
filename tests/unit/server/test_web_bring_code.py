"""Code for a new job: uploaded in parts, or fetched from git; and which script of it is offered."""

import io
import json
import re
import zipfile
from dataclasses import replace

import pytest
from gitserver import commit, make_repo
from web_browser import BASE, Browser
from web_drafts import HTMX, NEW, form_of, preview

from shoal.server.jobs import service as jobs
from shoal.testing.server import make_app


@pytest.fixture
def browser(app, ctx, anna):
    return Browser(app).enter(ctx, anna)


NOTEBOOK = json.dumps(
    {
        "nbformat": 4,
        "cells": [
            {"cell_type": "code", "source": "%pip install einops\nimport sys\nprint('from a cell', sys.argv[1:])"},
            {
                "cell_type": "code",
                "source": "from google.colab import drive\ndrive.mount('/x')  # <script>alert(1)</script>",
            },
        ],
    }
).encode()


def zipped(**files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return packed.getvalue()


def send(browser, files, title="code.zip"):
    """Upload in the same way as transfer.js."""
    options = {"headers": {"Origin": BASE, "Accept": "application/json"}}
    size = sum(map(len, files.values()))
    begun = browser.request("POST", "/w/default/uploads", params={"size": size, "purpose": "source"}, **options)
    if begun.status_code != 201:
        return begun
    path = f"/w/default/uploads/{begun.json()['id']}"
    for name, data in files.items():
        assert browser.request("PUT", path, params={"path": name, "offset": 0}, content=data, **options).is_success
    return browser.request("POST", f"{path}/source", params={"title": title}, **options)


def test_an_archive_dropped_on_the_page_becomes_a_job(browser, ctx, anna):
    code = zipped(**{"proj__train.py": "print(1)", "proj__lib__util.py": "", "proj__requirements.txt": ""})
    made = send(browser, {"code.zip": code}, "code.zip").json()
    assert made["notes"] == [] and made["source"]["files"] == 3
    part = browser.get(f"{NEW}?source={made['source']['id']}&part=source", headers=HTMX).text
    assert "<html" not in part and 'data-suggested="code"' in part
    assert re.findall(r"<option[^>]*>([^<]+)", part) == ["train.py", "lib/util.py"]
    form = {
        "name": "first",
        "source_id": made["source"]["id"],
        "entry": "train.py",
        "line": "--lr '1 2'",
        "accels": "2",
    }
    answer = browser.post(NEW, form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/w/default/jobs/first")
    view = jobs.get(ctx, anna.access(), "first")
    assert view.spec.entry == ["train.py", "--lr", "1 2"] and view.spec.accels == 2
    assert view.source["path"] == "code.zip"
    assert "Run it in the folder that contains code.zip." in preview(browser, **form)
    assert not list((ctx.layout.server_dir / "uploads").rglob("tree"))


def test_the_likeliest_script_is_offered_first(browser):
    files = {
        "setup.py": b"",
        "zeta.py": b"",
        "main.py": b"",
        "pkg/train.py": b"",
        "test_x.py": b"",
        "notes.ipynb": NOTEBOOK,
    }
    made = send(browser, files, "proj").json()["source"]["id"]
    source = browser.get(f"{NEW}.json?source={made}").json()["source"]
    assert source["scripts"] == ["main.py", "zeta.py", "setup.py", "test_x.py", "pkg/train.py"]
    assert source["notebooks"] == ["notes.ipynb"] and source["suggested"] == "proj"
    assert "notes.ipynb (a notebook: makes a script of it)" in browser.get(f"{NEW}?source={made}").text
    for before, chosen in (("zeta.py", ["zeta.py"]), ("gone.py", ["main.py"]), ("-m", ["-m"])):
        part = browser.get(f"{NEW}?source={made}&entry={before}").text
        assert form_of(part)["entry"] == chosen, "the script of before, where the new code has it"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.ipynb": b"{}"}, "names no nbformat"),
        ({"a.ipynb": b"{}", "b.ipynb": b"{}"}, "It contains 2 notebooks"),
        ({"a.txt": b"x"}, "no script"),
        ({"a.zip": b"not an archive"}, "a.zip"),
        ({"a.zip": zipped(**{"..__..__evil.py": "x"})}, "evil.py"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(browser, files, said):
    answer = send(browser, files)
    assert answer.status_code == 422 and said in answer.json()["error"]["message"], answer.text


def test_code_over_the_limit_is_refused_before_it_travels(browser, ctx):
    params = {"size": (ctx.settings.max_source_mb << 20) + 1, "purpose": "source"}
    headers = {"Origin": BASE, "Accept": "application/json"}
    answer = browser.request("POST", "/w/default/uploads", params=params, headers=headers)
    assert answer.status_code == 413 and "512 MiB for code" in answer.json()["error"]["message"]


def test_a_repository_is_fetched_and_its_script_chosen(ctx, anna, tmp_path):
    browser = Browser(make_app(replace(ctx, private=True))).enter(ctx, anna)  # where a path is a repository, too
    repo = make_repo(tmp_path / "repo")
    made, url = commit(repo, {"train.py": "print(1)", "README": "hello"}), str(repo)
    part = browser.post(f"{NEW}/git", {"git_url": url, "name": "x"}, headers=HTMX)
    source_id = re.search(r'name="source_id" value="(src_\w+)"', part.text)
    assert source_id and ">train.py</option>" in part.text
    form = {"name": "from-git", "source_id": source_id[1], "entry": "train.py"}
    shown = browser.post(f"{NEW}/preview", form, headers=HTMX | {"Accept": "application/json"}).json()
    assert shown["preview"]["command"] == (
        f"shoal training run from-git --repository-url {url} --repository-revision {made} -- train.py"
    )
    bad = browser.post(f"{NEW}/git", {"git_url": "ext::sh -c id"}, headers=HTMX)
    assert bad.status_code == 422 and bad.json()["error"]["message"]


def test_a_notebook_dropped_on_the_page_becomes_a_script_with_a_receipt(browser, ctx, anna):
    made = send(browser, {"My net.ipynb": NOTEBOOK}, "My net.ipynb").json()["source"]["id"]
    part = browser.get(f"{NEW}?source={made}&part=source", headers=HTMX).text
    assert re.findall(r"<option[^>]*>([^<]+)", part)[0] == "My_net.py" and 'data-suggested="My-net"' in part
    assert "1 to decide about" in part and "Google Drive is not available in a job" in part
    assert "requirements.txt: einops" in part and "<script>alert" not in part
    form = {"name": "first", "source_id": made, "entry": "My_net.py", "line": "--lr 1"}
    browser.post(NEW, form)
    assert jobs.get(ctx, anna.access(), "first").spec.entry == ["My_net.py", "--lr", "1"]
    page = browser.get("/w/default/jobs/first/code").text
    assert "Made from a notebook" in page and "needs a decision" in page and "<script>alert" not in page
    twin = browser.get("/w/default/jobs/first/code.json").json()
    assert [cell["fate"] for cell in twin["receipt"]["cells"]] == ["turned", "decision"]
    assert twin["rerun"] == "shoal training run first-again --notebook 'My net.ipynb' --as-is -- --lr 1"


def test_a_notebook_among_other_code_is_made_a_script_when_chosen(browser, ctx):
    files = {"train.py": b"", "nb/look.ipynb": NOTEBOOK, "requirements.txt": b"numpy\n"}
    made = send(browser, files, "proj").json()["source"]["id"]
    refused = browser.post(NEW, {"name": "x", "source_id": made, "entry": "nb/look.ipynb"}, headers=HTMX)
    assert refused.status_code == 422 and "is a notebook" in refused.text
    part = browser.post(f"{NEW}/notebook", {"source_id": made, "entry": "nb/look.ipynb"}, headers=HTMX).text
    source_id = re.search(r'name="source_id" value="(src_\w+)"', part)[1]
    assert source_id != made and "<option selected>nb/look.py</option>" in part
    source = browser.get(f"{NEW}.json?source={source_id}").json()["source"]
    assert source["files"] == 6 and source["receipt"]["requirements"] == ["einops"]
    shown = preview(browser, name="x", source_id=source_id, entry="nb/look.py")
    assert "run x --notebook nb/look.ipynb --dir . --as-is" in shown.replace("</span>", "").replace("<span>", "")
    bad = browser.post(f"{NEW}/notebook", {"source_id": made, "entry": "no.ipynb"}, headers=HTMX)
    assert bad.status_code == 404


def test_a_notebook_is_fetched_from_its_address(browser, ctx):
    form = {"code": "notebook", "notebook_url": "http://127.0.0.1:1/n.ipynb", "notebook_token": "s3cret"}
    bad = browser.post(f"{NEW}/notebook", form, headers=HTMX)
    assert bad.status_code == 422 and "private network" in bad.json()["error"]["message"]
    kept = browser.post(f"{NEW}/restore", form | {"name": "x"}, headers=HTMX).text
    assert 'value="http://127.0.0.1:1/n.ipynb"' in kept and "s3cret" not in kept
