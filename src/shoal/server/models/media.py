"""Pictures, figures and tables of jobs."""

from __future__ import annotations

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from shoal.server.models.base import Base


class Media(Base):
    """Picture, figure or table; its bytes are in the store."""

    __tablename__ = "media"
    __table_args__ = (UniqueConstraint("job_id", "attempt", "node", "rank", "n"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    node: Mapped[int]
    rank: Mapped[int]
    n: Mapped[int]
    step: Mapped[int]
    at: Mapped[float]
    name: Mapped[str]
    type: Mapped[str]
    mime: Mapped[str]
    file: Mapped[str]
    size: Mapped[int]
    manifest_id: Mapped[str]
