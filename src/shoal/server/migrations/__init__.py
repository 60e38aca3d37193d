"""Migrations of the database schema (Alembic). `upgrade` brings a database to the newest version in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from shoal.core.errors import Refused

_HERE = Path(__file__).parent
MADE_BY = "shoal_version"
"""Name of the server fact with the newest version of Shoal that opened the database."""
HEAD = max(p.stem.split("_")[0] for p in (_HERE / "versions").glob("[0-9]*.py"))


def upgrade(engine: Engine, revision: str = "head", *, doing: Callable[[str], None] = lambda text: None) -> None:
    """Migrate the database. `doing` is called with a text at each step: with a large database, one may take minutes."""
    with engine.begin() as connection:
        # Alembic takes a while to import; most starts have nothing to migrate.
        version = _version(connection)
        if revision == "head" and version == HEAD:
            return
        refuse_newer(version, _made_by(connection))
        what = f"migrating the database from version {version} to {HEAD}" if version else "making the database"
        doing(what)
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(_HERE))
        config.attributes["connection"] = connection
        config.attributes["on_step"] = lambda step: doing(f"{what} (now at {step.up_revision_id})")
        command.upgrade(config, revision)


def refuse_newer(version: str | None, made_by: str | None) -> None:
    """Raise if a newer Shoal has changed the tables: this version would misread them."""
    if version is None or version <= HEAD:
        return
    newer = f"Shoal {made_by}" if made_by else "a newer version of Shoal"
    wanted = f"'shoal-train[server]>={made_by}'" if made_by else "--upgrade 'shoal-train[server]'"
    raise Refused(
        f"This database was last opened by {newer} (tables of version {version}; this version of Shoal knows {HEAD}).",
        hint=f"Install it: pip install {wanted}. Or, with it installed, go back to the copy made before the upgrade: "
        "shoal server downgrade",
    )


def _made_by(connection: Connection) -> str | None:
    if not inspect(connection).has_table("server_facts"):
        return None
    found = connection.scalar(text("SELECT value FROM server_facts WHERE name = :name"), {"name": MADE_BY})
    return None if found is None else str(found)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return str(connection.scalar(text("SELECT version_num FROM alembic_version")))
