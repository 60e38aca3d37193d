"""Sources and mounts come from the store's directory where there is one, and never leave their place."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from shoal.agent.data.inputs import Chunks, fetch_mount, source_key, write_source
from shoal.agent.link import Link
from shoal.agent.wire import Launch, Mount
from shoal.core.errors import InvalidSpec
from shoal.store.local import LocalStore
from shoal.store.manifest import dump_manifest, manifest_id
from shoal.store.pack import pack_tree
from shoal.store.transfer import upload


class NoServer(Link):
    """Link without a server: only requests in `known` are answered."""

    known: dict[str, bytes]

    def another(self) -> NoServer:
        return self

    def get_bytes(self, path: str) -> bytes:
        return self.known[path]


def no_server(**known: bytes) -> NoServer:
    link = NoServer("http://127.0.0.1:9", "t")
    link.known = {k.replace("__", "/"): v for k, v in known.items()}
    return link


@pytest.mark.parametrize("count", [2, 40])
def test_a_source_is_laid_out_from_the_stores_directory_single_or_packed(tmp_path: Path, count: int) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    for n in range(count):
        (tree / f"sub/f{n}.py").write_text(f"print({n})\n" * (n + 1))
    (tree / "empty").touch()
    (tree / "run.sh").write_text("true")
    (tree / "run.sh").chmod(0o755)
    packed = pack_tree(tree)
    store = LocalStore(tmp_path / "store")
    upload(packed, store)
    store.put_manifest(packed.manifest)
    chunks = Chunks(Launch({"store_path": str(tmp_path / "store")}), no_server())
    dest = tmp_path / "work/source"
    for _ in range(2):
        write_source(packed.manifest.model_dump(), chunks, dest)
        found = {p.relative_to(dest).as_posix(): p.read_bytes() for p in dest.rglob("*") if p.is_file()}
        assert found == {p.relative_to(tree).as_posix(): p.read_bytes() for p in tree.rglob("*") if p.is_file()}
    assert (dest / "run.sh").stat().st_mode & stat.S_IXUSR and not (dest / "sub/f0.py").stat().st_mode & stat.S_IXUSR


def test_a_mount_is_fetched_once_read_only_and_shared(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.bin").write_bytes(b"abc" * 1000)
    packed = pack_tree(tree, ignore=False)
    upload(packed, LocalStore(tmp_path / "store"))
    name = manifest_id(packed.manifest)
    mount = Mount({"path": "/input/a", "manifest_id": name, "name": "a"})
    launch = Launch({"store_path": str(tmp_path / "store")})
    link = no_server(**{f"/manifests/{name}": dump_manifest(packed.manifest)})
    home = fetch_mount(mount, Chunks(launch, link), tmp_path / "cache")
    path = home.path / "a.bin"
    assert path.read_bytes() == b"abc" * 1000 and not path.stat().st_mode & 0o222
    again = fetch_mount(mount, Chunks(Launch({}), link), tmp_path / "cache")
    assert again.path == home.path
    for use in (home, again):
        use.release()


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a//b", "", ".", "a\0b", "a\\b"])
def test_a_path_out_of_the_source_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidSpec):
        write_source({"files": [{"path": path, "chunks": []}]}, Chunks(Launch({}), no_server()), tmp_path / "s")


def test_equal_sources_have_equal_keys() -> None:
    a = {"files": [{"path": "a", "chunks": []}]}
    assert source_key(a) == source_key({"files": [{"chunks": [], "path": "a"}]}) != source_key({"files": []})
