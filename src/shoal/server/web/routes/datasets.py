"""Datasets: versions, files, previews."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from shoal.core.datasets import DatasetStatus
from shoal.server.artifacts import datasets
from shoal.server.context import Ctx
from shoal.server.policy import Viewer, Worker
from shoal.server.web.files import previews, served
from shoal.server.web.forms import go
from shoal.server.web.nav import workspace_path
from shoal.server.web.render import page

router = APIRouter(prefix="/w/{workspace}/datasets")


@router.get("")
def list_datasets(ctx: Ctx, request: Request, access: Viewer, search: str = "") -> Response:
    """List the datasets, each with its newest version."""
    found = datasets.list_datasets(ctx, access)
    versions: dict[str, int] = {}
    for dataset in found:
        versions[dataset.name] = versions.get(dataset.name, 0) + 1
    newest = {d.name: d for d in reversed(found) if search.casefold() in d.name.casefold()}
    shown = sorted(newest.values(), key=lambda d: d.id, reverse=True)
    data = {"datasets": shown, "versions": versions, "search": search}
    return page(request, ctx, access, "datasets.html", data, part="_datasets.html")


@router.get("/{dataset}")
def dataset(
    ctx: Ctx, request: Request, access: Viewer, dataset: str, folder: str = "", file: str | None = None
) -> Response:
    """Show one version: its files as a tree, and a preview of one of them."""
    found = datasets.get(ctx, access, dataset)
    is_here = found.status == DatasetStatus.AVAILABLE
    folder = file.rpartition("/")[0] if file else folder
    files = previews.of_dataset(ctx, access, found.id) if is_here else None
    data = {
        "dataset": found,
        "versions": [d for d in datasets.list_datasets(ctx, access) if d.name == found.name],
        "tree": previews.tree(files, folder) if files else None,
        "preview": previews.preview(ctx, files, file) if files and file else None,
    }
    return page(request, ctx, access, "dataset.html", data, part="_dataset_files.html")


@router.get("/{dataset}/picture")
def picture(ctx: Ctx, access: Viewer, dataset: str, file: str) -> StreamingResponse:
    """Return a raster image for its preview."""
    return served.picture(ctx, previews.of_dataset(ctx, access, dataset), file)


@router.get("/{dataset}/download")
def download(ctx: Ctx, access: Viewer, dataset: str, file: str) -> StreamingResponse:
    """Download one file of a dataset."""
    return served.file(ctx, previews.of_dataset(ctx, access, dataset), file)


@router.post("/{dataset}/delete")
def delete(ctx: Ctx, request: Request, access: Worker, dataset: str) -> Response:
    """Delete one version (NAME@VERSION) or all versions (NAME)."""
    datasets.delete(ctx, access, dataset)
    return go(request, f"{workspace_path(access.workspace, access.workspace_id)}/datasets")
