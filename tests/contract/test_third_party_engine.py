"""An engine of another package: added by its kind, kept like every other, and true to the contract of engines."""

import sys

import psutil
import pytest

from shoal.core.engines import EngineAdd
from shoal.engines import kinds
from shoal.server.engines import service as engines
from shoal.testing.engine_package import write_engine_package
from shoal.testing.engines import EngineContract, make_gang, stand_in, stand_ins_of
from shoal.testing.server import make_context


@pytest.fixture
def installed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write_engine_package(tmp_path / "packages"))
    kinds.kinds.cache_clear()
    yield
    kinds.kinds.cache_clear()
    sys.modules.pop("acme_shoal", None)


@pytest.fixture
def ctx(tmp_path, installed):
    ctx = make_context(tmp_path / "home")
    yield ctx
    ctx.db.close()


@pytest.fixture
def added(ctx, tmp_path):
    options = {"rack": str(tmp_path / "rack"), "slots": "4", "python": stand_in(tmp_path)}
    return engines.add(ctx, EngineAdd(name="hall", kind="acme", options=options))


@pytest.fixture
def reopen(ctx, added, tmp_path):
    def again():
        fresh = make_context(ctx.layout.root)
        engines.open_all(fresh)
        fresh.db.close()
        return fresh.engine.get("hall")

    return again


@pytest.fixture
def engine(ctx, added, tmp_path):
    yield ctx.engine.get("hall")
    for process in stand_ins_of(tmp_path):
        process.kill()
    psutil.wait_procs(stand_ins_of(tmp_path), timeout=10)


@pytest.fixture
def gang(tmp_path):
    return make_gang(tmp_path / "rack/nodes", machines={"hall:rack": tmp_path / "rack/nodes"})


@pytest.fixture
def count_agents(tmp_path):
    return lambda: len(stand_ins_of(tmp_path))


class TestThirdPartyEngine(EngineContract):
    pass


def test_it_is_shown_with_its_own_options(ctx, added, tmp_path):
    assert (added.name, added.kind, added.machines, added.slots, added.problems) == ("hall", "acme", 1, 4, [])
    assert added.options["rack"] == str(tmp_path / "rack") and added.slurm is None
    assert [m.name for m in ctx.engine.capacity()] == ["local", "hall:rack"]


def test_a_server_without_its_package_starts_and_says_what_is_missing(ctx, added, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[1:])
    kinds.kinds.cache_clear()
    again = make_context(ctx.layout.root)
    engines.open_all(again)
    [view] = engines.list_engines(again)
    again.db.close()
    assert again.engine.names == ["local"]
    assert "No engine of kind 'acme' is installed on the server" in view.problems[0]
