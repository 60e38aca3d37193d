"""Sources of imports, each downloaded into a folder: http(s)://, s3:// and hf:// URLs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from shoal.core.errors import InvalidSpec, NotFound, Refused
from shoal.server.artifacts.imports.fetch import Fetched, fetcher
from shoal.server.artifacts.imports.hub import Hub, parse_hub_url
from shoal.server.artifacts.imports.plan import Fetch, Plan, fetch_all, make_plan
from shoal.server.artifacts.imports.s3 import Bucket, Changed, check_keys, check_obstore, parse_s3_url
from shoal.server.context import Context
from shoal.server.ssrf_guard import Guard, display_url
from shoal.store.archives.types import archive_kind
from shoal.store.archives.unpack import Limits, unpack
from shoal.store.materialize import remove_tree
from shoal.store.pack import Progress

Total = Callable[[int], None]
"""Callback with the total number of bytes, once it is known; counting starts again from zero then."""

_PLANS = 3


class Source(ABC):
    """Source of an import: one URL. Created when the import is requested, and again when it runs."""

    kind: ClassVar[str]

    def __init__(self, ctx: Context, url: str, *, max_bytes: int):
        self.ctx, self.url, self.max_bytes = ctx, url, max_bytes
        self.guard = Guard(private=ctx.private)

    @property
    def display_url(self) -> str:
        return self.url

    @abstractmethod
    def check(self, credentials: Mapping[str, str]) -> None:
        """Raise for what can never work, before the import starts."""

    @abstractmethod
    def bring(self, work: Path, keys: Mapping[str, str], progress: Progress, total: Total) -> dict[str, str]:
        """Download to `work/tree`, continuing what is in `work`; return what to add to the dataset's origin."""


def open_source(ctx: Context, url: str, *, max_bytes: int) -> Source:
    scheme = url.partition("://")[0].lower()
    kinds: dict[str, type[Source]] = {"http": HttpSource, "https": HttpSource, "s3": S3Source, "hf": HubSource}
    if scheme not in kinds or "://" not in url:
        raise InvalidSpec("Datasets are imported from http(s)://…, s3://bucket/prefix or hf://datasets/ORG/NAME.")
    return kinds[scheme](ctx, url, max_bytes=max_bytes)


class HttpSource(Source):
    """File at an http(s) URL; an archive is unpacked."""

    kind = "http"

    def __init__(self, ctx: Context, url: str, *, max_bytes: int):
        super().__init__(ctx, url, max_bytes=max_bytes)
        self._parsed = self.guard.parse(url)

    @property
    def display_url(self) -> str:
        return display_url(self._parsed)

    def check(self, credentials: Mapping[str, str]) -> None:
        if credentials:
            raise InvalidSpec("An http(s) URL takes no credentials.")

    def bring(self, work: Path, keys: Mapping[str, str], progress: Progress, total: Total) -> dict[str, str]:
        tree, download = work / "tree", work / "download"
        with fetcher(self.ctx, max_bytes=self.max_bytes) as fetching:
            fetched = fetching.fetch(self.url, download, progress=progress, expect=total)
        self._refuse_page(fetched)
        for left in (tree, work / "archive", *work.glob(".tree.*.tmp")):
            remove_tree(left)
        if archive_kind(fetched.name) is None:
            _name(download, tree / fetched.name)
            return {}
        # It gets its own name while it is unpacked, because the name tells its kind.
        folder = work / "archive"
        _name(download, folder / fetched.name)
        limits = Limits(max_bytes=self.max_bytes, max_ratio=self.ctx.settings.max_archive_ratio)
        notes = unpack(folder / fetched.name, tree, limits=limits)
        return {"notes": "; ".join(notes)} if notes else {}

    def _refuse_page(self, fetched: Fetched) -> None:
        if fetched.content_type == "text/html" and not fetched.name.lower().endswith((".html", ".htm", ".xhtml")):
            raise Refused(
                f"{self.display_url} answered with a web page, not with a file; it may ask to sign in or to confirm."
            )


class S3Source(Source):
    kind = "s3"

    def __init__(self, ctx: Context, url: str, *, max_bytes: int):
        super().__init__(ctx, url, max_bytes=max_bytes)
        self._place = parse_s3_url(url, self.guard)

    def check(self, credentials: Mapping[str, str]) -> None:
        check_obstore()
        check_keys(credentials)

    def bring(self, work: Path, keys: Mapping[str, str], progress: Progress, total: Total) -> dict[str, str]:
        with Bucket(self._place, keys, self.guard, stop=lambda: self.ctx.live.closing) as bucket:
            for last in (False,) * (_PLANS - 1) + (True,):
                plan = _planned(work, lambda: self._plan(bucket))
                try:
                    _bring_all(plan, work, bucket.fetch, progress, total)
                    break
                except (Changed, NotFound):
                    if last:
                        raise
                    # The bucket is being changed: list it again and fetch everything from the new list.
                    for name in ("plan.json", "parts", "tree"):
                        _remove(work / name)
        return plan.origin

    def _plan(self, bucket: Bucket) -> Plan:
        plan = make_plan(bucket.objects(), self._place.display_url, max_bytes=self.max_bytes, origin={})
        if not plan.files:
            raise Refused(f"There is nothing at {self._place.display_url}.")
        return plan


class HubSource(Source):
    kind = "hf"

    def __init__(self, ctx: Context, url: str, *, max_bytes: int):
        super().__init__(ctx, url, max_bytes=max_bytes)
        self._place = parse_hub_url(url)

    def check(self, credentials: Mapping[str, str]) -> None:
        if unknown := sorted(credentials.keys() - {"HF_TOKEN"}):
            raise InvalidSpec(f"{unknown[0]!r} is not a credential for the Hub: give HF_TOKEN.")

    def bring(self, work: Path, keys: Mapping[str, str], progress: Progress, total: Total) -> dict[str, str]:
        token = keys.get("HF_TOKEN") or (os.environ.get("HF_TOKEN") if self.ctx.private else None)
        with Hub(self.ctx, token, max_bytes=self.max_bytes) as hub:
            plan = _planned(work, lambda: hub.plan(self._place))
            commit = plan.origin["revision"]
            _bring_all(plan, work, lambda f, to, p: hub.fetch(self._place, commit, f, to, p), progress, total)
        return plan.origin


def _planned(work: Path, make: Callable[[], Plan]) -> Plan:
    plan = Plan.load(work / "plan.json")
    if plan is None:
        plan = make()
        plan.save(work / "plan.json")
    return plan


def _bring_all(plan: Plan, work: Path, fetch: Fetch, progress: Progress, total: Total) -> None:
    total(plan.size)
    fetch_all(plan, work / "tree", work / "parts", fetch, progress)


def _name(download: Path, target: Path) -> None:
    """Give the download a second name (a hard link), so that an interruption after this does not need a new download."""
    target.parent.mkdir()
    try:
        target.hardlink_to(download)
    except OSError:  # not on every kind of disk
        download.replace(target)


def _remove(path: Path) -> None:
    if path.is_dir():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
