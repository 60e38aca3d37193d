"""Default deny: a route without exactly one policy stops the app from starting."""

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from shoal.core.people import Role, Scope
from shoal.server import app as app_module
from shoal.server.app import create_app
from shoal.server.policy import Anyone, Reader, Viewer, check_app
from shoal.server.routers import api_router
from shoal.testing.server import AppClient, add_key, add_member


def app_with(router):
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.include_router(router, prefix="/api/v1")
    return app


def test_a_route_with_one_policy_is_fine():
    router = APIRouter()
    router.get("/a", dependencies=[Anyone])(lambda: 1)

    @router.get("/b")
    def b(who: Reader):
        return 1

    check_app(app_with(router))


def test_a_route_without_a_policy_stops_the_app():
    router = APIRouter()
    router.get("/open")(lambda: 1)
    with pytest.raises(RuntimeError, match="/api/v1/open"):
        check_app(app_with(router))


def test_a_route_with_two_policies_stops_the_app():
    router = APIRouter()

    @router.get("/{workspace}")
    def both(who: Reader, access: Viewer):
        return 1

    with pytest.raises(RuntimeError, match="exactly one policy"):
        check_app(app_with(router))


def test_a_router_inside_a_router_is_looked_into():
    inner, outer = APIRouter(), APIRouter()
    inner.get("/open")(lambda: 1)
    outer.include_router(inner, prefix="/deep")
    with pytest.raises(RuntimeError, match="/api/v1/deep/open"):
        check_app(app_with(outer))


@pytest.mark.parametrize("kind", ["starlette route", "mount", "docs"])
def test_routes_that_cannot_have_a_policy_stop_the_app(kind, tmp_path):
    app = FastAPI() if kind == "docs" else app_with(APIRouter())
    if kind == "starlette route":
        app.router.routes.append(Route("/raw", lambda _: PlainTextResponse("x")))
    if kind == "mount":
        app.mount("/files", StaticFiles(directory=tmp_path))
    with pytest.raises(RuntimeError):
        check_app(app)


def test_create_app_itself_refuses_a_router_with_an_open_route(ctx, monkeypatch):
    router = api_router(tags=["open"])
    router.get("/open")(lambda: 1)
    monkeypatch.setattr(app_module.health, "router", router)
    with pytest.raises(RuntimeError, match="/api/v1/open"):
        create_app(ctx)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic x", "Bearer x y", "bearer", "shoal_x", "Bearer \x80"]
)
def test_malformed_headers_are_strangers(app, header):
    answer = AppClient(app, headers={"Authorization": header.encode("latin-1")}).get("/auth/me")
    assert answer.status_code == 401


def test_a_key_works_only_as_a_bearer_not_as_a_cookie_or_parameter(app, anna):
    assert AppClient(app, headers={"Cookie": f"token={anna.key}"}).get("/auth/me").status_code == 401
    assert AppClient(app).get(f"/auth/me?token={anna.key}").status_code == 401
    assert AppClient(app, headers={"Authorization": f"bearer {anna.key}"}).get("/auth/me").status_code == 200


def test_a_wide_key_in_a_narrow_role_stays_narrow_and_the_other_way_round(ctx, app, anna, berta):
    path = f"/workspaces/{anna.workspace_id}/secrets"
    add_member(ctx, anna.workspace_id, berta, Role.VIEWER)
    assert AppClient(app, berta.key).get(path).status_code == 200
    wide = AppClient(app, berta.key).put(path, {"name": "x", "value": "y"})
    assert wide.json()["error"]["message"].startswith("This needs the role 'member'")
    narrow = AppClient(app, add_key(ctx, anna, "r", scopes=[Scope.READ])).put(path, {"name": "x", "value": "y"})
    assert narrow.json()["error"]["message"] == "This key does not have the scope 'write'."


def test_text_that_is_not_unicode_is_bad_input_not_a_bug(as_anna):
    for path, body in (
        ("/workspaces/default/secrets", b'{"name": "x", "value": "\\ud800"}'),
        ("/workspaces/default/members", b'{"email": "\\ud800@x.org", "role": "viewer"}'),
    ):
        answer = as_anna.request("PUT", path, content=body)
        assert answer.status_code == 422, answer.text
    assert as_anna.delete("/keys/%ff%fe").status_code == 404
    assert as_anna.delete("/keys/%00").status_code == 404


def test_an_agent_of_another_instance_is_told_so_before_anything_else(ctx, app):
    ctx.instance = "inst_ours"
    meant = AppClient(app, headers={"X-Shoal-Agent": "unknown", "X-Shoal-Instance": "inst_other"})
    refused = meant.post("/agent/beat", {"state": "running"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (421, "wrong_instance")
    ours = AppClient(app, headers={"X-Shoal-Agent": "unknown", "X-Shoal-Instance": "inst_ours"})
    assert ours.post("/agent/beat", {"state": "running"}).status_code == 401
