"""A machine is brought into the pool by SSH, step by step; every step is told, and the first failure ends it with its cure."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from shoal.core.errors import Internal, Refused, ShoalError
from shoal.core.pool import PoolAdd, Problem, Step
from shoal.server.context import Context
from shoal.server.services import pool_rows
from shoal.server.services.pool_look import look
from shoal.server.services.pool_problems import share
from shoal.server.services.pool_runtime import runtime
from shoal.server.services.pool_ssh import Ssh

logger = logging.getLogger(__name__)
INSTALL_S = 3_600.0
START_S = 120.0
JOINED_S = 90.0


class Steps:
    """Told while they are done; kept when all is over."""

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

    def say(self, words: dict[str, Any]) -> None:
        """What the machine itself says it does."""
        if "say" in words:
            text = self.found[-1].text.partition(":")[0]
            self._change(text=f"{text}: {words['say']}")

    def _end(self, state: Literal["done", "failed"], began: float) -> None:
        self._change(state=state, seconds=round(time.monotonic() - began, 1))

    def _change(self, **values: Any) -> None:
        self.found[-1] = self.found[-1].model_copy(update=values)


class Adding:
    """In the background, from the first word to the machine's place in the pool."""

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
            logger.info("machine %s has problems that keep it out", self.name)
        except ShoalError as error:
            self._blame(error)
        except Exception:
            logger.exception("machine %s could not be added", self.name)
            self._blame(Internal())
        self._keep(state)

    def _add(self) -> None:
        steps, ssh = self.steps, self.ssh
        with steps.step(f"Reaching {ssh.shown} by SSH"):
            ssh.do({"do": "hello"}, python=self.asked.python)
            address = ssh.address()
        with steps.step("Opening this server to machines"):
            url = self.ctx.pool.connect(self.ctx, address)
        with steps.step("Checking it"):
            facts, self.problems = look(self.ctx, ssh, self.asked, url)
            if any(problem.is_fatal for problem in self.problems):
                raise Unfit
        python = str(facts["executable"])
        if self.asked.python is None:
            with steps.step("Setting up its runtime"):
                python = self._install(facts)
        with steps.step("Starting its Ray node"):
            self._enter(facts, python, url)
        with steps.step("Waiting for it to join"):
            self._wait(facts["home"], python)

    def _install(self, facts: dict[str, Any]) -> str:
        """An environment of our own there, unless it stands already."""
        ours = runtime()
        wheel = f"{facts['home']}/wheels/{ours.sha256[:12]}/{ours.wheel_name}"
        self.ssh.put(ours.wheel, wheel)
        order = {"do": "install", "home": facts["home"], "runtime": ours.name, "wheel": wheel, "extras": ours.extras,
                 "constraints": ours.constraints}  # fmt: skip
        done = self.ssh.do(order, python=facts["executable"], say=self.steps.say, timeout_s=INSTALL_S)
        return str(done["python"])

    def _enter(self, facts: dict[str, Any], python: str, url: str) -> None:
        """Start what connects it, then let the engine know it."""
        kind, slots, gpus = share(facts, gpus=self.asked.gpus, slots=self.asked.slots)
        home, address = facts["home"], facts["address"]
        order = self.ctx.pool.node_order(self.name, slots=slots, python=python, home=home, address=address)
        self.ssh.do({"do": "start", **order}, python=python, timeout_s=START_S)
        pool_rows.change(self.ctx, self.machine_id, state=pool_rows.UP, kind=kind, slots=slots, gpus=gpus,
                         address=address, home=home, python=python, url=url, facts=facts)  # fmt: skip
        self.ctx.pool.refresh(self.ctx)

    def _wait(self, home: str, python: str) -> None:
        """If it does not come, what it says is told, and it is ended: it would try for ever."""
        try:
            wait_until_up(self.ctx, self.name)
        except Refused as error:
            said = self.ssh.do({"do": "last_words", "home": home}, python=python)["text"]
            self.ssh.do({"do": "stop", "home": home}, python=python)
            raise Refused(f"{error.message} It says: {said}", hint=error.hint) from None

    def _blame(self, error: ShoalError) -> None:
        fix = error.hint or f"Then again: shoal pool add {self.ssh.shown}"
        self.problems.insert(0, Problem(text=error.message.rstrip("."), fix=fix, is_fatal=True))

    def _keep(self, state: str) -> None:
        ctx, steps = self.ctx, [step.model_dump() for step in self.steps.found]
        problems = [problem.model_dump() for problem in self.problems]
        pool_rows.change(ctx, self.machine_id, state=state, steps=steps, problems=problems)
        ctx.pool.end(self.machine_id)
        ctx.pool.refresh(ctx)
        ctx.pool.disconnect(ctx)


class Unfit(Exception):
    """It has problems that keep it out."""


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
                f"Its Ray node has started but did not join within {JOINED_S:.0f} s.",
                hint="Do the two reach each other on all TCP ports? Then add it again.",
            )
        time.sleep(0.1)
