import pytest

from shoal.core.device_check import ELSEWHERE
from shoal.server.scheduler.restarts import Cause, Failure, judge


def failure(cause=Cause.SIGNAL, reason="", progressed=False, used=0, most=3, complete=False):
    return Failure(
        cause=cause,
        reason=reason,
        progressed=progressed,
        complete=complete,
        restarts_used=used,
        max_restarts=most,
    )


@pytest.mark.parametrize("cause", [Cause.SIGNAL, Cause.LOST])
def test_what_was_killed_from_outside_is_started_again(cause):
    verdict = judge(failure(cause))
    assert verdict.restart
    assert verdict.restarts_used == 1


def test_the_budget_ends():
    assert not judge(failure(used=3)).restart
    assert not judge(failure(most=0)).restart


def test_progress_gives_a_fresh_budget():
    verdict = judge(failure(used=3, progressed=True))
    assert verdict.restart
    assert verdict.restarts_used == 1


def test_a_script_error_without_progress_is_final():
    verdict = judge(failure(Cause.ERROR, "ModuleNotFoundError: No module named 'x'"))
    assert not verdict.restart
    assert "would not help" in verdict.why


def test_a_script_error_after_progress_is_tried_again_until_it_repeats_in_the_same_place():
    first = judge(failure(Cause.ERROR, "RuntimeError: x", progressed=True))
    assert first.restart
    assert not judge(failure(Cause.ERROR, "RuntimeError: x", progressed=False, used=first.restarts_used)).restart


@pytest.mark.parametrize("reason", ["exit code 1", "exit code 3: giving up"])
def test_a_script_that_calls_exit_with_an_error_is_not_tried_again_for_its_progress(reason):
    verdict = judge(failure(Cause.ERROR, reason, progressed=True))
    assert (verdict.restart, verdict.why) == (
        False,
        "the script itself exited with an error; trying again would not help",
    )


@pytest.mark.parametrize("reason", ["exit code 143", "exit code 1: NCCL error: unhandled system error"])
def test_an_exit_code_that_means_a_signal_or_the_machine_is_tried_again_after_progress(reason):
    assert judge(failure(Cause.ERROR, reason, progressed=True)).restart


def test_an_error_after_the_last_step_is_final_and_a_kill_is_not():
    assert not judge(failure(Cause.ERROR, "ValueError: cannot draw", progressed=True, complete=True)).restart
    assert judge(failure(Cause.SIGNAL, "killed by SIGKILL", progressed=True, complete=True)).restart


def test_a_network_error_at_start_is_tried_again():
    assert judge(failure(Cause.ERROR, "torch.distributed.DistNetworkError: EADDRINUSE")).restart


def test_requirements_that_cannot_be_installed_are_final():
    assert not judge(failure(Cause.SETUP, "No matching distribution", progressed=True)).restart


def test_a_machine_that_does_not_give_the_promised_device_is_left_for_another():
    """The scheduler avoids the machine; a torch that fits no machine's device has no such words in its reason."""
    verdict = judge(failure(Cause.ERROR, f"this worker has a cuda slot, but … {ELSEWHERE} (--exclude MACHINE)"))
    assert verdict.restart
    assert not judge(failure(Cause.ERROR, "this worker has a cuda slot, but torch 2.13.0+cpu is a CPU build.")).restart


def test_a_refused_join_is_final_and_not_called_a_matter_of_the_environment():
    verdict = judge(failure(Cause.SETUP, "its agent could not join the server: The secret 'x' cannot be decrypted."))
    assert (verdict.restart, verdict.why) == (False, "trying again would not help")
