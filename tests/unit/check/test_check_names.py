"""Aliases, assignments, parameters and local modules lead to the same name; what may be several things is none of them."""

from __future__ import annotations

import ast

import pytest

from shoal.check.module import UNKNOWN, Module


def origins(text: str) -> set[str]:
    """Return the name of what the last statement, an expression, evaluates to."""
    module = Module("train.py", text)
    last = module.tree.body[-1]
    assert isinstance(last, ast.Expr)
    return set(module.origins(last.value))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch\ntorch.optim.SGD", {"torch.optim.SGD"}),
        ("import torch.nn as n\nn.Linear(1, 1)", {"torch.nn.Linear()"}),
        ("from torch.utils import data as d\nd.DataLoader", {"torch.utils.data.DataLoader"}),
        ("from torch import nn\nlayers = nn\nL = layers.Linear\nL()", {"torch.nn.Linear()"}),
        ("import shoal\nwith shoal.init() as run:\n    pass\nrun.step", {"shoal.init().step"}),
        ("import a, b\nx = a.f() if b else b.g()\nx", {"a.f()", "b.g()"}),
        ("import a\nx, (y, z) = a.f()\nx", {"a.f()[0]"}),
        ("import a\nx, y = a.one, a.two\ny()", {"a.two()"}),
        ("import a\nx = a.Net()\nx = x.to('cpu')\nx", {"a.Net()"}),
        ("import a, w\nx = a.Net()\nx = w.wrap(x)\nx", {"a.Net()", "w.wrap()"}),
        ("import a, r\nm, o = r.prepare(a.Net(), a.Opt())\no", {"r.prepare()[1]", "a.Opt()"}),
        ("import a\ndef f(x):\n    return x\nf", {"train.py:f:2"}),
        ("from a import *\nDataLoader", {UNKNOWN}),
        ("for x in y:\n    pass\nx", {UNKNOWN}),
        ("input", {"builtins.input"}),
        ("def input(): ...\ninput", {"train.py:input:1"}),
        ("import a\ndef f():\n    global x\n    x = a.g()\nx", {"a.g()"}),
        ("x = x.view()\nx = x.relu()\nx", {UNKNOWN}),
    ],
)
def test_a_value_leads_to_where_it_comes_from(text: str, found: set[str]) -> None:
    assert origins(text) == found


def test_a_parameter_is_what_all_calls_give_for_it() -> None:
    text = "import a, b\ndef f(x, y=a.d):\n    x\n    y\nf(a.one())\nf(x=b.two(), y=b.d)"
    module = Module("train.py", text)
    [x, y] = [n.value for n in module.all(ast.Expr)][:2]
    assert module.origins(x) == {"a.one()", "b.two()"}
    assert module.origins(y) == {"a.d", "b.d"}


def test_a_function_that_is_passed_on_may_be_given_anything() -> None:
    module = Module("train.py", "import a\ndef f(x):\n    x\nf(a.one())\nspawn(f)")
    assert module.origins(module.all(ast.Expr)[0].value) == {UNKNOWN}


def test_attributes_of_self_are_known_throughout_the_class() -> None:
    text = "import shoal\nclass T:\n    def __init__(self):\n        self.run = shoal.init()\n    def go(self):\n        self.run.step()"
    module = Module("train.py", text)
    assert module.called(module.all(ast.Call)[-1]) == {"shoal.init().step"}


def test_values_made_of_themselves_a_hundred_times_over_take_no_time() -> None:
    body = "".join(f"    x = self.layer{i}(x).view(x.size(0))\n    x = x + x.mean()\n" for i in range(200))
    module = Module("train.py", f"class Net:\n  def forward(self, x):\n{body}    return x\n")
    for call in module.all(ast.Call):
        assert module.called(call) == {UNKNOWN}
