"""The parent of a node's workers: inside the sandbox where there is one. Run as a file by `python -I -S`, so built-in modules only.

It starts the workers it is told of, tells how each ended, passes signals on, and leaves no process behind: when the agent says
so, or is gone (its end of the socket closes), everything below is killed.

From the agent: 8 bytes length and a marshalled dict {cwd, reap, workers: [{argv, env, out, err, group}]}, then `T` (SIGTERM to
workers), `K` (SIGKILL to all). To the agent: lines `hello PID`, `exit INDEX WAITSTATUS`.
`--rank-exec DIR ARGV…` is how a torchrun worker gets the pipes of its rank: it opens them and becomes ARGV.
"""

from __future__ import annotations

# The public module costs 5 ms for its enums, on the way to the user's first line.
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
    """All processes below this one, nearest first. A walk by parent pids: it sees into pid namespaces too."""
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
    """SIGKILL everything below until nothing is left; what still is after `patience_s` is returned."""
    deadline = time.monotonic() + patience_s
    # One that was born while we looked, of a parent that died meanwhile, is not in the list; but it is our child by then.
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
    """Orphans below become our children, however often they fork."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap() -> list[tuple[int, int]]:
    """(pid, wait status) of every child that has ended."""
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
    wake_r = listen()
    say(control, f"hello {os.getpid()}\n")
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
    """Only the agent's word counts from now on; the returned end of a pipe is readable when a child has ended."""
    for signum in (_SIGINT, _SIGHUP, _SIGTERM):
        _signal.signal(signum, _signal.SIG_IGN)
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.signal(_SIGCHLD, lambda *_: None)
    _signal.set_wakeup_fd(wake_w)
    return wake_r


def watch(control: int, wake_r: int, pids: list[int], groups: list[bool]) -> None:
    """Tell of ends and obey, until told to kill or the agent is gone."""
    alive = dict(zip(pids, range(len(pids)), strict=True))
    while True:
        for pid, status in reap():
            if pid in alive:
                say(control, f"exit {alive.pop(pid)} {status}\n")
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
            # Only launchers and shells have their children told too: a DataLoader's workers must not die before its owner.
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
        take_place(int(str(worker["out"])), int(str(worker["err"])), bind_life)
        os.execvpe(argv[0], argv, env)  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def take_place(out: int, err: int, bind_life: bool) -> None:
    """What makes a fork a worker: a session, signals as at birth, its own pipes and nothing else open."""
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


def _die_first() -> None:
    """When memory runs out, the kernel shall pick a worker rather than the agent or the server."""
    try:
        with open("/proc/self/oom_score_adj", "w") as f:  # noqa: PTH123
            f.write("500")
    except OSError:
        pass


def rank_exec(folder: str, argv: list[str]) -> None:
    rank = os.environ["LOCAL_RANK"]
    for fd, name in ((1, "out"), (2, "err")):
        pipe = os.open(f"{folder}/{rank}.{name}", os.O_WRONLY)
        os.dup2(pipe, fd)
        os.close(pipe)
    os.execvp(argv[0], argv)  # noqa: S606


def say(control: int, text: str) -> None:
    try:
        os.write(control, text.encode())
    except OSError:
        pass


def exactly(fd: int, size: int) -> bytes:
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
