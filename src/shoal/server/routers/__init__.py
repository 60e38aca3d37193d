"""Routes: authorise, one service call, return. No SQL here."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

PREFIX = "/api/v1"


def api_router(prefix: str = "", *, tags: list[str]) -> APIRouter:
    """Return a router for a part of the API; `prefix` is below `/api/v1`."""
    return APIRouter(prefix=PREFIX + prefix, tags=list(tags))


def add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """Add the routes of routers to an app as they are.

    `FastAPI.include_router` keeps every router as one route that matches each of its routes in turn and builds them a second
    time: with two hundred routes, to find the right one then takes longer than most requests.
    """
    for router in routers:
        app.router.routes.extend(router.routes)
