"""Schemas of files that people write, served for editors."""

from shoal.core.project_file import json_schema
from shoal.testing.server import AppClient, make_app


def test_anyone_gets_the_schema_of_the_project_file(ctx):
    reply = AppClient(make_app(ctx)).get("/schemas/project-file")
    assert reply.status_code == 200
    assert reply.json() == json_schema() and reply.json()["title"] == "shoal.yaml"


def test_anyone_gets_the_openapi_document_of_all_routes(ctx):
    reply = AppClient(make_app(ctx)).get("/schemas/openapi")
    assert reply.status_code == 200
    paths = reply.json()["paths"]
    assert {"/api/v1/health", "/api/v1/workspaces/{workspace}/jobs"} <= set(paths)
