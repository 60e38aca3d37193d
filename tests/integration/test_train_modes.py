"""Pools and gangs of workers, with scripts that take no time: real launchers, signals and (a stand-in for) ssh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shoal.compat.topspin.stopping import launchers
from shoal.core.errors import CanNeverRun, Refused
from shoal.testing.engines import eventually
from shoal.train.hosts import Host
from shoal.train.launch_groups import Task
from shoal.train.modes import Desk, run_distributed, run_pool
from shoal.train.preflight import Needs, Place

SCRIPT = """
import json, os, sys, time
from pathlib import Path
name = sys.argv[1]
keep = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "OWN")
Path(f"{name}.{os.environ['RANK']}.json").write_text(json.dumps({k: os.environ.get(k) for k in keep}))
exec(sys.argv[2] if len(sys.argv) > 2 else "")
"""
WAIT = "while True: time.sleep(0.01)"
SSH = """#!/bin/sh
# Runs here what is meant for there.
for last; do :; done
echo "$@" >> ssh.log
exec sh -c "$last"
"""
FEW = Needs(free_bytes=1)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("script.py").write_text(SCRIPT)
    yield folder
    left = [p for p in psutil.process_iter() if _cwd(p) == str(folder)]
    for process in left:
        process.kill()
    assert not left, left


def _cwd(process):
    try:
        mine = process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE
        return "" if mine else process.cwd()
    except psutil.Error:
        return ""


def task(name, code="", **options):
    return Task(name=name, entry=["script.py", name, code], logs=Path("logs") / name, **options)


def told(name, rank=0):
    return json.loads(Path(f"{name}.{rank}.json").read_text())


def test_workers_are_told_who_they_are_as_torchrun_tells_them():
    result = run_distributed(task("a", workers=2, env={"OWN": "1"}), [Place(Host())], FEW, Desk(tell=lambda _: None))
    assert (result.status, result.reason) == ("finished", None)
    first, second = told("a"), told("a", 1)
    assert (first["RANK"], second["RANK"], first["WORLD_SIZE"], second["LOCAL_RANK"]) == ("0", "1", "2", "1")
    assert first["MASTER_PORT"] == second["MASTER_PORT"] and first["MASTER_ADDR"] == "127.0.0.1"
    assert first["OWN"] == "1" and first["GLOO_SOCKET_IFNAME"] == "lo"


def test_machines_have_ranks_in_their_order():
    places = [Place(Host("localhost")), Place(Host("127.0.0.1"))]
    assert run_distributed(task("a", workers=2), places, FEW, Desk()).status == "finished"
    assert [told("a", rank)["GROUP_RANK"] for rank in range(4)] == ["0", "0", "1", "1"]
    assert told("a", 3)["WORLD_SIZE"] == "4"


def test_tasks_wait_for_slots_and_their_ends_are_told(here):
    lines = []
    fail = "raise ValueError('no luck')"
    tasks = [task("a"), task("b", fail), task("c", workers=2), task("d", "os.kill(os.getpid(), 9)")]
    results = run_pool(tasks, [Place(Host(), (4, 7))], FEW, Desk(tell=lines.append))
    assert [r.status for r in results] == ["finished", "failed", "finished", "failed"]
    assert results[1].reason == "ValueError: no luck" and results[3].reason.startswith("killed by SIGKILL")
    assert any("Task[1] 'b' fails: ValueError: no luck (see logs/b)" in line for line in lines)
    assert any("remaining 0 tasks" in line for line in lines)
    assert "no luck" in Path("logs/b/log.node_0").read_text()


def test_what_fits_no_machine_is_refused_before_anything_starts():
    with pytest.raises(CanNeverRun, match="needs 3 slots on one machine, and none has more than 2"):
        run_pool([task("a"), task("b", workers=3)], [Place(Host(), (0, 1))], FEW, Desk())
    assert not Path("logs").exists()


def test_a_stop_ends_what_runs_and_does_not_start_the_rest():
    desk = Desk(should_stop=Path("a.0.json").exists)
    results = run_pool([task("a", WAIT), task("b")], [Place(Host(), (0,))], FEW, desk)
    assert [r.status for r in results] == ["stopped", "stopped"]
    assert not Path("b.0.json").exists()


def test_a_machine_that_fails_takes_the_others_with_it():
    code = f"if os.environ['RANK'] == '1': sys.exit(7)\n{WAIT}"
    result = run_distributed(task("a", code), [Place(Host("localhost")), Place(Host("127.0.0.1"))], FEW, Desk())
    assert result.status == "failed" and "exit code 7" in result.reason


def test_a_starter_that_is_killed_takes_its_workers_with_it(here):
    Path("starter.py").write_text(
        "from test_train_modes import *\nrun_distributed(task('a', WAIT, workers=2), [Place(Host())], FEW, Desk())"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    starter = subprocess.Popen([sys.executable, "starter.py"], env=env)
    eventually(lambda: Path("a.0.json").exists() and Path("a.1.json").exists(), 60)
    starter.kill()
    starter.wait()
    eventually(lambda: not [p for p in psutil.process_iter() if _cwd(p) == str(here)], 60)


def test_what_a_training_notes_of_itself_counts():
    noted = task("a", outcome=lambda: "stopped", score=lambda: 0.5 if Path("a.0.json").exists() else None)
    result = run_distributed(noted, [Place(Host())], FEW, Desk())
    assert (result.status, result.score) == ("stopped", 0.5)


def test_another_machine_is_reached_by_ssh(here, monkeypatch):
    programs = here / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(SSH)
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    there = Place(Host("me@198.51.100.7"), (0, 1))
    code = "print('it\\'s', sys.argv[1])"
    results = run_pool([task("a b", code), task("c", workers=2)], [there], FEW, Desk())
    assert [r.status for r in results] == ["finished"] * 2
    assert Path("logs/a b/log.node_0").read_text() == "it's a b\n"
    assert "BatchMode=yes" in Path("ssh.log").read_text() and "me@198.51.100.7" in Path("ssh.log").read_text()
    stopped = run_distributed(task("d", WAIT), [there], FEW, Desk(should_stop=Path("d.0.json").exists))
    assert stopped.status == "stopped"
    with pytest.raises(Refused, match=r"E3: no data at none\.pkl"):
        run_pool([task("e")], [there], Needs(free_bytes=1, paths=["none.pkl"]), Desk())


def test_launchers_of_this_user_are_known_while_they_run():
    found = []

    def should_stop():
        if Path("a.0.json").exists():
            found.extend(pid for pid in launchers() if _cwd(psutil.Process(pid)) == str(Path.cwd()))
        return bool(found)

    run_distributed(task("a", WAIT), [Place(Host())], FEW, Desk(should_stop=should_stop))
    assert len(found) == 1 and found[0] not in launchers()


def test_the_launcher_by_itself_says_who_starts_it(here):
    done = subprocess.run(
        [sys.executable, "-m", "shoal.train.launch"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "is started by shoal" in done.stderr


SEARCHED = """
import os, sys
import shoal
from mine import MyParams
from shoal.train.search import given

