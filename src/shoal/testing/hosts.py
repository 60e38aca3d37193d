"""Hosts for tests: network, processes, hostname and home of their own (Linux namespaces), with a real sshd, on one bridge.

They share this machine's disk, kernel and clock, but for their home, /run, /dev/shm and what is hidden from them. Needs
root, iproute2 and openssh-server; `missing()` says what is not there. All is gone when the `lan` is left, or we die.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from shoal.testing.line import Line
from shoal.testing.patience import patient

SSH_PORT = 22
USER = "root"
_BOOT_S = 30.0
_TOOLS = {"ip": "iproute2", "sshd": "openssh-server", "ssh-keygen": "openssh-client", "unshare": "util-linux",
          "nsenter": "util-linux", "setpriv": "util-linux"}  # fmt: skip


def missing() -> str | None:
    """Why hosts cannot be made here, to skip tests with; None if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces as hosts need root on Linux"
    lacking = sorted({package for tool, package in _TOOLS.items() if _tool(tool) is None})
    if lacking:
        return f"network namespaces as hosts need {', '.join(lacking)}: apt-get install {' '.join(lacking)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "this kernel or container lets nobody make network namespaces"


@contextmanager
def lan(*names: str, hide: Sequence[Path] = ()) -> Iterator[Lan]:
    """Hosts by these names on one bridge, up and with sshd listening. `hide`: directories they see empty."""
    net = Lan()
    try:
        for name in names:
            net.add(name, hide=hide)
        yield net
    finally:
        net.close()


class Lan:
    """One bridge: this machine is at `address`, the hosts beside it. `key` opens them all by SSH."""

    def __init__(self) -> None:
        self.tag = secrets.token_hex(3)
        self.bridge = f"sh{self.tag}"
        self.prefix = _free_prefix()
        self.address = f"{self.prefix}.1"
        self.hosts: list[Host] = []
        # Short on purpose: sockets below a host's home must stay within the 107 characters the kernel allows.
        self.folder = Path(tempfile.mkdtemp(prefix="sh-"))
        self.key = self.folder / "id"
        _ssh_keygen(self.key)
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")

    def add(self, name: str, *, hide: Sequence[Path] = (), line: Line | None = None) -> Host:
        """`line`: what its cable is like; None: a short one."""
        host = Host(self, name, len(self.hosts) + 11, hide, line)
        self.hosts.append(host)
        host.boot()
        return host

    def __getitem__(self, name: str) -> Host:
        return next(h for h in self.hosts if h.name == name)

    def close(self) -> None:
        for host in self.hosts:
            host.kill()
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self.bridge)
        shutil.rmtree(self.folder, ignore_errors=True)


