"""Import contracts: every package of the server, the agent and the command line says what is only its own."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src/shoal"
OPEN = {
    "server.models": "models know nothing of the features that use them",
    "cli.shared": "commands share only what is in cli.shared",
}
"""Packages that others may use as a whole, and the contract that says what they may not use."""
PACKAGES = sorted(
    ".".join(path.parent.relative_to(SOURCE).parts)
    for folder in ("server", "agent", "cli")
    for path in (SOURCE / folder).glob("*/__init__.py")
)


def contracts() -> dict[str, dict]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["name"]: contract for contract in config["tool"]["importlinter"]["contracts"]}


def module_exists(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_of_server_agent_and_cli_has_a_contract(package):
    if package in OPEN:
        assert f"shoal.{package}" in contracts()[OPEN[package]]["source_modules"]
        return
    contract = contracts()[f"inside {package}"]
    own = f"shoal.{package}"
    assert contract["type"] == "protected" and own in contract["allowed_importers"]
    assert all(f"{name}.".startswith(f"{own}.") for name in contract["protected_modules"])


def test_contracts_name_modules_that_exist():
    named = {
        module
        for contract in contracts().values()
        for key in ("protected_modules", "allowed_importers", "source_modules")
        for module in contract.get(key, [])
    }
    assert not [module for module in sorted(named) if not module_exists(module)]


def test_no_contract_is_for_a_package_that_is_gone():
    assert {name.removeprefix("inside ") for name in contracts() if name.startswith("inside ")} <= set(PACKAGES)
