"""Datasets: create, commit, import, inspect, fetch, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from shoal.core.datasets import DatasetBegin, DatasetCommitted, DatasetFail, DatasetImport, DatasetView, FileView
from shoal.server.artifacts import datasets
from shoal.server.artifacts.imports import service as imports
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.store.manifest import load_manifest

router = api_router("/workspaces/{workspace}/datasets", tags=["datasets"])


@router.post("", status_code=201)
def begin(ctx: Ctx, access: Worker, request: DatasetBegin) -> DatasetView:
    """Begin a new version of a dataset. Then upload its chunks and commit its manifest."""
    return datasets.begin(ctx, access, request)


@router.post("/import", status_code=201)
def import_dataset(ctx: Ctx, access: Worker, request: DatasetImport) -> DatasetView:
    """Let the server import a new version from http(s)://, s3:// or hf://. Poll the version by its id to see the
    progress."""
    return imports.begin(ctx, access, request)


@router.put("/{dataset}/manifest")
async def commit(ctx: Ctx, access: Worker, dataset: str, request: Request) -> DatasetCommitted:
    """Commit a version that was begun, by its id. The body is the manifest as JSON; `missing` lists chunks to upload
    first."""
    body = await request.body()
    return await run_in_threadpool(lambda: datasets.commit(ctx, access, dataset, load_manifest(body)))


@router.post("/{dataset}/fail", status_code=204)
def fail(ctx: Ctx, access: Worker, dataset: str, request: DatasetFail) -> None:
    """Mark a version that was begun (by its id) as failed, with the reason."""
    datasets.fail(ctx, access, dataset, request.error)


@router.get("")
def list_datasets(ctx: Ctx, access: Viewer) -> list[DatasetView]:
    """List every version of every dataset, newest first."""
    return datasets.list_datasets(ctx, access)


@router.get("/{dataset}")
def inspect(ctx: Ctx, access: Viewer, dataset: str) -> DatasetView:
    """Return one version of a dataset, by NAME (the newest), NAME@VERSION or id."""
    return datasets.get(ctx, access, dataset)


@router.get("/{dataset}/manifest")
def manifest(ctx: Ctx, access: Viewer, dataset: str) -> Response:
    """Return the manifest of a dataset version: its files and their chunks."""
    return Response(datasets.manifest(ctx, access, dataset), media_type="application/json")


@router.get("/{dataset}/files")
def files(
    ctx: Ctx, access: Viewer, dataset: str, after: str = "", limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> list[FileView]:
    """List the files of a dataset version by path, one page at a time; `after` is the last path of the previous page."""
    return datasets.files(ctx, access, dataset, after=after, limit=limit)


@router.delete("/{dataset}")
def delete(ctx: Ctx, access: Worker, dataset: str) -> dict[str, int]:
    """Delete one version (NAME@VERSION) or all versions (NAME)."""
    return {"deleted": datasets.delete(ctx, access, dataset)}
