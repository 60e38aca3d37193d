"""Makes the folders of `--mount` visible to a node's workers: buckets by a process each, folders of the machine by a bind."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.agent.data.fuse import unmount
from shoal.agent.data.inputs import clear
from shoal.agent.node.workdir import NotReady, WorkDir
from shoal.agent.sandbox.mounts import Bind
from shoal.agent.wire import JoinReply
from shoal.core.folder_mounts import FolderMount, parse_mount

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_POLL_S = 0.5
_END_S = 10.0


class FolderMounts:
    """The mounts of one node. The keys reach the processes through a pipe, never through arguments or a file."""

    def __init__(
        self,
        texts: Sequence[str],
        given: Mapping[str, str],
        root: Path,
        say: Callable[[str], None],
        stopped: Callable[[], bool] = lambda: False,
        *,
        copy: bool = False,
    ):
        """Set up the mounts. `copy`: copy buckets, even where they could be mounted."""
        self._mounts = [parse_mount(text) for text in texts]
        self._keys = {name: given[name] for name in _KEYS if given.get(name)}
        self._root, self._say, self._stopped, self._copy = root, say, stopped, copy
        self._processes: list[subprocess.Popen[bytes]] = []
        self._mounted: list[Path] = []
        self.binds: list[Bind] = []

    def open(self) -> None:
        """Make all folders visible; raise NotReady with the reason."""
        for number, mount in enumerate(self._mounts):
            if mount.bucket is None:
                host = self._folder(mount)
            else:
                host = self._root / str(number)
                host.mkdir(parents=True, exist_ok=True)
                self._mounted.append(host)
                self._start(mount, host)
            self.binds.append(Bind(mount.path, str(host), mount.read_only))

    def close(self) -> None:
        """End the processes, which unmount their folders, and delete copies."""
        for process in self._processes:
            assert process.stdin is not None  # noqa: S101
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for folder in self._mounted:
            unmount(str(folder))  # a process that was killed together with the workers has not done so
        clear(self._root)

    def _folder(self, mount: FolderMount) -> Path:
        folder = Path(mount.source)
        if not folder.is_dir():
            raise NotReady(f"--mount {mount.source}: there is no such folder on this machine")
        if not os.access(folder, os.R_OK | os.X_OK | (0 if mount.read_only else os.W_OK)):
            raise NotReady(f"--mount {mount.source}: the agent may not {'read' if mount.read_only else 'write'} it")
        return folder

    def _start(self, mount: FolderMount, host: Path) -> None:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "shoal.agent.data.bucket_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # `select` knows nothing of lines that are in a buffer here
            env={"PATH": os.defpath, "HOME": "/nonexistent", "LANG": "C.UTF-8"},
            start_new_session=True,  # a signal to the agent's group must not end it before the workers
        )
        self._processes.append(process)
        assert process.stdin is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        request = {"source": mount.source, "keys": self._keys, "folder": str(host), "copy": self._copy}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        answer = self._first_answer(mount, process)
        if "ready" not in answer:
            raise NotReady(f"--mount {_url(mount)}: {answer.get('error', 'its process ended')}{self._advice(answer)}")
        left_out = f", {answer['left_out']} keys left out that are no paths" if answer["left_out"] else ""
        size = f"{answer['files']} files, {answer['bytes'] / 1e6:.1f} MB"
        self._say(f"[shoal] {mount.path}: {_url(mount)} is {answer['ready']} ({size}{left_out})")
        threading.Thread(target=self._pass_on, args=(mount, process), name="mount", daemon=True).start()

    def _first_answer(self, mount: FolderMount, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None  # noqa: S101
        while not self._stopped():
            if not select.select([process.stdout], [], [], _POLL_S)[0]:
                continue
            line = process.stdout.readline()
            answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
            if "say" not in answer:
                return answer
            self._say(f"[shoal] {mount.path}: {answer['say']}")
        return {"error": "stopped before it was ready"}

    def _pass_on(self, mount: FolderMount, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101
        for line in process.stdout:
            self._say(f"[shoal] {mount.path}: {json.loads(line).get('say', '')}")

    def _advice(self, answer: Mapping[str, Any]) -> str:
        text = str(answer.get("error", ""))
        if "obstore" in text:
            return " (on this machine: pip install 'shoal-train[s3]')"
        if not self._keys and any(word in text for word in ("403", "Forbidden", "AccessDenied", "401", "permission")):
            return " (it was read without keys: --secret AWS_ACCESS_KEY_ID=NAME --secret AWS_SECRET_ACCESS_KEY=NAME)"
        return ""


def _url(mount: FolderMount) -> str:
    return mount.bucket.display_url if mount.bucket else mount.source


def open_folders(
    join: JoinReply, work: WorkDir, say: Callable[[str], None], stopped: Callable[[], bool]
) -> FolderMounts:
    """Make the folders that a job names visible; raise NotReady with the reason, after which none is mounted."""
    folders = FolderMounts(join.folder_mounts, join.env | join.secrets, work.root / "mounts", say, stopped)
    try:
        folders.open()
    except BaseException:
        folders.close()
        raise
    return folders
