"""Launcher of a preflight: run the script as `python -u script.py …` would, and observe it.

python -u launch.py train.py --lr 3e-4        with SHOAL_PREFLIGHT, a JSON object (see probe.ProbeSettings), in the environment
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import sys
from types import ModuleType
from typing import Any

VARIABLE = "SHOAL_PREFLIGHT"
_NAME = "_shoal_preflight"
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def main() -> int:
    words = sys.argv[1:]
    package()
    probes, watch, ends = (importlib.import_module(f"{_NAME}.{name}") for name in ("probe", "watch", "ends"))
    asked = probes.ProbeSettings(**json.loads(os.environ.pop(VARIABLE)))
    probe = probes.Probe(asked)
    watch.start(probe)
    code = 0
    try:
        _run(words)
    except probes.Done:
        pass
    except BaseException as error:
        code = ends.failed(probe, error)
    finally:
        ends.finish(probe)
    _flush()
    return code


def package() -> ModuleType:
    """Load this package under its own name, `_shoal_preflight`."""
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    init = os.path.join(_HERE, "__init__.py")  # noqa: PTH118
    spec = importlib.util.spec_from_file_location(_NAME, init, submodule_search_locations=[_HERE])
    assert spec is not None and spec.loader is not None  # noqa: S101
    module = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(words: list[str]) -> None:
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()  # noqa: PTH109
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    path = os.path.join(os.getcwd(), words[0])  # noqa: PTH109, PTH118
    sys.path[0] = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
    with open(path, "rb") as file:  # noqa: PTH123
        text = file.read()
    code = compile(text, path, "exec", dont_inherit=True)
    exec(code, _new_main(path))  # noqa: S102


def _new_main(path: str) -> dict[str, Any]:
    """Return the namespace of a new __main__ module, in which pickle and spawned processes find the script's definitions."""
    module = ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__, __spec__=None, __cached__=None)
    sys.modules["__main__"] = module
    return module.__dict__


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


if __name__ == "__main__":
    sys.exit(main())
