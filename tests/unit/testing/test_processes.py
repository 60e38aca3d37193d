import subprocess
import sys

import psutil

from shoal.testing.engines import eventually
from shoal.testing.processes import command, environment, lives, program


def test_a_process_that_ends_after_it_was_listed_shows_nothing_and_raises_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"MARK": "1"})
    listed = psutil.Process(child.pid)
    eventually(lambda: "input()" in command(listed))
    assert lives(listed) and environment(listed)["MARK"] == "1" and program(listed)
    child.kill()
    eventually(lambda: listed.status() == psutil.STATUS_ZOMBIE)  # nobody has collected it
    assert (lives(listed), command(listed), environment(listed)) == (False, "", {})
    child.communicate()
    assert (lives(listed), command(listed), environment(listed), program(listed)) == (False, "", {}, "")
