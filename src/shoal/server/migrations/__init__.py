"""Schema history (Alembic). `upgrade` brings a database to the newest version, all in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

_HERE = Path(__file__).parent
HEAD = max(p.stem.split("_")[0] for p in (_HERE / "versions").glob("[0-9]*.py"))


def upgrade(engine: Engine, revision: str = "head", *, doing: Callable[[str], None] = lambda text: None) -> None:
    """`doing` is told of each step: with a large database, one may take minutes."""
    with engine.begin() as connection:
        # Alembic takes a while to import; most starts have nothing to migrate.
        version = _version(connection)
        if revision == "head" and version == HEAD:
            return
        what = f"migrating the database from version {version} to {HEAD}" if version else "making the database"
        doing(what)
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(_HERE))
        config.attributes["connection"] = connection
        config.attributes["on_step"] = lambda step: doing(f"{what} (now at {step.up_revision_id})")
        command.upgrade(config, revision)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return str(connection.scalar(text("SELECT version_num FROM alembic_version")))
