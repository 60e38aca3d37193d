"""NVLink islands and NUMA nodes in the queue: a node's GPUs are connected well, and whole machines stay free for large gangs."""

import os

from hypothesis import given, settings
from hypothesis import strategies as st
from pools import job, machine, seen

from shoal.agent.devices.device import Device
from shoal.engines.base import Machine
from shoal.server.scheduler.decide import decide
from shoal.server.scheduler.machine_parts import split_machines
from shoal.server.scheduler.model import Avoided
from shoal.server.scheduler.topology import Topology

PAIRS = {slot: (slot // 2, slot // 4) for slot in range(8)}
"""Four pairs on two NUMA nodes."""
QUADS = {slot: (None, slot // 4) for slot in range(8)}
SWITCH = {slot: (0, slot // 4) for slot in range(8)}


def box(places, used=(), name="m"):
    return machine(8, used, name=name, kind="cuda", places=places)


def slots(decision):
    return {job_id: [(node.machine, *node.slots) for node in gang] for job_id, gang in decision.starts}


def test_a_node_gets_the_gpus_of_one_island_and_the_tightest_such_island():
    assert slots(decide(seen([box(QUADS, [0])], [job("a", accels=4)]))) == {"a": [("m", 4, 5, 6, 7)]}
    assert slots(decide(seen([box(QUADS, [0])], [job("a", accels=3)]))) == {"a": [("m", 1, 2, 3)]}
    assert slots(decide(seen([box(PAIRS, [0])], [job("a")]))) == {"a": [("m", 1)]}, "pairs stay whole"
    assert slots(decide(seen([box(PAIRS, [0])], [job("a", accels=2)]))) == {"a": [("m", 2, 3)]}


def test_numa_nodes_decide_where_nvlink_connects_all_and_where_it_connects_too_few():
    assert slots(decide(seen([box(SWITCH, [0])], [job("a", accels=4)]))) == {"a": [("m", 4, 5, 6, 7)]}
    assert slots(decide(seen([box(PAIRS, [0])], [job("a", accels=4)]))) == {"a": [("m", 4, 5, 6, 7)]}


def test_a_node_that_no_island_holds_is_spread_over_few():
    assert slots(decide(seen([box(PAIRS, [0, 4])], [job("a", accels=4)]))) == {"a": [("m", 2, 3, 6, 7)]}


def test_each_node_of_a_gang_has_an_island_of_its_own():
    assert slots(decide(seen([box(QUADS)], [job("a", nodes=2, accels=4)]))) == {
        "a": [("m", 0, 1, 2, 3), ("m", 4, 5, 6, 7)]
    }
    mixed = {slot: (None, slot % 2) for slot in range(8)}
    assert slots(decide(seen([box(mixed)], [job("a", nodes=2, accels=4)]))) == {
        "a": [("m", 0, 2, 4, 6), ("m", 1, 3, 5, 7)]
    }


def test_a_machine_in_use_with_an_island_goes_before_a_tighter_one_without_and_whole_machines_stay_free():
    split, good, whole = box(QUADS, [0, 1, 4, 5], "a"), box(QUADS, [0, 1, 2], "b"), box(QUADS, name="c")
    for labels in (frozenset(), frozenset({"x=y"})):  # the short way and the general one
        pool = [machine(8, m.used, name=m.name, kind="cuda", places=QUADS, labels=labels) for m in (split, good, whole)]
        wish = job("j", accels=4, labels=labels)
        assert slots(decide(seen(pool, [wish]))) == {"j": [("b", 4, 5, 6, 7)]}
        assert slots(decide(seen([pool[0], pool[2]], [wish]))) == {"j": [("a", 2, 3, 6, 7)]}, "c stays whole"
        assert slots(decide(seen(pool, [job("j", accels=3, labels=labels)]))) == {"j": [("b", 4, 5, 6)]}


def test_slots_that_a_job_avoids_are_not_taken_for_the_sake_of_an_island():
    bad = frozenset({("m", 4)})
    avoiding = job("a", accels=4, avoided=Avoided(bad, 0.0))
    assert slots(decide(seen([box(QUADS, [0])], [avoiding]))) == {"a": [("m", 1, 2, 3, 5)]}


def test_the_places_of_slots_come_from_the_inventory_and_broken_devices_are_left_out():
    devices = tuple(
        Device(
            kind="cuda", index=i, uuid=f"GPU-{i}", model="A100", island=i // 2, numa=0, problem="lost" if i == 1 else ""
        )
        for i in range(4)
    )
    [state] = split_machines([Machine(name="m", kind="cuda", slots=4, inventory=devices)], {}).states
    assert state.places == {0: (0, 0), 2: (1, 0), 3: (1, 0)}
    assert slots(decide(seen([state], [job("a", accels=2)]))) == {"a": [("m", 2, 3)]}
    alike = [Machine(name="m", kind="cuda", slots=2, inventory=devices[2:])]
    assert split_machines(alike, {}).states[0].places == {} and not Topology(split_machines(alike, {}).states)


boxes = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.sampled_from([None, 0, 1])), min_size=1, max_size=8),
        st.sets(st.integers(0, 7), max_size=6),
    ),
    min_size=1,
    max_size=4,
)
wishes = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(1, 4), st.booleans()), max_size=8)


@settings(max_examples=int(os.environ.get("SHOAL_SEQUENCES", "150")), deadline=None)
@given(boxes, wishes)
def test_topology_changes_neither_which_jobs_start_nor_how_many_slots_they_get(found, asked):
    """It only chooses among machines and slots that fit: no slot twice, none in use, and the same number of free slots left."""
    pool = [
        machine(len(places), used & set(range(len(places))), name=f"m{i}", kind="cuda", places=dict(enumerate(places)))
        for i, (places, used) in enumerate(found)
    ]
    queue = [
        job(f"j{i}", nodes=lo, max_nodes=lo + more, accels=a, at=i, limit_s=60.0 if brief else None)
        for i, (lo, more, a, brief) in enumerate(asked)
    ]
    decision = decide(seen(pool, queue))
    free = {m.name: set(m.free) for m in pool}
    for job_id, gang in decision.starts:
        wish = next(j for j in queue if j.job_id == job_id)
        assert wish.min_nodes <= len(gang) <= wish.max_nodes
        for node in gang:
            assert len(node.slots) == wish.accels and set(node.slots) <= free[node.machine]
            free[node.machine] -= set(node.slots)
    [first] = decision.starts[:1] or [None]
    if queue and first is None:
        assert sum(len(m.free) // queue[0].accels for m in pool) < queue[0].min_nodes, "the first in line fits"


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.integers(0, 15), st.tuples(st.sampled_from([None, 0, 1, 2]), st.sampled_from([None, 0, 1])), min_size=2),
       st.integers(1, 8))  # fmt: skip
def test_whenever_an_island_holds_a_node_the_node_is_in_one(places, count):
    topology, free = Topology([machine(16, name="m", places=places)]), sorted(places)
    taken = topology.pick("m", free, min(count, len(free)))
    assert len(taken) == len(set(taken)) == min(count, len(free)) and set(taken) <= set(free)
    if topology and topology.largest("m", free) >= count:
        assert len({p[0] if p[0] is not None else ("numa", p[1]) for p in map(places.get, taken)}) == 1
