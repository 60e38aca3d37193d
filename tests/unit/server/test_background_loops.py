"""The server's background loops: a fault in any of them is logged and survived, and `/health` names a loop that is not well."""

import ast
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from web_browser import Browser

import shoal.server
from shoal.core.background_loops import Loop, Problem, run_all
from shoal.core.steady_clock import SteadyClock
from shoal.server.artifacts.imports.queue import import_queue
from shoal.server.artifacts.store_probe import StoreProbe
from shoal.server.backup import schedule
from shoal.server.backup.schedule import BackupLoop
from shoal.server.jobs.disk_watch import DiskWatch
from shoal.server.leases.clock import LeaseClock
from shoal.server.mail import Letter, Mailer
from shoal.server.notices.loop import NoticeLoop
from shoal.server.pool.supervisor import PoolSupervisor
from shoal.server.preflight import service as preflights
from shoal.server.scheduler.loop import Scheduler
from shoal.server.swarms.watch import SwarmWatch
from shoal.server.sweeper.loop import Sweeper
from shoal.server.timekeeping import Timekeeper
from shoal.testing.server import AppClient, add_person, make_app


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Broken(BaseException):
    """Not even an Exception, as some libraries raise."""


class Failing:
    """Fails when it is called for the first time, and counts how often it is called."""

    def __init__(self, error):
        self.error, self.calls, self.again = error, 0, threading.Event()

    def __call__(self, *_):
        self.calls += 1
        if self.calls == 1:
            raise self.error
        self.again.set()
        return 0.0


@pytest.fixture
def closing(ctx):
    """Ends the loops a test has started."""
    stops = []
    yield stops.append
    ctx.live.close()
    for stop in stops:
        stop()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Broken("broken")], ids=["OSError", "Broken"])
@pytest.mark.parametrize(
    ("loop", "step"),
    [
        (lambda ctx: Scheduler(ctx, "http://nowhere"), "pass_once"),
        (lambda ctx: Scheduler(ctx, "http://nowhere"), "_housekeep"),
        (Sweeper, "pass_once"),
        (LeaseClock, "handle_due"),
        (lambda ctx: SwarmWatch(ctx, "http://nowhere"), "poll"),
        (PoolSupervisor, "poll"),
    ],
    ids=["scheduler", "housekeeping", "sweeper", "leases", "swarms", "pool"],
)
def test_a_loop_goes_on_after_a_fault(ctx, closing, monkeypatch, loop, step, error):
    monkeypatch.setattr(ctx.pool, "is_head", lambda _: True)
    made, failing = loop(ctx), Failing(error)
    setattr(made, step, failing)
    made.start()
    closing(made.stop)
    assert failing.again.wait(60)


def test_the_writer_of_the_database_goes_on_after_a_fault(ctx):
    def fails(_):
        raise Broken("broken")

    with pytest.raises(Broken):
        ctx.db.write(fails)
    assert ctx.db.write(lambda _: "written") == "written"


def test_a_full_disk_in_housekeeping_does_not_end_the_scheduler(ctx, closing, monkeypatch):
    seen_off = Failing(OSError(28, "No space left on device"))
    monkeypatch.setattr(preflights, "see_off", seen_off)
    scheduler = Scheduler(ctx, "http://nowhere")
    scheduler.start()
    closing(scheduler.stop)
    deadline = time.monotonic() + 60
    while not seen_off.again.is_set() and time.monotonic() < deadline:
        ctx.live.scheduler.set()
        seen_off.again.wait(0.1)
    assert seen_off.again.is_set()


def test_health_names_a_loop_that_fails_and_forgets_it_once_it_works(private_ctx):
    ctx = private_ctx
    failing, well = threading.Event(), threading.Event()

    def step():
        if not well.is_set():
            failing.set()
            raise OSError(5, "Input/output error")

    ctx.loops.start(loop := Loop("upkeep", step, every_s=0.01))
    try:
        client = AppClient(make_app(ctx))
        until(lambda: client.get("/health").json()["health"] == "degraded")
        body = client.get("/health").json()
        assert body["status"] == "ok"  # who asks only whether a server lives, as 0.1 does, is told so
        assert [(p["name"], p["state"]) for p in body["problems"]] == [("upkeep", "failing")]
        assert "Input/output error" in body["problems"][0]["error"]
        well.set()
        until(lambda: client.get("/health").json()["health"] == "ok")
    finally:
        well.set()
        loop.stop()


