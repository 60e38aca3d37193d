"""Kinds of engines: found by entry point, and named nowhere else."""

import re
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import NotFound, Refused
from shoal.engines import kinds
from shoal.engines.kinds import AddedKind, OwnMachineKind, PoolKind
from shoal.testing.each import check_each
from shoal.testing.engine_package import write_engine_package

ROOT = Path(shoal.__file__).parent
NAMED = re.compile(r"(?<![A-Za-z])([Rr]ay|RAY|[Ss]lurm|SLURM)(?![a-z])|shoal\.engines\.(local|ray|slurm)\b")
ALLOWED = {
    "cli/main.py": "the help of `shoal engine` names an example, so that people find it",
    "cli/pool/app.py": "the help of --python says what has to be installed",
    "core/engines.py": "0.1 named the field of the options after the only kind there was",
    "core/settings.py": "a directory of 0.1's data directory, closed to jobs",
    "testing/engine_package.py": "a test's package",
    "testing/groups.py": "test files that share a resource, by their names",
    "testing/leaks.py": "environment variables that libraries set",
    "testing/prefork_forks.py": "prefork parents of test servers",
    "testing/server_forks.py": "gives them to test servers",
    "testing/slurm.py": "a real cluster for tests",
    "testing/slurm_programs.py": "fake programs for tests",
}
"""Files outside of `engines` that may name an engine, with the reason."""


@pytest.fixture
def fresh():
    """Kinds are looked for again in this test, and after it."""
    kinds.kinds.cache_clear()
    yield
    kinds.kinds.cache_clear()
    sys.modules.pop("acme_shoal", None)


def test_no_file_outside_of_engines_names_one_but_for_a_reason():
    files = [p for p in ROOT.rglob("*") if p.suffix in (".py", ".html", ".js") and p.is_file()]
    outside = {p.relative_to(ROOT).as_posix(): p for p in files if p.relative_to(ROOT).parts[0] != "engines"}
    assert len(outside) > 500

    def check(name):
        found = [line.strip() for line in outside[name].read_text("utf-8").splitlines() if NAMED.search(line)]
        assert not found or name in ALLOWED, f"names an engine: {found}"

    check_each(outside, check)
    stale = [name for name in ALLOWED if name not in outside or not NAMED.search(outside[name].read_text("utf-8"))]
    assert stale == []


def test_the_installation_registers_what_pyproject_declares():
    declared = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert set(kinds.kinds()) >= set(declared[kinds.GROUP])
    assert isinstance(kinds.kinds()["local"], OwnMachineKind) and kinds.own_machine_kind().name == "local"
    assert isinstance(kinds.pool_kind(), PoolKind) and isinstance(kinds.kinds()["slurm"], AddedKind)
    assert kinds.reserved_names() == {"local", "ray"}


def test_every_option_of_a_kind_has_a_help_text():
    for kind in kinds.added_kinds().values():
        assert not [name for name, field in kind.options.model_fields.items() if not field.description]


def test_another_package_adds_a_kind(tmp_path, monkeypatch, fresh):
    monkeypatch.syspath_prepend(write_engine_package(tmp_path))
    assert list(kinds.kinds()) == ["local", "ray", "slurm", "acme"]
    assert kinds.added_kind("acme").options.model_fields["rack"].description == "Directory of the rack."
    with pytest.raises(NotFound, match=r"No engine of kind 'amce' is installed .* Did you mean 'acme'") as e:
        kinds.added_kind("amce")
    assert "Installed: slurm, acme." in e.value.hint


@pytest.mark.parametrize(
    ("entry", "code", "words"),
    [
        ("acme = acme_shoal:AcmeKind", "import no_such_module", "No module named 'no_such_module'"),
        ("acme = acme_shoal:AcmeKind", "class AcmeKind: pass", "is not an EngineKind with the name 'acme'"),
        ("slurm = acme_shoal:AcmeKind", "", "engine slurm of acme-shoal is ignored: the name is taken"),
    ],
)
def test_a_package_that_is_wrong_is_logged_and_the_others_work(
    tmp_path, monkeypatch, fresh, caplog, entry, code, words
):
    monkeypatch.syspath_prepend(write_engine_package(tmp_path, entry, code))
    assert list(kinds.kinds()) == ["local", "ray", "slurm"]
    assert type(kinds.kinds()["slurm"]).__module__ == "shoal.engines.slurm.kind"
    assert words in caplog.text


@pytest.mark.parametrize("registered", [[], [EntryPoint("slurm", "shoal.engines.slurm.kind:SlurmKind", kinds.GROUP)]])
def test_an_installation_older_than_its_code_says_what_to_do(monkeypatch, fresh, registered):
    monkeypatch.setattr(kinds, "entry_points", lambda group: EntryPoints(registered))
    with pytest.raises(
        Refused, match="the installation of the package 'shoal-train' is older than its code"
    ) as refused:
        kinds.own_machine_kind()
    assert "pip install --no-deps -e ." in refused.value.hint
