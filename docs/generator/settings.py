"""docs/reference/settings.md: the server's settings, environment variables and the data directory."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import PurePosixPath

from generator._markdown import field_docs, prose, table
from shoal.core.settings import ENV_VARS, Layout, ServerSettings

_PATHS = {
    "server_dir": "Everything of the server but artifacts and nodes. Mode 0700.",
    "server_log": "What the server has to say; `shoal server log` shows its end.",
    "database": "Accounts, jobs, events, logs (SQLite, with `-wal` and `-shm` beside it).",
    "settings_file": "The settings above.",
    "store_dir": "Sources, by content hash.",
    "nodes_dir": "One directory per node of an attempt: source, spool, outputs. Deleted with the job.",
    "cache_dir": "Shared by all jobs of this machine and user: environments built from requirements.txt.",
}
"""Descriptions of the paths that have no docstring in core.settings."""

_OWN = {
    "SHOAL_DEBUG": "Set to 1 to see Python's traceback when a command fails inside Shoal.",
}
_INTERNAL = {
    "SHOAL_LOG_RATE_KB_S": "From the server to its agents: the setting `log_rate_kb_s`.",
    "SHOAL_NODE_DIR": "Marks every process of a node, so that none is left behind.",
    "SHOAL_GIT_SCHEME": "With SHOAL_GIT_NETLOC, SHOAL_GIT_USERNAME and SHOAL_GIT_TOKEN: from the server to the git it runs.",
}
_TEXT = """# Settings

A setting comes from its default, then `settings.toml`, then the environment, then the command line; the last one given wins.

## Server settings

In `server/settings.toml` below the data directory, one `name = value` a line. `shoal server start` and `shoal up` write what
is given on their command line (`--host`, `--port`, `--slots`) to it. The server reads it when it starts; an unknown name stops
it with a message. What concerns a single job is an option of [`training run`](cli.md#shoal-training-run).

{settings}
For example:

```toml
host = "0.0.0.0"
port = 8443
tls_cert = "auto"
sign_up = true
stop_grace_s = 60.0
```

## Environment variables

Read by the command line, the server and its agents. What a script finds in *its* environment is in
[What a script finds](job-runtime.md#environment-variables).

{env}
Set by Shoal for its own processes; nothing to set by hand:

{internal}
## Data directory

`SHOAL_HOME`, by default `~/.shoal`. Everything lives here; stop the server and copy the directory to back it up or move it.
Deleting it deletes the server with all jobs.

{layout}"""


def page() -> str:
    docs = field_docs(ServerSettings)
    settings = table(
        ["Setting", "Type", "Default", "Meaning"],
        [(f"`{f.name}`", str(f.type), f"`{_toml(f.default)}`", prose(docs[f.name])) for f in fields(ServerSettings)],
    )
    return _TEXT.format(
        settings=settings,
        env=_variables(ENV_VARS | {k: v for k, v in _OWN.items() if k not in ENV_VARS}),
        internal=_variables({k: v for k, v in _INTERNAL.items() if k not in ENV_VARS}),
        layout=table(["Path", "What"], _layout()),
    )


def _variables(known: dict[str, str]) -> str:
    return table(["Variable", "Meaning"], [(f"`{name}`", prose(text)) for name, text in known.items()])


def _layout() -> list[tuple[str, str]]:
    root = PurePosixPath("/home")
    rows = []
    for name, value in vars(Layout).items():
        if isinstance(value, property) and value.fget is not None:
            path = PurePosixPath(str(value.fget(_Rooted(root)))).relative_to(root)
            text = inspect.getdoc(value.fget) or _PATHS[name]
            rows.append((f"`{path}{'/' if name.endswith('_dir') else ''}`", prose(text)))
    return rows


class _Rooted(Layout):
    """A layout whose root is no real path, so that the page is the same everywhere."""

    def __init__(self, root: PurePosixPath):
        object.__setattr__(self, "root", root)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
