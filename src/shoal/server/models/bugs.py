"""Failed steps; their capsules are in the store."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Bug(Base):
    __tablename__ = "bugs"
    __table_args__ = (UniqueConstraint("job_id", "attempt", "node", "rank", "n"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    node: Mapped[int]
    rank: Mapped[int]
    n: Mapped[int]
    step: Mapped[int]
    seen: Mapped[int | None]
    at: Mapped[datetime]
    name: Mapped[str]
    error: Mapped[str]
    message: Mapped[str]
    where: Mapped[str]
    size: Mapped[int] = mapped_column(default=0)
    files: Mapped[int] = mapped_column(default=0)
    manifest_id: Mapped[str | None]
    """Manifest of the capsule; None until it has arrived."""
