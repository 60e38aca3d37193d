"""Bad input: one clear line, the right exit code, nothing half-made."""

import io
import os
import subprocess
import tarfile
import time
import zipfile

import pytest

from shoal.testing.patience import patient

SCRIPT = {"train.py": "print('hello')"}


def one_line(done, *words):
    """The error is one line that names the matter; the hint may be a second."""
    lines = [line for line in done.stderr.strip().splitlines() if line]
    errors = [line for line in lines if line.startswith("error:")]
    assert len(errors) == 1, done.stderr
    assert lines[-1].startswith(("error:", "hint:")), done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} not in {done.stderr!r}"


@pytest.fixture
def refused(server):
    """Run a command that must be refused, and see that no job came of it."""

    def jobs():
        with server.client() as client:
            return {job.id for job in client.jobs.list()}

    def run(*args, code, words=(), **options):
        before = jobs()
        done = server.cli(*args, check=code, **options)
        one_line(done, *words)
        assert jobs() == before
        return done

    return run


def test_an_unknown_script_is_refused_with_a_guess(refused, code):
    folder = code({**SCRIPT, "sub/deep.py": ""})
    refused("training", "run", "x", "--dir", str(folder), "--", "trian.py", code=2, words=["trian.py", "train.py"])
    refused("training", "run", "x", "--dir", str(folder), "--", "deep.py", code=2, words=["sub/deep.py"])


def test_a_missing_dataset_is_refused(refused, code):
    refused(
        "training",
        "run",
        "x",
        "--dir",
        str(code(SCRIPT)),
        "--dataset",
        "nope",
        "--",
        "train.py",
        code=3,
        words=["nope"],
    )


def test_a_missing_secret_is_refused(refused, code):
    refused(
        "training",
        "run",
        "x",
        "--dir",
        str(code(SCRIPT)),
        "--secret",
        "K=nope",
        "--",
        "train.py",
        code=3,
        words=["nope", "secret create"],
    )


@pytest.mark.parametrize("nodes", ["0", "-1", "2:1", "x", "1:2:3"])
def test_a_nonsensical_number_of_nodes_is_a_usage_error(server, code, nodes):
    done = server.cli("training", "run", "x", "--dir", str(code(SCRIPT)), f"--nodes={nodes}", "--", "train.py", check=2)
    one_line(done, "nodes")


def test_what_can_never_run_is_refused_naming_what_could(refused, code):
    refused(
        "training", "run", "x", "--dir", str(code(SCRIPT)), "--nodes", "3", "--accels", "2", "--", "train.py",
        code=4, words=["can never run", "--nodes 2 --accels 2"],
    )  # fmt: skip


@pytest.mark.parametrize("name", ["a b", "../x", "ä", "-x", "x" * 64])
def test_odd_names_are_refused(refused, code, name):
    given = f"--name={name}" if name.startswith("-") else name
    refused("training", "run", given, "--dir", str(code(SCRIPT)), "--", "train.py", code=2, words=["name"])


def test_a_taken_name_gets_a_number_and_the_first_job_stays(server, code):
    folder = str(code(SCRIPT))
    server.cli("training", "run", "taken", "--dir", folder, "-f", "--", "train.py")
    server.cli("training", "run", "taken", "--dir", folder, "-f", "--", "train.py")
    first, second = server.inspect("taken"), server.inspect("taken-2")
    assert first["id"] != second["id"] and first["status"] == second["status"] == "succeeded"


def archive(tmp_path, members):
    path = tmp_path / "code.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, text in members.items():
            file.writestr(name, text)
    return str(path)


@pytest.mark.parametrize("member", ["../evil.py", "/etc/evil.py", "a/../../evil.py"])
def test_a_zip_that_would_write_outside_is_refused(refused, tmp_path, member):
    path = archive(tmp_path, {"train.py": "", member: "x"})
    refused("training", "run", "x", "--zip", path, "--", "train.py", code=2, words=["evil.py"])
    assert not list(tmp_path.rglob("evil.py"))


def test_a_tar_with_a_link_to_the_outside_is_refused(refused, tmp_path):
    path = tmp_path / "code.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        link = tarfile.TarInfo("data")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
        info = tarfile.TarInfo("train.py")
        file.addfile(info, io.BytesIO(b""))
    refused("training", "run", "x", "--zip", str(path), "--", "train.py", code=2, words=["data"])


