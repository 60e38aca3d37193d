"""Detection of the frameworks that a program trains with."""

from __future__ import annotations

import ast
from functools import lru_cache

from shoal.check.module import Module, is_from
from shoal.check.program import Program
from shoal.check.training import loops_of

SDK = "Shoal SDK"
TRAINER = "Shoal Trainer"
NETMIND = "NetMind"
TOPSPIN = "TopSpin"
HUGGING_FACE = "Hugging Face Trainer"
ACCELERATE = "Accelerate"
LIGHTNING = "Lightning"
FABRIC = "Lightning Fabric"
PLAIN = "PyTorch loop"

NETMIND_PACKAGES = ("NetmindMixins", "shoal.compat.netmind")
LIGHTNING_PACKAGES = ("lightning", "pytorch_lightning", "lightning_fabric")
HF_PACKAGES = ("transformers", "trl", "sentence_transformers", "setfit")


@lru_cache(maxsize=4)
def frameworks_of(program: Program) -> list[str]:
    """Return the frameworks that a program uses, judged by its calls and imports; there may be several."""
    found = []
    if program.has_call("shoal", "init"):
        found.append(SDK)
    if program.imports("shoal.train"):
        found.append(TRAINER)
    if program.imports(*NETMIND_PACKAGES):
        found.append(NETMIND)
    if program.imports("topspin", "palframe"):
        found.append(TOPSPIN)
    if uses_hf_trainer(program):
        found.append(HUGGING_FACE)
    if program.has_call("accelerate", "Accelerator"):
        found.append(ACCELERATE)
    for package in LIGHTNING_PACKAGES:
        if program.has_call(package, "Trainer"):
            found.append(LIGHTNING)
        if program.has_call(package, "Fabric"):
            found.append(FABRIC)
    if not found and program.imports("torch") and loops_of(program):
        found.append(PLAIN)
    return list(dict.fromkeys(found))


@lru_cache(maxsize=4)
def uses_hf_trainer(program: Program) -> bool:
    return any(is_hf_trainer(base) for m in program.modules for c in m.all(ast.Call) for base in classes_of(m, c))


def classes_of(module: Module, call: ast.Call) -> frozenset[str]:
    """Return the class that a call instantiates and its base classes; empty if the class is not certain."""
    called = module.called(call)
    return module.bases(next(iter(called))) if len(called) == 1 else frozenset()


def is_hf_trainer(origin: str) -> bool:
    last = origin.rpartition(".")[2]
    return any(is_from(origin, package, last) for package in HF_PACKAGES) and last.endswith("Trainer")
