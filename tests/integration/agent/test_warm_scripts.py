"""A script cannot tell a forked, preloaded interpreter from a new one: whatever it shows is the same."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.agent.prefork import process_title
from shoal.testing.patience import patient

HELPER = """
class Broken(Exception):
    pass

def fall(depth=0):
    if depth == 2:
        raise Broken("at the bottom")
    fall(depth + 1)
"""

SCRIPTS = {
    "who it is": """
import sys, os
print(sys.argv, sys.orig_argv, sys.path, os.getcwd(), sys.executable, sys.flags, sys.warnoptions)
print(__name__, __file__, __spec__, __cached__, __package__, __doc__, type(__loader__), sorted(globals()))
import __main__
print(__main__.__dict__ is globals(), sys.modules["__main__"] is __main__, __builtins__)
""",
    "its environment": """
import ctypes, os, subprocess
print(sorted(os.environ.items()))
print(sorted(subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()))
shown = open("/proc/self/environ").read().split(chr(0))
print(sorted(v for v in shown if v and not v.startswith("LC_CTYPE=")))
print(open("/proc/self/cmdline").read().replace(chr(0), " ").strip(), open("/proc/self/comm").read())
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(libc.getenv(b"MARK"), libc.getenv(b"EMPTY"), libc.getenv(b"_ROOM"))
""",
    "its streams": """
import os, sys
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty())
print(type(sys.stdout.buffer), sys.stdin.read() == "", sorted(os.listdir("/proc/self/fd")))
sys.stdout.buffer.write(b"bytes\\n")
print("half a line", end="")
print("to stderr", file=sys.stderr)
""",
    "its signals": """
import signal, faulthandler, os, threading
print([(s.name, signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1), faulthandler.is_enabled())
print(threading.active_count(), threading.main_thread() is threading.current_thread(), os.getsid(0) == os.getpid())
print(len(os.listdir("/proc/self/task")))
""",
    "an exit code": "import sys; sys.exit(3)",
    "an exit text": "import sys; sys.exit('enough of that')",
    "a wide exit code": "raise SystemExit(1 << 40)",
    "exit without a code": "raise SystemExit",
    "an exception": "import helper\nhelper.fall()",
    "an exception with a cause": """
import helper
def f():
    try:
        helper.fall()
    except helper.Broken as error:
        raise ValueError("said twice: é") from error
f()
""",
    "a group of exceptions": "raise ExceptionGroup('several', [ValueError(1), KeyError('k')])",
    "a syntax error": "x = 1\nif x\n    pass\n",
    "a module that is not there": "import not_there_at_all",
    "bytes that are no text": "x = '\udcff'",
    "interrupted": "import atexit; atexit.register(print, 'last'); raise KeyboardInterrupt",
    "killed by itself": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "a crash": "import ctypes; ctypes.string_at(0)",
    "left in a hurry": "import os; print('bye'); os._exit(7)",
    "a hook of its own": """
import sys
sys.excepthook = lambda kind, value, tb: print("hook", kind, value, tb.tb_frame.f_code.co_name, tb.tb_next)
1 / 0
""",
    "a hook that fails": "import sys\ndef hook(*_):\n    raise KeyError('in the hook')\nsys.excepthook = hook\n1 / 0\n",
    "its end": """
import atexit, threading, time, sys
class Late:
    def __del__(self):
        print("deleted")
late = Late()
atexit.register(lambda: print("exit handler", late is not None, __file__ if "__file__" in globals() else None))
def work():
    threading.main_thread().join()
    print("thread ends")
threading.Thread(target=work).start()
print("main ends")
""",
    "what C has not written yet": """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.printf(b"a line of C")
libc.strdup.restype = ctypes.c_void_p
libc.__cxa_atexit(libc.puts, ctypes.c_void_p(libc.strdup(b"and its last")), None)
sys.exit(4)
""",
    "an exit handler that fails": "import atexit, os; atexit.register(os.unlink, '/no/such/file'); print('x')",
    "warnings": """
import warnings, logging
warnings.warn("old", DeprecationWarning)
warnings.warn("careful")
logging.warning("root %s", logging.root.handlers)
logging.getLogger("x").info("unseen")
record = logging.LogRecord("n", 20, "p", 1, "m", (), None)
print(record.relativeCreated < 5000)
""",
    "its own source": """
import inspect, pickle, gc
class Thing:
    size = 3
def f():
    return 1  # a remark
print(inspect.getsource(f), pickle.loads(pickle.dumps(Thing())).size, gc.isenabled(), gc.get_threshold())
import helper, sys
print(helper.__file__, helper.__spec__.origin, "shadow" in sys.modules)
""",
    "processes of its own": """
import multiprocessing as mp, os, sys, tempfile
def double(x):
    return 2 * x, __name__, os.getcwd(), sys.argv
if __name__ == "__main__":
    os.chdir("/")
    for method in ("fork", "spawn"):
        with mp.get_context(method).Pool(2) as pool:
            print(method, pool.map(double, [1, 2]))
    print(tempfile.gettempdir(), mp.get_start_method(), mp.current_process().name, mp.parent_process())
""",
    "a training": """
import torch, numpy, random
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(7)
print(torch.rand(3), torch.initial_seed(), torch.get_num_threads(), torch.get_num_interop_threads())
model = torch.nn.Linear(256, 256)
loss = model(torch.ones(512, 256)).square().mean()
loss.backward()
print(loss, model.weight.grad.sum(), numpy.ones((300, 300)).dot(numpy.ones((300, 300))).sum())
print(torch.cuda.is_available(), torch.get_default_dtype(), torch.is_grad_enabled())
if __name__ == "__main__":
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2, num_workers=2)
    print([batch for batch in loader])
