"""Encryption of a folder by the kernel (fscrypt, on ext4): file contents and names, with a key that only the kernel holds.

The key comes from the server and is never written to this machine's disk. Without it the folder's blocks are noise, so a lease
whose key was destroyed is gone, even if its machine was lost and comes back later.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KEY_BYTES = 64
_ADD_KEY, _REMOVE_KEY, _SET_POLICY = 0xC0506617, 0xC0406619, 0x800C6613
_BY_IDENTIFIER = 2
_POLICY_V2, _AES_XTS, _AES_CTS, _PAD_32 = 2, 1, 4, 0x03


def encrypted_folder(root: Path, name: str, key: bytes) -> Path:
    """Return a folder of a mounted file system that is encrypted with this key; create it if it does not exist.

    Raise OSError if the file system cannot encrypt, or the folder was encrypted with another key.
    """
    identifier = _add_key(root, key)
    folder = root / name
    folder.mkdir(exist_ok=True, mode=0o700)
    policy = struct.pack("=BBBBB3s16s", _POLICY_V2, _AES_XTS, _AES_CTS, _PAD_32, 0, b"", identifier)
    with _opened(folder) as fd:
        fcntl.ioctl(fd, _SET_POLICY, policy)  # changes nothing if it has this policy already
    (root / f".{name}-key").write_text(identifier.hex())
    return folder


def forget_key(root: Path, name: str) -> None:
    """Remove a folder's key from the kernel. Its files can then no longer be read, by root either."""
    with suppress(OSError, ValueError), _opened(root) as fd:
        identifier = bytes.fromhex((root / f".{name}-key").read_text())
        fcntl.ioctl(fd, _REMOVE_KEY, bytearray(struct.pack("=II32s24s", _BY_IDENTIFIER, 0, identifier, b"")), True)


def _add_key(root: Path, key: bytes) -> bytes:
    """Give the key to the kernel and return its identifier, which is a hash of it."""
    argument = bytearray(struct.pack("=II32sII32s", _BY_IDENTIFIER, 0, b"", len(key), 0, b"") + key)
    with _opened(root) as fd:
        fcntl.ioctl(fd, _ADD_KEY, argument, True)
    identifier = bytes(argument[8:24])
    argument[:] = bytes(len(argument))
    return identifier


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