class Host:
    def __init__(self, net: Lan, name: str, number: int, hide: Sequence[Path], line: Line | None):
        self.net, self.name = net, name
        self._line = line
        self._carrier: subprocess.Popen[bytes] | None = None
        self.address = f"{net.prefix}.{number}"
        self.home = net.folder / name
        self._cable = f"{net.bridge}{number}"
        self._shell: subprocess.Popen[str] | None = None
        self._init: psutil.Process | None = None
        self.home.mkdir(mode=0o700)
        self._etc = net.folder / f"{name}.etc"
        self._config = self._write_etc(hide)

    @property
    def target(self) -> str:
        """What to give to ssh."""
        return f"{USER}@{self.address}"

    @property
    def init_pid(self) -> int:
        """Return the id of its first process, whose namespaces are the host's."""
        assert self._init is not None, f"host {self.name} is down"
        return self._init.pid

    @property
    def is_up(self) -> bool:
        return self._init is not None and self._init.is_running()

    def boot(self) -> None:
        """Switch it on; its disk is as it was left. Returns once sshd answers."""
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--uts", "--pid", "--ipc", "--fork",
                "--kill-child", "--mount-proc", sys.executable, "-I", str(Path(__file__).with_name("host_init.py")),
                str(self._config)]  # fmt: skip
        with (self._etc / "boot.log").open("ab") as log:
            self._shell = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self._expect("namespaces")
        [self._init] = psutil.Process(self._shell.pid).children()
        self._plug()
        self._expect("sshd")
        _wait_for_port(self.address, SSH_PORT)

    def run(
        self, *argv: str, check: bool = True, timeout: float = 60, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program there, as somebody at its keyboard would."""
        env = self.env() | options.pop("env", {})
        return subprocess.run(
            [*self._enter(), *argv], env=env, cwd=self.home, capture_output=True, text=True, timeout=timeout, check=check,
            **options,
        )  # fmt: skip

    def popen(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        env = self.env() | options.pop("env", {})
        return subprocess.Popen([*self._enter(), *argv], env=env, cwd=options.pop("cwd", self.home), **options)

    def env(self) -> dict[str, str]:
        return {"HOME": str(self.home), "USER": USER, "LOGNAME": USER, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}

    def processes(self) -> list[psutil.Process]:
        """All that runs there, parents before their children, but for its init and sshd."""
        if not self.is_up:
            return []
        assert self._init is not None
        found = {p.pid: p for p in self._init.children(recursive=True)}
        # What `run` and `popen` start has its parent outside.
        found |= {p.pid: p for p in psutil.process_iter() if _namespace(p.pid) == _namespace(self._init.pid)}
        return [p for p in found.values() if p.pid != self._init.pid and _lives(p) and p.name() != "sshd"]

    def kill(self) -> None:
        """The power goes: the cable first, so that nobody hears of it, then every process at once."""
        if self._shell is None or self._shell.stdin is None or self._shell.stdout is None:
            return
        self.cut()
        entered = self._entered()
        (self._init or self._shell).kill()
        while self._shell.poll() is None:  # it ends with the init it has started, once all there is reaped
            _continue(entered)
            time.sleep(0.01)
        self._shell.stdin.close()
        self._shell.stdout.close()
        self._shell = self._init = None
        if self._carrier is not None:
            self._carrier.kill()
            self._carrier.wait()
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._cable)

    def freeze(self) -> None:
        """Nothing there moves until `thaw`; its network still answers pings, as that of a hung machine does."""
        assert self._init is not None
        self._init.send_signal(signal.SIGSTOP)
        while moving := [p for p in self._all() if p.status() != psutil.STATUS_STOPPED]:
            for process in moving:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        _continue([*reversed(self._all()), *self._entered()])

    def cut(self) -> None:
        """Pull the cable."""
        with suppress(subprocess.CalledProcessError):
            _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        _ip("link", "set", self._cable, "up")

    @contextmanager
    def slow_cable(self, mbit_s: int) -> Iterator[None]:
        """What is sent to it comes at this speed; CalledProcessError where the kernel cannot do that."""
        tc = [str(_tool("tc")), "qdisc"]
        rate = f"rate {mbit_s}mbit burst 64kb latency 400ms".split()
        subprocess.run([*tc, "add", "dev", self._cable, "root", "tbf", *rate], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run([*tc, "del", "dev", self._cable, "root"], check=True, capture_output=True)

    def _all(self) -> list[psutil.Process]:
        assert self._init is not None
        found = [self._init, *self._init.children(recursive=True), *self.processes()]
        return [p for p in found if _lives(p)]

    def _entered(self) -> list[psutil.Process]:
        """The nsenters of `run` and `popen`: they stop when their child is stopped, and reap it."""
        parents = (process.parent() for process in self.processes())
        return [parent for parent in parents if parent is not None and _lives(parent) and parent.name() == "nsenter"]

    def _enter(self) -> list[str]:
        assert self._init is not None, f"host {self.name} is down"
        return ["nsenter", "--target", str(self._init.pid), "--mount", "--net", "--uts", "--ipc", "--pid", "--"]

    def _plug(self) -> None:
        """A cable from the bridge into the host's namespace, then its addresses."""
        assert self._init is not None and self._shell is not None and self._shell.stdin is not None
        pid = str(self._init.pid)
        if self._line is None:
            _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", pid)
        else:
            self._carrier = self._line.lay(self._cable, far := f"{self._cable}i")
            _ip("link", "set", far, "netns", pid, "name", "eth0")
        _ip("link", "set", self._cable, "master", self.net.bridge, "up")
        inside = ["nsenter", "--target", pid, "--net", "ip"]
        # A machine keeps its card when it is switched off: neighbours remember where to send for up to a minute.
        card = ":".join(["02", "5a", *(f"{int(part):02x}" for part in self.address.split("."))])
        for words in (
            f"link set eth0 address {card}", f"addr add {self.address}/24 dev eth0", "link set lo up", "link set eth0 up",
        ):  # fmt: skip
            subprocess.run([*inside, *words.split()], check=True, capture_output=True)
        self._shell.stdin.write("plugged\n")
        self._shell.stdin.flush()

    def _expect(self, word: str) -> None:
        assert self._shell is not None and self._shell.stdout is not None
        line = self._shell.stdout.readline().strip()
        if line != word:
            raise RuntimeError(f"host {self.name} did not come up: said {line!r} instead of {word!r}")

    def _write_etc(self, hide: Sequence[Path]) -> Path:
        """What differs from this machine's /etc: who lives where, its own name, no name server, its sshd."""
        etc = self._etc
        etc.mkdir()
        users = Path("/etc/passwd").read_text().splitlines()
        mine = f"{USER}:x:0:0:{USER}:{self.home}:/bin/bash"
        (etc / "passwd").write_text("\n".join(mine if u.startswith(f"{USER}:") else u for u in users) + "\n")
        # As Debian does it: whoever looks up their own name for an address gets one that nobody else can reach.
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        _ssh_keygen(etc / "host_key")
        shutil.copy(self.net.key.with_suffix(".pub"), etc / "authorized_keys")
        lines = [f"Port {SSH_PORT}", f"ListenAddress {self.address}", f"HostKey {etc / 'host_key'}", "UsePAM no",
                 f"AuthorizedKeysFile {etc / 'authorized_keys'}", "PasswordAuthentication no", "StrictModes no",
                 "PidFile none", "PermitRootLogin prohibit-password", "UseDNS no", "MaxStartups 100"]  # fmt: skip
        (etc / "sshd_config").write_text("\n".join(lines) + "\n")
        config = etc / "host.json"
        sshd = [str(_tool("sshd")), "-D", "-f", str(etc / "sshd_config"), "-E", str(etc / "sshd.log")]
        names = ("passwd", "hosts", "resolv.conf")
        mounts = [(str(etc / name), f"/etc/{name}") for name in names]
        config.write_text(json.dumps({"hostname": self.name, "files": mounts, "sshd": sshd,
                                      "empty": ["/run", "/dev/shm", *map(str, hide)]}))  # fmt: skip
        return config


def _tool(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _ip(*words: str) -> None:
    subprocess.run([str(_tool("ip")), *words], check=True, capture_output=True)


def _ssh_keygen(path: Path) -> None:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "shoal-test", "-f", str(path)]
    subprocess.run(argv, check=True, capture_output=True)


def _free_prefix() -> str:
    """10.x.y of a network this machine is not in."""
    taken = {a.address.rpartition(".")[0] for addresses in psutil.net_if_addrs().values() for a in addresses}
    while True:
        prefix = f"10.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}"
        if prefix not in taken:
            return prefix


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return f"gone {pid}"


def _continue(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_for_port(address: str, port: int) -> None:
    deadline = time.monotonic() + patient(_BOOT_S)
    while True:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
