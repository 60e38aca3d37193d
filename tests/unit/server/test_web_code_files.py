"""Code from a browser: folders that are never code are not sent, and large files are named first."""

import json
import shutil
import subprocess

import pytest

from shoal.server.web.render import STATIC
from shoal.store.ignore import ALWAYS_FOLDERS, LARGE_FILE, OUTPUT_FOLDERS

SCRIPT = (STATIC / "js/transfer.js").read_text()


def chosen(sizes):
    """(paths that are sent, paths that are named as large) of these files."""
    files = [{"path": path, "file": {"size": size}} for path, size in sizes.items()]
    script = "\n".join(line for line in SCRIPT.splitlines() if not line.startswith("import "))
    script += f"\nconst found = code({json.dumps(files)});"
    script += "\nconsole.log(JSON.stringify([found.files, found.large].map((some) => some.map(({ path }) => path))));"
    done = subprocess.run(
        ["node", "--input-type=module", "-"], input=script, capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_folder_is_sent_without_what_is_never_code():
    code = ["train.py", "lib/wandb.py", "pkg/wandb/__init__.py", "pkg/wandb/api.py"]
    never = [f"{name}/x" for name in sorted(ALWAYS_FOLDERS | OUTPUT_FOLDERS)]
    never += ["my-env/pyvenv.cfg", "my-env/lib/a.py", "sub/conda/conda-meta/history", "sub/conda/bin/b"]
    files, large = chosen(dict.fromkeys(code + never, 1))
    assert (files, large) == (code, [])
    files, large = chosen({"a.py": 1, "b.bin": LARGE_FILE + 1, "c.bin": LARGE_FILE + 2, "venv/d.bin": LARGE_FILE * 2})
    assert large == ["c.bin", "b.bin"]
    files, _ = chosen({".shoalignore": 1, "mlruns/0": 1, "venv/x": 1})
    assert files == [".shoalignore", "mlruns/0"], "whether it is asked for is for the server to see"


def test_both_lists_name_the_same_folders():
    for name in ALWAYS_FOLDERS | OUTPUT_FOLDERS:
        assert f'"{name}"' in SCRIPT
