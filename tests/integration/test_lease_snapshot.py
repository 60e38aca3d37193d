"""P12: what was on a lease's volume is the same on another machine, and nowhere to be found on the one it left."""

import os
import shutil
import subprocess
import sys

import pytest

from shoal.agent.lease.snapshot import pack, put_back
from shoal.agent.sandbox.confine import HOME, Confinement, LeaseLimits
from shoal.core.errors import Corrupt
from shoal.store.local import LocalStore
from shoal.store.manifest import manifest_id
from shoal.store.materialize import materialize
from shoal.testing.patience import patient

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("bwrap"), reason="S3 needs root and bubblewrap")

MARKER = b"planted-marker-7c1d"
FILL = """
import os, sys
os.chdir(os.path.expanduser("~"))
os.makedirs("deep/er/empty")
open("plain", "wb").write(b"%(marker)s" * 1000)
open("large", "wb").write(os.urandom(3 << 20))
open(b"odd \\xff\\n name", "wb").write(b"odd")
open("sparse", "wb").truncate(4 << 20)
open("script.sh", "w").write("#!/bin/sh\\necho hello\\n")
os.chmod("script.sh", 0o750)
open("locked", "w").write("mine alone")
os.chmod("locked", 0o000)
os.chmod("deep/er", 0o500)
os.link("plain", "deep/same")
os.symlink("../plain", "deep/link")
os.symlink("/etc/shadow", "elsewhere")
os.symlink("nowhere", "dangling")
os.mkfifo("pipe")
for name in ("plain", "deep/er", "dangling"):
    os.utime(name, ns=(1, 1_600_000_000_123_456_789), follow_symlinks=False)
"""


@pytest.fixture
def lease(tmp_path):
    made = []

    def make(name):
        made.append(Confinement(tmp_path / name, name, LeaseLimits(disk_mb=32, memory_mb=256)))
        made[-1].open()
        return made[-1]

    yield make
    for confinement in made:
        confinement.wipe()


def travel(tmp_path, confinement):
    """Send a snapshot to the store and restore it, as on another machine; return its hash and the new folder."""
    store, aside = LocalStore(tmp_path / "store"), tmp_path / "aside"
    aside.mkdir(exist_ok=True)
    packed, skipped = pack(confinement.volume, aside)
    for name in packed.where:
        store.put(name, packed.read(name))
    name = manifest_id(packed.manifest)
    materialize(packed.manifest, store.get, tmp_path / "arrived" / name, read_only=True)
    return name, tmp_path / "arrived" / name, skipped


def inside(confinement, code):
    done = subprocess.run(
        confinement.wrap([sys.executable, "-c", code]),
        env=confinement.env(),
        capture_output=True,
        text=True,
        timeout=patient(60),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_volume_is_the_same_elsewhere_and_gone_here(lease, tmp_path):
    here = lease("here")
    inside(here, FILL % {"marker": MARKER.decode()})
    tree_hash, arrived, skipped = travel(tmp_path, here)
    assert skipped == ["pipe is neither file, folder nor link"]

    there = lease("there")
    put_back(arrived, there.volume, there.owner)
    assert manifest_id(pack(there.volume, tmp_path)[0].manifest) == tree_hash
    assert inside(there, f"print(open('{HOME}/deep/link').read()[:19])").strip() == MARKER.decode()
    assert inside(there, f"import os; os.chdir('{HOME}'); os.chmod('locked', 0o600); print(open('locked').read())")
    assert (there.volume / "plain").stat().st_nlink == 2
    assert (there.volume / "script.sh").stat().st_mode & 0o7777 == 0o750

    image, second_name = here.volume.parent / "volume.img", tmp_path / "second-name"
    os.link(image, second_name)
    os.sync()
    assert MARKER in image.read_bytes(), "what was never on the disk cannot be missed there"
    here.wipe()
    assert not here.volume.parent.exists()
    left = second_name.read_bytes()
    assert len(left) == 32 << 20
    assert MARKER not in left


@pytest.mark.parametrize(
    "tree",
    [
        '{"entries": [["f", "../escaped", 420, 1, 0]]}',
        '{"entries": [["d", "/abs", 448, 1, null]]}',
        '{"entries": [["d", "a", 448, 1, null], ["d", "a/.", 448, 1, null]]}',
        '{"entries": [["f", ".", 420, 1, 0]]}',
        '{"entries": [["l", "way", 511, 1, "/etc"], ["f", "way/passwd", 420, 1, 0]]}',
        '{"entries": [["h", "mine", 420, 1, "/etc/passwd"]]}',
        '{"entries": [["c", "device", 420, 1, null]]}',
        "nonsense",
    ],
)
def test_a_forged_snapshot_writes_nothing(tmp_path, tree):
    (tmp_path / "forged/files").mkdir(parents=True)
    (tmp_path / "forged/tree.json").write_text(tree)
    (tmp_path / "forged/files/0").write_text("root::0:0")
    (tmp_path / "volume").mkdir()
    with pytest.raises(Corrupt, match="not a valid snapshot"):
        put_back(tmp_path / "forged", tmp_path / "volume")
    assert list((tmp_path / "volume").iterdir()) == []