class MailLoop:
    """The mailer's loop, which begins with the first letter."""

    def __init__(self, ctx):
        self.mailer = Mailer("smtp://localhost:1", "", loops=ctx.loops)

    def start(self):
        self.mailer.send(Letter("a@b.c", "subject", "text", lambda _: None))

    def stop(self):
        self.mailer.close()


LOOPS = {
    "scheduler": (lambda ctx: Scheduler(ctx, "http://nowhere"), Scheduler, "pass_once"),
    "sweeper": (Sweeper, Sweeper, "pass_once"),
    "leases": (LeaseClock, LeaseClock, "handle_due"),
    "swarms": (lambda ctx: SwarmWatch(ctx, "http://nowhere"), SwarmWatch, "poll"),
    "pool": (PoolSupervisor, PoolSupervisor, "poll"),
    "clock": (lambda ctx: Timekeeper(ctx, SteadyClock()), Timekeeper, "pass_once"),
    "backup": (BackupLoop, BackupLoop, "pass_once"),
    "notices": (lambda ctx: NoticeLoop(ctx, "http://nowhere"), NoticeLoop, "evaluate"),
    "deliveries": (lambda ctx: NoticeLoop(ctx, "http://nowhere"), NoticeLoop, "send"),
    "mail": (MailLoop, Mailer, "_send_due"),
    "disk use": (DiskWatch, DiskWatch, "check"),
    "store": (StoreProbe, StoreProbe, "probe"),
}
"""Name in `/health` → how it is made, and the method in which a fault is planted."""


@pytest.mark.parametrize("name", LOOPS)
def test_health_names_each_loop_that_fails_and_forgets_it_once_it_works(private_ctx, monkeypatch, name):
    ctx, (make, owner, method) = private_ctx, LOOPS[name]
    is_well, passed = threading.Event(), threading.Event()

    def step(*_):
        if not is_well.is_set():
            raise Broken("planted")
        passed.set()

    monkeypatch.setattr(owner, method, step)
    monkeypatch.setattr(ctx.pool, "is_head", lambda _: True)
    monkeypatch.setattr(schedule, "_RETRY_S", 0.0)
    ctx.settings = replace(ctx.settings, backup_to=str(ctx.layout.root / "backups"))
    loop, client = make(ctx), AppClient(make_app(ctx))
    loop.start()
    try:
        until(lambda: client.get("/health").json()["problems"])
        [problem] = client.get("/health").json()["problems"]
        assert (problem["name"], problem["state"]) == (name, "failing")
        assert "planted" in problem["error"]
        is_well.set()
        assert passed.wait(60)
        until(lambda: client.get("/health").json()["health"] == "ok")
    finally:
        is_well.set()
        ctx.live.close()
        loop.stop()


def test_a_sick_disk_is_no_reason_to_restart_and_a_server_without_a_store_is_not_ready(private_ctx, monkeypatch):
    """Liveness and readiness are different questions: only what a restart brings back makes a server count as not alive."""
    ctx = private_ctx
    client, sick = AppClient(make_app(ctx)), threading.Event()
    sick.set()
    stage = ctx.store.blobs.stage

    def stage_or_fail(*args):
        if sick.is_set():
            raise OSError(5, "Input/output error")
        return stage(*args)

    monkeypatch.setattr(ctx.store.blobs, "stage", stage_or_fail)
    probe = StoreProbe(ctx)
    probe.start()
    try:
        until(lambda: client.get("/health/ready").status_code == 503)
        body = client.get("/health/ready").json()
        assert body == {"status": "failing", "problems": [{"name": "store", "state": "failing"}]}
        assert client.get("/health/live").status_code == 200
        parts = client.get("/health").json()["parts"]
        assert parts == {"database": "ok", "disk": "ok", "store": "failing", "clock": "ok", "loops": "ok"}
        sick.clear()
        until(lambda: client.get("/health/ready").status_code == 200)
        assert [path for path in ctx.layout.store_dir.rglob("*") if path.is_file()] == []
        ctx.live.closing = True
        assert client.get("/health/ready").status_code == 503 and client.get("/health/live").status_code == 200
    finally:
        ctx.live.closing = True
        probe.stop()


