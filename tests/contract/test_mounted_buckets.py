"""A bucket is a folder: mounted by FUSE, or copied where mounting is not allowed, and gone when the agent is."""

from __future__ import annotations

import errno
import http.client
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from shoal.agent.data import bucket_reader
from shoal.agent.data.bucket_reader import Object
from shoal.agent.data.bucket_tree import ROOT, Tree
from shoal.agent.data.folder_mounts import FolderMounts
from shoal.agent.data.fuse import mount, unmount
from shoal.agent.node.workdir import NotReady
from shoal.testing.patience import wait_until

SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/x/us-east-1/s3/aws4_request"}
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "secret-of-the-test"}
LARGE = random.Random(28).randbytes(2 * bucket_reader.BLOCK + 12345)
FILES = {"images/a.txt": b"alpha", "images/deep/er/b.bin": LARGE, "images/empty": b"", "elsewhere/c": b"no"}


def put(port: int, path: str, body: bytes | None = None) -> None:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    link.request("PUT", quote(path), body, SIGNED)
    assert link.getresponse().status == 200
    link.close()


@pytest.fixture(scope="module")
def bucket(s3_port: int) -> str:
    put(s3_port, "/mounted")
    for name, body in FILES.items():
        put(s3_port, f"/mounted/{name}", body)
    return f"?endpoint=http://127.0.0.1:{s3_port}"


def may_mount(folder: Path) -> bool:
    folder.mkdir()
    try:
        os.close(mount(str(folder)))
    except OSError:
        return False
    unmount(str(folder))
    return True


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., tuple[Path, list[str]]]]:
    made = []

    def make(*texts: str, copy: bool = False) -> tuple[Path, list[str]]:
        said: list[str] = []
        mounts = FolderMounts(texts, KEYS, tmp_path / "mounts", said.append, copy=copy)
        made.append(mounts)
        mounts.open()
        return Path(mounts.binds[0].host), said

    yield make
    for mounts in made:
        mounts.close()
    assert not (tmp_path / "mounts").exists()


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_bucket_is_a_folder_that_can_be_read_anywhere(opened, bucket: str, tmp_path: Path) -> None:
    folder, said = opened(f"s3://mounted/images{bucket}:/data")
    is_mounted = may_mount(tmp_path / "probe")
    assert ("is mounted (3 files, 8.4 MB)" if is_mounted else "is copied (3 files, 8.4 MB)") in said[-1]
    assert content(folder) == {name.removeprefix("images/"): FILES[name] for name in FILES if name.startswith("images")}
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "deep", "empty"]
    with (folder / "deep/er/b.bin").open("rb") as file:
        for at in (bucket_reader.BLOCK - 3, 7, len(LARGE) - 5):
            file.seek(at)
            assert file.read(100) == LARGE[at : at + 100]
    assert not (folder / "nothing").exists()
    if is_mounted:
        with pytest.raises(OSError) as refused:
            (folder / "new").write_text("x")
        assert refused.value.errno == errno.EROFS


def test_where_mounting_is_not_allowed_the_files_are_copied_first(opened, bucket: str) -> None:
    folder, said = opened(f"s3://mounted/images{bucket}:/data", copy=True)
    assert "cannot be mounted here" in said[0]
    assert "is copied (3 files, 8.4 MB)" in said[-1]
    assert not folder.is_mount()
    assert content(folder) == {name.removeprefix("images/"): FILES[name] for name in FILES if name.startswith("images")}


def test_several_readers_at_once_see_the_right_bytes(opened, bucket: str) -> None:
    folder, _ = opened(f"s3://mounted/images{bucket}:/data")
    script = "import sys,hashlib; print(hashlib.sha256(open(sys.argv[1],'rb').read()).hexdigest())"
    argv = [sys.executable, "-I", "-S", "-c", script, str(folder / "deep/er/b.bin")]
    readers = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(4)]
    assert len({reader.communicate(timeout=60)[0] for reader in readers}) == 1


def test_what_cannot_be_shown_ends_with_the_reason_and_the_next_step(opened, bucket: str, tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="no object has this prefix"):
        opened(f"s3://mounted/nothing-here{bucket}:/data")
    with pytest.raises(NotReady, match="no such folder on this machine"):
        opened(f"{tmp_path}/missing:/data")


def test_a_folder_of_the_machine_is_bound(opened, tmp_path: Path) -> None:
    (tmp_path / "nas").mkdir()
    assert opened(f"{tmp_path}/nas:/data:rw")[0] == tmp_path / "nas"


def test_nothing_stays_mounted_when_the_agent_is_killed(bucket: str, tmp_path: Path) -> None:
    if not may_mount(tmp_path / "probe"):
        pytest.skip("FUSE is not allowed here")
    script = (
        "import sys, time; from pathlib import Path; from shoal.agent.data.folder_mounts import FolderMounts\n"
        f"m = FolderMounts([sys.argv[1]], {KEYS!r}, Path(sys.argv[2]), print); m.open()\n"
        "print('open', flush=True); time.sleep(600)"
    )
    root = tmp_path / "mounts"
    argv = [sys.executable, "-c", script, f"s3://mounted/images{bucket}:/data", str(root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert any(line == "open\n" for line in agent.stdout)
        assert os.path.ismount(root / "0")
        agent.kill()
    wait_until(lambda: not os.path.ismount(root / "0"), "the folder is unmounted")


def test_a_folder_whose_process_was_killed_with_the_workers_is_unmounted(bucket: str, tmp_path: Path) -> None:
    root = tmp_path / "mounts"
    mounts = FolderMounts([f"s3://mounted/images{bucket}:/data"], KEYS, root, print)
    mounts.open()
    for process in mounts._processes:
        process.kill()
    mounts.close()
    assert not root.exists()


def test_keys_that_are_no_paths_are_left_out_and_counted() -> None:
    paths = ["a/b", "a", "x//y", "../up", "folder/", "folder/f", "n" * 300]
    tree = Tree(Object(path, 1, None, 0.0) for path in paths)
    assert sorted(tree.folders[ROOT]) == ["a", "folder"]
    assert sorted(file.path for file in tree.files.values()) == ["a/b", "folder/f"]
    assert tree.left_out == 4
