"""Datasets: announce, commit, import, look, fetch, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from shoal.core.datasets import DatasetBegin, DatasetCommitted, DatasetFail, DatasetImport, DatasetView, FileView
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.routers import api_router
from shoal.server.services import datasets, imports
from shoal.store.manifest import load_manifest

router = api_router("/workspaces/{workspace}/datasets", tags=["datasets"])


@router.post("", status_code=201)
def begin(ctx: Ctx, access: Worker, request: DatasetBegin) -> DatasetView:
    """Announce a new version; upload its chunks, then commit its manifest."""
    return datasets.begin(ctx, access, request)


@router.post("/import", status_code=201)
def import_dataset(ctx: Ctx, access: Worker, request: DatasetImport) -> DatasetView:
    """Have the server fetch a new version from http(s)://, s3:// or hf://; ask for it by id to see how far it is."""
    return imports.begin(ctx, access, request)


@router.put("/{dataset}/manifest")
async def commit(ctx: Ctx, access: Worker, dataset: str, request: Request) -> DatasetCommitted:
    """Commit an announced version (by id); the body is the manifest's JSON. `missing` lists chunks to upload first."""
    body = await request.body()
    return await run_in_threadpool(lambda: datasets.commit(ctx, access, dataset, load_manifest(body)))


@router.post("/{dataset}/fail", status_code=204)
def fail(ctx: Ctx, access: Worker, dataset: str, request: DatasetFail) -> None:
    """Give an announced version up (by id), saying why."""
    datasets.fail(ctx, access, dataset, request.error)


@router.get("")
def list_datasets(ctx: Ctx, access: Viewer) -> list[DatasetView]:
    """Every version of every dataset, newest first."""
    return datasets.list_datasets(ctx, access)


@router.get("/{dataset}")
def inspect(ctx: Ctx, access: Viewer, dataset: str) -> DatasetView:
    """One version: NAME (the newest), NAME@VERSION or id."""
    return datasets.get(ctx, access, dataset)


@router.get("/{dataset}/manifest")
def manifest(ctx: Ctx, access: Viewer, dataset: str) -> Response:
    """The manifest: files and the chunks they are made of."""
    return Response(datasets.manifest(ctx, access, dataset), media_type="application/json")


@router.get("/{dataset}/files")
def files(
    ctx: Ctx, access: Viewer, dataset: str, after: str = "", limit: Annotated[int, Query(ge=1, le=10_000)] = 1000
) -> list[FileView]:
    """Its files by path, a page at a time."""
    return datasets.files(ctx, access, dataset, after=after, limit=limit)


@router.delete("/{dataset}")
def delete(ctx: Ctx, access: Worker, dataset: str) -> dict[str, int]:
    """Remove one version (NAME@VERSION) or all (NAME)."""
    return {"deleted": datasets.delete(ctx, access, dataset)}
