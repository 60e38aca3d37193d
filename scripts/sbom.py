"""Bill of materials of Shoal and everything it needs, as CycloneDX JSON; a lock file with hashes; and a list of licences.

`python scripts/sbom.py bom [EXTRA …]`       the packages installed here that Shoal with these extras needs, with versions,
                                             licences, and what needs what. Exits 1 if a package is missing or has no licence.
`python scripts/sbom.py lock FOLDER`         a lock file with the SHA-256 of every wheel and archive in a folder, for
                                             `pip install --require-hashes -r FILE`
`python scripts/sbom.py licences [EXTRA …]`  a table of packages, versions and licences

It reads only what is installed or in the folder. It knows nothing about vulnerabilities, and says so in the bill.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

NAME = "shoal-train"
_LONGEST = 80
_CLASSIFIER = "License :: "


@dataclass(slots=True)
class Package:
    """An installed package."""

    name: str
    version: str
    licence: str
    """SPDX expression if the package gives one, else its own words; empty if it names none."""
    needs: list[str] = field(default_factory=list)

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def closure(extras: list[str]) -> tuple[dict[str, Package], list[str]]:
    """Return the installed packages that Shoal with these extras needs, and the names of those that are missing."""
    found: dict[str, Package] = {}
    seen: set[tuple[str, str]] = set()
    missing: set[str] = set()
    todo = [(NAME, extra) for extra in ["", *extras]]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.add(name)
            continue
        package = found.setdefault(name, Package(name, one.version, licence_of(one.metadata)))
        for needed in _needs(one, extra):
            other = canonicalize_name(needed.name)
            if other != name and other not in package.needs:
                package.needs.append(other)
            todo += [(other, wanted) for wanted in ["", *sorted(needed.extras)]]
    return dict(sorted(found.items())), sorted(missing)


def _needs(one: metadata.Distribution, extra: str) -> Iterator[Requirement]:
    environment = {**default_environment(), "extra": extra}
    for text in one.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None:
            if not extra:
                yield requirement
        elif requirement.marker.evaluate(environment):
            yield requirement


def licence_of(facts: Any) -> str:
    """Return the licence that a package's metadata names: the expression, else a short text, else the classifiers."""
    if expression := (facts.get("License-Expression") or "").strip():
        return str(expression)
    text = (facts.get("License") or "").strip()
    if text and "\n" not in text and len(text) <= _LONGEST and text.upper() != "UNKNOWN":
        return str(text)
    named = [one.rpartition(" :: ")[2] for one in facts.get_all("Classifier") or () if one.startswith(_CLASSIFIER)]
    if named:
        return ", ".join(sorted(named))
    return str(text.splitlines()[0].strip()[:_LONGEST]) if text else ""


def bill(packages: dict[str, Package]) -> dict[str, Any]:
    """Return a CycloneDX 1.6 document. The same packages give the same document, apart from its time and number."""
    own = packages[NAME]
    parts = [package for name, package in packages.items() if name != NAME]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": _component(own, "application"),
            "properties": [{"name": "shoal:advisories", "value": "not checked"}],
        },
        "components": [_component(package, "library") for package in parts],
        "dependencies": [
            {
                "ref": package.purl,
                "dependsOn": sorted(packages[name].purl for name in package.needs if name in packages),
            }
            for package in packages.values()
        ],
    }


def _component(package: Package, kind: str) -> dict[str, Any]:
    made: dict[str, Any] = {"type": kind, "bom-ref": package.purl, "name": package.name, "version": package.version}
    if package.licence:
        is_expression = re.fullmatch(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*", package.licence) is not None
        made["licenses"] = (
            [{"expression": package.licence}] if is_expression else [{"license": {"name": package.licence}}]
        )
    return {**made, "purl": package.purl}


def lock(folder: Path) -> list[str]:
    """Return the lines of a lock file for the wheels and archives in a folder; several files of one version share a line."""
    hashes: dict[tuple[str, str], list[str]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".whl":
            name, version = parse_wheel_filename(path.name)[:2]
        elif path.name.endswith((".tar.gz", ".zip")):
            name, version = parse_sdist_filename(path.name)
        else:
            continue
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        hashes.setdefault((name, str(version)), []).append(f"--hash=sha256:{digest}")
    versions = [name for name, _ in hashes]
    twice = sorted({name for name in versions if versions.count(name) > 1})
    if twice:
        raise SystemExit(f"{folder} has several versions of {', '.join(twice)}: empty it and download again")
    return [f"{name}=={version} {' '.join(sorted(found))}" for (name, version), found in sorted(hashes.items())]


def table(packages: dict[str, Package]) -> list[str]:
    """Return the lines of a Markdown table of licences."""
    rows = [f"| `{one.name}` | {one.version} | {one.licence or 'not named'} |" for one in packages.values()]
    return ["| Package | Version | Licence |", "| --- | --- | --- |", *rows]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["bom", "lock", "licences"])
    parser.add_argument("names", nargs="*", help="extras, or the folder of a lock")
    given = parser.parse_args(arguments)
    if given.what == "lock":
        if len(given.names) != 1:
            parser.error("a lock needs one folder")
        print("\n".join(lock(Path(given.names[0]))))
        return 0
    packages, missing = closure(given.names)
    print(json.dumps(bill(packages), indent=2) if given.what == "bom" else "\n".join(table(packages)))
    unnamed = [one.name for one in packages.values() if not one.licence]
    if missing:
        print(f"not installed here, so not in the list: {', '.join(missing)}", file=sys.stderr)
    if unnamed:
        print(f"no licence named: {', '.join(unnamed)}", file=sys.stderr)
    return 1 if missing or unnamed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
