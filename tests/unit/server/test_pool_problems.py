"""Problems derived from the facts about a machine."""

import json
import sys
from dataclasses import replace

import pytest

from shoal.agent.devices import report
from shoal.agent.devices.device import Device, Inventory
from shoal.core.errors import InvalidSpec
from shoal.core.pool import PairSpeed
from shoal.core.settings import ServerSettings
from shoal.server.pool import bootstrap, probe, runtime
from shoal.server.pool.problems import (
    GIB,
    device_problems,
    diagnose,
    inventory_problems,
    missing_parts,
    probed_devices,
    share,
)
from shoal.server.pool.speed import choose_pairs, what_stands_out
from shoal.testing.fake_devices import Box, gpu

GOOD = {
    "hostname": "gpu1",
    "home": "/Users/ada/.shoal",
    "address": "10.0.0.5",
    "python": list(sys.version_info[:3]),
    "executable": "/usr/bin/python3",
    "has_venv": True,
    "installed": {},
    "disk_free": 100 * GIB,
    "writable": True,
    "cores": 8,
    "memory": 16 * GIB,
    "unreachable": [],
    "lookup_s": 0.01,
    "nvidia": False,
    "nvidia_cards": 0,
    "rocm": 0,
    "xpu": 0,
    "open": True,
}
SLICES = [Device(kind="cuda", index=0, uuid=f"MIG-7{n}aa", part=n, parent="GPU-00000000") for n in range(2)]
LOST = Device(kind="cuda", index=2, problem="GPU is lost")
WHOLE = [Device(kind="cuda", index=n, uuid=f"GPU-0000000{n}") for n in (1, 3)]
FOUND = Inventory((*SLICES, WHOLE[0], LOST, WHOLE[1]), ("GPU 2: GPU is lost",))


def found(*, needs_runtime=True, skew_s=0.0, **facts):
    return diagnose(GOOD | facts, needs_runtime=needs_runtime, skew_s=skew_s, gpus=None)


def test_a_good_machine_has_no_problem():
    assert found() == []
    assert diagnose(GOOD | {"nvidia": True, "nvidia_cards": 2}, needs_runtime=True, skew_s=0, gpus=[1]) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"python": [3, 9, 2]}, "its Python is 3.9"),
        ({"has_venv": False}, "cannot create virtual environments"),
        ({"disk_free": 2 * GIB}, "only 2.0 GiB free"),
        ({"writable": False}, "cannot be written"),
        ({"unreachable": ["10.0.0.1:4000"]}, "does not reach the server at 10.0.0.1:4000"),
        ({"open": False}, "the server does not reach it at 10.0.0.5"),
    ],
)
def test_what_keeps_a_machine_out_is_named_with_its_cure(facts, words):
    [problem] = found(**facts)
    assert words in problem.text and problem.fix and problem.is_fatal


def test_all_problems_are_told_at_once_the_worst_first():
    problems = found(lookup_s=3.0, skew_s=-10.0, open=False)
    assert [p.is_fatal for p in problems] == [True, False, False]
    assert "10 s behind" in problems[2].text and "lookups" in problems[1].text


def test_a_clock_that_is_far_off_keeps_it_out():
    assert [p.is_fatal for p in found(skew_s=400.0)] == [True]
    assert found(skew_s=0.5) == []


def test_less_disk_will_do_where_no_runtime_is_set_up():
    assert found(needs_runtime=False, disk_free=2 * GIB, has_venv=False) == []


def test_cards_without_a_driver_keep_out_only_those_who_asked_for_them():
    assert found(nvidia_cards=4) == []  # the inventory names them
    [problem] = diagnose(GOOD | {"nvidia_cards": 4}, needs_runtime=True, skew_s=0, gpus=[0])
    assert problem.is_fatal and "no driver" in problem.text
    assert diagnose(GOOD | {"nvidia_cards": 4}, needs_runtime=True, skew_s=0, gpus=[]) == []


def test_a_gpu_that_is_not_there_is_named_with_those_that_are():
    [lost, problem] = inventory_problems(FOUND, [1, 7, "GPU-ffffffff"])
    assert problem.text == "it has no GPU 7, GPU-ffffffff" and problem.fix == "--gpus 0,1,2,3" and problem.is_fatal
    assert lost.text == "GPU 2: GPU is lost" and not lost.is_fatal


def test_a_driver_that_tells_nothing_keeps_a_machine_out_unless_only_its_cpu_is_wanted():
    silent = Inventory((), ("the NVIDIA driver does not answer (30 s)",), frozenset({"cuda"}))
    [problem] = inventory_problems(silent, None)
    assert (
        problem.is_fatal and problem.text == "the NVIDIA driver does not answer (30 s)" and "--gpus none" in problem.fix
    )
    assert inventory_problems(silent, []) == []
    assert share(silent, cores=8, gpus=[], slots=None) == ("cpu", 4, [])
    some = replace(silent, devices=tuple(WHOLE))
    assert [p.is_fatal for p in inventory_problems(some, None)] == [False]


