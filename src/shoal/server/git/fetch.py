"""Runs git: fetches one revision of one repository into an empty directory, ignoring all git configuration of the machine.

Nothing a remote sends is executed (no hooks, filters, submodules or helpers), and what it may cost is bounded:
time by a deadline on the process group, bytes by the kernel's file size limit, memory by an address space limit.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import GitFailed, SourceTooLarge
from shoal.core.names import did_you_mean
from shoal.server.git.errors import explain
from shoal.server.git.urls import GitUrl

MAX_FILES = 100_000
_WANT = "refs/shoal/want"
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT_SHA = re.compile(r"[0-9a-f]{4,39}")
_LISTING_BYTES = 64 << 20
_MEMORY_KIB = 4 << 20
# Run by sh: `ulimit` is the only way to limit a child without running Python between fork and exec.
_LIMITED = 'ulimit -f "$1" && ulimit -v "$2" && shift 2 && exec "$@"'
# Answers only prompts of the one host the token is for: a redirect elsewhere gets nothing.
_ASKPASS = r"""#!/bin/sh
case "$1" in
  "Username for '$SHOAL_GIT_SCHEME://$SHOAL_GIT_NETLOC': ") printf '%s\n' "$SHOAL_GIT_USERNAME" ;;
  "Password for '$SHOAL_GIT_SCHEME://"*"@$SHOAL_GIT_NETLOC': ") printf '%s\n' "$SHOAL_GIT_TOKEN" ;;
  *) exit 1 ;;
