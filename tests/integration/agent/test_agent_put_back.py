"""Checkpoints of earlier attempts are back where the script wrote them, in a sandbox and without one."""

from __future__ import annotations

from collections.abc import Callable

from shoal.core.agents import PutBack
from shoal.testing.agent_gang import Gang

SCRIPT = """
import sys
for path in (sys.argv[1] + "/step-5/model.pt", "out/last.pt"):
    print(open(path).read())
    open(path, "r+").write("BROKEN")
print(open("/input-checkpoint/model.pt".replace("/input-checkpoint", sys.argv[2])).read())
"""


def test_a_script_finds_copies_it_may_overwrite(gang: Callable[..., Gang], sandbox: dict[str, str]) -> None:
    entry = ["t.py", "/output-checkpoint", "/input-checkpoint"]
    job = gang(entry, {"t.py": SCRIPT}, env=sandbox, start=False)
    server = job.server
    given = server.mount("/input-checkpoint", {"model.pt": "weights"})
    other = server.mount("unused", {"last.pt": "epoch 2"})
    server.reply.mounts.append(given)
    server.reply.put_back += [
        PutBack(id="ckpt_1", name="step-5", place="output", manifest_id=given.manifest_id),
        PutBack(id="ckpt_2", name="workdir/out", place="workdir", manifest_id=other.manifest_id),
    ]
    assert job.start().finish() == [0]
    assert server.log(rank=0, stream="out") == ["weights", "epoch 2", "weights"], (
        "the one that others read is as it was"
    )
    last = server.last()
    assert last is not None and last.put_back == [
        "checkpoint ckpt_1 was restored to /output-checkpoint/step-5",
        "checkpoint ckpt_2 was restored to out in the working directory",
    ]
