"""Quotas of workspaces for models of GPUs: never exceeded, and no workspace is held off slots that another may not use."""

import os
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from pools import job, machine, running, seen

from shoal.core.gpu_models import is_model
from shoal.server.scheduler.decide import Hold, Share, decide
from shoal.server.scheduler.model import Avoided

GB = 10**9
H100 = {"kind": "cuda", "model": "H100 80GB HBM3", "memory": 85 * GB}
T4 = {"kind": "cuda", "model": "Tesla T4", "memory": 16 * GB}
BIG, SMALL = machine(8, name="big", **H100), machine(4, name="small", **T4)
VISION = {"v": Share(models={"H100": 4})}


def wish(id_, **more):
    return job(id_, workspace="v", **more)


def placed(decision):
    return {job_id: {node.machine for node in gang} for job_id, gang in decision.starts}


def test_a_workspace_gets_no_more_of_a_model_than_its_quota_and_may_use_others():
    queue = [wish("a", gpu="H100", accels=4), wish("b", gpu="H100", at=1), wish("c", accels=2, at=2)]
    decision = decide(seen([BIG, SMALL], queue, shares=VISION))
    assert placed(decision) == {"a": {"big"}, "c": {"small"}}
    assert decision.holds == {"b": Hold.QUOTA}
    assert decision.waiting["b"] == "its workspace may hold 4 H100 at once, and holds 4 now"


def test_what_runs_counts_and_other_workspaces_are_not_limited_nor_held_off():
    live = [running("r", {"big": 3}, workspace="v", priority=100)]
    pool = [machine(8, range(3), name="big", **H100)]
    queue = [wish("two", accels=2), job("other", workspace="o", accels=5, at=1)]
    decision = decide(seen(pool, queue, live, shares=VISION))
    assert placed(decision) == {"other": {"big"}} and decision.reserved == []
    assert decision.waiting["two"] == "its workspace may hold 4 H100 at once, and holds 3 now"
    assert placed(decide(seen(pool, [wish("one")], live, shares=VISION))) == {"one": {"big"}}


def test_an_elastic_gang_gets_as_many_nodes_as_the_quota_leaves():
    decision = decide(seen([BIG], [wish("e", nodes=1, max_nodes=8)], shares=VISION))
    assert [len(gang) for _, gang in decision.starts] == [4]


def test_a_job_that_avoids_places_is_limited_too():
    failed = frozenset({("small", 0)})
    avoiding = wish("a", accels=3, avoided=Avoided(failed, 0.0, never=failed))
    live = [running("r", {"big": 4}, workspace="v", priority=100)]
    pool = [machine(8, range(4), name="big", **H100), SMALL]
    [(_, [node])] = decide(seen(pool, [avoiding], live, shares=VISION)).starts
    assert (node.machine, node.slots) == ("small", (1, 2, 3))
    more = decide(seen(pool, [replace(avoiding, accels=4)], live, shares=VISION))
    assert more.starts == [] and more.holds == {"a": Hold.QUOTA}


boxes = st.lists(st.tuples(st.sampled_from([H100, T4, {"kind": "cpu"}]), st.integers(1, 8)), min_size=1, max_size=4)
asked = st.lists(
    st.tuples(
        st.sampled_from(["v", "w", "o"]), st.integers(1, 2), st.integers(0, 3), st.integers(1, 4),
        st.sampled_from(["", "", "H100", "T4"]), st.sampled_from([None, 50.0]),
    ),
    max_size=10,
)  # fmt: skip
limits = st.dictionaries(st.sampled_from(["H100", "T4", "80GB"]), st.integers(0, 6))


@settings(max_examples=int(os.environ.get("SHOAL_SEQUENCES", "150")), deadline=None)
@given(boxes, asked, limits, limits)
def test_no_quota_is_ever_exceeded(found, wishes, first, second):
    pool = [machine(size, name=f"m{i}", **what) for i, (what, size) in enumerate(found)]
    queue = [
        job(f"j{i}", workspace=w, nodes=lo, max_nodes=lo + more, accels=a, gpu=gpu, limit_s=limit, at=i)
        for i, (w, lo, more, a, gpu, limit) in enumerate(wishes)
    ]
    shares = {"v": Share(models=first), "w": Share(models=second, quota=6)}
    decision = decide(seen(pool, queue, shares=shares))
    by_id, of = {j.job_id: j for j in queue}, {m.name: m for m in pool}
    for workspace, share in shares.items():
        for name, most in share.models.items():
            held = sum(
                len(node.slots)
                for job_id, gang in decision.starts
                for node in gang
                if by_id[job_id].workspace == workspace
                and of[node.machine].model
                and is_model(of[node.machine].model, name)
            )
            assert held <= most
    for job_id, gang in decision.starts:
        assert by_id[job_id].min_nodes <= len(gang) <= by_id[job_id].max_nodes
    assert {job_id for job_id, _ in decision.starts} | set(decision.waiting) == set(by_id)
