"""Models, memory and labels in the queue: no gang mixes models, no broken device is used, and every request is obeyed."""

import os
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import job, machine, running, seen

from shoal.agent.devices.device import Device
from shoal.core.gpu_models import is_model, is_slice
from shoal.engines.base import Machine
from shoal.server.scheduler.avoid import fits_apart
from shoal.server.scheduler.decide import Hold, decide, largest_possible
from shoal.server.scheduler.explain import explain
from shoal.server.scheduler.kinds import Kinds, kind_of
from shoal.server.scheduler.machine_parts import away, host, split_machines
from shoal.server.scheduler.model import Avoided
from shoal.server.scheduler.simulate import play

GB = 10**9
H100 = {"kind": "cuda", "model": "H100 80GB HBM3", "memory": 85 * GB}
T4 = {"kind": "cuda", "model": "Tesla T4", "memory": 16 * GB}
CPU, BIG, SMALL = machine(4, name="local"), machine(8, name="big", **H100), machine(4, name="small", **T4)


def placed(decision):
    return {job_id: {node.machine for node in gang} for job_id, gang in decision.starts}


def test_a_gang_never_mixes_models():
    decision = decide(seen([BIG, SMALL], [job("g", nodes=3, accels=4)]))
    assert (decision.starts, decision.holds) == ([], {"g": Hold.MACHINES})
    assert (
        decision.waiting["g"] == "needs 3 × 4 slots of one kind and model: more than the machines that are up now have"
    )


@pytest.mark.parametrize(
    ("wish", "where"),
    [
        ({"gpu": "H100"}, "big"),
        ({"gpu": "T4"}, "small"),
        ({"gpu_memory": 40 * GB}, "big"),
        ({"gpu_memory": 16 * GB}, "small"),
        ({}, "small"),  # large devices stay free for jobs that need them
        ({"accels": 8}, "big"),
        ({"device": "cuda", "gpu": "H100"}, "big"),
        ({"device": "any", "gpu": "H100"}, "big"),
        ({"device": "cpu"}, "local"),
    ],
)
def test_a_job_gets_the_model_and_memory_it_asks_for(wish, where):
    assert placed(decide(seen([CPU, BIG, SMALL], [job("a", **wish)]))) == {"a": {where}}


@pytest.mark.parametrize("wish", [{"gpu": "A100"}, {"gpu_memory": 100 * GB}, {"gpu": "T4", "gpu_memory": 40 * GB}])
@pytest.mark.parametrize("device", ["auto", "any", "cuda"])
def test_a_job_for_a_gpu_that_the_pool_does_not_have_waits_and_says_so(wish, device):
    decision = decide(seen([CPU, BIG, SMALL], [job("a", device=device, **wish)]))
    assert (decision.starts, decision.holds) == ([], {"a": Hold.MACHINES})
    assert "is up now" in decision.waiting["a"]
    assert largest_possible([CPU, BIG, SMALL], job("a", device=device, **wish)) == (0, 0)


def test_the_reason_names_model_memory_labels_and_what_is_missing():
    out = replace(BIG, state="lost")
    wish = job("a", gpu="H100", gpu_memory=80 * GB, labels=frozenset({"rack=a"}))
    waits = decide(seen([CPU, SMALL], [wish], away=[replace(out, labels=frozenset({"rack=a"}))])).waiting["a"]
    assert waits == (
        "needs 1 H100 (80 GB or more) GPU slot with rack=a: "
        "no machine with H100 (80 GB or more) GPU slots is up now (big is lost)"
    )


def test_labels_restrict_the_machines():
    racks = [machine(4, name=n, labels=frozenset({f"rack={n}", "site=x"}), **T4) for n in ("a", "b")]
    assert placed(decide(seen(racks, [job("j", labels=frozenset({"rack=b", "site=x"}))]))) == {"j": {"b"}}
    both = decide(seen(racks, [job("j", nodes=2, accels=4, labels=frozenset({"site=x"}))]))
    assert placed(both) == {"j": {"a", "b"}}
    assert decide(seen(racks, [job("j", labels=frozenset({"rack=c"}))])).holds == {"j": Hold.MACHINES}


def test_jobs_for_one_model_start_behind_a_job_that_waits_for_another():
    full = machine(8, range(8), name="big", **H100)
    queue = [job("h", gpu="H100", at=1), job("t", gpu="T4", at=2), job("plain", at=3)]
    decision = decide(seen([full, SMALL], queue, [running("r", {"big": 8}, ends=600)]))
    assert placed(decision) == {"t": {"small"}, "plain": {"small"}}
    assert [r.job_id for r in decision.reserved] == ["h"]