def test_a_full_disk_leaves_a_server_ready_and_a_dead_loop_or_late_writer_does_not(ctx, app):
    client, problems = AppClient(app), []
    ctx.loops.watch("planted", lambda: problems[0] if problems else None)
    answers = {}
    for name, state in (
        ("disk", "full"),
        ("mail", "late"),
        ("mail", "dead"),
        ("database", "late"),
        ("database", "dead"),
    ):
        problems[:] = [Problem(name, state, 1.0)]
        answers[name, state] = tuple(client.get(f"/health/{what}").status_code for what in ("live", "ready"))
    assert answers == {
        ("disk", "full"): (200, 200),
        ("mail", "late"): (200, 200),
        ("mail", "dead"): (503, 503),
        ("database", "late"): (200, 503),
        ("database", "dead"): (503, 503),
    }


def test_imports_that_wait_without_a_thread_are_reported(ctx, app):
    queue = import_queue(ctx)
    assert AppClient(app).get("/health").json()["problems"] == []
    queue._waiting.append(("w", lambda: None))
    assert [(p["name"], p["state"]) for p in AppClient(app).get("/health").json()["problems"]] == [("imports", "dead")]


def test_no_loop_of_the_server_is_missing_above():
    """A new loop needs a row in `LOOPS`."""
    root, found = Path(shoal.server.__file__).parent, set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Loop":
                found.add(ast.literal_eval(node.args[0]))
    assert found == set(LOOPS)


def test_health_names_a_loop_that_hangs_and_one_that_is_dead(ctx, app):
    hold, begun = threading.Event(), threading.Event()

    def step():
        begun.set()
        hold.wait(60)

    ctx.loops.start(hung := Loop("hung", step, bound_s=0.0))
    ctx.loops.start(dead := Loop("gone", lambda: None))
    try:
        dead.stop()
        dead._stopping = False  # as if its thread had ended by itself
        assert begun.wait(60)
        found = AppClient(app).get("/health").json()["problems"]
        assert {(p["name"], p["state"]) for p in found} == {("hung", "late"), ("gone", "dead")}
        assert all(p["error"] is None for p in found)  # anybody may ask a shared server
    finally:
        hold.set()
        hung.stop()


def test_a_failing_loop_logs_each_distinct_error_once(caplog):
    errors = iter([OSError("a"), OSError("a"), OSError("a"), OSError("b")])
    done = threading.Event()

    def step():
        if (error := next(errors, None)) is not None:
            raise error
        done.set()

    loop = Loop("noisy", step, wait=lambda _: None)
    loop.start()
    assert done.wait(60)
    loop.stop()
    told = [
        r.getMessage() for r in caplog.records if r.name == "shoal.core.background_loops" and r.levelname == "ERROR"
    ]
    assert [text.split(" (")[0] for text in told] == ["noisy: OSError: a", "noisy: OSError: b"]


def test_one_stage_that_fails_keeps_none_of_the_others_from_being_done():
    done = []

    def fails():
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        run_all([lambda: done.append(1), fails, lambda: done.append(2)])
    assert done == [1, 2]


STARTS_THREADS = {
    "db.py": "the writer; `problem` tells of it",
    "edge/listener.py": "a listener; `problem` tells of it, and so does that of `AgentListener`",
    "leases/gateway.py": "an event loop; `/health` watches it",
    "pool/cluster.py": "one task each",
    "artifacts/imports/queue.py": "one task after the other, none of which ends it",
    "pool/probe.py": "one task each",
}


def test_every_thread_of_the_server_is_a_supervised_loop_or_known_to_be_none():
    """To add a loop, use `shoal.core.background_loops.Loop`; a thread that is no loop is named above, with what watches it."""
    root = Path(shoal.server.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("threading.Thread", "Thread"):
                found.add(str(path.relative_to(root)))
            if isinstance(node, ast.ClassDef) and any(ast.unparse(b).endswith("Thread") for b in node.bases):
                found.add(str(path.relative_to(root)))
    assert found == set(STARTS_THREADS)


def test_the_admin_sees_what_is_not_well_and_why(ctx, app):
    ctx.loops.watch("scheduler", lambda: Problem("scheduler", "failing", 3.0, "OSError: disk <I/O> error"))
    boss = add_person(ctx, "boss@example.org", is_admin=True)
    text = Browser(app).enter(ctx, boss).get("/admin").text
    assert "scheduler is failing" in text and "disk &lt;I/O&gt; error" in text
