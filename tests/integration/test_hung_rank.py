"""A rank that hangs while its peers wait for it: the attempt is ended, and the next one finishes the job."""

import pytest

from shoal.core.settings import Layout, ServerSettings
from shoal.testing.live import live_server

# A stand-in for torch's module of that name, where ranks wait for each other.
COLLECTIVE = """
import os, time
def all_reduce():
    while not os.path.exists("there"):
        time.sleep(0.1)
"""
TRAIN = """
import os, signal, sys
import distributed_c10d
if os.environ["SHOAL_ATTEMPT"] == "1":
    print("begun", flush=True)
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    distributed_c10d.all_reduce()
print("done", flush=True)
"""


@pytest.fixture
def impatient(tmp_path):
    """A server that takes a job for hung soon."""
    ServerSettings(slots=4, preflight_after_h=0.0, stall_timeout_s=35.0).save(Layout(tmp_path / "home"))
    with live_server(tmp_path / "home", slots=4) as server:
        yield server


def test_a_rank_stopped_by_a_signal_is_ended_with_its_attempt_and_the_job_goes_on(impatient, code):
    folder = code({"distributed_c10d.py": COLLECTIVE, "train.py": TRAIN})
    impatient.cli("training", "run", "hung", "--accels", "2", "--dir", str(folder), "--", "train.py")
    done = impatient.wait_for("hung", lambda job: job.status.is_terminal, "ended", timeout_s=300)
    assert (done.status, done.attempts) == ("succeeded", 2)
    reason = done.attempt_list[0].reason
    assert reason.startswith("rank 1 was stopped by a signal (SIGSTOP) for ")
    assert "while rank 0 waited in all_reduce" in reason