@pytest.mark.parametrize(
    ("model", "wanted", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", True),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB", True),
        ("NVIDIA A100-SXM4-40GB", "A100 80GB", False),
        ("NVIDIA A100-SXM4-40GB", "A10", False),
        ("NVIDIA L40S", "L4", False),
        ("NVIDIA GeForce RTX 4090", "RTX4090", True),
        ("NVIDIA GeForce RTX 4090", "4090", True),
        ("AMD Instinct MI300X", "MI300X", True),
        ("", "H100", False),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100", False),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100 80GB", False),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100 1g.10gb", True),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100 MIG", True),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "mig", True),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100 2g.20gb", False),
        ("NVIDIA A100-SXM4-80GB", "A100 MIG", False),
    ],
)
def test_models_are_known_by_the_names_people_use(model, wanted, expected):
    assert is_model(model, wanted) is expected


SLICE = {"kind": "cuda", "model": "A100-SXM4-80GB MIG 1g.10gb", "memory": 10 * GB}
SLICES, WHOLE = (
    machine(7, name="mig", **SLICE),
    machine(2, name="whole", kind="cuda", model="A100-SXM4-80GB", memory=85 * GB),
)


@pytest.mark.parametrize(
    ("wish", "where"),
    [
        ({}, "mig"),
        ({"gpu": "A100"}, "whole"),
        ({"gpu": "A100 1g.10gb"}, "mig"),
        ({"gpu": "MIG"}, "mig"),
        ({"accels": 2}, "whole"),
        ({"nodes": 2}, "whole"),
        ({"nodes": 1, "max_nodes": 2}, "whole"),
        ({"device": "cuda", "accels": 2}, "whole"),
    ],
)
def test_only_jobs_with_one_worker_get_mig_slices_and_a_model_means_whole_gpus(wish, where):
    assert placed(decide(seen([CPU, SLICES, WHOLE], [job("a", **wish)]))) == {"a": {where}}


def test_several_workers_never_get_slices_even_if_there_is_nothing_else():
    assert decide(seen([SLICES], [job("a", accels=2)])).holds == {"a": Hold.MACHINES}
    assert decide(seen([SLICES], [job("a", accels=2, gpu="A100 1g.10gb")])).holds == {"a": Hold.MACHINES}
    assert placed(decide(seen([CPU, SLICES], [job("a", accels=2)]))) == {"a": {"local"}}


def gpus(*models, broken=()):
    return tuple(
        Device(
            kind="cuda",
            index=i,
            uuid=f"GPU-{i}",
            model=model,
            memory=16 * GB,
            problem="GPU is lost" if i in broken else "",
        )
        for i, model in enumerate(models)
    )


MIXED = Machine(name="box", kind="cuda", slots=4, inventory=gpus("Tesla T4", "NVIDIA A100", "Tesla T4", "NVIDIA A100"))


def test_a_box_with_two_models_is_two_machines_for_the_decision():
    parts = split_machines([MIXED], {"box": [0]})
    assert [(m.name, m.free) for m in parts.states] == [("box (A100)", [1, 3]), ("box (Tesla T4)", [2])]
    assert [host(m.name) for m in parts.states] == ["box", "box"]
    decision = decide(seen(parts.states, [job("pair", accels=2)]))
    assert [(node.machine, node.slots) for node in decision.starts[0][1]] == [("box (A100)", (1, 3))]
    assert parts.counted("box", [0, 1, 3]) == {"box (Tesla T4)": 1, "box (A100)": 2}
    wish = parts.expanded(job("x", exclude=frozenset({"box"}), prefer=frozenset({"other"})))
    assert wish.exclude >= {"box (A100)", "box (Tesla T4)"}
    assert decide(seen(parts.states, [wish])).starts == []
    assert {m.name for m in away(MIXED, "lost")} == {"box (A100)", "box (Tesla T4)"}


