"""A copy of a data directory, made while jobs run: commands and servers on it leave the original's server and jobs alone."""

import json
import shutil

import psutil

from shoal.client.local import read_record
from shoal.testing.engines import eventually
from shoal.testing.live import LiveServer

WAITS = "import time; print('begun', flush=True)\nwhile True: time.sleep(0.1)\n"


def names(server):
    return {key["name"] for key in server.json("key", "list")}


def test_a_copy_is_an_instance_of_its_own_and_never_touches_the_original(own_server, code, tmp_path):
    folder = code({"train.py": WAITS})
    own_server.cli("training", "run", "long", "--dir", str(folder), "--", "train.py")
    running = own_server.wait_for("long", lambda job: job.status == "running", "running")
    original, [agent] = read_record(own_server.layout), agents(own_server)
    copy = LiveServer(tmp_path / "copy", slots=4)
    shutil.copytree(own_server.home, copy.home, symlinks=True)
    try:
        assert copy.json("server", "stop") == {"stopped": False}
        assert json.loads(copy.cli("server", "status", "--json", check=6).stdout)["state"] == "stopped"
        copy.cli("key", "create", "of-the-copy")
        assert "of-the-copy" in names(copy) and "of-the-copy" not in names(own_server)
        ids = {s.json("server", "status")["instance"] for s in (own_server, copy)}
        assert len(ids) == 2 and None not in ids
        again = copy.wait_for("long", lambda job: job.attempts == 2 and job.status == "running", "started again")
        assert "belongs to the original server" in again.attempt_list[0].reason
        copy.cli("training", "stop", "long", "--wait")
        copy.cli("server", "stop")
    finally:
        copy.close()
    assert read_record(own_server.layout) == original and psutil.pid_exists(original.pid)
    assert agents(own_server) == [agent], "its agent is the same one"
    after = own_server.inspect("long")
    assert (after["status"], after["attempts"]) == ("running", running.attempts)


def test_a_renamed_directory_takes_its_jobs_along(own_server, code, tmp_path):
    own_server.cli("training", "run", "long", "--dir", str(code({"train.py": WAITS})), "--", "train.py")
    own_server.wait_for("long", lambda job: job.status == "running", "running")
    known = own_server.json("server", "status")["instance"]
    own_server.stop()
    moved = LiveServer(tmp_path / "moved", slots=4)
    own_server.home.rename(moved.home)
    try:
        moved.start()
        assert moved.json("server", "status")["instance"] == known
        seen = moved.inspect("long")
        assert (seen["status"], seen["attempts"]) == ("running", 1)
        moved.cli("training", "stop", "long", "--wait")
    finally:
        moved.close()
        moved.home.rename(own_server.home)
    eventually(lambda: not agents(own_server), 30)


def test_a_backup_of_a_running_server_restores_to_a_new_instance_and_the_original_goes_on(own_server, code, tmp_path):
    """F25 and T24, by the commands: the job starts again there, a key revoked meanwhile is refused, the agent is untouched."""
    own_server.cli("training", "run", "long", "--dir", str(code({"train.py": WAITS})), "--", "train.py")
    own_server.wait_for("long", lambda job: job.status == "running", "running")
    [agent] = agents(own_server)
    lost = own_server.json("key", "create", "lost-laptop")["key"]
    place = str(tmp_path / "backups")
    first = own_server.json("server", "backup", "create", place)
    own_server.cli("key", "revoke", "lost-laptop")
    own_server.cli("server", "backup", "create", place)
    assert len(own_server.json("server", "backup", "list", place)) == 2
    assert own_server.json("server", "backup", "verify", place)["problems"] == []
    assert own_server.json("server", "check")["ok"]
    assert "error" not in {f["state"] for f in own_server.json("server", "doctor")}
    there = LiveServer(tmp_path / "there", slots=4)
    there.home.mkdir()
    try:
        found = there.json("server", "restore", place, "--id", first["id"])
        assert (found["epoch"], found["revoked"]) == (1, 1)
        there.start()
        again = there.wait_for("long", lambda job: job.attempts == 2 and job.status == "running", "started again")
        assert "belongs to the original server" in again.attempt_list[0].reason
        record = read_record(there.layout)
        refused = there.cli("training", "list", env={"SHOAL_URL": record.url, "SHOAL_API_KEY": lost}, check=5)
        assert "expired or revoked" in refused.stderr or "revoked" in refused.stderr
        assert there.json("billing", "verify")["whole"]
        there.cli("server", "restore", place, check=4)
        there.cli("training", "stop", "long", "--wait")
    finally:
        there.close()
    assert agents(own_server) == [agent]
    assert own_server.inspect("long")["attempts"] == 1


def agents(server):
    found = [json.loads(path.read_text())["pid"] for path in server.layout.nodes_dir.glob("*/agent.json")]
    return [pid for pid in found if psutil.pid_exists(pid)]
