"""A fire drill's outage: nothing passes but a sign of life, and then all is as before."""

import signal
import threading

import pytest

from shoal.agent import link as links
from shoal.agent.link import Link, Outage
from shoal.agent.node import drill as drills
from shoal.agent.node.drill import Drill
from shoal.core.errors import Unreachable


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(links.time, "monotonic", lambda: now[0])
    return now


def passes(outage, path):
    try:
        outage.check(path)
    except Unreachable:
        return False
    return True


def test_without_a_drill_everything_passes(clock):
    assert passes(Outage(), "/beat") and passes(Outage(), "/segments/log")


def test_while_it_lasts_one_beat_in_five_seconds_passes_and_nothing_else(clock):
    outage = Outage()
    outage.begin(12)
    seen = []
    for _ in range(24):
        seen.append(passes(outage, "/beat"))
        assert not passes(outage, "/segments/metric?seq_first=0&count=1") and not passes(outage, "/checkpoints")
        clock[0] += 0.5
    assert sum(seen) == 2
    assert passes(outage, "/segments/log") and passes(outage, "/beat")


def test_no_script_can_keep_its_agent_silent_for_ever(clock, monkeypatch):
    outage, over = Outage(), threading.Event()
    monkeypatch.setattr(drills.time, "sleep", lambda seconds: None)
    drill = Drill(outage, lambda: True, lambda text: over.set() if "caught_up" in text else None)
    drill.obey({"do": "cut", "fault": 0, "seconds": float("nan")})
    assert over.wait(10)
    assert not passes(outage, "/checkpoints")
    clock[0] += 3601
    assert passes(outage, "/checkpoints")


def test_all_links_of_an_agent_share_it(clock):
    link = Link("http://127.0.0.1:9", "t")
    link.another().outage.begin(5)
    with pytest.raises(Unreachable, match="fire drill"):
        link.post("/checkpoints", {})


def test_an_agent_does_to_itself_what_it_is_asked_for(monkeypatch):
    sent, said, over = [], [], threading.Event()
    monkeypatch.setattr(drills.os, "kill", lambda pid, signum: sent.append(signum))
    monkeypatch.setattr(drills.time, "sleep", lambda seconds: None)

    def say(text):
        said.append(text)
        if "caught_up" in text:
            over.set()

    shipped = iter([False, False, True])
    outage = Outage()
    drill = Drill(outage, lambda: next(shipped), say)
    for order in (
        {"do": "sigterm"},
        {"do": "kill"},
        {"do": "dance"},
        {},
        {"do": "cut"},
        {"do": "cut", "fault": 1, "seconds": "x"},
    ):
        drill.obey(order)
    assert sent == [signal.SIGTERM, signal.SIGKILL] and said == []
    drill.obey({"do": "cut", "fault": 2, "seconds": 60})
    assert not passes(outage, "/checkpoints") and over.wait(10)
    assert [word for text in said for word in ("cut", "back", "caught_up") if f'"{word}"' in text] == [
        "cut",
        "back",
        "caught_up",
    ]