def test_a_gang_that_may_mix_models_does_so_only_if_there_are_not_enough_of_one():
    a100 = machine(4, name="a", kind="cuda", model="A100", memory=40 * GB)
    pool, wide = [a100, BIG, CPU], job("g", nodes=6, accels=2)
    mixed = replace(wide, mixed_models=True)
    (gang,) = dict(decide(seen(pool, [mixed])).starts).values()
    assert sorted((node.machine, len(node.slots)) for node in gang) == [("a", 2)] * 2 + [("big", 2)] * 4
    assert placed(decide(seen(pool, [replace(mixed, min_nodes=2, max_nodes=2)]))) == {"g": {"a"}}
    (gang,) = dict(decide(seen(pool, [replace(mixed, min_nodes=1)])).starts).values()
    assert len(gang) == 6
    assert decide(seen(pool, [wide])).starts == []
    assert explain(seen(pool, [replace(wide, max_nodes=6)]), "g").change.fields == {"min_nodes": 4}
    assert decide(seen(pool, [replace(mixed, min_nodes=8, max_nodes=8)])).starts == [], "never with CPUs"
    assert largest_possible(pool, mixed) == (6, 2) and largest_possible(pool, wide) == (4, 2)


def test_a_gang_that_may_mix_models_waits_for_slots_of_both_and_has_them_reserved():
    pool = [machine(4, (0, 1), name="a", kind="cuda", model="A100"), machine(4, name="h", kind="cuda", model="H100")]
    queue = [job("wide", nodes=4, accels=2, mixed_models=True), job("later", accels=4, at=1.0)]
    decision = decide(seen(pool, queue, [running("r", {"a": 2}, ends=100.0)]))
    assert decision.starts == [] and decision.waiting["wide"].startswith("next in line")
    (reserved,) = decision.reserved
    assert (reserved.starts_in_s, reserved.nodes) == (100.0, {"a": 2, "h": 2})


@pytest.mark.parametrize(("kinds", "where"), [(["cpu", "cuda"], {"a": {"m1"}}), (["cpu"], {}), (["cpu", "rocm"], {"a": {"m1"}})])  # fmt: skip
def test_a_job_for_any_gpu_never_gets_a_cpu(kinds, where):
    pool = [machine(2, name=f"m{i}", kind=kind) for i, kind in enumerate(kinds)]
    assert placed(decide(seen(pool, [job("a", device="gpu")]))) == where


def test_broken_devices_are_not_given_and_a_plain_job_does_not_fall_back_to_the_cpu():
    whole = Machine(name="box", kind="cuda", slots=2, inventory=gpus("Tesla T4", "Tesla T4", broken=(1,)))
    parts = split_machines([Machine(name="local", kind="cpu", slots=4), whole], {})
    view = seen(parts.states, [job("wide", accels=2, at=1), job("one", at=2)], away=parts.broken)
    decision = decide(view)
    assert [(node.machine, node.slots) for node in dict(decision.starts)["one"]] == [("box", (0,))]
    assert decision.waiting["wide"].endswith("(box is missing 1 device (GPU is lost))")
    assert parts.counted("box", [0, 1]) == {"box": 1}
    all_broken = replace(whole, inventory=gpus("Tesla T4", "Tesla T4", broken=(0, 1)))
    parts = split_machines([Machine(name="local", kind="cpu", slots=4), all_broken], {})
    assert decide(seen(parts.states, [job("one")], away=parts.broken)).starts == []


models = st.sampled_from(["H100 80GB HBM3", "A100 40GB", "A100 40GB MIG 1g.5gb", "Tesla T4"])
boxes = st.lists(
    st.tuples(
        st.lists(st.tuples(models, st.booleans()), min_size=1, max_size=5),
        st.sets(st.integers(0, 4), max_size=4),
        st.sampled_from(["cuda", "cuda", "cpu"]),
        st.sampled_from(["rack=a", "rack=b"]),
        st.booleans(),
    ),
    max_size=5,
)
wishes = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(0, 1),
        st.integers(1, 3),
        st.sampled_from(["auto", "any", "gpu", "cpu", "cuda"]),
        st.sampled_from(["", "", "H100", "T4", "A100", "MIG"]),
        st.sampled_from([0, 0, 30 * GB]),
        st.frozensets(st.sampled_from(["rack=a", "rack=b"]), max_size=1),
        st.sampled_from([None, 50.0]),
        st.frozensets(st.sampled_from(["m0", "m1"]), max_size=1),
        st.frozensets(st.tuples(st.sampled_from(["m0", "m1", "m2"]), st.integers(0, 3)), max_size=4),
        st.booleans(),
    ),
    max_size=8,
)
SEQUENCES = int(os.environ.get("SHOAL_SEQUENCES", "300"))
"""Random pools and queues; ./scripts/soak tries 10,000."""
SIZES = {"H100 80GB HBM3": 85 * GB, "A100 40GB": 42 * GB, "A100 40GB MIG 1g.5gb": 5 * GB, "Tesla T4": 16 * GB}


