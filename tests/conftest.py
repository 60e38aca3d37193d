"""For all tests: hypothesis takes no slow machine for a slow test, Ctrl-C works though a shell may have put us in the background, and
what one test's imports change for the whole process is changed back."""

import signal
import sys

from hypothesis import settings

settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

# A shell without job control has its background processes ignore these, and so would all processes the tests start.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),  # nohup
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)


def pytest_collection_modifyitems() -> None:
    """hivemind has torch share memory by files, for which a loader whose workers are killed aborts the process that reads from them."""
    shared = sys.modules.get("torch.multiprocessing")
    if shared is not None and "file_descriptor" in shared.get_all_sharing_strategies():
        shared.set_sharing_strategy("file_descriptor")
