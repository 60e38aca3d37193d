"""Engines that an admin adds: tried out, kept, opened again, removed. Slurm's programs are played by scripts."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from shoal.core.engines import EngineAdd
from shoal.core.errors import InvalidSpec, NameTaken, NotAllowedNow, NotFound, Refused, UsageError
from shoal.core.jobs import JobSpec
from shoal.server.audit import service as audit
from shoal.server.engines import queue as engine_queue
from shoal.server.engines import service as engines
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Node
from shoal.server.queue import service as queue
from shoal.server.scheduler.loop import Scheduler
from shoal.testing.engines import eventually
from shoal.testing.server import add_person, add_source, make_context


@pytest.fixture
def anna(private_ctx):
    return add_person(private_ctx, "anna@example.org")


def test_an_engine_is_used_at_once_and_after_a_restart(programs, private_ctx):
    view = engines.add(private_ctx, EngineAdd(options={"extra_args": ["--time=60"]}))
    assert (view.name, view.machines, view.slots, view.problems) == ("slurm", 2, 4, [])
    names = ["local", "slurm:c1", "slurm:c2"]
    assert [m.name for m in private_ctx.engine.capacity()] == names
    again = make_context(private_ctx.layout.root)
    engines.open_all(again)
    assert [m.name for m in again.engine.capacity()] == names
    assert engines.list_engines(again) == [view]
    again.db.close()
    with pytest.raises(NameTaken, match="There is an engine 'slurm' already"):
        engines.add(private_ctx, EngineAdd())


def test_nothing_is_kept_of_an_engine_that_cannot_work(programs, private_ctx):
    programs.down()
    with pytest.raises(Refused, match="cannot reach the controller") as refused:
        engines.add(private_ctx, EngineAdd())
    assert refused.value.hint == "shoal engine add slurm --help"
    assert engines.list_engines(private_ctx) == []
    assert private_ctx.engine.names == ["local"]
    with pytest.raises(UsageError, match="shared file system"):
        engines.add(private_ctx, EngineAdd(options={"login": "ada@login"}))


def test_names_of_built_in_engines_are_taken(private_ctx):
    for name in ("local", "ray"):
        with pytest.raises(InvalidSpec, match=f"'{name}' is the name of a built-in engine"):
            engines.add(private_ctx, EngineAdd(name=name))


def test_invalid_options_are_refused_by_the_server_with_all_that_is_wrong(private_ctx):
    with pytest.raises(InvalidSpec, match=r"home: 'shared' is not an absolute path; colour: ") as refused:
        engines.add(private_ctx, EngineAdd(options={"home": "shared", "colour": "red"}))
    assert refused.value.hint == "shoal engine add slurm --help"


def test_requests_and_answers_of_0_1_name_the_options_after_the_kind(programs, private_ctx):
    old = {"name": "slurm", "kind": "slurm", "slurm": {"extra_args": ["--time=60"], "cpus_per_slot": 2}}
    view = engines.add(private_ctx, EngineAdd.model_validate(old)).model_dump(mode="json")
    assert view["slurm"] == view["options"] and view["slurm"]["extra_args"] == ["--time=60"]
    with pytest.raises(ValueError, match="cannot be combined"):
        EngineAdd.model_validate(old | {"options": {"partition": "gpu"}})


def test_one_in_trouble_is_opened_again_and_says_so(programs, private_ctx):
    engines.add(private_ctx, EngineAdd())
    programs.down()
    again = make_context(private_ctx.layout.root)
    engines.open_all(again)
    [view] = engines.list_engines(again)
    again.db.close()
    assert (view.machines, view.slots) == (0, 0)
    assert "cannot reach the controller" in view.problems[0]
    assert "cannot reach the controller" in engines.check(private_ctx, "slurm").problems[0]


def test_an_unknown_engine_is_not_found(programs, private_ctx):
    engines.add(private_ctx, EngineAdd())
    for act in (engines.check, engines.remove):
        with pytest.raises(NotFound, match="Did you mean 'slurm'"):
            act(private_ctx, "slrum")


@pytest.fixture
def waiting(programs, private_ctx, anna):
    """A job of two nodes whose attempt is in Slurm's queue, and the scheduler that put it there."""
    engines.add(private_ctx, EngineAdd())
    spec = JobSpec(
        name="j",
        entry=["train.py"],
        source_id=add_source(private_ctx, anna),
        exclude=["local"],
        min_nodes=2,
        max_nodes=2,
    )
    jobs.submit(private_ctx, anna.access(), spec)
    scheduler = Scheduler(private_ctx, "http://127.0.0.1:9")
    scheduler.pass_once()
    return scheduler


def test_a_job_in_slurm_s_queue_says_why_and_is_not_held_lost(programs, private_ctx, anna, waiting):
    eventually(lambda: "Resources" in queue.why(private_ctx, anna.access(), "j").text)
    told = queue.why(private_ctx, anna.access(), "j")
    assert (told.reason, told.status) == ("engine", "starting")
    assert told.text == "it waits in Slurm's queue as job 1: Resources (all suitable resources are in use)"
    private_ctx.settings = replace(private_ctx.settings, start_timeout_s=0.0)
    waiting.pass_once()
    waiting.pass_once()
    view = jobs.get(private_ctx, anna.access(), "j")
    assert (view.status, view.attempts, view.waiting) == ("starting", 1, told.text)


def test_a_job_in_slurm_s_queue_is_stopped_there(programs, private_ctx, anna, waiting):
    jobs.stop(private_ctx, anna.access(), "j")
    waiting.pass_once()
    view = jobs.get(private_ctx, anna.access(), "j")
    assert view.status == "stopped"
    assert "scancel 1" in programs.calls
    assert [n.state for n in view.attempt_list[0].nodes] == ["lost", "lost"]
    assert not [e for e in view.events if e.kind == "node_lost"]
    engines.remove(private_ctx, "slurm")
    assert [m.name for m in private_ctx.engine.capacity()] == ["local"]
    recorded = [(e.action, e.object) for e in audit.list_entries(private_ctx, action="engine")]
    assert recorded == [("engine.remove", "slurm"), ("engine.add", "slurm")]


def test_an_engine_with_jobs_on_it_is_not_removed(private_ctx, waiting):
    with pytest.raises(NotAllowedNow, match="Job 'j' runs or waits on engine 'slurm'") as refused:
        engines.remove(private_ctx, "slurm")
    assert refused.value.hint == "shoal training stop j --wait"
    assert private_ctx.engine.names == ["local", "slurm"]


def test_a_node_is_counted_where_slurm_has_put_it(private_ctx, waiting):
    def nodes(session):
        return list(session.scalars(select(Node).order_by(Node.index)))

    def work(session):
        first, second = nodes(session)
        assert (first.machine, second.machine, second.slots) == ("slurm:c1", "slurm:c1", [1])
        for machine in (None, "local", "other:c2", "slurm:c1"):
            engine_queue.move_to_actual(session, second, machine)
            assert second.machine == "slurm:c1"
        engine_queue.move_to_actual(session, second, "slurm:c2")
        assert (second.machine, second.slots) == ("slurm:c2", [0])
        engine_queue.move_to_actual(session, second, "slurm:c1")
        assert (second.machine, second.slots) == ("slurm:c1", [1])

    private_ctx.db.write(work)