params = given(MyParams)
run = shoal.init()
run.step(loss=params.lr)
run.evaluate({"accuracy": 1.0, "eval/error": params.lr + params.shift})
run.evaluate({"eval/error": params.lr * params.sign})
if params.lr == 0.3 and not os.path.exists("mended"):
    raise ValueError("too fast")
print(params.lr, params.sign, params.names)
"""
MINE = """
from shoal.train import Params, Range

class MyParams(Params):
    epochs: float = 1
    lr: float = Range([0.1, 0.3])
    sign: int = Range([1, -1])
    shift: float = 5.0
    names: tuple[str, ...] = ("a", "b")
"""


def test_a_search_trains_every_variant_and_tells_the_best(here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setenv("PYTHONPATH", str(here))
    Path("mine.py").write_text(MINE)
    Path("search.py").write_text(SEARCHED)
    from mine import MyParams

    from shoal.train.search import search

    lines = []
    places = [Place(Host(), (0, 1))]
    trials = search(MyParams(), "search.py", places=places, root=Path("found"), desk=Desk(tell=lines.append))
    assert [(t.params.lr, t.params.sign, t.score) for t in trials] == [
        (0.3, -1, -0.3), (0.1, -1, -0.1), (0.1, 1, 0.1), (0.3, 1, 0.3),
    ]  # fmt: skip
    assert [t.result.status for t in trials] == ["failed", "finished", "finished", "failed"]
    assert trials[0].result.reason == "ValueError: too fast"
    assert (trials[1].directory / "logs/log.node_0").read_text().endswith("0.1 -1 ('a', 'b')\n")
    Path("mended").touch()
    lines.clear()
    again = search(MyParams(), "search.py", places=places, root=Path("found"), desk=Desk(tell=lines.append))
    assert [t.result.status for t in again] == ["finished"] * 4
    assert sum("starts on" in line for line in lines) == 2, "what was finished is not trained again"


def test_a_training_that_skips_itself_has_not_failed():
    tasks = [task("large", "print('skipped: too large', file=sys.stderr); sys.exit(77)"), task("small")]
    results = run_pool(tasks, [Place(Host(), (0, 1))], FEW, Desk())
    assert [(r.status, r.reason) for r in results] == [("skipped", None), ("finished", None)]


def test_a_script_by_itself_has_the_first_variant(here, monkeypatch):
    from shoal.train.params import Params, Range
    from shoal.train.search import given

    class Own(Params):
        epochs: float = 1
        hidden: int = Range([8, 16])

    monkeypatch.delenv("SHOAL_SPOOL", raising=False)
    assert given(Own).hidden == 8
