"""A node that cannot be prepared: is the machine's disk full, or is it the job?"""

import errno
import os
import shutil
from collections import namedtuple

import pytest

from shoal.agent.node.end_reasons import not_started
from shoal.core.faults import FULL_DISK, Fault, classify

Usage = namedtuple("Usage", "total used free")
NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def free(monkeypatch):
    def set_free(number):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, number))

    return set_free


def test_on_a_full_disk_the_machine_is_at_fault(free, tmp_path):
    free(1 << 20)
    for text in (f"cannot start: {NO_SPACE}", "pip could not install the requirements"):
        reason = not_started(text, tmp_path)
        assert reason.startswith(FULL_DISK) and text in reason
        assert classify(reason) is Fault.DISK


def test_with_space_left_the_reason_stays_as_it_is(free, tmp_path):
    free(1 << 30)
    assert not_started(f"cannot start: {NO_SPACE}", tmp_path) == f"cannot start: {NO_SPACE}"
    assert not_started("x", tmp_path / "gone") == "x"
