"""One line that tells a person why."""

from __future__ import annotations

import pytest

from shoal.agent.node.end_reasons import Exit, explain, first_failure, from_torchrun

TRACEBACK = """\
Some warning
Traceback (most recent call last):
  File "/w/train.py", line 3, in <module>
    main()
  File "/w/train.py", line 2, in main
    raise ValueError("bad lr")
ValueError: bad lr
"""


def test_a_traceback_gives_its_last_line() -> None:
    assert explain(1, TRACEBACK) == "ValueError: bad lr"


def test_of_chained_tracebacks_the_last_counts() -> None:
    chained = (
        TRACEBACK
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + TRACEBACK.replace("bad lr", "worse")
    )
    assert explain(1, chained) == "ValueError: worse"


def test_the_rank_prefix_of_torch_is_left_out() -> None:
    assert explain(1, "".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines())) == "ValueError: bad lr"


def test_a_message_that_goes_on_below_its_colon_is_told_with_its_next_line() -> None:
    text = TRACEBACK.replace(
        "ValueError: bad lr", "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for w"
    )
    assert explain(1, text) == "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for w"


def test_output_after_a_traceback_does_not_hide_it() -> None:
    assert explain(1, TRACEBACK + "wandb: run finished\n") == "ValueError: bad lr"


@pytest.mark.parametrize(
    ("code", "stderr", "stdout", "reason"),
    [
        (
            1,
            "  File \"t.py\", line 1\n    x(\n     ^\nSyntaxError: '(' was never closed\n",
            "",
            "SyntaxError: '(' was never closed",
        ),
        (
            2,
            "usage: t.py [-h]\nt.py: error: unrecognized arguments: --x\n",
            "",
            "t.py: error: unrecognized arguments: --x",
        ),
        (3, "", "", "exit code 3"),
        (3, "", "giving up\n", "exit code 3: giving up"),
        (1, "UserWarning: be careful\n", "", "exit code 1: UserWarning: be careful"),
        (-9, "", "", "killed by SIGKILL (out of memory?)"),
        (137, "Killed\n", "", "killed by SIGKILL (out of memory?)"),
        (-11, "", "", "killed by SIGSEGV (a crash in native code)"),
        (-6, "terminate called after throwing\n", "", "killed by SIGABRT: terminate called after throwing"),
        (-60, "", "", "killed by signal 60"),
    ],
)
def test_other_ends_are_explained_too(code: int, stderr: str, stdout: str, reason: str) -> None:
    assert explain(code, stderr, stdout) == reason


def test_a_reason_is_one_short_line() -> None:
    assert len(explain(1, TRACEBACK.replace("bad lr", "x" * 10_000))) <= 500


def test_the_first_to_fail_is_to_blame() -> None:
    found = first_failure([Exit(0, 0, 1.0), Exit(2, 1, 5.0), Exit(1, 1, 4.0)])
    assert found is not None and found.local == 1


def test_a_death_by_signal_outranks_an_exit_just_before_it() -> None:
    found = first_failure([Exit(0, 1, 4.0), Exit(1, -9, 4.5)])
    assert found is not None and found.local == 1
    found = first_failure([Exit(0, 1, 4.0), Exit(1, -9, 9.0)])
    assert found is not None and found.local == 0


def test_those_we_killed_ourselves_are_not_to_blame() -> None:
    found = first_failure([Exit(0, 1, 4.0), Exit(1, -15, 4.3), Exit(2, -9, 4.6)], termed_at=4.2, killed_at=4.5)
    assert found is not None and found.local == 0
    assert first_failure([Exit(0, -15, 4.3)], termed_at=4.2) is None


def test_torchruns_summary_names_the_root_cause() -> None:
    summary = """\
Failures:
[1]:
  rank      : 2 (local_rank: 0)
  exitcode  : 1 (pid: 5)
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : h
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 11)
  error_file: <N/A>
"""
    assert from_torchrun(summary) == (3, -9)
    assert from_torchrun("nothing of the kind") is None


def test_a_refusal_counts_for_more_than_an_error_that_was_printed_before_it() -> None:
    stderr = TRACEBACK + "[rank0]: [shoal] refused: this worker has a cuda slot, but … Submit with --allow-cpu\nbye\n"
    assert explain(1, stderr) == "this worker has a cuda slot, but … Submit with --allow-cpu"
