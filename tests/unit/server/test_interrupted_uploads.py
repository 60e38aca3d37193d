"""A push that was interrupted does not stay `uploading` for ever; one that is only slow, or comes back, is completed."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from shoal.core.artifacts import Manifest
from shoal.core.datasets import DatasetBegin, DatasetStatus
from shoal.core.schema import utcnow
from shoal.server.artifacts import chunks, datasets
from shoal.server.artifacts.upload_activity import QUIET_S, UploadActivity
from shoal.server.models.datasets import Dataset
from shoal.server.scheduler.loop import Scheduler
from shoal.testing.server import add_person


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(ctx):
    clock = Clock()
    ctx.uploads = UploadActivity(clock)
    clock.now += 2 * QUIET_S
    return clock


@pytest.fixture
def access(ctx):
    return add_person(ctx, "a@b.c").access()


@pytest.fixture
def push(ctx, access):
    """Begins a push this many hours ago; returns its id."""

    def begun(hours, name="data"):
        made = datasets.begin(ctx, access, DatasetBegin(name=name))
        old = update(Dataset).where(Dataset.id == made.id).values(created_at=utcnow() - timedelta(hours=hours))
        ctx.db.write(lambda session: session.execute(old) and None)
        return made.id

    return begun


@pytest.fixture
def status(ctx, access):
    """Keeps house once; returns how the newest version is."""

    def after_housekeeping(name="data"):
        datasets.expire_uploads(ctx)
        found = datasets.get(ctx, access, name)
        return found.status, found.error

    return after_housekeeping


def test_an_interrupted_push_expires_after_a_day(clock, push, status):
    push(23)
    assert status() == (DatasetStatus.UPLOADING, None)
    push(25, "other")
    state, why = status("other")
    assert state == DatasetStatus.ERROR
    assert "interrupted" in why and "shoal dataset push" in why


def test_a_push_whose_chunks_still_arrive_does_not_expire(ctx, access, clock, push, status):
    push(100)
    chunks.receive(ctx, access.workspace_id, b"")
    clock.now += QUIET_S - 1
    assert status()[0] == DatasetStatus.UPLOADING
    clock.now += 2
    assert status()[0] == DatasetStatus.ERROR


def test_after_a_start_of_the_server_a_push_has_time_to_come_back(ctx, push, status):
    ctx.uploads = UploadActivity(lambda: 5.0)
    push(100)
    assert status()[0] == DatasetStatus.UPLOADING


def test_a_push_that_comes_back_after_it_expired_is_completed(ctx, access, clock, push, status):
    ident = push(25)
    assert status()[0] == DatasetStatus.ERROR
    datasets.commit(ctx, access, ident, Manifest(files=[]))
    assert status() == (DatasetStatus.AVAILABLE, None)


def test_the_next_push_replaces_one_that_expired(ctx, access, clock, push, status):
    push(25)
    status()
    push(0)
    assert [row.version for row in datasets.list_datasets(ctx, access)] == [2]


def test_an_upload_that_failed_with_a_reason_stays_failed(ctx, access, clock, push):
    ident = push(25)
    datasets.fail(ctx, access, ident, "the folder vanished")
    with pytest.raises(Exception, match="is error and cannot be changed"):
        datasets.commit(ctx, access, ident, Manifest(files=[]))


def test_the_scheduler_keeps_house(ctx, clock, push, access):
    push(25)
    scheduler = Scheduler(ctx, "http://nowhere")
    scheduler._kept_house_at = float("-inf")
    scheduler._housekeep()
    assert datasets.get(ctx, access, "data").status == DatasetStatus.ERROR
