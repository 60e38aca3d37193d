"""Builds the list of processes a node has to start, from the runtime contract and this machine's paths."""

from __future__ import annotations

import os
from collections.abc import Callable

from shoal.agent.data.inputs import OUTPUT, checkpoint_path, data_path
from shoal.agent.devices.affinity import near_cpus
from shoal.agent.node import preflight
from shoal.agent.node.workdir import WorkDir
from shoal.agent.sandbox.mounts import Bind, Mode, Rewriter
from shoal.agent.wire import JoinReply, Launch
from shoal.agent.workers import runtime
from shoal.agent.workers.data_option import wants_data
from shoal.agent.workers.logs import Capture
from shoal.agent.workers.workers import Spec, rank_pipes

TRACKING_URI = "MLFLOW_TRACKING_URI"


def specs(
    launch: Launch,
    join: JoinReply,
    work: WorkDir,
    python: str,
    binds: list[Bind],
    mode: Mode,
    capture: Capture,
    tracking: Callable[[int], str] | None = None,
) -> list[Spec]:
    """Return the processes to start.

    `python` is the job's interpreter; `capture` reads the output of torchrun's workers; `tracking` returns the URI of MLflow's
    API for a rank, which workers get unless the user has named another one.
    """
    rewrite = Rewriter(binds if mode is Mode.REWRITE else ())
    ranks = range(launch.node * join.accels, (launch.node + 1) * join.accels)
    command = runtime.command(join.entry, python, work.source)
    data = data_path(join.mounts)
    argv = preflight.command(command._replace(argv=[rewrite(a) for a in command.argv]), join).argv
    script = runtime.script_text(work.source, command.script)
    if data and wants_data(join.entry, work.source, command.script):
        argv += ["--data", rewrite(data)]
    checkpoint = checkpoint_path(join.mounts)
    paths = runtime.Paths(
        rewrite(data) if data else None,
        rewrite(OUTPUT),
        rewrite(checkpoint) if checkpoint else None,
        str(work.spool("sdk")),
    )
    host = runtime.host_env(os.environ, python, launch.python) | launch.env
    node = runtime.node_env(launch, join, paths) | runtime.network_env(join, host)
    user = join.env | join.secrets
    if tracking is None or TRACKING_URI in user:
        tracking = None

    def tracked(rank: int) -> dict[str, str]:
        return {TRACKING_URI: tracking(rank)} if tracking else {}

    def env(own: dict[str, str]) -> dict[str, str]:
        return runtime.merge(host, node, user, own | preflight.env(join, paths.spool, paths.output), rewrite)

    if not command.per_rank:
        env_of_launcher = env(runtime.launcher_env(launch, join) | tracked(ranks.start))
        return [Spec(argv, env_of_launcher, ranks.start, near_cpus(launch.numa), group=True)]
    if join.launcher == "torchrun":
        bound = [
            runtime.own_device_env(launch, join, local, script) | tracked(rank) for local, rank in enumerate(ranks)
        ]
        prefix = rank_pipes(capture, work.tmp / "ranks", ranks, bound)
        return [Spec(runtime.torchrun(launch, join, python, [*prefix, *argv]), env({}), None, near_cpus(launch.numa))]
    plain = runtime.is_plain(join, script)

    def own(local: int, rank: int) -> dict[str, str]:
        place = runtime.rank_env(launch, join, local, str(work.tmp / f"error.{rank}.json"), plain=plain)
        device = runtime.own_device_env(launch, join, local, script)
        return place | device | runtime.place_env(launch, join, local) | tracked(rank)

    return [
        Spec(argv, env(own(local, rank)), rank, near_cpus(launch.numa[local : local + 1]))
        for local, rank in enumerate(ranks)
    ]
