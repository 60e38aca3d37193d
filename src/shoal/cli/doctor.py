"""`shoal doctor`, an examination of this installation, and `doctor gpu`, a report on this machine's accelerators."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from shoal.cli.shared.format import size
from shoal.cli.shared.output import Column, out
from shoal.core.settings import Layout

app = App(name="doctor")


@app.default
def doctor(*, client: bool = False) -> int:
    """Examine this installation: server, network, clock, versions, disk, devices, sandbox.

    Each problem is shown with what solves it. Nothing is started or changed.
    Exits 1 if there is an error, 0 if everything is fine or there are only
    warnings. A machine of the pool is examined by `shoal pool check`.

    For example:

      shoal doctor
      shoal doctor --client --url https://shoal.example.org
      shoal doctor --json

    Parameters
    ----------
    client
        Examine only the client and its connection to the server, not this machine.
    """
    from shoal.cli.installation_checks import examine
    from shoal.cli.shared.diagnosis import print_diagnosis

    found = examine(Layout(), only_client=client)
    out.show(found, lambda: print_diagnosis(found))
    return 1 if any(f.state == "error" for f in found) else 0


@app.command
def gpu(*, tensors: Annotated[bool, Parameter(negative="--no-tensors")] = True) -> int:
    """Report the GPUs of this machine, run one tensor on each and one all-reduce over all.

    No server is needed. The report contains no names of people, paths or
    addresses, so it can be attached to a bug report. It ends with 1 if a GPU
    cannot be used.

    For example:

      shoal doctor gpu
      shoal doctor gpu --json > report.json
      shoal doctor gpu --no-tensors

    Parameters
    ----------
    tensors
        Run a small multiplication on each GPU and an all-reduce over all of them,
        with the torch of this environment (default).
    """
    report = examine(tensors=tensors)
    out.show(report, lambda: _print(report))
    return 1 if report["problems"] else 0


def examine(*, tensors: bool) -> dict[str, Any]:
    """Return the report: versions, devices with the result of their tensors, the all-reduce, and all problems."""
    import os
    import platform

    from shoal import __version__
    from shoal.agent.devices import inventory, trial
    from shoal.agent.devices.visible import VARIABLES

    found = inventory.scan()
    tried = trial.try_all(found.offered) if tensors else {"devices": [], "all_reduce": None}
    said = {one["label"]: one["said"] for one in tried["devices"]}
    problems = [*found.problems, *(f"{label}: {words}" for label, words in said.items() if words != "ok")]
    if tried["all_reduce"] not in (None, "ok"):
        problems.append(f"an all-reduce over all GPUs: {tried['all_reduce']}")
    rows = [{**device.to_json(), "label": device.label, "tensor": said.get(device.label)} for device in found.offered]
    names = {name for group in VARIABLES.values() for name in group}
    return {
        "shoal": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "torch": _torch_version(),
        "kind": found.kind,
        "variables": {name: os.environ[name] for name in sorted(names) if name in os.environ},
        "devices": rows,
        "all_reduce": tried["all_reduce"],
        "problems": problems,
    }


def _torch_version() -> str | None:
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _print(report: dict[str, Any]) -> None:
    out.fields(
        [
            ("Shoal", report["shoal"]),
            ("Python", report["python"]),
            ("Kernel", report["kernel"]),
            ("Torch", report["torch"] or "not installed"),
            ("Slots", report["kind"]),
            ("All-reduce", report["all_reduce"]),
            ("Variables", " ".join(f"{name}={value}" for name, value in report["variables"].items()) or None),
        ]
    )
    out.line()
    columns = [
        Column("DEVICE", lambda d: d["label"]),
        Column("MODEL", lambda d: d.get("model", "")),
        Column(
            "MEMORY",
            lambda d: size(d["memory"]) if d.get("memory") else "shared" if d.get("model") else None,
            is_right=True,
        ),
        Column("PCI", lambda d: d.get("pci", ""), rank=2),
        Column("DRIVER", lambda d: d.get("driver", ""), rank=1),
        Column("UUID", lambda d: d.get("uuid", ""), rank=3),
        Column("TENSOR", lambda d: d.get("problem") or d["tensor"] or "not tried", is_text=True),
    ]
    out.table(report["devices"], columns, empty="No GPU that torch could use.")
    for problem in report["problems"]:
        out.warn(problem)
