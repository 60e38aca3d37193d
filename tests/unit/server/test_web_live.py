"""The stream behind the list pages: every change once, what ended while one was away, nothing of other people's."""

import json

import anyio
import pytest
from web_browser import Browser
from web_run import Run
from web_swarms import add_swarm
from web_sweeps import add_sweep

from shoal.core.errors import NotSignedIn
from shoal.server.jobs import service as jobs
from shoal.server.web import live_updates


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch):
    monkeypatch.setattr(live_updates, "GAP_S", 0.0)


class Reader:
    """Reads a stream event by event; `act` is done in a thread, as the server's own changes are."""

    def __init__(self, ctx, person, after=None, still=lambda: None):
        self.stream = live_updates.stream(ctx, person.access().principal, after, still)

    async def next(self):
        with anyio.fail_after(10):
            fields = dict(line.split(": ", 1) for line in (await anext(self.stream)).strip().split("\n"))
        return fields["event"], int(fields["id"]), json.loads(fields["data"])

    async def after(self, act):
        await anyio.to_thread.run_sync(act)
        return await self.next()


def in_loop(work):
    """Runs a coroutine function to its end."""
    return anyio.run(work)


def test_a_change_is_told_once_with_all_that_a_list_shows(ctx, anna):
    run = Run(ctx, anna)

    async def work():
        reader = Reader(ctx, anna)
        assert (await reader.next())[0] == "hello"
        kind, first, told = await reader.after(lambda: run.become("starting", "running"))
        assert (kind, told["job"]["name"], told["job"]["status"], told["workspace"]) == (
            "job",
            "a-job",
            "running",
            "default",
        )
        # A line of its log changes nothing that a list shows: the next event is the one after.
        run.log("hello")
        kind, second, told = await reader.after(lambda: run.become("succeeded"))
        assert (kind, told["job"]["status"]) == ("job", "succeeded") and second >= first
        await reader.stream.aclose()

    in_loop(work)


def test_whoever_comes_back_is_told_what_ended_meanwhile_and_not_what_ended_before(ctx, anna):
    early, late = Run(ctx, anna, "early"), Run(ctx, anna, "late")
    early.become("starting", "running", "failed")

    async def work():
        reader = Reader(ctx, anna)
        cursor = (await reader.next())[1]
        await reader.stream.aclose()
        late.become("starting", "running", "succeeded")
        again = Reader(ctx, anna, after=cursor)
        assert (await again.next())[0] == "hello"
        kind, _, told = await again.next()
        assert (kind, told["job"]["name"], told["job"]["status"]) == ("job", "late", "succeeded")
        await again.stream.aclose()

    in_loop(work)


def test_a_job_deleted_elsewhere_is_gone(ctx, anna):
    run = Run(ctx, anna)

    async def work():
        reader = Reader(ctx, anna)
        await reader.next()
        assert (await reader.after(lambda: run.become("starting", "running", "failed")))[0] == "job"
        kind, _, told = await reader.after(lambda: jobs.delete(ctx, anna.access(), run.id))
        assert (kind, told) == ("gone", {"id": run.id})
        await reader.stream.aclose()

    in_loop(work)


def test_other_peoples_jobs_are_not_told_of(ctx, anna, berta, monkeypatch):
    monkeypatch.setattr(live_updates, "PING_S", 0.2)
    theirs = Run(ctx, berta, "theirs")

    async def work():
        reader = Reader(ctx, anna, after=0)
        assert (await reader.next())[0] == "hello"
        await anyio.to_thread.run_sync(lambda: theirs.become("starting", "running", "succeeded"))
        assert (await reader.next())[0] == "ping"
        await reader.stream.aclose()

    in_loop(work)


def test_why_a_job_waits_is_a_change(ctx, anna):
    run = Run(ctx, anna)

    async def work():
        reader = Reader(ctx, anna)
        await reader.next()
        kind, _, told = await reader.after(lambda: setattr(ctx.live, "waiting", {run.id: "2 slots are busy"}))
        assert (kind, told["waiting"]) == ("job", "2 slots are busy")
        await reader.stream.aclose()

    in_loop(work)


def test_a_sweeps_change_is_told_to_those_who_may_see_it(ctx, anna, berta):
    mine, theirs = add_sweep(ctx, anna, "mine", state="running"), add_sweep(ctx, berta, "theirs")

    async def work():
        reader = Reader(ctx, anna)
        await reader.next()
        ctx.live.sweep_changed(theirs)
        kind, _, told = await reader.after(lambda: ctx.live.sweep_changed(mine))
        assert (kind, told) == ("sweep", {"id": mine, "name": "mine", "status": "running"})
        await reader.stream.aclose()

    in_loop(work)


def test_a_swarms_change_is_told_to_those_who_may_see_it(ctx, anna, berta):
    mine, theirs = add_swarm(ctx, anna, "mine"), add_swarm(ctx, berta, "theirs")

    async def work():
        reader = Reader(ctx, anna)
        await reader.next()
        ctx.live.job_changed(theirs)
        kind, _, told = await reader.after(lambda: ctx.live.job_changed(mine))
        assert (kind, told) == ("swarm", {"id": mine, "name": "mine", "status": "running"})
        await reader.stream.aclose()

    in_loop(work)


def test_the_stream_ends_with_the_session_and_with_the_server(ctx, anna, monkeypatch):
    monkeypatch.setattr(live_updates, "PING_S", 0.05)

    def no_more():
        raise NotSignedIn()

    async def work():
        signed_out = Reader(ctx, anna, still=no_more)
        await signed_out.next()
        with pytest.raises(StopAsyncIteration):
            await signed_out.next()
        closing = Reader(ctx, anna)
        await closing.next()
        ctx.live.close()
        with pytest.raises(StopAsyncIteration):
            while (await closing.next())[0] == "ping":
                pass
        assert not ctx.live._watchers

    in_loop(work)


def test_as_json_it_is_what_is_active_now(app, ctx, anna, berta):
    Run(ctx, anna, "mine").become("starting", "running")
    Run(ctx, berta, "theirs")
    found = Browser(app).enter(ctx, anna).get("/live.json").json()
    assert [p["job"]["name"] for p in found["jobs"]] == ["mine"] and found["cursor"] > 10**15
    assert Browser(app).get("/live", headers={"Accept": "application/json"}).status_code == 401


@pytest.mark.parametrize("after", ["-1", "x", str(10**30)])
def test_a_cursor_that_is_none_is_refused(app, ctx, anna, after):
    assert Browser(app).enter(ctx, anna).get(f"/live.json?after={after}").status_code == 422


@pytest.mark.parametrize(
    "path",
    ["/", "/machines", "/queue", "/w/default/jobs", "/w/default/sweeps", "/w/default/swarms", "/w/default/datasets"],
)
def test_list_pages_listen_to_the_stream_and_stand_without_scripts(app, ctx, anna, path):
    page = Browser(app).enter(ctx, anna).get(path).text
    assert "/static/js/live.js" in page and "shoal:tick" in page


def test_a_thousand_changes_in_one_pause_do_not_make_the_rest_seem_deleted(ctx, anna):
    runs = [Run(ctx, anna, f"job-{n}") for n in range(3)]

    async def work():
        reader = Reader(ctx, anna)
        await reader.next()
        others = {f"job_{n:026}" for n in range(3000)}

        def change():
            for run in runs:
                run.become("starting", "running")
            for other in others:
                ctx.live.job_changed(other)

        kinds = [(await reader.after(change))[0], (await reader.next())[0], (await reader.next())[0]]
        assert kinds == ["job", "job", "job"]
        await reader.stream.aclose()

    in_loop(work)
