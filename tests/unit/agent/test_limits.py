"""The disk space a job uses is measured, and the reason of its end is in words."""

from pathlib import Path

from shoal.agent.sandbox.limits import DiskWatch, disk_use, over


def test_a_tree_is_measured_by_its_blocks_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(b"x" * 100_000)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "link").symlink_to("/usr")
    assert 100_000 <= disk_use(tmp_path) < 200_000
    assert disk_use(tmp_path / "nothing") == 0


def test_the_limit_is_reported_once(tmp_path: Path) -> None:
    said: list[str] = []
    watch = DiskWatch([tmp_path], 50_000, said.append)
    watch.poll()
    assert said == []
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    watch.poll()
    watch.poll()
    assert len(said) == 1 and said[0].startswith("out of disk space: used 1") and said[0].endswith(" of 50 kB")


def test_the_use_is_never_said_to_be_below_the_limit() -> None:
    assert over("memory", 15_900_000_000, 16_000_000_000) == "out of memory: used 16 GB of 16 GB"
    assert over("memory", 16_200_000_000, 16_000_000_000) == "out of memory: used 16.2 GB of 16 GB"
