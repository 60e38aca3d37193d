"""`shoal up` with another number of slots: a new server process, and jobs that do not notice."""

from shoal.client.local import read_record

PRELOADS = False


def test_more_slots_restart_the_server_and_running_jobs_go_on(own_server, code):
    server = own_server
    waits = "import time; print('begun', flush=True)\nwhile True: time.sleep(0.1)\n"
    folder = code({"train.py": waits})
    server.cli("training", "run", "long", "--dir", str(folder), "--", "train.py")
    before = server.wait_for("long", lambda job: job.status == "running", "running")
    refused = server.cli("training", "run", "wide", "--dir", str(folder), "--accels", "6", "--", "train.py", check=4)
    assert "shoal up --slots 6" in refused.stderr
    first = read_record(server.layout)
    said = server.cli("up", "--slots", "6").stderr
    assert "restarting it with 6" in said and read_record(server.layout).pid != first.pid
    assert server.json("machine", "list")["machines"][0]["slots_total"] == 6
    assert server.inspect("long")["attempts"] == before.attempts
    assert "already up" in server.cli("up", "--slots", "6").stderr
    server.cli("training", "run", "wide", "--dir", str(folder), "--accels", "5", "--", "train.py")
    server.wait_for("wide", lambda job: job.status == "running", "running beside the first")
    server.cli("training", "stop", "long", "wide", "--wait")
