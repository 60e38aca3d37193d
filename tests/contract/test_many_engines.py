"""Several engines together keep the treaty of one; plus what is their own: parts of a gang, engines that come and go."""

import psutil
import pytest

from shoal.core.errors import NameTaken, NotFound, Refused
from shoal.engines.base import AgentState
from shoal.engines.local import LocalEngine
from shoal.engines.many import Engines
from shoal.testing.engines import EngineContract, eventually, make_gang, stand_in, stand_ins_of


@pytest.fixture
def reopen(tmp_path):
    python = stand_in(tmp_path)

    def local(name):
        return LocalEngine(tmp_path / name / "nodes", slots=2, machine=name, python=python)

    return lambda: Engines(one=local("left"), other=local("right"))


@pytest.fixture
def engine(reopen, tmp_path):
    yield reopen()
    for process in stand_ins_of(tmp_path):
        process.kill()
    psutil.wait_procs(stand_ins_of(tmp_path), timeout=10)


@pytest.fixture
def gang(tmp_path):
    return make_gang(tmp_path, machines={name: tmp_path / name / "nodes" for name in ("left", "right")})


@pytest.fixture
def count_agents(tmp_path):
    return lambda: len(stand_ins_of(tmp_path))


class TestManyEngines(EngineContract):
    pass


def test_a_gang_is_started_by_the_engines_of_its_machines(engine, gang):
    assert [(m.name, m.slots) for m in engine.capacity()] == [("left", 2), ("right", 2)]
    assert [command.machine for command in engine.plan(gang)] == ["left", "right"]
    engine.start(gang)
    left, right = engine.get("one"), engine.get("other")
    states = [[e.status(gang.attempt_id, n) for n in (0, 1)] for e in (left, right)]
    alive, unknown = AgentState.ALIVE, AgentState.UNKNOWN
    assert states == [[alive, unknown], [unknown, alive]]


def test_if_one_engine_cannot_start_its_part_nothing_of_the_others_is_left(engine, gang, tmp_path):
    (tmp_path / "right").mkdir()
    (tmp_path / "right" / "nodes").write_text("a file where the directory should be")
    with pytest.raises(OSError, match=r"exists|directory"):
        engine.start(gang)
    eventually(lambda: not stand_ins_of(tmp_path))


def test_a_gang_for_a_machine_that_has_left_starts_nowhere(engine, gang, tmp_path):
    engine.remove("other")
    with pytest.raises(Refused, match="'right'"):
        engine.start(gang)
    assert not stand_ins_of(tmp_path)


def test_engines_come_and_go_and_take_their_machines_with_them(engine, gang, tmp_path):
    engine.start(gang)
    right = engine.remove("other")
    assert [m.name for m in engine.capacity()] == ["left"]
    assert engine.status(gang.attempt_id, 1) is AgentState.UNKNOWN
    engine.add("other", right)
    assert engine.status(gang.attempt_id, 1) is AgentState.ALIVE
    with pytest.raises(NameTaken):
        engine.add("other", right)
    with pytest.raises(NotFound):
        engine.remove("slurm")


def test_a_name_two_engines_offer_is_the_first_ones(engine, tmp_path, caplog):
    engine.add("again", LocalEngine(tmp_path / "again", slots=7, machine="left"))
    assert [(m.name, m.slots) for m in engine.capacity()] == [("left", 2), ("right", 2)]
    assert "second machine 'left'" in caplog.text


def test_one_engine_in_trouble_keeps_the_others_from_nothing(engine, gang, tmp_path):
    class Cut(LocalEngine):
        def cancel(self, attempt_id):
            raise OSError("no route to the host")

    engine.start(gang)
    left = engine.remove("one")
    engine.add("cut", Cut(tmp_path / "cut"))
    engine.add("one", left)
    engine.cancel(gang.attempt_id)
    eventually(lambda: not stand_ins_of(tmp_path))
