import pytest

from shoal.core.states import JobState


def test_a_succeeded_job_never_changes_again_and_others_only_by_being_resumed():
    assert not any(JobState.SUCCEEDED.may_become(other) for other in JobState)
    for end in (JobState.FAILED, JobState.STOPPED):
        assert end.is_terminal
        assert [other for other in JobState if end.may_become(other)] == [JobState.QUEUED]


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.STARTING, JobState.RUNNING])
def test_every_open_job_can_fail_or_be_stopped(state):
    assert not state.is_terminal
    assert state.may_become(JobState.FAILED)
    assert state.may_become(JobState.STOPPED)


def test_a_job_runs_only_after_it_was_started():
    assert not JobState.QUEUED.may_become(JobState.RUNNING)
    assert JobState.QUEUED.may_become(JobState.STARTING)
    assert JobState.STARTING.may_become(JobState.RUNNING)


def test_a_lost_attempt_sends_its_job_back_to_the_queue():
    assert JobState.RUNNING.may_become(JobState.QUEUED)
