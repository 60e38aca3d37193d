"""Notebooks as sources: fetched from a URL or uploaded, converted, and stored as script, requirements and receipt."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from urllib.parse import unquote

import httpx
from pydantic import ValidationError

from shoal.core.artifacts import FileEntry
from shoal.core.errors import InvalidSpec, NotFound, Refused, TimedOut
from shoal.core.notebooks import RECEIPT_SUFFIX, NotebookFetch, NotebookSource, Receipt
from shoal.notebooks import REQUIREMENTS, Conversion, convert
from shoal.server import lookup
from shoal.server.artifacts import sources
from shoal.server.artifacts.imports.fetch import Fetcher
from shoal.server.artifacts.imports.http_answers import BadStatus
from shoal.server.context import Context
from shoal.server.git import service as git
from shoal.server.notebooks.urls import Place, find_notebook
from shoal.server.policy import Access
from shoal.server.ssrf_guard import Guard, Stopped, display_url

MAX_BYTES = 64 << 20
"""Largest notebook in bytes, outputs included."""
FETCH_S = 120.0
_STALL_S = 20.0
_MAX_REQUIREMENTS = 1 << 20


def from_url(ctx: Context, access: Access, request: NotebookFetch) -> NotebookSource:
    """Fetch a notebook, convert it and store the result as a source. The request's token is used once and never stored."""
    url = Guard(private=ctx.private).parse(request.url)
    if request.token is not None and (not request.token.isprintable() or " " in request.token.strip()):
        raise InvalidSpec("A token is one line without spaces or control characters.")
    given = (request.token or "").strip()

    def token_for(host: str) -> str | None:
        # Stored tokens are sent over https only; a token given in the request is sent to any URL the person chose.
        return given or (git.token_for(ctx, access, host) if url.scheme == "https" else None)

    data, title = _fetch(ctx, find_notebook(str(url), token_for))
    conversion = convert(data, title, entry_cell=request.entry_cell)
    chosen = {"entry_cell": request.entry_cell} if request.entry_cell else {}
    origin = {"kind": "notebook", "url": _recorded(url)} | chosen
    return _keep(ctx, access, conversion, origin)


def in_source(ctx: Context, access: Access, source_id: str, path: str) -> NotebookSource:
    """Store a copy of a source in which the script, requirements and receipt of the notebook at `path` stand beside it."""
    with ctx.db.read() as session:
        row = lookup.source(session, access, source_id)
    files = {file.path: file for file in ctx.store.get_manifest(row.manifest_id).files}
    if path not in files or not path.endswith(".ipynb"):
        raise NotFound(f"There is no notebook '{path}' in that code.")
    folder, name = path.rpartition("/")[::2]
    inside = {other.removeprefix(f"{folder}/").partition("/")[0] for other in files}
    conversion = convert(_content(ctx, files[path], MAX_BYTES), name, beside=inside)
    earlier = _content(ctx, files[REQUIREMENTS], _MAX_REQUIREMENTS) if REQUIREMENTS in files else b""
    origin = row.origin | {"notebook": path}
    if row.origin.get("kind") == "file":
        origin["kind"] = "notebook"
    return _keep(ctx, access, conversion, origin, folder, earlier.decode("utf-8-sig", "replace"), list(files.values()))


def _keep(
    ctx: Context,
    access: Access,
    conversion: Conversion,
    origin: dict[str, str],
    folder: str = "",
    earlier: str = "",
    others: Sequence[FileEntry] = (),
) -> NotebookSource:
    """Store a converted notebook as a source.

    `folder`: where its files go. `earlier`: the source's requirements so far. `others`: files that are kept beside it.
    """
    receipt, entry = conversion.receipt, conversion.entry(folder)
    if not receipt.is_runnable:
        raise InvalidSpec(f"There is no code in {receipt.notebook} that a job could run.")
    made = sources.from_texts(ctx, access, conversion.files(earlier, folder), origin | {"script": entry}, others)
    return NotebookSource(source=made, entry=entry, receipt=receipt)


