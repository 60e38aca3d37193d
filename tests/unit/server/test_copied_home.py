"""The first start on a copied data directory: what ran belongs to the original."""

import pytest
from sqlalchemy import select

from shoal.core.schema import utcnow
from shoal.core.states import JobState
from shoal.server import copied_data
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Attempt
from shoal.server.models.pool import PoolRow
from shoal.server.scheduler.loop import Scheduler
from shoal.testing.server import IdleEngine, add_person, add_source, make_context


class Untouched(IdleEngine):
    """Fails when any agent is asked after, let alone ended."""

    def status(self, attempt_id, node):
        raise AssertionError("the agents are the original's")

    cancel = salvage = status


@pytest.fixture
def ctx(tmp_path):
    made = make_context(tmp_path, engine=Untouched(4))
    yield made
    made.db.close()


def test_open_attempts_are_given_up_unasked_and_pool_machines_left(ctx):
    person = add_person(ctx, "a@b.c")
    spec = {"name": "j", "entry": ["train.py"], "source_id": add_source(ctx, person)}
    from shoal.core.jobs import JobSpec

    job = jobs.submit(ctx, person.access(), JobSpec(**spec)).id
    Scheduler(ctx, "http://nowhere").pass_once()
    machine = dict.fromkeys(("gpus", "address", "home", "python", "url"))
    row = PoolRow(id="mach_1", name="m", via="ssh", asked={}, state="up", kind="cpu", slots=1, facts={}, steps=[],
                  problems=[], created_at=utcnow(), **machine)  # fmt: skip
    ctx.db.write(lambda session: session.add(row))
    copied_data.disown(ctx)
    view = jobs.get(ctx, person.access(), job)
    assert view.status is JobState.QUEUED, "it starts again here"
    assert "belongs to the original server" in view.attempt_list[0].reason
    with ctx.db.read() as session:
        assert [a.state for a in session.scalars(select(Attempt))] == ["ended"]
        assert session.scalars(select(PoolRow)).one().state == "failed"
