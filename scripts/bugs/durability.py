"""Bugs that lose acknowledged data: in a power cut, on a full disk, or by an attempt that was given up."""

from __future__ import annotations

from bugs.mutant import Mutant

_LAYOUT_TESTS = "tests/unit/sdk/test_saving_layout.py"
_DEPOSIT_TESTS = "tests/unit/store/test_store_deposit.py"

DURABILITY = (
    Mutant(
        name="sqlite-normal",
        fault="the database syncs only now and then",
        file="src/shoal/server/db.py",
        old='synchronous: str = "FULL"',
        new='synchronous: str = "NORMAL"',
        tests=("tests/unit/server/test_db.py::test_the_disk_is_synced_on_every_commit",),
    ),
    Mutant(
        name="store-missing-fsync",
        fault="chunks are published without being synced",
        file="src/shoal/store/files.py",
        old="            _sync_files([blob.place for blob in staged])\n",
        new="",
        tests=(f"{_DEPOSIT_TESTS}::test_nothing_is_visible_before_it_is_on_the_disk",),
    ),
    Mutant(
        name="store-rename-before-fsync",
        fault="chunks are visible under their name before they are on the disk",
        file="src/shoal/store/files.py",
        old="""\
            _sync_files([blob.place for blob in staged])
            folders = {self._folder(blob.key) for blob in staged}
            for blob in staged:
                os.rename(blob.place, self._path(blob.key))
""",
        new="""\
            folders = {self._folder(blob.key) for blob in staged}
            for blob in staged:
                os.rename(blob.place, self._path(blob.key))
            _sync_files([self._path(blob.key) for blob in staged])
""",
        tests=(f"{_DEPOSIT_TESTS}::test_nothing_is_visible_before_it_is_on_the_disk",),
    ),
    Mutant(
        name="store-chunk-not-verified",
        fault="a damaged chunk is handed out as if it were sound",
        file="src/shoal/store/blobstore.py",
        old="                plain = decode(codec, payload)\n                verify(name, plain)\n",
        new="                plain = decode(codec, payload)\n",
        tests=("tests/unit/store/test_store_local.py::test_a_flipped_bit_on_disk_is_noticed_on_reading",),
    ),
    Mutant(
        name="store-chunk-of-many-not-verified",
        fault="a damaged chunk that is read among many is handed out as if it were sound",
        file="src/shoal/store/blobstore.py",
        old="                plain = payload if codec == PLAIN else decode(codec, payload)\n                verify(name, plain)\n",
        new="                plain = payload if codec == PLAIN else decode(codec, payload)\n",
        tests=("tests/unit/store/test_store_local.py::test_a_flipped_bit_on_disk_is_noticed_on_reading",),
    ),
    Mutant(
        name="checkpoint-missing-fsync",
        fault="a checkpoint's list of files is not synced",
        file="src/shoal/sdk/saving/layout.py",
        old="        file.flush()\n        os.fsync(file.fileno())\n",
        new="        file.flush()\n",
        tests=(_LAYOUT_TESTS,),
    ),
    Mutant(
        name="checkpoint-rename-before-fsync",
        fault="a checkpoint is visible under its name before it is on the disk",
        file="src/shoal/sdk/saving/layout.py",
        old="    sync(partial)\n    replace_folder(partial, final)\n",
        new="    replace_folder(partial, final)\n    sync(final)\n",
        tests=(_LAYOUT_TESTS,),
    ),
    Mutant(
        name="weights-missing-fsync",
        fault="the weights of a checkpoint are not synced",
        file="src/shoal/sdk/saving/archive.py",
        old="        os.fsync(self._fd)\n",
        new="",
        tests=("tests/unit/sdk/test_resume.py::test_an_archive_is_on_the_disk_when_it_is_written",),
    ),
    Mutant(
        name="spool-missing-fsync",
        fault="an agent's lines that the server does not have yet are not synced",
        file="src/shoal/agent/outbox/outbox.py",
        old="                os.fsync(fd)\n",
        new="                pass\n",
        tests=("tests/unit/agent/test_spool.py::test_what_the_server_does_not_have_yet_is_synced_once",),
    ),
    Mutant(
        name="sdk-retention-counts-torn",
        fault="a checkpoint that was never finished pushes out the last good one",
        file="src/shoal/sdk/saving/layout.py",
        old="whole = [path for path in saved_in(directory) if (path / ABOUT).exists()]",
        new="whole = saved_in(directory)",
        tests=(_LAYOUT_TESTS,),
    ),
    Mutant(
        name="server-retention-deletes-newest",
        fault="retention removes the newest checkpoint, which is the last good one",
        file="src/shoal/core/retention.py",
        old="rows[-(self.keep_last or 1) :]",
        new="rows[: self.keep_last or 1]",
        tests=("tests/unit/core/test_retention.py",),
    ),
    Mutant(
        name="resume-from-damaged",
        fault="an attempt resumes from a checkpoint whose bytes were not verified",
        file="src/shoal/server/artifacts/checkpoints.py",
        old="                ctx.store.get(name)\n            return good\n",
        new="                pass\n            return good\n",
        tests=(
            "tests/contract/server/test_resume_choice.py"
            "::test_a_damaged_one_is_passed_over_for_an_earlier_one_by_the_same_name",
        ),
    ),
    Mutant(
        name="fenced-attempt-saves",
        fault="an attempt that was given up commits checkpoints",
        file="src/shoal/server/artifacts/checkpoints.py",
        old="    if session.get_one(Attempt, who.attempt_id).fenced:\n        raise Fenced()\n",
        new="    return\n",
        tests=(
            "tests/contract/server/test_elastic.py"
            "::test_a_node_given_up_commits_nothing_made_afterwards_and_may_say_what_it_had_to_say",
        ),
    ),
    Mutant(
        name="fenced-attempt-joins",
        fault="an attempt that was given up is let in again",
        file="src/shoal/server/jobs/agents.py",
        old="if attempt.fenced or attempt.state == AttemptState.ENDED or job.stop_requested_at is not None:",
        new="if job.stop_requested_at is not None:",
        tests=("tests/unit/server/test_attempts.py::test_a_fenced_attempt_cannot_join_or_finish",),
    ),
)
