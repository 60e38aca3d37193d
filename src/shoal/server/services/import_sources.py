"""The three kinds of URL a dataset is imported from, each brought into a folder: http(s)://, s3:// and hf://."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from shoal.core.errors import InvalidSpec, NotFound, Refused
from shoal.server.context import Context
from shoal.server.services.fetching import Fetched, fetcher
from shoal.server.services.import_guard import Guard, shown
from shoal.server.services.import_hub import Hub, parse_hub_url
from shoal.server.services.import_plan import Fetch, Plan, fetch_all, make_plan
from shoal.server.services.import_s3 import Bucket, Changed, check_keys, check_obstore, parse_s3_url
from shoal.store.archive_members import archive_kind
from shoal.store.archives import Limits, unpack
from shoal.store.materialize import remove_tree
from shoal.store.pack import Progress

Total = Callable[[int], None]
"""Told how many bytes there are in all, once that is known; they are counted from nought from there."""

_PLANS = 3


class Source(ABC):
    """One URL. Made when the import is asked for, and again when it is taken up."""

    kind: ClassVar[str]

    def __init__(self, ctx: Context, url: str, *, max_bytes: int):
        self.ctx, self.url, self.max_bytes = ctx, url, max_bytes
        self.guard = Guard(private=ctx.private)

    @property
    def shown(self) -> str:
        return self.url

    @abstractmethod
    def check(self, credentials: Mapping[str, str]) -> None:
        """Refuse what can never work, before anything is started."""

    @abstractmethod
    def bring(self, work: Path, keys: Mapping[str, str], progress: Progress, total: Total) -> dict[str, str]:
        """Fill `work/tree`, going on from what is in `work`. Returns what to add to the dataset's origin."""


def open_source(ctx: Context, url: str, *, max_bytes: int) -> Source:
    scheme = url.partition("://")[0].lower()
    kinds: dict[str, type[Source]] = {"http": HttpSource, "https": HttpSource, "s3": S3Source, "hf": HubSource}
    if scheme not in kinds or "://" not in url:
        raise InvalidSpec("Datasets are imported from http(s)://…, s3://bucket/prefix or hf://datasets/ORG/NAME.")
    return kinds[scheme](ctx, url, max_bytes=max_bytes)


class HttpSource(Source):
    """One file; an archive becomes what is in it."""

    kind = "http"

    def __init__(self, ctx: Context, url: str, *, max_bytes: int):
        super().__init__(ctx, url, max_bytes=max_bytes)
        self._parsed = self.guard.parse(url)

    @property
    def shown(self) -> str:
        return shown(self._parsed)

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
        # Called by its own name while it is unpacked: that is what tells its kind.
        folder = work / "archive"
        _name(download, folder / fetched.name)
        limits = Limits(max_bytes=self.max_bytes, max_ratio=self.ctx.settings.max_archive_ratio)
        notes = unpack(folder / fetched.name, tree, limits=limits)
        return {"notes": "; ".join(notes)} if notes else {}

    def _refuse_page(self, fetched: Fetched) -> None:
        if fetched.content_type == "text/html" and not fetched.name.lower().endswith((".html", ".htm", ".xhtml")):
            raise Refused(
                f"{self.shown} answered with a web page, not with a file; it may ask to sign in or to confirm."
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
                    # Somebody writes there: look again, and take all of it from the new look.
                    for name in ("plan.json", "parts", "tree"):
                        _remove(work / name)
        return plan.origin

    def _plan(self, bucket: Bucket) -> Plan:
        plan = make_plan(bucket.objects(), self._place.shown, max_bytes=self.max_bytes, origin={})
        if not plan.files:
            raise Refused(f"There is nothing at {self._place.shown}.")
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
    """A second name for it, so that it need not be fetched again if we are interrupted after this."""
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
