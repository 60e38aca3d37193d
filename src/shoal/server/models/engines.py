"""Engines that were added besides the server's own."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class EngineRow(Base):
    __tablename__ = "engines"
    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    options: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
