"""Supervises an agent started by Ray: `python -m shoal.engines.ray.supervisor ARGV…`, in the node's directory.

Ray ends only its direct children; this process is one. When it, the agent or Ray's worker (its stdin closes) ends, the agent
and everything it started end too. The exit of this process means that nothing of them is left.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from shoal.agent.workers.parent import become_subreaper, kill_below, prctl

_PR_SET_PDEATHSIG = 1
_STUBBORN = 70
"""Exit code when something could not be killed."""


def main(argv: list[str]) -> int:
    """Run the agent and return its exit code when nothing of it is left."""
    become_subreaper()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # Ray's threads block signals
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w)
    me = os.getpid()

    def before() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != me:
            os._exit(1)

    agent = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=before, restore_signals=True)
    code = _wait(agent, wake_r)
    return _STUBBORN if kill_below(me) else code


def _wait(agent: subprocess.Popen[bytes], wake_r: int) -> int:
    """Wait until the agent has ended, or the process that started us; return the agent's exit code, or 0."""
    poll = select.poll()
    poll.register(wake_r, select.POLLIN)
    poll.register(0, select.POLLIN | select.POLLHUP)
    while True:
        if (code := agent.poll()) is not None:
            return code if code >= 0 else 128 - code
        ready = {fd for fd, _ in poll.poll()}
        if wake_r in ready:
            os.read(wake_r, 4096)
        if 0 in ready and not os.read(0, 4096):
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
