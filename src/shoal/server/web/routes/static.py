"""Style sheet, scripts and images: files of the package, open to everyone."""

from __future__ import annotations

import functools
import mimetypes

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from shoal.core.errors import NotFound
from shoal.server.policy import Anyone
from shoal.server.web.render import STATIC, asset_version

router = APIRouter()


@router.get("/static/{path:path}", dependencies=[Anyone])
async def static(request: Request, path: str, v: str = "") -> Response:
    """Return a static file of the console from memory: a page requests eight of them at once."""
    body = _contents(path)
    version = asset_version(path)
    headers = {
        "ETag": f'"{version}"',
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "public, max-age=31536000, immutable" if v == version else "no-cache",
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=mimetypes.guess_type(path)[0] or "text/plain", headers=headers)


@functools.lru_cache(maxsize=200)
def _contents(path: str) -> bytes:
    file = (STATIC / path).resolve()
    if not file.is_relative_to(STATIC.resolve()) or not file.is_file() or file.name.startswith("."):
        raise NotFound(f"There is no file '{path}'.")
    return file.read_bytes()


@router.get("/favicon.ico", dependencies=[Anyone])
def favicon() -> Response:
    """Return the icon that browsers request by themselves."""
    return FileResponse(STATIC / "img/favicon.svg", media_type="image/svg+xml")