""",
}
RANDOM = """
import random, uuid, secrets, tempfile, multiprocessing, numpy, torch
print(random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed(), uuid.uuid4(), secrets.token_hex(), multiprocessing.current_process().authkey.hex())
print(next(tempfile._get_candidate_names()))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm")
    (folder / "code").mkdir()
    (folder / "helper.py").write_text(HELPER)
    (folder / "code/helper.py").write_text(HELPER)
    return folder


@pytest.fixture(scope="module")
def env(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "LC_ALL", "TZ")}
    paths = {"PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(folder), "MARK": "here"}
    return {**kept, **paths, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "2", "EMPTY": "", "LONG": "é" * 5000}


def argv_of(name: str) -> list[str]:
    return [sys.executable, "-u", f"code/case_{name.replace(' ', '_')}.py", "--lr", "0.1", "two words"]


@pytest.fixture(scope="module")
def warm(folder: Path, env: dict[str, str]) -> dict[str, list[object]]:
    """Return the output of every script in a fork; the random one twice."""
    for name, text in {**SCRIPTS, "random": RANDOM}.items():
        (folder / argv_of(name)[2]).write_bytes(text.encode("utf-8", "surrogateescape"))
    names = [*SCRIPTS, "random", "random"]
    cases = [{"cwd": str(folder), "argv": argv_of(name), "env": env} for name in names]
    (folder / "cases.json").write_text(json.dumps(cases))
    ours, theirs = socket.socketpair()
    program = ["-c", "__import__('warm_parent').main()", str(theirs.fileno())]
    argv, full = process_title.roomy(
        [sys.executable, "-u", *program, "cases.json", "results.json"], {**env, "SECRET": "no"}
    )
    with ours, theirs:
        subprocess.run(
            argv,
            env=full,
            cwd=folder,
            pass_fds=[theirs.fileno()],
            check=True,
            timeout=patient(120),
            stdin=subprocess.DEVNULL,
        )
    results = json.loads((folder / "results.json").read_text())
    return dict(zip(names[:-1], results[:-1], strict=True)) | {"random again": results[-1]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_shows_the_same_as_in_a_new_interpreter(
    name: str, warm: dict[str, list[object]], folder: Path, env: dict[str, str]
) -> None:
    cold = subprocess.run(
        argv_of(name),
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert warm[name] == [cold.stdout, cold.stderr, cold.returncode]


def test_what_is_random_differs_from_fork_to_fork(warm: dict[str, list[object]]) -> None:
    first, second = (str(warm[name][0]).split() for name in ("random", "random again"))
    assert len(first) == 8 and not set(first) & set(second)
