"""T8 for notebooks: fetched from where everybody can, made a source with its receipt; from inside nothing, by no trick."""

import functools
import json

import pytest
from local_web import web_server
from test_fetch_guard import TRICKS, only_second_loopback

from shoal.core.errors import InvalidSpec, NotFound, Refused, ShoalError, SourceTooLarge
from shoal.core.notebooks import NotebookFetch
from shoal.core.people import RegistryConnect
from shoal.server.git import service as git
from shoal.server.notebooks import service as notebooks
from shoal.testing.server import add_source

SOURCE = "%pip install einops\n!wget https://example.org/a.csv\nprint('ran')"


def notebook(*sources):
    cells = [{"cell_type": "code", "source": source, "metadata": {}, "outputs": []} for source in sources]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


def fetch(ctx, access, url, **options):
    return notebooks.from_url(ctx, access, NotebookFetch(url=url, **options))


PAGES = ("https://nbviewer.org/url/127.0.0.1:{p}/n.ipynb", "https://nbviewer.org/urls/localhost:{p}/n.ipynb",
         "http://127.0.0.1:{p}/notebooks/n.ipynb", "http://0x7f000001:{p}/lab/tree/n.ipynb", "http://[::ffff:7f00:1]:{p}/-/blob/n.ipynb",
         "http://127.1:{p}/a/blob/main/n.ipynb", "http://github.com@127.0.0.1:{p}/a/b/blob/n.ipynb")  # fmt: skip


def test_no_address_of_a_notebook_leads_inside(ctx, anna, canary):
    for trick in [trick for trick in TRICKS if trick] + list(PAGES):
        with pytest.raises(ShoalError) as caught:
            fetch(ctx, anna.access(), trick.format(p=canary.port))
        assert caught.value.http_status < 500 and "\n" not in caught.value.message, trick
        assert canary.visits == 0, trick


TARGETS = ("http://127.0.0.1:{p}/", "http://2130706433:{p}/", "http://[::ffff:127.0.0.1]:{p}/", "file:///etc/passwd")


@pytest.mark.parametrize("target", TARGETS)
def test_no_redirect_and_no_gist_leads_inside(ctx, anna, canary, monkeypatch, target):
    monkeypatch.setattr(notebooks, "Guard", _outside)
    inside = target.format(p=canary.port)
    with web_server(address="127.0.0.2") as outside:
        outside.pages["/n.ipynb"] = lambda request: request.send(302, Location=inside)
        listed = json.dumps({"files": {"n": {"filename": "n.ipynb", "raw_url": inside}}}).encode()
        outside.pages["/gist"] = lambda request: request.send(200, listed)
        with pytest.raises(ShoalError):
            fetch(ctx, anna.access(), f"{outside.url}/n.ipynb")
        with pytest.raises(ShoalError):
            notebooks._fetch(ctx, notebooks.Place(f"{outside.url}/gist", is_gist=True))
        assert len(outside.seen) == 2
    assert canary.visits == 0


def test_a_name_that_changes_its_address_is_judged_where_it_is_dialled(ctx, anna, canary, monkeypatch):
    answers = iter([["127.0.0.2"], ["127.0.0.1"]])
    monkeypatch.setattr(notebooks, "Guard", functools.partial(_outside, resolve=lambda host, port: next(answers)))
    with web_server(address="127.0.0.2") as outside:
        url = f"http://rebind.example:{outside.port}"
        outside.pages["/n.ipynb"] = lambda request: request.send(302, Location=f"http://again.example:{canary.port}/n")
        with pytest.raises(InvalidSpec, match="private network"):
            fetch(ctx, anna.access(), f"{url}/n.ipynb")
        assert len(outside.seen) == 1
    assert canary.visits == 0


def _outside(*, private, **options):
    assert not private
    return only_second_loopback(**options)


def test_a_notebook_becomes_a_source_with_its_receipt(pctx, access, web):
    web.pages["/notebooks/My%20net.ipynb"] = web.pages["/files/x.ipynb"] = lambda request: request.send(
        200, notebook(SOURCE, "x = 1")
    )
    made = fetch(pctx, access, f"{web.url}/notebooks/My%20net.ipynb", entry_cell="1")
    assert (made.entry, made.receipt.requirements) == ("My_net.py", ["einops"])
    files = pctx.store.get_manifest(made.source.manifest_id).files
    assert [f.path for f in files] == ["My_net.py", "My_net.receipt.json", "requirements.txt", "shoal_cells.py"]
    assert notebooks.get_receipt(pctx, access, made.source.id) == made.receipt
    assert [cell.fate for cell in made.receipt.cells] == ["decision", "dropped"]


def test_a_token_is_shown_to_the_host_and_kept_nowhere(pctx, access, web):
    seen = []

    def page(request):
        seen.append(request.headers.get("Authorization"))
        request.send(200 if seen[-1] else 404, notebook("x = 1"))

    web.pages["/n.ipynb"] = web.pages["/files/deep/n.ipynb"] = page
    with pytest.raises(Refused) as caught:
        fetch(pctx, access, f"{web.url}/n.ipynb")
    assert "It may not be public" in caught.value.message and "--token-stdin" in caught.value.hint
    made = fetch(pctx, access, f"{web.url}/n.ipynb?x=1", token="s3cret")
    fetch(pctx, access, f"{web.url}/lab/tree/deep/n.ipynb?token=own")
    assert seen == [None, "Bearer s3cret", "token own"]
    with pctx.db.read() as session:
        rows = session.connection().exec_driver_sql("select origin from sources").all()
    assert "s3cret" not in str(rows) and "own" not in str(rows) and f"{web.url}/n.ipynb" in str(rows)
    assert "s3cret" not in made.model_dump_json()


def test_a_connected_host_gives_its_token_over_https_only(pctx, access, web):
    git.connect_registry(pctx, access, RegistryConnect(host=f"127.0.0.1:{web.port}", token="kept"))
    web.pages["/n.ipynb"] = lambda request: request.send(200, notebook("x = 1"))
    fetch(pctx, access, f"{web.url}/n.ipynb")
    assert web.seen[0].headers.get("Authorization") is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<!doctype html><title>Sign in</title>", "web page"),
        (b"{}", "names no nbformat"),
        (notebook(""), "no code"),
        (notebook("%%R\nx"), "no code"),
    ],
)
def test_what_is_no_notebook_is_refused_with_the_reason(pctx, access, web, body, said):
    web.pages["/n.ipynb"] = lambda request: request.send(200, body)
    with pytest.raises(ShoalError, match=said):
        fetch(pctx, access, f"{web.url}/n.ipynb")


def test_one_that_is_too_large_or_too_slow_is_given_up(pctx, access, web, monkeypatch):
    web.pages["/big.ipynb"] = lambda request: request.send(200, b" " * 3000)
    monkeypatch.setattr(notebooks, "MAX_BYTES", 2000)
    with pytest.raises(SourceTooLarge):
        fetch(pctx, access, f"{web.url}/big.ipynb")
    monkeypatch.setattr(notebooks, "FETCH_S", 0.0)
    with pytest.raises(ShoalError, match="did not arrive"):
        fetch(pctx, access, f"{web.url}/big.ipynb")


def test_code_without_a_notebook_has_no_receipt(ctx, anna):
    with pytest.raises(NotFound, match="not made from a notebook"):
        notebooks.get_receipt(ctx, anna.access(), add_source(ctx, anna))
