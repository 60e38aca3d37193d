"""The processes a node has to start: what the runtime contract says, put together for this machine."""

from __future__ import annotations

import os

from shoal.agent import preflight, runtime
from shoal.agent.inputs import OUTPUT, checkpoint_path, data_path
from shoal.agent.logs import Capture
from shoal.agent.node import WorkDir
from shoal.agent.sandbox import Bind, Mode, Rewriter
from shoal.agent.wire import JoinReply, Launch
from shoal.agent.workers import Spec, rank_pipes


def specs(
    launch: Launch, join: JoinReply, work: WorkDir, python: str, binds: list[Bind], mode: Mode, capture: Capture
) -> list[Spec]:
    """`python`: the job's interpreter; `capture` reads what torchrun's workers print."""
    rewrite = Rewriter(binds if mode is Mode.REWRITE else ())
    ranks = range(launch.node * join.accels, (launch.node + 1) * join.accels)
    command = runtime.command(join.entry, python, work.source)
    data = data_path(join.mounts)
    argv = preflight.command(command._replace(argv=[rewrite(a) for a in command.argv]), join).argv
    script = runtime.script_text(work.source, command.script)
    if data and script and not runtime.passes_data(join.entry) and runtime.accepts_data(script):
        argv += ["--data", rewrite(data)]
    checkpoint = checkpoint_path(join.mounts)
    paths = runtime.Paths(
        rewrite(data) if data else None,
        rewrite(OUTPUT),
        rewrite(checkpoint) if checkpoint else None,
        str(work.spool("sdk")),
    )
    host = runtime.host_env(os.environ, python, launch.python)
    node = runtime.node_env(launch, join, paths) | runtime.network_env(join, host)
    user = join.env | join.secrets

    def env(own: dict[str, str]) -> dict[str, str]:
        return runtime.merge(host, node, user, own | preflight.env(join, paths.spool, paths.output), rewrite)

    if not command.per_rank:
        return [Spec(argv, env(runtime.launcher_env(launch, join)), ranks.start, group=True)]
    if join.launcher == "torchrun":
        prefix = rank_pipes(capture, work.tmp / "ranks", ranks)
        return [Spec(runtime.torchrun(launch, join, python, [*prefix, *argv]), env({}), None)]
    plain = runtime.is_plain(join, script)
    return [
        Spec(argv, env(runtime.rank_env(launch, join, local, str(work.tmp / f"error.{rank}.json"), plain=plain)), rank)
        for local, rank in enumerate(ranks)
    ]
