"""Runs on the wire: what people write about jobs (tags, notes, titles), queries over all jobs of a workspace, saved views."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from shoal.core.charts import Layout
from shoal.core.run_params import Param
from shoal.core.schema import Schema, Utc, View
from shoal.core.states import JobState

RunKind = Literal["job", "trial", "preflight", "lease"]
"""Kind of a job: submitted by a person, trial of a sweep, preflight of another job, or rented machine."""
MAX_TAGS = 50
_TAG = re.compile(r"[^\s,\"<>=~!:]{1,64}")


def check_tag(tag: str) -> str:
    """Return the tag; raise ValueError if it is not one word of at most 64 characters."""
    if not _TAG.fullmatch(tag):
        raise ValueError(f'{tag!r} is not a tag: one word of at most 64 characters, without , " < > = ~ ! :')
    return tag


Tag = Annotated[str, AfterValidator(check_tag)]


class RunChange(Schema):
    """Change of what people write about jobs. Omitted fields are left unchanged."""

    jobs: list[str] = Field(min_length=1, max_length=1000)
    """Names or ids."""
    add_tags: list[Tag] = Field(default=[], max_length=MAX_TAGS)
    remove_tags: list[str] = Field(default=[], max_length=MAX_TAGS)
    title: str | None = Field(default=None, max_length=200)
    """Display name, shown instead of the name, which stays; an empty text removes it."""
    description: str | None = Field(default=None, max_length=20_000)
    note: str | None = Field(default=None, max_length=20_000)
    starred: bool | None = None
    archived: bool | None = None
    """True hides the jobs from lists; nothing is deleted."""


class RunAbout(View):
    """Tags, title, notes and marks of a job."""

    id: str
    name: str
    tags: list[str]
    title: str
    description: str
    note: str
    starred: bool
    archived: bool


class RunRow(View):
    """A row of the table of runs."""

    id: str
    name: str
    title: str
    kind: RunKind
    status: JobState
    user: str
    tags: list[str]
    starred: bool
    archived: bool
    created_at: Utc
    duration_s: float | None
    values: dict[str, Param] = {}
    """Requested column → value; None if the run has none."""


class Spread(View):
    """Values of one column over a group of runs."""

    mean: float | None
    std: float | None
    """Standard deviation of the sample; None of fewer than two numbers."""
    min: float | None
    max: float | None
    count: int
    """Number of runs with a number in this column."""


class RunGroup(View):
    """Runs that have equal values in the columns grouped by."""

    key: dict[str, Param]
    runs: int
    ids: list[str]
    """Ids of at most 50 of them, newest first."""
    values: dict[str, Spread] = {}


class RunsPage(View):
    """Answer to a query: rows, or groups if it groups."""

    rows: list[RunRow]
    groups: list[RunGroup] = []
    total: int
    """Number of all matching runs, or groups."""
    columns: list[str]
    """Columns of `values`, in order."""


class RunColumns(View):
    """Columns that the newest runs of a workspace have."""

    params: list[str]
    metrics: list[str]
    tags: list[str]


class RunsViewSave(Schema):
    """Query to be saved under a name."""

    q: str = Field(default="", max_length=2000)
    sort: str = Field(default="", max_length=200)
    columns: list[str] = Field(default=[], max_length=50)
    group: list[str] = Field(default=[], max_length=20)
    charts: Layout = {}
    """Charts that the console shows beside the table: their runs, layout and settings."""


class RunsView(View):
    """Saved view of the runs of a workspace, shared by its members."""

    name: str
    q: str
    sort: str
    columns: list[str]
    group: list[str]
    charts: dict[str, Any] = {}
    created_by: str
    created_at: Utc
