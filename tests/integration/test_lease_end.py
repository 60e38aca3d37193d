"""Files of a lease after its end, and shells inside running jobs: by the CLI and OpenSSH, as people use them."""

import shutil
from pathlib import Path

import pytest
from lease_guests import Guest, job_of, keys, rent  # noqa: F401

from shoal.core.settings import Layout, ServerSettings
from shoal.testing.engines import eventually
from shoal.testing.live import live_server, processes_of
from shoal.testing.patience import patient

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the OpenSSH client")
MARKER = "planted-marker-51f0"
TRAIN = """
import os, time
os.environ["SEEN"] = "only in here"
print("began", flush=True)
open("made-by-the-job", "w").write("x")
time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    ServerSettings(preflight_after_h=0.0, lease_disk_gb=1, warm=False).save(Layout(home))
    with live_server(home, slots=4) as server:
        yield server


def snapshots_of(server, lease):
    with server.client() as client:
        return client.snapshots.list(lease)


def test_a_lease_that_ends_with_work_under_way_goes_on_elsewhere_with_all_of_it(server, keys):  # noqa: F811
    first = Guest(rent(server, keys, "first"), keys / "mine", keys)
    assert first.lease["sandbox"] == "bubblewrap, S3"
    first.ssh(
        f"mkdir -p a/b; echo {MARKER} > a/b/file; ln -s b/file a/link; chmod 640 a/b/file; date > dirty; umask 077; mkdir own"
    )
    writer = first.start(first.address, "while true; do date >> dirty; sleep 0.05; done")
    job = job_of(server, first.lease)
    taken = server.json("machine", "snapshot", "take", "first")
    assert taken["files"] == 2 and writer.poll() is None, "whoever writes was held, and goes on"
    assert "machine ssh first" in server.cli("training", "attach", first.lease["job"], check=4).stderr
    folder = server.layout.cache_dir / "leases" / first.lease["id"]
    # Seen by its agent alone, so that it cannot stay behind when that is killed.
    agent = job.attempt_list[-1].nodes[0].pid
    assert Path(f"/proc/{agent}/root{folder}/volume/a/b/file").read_text() == f"{MARKER}\n"
    assert list((folder / "volume").iterdir()) == []
    server.cli("machine", "release", "first")
    assert writer.wait(patient(20)) == 255
    eventually(lambda: len(snapshots_of(server, "first")) == 2, timeout_s=60)
    eventually(lambda: not processes_of(job.id))
    eventually(lambda: not folder.exists())
    kept = server.json("machine", "snapshot", "list", "first")[0]

    again = Guest(
        server.json("machine", "restore", "first", "--name", "second", "--ssh-key", str(keys / "mine.pub")),
        keys / "mine",
        keys,
    )
    found = again.ssh("cat a/link; stat -c %a a/b/file own; tail -1 dirty | wc -l").stdout.decode().split()
    assert found == [MARKER, "640", "700", "1"]
    server.cli("machine", "release", "second")
    eventually(lambda: snapshots_of(server, "second"), timeout_s=60)
    # Nothing was changed there, but for what a shell leaves: of that there is nothing either.
    [unchanged] = snapshots_of(server, "second")
    assert unchanged.tree_hash == kept["tree_hash"]
    assert "first" in server.cli("machine", "snapshot", "delete", "first", taken["id"]).stderr
    assert snapshots_of(server, "first") == []
    assert "machine snapshot list" in server.cli("machine", "restore", "first", check=3).stderr


def test_an_interactive_session_has_the_code_the_data_and_the_environment_of_a_job(server, code, tmp_path):
    (tmp_path / "words.txt").write_text("one two three\n")
    server.cli("dataset", "push", "words", "--file", str(tmp_path / "words.txt"))
    source = code({"train.py": "print('from the script')"})
    look = "cat /input/words/words.txt; python train.py; echo $COLOUR $SHOAL_JOB_ID"
    options = ("--dataset", "words", "--env", "COLOUR=red")
    done = server.cli("training", "shell", "session", *options, "--", look, cwd=source)
    assert done.stdout.splitlines()[:2] == ["one two three", "from the script"], done
    job = server.wait_for("session", lambda job: job.status == "stopped")
    assert done.stdout.splitlines()[2] == f"red {job.id}"
    eventually(lambda: not processes_of(job.id))


def test_a_shell_inside_a_running_job_sees_what_its_workers_see(server, code):
    source = code({"train.py": TRAIN})
    server.cli("training", "run", "long", "--env", "COLOUR=blue", "--", "train.py", cwd=source)
    server.wait_for("long", lambda job: job.status == "running")
    with server.client() as client:
        eventually(lambda: any("began" in line.text for line in client.jobs.lines("long")))
    look = "echo $COLOUR $SHOAL_RANK; ls made-by-the-job; ls -d /output-checkpoint; ps ax | grep -c train.py"
    done = server.cli("training", "attach", "long", "--", look)
    words = done.stdout.split()
    assert words[:4] == ["blue", "0", "made-by-the-job", "/output-checkpoint"], done
    assert int(words[4]) >= 1
    assert server.cli("training", "attach", "long", "--", "exit", "7", check=7)
    assert "counted from 0" in server.cli("training", "attach", "long", "--node", "3", check=3).stderr
    job = server.json("training", "inspect", "long")
    assert job["status"] == "running", "it goes on"
    assert any(event["kind"] == "attached" for event in job["events"])
    server.cli("training", "stop", "long")
    server.wait_for("long", lambda job: job.status == "stopped")
    eventually(lambda: not processes_of(job["id"]))
    refused = server.cli("training", "attach", "long", check=4).stderr
    assert "only a running job" in refused
