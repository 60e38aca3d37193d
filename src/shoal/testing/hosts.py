"""Hosts for tests: Linux namespaces with their own network, processes, hostname and home and a real sshd, on one bridge.

They share this machine's disk, kernel and clock, except for their home, /run, /dev/shm and hidden directories. Needs root,
iproute2 and openssh-server; `missing()` returns what is missing. All is removed at the end of `lan`, or when we die.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from shoal.testing.line import Line
from shoal.testing.patience import patient
from shoal.testing.processes import lives, program

SSH_PORT = 22
USER = "root"
_BOOT_S = 30.0
_TOOLS = {"ip": "iproute2", "sshd": "openssh-server", "ssh-keygen": "openssh-client", "unshare": "util-linux",
          "nsenter": "util-linux", "setpriv": "util-linux"}  # fmt: skip


def missing() -> str | None:
    """Return why this machine cannot make hosts, as a reason to skip tests; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces as hosts need root on Linux"
    absent = sorted({package for tool, package in _TOOLS.items() if _tool(tool) is None})
    if absent:
        return f"network namespaces as hosts need {', '.join(absent)}: apt-get install {' '.join(absent)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "this kernel or container does not allow network namespaces"


@contextmanager
def lan(*names: str, hide: Sequence[Path] = ()) -> Iterator[Lan]:
    """Start hosts of these names on one bridge, with sshd listening. `hide`: directories that are empty for them."""
    net = Lan()
    try:
        for name in names:
            net.add(name, hide=hide)
        yield net
    finally:
        net.close()


class Lan:
    """Network of this machine (at `address`) and the hosts, on one bridge. `key` is the SSH key of all hosts."""

    def __init__(self) -> None:
        self.tag = secrets.token_hex(3)
        self.bridge = f"sh{self.tag}"
        self.prefix = _free_prefix()
        self.address = f"{self.prefix}.1"
        self.hosts: list[Host] = []
        # Short, because paths of sockets below a host's home may have at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="sh-"))
        self.key = self.folder / "id"
        _ssh_keygen(self.key)
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")

    def add(
        self,
        name: str,
        *,
        hide: Sequence[Path] = (),
        line: Line | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> Host:
        """Add a host and boot it.

        Args:
            name: Its hostname.
            hide: Directories that are empty for it.
            line: Delay, loss and speed of its cable; None: an ideal one.
            env: Variables of all logins by SSH, such as those of a fake driver.
        """
        host = Host(self, name, len(self.hosts) + 11, hide, line, env)
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
    def __init__(
        self, net: Lan, name: str, number: int, hide: Sequence[Path], line: Line | None, env: Mapping[str, str]
    ):
        self.net, self.name = net, name
        self._line, self._own_env = line, dict(env)
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
        """Destination for ssh."""
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
        """Start the host and wait until sshd answers. Its disk is unchanged since the last time."""
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
        """Run a program on the host."""
        env = self.env() | options.pop("env", {})
        return subprocess.run(
            [*self._enter(), *argv], env=env, cwd=self.home, capture_output=True, text=True, timeout=timeout, check=check,
            **options,
        )  # fmt: skip

    def popen(self, *argv: str, **options: Any) -> subprocess.Popen[bytes]:
        env = self.env() | options.pop("env", {})
        return subprocess.Popen([*self._enter(), *argv], env=env, cwd=options.pop("cwd", self.home), **options)

    def env(self) -> dict[str, str]:
        names = {"HOME": str(self.home), "USER": USER, "LOGNAME": USER, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        return names | self._own_env

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the host, parents before their children, without its init and sshd."""
        if not self.is_up:
            return []
        assert self._init is not None
        found = {p.pid: p for p in self._init.children(recursive=True)}
        # Processes started by `run` and `popen` have their parent outside.
        found |= {p.pid: p for p in psutil.process_iter() if _namespace(p.pid) == _namespace(self._init.pid)}
        return [p for p in found.values() if p.pid != self._init.pid and lives(p) and program(p) != "sshd"]

    def kill(self) -> None:
        """Simulate a power failure: disconnect the cable first, so that no one is notified, then kill all processes."""
        if self._shell is None or self._shell.stdin is None or self._shell.stdout is None:
            return
        self.cut()
        entered = self._entered()
        (self._init or self._shell).kill()
        while self._shell.poll() is None:  # it ends after its init, once all processes are reaped
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
        """Stop all processes until `thaw`; the network still answers pings, like that of a hung machine."""
        assert self._init is not None
        self._init.send_signal(signal.SIGSTOP)
        while moving := [p for p in self._all() if p.status() != psutil.STATUS_STOPPED]:
            for process in moving:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        _continue([*reversed(self._all()), *self._entered()])

    def cut(self) -> None:
        """Disconnect the cable."""
        with suppress(subprocess.CalledProcessError):
            _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        _ip("link", "set", self._cable, "up")

    @contextmanager
    def slow_cable(self, mbit_s: int) -> Iterator[None]:
        """Limit the speed of data sent to the host. Raise CalledProcessError if the kernel does not support it."""
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
        return [p for p in found if lives(p)]

    def _entered(self) -> list[psutil.Process]:
        """Return the nsenter processes of `run` and `popen`: they stop when their child is stopped, and reap it."""
        parents = (process.parent() for process in self.processes())
        return [parent for parent in parents if parent is not None and lives(parent) and program(parent) == "nsenter"]

    def _enter(self) -> list[str]:
        assert self._init is not None, f"host {self.name} is down"
        return ["nsenter", "--target", str(self._init.pid), "--mount", "--net", "--uts", "--ipc", "--pid", "--"]

    def _plug(self) -> None:
        """Connect a cable from the bridge to the host's namespace, and set the host's addresses."""
        assert self._init is not None and self._shell is not None and self._shell.stdin is not None
        pid = str(self._init.pid)
        if self._line is None:
            _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", pid)
        else:
            self._carrier = self._line.lay(self._cable, far := f"{self._cable}i")
            _ip("link", "set", far, "netns", pid, "name", "eth0")
        _ip("link", "set", self._cable, "master", self.net.bridge, "up")
        inside = ["nsenter", "--target", pid, "--net", "ip"]
        # The MAC address stays the same after a restart: neighbours cache it for up to a minute.
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
            raise RuntimeError(f"host {self.name} did not start: it printed {line!r} instead of {word!r}")

    def _write_etc(self, hide: Sequence[Path]) -> Path:
        """Write the files that differ from this machine's /etc: passwd, hosts, resolv.conf and those of sshd."""
        etc = self._etc
        etc.mkdir()
        users = Path("/etc/passwd").read_text().splitlines()
        mine = f"{USER}:x:0:0:{USER}:{self.home}:/bin/bash"
        (etc / "passwd").write_text("\n".join(mine if u.startswith(f"{USER}:") else u for u in users) + "\n")
        # As in Debian: a host that looks up its own name gets an address that no other host can reach.
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        _ssh_keygen(etc / "host_key")
        shutil.copy(self.net.key.with_suffix(".pub"), etc / "authorized_keys")
        lines = [f"Port {SSH_PORT}", f"ListenAddress {self.address}", f"HostKey {etc / 'host_key'}", "UsePAM no",
                 f"AuthorizedKeysFile {etc / 'authorized_keys'}", "PasswordAuthentication no", "StrictModes no",
                 "PidFile none", "PermitRootLogin prohibit-password", "UseDNS no", "MaxStartups 100"]  # fmt: skip
        if self._own_env:
            lines.append(f"SetEnv {' '.join(f'{name}={value}' for name, value in self._own_env.items())}")
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
    """Return the prefix 10.x.y of a network that this machine is not in."""
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
