"""Scripts whose slot has an accelerator that their torch cannot use, as processes: refused, unless the CPU is allowed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shoal.agent.workers.runtime import STARTUP

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch that cannot use CUDA")

SCRIPTS = {
    "plain": "import torch\nprint('trained')",
    "transformers": "from transformers import Trainer\nprint('trained')",
    "lightning": "import lightning\nprint('trained')",
}


def run(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    promised = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    promised |= {"SHOAL_DEVICE": "cuda"} | env
    return subprocess.run([sys.executable, "-c", script], env=promised, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("library", SCRIPTS)
def test_a_script_without_our_lines_is_refused_where_torch_is_imported(library: str) -> None:
    pytest.importorskip("torch" if library == "plain" else library)
    refused = run(SCRIPTS[library], PYTHONPATH=str(STARTUP))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "[shoal] refused: this worker has a cuda slot" in refused.stderr and "--allow-cpu" in refused.stderr


def test_the_same_scripts_run_where_the_cpu_is_allowed() -> None:
    for library in SCRIPTS:
        pytest.importorskip("torch" if library == "plain" else library)
    allowed = run("\n".join(SCRIPTS.values()), PYTHONPATH=str(STARTUP), SHOAL_ALLOW_CPU="1")
    assert (allowed.returncode, allowed.stdout) == (0, "trained\n" * 3), allowed.stderr


def test_a_run_that_began_before_torch_was_imported_is_refused_when_a_device_is_chosen(tmp_path) -> None:
    script = (
        f"import os; os.chdir({str(tmp_path)!r})\n"
        "import shoal, sys\n"
        "run = shoal.init('mine')\n"
        "assert 'torch' not in sys.modules\n"
        "run.step(loss=1.0)\n"
        "print('without torch', flush=True)\n"
        "print(run.device)\n"
    )
    done = run(script)
    assert (done.returncode, done.stdout) == (1, "without torch\n")
    assert "DeviceMissing: this worker has a cuda slot" in done.stderr
