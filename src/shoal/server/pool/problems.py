"""Diagnosis of a machine's facts: a list of problems, each with a fix. Pure functions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from shoal.agent.devices.device import Device, Inventory
from shoal.core.errors import InvalidSpec
from shoal.core.pool import Problem
from shoal.engines.kinds import pool_kind
from shoal.server.pool.bootstrap import kind_of

GIB = 1 << 30
RUNTIME_DISK = 6 * GIB
"""Bytes that torch, the cluster's software and their dependencies need on disk."""
JOBS_DISK = 1 * GIB
SKEW_S, WORST_SKEW_S = 2.0, 300.0
SLOW_LOOKUP_S = 1.0
_BUILDS = {"rocm": ("AMD", "a ROCm"), "xpu": ("Intel", "an XPU")}
"""Kind of accelerators that PyPI's torch does not support → their maker, and the build they need."""


def diagnose(
    facts: dict[str, Any],
    *,
    needs_runtime: bool,
    skew_s: float,
    gpus: Sequence[int | str] | None,
    torch: str | None = None,
) -> list[Problem]:
    """Return the problems of a machine that its probe shows; `torch` is the server's version of it, which the machine will get."""
    found = [
        *_python(facts, needs_runtime),
        *_disk(facts, needs_runtime),
        *_network(facts),
        *_clock(skew_s),
        *_driver(facts, gpus),
        *(_build(facts, torch) if needs_runtime and gpus != [] else ()),
    ]
    return sorted(found, key=lambda p: not p.is_fatal)


def missing_parts(facts: dict[str, Any], versions: dict[str, str | None]) -> list[Problem]:
    """Return the packages that a given interpreter (`--python`) is missing or has in another version than the server."""
    have = facts["installed"]
    return [
        Problem(
            text=f"{facts['executable']} has {name} {have.get(name) or '–'}, the server {version}",
            fix=f"{facts['executable']} -m pip install '{name}=={version}', or omit --python",
            is_fatal=True,
        )
        for name, version in versions.items()
        if have.get(name) != version
    ]


