"""Registration only: which command lives where. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Group, Parameter

from shoal import __version__
from shoal.cli import (
    check,
    console,
    instrument,
    launch_command,
    login,
    preflight,
    replay,
    run,
    server,
    sync,
    verify,
    version,
)
from shoal.cli._errors import run_guarded
from shoal.cli._output import out
from shoal.cli._session import session

WORK = Group("Work", sort_key=1)
PEOPLE = Group("People and access", sort_key=2)
SERVER = Group("Server", sort_key=3)
GLOBAL = Group("Options of every command", sort_key=99)

app = App(
    name=out.prog,
    help="Train PyTorch models on whatever machines you have.",
    help_format="plaintext",
    version=__version__,
    default_parameter=Parameter(negative=(), show_default=False),
)

app.command(
    "shoal.cli.training:app", name="training", group=WORK, sort_key=0, help="Run training jobs, watch and stop them."
)
app.command("shoal.cli.sweep:app", name="sweep", group=WORK, help="Try many values, keep the best.")
app.command("shoal.cli.swarm:app", name="swarm", group=WORK, help="Train one model together, over any machines.")
app.command("shoal.cli.dataset:app", name="dataset", group=WORK, help="Push data, look at it, fetch it.")
app.command("shoal.cli.checkpoint:app", name="checkpoint", group=WORK, help="What training leaves behind.")
app.command("shoal.cli.notebook:app", name="notebook", group=WORK, help="See what becomes of a notebook as a job.")
app.command("shoal.cli.source:app", name="source", group=WORK, help="Name git repositories to run code from.")
app.command(console.console, group=WORK)
app.command("shoal.cli.queue:app", name="queue", group=WORK, help="See what waits and why, and who may use how much.")
app.command("shoal.cli.billing:app", name="billing", group=WORK, help="See what was used, and what it costs.")
app.command(
    "shoal.cli.machine:app",
    name="machine",
    group=WORK,
    help="See the machines and their slots, and rent a share by SSH.",
)
app.command("shoal.cli.pool:app", name="pool", group=SERVER, help="Bring machines in, check them, take them out.")

app.command(run.run, group=WORK, sort_key=1, usage=f"Usage: {out.prog} run SCRIPT [OPTIONS] [-- ARGS...]")
app.command(
    verify.verify_script,
    name="verify-resume",
    group=WORK,
    usage=f"Usage: {out.prog} verify-resume SCRIPT [OPTIONS] [-- ARGS...]",
)
app.command(check.check, group=WORK, usage=f"Usage: {out.prog} check PATH [OPTIONS] [-- ARGS...]")
app.command(instrument.instrument, group=WORK)
app.command(preflight.preflight, group=WORK, usage=f"Usage: {out.prog} preflight NAME [OPTIONS] -- SCRIPT [ARGS...]")
app.command(sync.sync, group=WORK)
app.command(launch_command.launch_command, group=WORK)
app.command(replay.replay, group=WORK, usage=f"Usage: {out.prog} replay FOLDER [OPTIONS] [-- ARGS...]")

# Lazy commands lose their own help page to the line shown in the list, so single ones are registered as functions;
# their modules import nothing but what is here already.
for command in (login.login, login.logout, login.signup, login.whoami):
    app.command(command, group=PEOPLE)
app.command("shoal.cli.workspace:app", name="workspace", group=PEOPLE, help="Workspaces and their members.")
app.command("shoal.cli.key:app", name="key", group=PEOPLE, help="API keys.")
app.command("shoal.cli.secret:app", name="secret", group=PEOPLE, help="Values that reach jobs and nobody else.")
app.command(
    "shoal.cli.code_registry:app", name="code-registry", group=PEOPLE, help="Git hosts with private repositories."
)

for command in (server.up, server.down):
    app.command(command, group=SERVER)
app.command("shoal.cli.server:app", name="server", group=SERVER, help="The server on this machine.")
app.command("shoal.cli.engine:app", name="engine", group=SERVER, help="Use clusters with a queue of their own: Slurm.")
app.command("shoal.cli.store:app", name="store", group=SERVER, help="Upkeep of the server's store.")
app.command(version.version, group=SERVER)
app.suppress_keyboard_interrupt = app.meta.suppress_keyboard_interrupt = False
for flag in ("--help", "-h", "--version"):
    app[flag].group = (GLOBAL,)


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    url: Annotated[str | None, Parameter(group=GLOBAL, help="Server to talk to (SHOAL_URL).")] = None,
    workspace: Annotated[
        str | None, Parameter(name=("--workspace", "-w"), group=GLOBAL, help="Workspace to work in (SHOAL_WORKSPACE).")
    ] = None,
    json: Annotated[bool, Parameter(group=GLOBAL, help="Print JSON for machines.")] = False,
    wide: Annotated[bool, Parameter(group=GLOBAL, help="Show all columns of a table, ids included.")] = False,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"), group=GLOBAL, help="Print data and errors only.")] = False,
) -> object:
    out.json, out.wide, out.quiet = json, wide, quiet
    session.url, session.workspace = url, workspace
    if not tokens:
        return _welcome()
    return app(tokens, exit_on_error=False, print_error=False, result_action="return_value")


def main(tokens: Sequence[str] | None = None) -> int:
    """The console scripts `shoal` and `flexai`; the exit code."""
    given = list(sys.argv[1:] if tokens is None else tokens)
    session.after_dashes = len(given) - given.index("--") - 1 if "--" in given else None
    return run_guarded(lambda: app.meta(given, exit_on_error=False, print_error=False, result_action="return_value"))


def _welcome() -> int:
    prog = out.prog
    out.line(f"""Shoal trains PyTorch models on whatever machines you have. Start here:

  {prog} training run hello -f -- train.py   run a script of this folder and watch it
  {prog} training list                       see your jobs
  {prog} machine list                        see what they can run on

Everything else: {prog} --help""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
