"""Names of new jobs: chosen for people who type none, and numbered if a job has the name already."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.core.errors import NameTaken

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.jobs import JobSpec, JobView

_KINDS = "amber bold brisk calm clear coral deep eager fair fleet gentle golden keen light lucid merry mild noble quick quiet rapid silver steady still sunny swift tidal vivid warm wide".split()  # fmt: skip
_FISH = "anchovy barbel bream carp char cod dace eel garfish goby grayling haddock hake halibut herring ide lamprey ling mackerel minnow mullet perch pike plaice roach salmon sardine shad smelt sole sprat tench trout tuna turbot zander".split()  # fmt: skip
_TRIES = 5


def speakable_name() -> str:
    """Return a name that can be said aloud, such as `brisk-herring-42`. Not unique, so callers number it if it is taken."""
    chosen = random.SystemRandom()
    return f"{chosen.choice(_KINDS)}-{chosen.choice(_FISH)}-{chosen.randrange(10, 100)}"


def free_name(client: Client, name: str) -> str:
    """Return the name, with the next number (name-2, name-3, …) if jobs have it already."""
    numbers = [1] * any(job.name == name for job in client.jobs.list(search=name, limit=500))
    found = (job.name.removeprefix(f"{name}-") for job in client.jobs.list(search=f"{name}-", limit=500))
    numbers += [int(rest) for rest in found if rest.isdecimal()]
    return f"{name}-{max(numbers) + 1}" if numbers else name


def create_job(
    client: Client,
    spec: JobSpec,
    *,
    preflight: str | None = None,
    replace: bool = False,
    reuse: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> JobView:
    """Submit a job. If its name is taken: with `replace` the finished job of that name is deleted, else it gets a number.

    Another person may take a name between the two requests, so a refused name is numbered again. `say` is told about that.
    """
    wanted = spec.name
    for _ in range(_TRIES):
        try:
            job = client.jobs.create(spec, preflight=preflight, replace=replace, reuse=reuse)
        except NameTaken:
            spec.name = free_name(client, wanted)
            if spec.name == wanted:
                raise  # the name is not a job's that this workspace lists
            continue
        if spec.name != wanted and job.name == spec.name:
            say(f"There is already a job '{wanted}', so this one is '{spec.name}' (--replace deletes the older one).")
        return job
    raise NameTaken(f"The name '{wanted}' and the numbers after it are taken again and again.")
