from __future__ import annotations

import bz2
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.errors import BadArchive, NameTaken, ShoalError
from shoal.store.archives.unpack import Limits, unpack


def zipped(members: dict[str, bytes] | list[tuple[str, bytes]], **options: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", options.get("method", zipfile.ZIP_DEFLATED)) as z:
        for name, data in members.items() if isinstance(members, dict) else members:
            z.writestr(zipfile.ZipInfo(name) if not options else name, data)
    return out.getvalue()


def tarred(members: dict[str, bytes], *extra: tarfile.TarInfo, mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as t:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
        for info in extra:
            t.addfile(info)
    return out.getvalue()


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info


def zip_link(name: str, target: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("real.txt", "hello")
        info = zipfile.ZipInfo(name)
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        z.writestr(info, target)
    return out.getvalue()


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def run(tmp_path: Path):  # type: ignore[no-untyped-def]
    root = tmp_path / "above" / "root"
    root.mkdir(parents=True)

    def unpack_it(name: str, data: bytes, **limits: int) -> dict[str, bytes]:
        (root / name).write_bytes(data)
        unpack_it.notes = unpack(root / name, root / "out", limits=Limits(**limits))  # type: ignore[attr-defined]
        return tree(root / "out")

    unpack_it.dest = root / "out"  # type: ignore[attr-defined]
    unpack_it.root = root  # type: ignore[attr-defined]
    return unpack_it


FILES = {"train.py": b"print(1)", "pkg/mod.py": b"x = 1"}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.zip", zipped(FILES)),
        ("a.tar", tarred(FILES, mode="w")),
        ("a.tar.gz", tarred(FILES)),
        ("A.TGZ", tarred(FILES)),
        ("a.tar.bz2", tarred(FILES, mode="w:bz2")),
        ("a.tar.xz", tarred(FILES, mode="w:xz")),
    ],
)
def test_every_kind_is_unpacked(run, name: str, data: bytes) -> None:  # type: ignore[no-untyped-def]
    assert run(name, data) == FILES
    assert [p.name for p in run.root.iterdir() if p.name.startswith(".")] == []


def test_a_single_wrapping_folder_and_apple_droppings_vanish(run) -> None:  # type: ignore[no-untyped-def]
    data = zipped(
        {"proj/train.py": b"1", "proj/lib/a.py": b"2", "__MACOSX/proj/._train.py": b"", "proj/.DS_Store": b"x"}
    )
    assert run("a.zip", data) == {"train.py": b"1", "lib/a.py": b"2"}


def test_backslashes_dots_and_doubled_slashes_are_straightened(run) -> None:  # type: ignore[no-untyped-def]
    assert run("a.zip", zipped({"a\\b\\c.txt": b"1", "./d//e.txt": b"2"})) == {"a/b/c.txt": b"1", "d/e.txt": b"2"}


def test_the_last_of_two_members_of_one_name_wins(run) -> None:  # type: ignore[no-untyped-def]
    with pytest.warns(UserWarning, match="Duplicate"):
        data = zipped([("a.txt", b"first"), ("b.txt", b"b"), ("a.txt", b"second")])
    assert run("a.zip", data) == {"a.txt": b"second", "b.txt": b"b"}


def test_names_in_other_encodings_still_unpack(run) -> None:  # type: ignore[no-untyped-def]
    raw = zipped({"AAAA.txt": b"1", "x.txt": b"2"}).replace(b"AAAA.txt", "ää".encode() + b".txt")
    assert set(run("a.zip", raw)) == {"ää.txt", "x.txt"}


def test_tar_names_that_are_not_utf8_still_unpack(run) -> None:  # type: ignore[no-untyped-def]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as t:
        t.addfile(tarfile.TarInfo("caf\xe9.txt"))
        t.addfile(tarfile.TarInfo("b.txt"))
    assert len(run("a.tar", out.getvalue())) == 2


def test_nested_archives_are_unpacked_beside_themselves(run) -> None:  # type: ignore[no-untyped-def]
    inner = tarred({"img/1.png": b"p", "img/2.png": b"q"})
    got = run("a.zip", zipped({"train.py": b"1", "data/images.tar.gz": inner}))
    assert got["data/images/1.png"] == b"p"
    assert got["data/images.tar.gz"] == inner
    assert got["train.py"] == b"1"


def test_an_archive_that_only_wraps_another_is_replaced_by_its_content(run) -> None:  # type: ignore[no-untyped-def]
    data = zipped({"train.py": b"1"})
    for _ in range(4):
        data = zipped({"inner.zip": data})
    assert run("a.zip", data) == {"train.py": b"1"}


def test_nesting_stops_at_depth_five(run) -> None:  # type: ignore[no-untyped-def]
    data = zipped({"train.py": b"1"})
    for _ in range(7):
        data = zipped({"inner.zip": data})
    got = run("a.zip", data)
    assert list(got) == ["inner.zip"]
    assert "deeper than 5" in run.notes[0]


def test_a_broken_nested_archive_stays_packed_with_a_word(run) -> None:  # type: ignore[no-untyped-def]
    got = run("a.zip", zipped({"train.py": b"1", "broken.zip": b"PK nonsense"}))
    assert set(got) == {"train.py", "broken.zip"}
    assert "broken.zip" in run.notes[0]


def test_links_inside_become_copies_and_dangling_ones_are_left_out(run) -> None:  # type: ignore[no-untyped-def]
    extra = [
        special("pkg/link.py", tarfile.SYMTYPE, "../train.py"),
        special("hard.py", tarfile.LNKTYPE, "pkg/mod.py"),
        special("twice.py", tarfile.SYMTYPE, "pkg/link.py"),
        special("dangling", tarfile.SYMTYPE, "nowhere"),
        special("loop", tarfile.SYMTYPE, "loop"),
    ]
    got = run("a.tar.gz", tarred(FILES, *extra))
    assert got == {**FILES, "pkg/link.py": b"print(1)", "hard.py": b"x = 1", "twice.py": b"print(1)"}
    assert len(run.notes) == 2
    assert not any(p.is_symlink() for p in run.dest.rglob("*"))


def test_links_in_zips_become_copies(run) -> None:  # type: ignore[no-untyped-def]
    assert run("a.zip", zip_link("l.txt", "real.txt")) == {"l.txt": b"hello", "real.txt": b"hello"}


HOSTILE = {
    "up.zip": zipped({"../evil.txt": b"x"}),
    "absolute.zip": zipped({"/etc/evil": b"x"}),
    "drive.zip": zipped({"C:/evil": b"x"}),
    "backslash.zip": zipped({"..\\..\\evil": b"x"}),
    "middle.tar.gz": tarred({"a/../../evil": b"x"}),
    "absolute.tar.gz": tarred({"/etc/evil": b"x"}),
    "symlink.tar.gz": tarred({"evil": b""}, special("evil-link", tarfile.SYMTYPE, "../../etc/passwd")),
    "abslink.tar.gz": tarred({}, special("evil", tarfile.SYMTYPE, "/etc/passwd")),
    "hardlink.tar.gz": tarred({}, special("evil", tarfile.LNKTYPE, "../../etc/passwd")),
    "device.tar.gz": tarred({}, special("evil", tarfile.CHRTYPE)),
    "fifo.tar.gz": tarred({}, special("evil", tarfile.FIFOTYPE)),
    "ziplink.zip": zip_link("evil", "../../etc/passwd"),
    "fileanddir.zip": zipped([("evil", b"x"), ("evil/b", b"y")]),
    "dirandfile.zip": zipped([("evil/b", b"x"), ("evil", b"y")]),
    "control.zip": zipped({"evil\x01name": b"x"}),
    "long.zip": zipped({"evil" * 100: b"x"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_member_is_refused_by_name_and_nothing_is_left(run, tmp_path: Path, name: str) -> None:  # type: ignore[no-untyped-def]
    before = set(tmp_path.rglob("*"))
    with pytest.raises(BadArchive, match="evil") as error:
        run(name, HOSTILE[name])
    assert "\n" not in error.value.message
    assert set(tmp_path.rglob("*")) - before == {run.root / name}


def test_a_link_through_a_linked_folder_writes_nothing_outside(run) -> None:  # type: ignore[no-untyped-def]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as t:
        t.addfile(special("here", tarfile.SYMTYPE, "."))
        t.addfile(special("here/up", tarfile.SYMTYPE, ".."))
        info = tarfile.TarInfo("here/up/evil.txt")
        info.size = 1
        t.addfile(info, io.BytesIO(b"x"))
    try:
        run("a.tar.gz", out.getvalue())
    except BadArchive:
        pass
    assert not (run.root / "evil.txt").exists()


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar", "a.tar.xz", "a.tar.bz2"])
def test_a_truncated_archive_is_refused(run, name: str) -> None:  # type: ignore[no-untyped-def]
    files = {f"{n}.bin": os.urandom(20_000) for n in range(5)}
    modes = {"a.tar.gz": "w:gz", "a.tar": "w", "a.tar.xz": "w:xz", "a.tar.bz2": "w:bz2"}
    data = zipped(files) if name == "a.zip" else tarred(files, mode=modes[name])
    with pytest.raises(BadArchive, match=r"damaged|cut off"):
        run(name, data[: len(data) * 2 // 3])
    assert not run.dest.exists()


def test_flipped_bytes_in_a_member_are_noticed(run) -> None:  # type: ignore[no-untyped-def]
    data = bytearray(zipped({"big.bin": os.urandom(50_000)}, method=zipfile.ZIP_STORED))
    data[20_000] ^= 0xFF
    with pytest.raises(BadArchive, match=r"big\.bin is damaged"):
        run("a.zip", bytes(data))


def test_an_encrypted_zip_is_refused(run) -> None:  # type: ignore[no-untyped-def]
    data = bytearray(zipped({"secret.txt": b"x"}))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    with pytest.raises(BadArchive, match=r"secret\.txt is encrypted"):
        run("a.zip", bytes(data))


def test_bombs_are_refused_by_ratio_size_and_count(run) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadArchive, match="100 times"):
        run("ratio.zip", zipped({"zeros.bin": bytes(40 << 20)}, method=zipfile.ZIP_DEFLATED))
    with pytest.raises(BadArchive, match="exceeds the limit of 1 MiB"):
        run("size.zip", zipped({"a": os.urandom(700_000), "b": os.urandom(700_000)}), max_bytes=1 << 20)
    with pytest.raises(BadArchive, match="more than 50 entries"):
        run("count.zip", zipped({str(n): b"" for n in range(60)}), max_entries=50)
    nested = zipped({f"{n}.zip": zipped({"z": bytes(4 << 20)}, method=zipfile.ZIP_DEFLATED) for n in range(9)})
    with pytest.raises(BadArchive, match="100 times"):
        run("nested.zip", nested)
    assert not run.dest.exists()


def test_a_bomb_that_lies_about_its_size_is_refused(run) -> None:  # type: ignore[no-untyped-def]
    data = bytearray(zipped({"zeros.bin": bytes(40 << 20)}, method=zipfile.ZIP_DEFLATED))
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = (100).to_bytes(4, "little")
    with pytest.raises(BadArchive):
        run("a.zip", bytes(data))


def test_small_text_may_compress_as_well_as_it_likes(run) -> None:  # type: ignore[no-untyped-def]
    assert run("a.zip", zipped({"log.txt": b"a" * (5 << 20)}, method=zipfile.ZIP_DEFLATED))


def test_other_files_and_places_that_are_taken_are_refused(run) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadArchive, match="not a supported archive"):
        run("a.rar", b"Rar!")
    with pytest.raises(BadArchive, match=r"not what its name says"):
        run("a.zip", b"hello")
    with pytest.raises(BadArchive, match="no file"):
        unpack(run.root / "absent.zip", run.dest)
    run.dest.mkdir()
    (run.dest / "mine").write_text("x")
    with pytest.raises(NameTaken):
        run("b.zip", zipped(FILES))
    assert tree(run.dest) == {"mine": b"x"}


def test_an_empty_archive_gives_an_empty_folder(run) -> None:  # type: ignore[no-untyped-def]
    assert run("a.zip", zipped({})) == {}
    assert run.dest.is_dir()


def test_executables_stay_executable(run) -> None:  # type: ignore[no-untyped-def]
    info = tarfile.TarInfo("run.sh")
    info.mode = 0o755
    run("a.tar.gz", tarred({"a": b""}, info))
    assert os.access(run.dest / "run.sh", os.X_OK)
    assert not os.access(run.dest / "a", os.X_OK) or not (run.dest / "a").stat().st_mode & 0o111


@given(st.binary(max_size=300), st.sampled_from(["a.zip", "a.tar", "a.tar.gz", "a.tar.bz2"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_at_all_break_it(tmp_path: Path, data: bytes, name: str) -> None:
    heads = {"a.zip": b"PK\x03\x04", "a.tar": b"", "a.tar.gz": b"\x1f\x8b\x08", "a.tar.bz2": bz2.compress(b"x")[:10]}
    place = tmp_path / os.urandom(4).hex()
    place.mkdir()
    (place / name).write_bytes(heads[name] + data)
    try:
        unpack(place / name, place / "out")
    except ShoalError as error:
        assert isinstance(error, BadArchive)
        assert not (place / "out").exists()
