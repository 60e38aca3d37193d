"""Who has filled the disk: named to those who may know, measured within bounds."""

from sqlalchemy import select

from shoal.core.errors import StorageFull
from shoal.server.models.jobs import Attempt, Event
from shoal.server.reserve import Reserve
from shoal.server.services import disk_use
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
    watch = disk_use.DiskWatch(ctx)
    for is_full in (True, True, False, True):
        monkeypatch.setattr(Reserve, "is_full", is_full)
        watch.look()
    with ctx.db.read() as session:
        kinds = list(session.scalars(select(Event.kind).where(Event.job_id == job_id, Event.kind == "disk_full")))
    assert len(kinds) == 2


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