def test_a_file_that_is_no_archive_is_refused(refused, tmp_path):
    (tmp_path / "x.zip").write_text("not a zip")
    refused("training", "run", "x", "--zip", str(tmp_path / "x.zip"), "--", "train.py", code=2, words=["x.zip"])


def test_a_good_archive_with_a_wrapping_folder_and_a_nested_one_runs(server, tmp_path):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as file:
        file.writestr("helper.py", "WORD = 'nested'")
    path = tmp_path / "code.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(
            "project/train.py", "import sys; sys.path.insert(0, 'lib'); print('WORD', __import__('helper').WORD)"
        )
        file.writestr("project/lib.zip", inner.getvalue())
        file.writestr("__MACOSX/project/._train.py", "junk")
    run = server.cli("training", "run", "archived", "--zip", str(path), "-f", "--", "train.py", check=None)
    assert "WORD nested" in run.stdout, run.stdout + run.stderr


def test_a_link_out_of_the_folder_is_refused(refused, code):
    folder = code(SCRIPT)
    (folder / "secrets").symlink_to("/etc/hostname")
    refused("training", "run", "x", "--dir", str(folder), "--", "train.py", code=2, words=["secrets"])


def test_a_huge_folder_by_accident_is_refused_naming_the_offenders(refused, code):
    folder = code(SCRIPT)
    (folder / "data").mkdir()
    with (folder / "data" / "corpus.bin").open("wb") as file:
        os.ftruncate(file.fileno(), 10 << 30)
    refused("training", "run", "x", "--dir", str(folder), "--", "train.py", code=2, words=["corpus.bin", "10"])


def test_an_unreachable_repository_and_a_missing_revision_are_refused(refused, tmp_path):
    gone, there = tmp_path / "gone", tmp_path / "there"
    there.mkdir()
    (there / "train.py").write_text("")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=there, check=True)
    nope = ("--repository-revision", "nope")
    refused("training", "run", "x", "--repository-url", str(there), *nope, "--", "train.py", code=2, words=["nope"])
    refused("training", "run", "x", "--repository-url", str(gone), "--", "train.py", code=2, words=["gone"])
    refused(
        "training",
        "run",
        "x",
        "--repository-url",
        "http://127.0.0.1:9/x.git",
        "--",
        "train.py",
        code=2,
        words=["127.0.0.1:9"],
    )


def test_an_unknown_job_is_not_found(server):
    for command in (["inspect"], ["logs"], ["stop"], ["delete", "--yes"]):
        one_line(server.cli("training", command[0], "nosuch", *command[1:], check=3), "nosuch")


def test_a_bad_key_is_an_auth_error(server):
    elsewhere = {"SHOAL_URL": server.json("server", "status")["url"], "SHOAL_API_KEY": "shoal_wrong"}
    one_line(server.cli("training", "list", env=elsewhere, check=5))


def test_an_expired_key_is_an_auth_error(server):
    made = server.json("key", "create", "shortlived", "--expires", "1s")
    with_key = {"SHOAL_URL": server.json("server", "status")["url"], "SHOAL_API_KEY": made["key"]}
    deadline = time.monotonic() + patient(20)
    while (done := server.cli("training", "list", env=with_key, check=None)).returncode == 0:
        assert time.monotonic() < deadline
    assert done.returncode == 5
    one_line(done, "expired")


def test_nobody_there_is_unreachable(server):
    nowhere = {"SHOAL_URL": "http://127.0.0.1:9", "SHOAL_API_KEY": "x"}
    one_line(server.cli("training", "list", env=nowhere, check=6), "127.0.0.1:9")


def test_requirements_that_cannot_be_installed_fail_the_job_with_pips_words(server, code):
    folder = code({**SCRIPT, "requirements.txt": "./no-such-package-here\n"})
    run = server.cli("training", "run", "badreq", "--dir", str(folder), "-f", "--", "train.py", check=1)
    view = server.inspect("badreq")
    assert view["status"] == "failed"
    assert view["attempts"] == 1
    assert "no-such-package-here" in view["reason"]
    assert "no-such-package-here" in run.stdout