def share(
    found: Inventory, *, cores: int, gpus: Sequence[int | str] | None, slots: int | None
) -> tuple[str, int, list[Device]]:
    """Return the kind and number of slots that a machine brings to the pool, and the accelerator of each.

    Broken accelerators have a slot too, which takes jobs once they work. `gpus`: the accelerators to use; none if it is empty.
    """
    devices = chosen(found, gpus)
    if devices and slots is not None:
        raise InvalidSpec(
            "This machine has GPUs, and each is one slot; --slots does not apply.",
            hint="--gpus 0,1 uses some of them, and --gpus none only its CPU.",
        )
    if devices:
        return found.kind, len(devices), devices
    return "cpu", slots or max(1, cores // 2), []


def chosen(found: Inventory, gpus: Sequence[int | str] | None) -> list[Device]:
    """Return the accelerators that a list of numbers and UUIDs names; a number names all MIG slices of that GPU."""
    if gpus is None:
        return list(found.offered)
    return [device for device in found.offered if any(device.is_named(gpu) for gpu in gpus)]


def inventory_problems(found: Inventory, gpus: Sequence[int | str] | None) -> list[Problem]:
    """Return what is wrong with a machine's accelerators. A driver that tells nothing keeps the machine out: it is no CPU machine."""
    if gpus is not None and not gpus:
        return []
    silent = found.unread and not any(not device.problem for device in found.offered)
    missing = [gpu for gpu in gpus or () if not any(device.is_named(gpu) for device in found.offered)]
    problems = [
        Problem(
            text=text,
            fix="nvidia-smi or rocm-smi there says more; --gpus none adds only its CPU." if silent else "",
            is_fatal=bool(silent),
        )
        for text in found.problems
    ]
    if missing and not silent:
        have = ",".join(dict.fromkeys(str(device.index) for device in found.offered))
        problems.append(
            Problem(
                text=f"it has no GPU {', '.join(map(str, missing))}",
                fix=f"--gpus {have}" if have else "Omit --gpus: it has no GPUs.",
                is_fatal=True,
            )
        )
    return problems


def probed_devices(kind: str, gpus: Sequence[int], facts: dict[str, Any]) -> tuple[Device, ...]:
    """Return the accelerator of each slot of a machine that an earlier version added, if its probe told their UUIDs."""
    cards = {int(card[0]): card for card in facts.get("gpus") or () if len(card) >= 6}
    if kind != "cuda" or not all(gpu in cards for gpu in gpus):
        return ()
    return tuple(_device(gpu, *cards[gpu][1:6]) for gpu in gpus)


def _device(index: int, model: str, driver: str, uuid: str, pci: str, memory: str) -> Device:
    size = int(memory) << 20 if memory.isdigit() else None
    domain, colon, rest = pci.partition(":")
    address = f"{domain[-4:]}{colon}{rest}".lower()
    return Device(kind="cuda", index=index, uuid=uuid, pci=address, model=model, memory=size, driver=driver)


def _python(facts: dict[str, Any], needs_runtime: bool) -> list[Problem]:
    found, ours = tuple(facts["python"][:2]), sys.version_info[:2]
    if found != ours:
        text = f"its Python is {found[0]}.{found[1]}, the server's {ours[0]}.{ours[1]}"
        fix = f"apt install python{ours[0]}.{ours[1]} python{ours[0]}.{ours[1]}-venv, or --python PATH"
        return [Problem(text=text, fix=fix, is_fatal=True)]
    if needs_runtime and not facts["has_venv"]:
        text = f"{facts['executable']} cannot create virtual environments"
        return [Problem(text=text, fix=f"apt install python{ours[0]}.{ours[1]}-venv", is_fatal=True)]
    return []


def _disk(facts: dict[str, Any], needs_runtime: bool) -> list[Problem]:
    if not facts["writable"]:
        return [
            Problem(text=f"{facts['home']} cannot be written", fix="Give the user a home directory.", is_fatal=True)
        ]
    least = RUNTIME_DISK if needs_runtime else JOBS_DISK
    if facts["disk_free"] >= least:
        return []
    text = f"only {facts['disk_free'] / GIB:.1f} GiB free below {facts['home']}; {least / GIB:.0f} GiB are needed"
    return [Problem(text=text, fix="Free some space there.", is_fatal=True)]


def _network(facts: dict[str, Any]) -> list[Problem]:
    found = [
        Problem(
            text=f"it does not reach the server at {there}",
            fix="Open that port in the server's firewall.",
            is_fatal=True,
        )
        for there in facts["unreachable"]
    ]
    if not facts["open"]:
        text = f"the server does not reach it at {facts['address']}"
        found.append(
            Problem(text=text, fix="Let machines of the pool reach each other on all TCP ports.", is_fatal=True)
        )
    if facts["lookup_s"] >= SLOW_LOOKUP_S:
        text = f"reverse lookups of addresses take {facts['lookup_s']:.0f} s there, at every start of a job"
        fix = f"echo '{facts['address']} {facts['hostname']}' >> /etc/hosts, or fix its name server"
        found.append(Problem(text=text, fix=fix))
    return found


def _clock(skew_s: float) -> list[Problem]:
    if abs(skew_s) < SKEW_S:
        return []
    way = "ahead of" if skew_s > 0 else "behind"
    text = f"its clock is {abs(skew_s):.0f} s {way} the server's"
    return [Problem(text=text, fix="timedatectl set-ntp true", is_fatal=abs(skew_s) >= WORST_SKEW_S)]


def _build(facts: dict[str, Any], torch: str | None) -> list[Problem]:
    """PyPI has no build of torch for AMD and Intel: a machine only gets it from a server that has it, or from the site."""
    kind = kind_of(facts)
    if kind not in _BUILDS or torch is None or f"+{kind}" in torch:
        return []
    maker, build = _BUILDS[kind]
    text = f"its {maker} GPUs need {build} build of torch, and the server's torch is {torch}"
    needed = f"Shoal, {pool_kind().title} and {build} build of torch"
    fix = f"--python PATH of an interpreter there with {needed}, or set torch_index; --gpus none adds only its CPU"
    return [Problem(text=text, fix=fix, is_fatal=True)]


def _driver(facts: dict[str, Any], gpus: Sequence[int | str] | None) -> list[Problem]:
    if not gpus or facts["nvidia"] or not facts["nvidia_cards"]:
        return []
    text = f"{facts['nvidia_cards']} NVIDIA cards, but no driver for them"
    return [Problem(text=text, fix="apt install nvidia-driver", is_fatal=True)]


def device_problems(tried: dict[str, Any], machine: str) -> list[Problem]:
    """Return the problems that a trial of a machine's accelerators found; see shoal.agent.devices.trial."""
    found = [
        Problem(
            text=f"{one['label']} does not work: {one['said']}",
            fix=f"Until it does: shoal pool drain {machine} --device {one['uuid']}",
        )
        for one in tried["devices"]
        if one["said"] != "ok"
    ]
    if tried["all_reduce"] not in (None, "ok"):
        text = f"an all-reduce over its accelerators fails: {tried['all_reduce']}"
        found.append(Problem(text=text, fix="NCCL_DEBUG=INFO shoal doctor gpu, on that machine, says more."))
    return found
