"""An agent neither writes nor reads through a link that its job has placed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.agent.data.completeness import problem
from shoal.agent.node.job_files import open_from_job, write_for_job
from shoal.core.errors import InvalidSpec, Refused
from shoal.store import hasher
from shoal.store.pack import pack_files


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "job" / "output").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    hasher.read_only_within(tmp_path / "job")
    yield tmp_path / "job"
    hasher.read_only_within()


def test_what_is_below_the_jobs_folder_is_read_and_packed(job: Path) -> None:
    (job / "output" / "model.json").write_text("{}")
    packed = pack_files({"model.json": job / "output" / "model.json"})
    assert [file.path for file in packed.manifest.files] == ["model.json"]
    with open_from_job(job / "output" / "model.json") as file:
        assert file.read() == b"{}"
    assert problem(job / "output", ["model.json"], on_first_node=True) is None


@pytest.mark.parametrize("how", ["the file is a link", "its folder is a link", "it is a pipe"])
def test_a_link_out_of_the_jobs_folder_is_refused(job: Path, how: str) -> None:
    named = job / "output" / "secret"
    if how == "the file is a link":
        named.symlink_to(job.parent / "secret")
    elif how == "it is a pipe":
        os.mkfifo(named)
    else:
        named.parent.rmdir()
        named.parent.symlink_to(job.parent)
    with pytest.raises(Refused if how != "it is a pipe" else InvalidSpec, match=r"changed while|not a file"):
        pack_files({"secret": named})
    with pytest.raises(OSError, match="changed while"):
        open_from_job(named)


def test_a_folder_whose_own_path_has_a_link_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_text("x")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    hasher.read_only_within(tmp_path / "linked")
    try:
        assert pack_files({"a": tmp_path / "linked" / "a"}).manifest.files[0].size == 1
    finally:
        hasher.read_only_within()


@pytest.mark.parametrize("how", ["a link", "a hard link", "a pipe", "a folder"])
def test_nothing_is_written_where_the_job_has_put_something_else(job: Path, how: str) -> None:
    named, secret = job / "kept", job.parent / "secret"
    {"a link": lambda: named.symlink_to(secret), "a hard link": lambda: named.hardlink_to(secret)}.get(
        how, lambda: os.mkfifo(named) if how == "a pipe" else named.mkdir()
    )()
    with pytest.raises(OSError):
        write_for_job(named, "planted")
    assert secret.read_text() == "secret"


def test_a_file_for_the_job_is_replaced_or_grows(job: Path) -> None:
    write_for_job(job / "kept", "a long text")
    write_for_job(job / "kept", "a\n")
    write_for_job(job / "kept", "b\n", append=True)
    assert (job / "kept").read_text() == "a\nb\n"
