"""Contract tests of engines. Inherit `EngineContract` and add the fixtures `engine`, `gang`, `count_agents` and `reopen`.

The agents started here are real processes. A stand-in for the agent program is enough, because the contract is about
starting, finding and ending processes, not about training.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from shoal.core.agents import Launch
from shoal.engines.base import AgentState, Engine, Gang
from shoal.testing.patience import patient

_STAND_IN = """
import json, os, pathlib, signal, sys, psutil
from shoal.core.boot import boot_id
if "--salvage" not in sys.argv:
    me = psutil.Process()
    pathlib.Path("agent.json").write_text(json.dumps({"pid": me.pid, "create_time": me.create_time(), "boot_id": boot_id()}))
    signal.pause()
"""


def stand_in(folder: Path) -> str:
    """Write an interpreter whose `-m shoal.agent` writes agent.json, as an agent does, and then waits; return its path.

    A recovery (--salvage) ends at once.
    """
    script, python = folder / "agent.py", folder / "python"
    script.write_text(_STAND_IN)
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    return str(python)


def stand_ins_of(folder: Path) -> list[psutil.Process]:
    """Return the stand-ins that run now, on this machine or on hosts that are namespaces of it."""
    found, script, shell = [], str(folder / "agent.py"), ["/bin/sh", str(folder / "python")]
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        # A stand-in that has just been started is still the shell of its interpreter.
        if process.info["status"] != psutil.STATUS_ZOMBIE and (script in line or line[:2] == shell):
            found.append(process)
    return found


def make_gang(
    root: Path, attempt_id: str = "att_test", num_nodes: int = 2, *, machines: Mapping[str, Path] | None = None
) -> Gang:
    """Make a gang. `machines`: name → directory of nodes, used in turn; default: all on `local`, below `root`."""
    places = list((machines or {"local": root}).items())
    return Gang(
        attempt_id=attempt_id,
        nodes=[
            Launch(
                job_id="job_test",
                job_name="test",
                attempt_id=attempt_id,
                attempt=1,
                node=index,
                token="secret-token-of-the-node",
                url="http://127.0.0.1:9",
                work_dir=str(places[index % len(places)][1] / f"{attempt_id}.{index}"),
                cache_dir=str(root / "cache"),
                python="python",
                machine=places[index % len(places)][0],
                slots=[index],
            )
            for index in range(num_nodes)
        ],
    )


def eventually(
    condition: Callable[[], object],
    timeout_s: float = 20.0,
    otherwise: str = "the condition did not become true in time",
) -> None:
    """Wait until a condition is true; fail with `otherwise` after the scaled limit."""
    deadline = time.monotonic() + patient(timeout_s)
    while True:
        began = time.monotonic()
        if condition():
            return
        if (now := time.monotonic()) > deadline:
            raise AssertionError(otherwise)
        time.sleep(max(0.02, 2 * (now - began)))  # checks must not take the processor from the processes under test


class EngineContract:
    def test_it_offers_at_least_one_slot_and_tells_its_problems(self, engine: Engine) -> None:
        assert sum(m.slots for m in engine.capacity()) >= 1
        assert isinstance(engine.probe(), list)

    def test_a_plan_names_every_node_and_holds_no_token(self, engine: Engine, gang: Gang) -> None:
        plan = engine.plan(gang)
        assert len(plan) == len(gang.nodes)
        assert not any(gang.nodes[0].token in word for command in plan for word in command.argv)

    def test_started_agents_are_alive_until_cancelled(self, engine: Engine, gang: Gang) -> None:
        engine.start(gang)
        eventually(lambda: all(engine.status(gang.attempt_id, n.node) is AgentState.ALIVE for n in gang.nodes))
        engine.cancel(gang.attempt_id)
        eventually(lambda: all(engine.status(gang.attempt_id, n.node) is not AgentState.ALIVE for n in gang.nodes))

    def test_starting_an_attempt_twice_starts_it_once(
        self, engine: Engine, gang: Gang, count_agents: Callable[[], int]
    ) -> None:
        engine.start(gang)
        eventually(lambda: count_agents() == len(gang.nodes))
        engine.start(gang)
        assert count_agents() == len(gang.nodes)
        engine.cancel(gang.attempt_id)

    def test_cancelling_is_idempotent_and_unknown_attempts_are_fine(self, engine: Engine, gang: Gang) -> None:
        engine.cancel("att_unknown")
        engine.start(gang)
        engine.cancel(gang.attempt_id)
        engine.cancel(gang.attempt_id)
        assert engine.status("att_unknown", 0) is AgentState.UNKNOWN

    def test_a_new_engine_object_finds_the_agents_of_the_old_one(
        self, engine: Engine, gang: Gang, reopen: Callable[[], Engine]
    ) -> None:
        engine.start(gang)
        again = reopen()
        eventually(lambda: all(again.status(gang.attempt_id, n.node) is AgentState.ALIVE for n in gang.nodes))
        assert again.adopt() == {gang.attempt_id}
        again.cancel(gang.attempt_id)
        eventually(lambda: engine.status(gang.attempt_id, 0) is not AgentState.ALIVE)
        assert reopen().adopt() == set()

    def test_cleaning_leaves_nothing_of_the_attempt(self, engine: Engine, gang: Gang) -> None:
        engine.start(gang)
        engine.cancel(gang.attempt_id)
        eventually(lambda: engine.status(gang.attempt_id, 0) is not AgentState.ALIVE)
        engine.clean(gang.attempt_id)
        assert engine.status(gang.attempt_id, 0) is AgentState.UNKNOWN
