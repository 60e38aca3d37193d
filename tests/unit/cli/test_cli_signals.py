"""Being ended by others is to a command what Ctrl-C is, so that it can tidy up."""

import os
import signal
import threading

import pytest

from shoal.cli.shared.signals import terminable


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_is_interrupted_and_later_ones_end_as_usual(signum):
    before = signal.getsignal(signum)
    with pytest.raises(KeyboardInterrupt), terminable():
        os.kill(os.getpid(), signum)
        threading.Event().wait(20)
    assert signal.getsignal(signum) is before


def test_one_that_nohup_protects_goes_on():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
