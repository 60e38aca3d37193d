"""Encryption of secrets at rest: AES-256-GCM with a key file of the server (mode 0600)."""

from __future__ import annotations

import base64
import hmac
import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.core.durable import flush
from shoal.core.errors import Corrupt

_NONCE = 12


class Vault:
    """Encrypts and decrypts texts with the server's key; the key file is created if it does not exist."""

    def __init__(self, key_file: Path):
        self._key = _load_or_make(key_file)
        self._aead = AESGCM(self._key)

    @property
    def check_value(self) -> str:
        """Value that identifies the key without revealing anything about it."""
        return self.derive("check value of the secret key")

    def derive(self, label: str) -> str:
        """Return a token for a label that only this server can compute; always the same for the same label."""
        return base64.urlsafe_b64encode(hmac.digest(self._key, label.encode(), "sha256")).decode().rstrip("=")

    def seal(self, text: str, *, bound_to: str) -> bytes:
        """Encrypt a text.

        The same `bound_to` (say, workspace and name) is needed to open it, so a row cannot be moved elsewhere.
        """
        nonce = os.urandom(_NONCE)
        return nonce + self._aead.encrypt(nonce, text.encode(), bound_to.encode())

    def open(self, sealed: bytes, *, bound_to: str) -> str:
        try:
            return self._aead.decrypt(sealed[:_NONCE], sealed[_NONCE:], bound_to.encode()).decode()
        except InvalidTag:
            raise Corrupt(
                "A secret cannot be decrypted: the server's secret.key is not the one it was made with."
            ) from None

    def opens(self, sealed: bytes, *, bound_to: str) -> bool:
        try:
            self.open(sealed, bound_to=bound_to)
        except Corrupt:
            return False
        return True


def _load_or_make(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        key = AESGCM.generate_key(bit_length=256)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(key)
            file.flush()
            flush(file.fileno())
        return key
