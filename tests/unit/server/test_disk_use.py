"""Jobs that use the most space on a full disk: named to those who may see them, measured within limits."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from shoal.core.errors import StorageFull
from shoal.server.disk_reserve import Reserve
from shoal.server.jobs import disk_use, disk_watch
from shoal.server.jobs.disk_watch import DiskWatch, Measurement, filler
from shoal.server.models.jobs import Attempt, Event, Job
from shoal.testing.server import add_job, add_node, add_person


def fill(ctx, name, size):
    """A job whose working directory holds a file of this size; returns the job's id."""
    job_id = add_job(ctx, add_person(ctx, f"{name}@example.org"), name)
    add_node(ctx, job_id)
    with ctx.db.read() as session:
        attempt_id = session.scalars(select(Attempt.id).where(Attempt.job_id == job_id)).one()
    folder = ctx.layout.nodes_dir / f"{attempt_id}.0" / "source"
    folder.mkdir(parents=True)
    (folder / "filler").write_bytes(b"x" * size)
    return job_id


def test_a_private_server_names_the_largest_job_and_how_to_end_it(private_ctx):
    fill(private_ctx, "small", 10_000)
    fill(private_ctx, "hog", 3_000_000)
    told = disk_use.explain(private_ctx, StorageFull())
    assert told.message.index("job 'hog'") < told.message.index("job 'small'")
    assert told.hint.startswith("shoal training stop hog")


def test_a_shared_server_tells_nobody_the_names_of_others_jobs(ctx):
    fill(ctx, "hog", 3_000_000)
    told = disk_use.explain(ctx, StorageFull())
    assert "hog" not in told.message + str(told.hint) and "free" in told.message


def test_the_job_that_takes_most_is_told_once_and_again_after_there_was_room(ctx, monkeypatch):
    job_id = fill(ctx, "hog", 3_000_000)
    ctx.db.reserve = Reserve(ctx.layout.reserve, 0)
    watch = DiskWatch(ctx)
    for is_full in (True, True, False, True):
        monkeypatch.setattr(Reserve, "is_full", is_full)
        watch.check()
    with ctx.db.read() as session:
        kinds = list(session.scalars(select(Event.kind).where(Event.job_id == job_id, Event.kind == "disk_full")))
    assert len(kinds) == 2


G, M = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        (Measurement(10 * G, {"a": G}), Measurement(0, {"a": 8 * G, "b": 2 * G}), ("a", 7 * G)),
        (Measurement(10 * G, {}), Measurement(0, {"new": 10 * G}), ("new", 10 * G)),
        (Measurement(10 * G, {"large": 90 * G}), Measurement(0, {"large": 92 * G, "b": G}), None),  # others filled it
        (Measurement(10 * M, {"a": 0}), Measurement(0, {"a": 10 * M}), None),  # too little to be the cause
        (Measurement(0, {"a": G}), Measurement(G, {"a": 2 * G}), ("a", G)),  # it takes what others free
        (Measurement(10 * G, {"a": G}), Measurement(0, {}), None),
    ],
)
def test_the_job_that_filled_the_disk_is_the_one_that_grew(before, now, found):
    assert filler(before, now) == found


def test_the_job_that_filled_the_disk_is_ended_after_a_minute_and_no_other(ctx, monkeypatch):
    monkeypatch.setattr(disk_watch, "_LEAST_GROWTH", 1_000_000)
    large, hog = fill(ctx, "large", 5_000_000), fill(ctx, "hog", 10_000)
    ctx.db.reserve, now = Reserve(ctx.layout.reserve, 0), [0.0]
    watch, free = DiskWatch(ctx, clock=lambda: now[0]), [4_000_000]
    monkeypatch.setattr(disk_watch, "free_bytes", lambda _: free[0])
    monkeypatch.setattr(Reserve, "is_full", False)
    watch.check()
    [grown] = [path for path in ctx.layout.nodes_dir.rglob("filler") if path.stat().st_size == 10_000]
    grown.write_bytes(b"x" * 4_000_000)
    monkeypatch.setattr(Reserve, "is_full", True)
    free[0] = 0

    def stops():
        with ctx.db.read() as session:
            return {job.id: (job.stop_reason, job.stop_state) for job in session.scalars(select(Job))}

    for now[0] in (5.0, 64.0):
        watch.check()
        assert stops() == {large: (None, None), hog: (None, None)}
    now[0] = 66.0
    watch.check()
    reason, state = stops()[hog]
    assert state == "failed" and "it filled the server's disk: its files grew by 4.0 MB" in reason
    assert "shoal training delete hog" in reason and stops()[large] == (None, None)
    now[0] = 200.0
    watch.check()
    assert stops()[large] == (None, None)


def test_no_job_is_ended_for_a_full_disk_where_none_should_be(ctx, monkeypatch):
    ctx.settings = replace(ctx.settings, full_disk_end_s=0)
    ctx.db.reserve, now = Reserve(ctx.layout.reserve, 0), [0.0]
    monkeypatch.setattr(Reserve, "is_full", True)
    watch = DiskWatch(ctx, clock=lambda: now[0])
    monkeypatch.setattr(watch, "_end_filler", lambda: pytest.fail("it was ended"))
    for now[0] in (1.0, 1000.0):
        watch.check()


def test_no_reserve_is_kept_where_none_is_wanted(tmp_path):
    reserve = Reserve(tmp_path / "reserve", 0)
    reserve.open()
    assert reserve.is_held and not reserve.release(None) and not (tmp_path / "reserve").exists()


def test_the_reserve_takes_its_space_at_once_and_gives_it_back(tmp_path):
    reserve = Reserve(tmp_path / "reserve", 1 << 20)
    reserve.open()
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 1 << 20
    assert reserve.release(None) and not reserve.is_held and not (tmp_path / "reserve").exists()
    assert reserve.hold() and (tmp_path / "reserve").exists()
