"""Facts about the server itself, stored with its data."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class ServerFact(Base):
    __tablename__ = "server_facts"
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]
