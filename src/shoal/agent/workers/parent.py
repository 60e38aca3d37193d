"""The parent process of a node's workers, inside the sandbox if there is one.

It starts the workers, reports how each ended, passes signals on, and leaves no process behind: on request, or when the agent
has died (its end of the socket closes), it kills everything below itself. It is single-threaded. It runs as a file with
`python -I -S`, so it uses built-in modules only.

From the agent: 8 bytes length and a marshalled dict {cwd, reap, workers: [{argv, env, out, err, group, cpus}]}, then `T` (SIGTERM to
workers), `K` (SIGKILL to all). To the agent: lines `hello PID`, `exit INDEX WAITSTATUS`. With `--rank-exec DIR ARGV…` it is a
torchrun worker: it opens the named pipes of its rank and becomes ARGV.
"""

from __future__ import annotations

# The public `signal` module takes 5 ms to import because of its enums, which would delay the user's first line.
import _signal  # type: ignore[import-not-found]
import marshal
import os
import select
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1
_SIGINT, _SIGHUP, _SIGKILL, _SIGPIPE, _SIGTERM, _SIGCHLD = 2, 1, 9, 13, 15, 17


def descendants(pid: int) -> list[int]:
    """Return all processes below this one, nearest first. Parent pids are followed, also into pid namespaces."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as f:  # noqa: PTH123
                    stat = f.read()
            except OSError:
                continue
            state, parent = stat[stat.rfind(b")") + 2 :].split()[:2]
            if state not in b"ZX":
                children.setdefault(int(parent), []).append(int(name))
    found, ahead = [], [pid]
    while ahead:
        below = children.get(ahead.pop(0), [])
        found += below
        ahead += below
    return found


def kill_below(pid: int, patience_s: float = 5.0) -> list[int]:
    """Send SIGKILL to all processes below until none is left; return those still left after `patience_s`."""
    deadline = time.monotonic() + patience_s
    # A process that was forked during the scan and whose parent then died is not in the list, but is our child by now.
    while (left := descendants(pid)) or (pid == os.getpid() and has_children()):
        for victim in left:
            try:
                os.kill(victim, _SIGKILL)
            except OSError:
                pass
        if time.monotonic() > deadline:
            return left
        reap()
        time.sleep(0.005)
    reap()
    return []


def has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
        return True
    except ChildProcessError:
        return False


def prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def become_subreaper() -> None:
    """Make orphaned descendants our children, no matter how often they fork."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap() -> list[tuple[int, int]]:
    """Reap all children that have ended; return their pids and wait statuses."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def main(control: int) -> None:
    """Start the workers that the agent describes over `control`, and watch them until the end."""
    wake_r = listen()
    report(control, f"hello {os.getpid()}\n")
    spec = marshal.loads(exactly(control, int.from_bytes(exactly(control, 8), "big")))  # noqa: S302
    os.chdir(spec["cwd"])
    if spec["reap"]:
        become_subreaper()
    workers = spec["workers"]
    pids = [_start(worker, spec["reap"]) for worker in workers]
    for worker in workers:
        os.close(worker["out"])
        os.close(worker["err"])
    watch(control, wake_r, pids, [w["group"] for w in workers])
    kill_below(os.getpid())


def listen() -> int:
    """Ignore SIGINT, SIGHUP and SIGTERM from now on; return a pipe end that becomes readable when a child has ended."""
    for signum in (_SIGINT, _SIGHUP, _SIGTERM):
        _signal.signal(signum, _signal.SIG_IGN)
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.signal(_SIGCHLD, lambda *_: None)
    _signal.set_wakeup_fd(wake_w)
    return wake_r


def watch(control: int, wake_r: int, pids: list[int], groups: list[bool]) -> None:
    """Report exits and obey the agent, until it requests a kill or has died."""
    alive = dict(zip(pids, range(len(pids)), strict=True))
    while True:
        for pid, status in reap():
            if pid in alive:
                report(control, f"exit {alive.pop(pid)} {status}\n")
        ready = select.select([control, wake_r], [], [])[0]
        if wake_r in ready:
            os.read(wake_r, 4096)
        if control in ready:
            command = os.read(control, 1)
            if command == b"T":
                _terminate(alive, groups)
            else:
                return


def _terminate(alive: dict[int, int], groups: list[bool]) -> None:
    for pid, index in alive.items():
        try:
            # Only for launchers and shells the whole group: DataLoader workers must not die before their owner.
            (os.killpg if groups[index] else os.kill)(pid, _SIGTERM)
        except OSError:
            pass


def _start(worker: dict[str, object], bind_life: bool) -> int:
    argv, env = worker["argv"], worker["env"]
    assert isinstance(argv, list) and isinstance(env, dict)  # noqa: S101
    pid = os.fork()
    if pid:
        return pid
    try:
        become_worker(int(str(worker["out"])), int(str(worker["err"])), bind_life)
        run_on(worker.get("cpus"))
        os.execvpe(argv[0], argv, env)  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def become_worker(out: int, err: int, bind_life: bool) -> None:
    """Turn this fork into a worker: a session of its own, default signals, its own pipes and no other open file."""
    os.setsid()
    if bind_life:
        prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    for signum in (_SIGINT, _SIGHUP, _SIGTERM, _SIGCHLD, _SIGPIPE):
        _signal.signal(signum, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    _die_first()
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 1 << 16)


def run_on(cpus: object) -> None:
    """Run on these CPUs only; on all if there are none, or if they have been taken away meanwhile."""
    try:
        if isinstance(cpus, list) and cpus:
            os.sched_setaffinity(0, cpus)
    except OSError:
        pass


def _die_first() -> None:
    """Make the kernel kill a worker rather than the agent or the server when memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "w") as f:  # noqa: PTH123
            f.write("500")
    except OSError:
        pass


def rank_exec(folder: str, argv: list[str]) -> None:
    """Connect stdout and stderr to the named pipes of our rank, take its own variables and become `argv`."""
    rank = os.environ["LOCAL_RANK"]
    with open(f"{folder}/{rank}.env") as own:  # noqa: PTH123
        for line in own:
            name, _, value = line.rstrip("\n").partition("=")
            os.environ[name] = value
    for fd, name in ((1, "out"), (2, "err")):
        pipe = os.open(f"{folder}/{rank}.{name}", os.O_WRONLY)
        os.dup2(pipe, fd)
        os.close(pipe)
    os.execvp(argv[0], argv)  # noqa: S606


def report(control: int, text: str) -> None:
    try:
        os.write(control, text.encode())
    except OSError:
        pass


def exactly(fd: int, size: int) -> bytes:
    """Read exactly `size` bytes; end this process if the other side closes first."""
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            os._exit(1)
        data += piece
    return data


if __name__ == "__main__":
    if sys.argv[1] == "--rank-exec":
        rank_exec(sys.argv[2], sys.argv[3:])
    else:
        main(int(sys.argv[1]))
