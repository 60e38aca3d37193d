"""Start of the emulation in an interpreter, and which code counts as the user's. Without torch; a stand-in is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoal.sdk.emulate

EMULATE = Path(shoal.sdk.emulate.__file__).parent
STARTUP = EMULATE / "startup"


def python(code, *path, emulate=True, cwd=None, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SHOAL_", "PYTHON"))} | more
    env |= {"PYTHONPATH": os.pathsep.join(map(str, path))} | ({"SHOAL_EMULATE_CUDA": "1"} if emulate else {})
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_nothing_is_imported_or_hooked_without_the_variable():
    done = python("import sys; print([type(f).__module__ for f in sys.meta_path])", STARTUP, emulate=False)
    assert "sitecustomize" not in done.stdout and done.stderr == ""


def test_nothing_heavy_is_imported_before_the_script_does():
    done = python("import sys; print(sorted(m for m in sys.modules if 'torch' in m or 'shoal' in m))", STARTUP)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("emulate", [True, False])
def test_another_sitecustomize_still_runs(tmp_path, emulate):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.seen = __file__")
    done = python(
        "import builtins, sitecustomize; print(builtins.seen == sitecustomize.__file__, builtins.seen)",
        *(STARTUP, tmp_path),
        emulate=emulate,
    )
    assert done.stdout.split() == ["True", str(tmp_path / "sitecustomize.py")]


def test_looking_for_torch_does_not_use_up_the_hook(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("print('imported')")
    code = (
        "import importlib.util, sys\n"
        "assert importlib.util.find_spec('torch').origin and importlib.util.find_spec('torch').origin\n"
        "try: import torch\n"
        "except AttributeError as error: print('patched', type(error).__name__)\n"
    )
    assert python(code, STARTUP, tmp_path).stdout.split() == ["imported", "patched", "AttributeError"]


def test_only_the_users_own_files_see_cuda():
    code = (
        f"import sys; sys.path.insert(0, {str(EMULATE)!r})\n"
        "import callers, json, os, sysconfig\n"
        "def ask(file): return eval(compile('callers.for_user(1, 0)()', file, 'eval'))\n"
        "site, stdlib = sysconfig.get_path('purelib'), sysconfig.get_path('stdlib')\n"
        "print(ask('/home/me/train.py'), ask('<stdin>'), ask(site + '/accelerate/state.py'), ask(stdlib + '/json/x.py'),\n"
        "      ask('/x/venv/lib/python3/site-packages/a.py'), ask('<frozen importlib>'),\n"
        f"      ask({str(EMULATE.parents[1] / 'sdk/device.py')!r}), ask(site + '/torch/distributed/run.py'))\n"
    )
    assert python(code).stdout.split() == ["1", "1", "0", "0", "0", "0", "0", "1"]


LEAVES = """
import os, sys, threading, time
sys.modules["torch.distributed"] = sys
def work():
    data = bytes(80_000_000)
    import hashlib
    begun.set()
    hashlib.sha256(data)  # outside the interpreter, as torch's threads are
    os.write(1, b"finished")
begun = threading.Event()
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are seen in /proc")
def test_threads_finish_what_they_do_before_the_interpreter_ends():
    assert python(LEAVES).stdout == "", "else this proves nothing"
    assert python(LEAVES, STARTUP).stdout == "finished"


@pytest.fixture
def draws(tmp_path):
    """Function that returns the numbers a script without a seed draws in an environment, with stand-ins of numpy and torch."""
    for module, seed in (("numpy/random", "seed"), ("torch", "manual_seed")):
        (tmp_path / module).mkdir(parents=True)
        (tmp_path / module / "__init__.py").write_text(f"seeds = []\ndef {seed}(value): seeds.append(value)\n")
    (tmp_path / "numpy/__init__.py").write_text("")
    code = "import random, torch, numpy.random; print(random.random(), torch.seeds, numpy.random.seeds)"
    return lambda **env: python(code, STARTUP, tmp_path, emulate=False, **env).stdout


def test_copies_of_a_job_draw_the_same_without_a_seed_of_their_own(draws):
    first = draws(SHOAL_START_SEED="7", RANK="1", SHOAL_ATTEMPT="1")
    assert draws(SHOAL_START_SEED="7", RANK="1", SHOAL_ATTEMPT="1") == first
    others = [{"RANK": "0", "SHOAL_ATTEMPT": "1"}, {"RANK": "1", "SHOAL_ATTEMPT": "2"}]
    assert first not in [draws(SHOAL_START_SEED="7", **env) for env in others]
    assert draws(SHOAL_START_SEED="7,every-attempt", RANK="1", SHOAL_ATTEMPT="2") == first
    assert draws(RANK="1").endswith("[] []\n"), "ordinary runs are left alone"
