"""Responses with files of the store: images are displayed by the browser, all other files are only downloaded."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import StreamingResponse

from shoal.server.context import Context
from shoal.server.web.files import previews
from shoal.server.web.render import guarded


def picture(ctx: Context, files: previews.Files, path: str) -> StreamingResponse:
    media, body = previews.picture(ctx, files, path)
    return StreamingResponse(body, media_type=media, headers=guarded("inline"))


def file(ctx: Context, files: previews.Files, path: str) -> StreamingResponse:
    entry, body = previews.whole(ctx, files, path)
    name = quote(entry.path.rpartition("/")[2], safe="")
    headers = guarded(f"attachment; filename*=UTF-8''{name}") | {"Content-Length": str(entry.size)}
    return StreamingResponse(body, media_type="application/octet-stream", headers=headers)
