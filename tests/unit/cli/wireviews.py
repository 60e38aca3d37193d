"""Wire answers for the scripted server."""

from __future__ import annotations

from typing import Any

CREATED = "2025-01-31T12:00:00Z"
ID = "job_01jjxxxxxxxxxxxxxxxxxxxxxx"


def spec(**changes: Any) -> dict[str, Any]:
    return {"name": "hello", "entry": ["train.py", "--lr", "3e-4"], "source_id": "src_1", **changes}


def job(status: str = "succeeded", **changes: Any) -> dict[str, Any]:
    ended = status in ("succeeded", "failed", "stopped")
    node = {"index": 0, "machine": "local", "slots": [0], "state": "exited", "exit_code": 0, "paths": "rewrite"}
    attempt = {
        "number": 1, "state": "ended", "result": status, "reason": None, "num_nodes": 1, "created_at": CREATED,
        "started_at": CREATED, "ended_at": None, "nodes": [node],
    }  # fmt: skip
    return {
        "id": ID, "name": "hello", "status": status, "nodes": 1, "accels": 1, "attempts": 1,
        "progress": {"step": 40, "total": 100, "fraction": 0.4, "eta_s": 90.0},
        "created_at": CREATED, "started_at": "2025-01-31T12:00:01Z", "ended_at": "2025-01-31T12:01:05Z" if ended else None,
        "exit_code": 0 if status == "succeeded" else None, "reason": None,
        "workspace": "default", "created_by": "me@example.org", "spec": spec(), "source": {"kind": "folder", "path": "/p"},
        "attempt_list": [attempt], "events": [{"seq": 1, "at": CREATED, "kind": "queued", "message": "submitted by me"}],
        **changes,
    }  # fmt: skip


def line(text: str, rank: int | None = 0, node: int = 0, attempt: int = 1) -> dict[str, Any]:
    return {"at": 1738324800.0, "attempt": attempt, "node": node, "rank": rank, "stream": "out", "text": text}
