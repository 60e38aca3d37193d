"""Sweeps through the client."""

import itertools
from urllib.parse import parse_qs, urlsplit

import pytest
from stubserver import reply

from shoal.client import Client
from shoal.core.errors import TimedOut

VIEW = {
    "id": "swp_1", "name": "s", "status": "running", "search": "grid", "metric": "loss", "direction": "min", "trials": 2, "counts": {"done": 1},
    "best": None, "reason": None, "eta_s": None, "created_by": "anna", "created_at": "2026-01-31T12:00:00Z", "ended_at": None,
    "spec": {"name": "s", "job": {"name": "s", "entry": ["t.py"], "source_id": "src"}, "space": {"lr": {"kind": "choice", "values": [1, 2]}}},
    "importance": {}, "slot_seconds": 0.0, "cost": None,
}  # fmt: skip
TRIAL = {
    "params": {"lr": 1}, "state": "done", "result": 1.0, "reports": 1, "step": 0, "job": "s-0", "job_id": None, "job_status": None, "reason": None,
    "seconds": 1.0, "created_at": "2026-01-31T12:00:00Z", "ended_at": None,
}  # fmt: skip


@pytest.fixture
def client(stub):
    with Client(stub.url, "key") as made:
        made._http.sleep = lambda _: None
        yield made


def query(asked):
    return {name: value for name, [value] in parse_qs(urlsplit(asked.path).query).items()}


def test_a_sweep_is_waited_for_until_it_has_ended_or_time_is_up(stub, client):
    stub.will(reply(body=VIEW), reply(body=VIEW | {"status": "finished", "ended_at": "2026-01-31T12:00:00Z"}))
    assert client.sweeps.wait("s").status == "finished"
    stub.will(reply(body=VIEW))
    ticks = itertools.count()
    with pytest.raises(TimedOut, match="still running after 5 seconds"):
        client.sweeps.wait("s", timeout_s=5, clock=lambda: next(ticks))


def test_trials_come_page_by_page(stub, client):
    pages = ([TRIAL | {"number": 4}, TRIAL | {"number": 2}], [TRIAL | {"number": 7}], [])
    stub.will(*(reply(body=page) for page in pages))
    assert [t.number for t in client.sweeps.all_trials("s", order="result")] == [4, 2, 7]
    asked = [query(a) for a in stub.asked]
    assert [a.get("after") for a in asked] == [None, "2", "7"]
    assert {a["order"] for a in asked} == {"result"}


def test_what_is_to_go_or_to_run_again_is_said(stub, client):
    stub.will(reply(body=VIEW))
    client.sweeps.rerun("s", failed=True)
    client.sweeps.stop("s")
    stub.will(reply(204, b""))
    client.sweeps.delete("s", jobs=True)
    told = [(a.method, urlsplit(a.path).path.rpartition("/sweeps")[2], query(a)) for a in stub.asked]
    assert told == [
        ("POST", "/s/rerun", {"failed": "true"}),
        ("POST", "/s/stop", {}),
        ("DELETE", "/s", {"jobs": "true"}),
    ]
