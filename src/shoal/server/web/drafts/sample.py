"""Sample job, started with one click where there are no jobs yet: a small script that shows metrics, figures and logs."""

from __future__ import annotations

from shoal.core.artifacts import Chunk, FileEntry, Manifest, SourceCommit
from shoal.core.jobs import JobSpec, JobView
from shoal.server.artifacts import chunks, sources
from shoal.server.context import Context
from shoal.server.jobs import service as jobs
from shoal.server.policy import Access
from shoal.store.hashing import chunk_hash
from shoal.store.wire import encode_frames

NAME = "sample"
SCRIPT = '''"""Fits a line to noisy points by gradient descent, with the standard library only."""

import argparse
import random
import time

import shoal

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

rng = random.Random(args.seed)
points = [(x / 50, 3.0 * x / 50 - 1.0 + rng.gauss(0, 0.2)) for x in range(100)]
slope, offset = 0.0, 0.0

run = shoal.init(config=vars(args), max_steps=args.steps)
for step in range(args.steps):
    batch = rng.sample(points, 16)
    errors = [(slope * x + offset - y, x) for x, y in batch]
    slope -= args.lr * sum(2 * e * x for e, x in errors) / len(batch)
    offset -= args.lr * sum(2 * e for e, _ in errors) / len(batch)
    loss = sum(e * e for e, _ in errors) / len(batch)
    run.step({"train/loss": loss, "slope": slope, "offset": offset})
    if step % 25 == 0:
        whole = sum((slope * x + offset - y) ** 2 for x, y in points) / len(points)
        run.evaluate({"eval/loss": whole})
        run.log_table("fit", ["x", "wanted", "given"], [[x, y, slope * x + offset] for x, y in points[::10]])
        print(f"step {step}: loss {loss:.4f}, y = {slope:.2f} x + {offset:.2f}", flush=True)
    time.sleep(0.05)
run.log_text("result", f"y = {slope:.3f} x + {offset:.3f}; the points were made with y = 3 x - 1.")
run.finish()
'''


def start(ctx: Context, access: Access) -> JobView:
    """Submit the sample job; its name gets a number if there is one already."""
    data = SCRIPT.encode()
    digest = chunk_hash(data)
    chunks.put(ctx, access.workspace_id, b"".join(encode_frames([(digest, data)])))
    entry = FileEntry(path="train.py", size=len(data), chunks=[Chunk(hash=digest, size=len(data))])
    commit = SourceCommit(manifest=Manifest(files=[entry]), origin={"path": "sample of the console"})
    source = sources.commit(ctx, access, commit)
    taken = {job.name for job in jobs.list_jobs(ctx, access, status=None, search=NAME, limit=10_000, before=None)}
    name = next(one for one in (NAME, *(f"{NAME}-{n}" for n in range(2, 10_000))) if one not in taken)
    return jobs.submit(ctx, access, JobSpec(name=name, entry=["train.py"], source_id=source.id))
