"""Checkpoints that a new attempt finds again where its script wrote them: many scripts look for them there and nowhere else.

Put back are the newest folder of /output-checkpoint, the files directly in it, what those name (DeepSpeed's `latest`), and
all that was kept of the working directory. Checkpoints of the SDK are read from /input-checkpoint and are not copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy.orm import Session

from shoal.agent.wire import PUT_BACK
from shoal.core.agents import PutBack
from shoal.core.artifacts import Manifest
from shoal.server.context import Context
from shoal.server.models.artifacts import Checkpoint
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.services import checkpoints
from shoal.server.services.checkpoints import Good
from shoal.server.services.events import tell

_ROOT = "."
_OF_SDK = "shoal.json"
_POINTER_BYTES = 4096
_WORD = re.compile(r"[^\s\"',:=/\\]+")


def choose(ctx: Context, job_id: str) -> list[tuple[str, Good]]:
    """Return what to put back, as (place, checkpoint), the oldest first; every byte is verified."""
    rows = checkpoints.usable(ctx, job_id)
    output = [row for row in rows if checkpoints.place_of(row) == "output"]
    found = [("output", good) for good in _of_output(ctx, job_id, output)]
    workdir = [row for row in rows if checkpoints.place_of(row) == "workdir"]
    for name in dict.fromkeys(row.name for row in workdir):
        good = checkpoints.choose(ctx, job_id, [row for row in workdir if row.name == name])
        if good is not None:
            found.append(("workdir", good))
    return sorted(found, key=lambda one: one[1].id)


def store(ctx: Context, back: list[tuple[str, Good]], node: int) -> list[dict[str, str]]:
    """Put down what one node gets; its own files count before those that other nodes wrote under the same name."""
    return [
        {"id": g.id, "name": g.name, "place": place, "manifest_id": ctx.store.put_manifest(g.seen_by(node))}
        for place, g in back
    ]


def of_node(resume: dict[str, Any], node: int, env: dict[str, str]) -> list[PutBack]:
    """Return what a node of an attempt puts back; `resume` is what the attempt was given."""
    if env.get(PUT_BACK) == "0":
        return []
    return [PutBack(**one) for one in resume.get("put_back", {}).get(str(node), [])]


def resumed_manifests(resume: dict[str, Any]) -> set[str]:
    """Return the manifests that an attempt reads because it was given a checkpoint."""
    back = (one["manifest_id"] for node in resume.get("put_back", {}).values() for one in node)
    return {resume["manifest_id"], *back} if resume else set()


def note(session: Session, attempt: Attempt, node: Node, said: list[str]) -> None:
    """Write down what the first node has put back. The others did the same."""
    if said and node.index == 0:
        text = f"attempt {attempt.number}: {'; '.join(said)}"[:2000]
        tell(session, session.get_one(Job, attempt.job_id), "put_back", text, attempt=attempt.number)


def _of_output(ctx: Context, job_id: str, rows: list[Checkpoint]) -> Iterator[Good]:
    folders = [row for row in rows if row.name != _ROOT]
    folder = checkpoints.choose(ctx, job_id, folders)
    if folder is not None and _OF_SDK in {file.path for file in folder.seen_by().files}:
        return
    if folder is not None:
        yield folder
    # Settings and logs alone are no state; scripts that refuse an output folder with something in it would refuse these.
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
