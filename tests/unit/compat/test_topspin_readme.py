"""The example's files hold TopSpin's printed code to the letter."""

import importlib
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "topspin" / "example" / "nlp" / "intent_dection"
PRINTED = dict(re.findall(r"^=== (\S+)\n(.*?)(?=^=== |\Z)", (HERE / "topspin_readme.txt").read_text(), re.S | re.M))


@pytest.mark.parametrize("name", PRINTED)
def test_the_printed_code_is_in_the_example_unchanged(name):
    assert PRINTED[name].strip("\n") in (EXAMPLE / name).read_text()


def test_all_printed_files_are_there():
    assert set(PRINTED) == {
        "param.py", "model.py", "model_wrapper.py", "train.py", "train_starter.py", "train_dist_starter.py",
    }  # fmt: skip


def test_every_module_path_of_topspin_and_palframe_leads_to_the_same_things():
    source = HERE.parents[2] / "src"
    files = [f for name in ("topspin", "palframe") for f in (source / name).rglob("*.py") if f.name != "__main__.py"]
    names = [".".join(f.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for f in files]
    modules = {name: importlib.import_module(name) for name in names}
    old, new = modules["palframe.pytorch.estimator4.train"], modules["topspin.estimator.train"]
    assert old.TrainerBase is new.TrainerBase is modules["topspin"].TrainerBase
    assert modules["palframe.nlp"].Logger is modules["topspin.tools.helper"].Logger
    assert modules["palframe.pytorch.estimator4.param"].ParamBase is not modules["topspin.estimator.param"].ParamBase
    assert modules["topspin.mem_dataset.bindataset"].get_batch_data is modules["topspin"].bindataset_get_batch_data
    assert modules["palframe.pytorch.lamb_optimizer"].LambOptimizer.__name__ == "Lamb"


def test_star_imports_bring_what_scripts_use():
    found = {}
    exec("from topspin import *", found)
    for name in ("ParamBase", "TrainerBase", "Measure", "Logger", "TextCNN", "starter", "BinDataset", "to_device"):
        assert name in found
    found = {}
    exec("from palframe.pytorch import *", found)
    for name in ("torch", "nn", "dist", "nlp", "nlp_torch", "Logger", "os", "time", "pickle", "defaultdict", "np"):
        assert name in found
    assert not hasattr(importlib.import_module("topspin"), "no_such_thing")
