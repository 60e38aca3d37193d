"""Names are rewritten where they are paths, mounts are laid out as the contract says."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.agent.data.inputs import checkpoint_path, data_path, lay_out
from shoal.agent.sandbox.mounts import Bind, Mode, Rewriter, choose, wrap
from shoal.agent.wire import Mount

BINDS = [
    Bind("/input", "/w/input"),
    Bind("/output-checkpoint", "/w/out", read_only=False),
    Bind("/output", "/w/out", read_only=False),
    Bind("/input-checkpoint", "/c/ck"),
    Bind("/checkpoint", "/c/ck"),
    Bind("/netmind_train/datasets/job_1", "/c/data"),
]


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("/input", "/w/input"),
        ("/input/text/a.bin", "/w/input/text/a.bin"),
        ("--data=/input/text", "--data=/w/input/text"),
        ("/output-checkpoint", "/w/out"),
        ("/output/model", "/w/out/model"),
        ("/input-checkpoint/", "/c/ck/"),
        ("/checkpoint", "/c/ck"),
        ("/netmind_train/datasets/job_1", "/c/data"),
        ("/input/a:/input/b", "/w/input/a:/w/input/b"),
        ('{"out": "/output"}', '{"out": "/w/out"}'),
        ("a /input b", "a /w/input b"),
        ("/inputs", "/inputs"),
        ("/output.txt", "/output.txt"),
        ("/data/input", "/data/input"),
        ("./input", "./input"),
        ("http://host/input", "http://host/input"),
        ("my/output/x", "my/output/x"),
        ("/output-checkpoints", "/output-checkpoints"),
    ],
)
def test_only_whole_names_at_the_start_of_a_path_are_rewritten(text: str, rewritten: str) -> None:
    assert Rewriter(BINDS)(text) == rewritten


def test_without_binds_nothing_is_rewritten() -> None:
    assert Rewriter()("/input/x") == "/input/x"


def test_the_sandbox_binds_the_host_and_the_contract_and_hides_what_is_not_the_jobs() -> None:
    args = wrap(
        ["true"],
        Mode.BWRAP_PID,
        [Bind("/input/x", "/c/x"), *BINDS],
        [Path("/etc"), Path("/etc/hostname"), Path("/nowhere"), Path("/usr/bin/env")],
    )
    assert args[0] == "bwrap" and args[-2:] == ["--", "true"]
    text = " ".join(args)
    assert "--bind /usr /usr" in text and "--dev-bind /dev /dev" in text and "--proc /proc" in text
    assert "--unshare-pid" in text and "--die-with-parent" in text
    assert "--ro-bind /w/input /input" in text and "--bind /w/out /output-checkpoint" in text
    assert text.index("/w/input /input") < text.index("/c/x /input/x")
    assert "--tmpfs /etc" in text and "/etc/hostname" not in text and "/nowhere" not in text
    assert f"--ro-bind /dev/null {Path('/usr/bin/env').resolve()}" in text


def test_of_a_hidden_folder_only_what_is_kept_is_seen_and_a_hidden_file_in_that_stays_hidden(tmp_path: Path) -> None:
    own = tmp_path / "nodes" / "mine"
    own.mkdir(parents=True)
    (own / "launch.json").write_text("{}")
    args = wrap(["true"], Mode.BWRAP_PID, [], [own / "launch.json", tmp_path / "nodes"], [own, tmp_path / "elsewhere"])
    at = args.index("--tmpfs")
    folder, launch = str(tmp_path / "nodes"), str(own / "launch.json")
    assert args[at : at + 10] == [
        *("--tmpfs", folder, "--bind", str(own), str(own), "--remount-ro", folder),
        *("--ro-bind", "/dev/null", launch),
    ]


def test_without_a_pid_namespace_proc_is_the_hosts() -> None:
    args = wrap(["true"], Mode.BWRAP, [])
    assert "--unshare-pid" not in args and args[-5:-2] == ["--bind", "/proc", "/proc"]


def test_rewriting_wraps_nothing() -> None:
    assert wrap(["true"], Mode.REWRITE, BINDS) == ["true"]


def test_the_setting_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(tmp_path, "rewrite") is Mode.REWRITE
    monkeypatch.setenv("PATH", str(tmp_path))
    assert choose(tmp_path, "auto") is Mode.REWRITE
    with pytest.raises(RuntimeError, match="bwrap is not installed"):
        choose(tmp_path, "bubblewrap")


def mounts(tmp_path: Path, *names: str) -> list[tuple[Mount, Path]]:
    out = []
    for name in names:
        host = tmp_path / "cache" / name
        host.mkdir(parents=True)
        (host / "a.txt").write_text(name)
        path = "/input-checkpoint" if name == "ck" else f"/input/{name}"
        out.append((Mount({"path": path, "manifest_id": "m", "name": name}), host))
    return out


def test_one_dataset_is_seen_by_its_name_and_directly(tmp_path: Path) -> None:
    found = mounts(tmp_path, "text", "ck")
    binds = {b.inside: b for b in lay_out(tmp_path, "job_1", found, mounted=False)}
    assert (Path(binds["/input"].host) / "text/a.txt").read_text() == "text"
    assert (Path(binds["/input"].host) / "a.txt").read_text() == "text"
    assert binds["/netmind_train/datasets/job_1"].host == str(found[0][1])
    assert binds["/checkpoint"].host == binds["/input-checkpoint"].host == str(found[1][1])
    assert binds["/output"].host == binds["/output-checkpoint"].host and not binds["/output"].read_only
    assert all(b.read_only for b in binds.values() if "output" not in b.inside)


def test_several_datasets_are_seen_by_their_names_only(tmp_path: Path) -> None:
    binds = {b.inside: b.host for b in lay_out(tmp_path, "job_1", mounts(tmp_path, "one", "two"), mounted=False)}
    assert sorted(p.name for p in Path(binds["/input"]).iterdir()) == ["one", "two"]
    assert binds["/netmind_train/datasets/job_1"] == binds["/input"]


def test_mounts_have_a_place_to_be_mounted_on(tmp_path: Path) -> None:
    binds = {b.inside: b.host for b in lay_out(tmp_path, "job_1", mounts(tmp_path, "text"), mounted=True)}
    assert (Path(binds["/input"]) / "text").is_dir() and not (Path(binds["/input"]) / "text").is_symlink()
    assert "/input/text" in binds


def test_what_data_and_checkpoint_say() -> None:
    one, two = Mount({"path": "/input/a"}), Mount({"path": "/input/b"})
    ck = Mount({"path": "/input-checkpoint"})
    assert (data_path([]), data_path([one, ck]), data_path([one, two])) == (None, "/input/a", "/input")
    assert (checkpoint_path([one]), checkpoint_path([ck])) == (None, "/input-checkpoint")