esac
"""
_OPTIONS = {
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "core.fsmonitor": "false",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.bigFileThreshold": "8m",
    "fetch.unpackLimit": "1",
    "fetch.recurseSubmodules": "no",
    "submodule.recurse": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "pack.threads": "1",
    "protocol.version": "2",
    "http.lowSpeedLimit": "100",
    "http.lowSpeedTime": "30",
}
_PASSED_ON = ("PATH", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy",
              "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Credential:
    """User name and token for a git host."""

    username: str
    token: str


@dataclass(frozen=True, slots=True)
class Checkout:
    """Files of a fetched revision."""

    tree: Path
    commit: str
    revision: str
    """Requested name, or the default branch."""


class GitFetcher:
    """One fetch, in a directory of its own that the caller removes."""

    def __init__(
        self,
        url: GitUrl,
        work: Path,
        *,
        timeout_s: float,
        max_bytes: int,
        credential: Credential | None = None,
        pinned: list[str] | None = None,
    ):
        """`pinned`: connect to these addresses only and follow no redirect; None trusts the host's name."""
        if shutil.which("git") is None:
            raise GitFailed("git is not installed on the server.")
        self._url, self._work, self._max_bytes = url, work, max_bytes
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + timeout_s
        self._credential = credential
        self._options = dict(_OPTIONS)
        if pinned is not None:
            _check_can_pin()
            self._options["http.followRedirects"] = "false"
            addresses = ",".join(f"[{a}]" if ":" in a else a for a in pinned)
            port = url.port or (443 if url.scheme == "https" else 80)
            self._options["http.curloptResolve"] = f"{url.host}:{port}:{addresses}"
        self._env = self._environment()

    def checkout(self, revision: str | None) -> Checkout:
        """Fetch the files of a branch, tag or commit (None: the default branch), without history and without .git."""
        git_dir, tree = self._work / "git", self._work / "tree"
        tree.mkdir()
        self._git("init", "--quiet", "--bare", "--template=", str(git_dir))
        want, name = self._default() if revision is None else (self._find(revision), revision)
        self._fetch(git_dir, want, name)
        commit = self._git(f"--git-dir={git_dir}", "rev-parse", "--verify", f"{_WANT}^{{commit}}").strip()
        self._check_size(git_dir, commit)
        here = (f"--git-dir={git_dir}", f"--work-tree={tree}", "-c", "core.bare=false")
        self._git(*here, "checkout", "--quiet", "--force", "--detach", commit, limit=self._max_bytes)
        return Checkout(tree, commit, name)

    def _default(self) -> tuple[str, str]:
        lines = self._git("ls-remote", "--symref", "--", self._url.text, "HEAD").splitlines()
        if not any(line.endswith("\tHEAD") and not line.startswith("ref:") for line in lines):
            raise GitFailed(f"{self._url.text} is empty or has no default branch.", hint="--repository-revision BRANCH")
        branches = [m[1] for line in lines if (m := re.fullmatch(r"ref: refs/heads/(\S+)\tHEAD", line))]
        return "HEAD", branches[0] if branches else "HEAD"

    def _find(self, revision: str) -> str:
        """Return what to request from the remote: one of its refs, or the full hash of a commit."""
        if _SHA.fullmatch(revision):
            return revision
        names = [f"refs/heads/{revision}", f"refs/tags/{revision}"]
        if revision == "HEAD" or revision.startswith("refs/"):
            names.insert(0, revision)
        lines = self._git("ls-remote", "--", self._url.text, *names).splitlines()
        present = {line.partition("\t")[2] for line in lines}
        for name in names:
            if name in present:
                return name
        if _SHORT_SHA.fullmatch(revision) and (full := self._full_hash(revision)):
            return full
        raise self._no_such(revision)

    def _full_hash(self, short: str) -> str | None:
        """Return the full hash of a shortened one, or None. Fetches the list of commits, without trees and files."""
        git_dir = self._work / "commits"
        self._git("init", "--quiet", "--bare", "--template=", str(git_dir))
        fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--filter=tree:0", "--", self._url.text)
        refs = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        self._git(f"--git-dir={git_dir}", *fetch, *refs, limit=self._max_bytes)
        commits = self._git(f"--git-dir={git_dir}", "rev-list", "--all").split()
        found = [c for c in commits if c.startswith(short)]
        if len(found) > 1:
            raise GitFailed(f"'{short}' matches more than one commit of {self._url.text}; give more characters.")
        return found[0] if found else None

    def _fetch(self, git_dir: Path, want: str, revision: str) -> None:
        depth = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        try:
            self._git(f"--git-dir={git_dir}", *depth, "--", self._url.text, f"+{want}:{_WANT}", limit=self._max_bytes)
        except _GitExit as error:
            if re.search(r"not our ref|no such remote ref|couldn't find remote ref|not allow request", error.text):
                raise self._no_such(revision) from None
            raise

    def _no_such(self, revision: str) -> GitFailed:
        known: list[str] = []
        with contextlib.suppress(GitFailed, SourceTooLarge):
            listing = self._git("ls-remote", "--heads", "--tags", "--refs", "--", self._url.text)
            known = re.findall(r"\trefs/(?:heads|tags)/(\S+)", listing)
        guess = did_you_mean(revision, known[:10_000])
        return GitFailed(f"There is no branch, tag or commit '{revision}' in {self._url.text}.{guess}")

    def _check_size(self, git_dir: Path, commit: str) -> None:
        """Raise if the tree is too large. Done before anything is unpacked: a small pack can hold a very large tree."""
        listing = self._git(f"--git-dir={git_dir}", "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
        sizes: list[tuple[int, str]] = []
        for entry in listing.split("\0")[:-1]:
            facts, _, path = entry.partition("\t")
            size = facts.split()[-1]
            sizes.append((int(size) if size.isdigit() else 0, path))
        total = sum(size for size, _ in sizes)
        if total > self._max_bytes or len(sizes) > MAX_FILES:
            biggest = ", ".join(f"{_printable(path)} ({size >> 20} MiB)" for size, path in heapq.nlargest(3, sizes))
            raise SourceTooLarge(
                f"The repository has {len(sizes)} files of {total >> 20} MiB together; the limit for code is "
                f"{self._max_bytes >> 20} MiB in {MAX_FILES} files. The largest: {biggest}."
            )

    def _git(self, *args: str, limit: int = _LISTING_BYTES) -> str:
        """Run a git command and return its output. The kernel limits its output and every file it writes to `limit` bytes."""
        blocks, memory = limit // 512 + 1, _MEMORY_KIB + 2 * self._max_bytes // 1024
        options = [part for item in self._options.items() for part in ("-c", "=".join(item))]
        argv = ["/bin/sh", "-c", _LIMITED, "sh", str(blocks), str(memory), "git", *options, *args]
        out, err = self._work / "out", self._work / "err"
        with out.open("wb") as out_file, err.open("wb") as err_file:
            code = self._wait(
                subprocess.Popen(
                    argv,
                    cwd=self._work,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=out_file,
                    stderr=err_file,
                    start_new_session=True,
                )
            )
        if code != 0:
            raise self._failure(_tail(err), blocks * 512)
        return out.read_text(encoding="utf-8", errors="replace")

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(timeout=max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise GitFailed(f"{self._url.text} could not be fetched within {self._timeout_s:g} seconds.") from None
        finally:
            if process.returncode is None:  # not reaped, so its process group id is still valid
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _failure(self, text: str, limit: int) -> GitFailed | SourceTooLarge:
        # git does not report that the kernel stopped one of its helpers at the limit; the size of the remaining file shows it.
        if _largest_file(self._work) >= limit:
            return SourceTooLarge(f"{self._url.text} is larger than the {self._max_bytes >> 20} MiB allowed for code.")
        if self._credential:
            text = text.replace(self._credential.token, "***")
        text = text.replace(str(self._work), "")
        return _GitExit(explain(text, self._url, signed_in=self._credential is not None), text)

    def _environment(self) -> dict[str, str]:
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        allowed = {"http": "http:https", "file": "file"}.get(self._url.scheme, self._url.scheme)
        env |= {
            "HOME": str(self._work),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": allowed,
        }
        if self._url.scheme == "ssh":
            env["GIT_SSH_COMMAND"] = "ssh -oBatchMode=yes -oControlMaster=no -oControlPath=none"
            if "SSH_AUTH_SOCK" in os.environ:
                env["SSH_AUTH_SOCK"] = os.environ["SSH_AUTH_SOCK"]
        if self._credential:
            askpass = self._work / "askpass"
            askpass.write_text(_ASKPASS)
            askpass.chmod(0o700)
            env |= {
                "GIT_ASKPASS": str(askpass),
                "SHOAL_GIT_SCHEME": self._url.scheme,
                "SHOAL_GIT_NETLOC": self._url.netloc,
                "SHOAL_GIT_USERNAME": self._credential.username,
                "SHOAL_GIT_TOKEN": self._credential.token,
            }
        return env


class _GitExit(GitFailed):
    """A failed git command; `text` is its output."""

    def __init__(self, error: GitFailed, text: str):
        super().__init__(error.message, hint=error.hint)
        self.text = text


@functools.cache
def _check_can_pin() -> None:
    """Raise if git is too old: before 2.37 it silently ignores http.curloptResolve."""
    said = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < (2, 37):
        raise GitFailed(f"The server's git is too old to fetch safely ({said.strip()}): 2.37 or newer is needed.")


def _largest_file(root: Path) -> int:
    largest = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):
                largest = max(largest, Path(folder, name).lstat().st_size)
    return largest


def _printable(path: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in path)[-80:]


def _tail(path: Path, size: int = 8192) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode("utf-8", errors="replace")
