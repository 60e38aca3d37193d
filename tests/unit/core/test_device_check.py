"""Why a torch cannot use the device a job was placed on, in words; with modules that stand in for torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shoal.core import device_check
from shoal.core.device_check import ELSEWHERE, broken, promised, refuse


def torch(*, cuda: str | None = None, hip: str | None = None, xpu: str | None = None, **module: Any) -> SimpleNamespace:
    """A build of torch; `module`: of its torch.cuda."""
    version = SimpleNamespace(cuda=cuda, hip=hip, xpu=xpu)
    device = SimpleNamespace(**{"is_initialized": lambda: False, "init": lambda: None, "device_count": int, **module})
    return SimpleNamespace(__version__="2.9.1", version=version, cuda=device, xpu=device)


def why(build: SimpleNamespace, kind: str = "cuda", **env: str) -> str:
    found = broken(build, {"SHOAL_DEVICE": kind, **env})
    return str(found) if found else ""


def no_driver() -> None:
    raise RuntimeError("The NVIDIA driver on your system is\ntoo old (found version 11040).")


@pytest.mark.parametrize(
    ("build", "kind", "words"),
    [
        (torch(), "cuda", "is a CPU build (torch.version.cuda is None). Install a CUDA build of torch"),
        (torch(hip="6.2"), "cuda", "is a ROCm build. Install a CUDA build of torch"),
        (torch(xpu="2025"), "cuda", "is an XPU build."),
        (torch(cuda="12.8"), "rocm", "is a CUDA build. Install a ROCm build of torch"),
        (torch(), "xpu", "is a CPU build. Install an XPU build of torch"),
    ],
)
def test_a_wrong_build_is_named_and_no_machine_is_blamed(build: SimpleNamespace, kind: str, words: str) -> None:
    text = why(build, kind)
    assert text.startswith("this worker has a") and f" {kind} slot, but torch 2.9.1 {words}" in text, text
    assert "--allow-cpu" in text and "--device cpu" in text and ELSEWHERE not in text


def test_torchs_own_reason_and_the_visible_devices_are_told_and_that_another_machine_may_help() -> None:
    text = why(torch(cuda="12.8", init=no_driver), CUDA_VISIBLE_DEVICES="3")
    assert "sees no CUDA device: The NVIDIA driver on your system is too old (found version 11040)." in text
    assert "CUDA_VISIBLE_DEVICES='3'" in text and ELSEWHERE in text and "--allow-cpu" in text


def test_a_build_that_fits_but_sees_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "sees no CUDA device: none is visible; CUDA_VISIBLE_DEVICES=''" in why(
        torch(cuda="12"), CUDA_VISIBLE_DEVICES=""
    )
    monkeypatch.setattr("os.path.exists", lambda path: path != "/dev/kfd")
    assert "there is no /dev/kfd" in why(torch(hip="6.2"), "rocm")


def test_a_device_file_one_may_not_open_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.exists", lambda path: True)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert "no permission on /dev/kfd: the user must be in the groups video and render" in why(torch(hip="6"), "rocm")
    assert "no permission on /dev/nvidiactl" in why(torch(cuda="12"))


def test_a_promise_that_is_kept_is_no_reason() -> None:
    assert why(torch(cuda="12.8", device_count=lambda: 2)) == ""
    assert why(torch(hip="6.2", device_count=lambda: 1), "rocm") == ""
    assert why(torch(xpu="2025", device_count=lambda: 1), "xpu") == ""
    assert why(torch(cuda="12.8", is_initialized=lambda: True)) == "", "it is in use already"


def test_the_driver_is_asked_in_another_process() -> None:
    asked: list[int] = []
    assert why(torch(cuda="12.8", init=lambda: asked.append(1), device_count=lambda: 1)) == ""
    assert asked == [], "CUDA initialised here would end what the script may set or fork"


def test_where_the_devices_can_be_counted_without_the_driver_it_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "_may_open", lambda path: True)
    monkeypatch.setattr(device_check, "_driver_fits", lambda cuda: cuda == "12.8")
    counted = {"_device_count_nvml": lambda: 1, "_device_count_amdsmi": lambda: 1, "init": no_driver}
    assert why(torch(cuda="12.8", **counted)) == why(torch(hip="6.2", **counted), "rocm") == ""
    assert "too old" in why(torch(cuda="13.0", **counted)), "a driver too old for this build is asked for its own words"
    assert "too old" in why(torch(cuda="12.8", **counted | {"_device_count_nvml": lambda: 0}))


def test_a_driver_that_does_not_answer_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(device_check, "_CHILD_TIMEOUT_S", 0.01)
    assert why(torch(cuda="12.8", init=lambda: time.sleep(60))) == ""


def test_a_long_reason_is_cut() -> None:
    def fail() -> None:
        raise RuntimeError("x" * 5000)

    assert len(why(torch(cuda="12", init=fail))) < 500


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SHOAL_DEVICE": "cpu"},
        {"SHOAL_DEVICE": "cuda", "SHOAL_ALLOW_CPU": "1"},
        {"SHOAL_DEVICE": "cuda", "SHOAL_EMULATE_CUDA": "1"},
        {"SHOAL_DEVICE": "of the future"},
    ],
)
def test_nothing_is_promised_to_cpu_slots_nor_to_those_who_said_that_the_cpu_will_do(env: dict[str, str]) -> None:
    assert promised(env) is None and broken(torch(), env) is None


def test_a_module_that_only_is_called_torch_is_left_alone() -> None:
    assert why(SimpleNamespace()) == ""


def test_the_process_ends_with_the_reason_as_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DEVICE", "cuda")
    monkeypatch.delenv("SHOAL_ALLOW_CPU", raising=False)
    monkeypatch.delenv("SHOAL_EMULATE_CUDA", raising=False)
    with pytest.raises(SystemExit, match=r"^\[shoal\] refused: this worker has a cuda slot"):
        refuse(torch())
    refuse(torch(cuda="12", is_initialized=lambda: True))
