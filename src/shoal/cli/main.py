"""Registration of all commands. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Group, Parameter

from shoal import __version__
from shoal.cli import check, console, instrument, login, user, version
from shoal.cli.init import app as init
from shoal.cli.launch_command import app as launch_command
from shoal.cli.preflight import app as preflight
from shoal.cli.replay import app as replay
from shoal.cli.run import app as run
from shoal.cli.server import app as server
from shoal.cli.shared.aliases import expand
from shoal.cli.shared.errors import run_guarded
from shoal.cli.shared.output import out
from shoal.cli.shared.project_file import from_project
from shoal.cli.shared.session import session
from shoal.cli.sync import app as sync
from shoal.cli.verify import app as verify

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
    "shoal.cli.training.app:app",
    name="training",
    group=WORK,
    sort_key=0,
    help="Run, watch and stop training jobs.",
)
app.command("shoal.cli.sweep.app:app", name="sweep", group=WORK, help="Search for the best hyperparameters.")
app.command("shoal.cli.swarm.app:app", name="swarm", group=WORK, help="Train one model together over the internet.")
app.command("shoal.cli.dataset.app:app", name="dataset", group=WORK, help="Push, inspect, check and fetch datasets.")
app.command(
    "shoal.cli.checkpoint.app:app", name="checkpoint", group=WORK, help="List, fetch, push and export checkpoints."
)
app.command(
    "shoal.cli.notebook.app:app", name="notebook", group=WORK, help="Convert notebooks to scripts that run as jobs."
)
app.command("shoal.cli.source:app", name="source", group=WORK, help="Register git repositories to run code from.")
app.command(console.console, group=WORK)
app.command("shoal.cli.queue:app", name="queue", group=WORK, help="Show waiting jobs, start estimates and quotas.")
app.command("shoal.cli.billing:app", name="billing", group=WORK, help="Show usage and costs.")
app.command(
    "shoal.cli.machine.app:app",
    name="machine",
    group=WORK,
    help="List machines and their slots, and rent a share of one by SSH.",
)
app.command("shoal.cli.pool.app:app", name="pool", group=SERVER, help="Add, check, drain and remove machines.")

app.command(
    run.run,
    group=WORK,
    sort_key=1,
    config=from_project,
    usage=f"Usage: {out.prog} run SCRIPT [OPTIONS] [-- ARGS...]",
)
app.command(init.init, group=WORK)
app.command(
    verify.verify_script,
    name="verify-resume",
    group=WORK,
    usage=f"Usage: {out.prog} verify-resume SCRIPT [OPTIONS] [-- ARGS...]",
)
app.command(check.check, group=WORK, usage=f"Usage: {out.prog} check PATH [OPTIONS] [-- ARGS...]")
app.command(instrument.instrument, group=WORK)
app.command(
    preflight.preflight,
    group=WORK,
    config=from_project,
    usage=f"Usage: {out.prog} preflight NAME [OPTIONS] -- SCRIPT [ARGS...]",
)
app.command(sync.sync, group=WORK)
app.command(launch_command.launch_command, group=WORK)
app.command(replay.replay, group=WORK, usage=f"Usage: {out.prog} replay FOLDER [OPTIONS] [-- ARGS...]")

# A command registered by import path shows the `help` line given here instead of its own help page. Commands without
# subcommands are therefore registered as functions; their modules import nothing that is not imported here already.
for command in (login.login, login.logout, login.signup, login.whoami):
    app.command(command, group=PEOPLE)
app.command(user.password, group=PEOPLE)
app.command("shoal.cli.user:app", name="user", group=PEOPLE, help="Manage the accounts of a server (admins).")
app.command("shoal.cli.audit:app", name="audit", group=PEOPLE, help="Show who did what on a server (admins).")
app.command("shoal.cli.workspace:app", name="workspace", group=PEOPLE, help="Manage workspaces and their members.")
app.command("shoal.cli.key:app", name="key", group=PEOPLE, help="Manage API keys.")
app.command("shoal.cli.notify:app", name="notify", group=PEOPLE, help="Be told when jobs end, fail or stall, and more.")
app.command("shoal.cli.secret:app", name="secret", group=PEOPLE, help="Store secret values for jobs.")
app.command(
    "shoal.cli.code_registry:app",
    name="code-registry",
    group=PEOPLE,
    help="Connect git hosts with private repositories.",
)

for command in (server.up, server.down):
    app.command(command, group=SERVER)
app.command(
    "shoal.cli.server.app:app", name="server", group=SERVER, help="Start, stop and inspect the server on this machine."
)
app.command("shoal.cli.engine:app", name="engine", group=SERVER, help="Add clusters with their own queue (Slurm).")
app.command("shoal.cli.store:app", name="store", group=SERVER, help="Check and clean up the server's store.")
app.command(
    "shoal.cli.doctor:app", name="doctor", group=SERVER, help="Examine this installation, its server and this machine."
)
app.command(version.version, group=SERVER)
app.command(
    "shoal.cli.completion.app:app",
    name="completion",
    group=SERVER,
    help="Complete commands, options and names with TAB in your shell.",
)
app.suppress_keyboard_interrupt = app.meta.suppress_keyboard_interrupt = False
for flag in ("--help", "-h", "--version"):
    app[flag].group = (GLOBAL,)


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    url: Annotated[str | None, Parameter(group=GLOBAL, help="URL of the server (SHOAL_URL).")] = None,
    workspace: Annotated[
        str | None, Parameter(name=("--workspace", "-w"), group=GLOBAL, help="Workspace to use (SHOAL_WORKSPACE).")
    ] = None,
    json: Annotated[bool, Parameter(group=GLOBAL, help="Print JSON.")] = False,
    wide: Annotated[bool, Parameter(group=GLOBAL, help="Show all columns of a table, including ids.")] = False,
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"), group=GLOBAL, help="Print data and errors only.")] = False,
) -> object:
    out.json, out.wide, out.quiet = json, wide, quiet
    session.url, session.workspace, session.uses_server = url, workspace, False
    if not tokens:
        return _welcome()
    return app(expand(app, tokens), exit_on_error=False, print_error=False, result_action="return_value")


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the console script `shoal` or `flexai` and return its exit code."""
    given = list(expand(app, sys.argv[1:] if tokens is None else tokens))
    session.after_dashes = len(given) - given.index("--") - 1 if "--" in given else None
    return run_guarded(lambda: app.meta(given, exit_on_error=False, print_error=False, result_action="return_value"))


def _welcome() -> int:
    prog = out.prog
    out.line(f"""Shoal trains PyTorch models on whatever machines you have. Start here:

  {prog} training run hello -f -- train.py   run a script of this folder and watch it
  {prog} init                                keep the options of this folder's jobs in a file
  {prog} training list                       see your jobs
  {prog} machine list                        see what they can run on

Everything else: {prog} --help""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
