"""What a machine's facts mean: one list of problems, each with its cure. Decides only; looks at nothing."""

from __future__ import annotations

import sys
from typing import Any

from shoal.core.errors import InvalidSpec
from shoal.core.pool import Problem

GIB = 1 << 30
RUNTIME_DISK = 6 * GIB
"""torch, Ray and what they bring, unpacked."""
JOBS_DISK = 1 * GIB
SKEW_S, WORST_SKEW_S = 2.0, 300.0
SLOW_LOOKUP_S = 1.0


def diagnose(facts: dict[str, Any], *, needs_runtime: bool, skew_s: float, gpus: list[int] | None) -> list[Problem]:
    found = [
        *_python(facts, needs_runtime),
        *_disk(facts, needs_runtime),
        *_network(facts),
        *_clock(skew_s),
        *_accelerators(facts, gpus),
    ]
    return sorted(found, key=lambda p: not p.is_fatal)


def missing_parts(facts: dict[str, Any], versions: dict[str, str | None]) -> list[Problem]:
    """Of an interpreter that was named: it must have the server's own versions."""
    have = facts["installed"]
    return [
        Problem(
            text=f"{facts['executable']} has {name} {have.get(name) or '–'}, the server {version}",
            fix=f"{facts['executable']} -m pip install '{name}=={version}', or leave --python away",
            is_fatal=True,
        )
        for name, version in versions.items()
        if have.get(name) != version
    ]


def share(facts: dict[str, Any], *, gpus: list[int] | None, slots: int | None) -> tuple[str, int, list[int] | None]:
    """(kind, slots, GPUs) of what the pool gets."""
    if facts["gpus"]:
        chosen = gpus if gpus is not None else [int(card[0]) for card in facts["gpus"]]
        if slots is not None:
            raise InvalidSpec("It has GPUs: a slot is one of them.", hint="--gpus 0,1")
        return "cuda", len(chosen), chosen
    if facts["rocm"]:
        return "rocm", len(gpus) if gpus else slots or int(facts["rocm"]), gpus
    return "cpu", slots or max(1, int(facts["cores"]) // 2), None


def _python(facts: dict[str, Any], needs_runtime: bool) -> list[Problem]:
    found, ours = tuple(facts["python"][:2]), sys.version_info[:2]
    if found != ours:
        text = f"its Python is {found[0]}.{found[1]}, the server's {ours[0]}.{ours[1]}"
        fix = f"apt install python{ours[0]}.{ours[1]} python{ours[0]}.{ours[1]}-venv, or --python PATH"
        return [Problem(text=text, fix=fix, is_fatal=True)]
    if needs_runtime and not facts["has_venv"]:
        text = f"{facts['executable']} cannot make environments"
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
    text = f"only {facts['disk_free'] / GIB:.1f} GiB free below {facts['home']}; it takes {least / GIB:.0f}"
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
        fix = f"echo '{facts['address']} {facts['hostname']}' >> /etc/hosts, or mend its name server"
        found.append(Problem(text=text, fix=fix))
    return found


def _clock(skew_s: float) -> list[Problem]:
    if abs(skew_s) < SKEW_S:
        return []
    way = "ahead of" if skew_s > 0 else "behind"
    text = f"its clock is {abs(skew_s):.0f} s {way} the server's"
    return [Problem(text=text, fix="timedatectl set-ntp true", is_fatal=abs(skew_s) >= WORST_SKEW_S)]


def _accelerators(facts: dict[str, Any], gpus: list[int] | None) -> list[Problem]:
    if facts["gpu_error"]:
        text = f"nvidia-smi fails: {facts['gpu_error']}"
        return [Problem(text=text, fix="Reinstall the NVIDIA driver and reboot.", is_fatal=gpus is not None)]
    if facts["nvidia_cards"] and not facts["gpus"]:
        text = f"{facts['nvidia_cards']} NVIDIA cards, but no driver for them"
        return [Problem(text=text, fix="apt install nvidia-driver", is_fatal=gpus is not None)]
    have = [int(card[0]) for card in facts["gpus"]] or list(range(int(facts["rocm"])))
    lacking = [gpu for gpu in gpus or () if gpu not in have]
    if not lacking:
        return []
    text = f"it has no GPU {', '.join(map(str, lacking))}"
    fix = f"--gpus {','.join(map(str, have))}" if have else "Leave --gpus away: it has no GPUs."
    return [Problem(text=text, fix=fix, is_fatal=True)]
