"""Adds a machine to the pool by SSH, step by step. Progress is shown per step; the first failure ends it, with a fix."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from shoal.agent.devices.device import Inventory
from shoal.core.errors import Internal, Refused, ShoalError
from shoal.core.pool import PoolAdd, Problem, Step
from shoal.engines.kinds import pool_kind
from shoal.server.context import Context
from shoal.server.pool import pool_rows
from shoal.server.pool.bootstrap import kind_of
from shoal.server.pool.problems import chosen, inventory_problems, share
from shoal.server.pool.runtime import runtime, torch_builds, torch_indexes
from shoal.server.pool.ssh import Ssh
from shoal.server.pool.ssh_check import examine, read_devices, try_devices

logger = logging.getLogger(__name__)
INSTALL_S = 3_600.0
START_S = 120.0
JOINED_S = 90.0


class Steps:
    """Steps of adding a machine: shown while they run, stored at the end."""

    def __init__(self, found: list[Step]):
        self.found = found

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        self.found.append(Step(text=text))
        began = time.monotonic()
        try:
            yield
        except BaseException:
            self._end("failed", began)
            raise
        self._end("done", began)

    def show_progress(self, words: dict[str, Any]) -> None:
        """Show the progress that the machine reports, as part of the current step."""
        if "say" in words:
            text = self.found[-1].text.partition(":")[0]
            self._change(text=f"{text}: {words['say']}")

    def _end(self, state: Literal["done", "failed"], began: float) -> None:
        self._change(state=state, seconds=round(time.monotonic() - began, 1))

    def _change(self, **values: Any) -> None:
        self.found[-1] = self.found[-1].model_copy(update=values)


class Adding:
    """Background task that adds one machine, from the first connection until it has joined the pool."""

    def __init__(self, ctx: Context, machine_id: str, name: str, asked: PoolAdd):
        self.ctx, self.machine_id, self.name, self.asked = ctx, machine_id, name, asked
        self.ssh = ssh_of(ctx, asked, is_new=True)
        self.steps = Steps(ctx.pool.begin(machine_id))
        self.problems: list[Problem] = []

    def run(self) -> None:
        state = pool_rows.FAILED
        try:
            self._add()
            state = pool_rows.UP
        except Unfit:
            logger.info("machine %s was not added because of its problems", self.name)
        except ShoalError as error:
            self._add_problem(error)
        except Exception:
            logger.exception("machine %s could not be added", self.name)
            self._add_problem(Internal())
        self._store_result(state)

    def _add(self) -> None:
        steps, ssh = self.steps, self.ssh
        with steps.step(f"Reaching {ssh.destination} by SSH"):
            ssh.do({"do": "hello"}, python=self.asked.python)
            address = ssh.address()
        with steps.step("Opening this server to machines"):
            url = self.ctx.pool.connect(self.ctx, address)
        with steps.step("Checking it"):
            facts, self.problems = examine(self.ctx, ssh, self.asked, url)
            if any(problem.is_fatal for problem in self.problems):
                raise Unfit
        python = str(facts["executable"])
        if self.asked.python is None:
            with steps.step("Setting up its runtime"):
                python = self._install(facts)
        with steps.step("Reading its accelerators"):
            found = read_devices(ssh, python)
            self.problems += inventory_problems(found, self.asked.gpus)
            if any(problem.is_fatal for problem in self.problems):
                raise Unfit
        if chosen(found, self.asked.gpus):
            with steps.step("Trying its accelerators"):
                self.problems += try_devices(ssh, python, self.name)
        with steps.step(f"Starting its {pool_kind().title} node"):
            self._start_node(facts, found, python, url)
        with steps.step("Waiting for it to join"):
            self._wait(facts["home"], python)

    def _install(self, facts: dict[str, Any]) -> str:
        """Install the server's runtime on the machine, unless it is there already; return its Python."""
        ours = runtime()
        wheel = f"{facts['home']}/wheels/{ours.sha256[:12]}/{ours.wheel_name}"
        self.ssh.put(ours.wheel, wheel)
        task = {"do": "install", "home": facts["home"], "runtime": ours.name, "wheel": wheel, "extras": ours.extras,
                 "constraints": ours.constraints, "kind": kind_of(facts), "wheelhouse": self.ctx.settings.wheelhouse,
                 "builds": torch_builds(torch_indexes(self.ctx.settings.torch_index)),
                 "daemon": pool_kind().daemon()}  # fmt: skip
        done = self.ssh.do(task, python=facts["executable"], say=self.steps.show_progress, timeout_s=INSTALL_S)
        return str(done["python"])

    def _start_node(self, facts: dict[str, Any], found: Inventory, python: str, url: str) -> None:
        """Start the machine's daemon, then make the machine known to the engine."""
        kind, slots, devices = share(found, cores=facts["cores"], gpus=self.asked.gpus, slots=self.asked.slots)
        home, address, gpus = facts["home"], facts["address"], self.asked.gpus
        task = self.ctx.pool.daemon_instructions(self.name, slots=slots, python=python, home=home, address=address,
                                                 gpus=gpus)  # fmt: skip
        self.ssh.do({"do": "start", **task}, python=python, timeout_s=START_S)
        pool_rows.change(self.ctx, self.machine_id, state=pool_rows.UP, kind=kind, slots=slots, gpus=gpus,
                         devices=[device.to_json() for device in devices], address=address, home=home, python=python,
                         url=url, facts=facts)  # fmt: skip
        self.ctx.pool.refresh(self.ctx)

    def _wait(self, home: str, python: str) -> None:
        """Wait until the machine has joined.

        If it does not, report its log and stop its daemon, which would retry forever.
        """
        try:
            wait_until_up(self.ctx, self.name)
        except Refused as error:
            log = self.ssh.do({"do": "last_words", "home": home, "daemon": pool_kind().daemon()}, python=python)["text"]
            self.ssh.do({"do": "stop", "home": home, "daemon": pool_kind().daemon()}, python=python)
            raise Refused(f"{error.message} Its log ends with: {log}", hint=error.hint) from None

    def _add_problem(self, error: ShoalError) -> None:
        fix = error.hint or f"Then retry: shoal pool add {self.ssh.destination}"
        self.problems.insert(0, Problem(text=error.message.rstrip("."), fix=fix, is_fatal=True))

    def _store_result(self, state: str) -> None:
        ctx, steps = self.ctx, [step.model_dump() for step in self.steps.found]
        problems = [problem.model_dump() for problem in self.problems]
        pool_rows.change(ctx, self.machine_id, state=state, steps=steps, problems=problems)
        ctx.pool.end(self.machine_id)
        ctx.pool.refresh(ctx)
        ctx.pool.disconnect(ctx)


class Unfit(Exception):
    """The machine has problems that prevent it from joining."""


def ssh_of(ctx: Context, asked: PoolAdd, *, is_new: bool = False) -> Ssh:
    return Ssh(
        user=asked.user,
        host=asked.host,
        port=asked.port,
        key=asked.key,
        known_hosts=ctx.layout.server_dir / "known_hosts",
        is_new=is_new,
    )


def wait_until_up(ctx: Context, name: str) -> None:
    deadline = time.monotonic() + JOINED_S
    while not any(m.name == name and m.state != "lost" for m in ctx.engine.capacity()):
        if time.monotonic() > deadline:
            raise Refused(
                f"Its {pool_kind().title} node has started but did not join within {JOINED_S:.0f} s.",
                hint="Check that the two machines reach each other on all TCP ports, then add it again.",
            )
        time.sleep(0.1)