def test_an_interpreter_must_have_the_servers_versions():
    facts = GOOD | {"installed": {"shoal": "0.1.0", "ray": "2.50.0"}}
    assert missing_parts(facts, {"shoal": "0.1.0"}) == []
    [problem] = missing_parts(facts, {"shoal": "0.1.0", "ray": "2.60.0"})
    assert "has ray 2.50.0, the server 2.60.0" in problem.text


def test_a_machine_offers_its_gpus_and_slices_or_half_its_cores():
    assert share(Inventory(), cores=8, gpus=None, slots=None) == ("cpu", 4, [])
    assert share(Inventory(), cores=8, gpus=None, slots=7) == ("cpu", 7, [])
    assert share(FOUND, cores=8, gpus=None, slots=None) == ("cuda", 5, [*SLICES, WHOLE[0], LOST, WHOLE[1]])
    assert share(FOUND, cores=8, gpus=[0, 3], slots=None) == ("cuda", 3, [*SLICES, WHOLE[1]])
    assert share(FOUND, cores=8, gpus=["MIG-71aa", "gpu-00000003"], slots=None) == ("cuda", 2, [SLICES[1], WHOLE[1]])
    assert share(FOUND, cores=8, gpus=["GPU-00000000"], slots=None) == ("cuda", 2, SLICES)
    assert share(FOUND, cores=8, gpus=[], slots=3) == ("cpu", 3, [])
    with pytest.raises(InvalidSpec):
        share(FOUND, cores=8, gpus=None, slots=4)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda box: None, "cpu"),
        (lambda box: box.nvml(box.root, gpu()), "cuda"),
        (lambda box: box.card("0000:10:00.0"), "cpu"),
        (lambda box: box.kfd(1, simds=304), "rocm"),
        (lambda box: box.kfd(1, simds=4, target=100306), "cpu"),
        (lambda box: box.intel(130, "0000:8a:00.0", gib=16), "xpu"),
        (lambda box: box.intel(128, "0000:00:02.0", gib=0), "cpu"),
    ],
)
def test_the_build_of_torch_is_chosen_by_what_a_machine_shows_without_a_question_to_a_driver(
    make, kind, tmp_path, monkeypatch
):
    box = Box(tmp_path)
    make(box)
    monkeypatch.setenv("PATH", box.env["PATH"])
    assert bootstrap.kind_of(probe.accelerators(str(box.root))) == kind


def test_a_machine_tells_its_accelerators_in_one_line(tmp_path, capsys):
    box = Box(tmp_path)
    box.intel(130, "0000:8a:00.0", gib=16, label="Intel Arc A770")
    assert report.main([str(box.root)]) == 0
    found = Inventory.from_json(json.loads(capsys.readouterr().out))
    assert [(d.kind, d.model, d.pci) for d in found.offered] == [("xpu", "Intel Arc A770", "0000:8a:00.0")]


def pair(one, other, mb_s, latency_ms=0.2):
    return PairSpeed(one=one, other=other, latency_ms=latency_ms, mb_s=mb_s)


def test_the_machine_that_holds_the_others_up_is_named():
    pairs = [pair("a", "b", 1000), pair("a", "c", 90), pair("b", "c", 110), pair("a", "d", 990), pair("b", "d", 995),
             pair("c", "d", 100)]  # fmt: skip
    [text] = what_stands_out(pairs)
    assert text.startswith("c is slow to all others: 90 MB/s at worst")


def test_a_single_bad_way_is_told_as_one():
    pairs = [pair("a", "b", 1000), pair("a", "c", 1000), pair("b", "c", 1000, latency_ms=5.0)]
    [text] = what_stands_out(pairs)
    assert text.startswith("b – c:")


def test_equals_do_not_stand_out():
    assert what_stands_out([pair("a", "b", 900), pair("a", "c", 1000), pair("b", "c", 800)]) == []


def test_few_machines_are_measured_in_all_pairs_and_many_in_a_ring():
    assert choose_pairs(3) == [(0, 1), (0, 2), (1, 2)]
    assert len(choose_pairs(20)) == 20


def test_an_amd_machine_is_refused_where_it_would_get_a_torch_without_rocm():
    amd = GOOD | {"rocm": 2}
    intel = diagnose(GOOD | {"xpu": 1}, needs_runtime=True, skew_s=0, gpus=None, torch="2.13.0")
    assert [p.text for p in intel] == ["its Intel GPUs need an XPU build of torch, and the server's torch is 2.13.0"]
    assert diagnose(amd, needs_runtime=True, skew_s=0, gpus=[], torch="2.13.0+cpu") == []  # only its CPU
    [problem] = diagnose(amd, needs_runtime=True, skew_s=0, gpus=None, torch="2.13.0+cpu")
    assert (
        problem.is_fatal
        and problem.text == "its AMD GPUs need a ROCm build of torch, and the server's torch is 2.13.0+cpu"
    )
    assert diagnose(amd, needs_runtime=True, skew_s=0, gpus=None, torch="2.13.0+rocm6.4") == []
    assert diagnose(amd, needs_runtime=False, skew_s=0, gpus=None, torch="2.13.0+cpu") == []  # its own interpreter


