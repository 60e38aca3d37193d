"""A requirements.txt at the source root becomes an environment on top of the runtime."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable

import pytest

from shoal.core.agents import BeatReply
from shoal.testing.agent_gang import Gang


def wheel(name: str, version: str, body: str) -> bytes:
    out = io.BytesIO()
    info = f"{name}-{version}.dist-info"
    content = {
        f"{name}.py": body,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(out, "w") as z:
        for path, text in content.items():
            z.writestr(zipfile.ZipInfo(path), text)  # a fixed date: equal content, equal bytes
    return out.getvalue()


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")


USE = "import tinypkg, pydantic, sys\nprint(tinypkg.WHO, pydantic.__name__, sys.prefix)\n"


def files(who: str) -> dict[str, str | bytes]:
    return {
        "t.py": USE,
        "requirements.txt": "./tinypkg-1.0-py3-none-any.whl\npydantic\n",
        "tinypkg-1.0-py3-none-any.whl": wheel("tinypkg", "1.0", f"WHO = {who!r}\n"),
    }


def test_a_small_package_is_installed_once_and_the_runtimes_packages_stay_visible(gang: Callable[..., Gang]) -> None:
    first = gang(["t.py"], files("me"))
    first.finish(120)
    (line,) = first.server.log(stream="out")
    assert line.split()[:2] == ["me", "pydantic"] and str(first.cache) in line
    told = first.server.log(stream="sys")
    assert any("installing requirements.txt" in m for m in told) and any(
        "Successfully installed tinypkg-1.0" in m for m in told
    )

    again = gang(["t.py"], files("me"))
    again.finish(60)
    assert again.server.log() == [line]

    other = gang(["t.py"], files("you"))
    other.finish(120)
    assert other.server.log(stream="out")[0].startswith("you pydantic")


def test_what_cannot_be_installed_fails_the_job_with_pips_own_words(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], {"t.py": "print('never')", "requirements.txt": "./not-there-at-all\n"})
    assert job.finish(120) == [0]
    last = job.server.last()
    assert last is not None and last.exit_code == 1 and last.failed_rank is None and not last.told
    assert (
        last.reason is not None
        and last.reason.startswith("requirements.txt: ERROR:")
        and "not-there-at-all" in last.reason
    )
    assert "never" not in job.server.log() and any("not-there-at-all" in m for m in job.server.log(stream="sys"))


def test_an_environment_half_built_is_built_again(gang: Callable[..., Gang]) -> None:
    slow = dict(files("slow"))
    first = gang(["t.py"], slow)
    first.server.wait(lambda: any("installing" in m for m in first.server.log()), 60)
    first.agents[0].kill()
    first.agents[0].wait()
    second = gang(["t.py"], slow)
    second.finish(120)
    assert second.server.log(stream="out")[0].startswith("slow pydantic")


def test_a_stop_while_pip_works_is_obeyed(gang: Callable[..., Gang]) -> None:
    job = gang(["t.py"], files("stopped"), start=False)
    job.server.answer = BeatReply(stop=True)
    job.start().finish(30)
    last = job.server.last()
    assert last is not None and last.told and last.exit_code is None and last.reason == "stopped before it started"
    assert job.left() == [] and json.loads((job.work_dir() / "result.json").read_text())["delivered"]


def test_requirements_below_the_root_are_ignored(gang: Callable[..., Gang]) -> None:
    job = gang(
        ["t.py"], {"t.py": "print('ran')", "sub/requirements.txt": "./not-there\n", "Requirements.txt": "./nor-there\n"}
    )
    job.finish()
    assert job.server.log() == ["ran"]
