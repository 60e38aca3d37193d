"""Restoring of checkpoints to the paths where the script wrote them: many scripts look for them only there.

Restored are the newest folder of /output-checkpoint, the files directly in it, the folders those name (DeepSpeed's `latest`),
and all checkpoints of the working directory. Those of the SDK are read from /input-checkpoint and are not copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy.orm import Session

from shoal.agent.wire import PUT_BACK
from shoal.core.agents import PutBack
from shoal.core.artifacts import Manifest
from shoal.server.artifacts import checkpoints
from shoal.server.artifacts.checkpoints import IntactCheckpoint
from shoal.server.context import Context
from shoal.server.jobs.events import record_event
from shoal.server.models.checkpoints import Checkpoint
from shoal.server.models.jobs import Attempt, Job, Node

_ROOT = "."
_OF_SDK = "shoal.json"
_POINTER_BYTES = 4096
_WORD = re.compile(r"[^\s\"',:=/\\]+")


def choose(ctx: Context, job_id: str) -> list[tuple[str, IntactCheckpoint]]:
    """Return the checkpoints to restore, as (place, checkpoint), oldest first; every byte is verified."""
    rows = checkpoints.usable(ctx, job_id)
    output = [row for row in rows if checkpoints.place_of(row) == "output"]
    found = [("output", good) for good in _of_output(ctx, job_id, output)]
    workdir = [row for row in rows if checkpoints.place_of(row) == "workdir"]
    for name in dict.fromkeys(row.name for row in workdir):
        good = checkpoints.choose(ctx, job_id, [row for row in workdir if row.name == name])
        if good is not None:
            found.append(("workdir", good))
    return sorted(found, key=lambda one: one[1].id)


def store(ctx: Context, back: list[tuple[str, IntactCheckpoint]], node: int) -> list[dict[str, str]]:
    """Store the manifests that one node restores.

    Its own files take precedence over those of other nodes with the same name.
    """
    return [
        {"id": g.id, "name": g.name, "place": place, "manifest_id": ctx.store.put_manifest(g.seen_by(node))}
        for place, g in back
    ]


def of_node(resume: dict[str, Any], node: int, env: dict[str, str]) -> list[PutBack]:
    """Return what a node restores; `resume` is the stored choice of its attempt."""
    if env.get(PUT_BACK) == "0":
        return []
    return [PutBack(**one) for one in resume.get("put_back", {}).get(str(node), [])]


def resumed_manifests(resume: dict[str, Any]) -> set[str]:
    """Return the manifests that an attempt reads because it resumes."""
    back = (one["manifest_id"] for node in resume.get("put_back", {}).values() for one in node)
    return {resume["manifest_id"], *back} if resume else set()


def note(session: Session, attempt: Attempt, node: Node, said: list[str]) -> None:
    """Record what the first node has restored; the others did the same."""
    if said and node.index == 0:
        text = f"attempt {attempt.number}: {'; '.join(said)}"[:2000]
        record_event(session, session.get_one(Job, attempt.job_id), "put_back", text, attempt=attempt.number)


def _of_output(ctx: Context, job_id: str, rows: list[Checkpoint]) -> Iterator[IntactCheckpoint]:
    folders = [row for row in rows if row.name != _ROOT]
    folder = checkpoints.choose(ctx, job_id, folders)
    if folder is not None and _OF_SDK in {file.path for file in folder.seen_by().files}:
        return
    if folder is not None:
        yield folder
    # Settings and logs alone are not restored: some scripts refuse an output folder that is not empty.
    roots = [row for row in rows if row.name == _ROOT and (folder is not None or not row.facts.get("only_text"))]
    root = checkpoints.choose(ctx, job_id, roots)
    if root is None:
        return
    yield root
    for name in sorted(_named(ctx, root.seen_by()) & {row.name for row in folders}):
        if folder is None or name != folder.name:
            also = checkpoints.choose(ctx, job_id, [row for row in folders if row.name == name])
            if also is not None:
                yield also


def _named(ctx: Context, manifest: Manifest) -> set[str]:
    """Return the words of small text files, some of which may be names of folders."""
    words: set[str] = set()
    for file in manifest.files:
        if file.size <= _POINTER_BYTES:
            text = b"".join(ctx.store.get(chunk.hash) for chunk in file.chunks)
            words.update(_WORD.findall(text.decode("utf-8", "replace")))
    return words