@pytest.mark.parametrize(
    ("local", "kind"),
    [("rocm6.4", "rocm"), ("cu128", "cuda"), ("xpu", "xpu"), ("cpu", None), ("", None), ("git1", None)],
)
def test_a_machine_gets_the_servers_own_build_of_torch_if_it_is_for_its_gpus(monkeypatch, local, kind):
    versions = {"torch": f"2.13.0+{local}" if local else "2.13.0", "torchvision": "0.30.0"}
    monkeypatch.setattr(runtime, "installed", versions.get)
    builds = runtime.torch_builds()
    assert list(builds) == ([kind] if kind else [])
    if kind:
        assert builds[kind]["index"] == f"https://download.pytorch.org/whl/{local}"
        limits = bootstrap.pinned("numpy==2.3.5\ntorch==2.13.0\ntorchvision==0.30.0\n", builds[kind]["pins"])
        assert limits == f"numpy==2.3.5\ntorchvision==0.30.0\ntorch==2.13.0+{local}\n"


def test_a_site_names_its_own_indexes_of_torch_or_a_wheelhouse(monkeypatch):
    monkeypatch.setattr(runtime, "installed", {"torch": "2.13.0+cu128"}.get)
    indexes = runtime.torch_indexes("cuda=https://mirror/cu128, rocm=file:///srv/rocm")
    builds = runtime.torch_builds(indexes)
    assert {kind: build["index"] for kind, build in builds.items()} == indexes
    assert (builds["cuda"]["pins"], builds["rocm"]["pins"]) == ("torch==2.13.0+cu128\n", "")
    assert builds["rocm"]["name"] != runtime.torch_builds({"rocm": "https://other"})["rocm"]["name"], "another runtime"
    assert bootstrap.sources({}, builds["rocm"]) == ["--extra-index-url", "file:///srv/rocm"]
    assert bootstrap.sources({"wheelhouse": "/srv/wheels"}, builds["rocm"]) == [
        "--no-index",
        "--find-links",
        "/srv/wheels",
    ]
    assert bootstrap.sources({}, {}) == []
    for bad in ("cuda", "tpu=https://x", "cuda=ftp://x"):
        with pytest.raises(InvalidSpec, match="torch_index"):
            runtime.torch_indexes(bad)


def test_an_amd_machine_is_not_refused_where_the_site_has_torch_for_it(monkeypatch):
    monkeypatch.setattr(runtime, "installed", {"torch": "2.13.0"}.get)
    given = [
        ServerSettings(),
        ServerSettings(torch_index="rocm=https://mirror/rocm"),
        ServerSettings(wheelhouse="/srv"),
    ]
    found = [
        diagnose(GOOD | {"rocm": 8}, needs_runtime=True, skew_s=0.0, gpus=None, torch=runtime.torch_given(one, "rocm"))
        for one in given
    ]
    assert [len(problems) for problems in found] == [1, 0, 0]


def test_what_a_trial_of_the_devices_found_is_named_with_the_next_command():
    good, bad = (
        {"label": "GPU 0", "uuid": "GPU-a", "said": "ok"},
        {"label": "GPU 1", "uuid": "GPU-b", "said": "CUDA error"},
    )
    assert device_problems({"devices": [good], "all_reduce": None}, "gpu1") == []
    one, other = device_problems({"devices": [good, bad], "all_reduce": "NCCL error"}, "gpu1")
    assert one.text == "GPU 1 does not work: CUDA error" and "shoal pool drain gpu1 --device GPU-b" in one.fix
    assert "all-reduce" in other.text and not (one.is_fatal or other.is_fatal)


def test_the_devices_of_a_machine_that_an_earlier_version_added_are_those_its_probe_found():
    cards = [
        ["0", "Tesla T4", "535.1", "GPU-a", "00000000:03:00.0", "15360"],
        ["2", "NVIDIA GB10", "580", "GPU-b", "000F:01:00.0", "[N/A]"],
    ]
    first, second = probed_devices("cuda", [0, 2], {"gpus": cards})  # a row of an earlier version
    assert (first.uuid, first.model, first.memory, first.pci) == ("GPU-a", "Tesla T4", 15360 << 20, "0000:03:00.0")
    assert (second.index, second.memory) == (2, None)
    assert probed_devices("cuda", [0], {"gpus": [["0", "Tesla T4", "535.1"]]}) == ()  # a probe of 0.1
    assert probed_devices("cpu", [], {}) == ()
