"""requirements.txt cannot replace the runtime's torch unasked: not by a line of its own, nor through a dependency."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shoal.agent.workers.environment import Builder, InstallFailed


def wheel(folder: Path, name: str, version: str, *needs: str) -> Path:
    """A tiny wheel; its module says its version."""
    made = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(made, "w") as archive:
        rows = []
        for path, text in files.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(text)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    path.write_bytes(made.getvalue())
    return path


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a runtime with a torch 2.13.0+cpu of its own, and pip."""
    tmp_path = tmp_path_factory.mktemp("runtime")
    venv = tmp_path / "runtime"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next((venv / "lib").glob("python*/site-packages"))
    for name, version in (("torch", "2.13.0+cpu"), ("torchvision", "0.28.0")):
        with zipfile.ZipFile(
            wheel(tmp_path / "built", name, version, *(["tinydep<2"] if name == "torch" else []))
        ) as w:
            w.extractall(site)
    with zipfile.ZipFile(wheel(tmp_path / "built", "tinydep", "1.0")) as w:
        w.extractall(site)
    import pip

    (site / "pip").symlink_to(Path(pip.__file__).parent)
    return str(venv / "bin/python")


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels that pip finds."""
    links = tmp_path_factory.mktemp("links")
    for version in ("1.0", "2.1.0", "2.13.0", "2.14.0"):
        wheel(links, "torch", version)
    wheel(links, "tinydep", "2.0")
    wheel(links, "needy", "1.0", "torch==1.0")
    wheel(links, "easy", "1.0", "torch>=2", "torchvision")
    return links


@pytest.fixture
def build(tmp_path: Path, runtime: str, links: Path):
    said: list[str] = []

    def build(text: str, **options: bool) -> str:
        source = tmp_path / "source"
        source.mkdir(exist_ok=True)
        (source / "requirements.txt").write_text(text)
        env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
        builder = Builder(tmp_path / "cache", runtime, said.append, lambda: False, **options)
        return builder.interpreter(source, env, "k")

    build.said = said  # type: ignore[attr-defined]
    return build


def torch_of(python: str) -> str:
    show = [python, "-c", "import torch; print(torch.VERSION)"]
    return subprocess.run(show, capture_output=True, text=True, check=True, cwd="/").stdout.strip()


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("torch==2.1.0\n", "torch==2.1.0"),
        ("easy\nTorch < 2  # old\n", "torch<2"),
        ("torchvision==0.1 ; python_version > '3'\n", "torchvision==0.1"),
        ("torch @ https://example.org/torch-2.1.0-py3-none-any.whl\n", "torch-2.1.0"),
        ("torch @ git+https://example.org/torch\n", "torch @ git+https://example.org/torch"),
        ("https://example.org/torch-2.1.0%2Bcu118-cp311-linux_x86_64.whl\n", "torch-2.1.0"),
        ("-r more.txt\n", "torch==2.1.0"),
    ],
)
def test_another_torch_is_refused_at_once_by_the_name_of_both(tmp_path: Path, build, text: str, asked: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "more.txt").write_text("torch==2.1.0\n")
    with pytest.raises(InstallFailed) as refused:
        build(text)
    assert asked in str(refused.value) and "--allow-torch-change" in str(refused.value)
    assert "2.13.0+cpu" in str(refused.value) or "0.28.0" in str(refused.value)
    assert build.said == []  # nothing was tried


def test_a_dependency_that_pins_another_torch_is_refused_with_its_name(build) -> None:
    with pytest.raises(InstallFailed) as refused:
        build("needy\n")
    told = str(refused.value)
    assert "needy 1.0 depends on torch==1.0" in told and "torch 2.13.0+cpu" in told
    assert "--allow-torch-change" in told and not any("Downloading" in line for line in build.said)


def test_a_pin_that_torch_itself_cannot_live_with_brings_no_other_torch(build) -> None:
    with pytest.raises(InstallFailed) as refused:
        build("easy\ntinydep==2.0\n")
    assert "torch" in str(refused.value)
    assert not any("torch-" in line and ".whl" in line for line in build.said)


@pytest.mark.parametrize("text", ["easy\n", "easy\ntorch\n", "easy\ntorch==2.13.0\n", "easy\ntorch>=2.0,<3\n"])
def test_whoever_can_live_with_the_runtimes_torch_gets_it(build, text: str) -> None:
    python = build(text)
    assert torch_of(python) == "2.13.0+cpu"
    assert not list(Path(python).parents[1].glob("lib/python*/site-packages/torch*"))


def test_who_means_it_may_replace_torch(build) -> None:
    assert torch_of(build("torch==2.1.0\n", allow_torch_change=True)) == "2.1.0"
    with pytest.raises(InstallFailed):
        build("torch==2.1.0\n")  # by another job: not out of the cache
