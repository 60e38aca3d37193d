"""Faults as people type them, and messages for mistakes."""

import pytest

from shoal.cli.training.drill_faults import check_targets, plan
from shoal.core.drills import Fault, Plan
from shoal.core.errors import UsageError


def planned(kill=(), sigterm=(), slow=(), server_down=(), steps=None):
    return plan(kill, sigterm, slow, server_down, steps)


def test_faults_come_in_the_order_of_their_steps_each_in_the_attempt_it_belongs_to():
    found = planned(["rank1@30", "node1@8"], ["node0@50"], ["rank1:3x"], ["20s@30"])
    told = [(f.text, found.attempt_of(f)) for f in found.faults]
    assert told == [
        ("slow rank1:3x@1", 1),
        ("kill node1@8", 1),
        ("server-down 20s@30", 2),
        ("kill rank1@30", 2),
        ("sigterm node0@50", 3),
    ]
    assert found.stop_at == 70


def test_a_plan_survives_the_way_through_an_environment_variable():
    found = planned(["rank0@3"], [], ["rank1:2.5x@2-9"], ["1m"], 40)
    assert Plan.load(found.dump()) == found
    assert found.faults[0] == Fault(what="slow", at=2, until=9, rank=1, factor=2.5)
    assert found.faults[-1].seconds == 60 and found.faults[-1].at == 13 and found.stop_at == 40
    assert planned(server_down=["5s"]).faults[0].at == 10


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "No faults given"),
        ({"kill": ["rank1"]}, "does not name a worker or node, and a step"),
        ({"kill": ["1@30"]}, "does not name a worker or node, and a step"),
        ({"sigterm": ["node0@0"]}, "counted from 1"),
        ({"slow": ["rank1@3"]}, "does not name a worker and a factor"),
        ({"slow": ["rank1:1x"]}, "larger than 1"),
        ({"slow": ["rank1:2x@9-3"]}, "last step is before the first"),
        ({"server_down": ["soon"]}, "soon"),
        ({"server_down": ["0s"]}, "longer than 0 s"),
        ({"server_down": ["2h"]}, "the maximum is one hour"),
        ({"server_down": ["20s@soon"]}, "not a duration"),
        ({"kill": ["rank0@30"], "steps": 30}, "more steps must follow"),
    ],
)
def test_a_mistake_is_named_and_answered_with_how_it_should_look(given, words):
    with pytest.raises(UsageError, match=words) as error:
        planned(**given)
    assert error.value.hint or any(word in words for word in ("counted", "before", "longer"))


def test_what_is_not_there_cannot_be_broken():
    check_targets(planned(["rank3@5"], ["node1@9"]), nodes=2, accels=2)
    with pytest.raises(UsageError, match="ranks 0 to 3"):
        check_targets(planned(["rank4@5"]), nodes=2, accels=2)
    with pytest.raises(UsageError, match="rank 0 only"):
        check_targets(planned([], [], ["rank1:2x"]), nodes=1, accels=1)
    with pytest.raises(UsageError, match="node 0 only"):
        check_targets(planned([], ["node1@5"]), nodes=1, accels=2)
