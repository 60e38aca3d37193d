"""A read-only filesystem in Python, by the kernel's FUSE protocol (7.31) without a library.

Why this is safe: several threads read requests from one descriptor; the kernel gives each request to one of them, and an
answer names its request, so answers may come in any order. Nothing is changed after the start except the blocks in memory,
which `BucketReader` guards.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable
from typing import Any

from shoal.agent.data.bucket_reader import BucketReader
from shoal.agent.data.bucket_tree import ROOT, Tree

_HEADER = struct.Struct("<IIQQIIII")
_ANSWER = struct.Struct("<IiQ")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE = 1, 2, 3, 14, 15, 17, 18
_FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 25, 26, 27, 28, 29, 36, 42
_WRITING = frozenset({4, 5, 6, 8, 9, 10, 11, 12, 13, 16, 21, 24, 35, 43, 45})
"""Requests that change something: setattr, symlink, mknod, mkdir, unlink, rmdir, rename, link, write, …"""
_READS_AT_ONCE, _MANY_PAGES = 1 << 0, 1 << 22
_KEEP_CACHE, _CACHE_DIR = 2, 8
_MOST_READ = 1 << 20
_FOREVER = 86400
"""Seconds for which the kernel may keep names and attributes; they never change."""
_RDONLY, _NOSUID, _NODEV, _DETACH = 1, 2, 4, 2
_THREADS = 8
_DEVICE = "/dev/fuse"


def mount(folder: str) -> int:
    """Mount a filesystem at an empty folder and return the descriptor of its requests; OSError if that is not allowed."""
    fd = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"shoal", folder.encode(), b"fuse", _RDONLY | _NOSUID | _NODEV, options.encode()) != 0:
        code = ctypes.get_errno()
        os.close(fd)
        raise OSError(code, os.strerror(code))
    return fd


def unmount(folder: str) -> None:
    """Unmount a folder, even if files in it are open; nothing happens if it is not mounted."""
    ctypes.CDLL(None, use_errno=True).umount2(folder.encode(), _DETACH)


class Server:
    """Answers the kernel's requests for the files of a tree."""

    def __init__(self, fd: int, tree: Tree, reader: BucketReader, say: Callable[[str], None]):
        self._fd, self._tree, self._reader, self._say = fd, tree, reader, say
        self._handlers: dict[int, Callable[[int, bytes], bytes]] = {
            _LOOKUP: self._lookup,
            _GETATTR: lambda node, body: struct.pack("<QII", _FOREVER, 0, 0) + self._attributes(node),
            _OPEN: lambda node, body: struct.pack("<QII", 0, _KEEP_CACHE, 0),
            _OPENDIR: lambda node, body: struct.pack("<QII", 0, _KEEP_CACHE | _CACHE_DIR, 0),
            _READ: self._read,
            _READDIR: self._list,
            _STATFS: lambda node, body: struct.pack("<QQQQQIIII24x", 0, 0, 0, len(tree.files), 0, 4096, 255, 4096, 0),
            _RELEASE: lambda node, body: b"",
            _RELEASEDIR: lambda node, body: b"",
            _FLUSH: lambda node, body: b"",
            _INIT: self._init,
        }

    def start(self) -> list[threading.Thread]:
        """Start the threads; they end when the filesystem is unmounted."""
        threads = [threading.Thread(target=self._serve, name="fuse", daemon=True) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        return threads

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, _MOST_READ + 4096)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EAGAIN):  # the request was interrupted before it was read
                    continue
                return
            if request:
                self._answer(request)

    def _answer(self, request: bytes) -> None:
        _, code, unique, node, *_ = _HEADER.unpack_from(request)
        if code in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            return
        problem, body = 0, b""
        try:
            body = self._handle(code, node, request[_HEADER.size :])
        except OSError as error:
            problem = error.errno or errno.EIO
        except Exception as error:
            problem = errno.EIO
            self._say(
                f"{self._name(node)} cannot be read: {str(error).splitlines()[0][:300] if str(error) else error!r}"
            )
        try:
            os.write(self._fd, _ANSWER.pack(_ANSWER.size + len(body), -problem, unique) + body)
        except OSError:  # the process that asked was killed, or the filesystem unmounted
            return

    def _handle(self, code: int, node: int, body: bytes) -> bytes:
        handler = self._handlers.get(code)
        if handler is None:
            raise OSError(errno.EROFS if code in _WRITING else errno.ENOSYS, "not supported")
        if code != _INIT and node not in self._tree.parents:
            raise OSError(errno.ENOENT, "no such entry")
        return handler(node, body)

    def _init(self, node: int, body: bytes) -> bytes:
        _, _, ahead, offered = struct.unpack_from("<IIII", body)
        flags = offered & (_READS_AT_ONCE | _MANY_PAGES)
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, ahead, flags, 16, 12, 4096, 1, _MOST_READ // 4096, 0, 0)

    def _lookup(self, node: int, body: bytes) -> bytes:
        name = body.rstrip(b"\0").decode(errors="surrogateescape")
        found = self._tree.folders.get(node, {}).get(name)
        if found is None:
            raise OSError(errno.ENOENT, "no such entry")
        return struct.pack("<QQQQII", found, 0, _FOREVER, _FOREVER, 0, 0) + self._attributes(found)

    def _read(self, node: int, body: bytes) -> bytes:
        _, start, size = struct.unpack_from("<QQI", body)
        file = self._tree.files.get(node)
        if file is None:
            raise OSError(errno.EISDIR, "is a folder")
        return self._reader.read(file, start, size)

    def _list(self, node: int, body: bytes) -> bytes:
        _, start, size = struct.unpack_from("<QQI", body)
        if node not in self._tree.folders:
            raise OSError(errno.ENOTDIR, "is a file")
        entries = [(".", node), ("..", self._tree.parents[node]), *self._tree.folders[node].items()]
        out = bytearray()
        for at in range(start, len(entries)):
            name, number = entries[at][0].encode(errors="surrogateescape"), entries[at][1]
            kind = 4 if number in self._tree.folders else 8
            entry = struct.pack("<QQII", number, at + 1, len(name), kind) + name
            entry += b"\0" * (-len(entry) % 8)
            if len(out) + len(entry) > size:
                break
            out += entry
        return bytes(out)

    def _attributes(self, node: int) -> bytes:
        file = self._tree.files.get(node)
        size, at = (file.size, int(file.modified)) if file else (0, 0)
        mode, links = (0o100444, 1) if file else (0o40555, 2)
        times: Any = (at, at, at, 0, 0, 0)
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, -(-size // 512), *times, mode, links, 0, 0, 0, 4096, 0)

    def _name(self, node: int) -> str:
        file = self._tree.files.get(node)
        return file.path if file else "the folder" if node == ROOT else f"entry {node}"
