"""Files written in both versions of control groups; real limits are tested in tests/integration/test_lease_isolation.py."""

from shoal.agent.sandbox.cgroups import Group, Limits

LIMITS = Limits(memory=256 << 20, pids=64, cpus=1.5)


def test_the_second_version_has_one_folder_for_all(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    group = Group("box", tmp_path)
    group.open(LIMITS)
    folder = tmp_path / "shoal/box"
    written = {file.name: file.read_text() for file in folder.iterdir()}
    assert written == {
        "memory.max": str(256 << 20),
        "memory.swap.max": "0",
        "pids.max": "64",
        "cpu.max": "150000 100000",
    }
    for parent in (tmp_path, tmp_path / "shoal"):
        assert (parent / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert group.entries == [str(folder / "cgroup.procs")]


def test_the_first_version_has_a_folder_for_each_limit(tmp_path):
    for name in ("memory", "pids", "cpu"):
        (tmp_path / name).mkdir()
    group = Group("box", tmp_path)
    assert [folder.relative_to(tmp_path).as_posix() for folder in group.folders] == [
        "memory/shoal/box",
        "pids/shoal/box",
        "cpu/shoal/box",
    ]
    # The kernel makes a group's files when its folder is made; here they decide where a limit goes.
    for folder, names in zip(
        group.folders, (["memory.limit_in_bytes"], ["pids.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]), strict=True
    ):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text("")
    group.open(LIMITS)
    assert (group.folders[0] / "memory.limit_in_bytes").read_text() == str(256 << 20)
    assert (group.folders[1] / "pids.max").read_text() == "64"
    assert (group.folders[2] / "cpu.cfs_quota_us").read_text() == "150000"


def test_how_often_memory_ran_out_is_known(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("memory")
    group = Group("box", tmp_path)
    assert group.out_of_memory == 0
    group.folders[0].mkdir(parents=True)
    (group.folders[0] / "memory.events").write_text("low 0\noom 2\noom_kill 3\n")
    assert group.out_of_memory == 3
