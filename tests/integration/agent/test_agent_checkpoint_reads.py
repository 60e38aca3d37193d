"""A script that never reads the checkpoint it is given is named as such, in the log and to the server, in and out of a sandbox."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.core.agents import PutBack
from shoal.testing.agent_gang import Gang

FOLDERS = "import sys; folder, output = sys.argv[1:]"
SCRIPTS = {
    "none": "print('from the beginning')",
    "listed": "import os; print(os.listdir(folder), os.stat(folder + '/model.pt').st_size)",
    "output": "open(output + '/step-5/model.pt', 'w').write('new')",
    "read": "print(open(folder + '/model.pt').read())",
    "mapped": "import mmap; f = open(folder + '/deep/model.pt', 'rb'); print(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)[:2])",
    "restored": "print(open(output + '/step-5/model.pt').read())",
    "failed": "import nothing_like_this",
}


@pytest.mark.parametrize("how", SCRIPTS)
def test_only_a_script_that_ran_without_its_checkpoint_is_warned(
    gang: Callable[..., Gang], sandbox: dict[str, str], how: str
) -> None:
    entry = ["t.py", "/input-checkpoint", "/output-checkpoint"]
    job = gang(entry, {"t.py": f"{FOLDERS}\n{SCRIPTS[how]}\n"}, env=sandbox, start=False)
    server = job.server
    given = server.mount("/input-checkpoint", {"model.pt": "weights", "deep/model.pt": "weights"})
    server.reply.mounts.append(given)
    server.reply.put_back.append(PutBack(id="ckpt_1", name="step-5", place="output", manifest_id=given.manifest_id))
    assert job.start().finish() == [0]
    last = server.last()
    assert last is not None and last.exit_code == (1 if how == "failed" else 0)
    if how in ("none", "listed", "output"):
        (text,) = last.warnings
        assert "ended without reading it" in text and "SHOAL_RESUME_FROM" in text
        assert f"[shoal] warning: {text}" in server.log(stream="sys")
    else:
        assert last.warnings == []