def build(found):
    """Return machines with devices, those of them that are drained, and the slots in use."""
    up, drained, used = [], [], {}
    for i, (devices, taken, kind, label, is_drained) in enumerate(found):
        name, key = f"m{i}", label.partition("=")
        inventory = tuple(
            Device(
                kind="cuda",
                index=n,
                uuid=f"GPU-{i}-{n}",
                model=model,
                memory=SIZES[model],
                problem="lost" if bad else "",
            )
            for n, (model, bad) in enumerate(devices)
        )
        one = Machine(
            name=name,
            kind=kind,
            slots=len(devices),
            labels={key[0]: key[2]},
            inventory=inventory if kind == "cuda" else (),
        )
        (drained if is_drained else up).append(one)
        used[name] = {slot for slot in taken if slot < len(devices)}
    return up, drained, used


def queue_of(found):
    return [
        job(f"j{i}", nodes=lo, max_nodes=lo + more, accels=a, at=i, device=d, gpu=g, gpu_memory=m, labels=la, limit_s=li, exclude=ex, mixed_models=mixed,
            avoided=Avoided(failed, 0.0, never=failed) if failed else None)
        for i, (lo, more, a, d, g, m, la, li, ex, failed, mixed) in enumerate(found)
        if not (d == "cpu" and (g or m))
    ]  # fmt: skip


def view_of(found, asked):
    up, drained, used = build(found)
    parts = split_machines(up, used)
    queue = [parts.expanded(one) for one in queue_of(asked)]
    return seen(parts.states, queue, away=[*parts.broken, *(p for m in drained for p in away(m, "draining"))]), up, used


@settings(max_examples=SEQUENCES, deadline=None)
@given(boxes, wishes)
def test_no_gang_mixes_models_and_no_drained_broken_used_or_failed_device_is_given(found, asked):
    view, up, used = view_of(found, asked)
    machines = {m.name: m for m in up}
    taken = {name: set(slots) for name, slots in used.items()}
    by_id = {j.job_id: j for j in view.queue}
    failed = {j.job_id: j.avoided.never for j in queue_of(asked) if j.avoided}
    decision = decide(view)
    for job_id, gang in decision.starts:
        wish, kinds = by_id[job_id], set()
        assert wish.min_nodes <= len(gang) <= wish.max_nodes
        for node in gang:
            box = machines[host(node.machine)]  # fails for a drained machine
            assert len(node.slots) == wish.accels and not taken[box.name] & set(node.slots)
            taken[box.name] |= set(node.slots)
            devices = [box.inventory[slot] for slot in node.slots] if box.inventory else []
            assert not any(device.problem for device in devices)
            assert box.kind == "cpu" or not failed.get(job_id, set()) & {(box.name, slot) for slot in node.slots}
            assert not any(is_slice(d.model) for d in devices) or wish.max_nodes == wish.accels == 1
            models = {device.model for device in devices}
            assert len(models) <= 1, "the slots of a node are of one model"
            kinds.add((box.kind, *(() if wish.mixed_models else models)))
            assert wish.labels <= {f"{k}={v}" for k, v in box.labels.items()}
            assert box.name not in wish.exclude
            assert wish.device in ("auto", "any", box.kind) or (wish.device == "gpu" and devices)
            if wish.gpu or wish.gpu_memory:
                assert devices
            assert all(is_model(d.model, wish.gpu) for d in devices if wish.gpu)
            assert all(d.memory >= wish.gpu_memory for d in devices)
        assert len(kinds) == 1
    assert {job_id for job_id, _ in decision.starts} | set(decision.waiting) == set(by_id)
    for job_id in list(decision.waiting)[:1]:
        explain(view, job_id)


@settings(max_examples=SEQUENCES // 4, deadline=None)
@given(boxes, wishes, st.integers(0, 1_000_000))
def test_played_forward_nothing_that_could_ever_run_starves(found, asked, seed):
    """Free slots that are spread over models or machines must not keep the head of the queue waiting for good."""
    view, _, _ = view_of([(d, set(), k, label, False) for d, _, k, label, _ in found], asked)
    rng = random.Random(seed)
    queue = [replace(j, limit_s=None) for j in view.queue]
    played = play(replace(view, queue=queue, away=[], now=0.0), {j.job_id: rng.uniform(10, 100) for j in queue})
    assert set(played.ends) == {j.job_id for j in queue if fits_apart(view.machines, j, Kinds(view.machines))}


def test_the_kind_of_a_machine_includes_model_and_memory():
    assert [kind_of(m) for m in (CPU, BIG)] == ["cpu", "cuda H100 80GB HBM3 (85 GB)"]
