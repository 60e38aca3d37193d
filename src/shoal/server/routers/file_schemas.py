"""JSON schemas: of files that people write, for their editors, and of this API, for tools that generate clients or tests."""

from __future__ import annotations

import functools
from typing import Any

from fastapi import Request

from shoal.core.project_file import json_schema
from shoal.server.policy import Anyone
from shoal.server.routers import api_router

router = api_router("/schemas", tags=["schemas"])
_project_file = functools.cache(json_schema)


@router.get("/project-file", dependencies=[Anyone])
async def project_file() -> dict[str, Any]:
    """Return the JSON schema of the project file, shoal.yaml, by which editors complete and check it."""
    return _project_file()


@router.get("/openapi", dependencies=[Anyone])
def openapi(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document of this API: all routes with their parameters, bodies and answers."""
    found: dict[str, Any] = request.app.openapi()  # FastAPI keeps it after the first call
    return found
