"""The disk of a lease: nothing that was written there can be read from the machine without the key, during the lease or after."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from shoal.agent.lease import volume as volumes
from shoal.agent.lease.encryption import KEY_BYTES
from shoal.agent.lease.volume import Volume

MARKER = b"planted-marker-9d2c"
SIZE = 32 << 20
KEY, OTHER = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES)


@pytest.fixture
def made(tmp_path):
    """A function that opens the volume of a lease; all are closed at the end."""
    opened: list[Volume] = []

    def make(key: bytes | None = KEY) -> Volume:
        opened.append(Volume(tmp_path / "lease", SIZE, key))
        try:
            opened[-1].open()
        except OSError:
            opened[-1].close()
            raise
        return opened[-1]

    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    first = make()
    if not first.is_limited or first.why_plain:
        first.close()
        pytest.skip(f"this kernel does not encrypt folders: {first.why_plain}")
    first.wipe()
    yield make
    for volume in opened:
        volume.close()


def plant(volume: Volume) -> None:
    (volume.path / "folder").mkdir()
    for name in ("one", "folder/two"):
        (volume.path / name).write_bytes(MARKER * 10_000)
    (volume.path / f"name-{MARKER.decode()}").write_bytes(b"x")
    os.sync()


def stored(volume: Volume) -> bytes:
    return b"".join(path.read_bytes() for path in Path(volume.path).parent.glob("*.img"))


def test_the_disk_has_no_trace_of_what_is_written(made):
    volume = made()
    assert volume.is_encrypted and volume.is_limited
    plant(volume)
    assert MARKER not in stored(volume)
    volume.close()
    assert MARKER not in stored(volume)


def test_a_lease_that_comes_back_finds_its_files(made):
    volume = made()
    plant(volume)
    volume.close()
    assert list(volume.path.iterdir()) == []
    again = made()
    assert (again.path / "folder" / "two").read_bytes() == MARKER * 10_000
    assert (again.path / f"name-{MARKER.decode()}").exists()


def test_without_the_key_it_cannot_be_opened_nor_is_it_replaced(made):
    volume = made()
    plant(volume)
    volume.close()
    with pytest.raises(OSError):
        made(OTHER)
    assert made().is_encrypted


def test_a_plain_volume_of_an_earlier_version_stays_as_it_is(made):
    old = made(None)
    assert not old.is_encrypted
    plant(old)
    old.close()
    again = made()
    assert not again.is_encrypted and not again.why_plain
    assert (again.path / "one").read_bytes() == MARKER * 10_000


def test_where_folders_cannot_be_encrypted_the_reason_is_known(made, monkeypatch):
    def fails(*args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(volumes, "encrypted_folder", fails)
    volume = made()
    assert (volume.is_limited, volume.is_encrypted, volume.why_plain) == (True, False, "Operation not supported")


def test_wiping_leaves_nothing(made):
    volume = made()
    plant(volume)
    volume.wipe()
    assert not volume.path.parent.exists()
