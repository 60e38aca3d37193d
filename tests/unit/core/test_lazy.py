"""Names that load on first use: importing a package of them costs nothing."""

import subprocess
import sys

import pytest

import shoal.data
from shoal.core.lazy import lazy_names

PACKAGES = ["shoal.client", "shoal.data", "shoal.train", "shoal.train.data"]


def test_importing_the_packages_imports_nothing_but_what_names_are_loaded_by():
    code = f"import sys; before = set(sys.modules); import {', '.join(PACKAGES)}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.startswith("shoal")}
    assert ours == {"shoal", *PACKAGES, "shoal.core", "shoal.core.lazy"}
    assert not {"torch", "numpy", "pydantic", "httpx"} & set(done.stdout.split())


def test_a_name_is_its_modules_or_the_module_itself():
    load, names = lazy_names("shoal.core", {"new_id": ".ids", "states": "shoal.core.states"})
    assert load("new_id") is sys.modules["shoal.core.ids"].new_id
    assert load("states") is sys.modules["shoal.core.states"]
    assert {"new_id", "states", "__name__"} <= set(names())


def test_a_name_that_is_not_there_is_told_as_python_does():
    with pytest.raises(AttributeError, match=r"module 'shoal\.data' has no attribute 'nothing'"):
        _ = shoal.data.nothing
    assert not hasattr(shoal.data, "nothing")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_of_dir_can_be_had(package):
    pytest.importorskip("torch")
    module = __import__(package, fromlist=["x"])
    assert all(hasattr(module, name) for name in dir(module))
