"""Adding machines to the pool: start all, then print their steps until each is added or has failed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.cli.shared.format import clean, plural
from shoal.cli.shared.output import out
from shoal.core.errors import Refused

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.pool import PoolAdd, PoolMachine, Problem

_POLL_S = 0.2


def add_all(client: Client, asked: list[PoolAdd]) -> int:
    waiting = {machine.id: 0 for machine in [client.pool.add(one) for one in asked]}
    several, done = len(waiting) > 1, []
    while waiting:
        for machine_id, told in list(waiting.items()):
            machine = client.pool.get(machine_id)
            steps = [step for step in machine.steps if step.state != "doing"]
            for step in steps[told:]:
                lead = f"{machine.name}: " if several else ""
                mark = "✓" if step.state == "done" else "✗"
                out.info(f"{lead}{mark} {clean(step.text)} ({step.seconds:.1f} s)")
            waiting[machine_id] = len(steps)
            if machine.state != "adding":
                del waiting[machine_id]
                done.append(machine)
                _print_added(machine)
        if waiting:
            time.sleep(_POLL_S)
    if out.json:
        out.emit(done)
    return Refused.exit_code if any(machine.state == "failed" for machine in done) else 0


def _print_added(machine: PoolMachine) -> None:
    for problem in machine.problems:
        print_problem(problem)
    if machine.state == "failed":
        out.error(f"'{machine.name}' could not be added.", hint=machine.problems[0].fix if machine.problems else None)
    else:
        out.info(f"'{machine.name}' is in the pool with {plural(machine.slots, f'{machine.kind} slot')}.")


def print_problem(problem: Problem, lead: str = "") -> None:
    out.warn(f"{lead}{clean(problem.text)}. {clean(problem.fix)}")
