"""A real server whose system clock is changed while it works: nothing ends early, and nothing expired works again (F18).

The clock of this machine cannot be set. The server's process runs the ordinary program, with Python's `time.time` replaced by one
that adds the seconds in a file.
"""

import sys
from dataclasses import replace

from shoal.client.local import health_of, read_record, start_server
from shoal.core.settings import ServerSettings
from shoal.testing.live import LiveServer
from shoal.testing.patience import wait_until

WAITS = "import time; print('begun', flush=True)\nwhile True: time.sleep(0.1)\n"
CHANGED_CLOCK = """
import pathlib, sys, time
true, file = time.time, pathlib.Path(sys.argv.pop(1))
time.time = lambda: true() + float(file.read_text() or 0)
from shoal.server.__main__ import main
sys.exit(main())
"""


def test_a_changed_system_clock_ends_no_job_and_revives_no_key(tmp_path, code):
    server, ahead = LiveServer(tmp_path / "home", warm=False), tmp_path / "ahead"
    ahead.write_text("0")
    (tmp_path / "changed_clock.py").write_text(CHANGED_CLOCK)
    replace(ServerSettings(), warm=False, preflight_after_h=0.0, slots=2).save(server.layout)
    command = [sys.executable, "-P", str(tmp_path / "changed_clock.py"), str(ahead), "--home", str(server.home)]

    def jumped_s():
        return (health_of(read_record(server.layout).url) or {}).get("clock", {}).get("jumped_s")

    def is_refused(key):
        env = {"SHOAL_URL": read_record(server.layout).url, "SHOAL_API_KEY": key}
        return server.cli("training", "list", env=env, check=None).returncode == 5

    def change_clock(seconds):
        ahead.write_text(str(seconds))
        wait_until(lambda: abs(jumped_s() - seconds) < 5, "the change is not noticed")

    try:
        start_server(server.layout, command=command)
        server.cli(
            "training", "run", "j", "--time-limit", "30m", "--dir", str(code({"train.py": WAITS})), "--", "train.py"
        )
        server.wait_for("j", lambda job: job.status == "running", "running")
        kept = server.json("key", "create", "kept", "--expires", "1h")["key"]
        short = server.json("key", "create", "short", "--expires", "1s")["key"]
        wait_until(lambda: is_refused(short), "the key does not expire")
        change_clock(7200)
        # The loop that reports it passes once a second.
        wait_until(lambda: "system clock" in server.cli("server", "status").stdout, "the change is not reported")
        assert not is_refused(kept)
        change_clock(-86_400)
        assert is_refused(short)
        after = server.inspect("j")
        assert (after["status"], after["attempts"]) == ("running", 1), "two hours ahead ended no job of 30 minutes"
        server.cli("training", "stop", "j", "--wait")
        wait_until(lambda: jumped_s() == 0, "the clock does not follow")
        assert is_refused(short) and not is_refused(kept), (
            "nothing runs: the clock follows, the expired key stays expired"
        )
    finally:
        server.close()