def get_receipt(ctx: Context, access: Access, source_id: str) -> Receipt:
    found = receipt_of(ctx, access, source_id)
    if found is None:
        raise NotFound("That code was not made from a notebook, so there is no receipt.")
    return found


def receipt_of(ctx: Context, access: Access, source_id: str) -> Receipt | None:
    """Return the receipt among a source's files; None if the source was not made from a notebook."""
    with ctx.db.read() as session:
        row = lookup.source(session, access, source_id)
    if row.origin.get("kind") != "notebook" and "notebook" not in row.origin:
        return None
    files = ctx.store.get_manifest(row.manifest_id).files
    wanted = str(row.origin.get("script", "")).removesuffix(".py") + RECEIPT_SUFFIX
    entry = next((file for file in files if file.path.endswith(wanted)), None)
    try:
        return Receipt.model_validate_json(_content(ctx, entry, MAX_BYTES)) if entry else None
    except (ValidationError, InvalidSpec):  # a file of the user's own with that name
        return None


def _content(ctx: Context, file: FileEntry, most: int) -> bytes:
    if file.size > most:
        raise InvalidSpec(f"{file.path} has {file.size >> 20} MiB; clear its outputs and try again.")
    return b"".join(ctx.store.get(chunk.hash) for chunk in file.chunks)


def _fetch(ctx: Context, place: Place) -> tuple[bytes, str]:
    with git.slot(ctx):
        return _fetch_now(ctx, place)


def _fetch_now(ctx: Context, place: Place) -> tuple[bytes, str]:
    until = time.monotonic() + FETCH_S
    guard = Guard(private=ctx.private)
    with Fetcher(
        guard,
        max_bytes=MAX_BYTES,
        stop=lambda: ctx.live.closing or time.monotonic() > until,
        stall_s=_STALL_S,
    ) as fetching:
        try:
            place = _in_gist(fetching, place) if place.is_gist else place
            data, headers = _read(fetching, place)
        except Stopped:
            raise TimedOut(f"The notebook did not arrive within {FETCH_S:.0f} seconds.") from None
        except BadStatus as error:
            if error.status in (401, 403, 404):
                raise Refused(f"{error.message} It may not be public.", hint=place.private_hint) from None
            raise
    if data[:512].lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
        where = display_url(httpx.URL(place.url))
        raise Refused(f"{where} answered with a web page; it may ask to sign in.", hint=place.private_hint)
    return data, _named(headers, place.title)


def _read(fetching: Fetcher, place: Place) -> tuple[bytes, httpx.Headers]:
    try:
        return fetching.read(place.url, headers=place.headers)
    except BadStatus as error:
        if error.status != 404 or place.otherwise is None:
            raise
        return fetching.read(place.otherwise)


def _in_gist(fetching: Fetcher, place: Place) -> Place:
    """Return the first notebook among a gist's files."""
    body, _ = fetching.read(place.url, headers=place.headers)
    try:
        files = list(json.loads(body)["files"].values())
        found = next(f for f in files if str(f["filename"]).endswith(".ipynb"))
        return Place(str(found["raw_url"]), str(found["filename"]), private_hint=place.private_hint)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(f"{place.url} did not answer like a gist.") from None
    except StopIteration:
        raise Refused("There is no notebook (.ipynb) in that gist.") from None


def _named(headers: httpx.Headers, title: str) -> str:
    """Return the file name from the response's headers, else `title`. Google Drive gives the name only there."""
    found = re.search(r"filename\*=UTF-8''([^;]+)|filename=\"?([^\";]+)", headers.get("content-disposition", ""), re.I)
    name = unquote(found[1] or found[2]) if found else title
    plain = "".join(c for c in name.replace("\\", "/").rpartition("/")[2] if c.isprintable())[:200]
    return plain if plain.lower().endswith(".ipynb") else title


def _recorded(url: httpx.URL) -> str:
    """Return the URL to store with the job: without its query, which may hold a token, except for the file id of Drive."""
    kept = [(k, v) for k, v in url.params.multi_items() if k in ("id", "usp")]
    return str(url.copy_with(query=None).copy_merge_params(dict(kept))) if kept else display_url(url)
