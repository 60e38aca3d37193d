"""A package with an engine of its own, as others would write one: `acme`, agents as processes in a directory of this machine."""

from __future__ import annotations

from pathlib import Path

_CODE = '''
from pathlib import Path

from shoal.core.schema import Schema
from shoal.engines.kinds import AddedKind
from shoal.engines.local import LocalEngine


class AcmeOptions(Schema):
    """Options of an Acme cluster."""

    model_config = {"use_attribute_docstrings": True}

    rack: str
    """Directory of the rack."""
    slots: int = 2
    """Slots of the rack."""
    python: str | None = None
    """Interpreter of the agents."""


class AcmeKind(AddedKind):
    name, title = "acme", "Acme"
    options = AcmeOptions
    columns = ("rack",)
    examples = "shoal engine add acme --rack /racks/1"

    def open(self, name, options, host):
        given = {"python": options.python} if options.python else {}
        return LocalEngine(Path(options.rack) / "nodes", slots=options.slots, machine=f"{name}:rack",
                           agent_env=dict(host.agent_env), **given)
'''


def write_engine_package(folder: Path, entry: str = "acme = acme_shoal:AcmeKind", code: str = _CODE) -> Path:
    """Write the package as pip would install it; with the returned folder on sys.path it is found by its entry point."""
    info = folder / "acme_shoal-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "acme_shoal.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-shoal\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[shoal.engines]\n{entry}\n")
    return folder
