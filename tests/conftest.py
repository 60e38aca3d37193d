"""For all tests: hypothesis takes no slow machine for a slow test, and Ctrl-C works though a shell may have put us in the background."""

import signal

from hypothesis import settings

settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

# A shell without job control has its background processes ignore SIGINT, and so would all processes the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
