"""For all tests: hypothesis takes no slow machine for a slow test, and Ctrl-C works though a shell may have put us in the background."""

import signal

from hypothesis import settings

settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

# A shell without job control has its background processes ignore these, and so would all processes the tests start.
for _signal, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)
