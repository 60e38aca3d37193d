"""Forked test processes are like started ones to whoever starts, watches or ends them."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from shoal.testing import forks
from shoal.testing.engines import eventually
from shoal.testing.forks import Fork

MODULES = ("json",)
SHOW = """
import json, os, sys, helper
print(json.dumps([sys.argv, os.getcwd(), os.environ["MARK"], helper.WORD, sys.stdin.read(), __name__]))
print("to stderr", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.py").write_text("WORD = 'found'")
    (tmp_path / "wait.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)")
    return tmp_path


def test_a_fork_has_the_arguments_streams_environment_and_exit_code_of_a_new_process(folder):
    command, env = [sys.executable, "show.py", "a b"], {**os.environ, "MARK": "mine", "PYTHONPATH": "lib"}
    told = forks.run(command, modules=MODULES, cwd=folder, env=env, input="heard", capture_output=True)
    real = subprocess.run(command, cwd=folder, env=env, input="heard", capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (real.returncode, real.stdout, real.stderr)
    assert told.returncode == 7 and "heard" in told.stdout


def test_a_module_runs_too(folder):
    done = forks.run([sys.executable, "-m", "json.tool"], modules=MODULES, input="[1]", capture_output=True)
    assert (done.returncode, done.stdout.split()) == (0, ["[", "1", "]"])


def test_a_fork_is_found_signalled_and_waited_for(folder):
    env = {**os.environ, "SHOAL_SPOOL": "a mark"}
    with Fork([sys.executable, "wait.py"], modules=MODULES, cwd=folder, env=env, stdout=-1) as process:
        assert process.stdout.readline() == "up\n" and process.poll() is None
        seen = psutil.Process(process.pid)
        assert "wait.py" in " ".join(seen.cmdline()) and seen.environ()["SHOAL_SPOOL"] == "a mark"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM


def test_forks_end_with_the_process_they_come_from(folder):
    with Fork([sys.executable, "wait.py"], modules=("string",), cwd=folder, stdout=-1) as process:
        process.stdout.readline()
        psutil.Process(psutil.Process(process.pid).ppid()).kill()
        assert process.wait() == -signal.SIGKILL
        eventually(lambda: not psutil.pid_exists(process.pid))
    assert forks.run([sys.executable, "-m", "json.tool", "--help"], modules=("string",), stdout=-1).returncode == 0
