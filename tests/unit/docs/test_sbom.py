"""The bill of materials lists what is installed, completely; the lock file has the hashes of the files; both refuse to guess."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shoal_scripts_sbom", ROOT / "scripts/sbom.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_bill_has_every_package_the_server_needs_with_version_and_licence(
    sbom: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sbom.main(["bom", "server"]) == 0
    bill = json.loads(capsys.readouterr().out)
    parts = {part["name"]: part for part in bill["components"]}
    # Named by Shoal itself, needed by something that it needs, and never needed by the server.
    assert {"pydantic", "sqlalchemy"} <= set(parts) and "pydantic-core" in parts and "torch" not in parts
    for name in ("fastapi", "cffi"):
        assert parts[name]["version"] == metadata.version(name)
        assert parts[name]["purl"] == f"pkg:pypi/{name}@{parts[name]['version']}"
    assert all(part.get("licenses") for part in parts.values())
    needs = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert parts["cffi"]["purl"] in needs[parts["argon2-cffi-bindings"]["purl"]]
    known = {part["bom-ref"] for part in [*parts.values(), bill["metadata"]["component"]]}
    assert set(needs) == known and {ref for refs in needs.values() for ref in refs} <= known
    assert bill["metadata"]["properties"] == [{"name": "shoal:advisories", "value": "not checked"}]


def test_a_missing_package_is_named(
    sbom: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = metadata.distribution

    def distribution(name: str) -> metadata.Distribution:
        if name == "httpx":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(sbom.metadata, "distribution", distribution)
    assert sbom.main(["licences"]) == 1
    assert "not installed here, so not in the list: httpx" in capsys.readouterr().err


def test_a_lock_has_the_hash_of_every_file(sbom: ModuleType, tmp_path: Path) -> None:
    files = {"Some_Thing-1.0-py3-none-any.whl": b"a", "some_thing-1.0.tar.gz": b"b", "other-2.0-py3-none-any.whl": b"c"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "notes.txt").write_text("no package")
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    both = sorted(f"--hash=sha256:{digests[name]}" for name in list(files)[:2])
    other = f"other==2.0 --hash=sha256:{digests['other-2.0-py3-none-any.whl']}"
    assert sbom.lock(tmp_path) == [other, f"some-thing==1.0 {' '.join(both)}"]
    (tmp_path / "other-3.0-py3-none-any.whl").write_bytes(b"d")
    with pytest.raises(SystemExit, match="several versions of other"):
        sbom.lock(tmp_path)
