"""docs/reference/project-file.md: the keys of shoal.yaml; and its JSON schema."""

from __future__ import annotations

import json
import typing
from typing import Any

from generator._markdown import field_docs, prose, table
from shoal.core.project_file import OPTION_OF, ProjectFile, ProjectJob, json_schema

_TEXT = """# Project file

`shoal.yaml` in the root of a folder has the options of its jobs. `shoal init` [writes one](../howto/project-file.md). `shoal training run`, `training quote`
and `preflight` read it for code from a folder (the current one, or `--dir`); `shoal run` takes `name`, `run`, `args`, `env` and `emulate_cuda` from it. It is
not read for code from elsewhere (`--repository-url`, `--source-name`, `--zip`, `--file`, `--notebook`).

- **What wins**: typed options, then the profile given by `--profile`, then the file, then the defaults. `env`, `secrets`, `labels` and `args` (as a mapping) are
  combined by name; other values are replaced.
- **Contradictions** with something that wins are left out: `--device cpu` removes `gpu` and `gpu_memory`, `--accels 2` the number in `gpu: H100:8`, `--nodes 2`
  removes `grow`, `--env KEY=x` a secret for the same variable, and another `run` in a profile the `args`.
- **Script**: a script typed after `--` replaces `run` and `args`. Typed words that begin with `--` are added after `args`.
- **Name**: a typed name is used as it is. A name from the file, or from the folder, gets a number if jobs have it already.
- **Values**: numbers are passed on as they are written (`1.10` stays `1.10`); `true` and `false` in `env` need quotes. A key that is unknown or has a wrong value
  is an error that names its line.
- **Editors** use the JSON schema [shoal.schema.json](shoal.schema.json). `shoal init --schema` prints it, and servers have it at
  [`/api/v1/schemas/project-file`](api.md).

## Keys

All are optional.

{keys}
"""


def page() -> str:
    docs = field_docs(ProjectFile)
    rows = [(f"`{key}`", _kind(key), _option(key), prose(docs[key])) for key in ProjectFile.model_fields]
    return _TEXT.format(keys=table(["Key", "Value", "Option", "Meaning"], rows)).rstrip() + "\n"


def schema() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _option(key: str) -> str:
    if key in ("name", "run", "args"):
        return {"name": "`NAME`", "run": "`-- SCRIPT`", "args": "`-- SCRIPT ARGS…`"}[key]
    if key == "pipeline":
        return "`training pipeline`"
    return "`--profile`" if key == "profiles" else f"`--{OPTION_OF.get(key, key).replace('_', '-')}`"


def _kind(key: str) -> str:
    if key in ("profiles", "pipeline"):
        return "name → keys of this page"
    if key == "args":
        return "mapping, list or text"
    annotation = ProjectJob.model_fields[key].annotation
    kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    return _name(kinds[0])


def _name(kind: Any) -> str:
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(f"`{one}`" for one in typing.get_args(kind))
    if typing.get_origin(kind) is dict:
        return "name → text"
    if typing.get_origin(kind) is list:
        return "list of text"
    return {str: "text", int: "integer", float: "number", bool: "`true` or `false`"}[kind]
