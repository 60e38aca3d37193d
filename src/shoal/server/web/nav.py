"""Links of the side bar. A new part of Shoal adds its line to `_workspace_links` or `_pool_links`."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from shoal.core.people import WorkspaceView
from shoal.server.policy import Access

_PAGES = frozenset({"new"})


@dataclass(frozen=True, slots=True)
class Link:
    title: str
    path: str
    icon: str
    """Name of a symbol in static/img/icons.svg."""
    here: bool = False


@dataclass(frozen=True, slots=True)
class Nav:
    workspace: str | None
    """Name of the workspace whose links are shown. On pages outside any, the one last visited, else the first."""
    workspaces: list[WorkspaceView]
    sections: list[tuple[str, list[Link]]]

    @classmethod
    def of(
        cls, path: str, access: Access | None, mine: list[WorkspaceView], *, last: str = "", admin: bool = False
    ) -> Nav:
        """Return the side bar of a page. `last` is the id of the workspace last visited."""
        near = next((w for w in mine if w.id == last), mine[0] if mine else None)
        name = access.workspace if access else (near.name if near else None)
        ident = access.workspace_id if access else (near.id if near else None)
        sections = [("", [Link("Home", "/", "home"), Link("Workspaces", "/workspaces", "workspaces")])]
        if name is not None and ident is not None:
            sections.append((name, _workspace_links(workspace_path(name, ident))))
        sections += [("Pool", _pool_links()), ("Account", _account_links(admin=admin))]
        return cls(name, mine, [(title, [_mark(link, path) for link in links]) for title, links in sections])


def workspace_path(name: str, ident: str) -> str:
    """Return the path of a workspace, with its name, or its id if the name ends like the JSON form of a page."""
    return f"/w/{quote(ident if name.endswith('.json') else name, safe='')}"


def base_path(access: Access) -> str:
    """Return the path of the current workspace."""
    return workspace_path(access.workspace, access.workspace_id)


def job_path(workspace: str, name: str, ident: str) -> str:
    """Return the path of a job, with its name, or its id if a page has that name or it ends like the JSON form of a page."""
    return f"{workspace}/jobs/{_reference(name, ident)}"


def sweep_path(workspace: str, name: str, ident: str) -> str:
    """Return the path of a sweep; see `job_path`."""
    return f"{workspace}/sweeps/{_reference(name, ident)}"


def swarm_path(workspace: str, name: str, ident: str) -> str:
    """Return the path of a swarm; see `job_path`."""
    return f"{workspace}/swarms/{_reference(name, ident)}"


def _reference(name: str, ident: str) -> str:
    by_id = name in _PAGES or name.endswith(".json")
    return quote(ident if by_id else name, safe="")


def _workspace_links(base: str) -> list[Link]:
    return [
        Link("Runs", f"{base}/runs", "usage"),
        Link("Jobs", f"{base}/jobs", "jobs"),
        Link("Sweeps", f"{base}/sweeps", "sweeps"),
        Link("Swarms", f"{base}/swarms", "swarms"),
        Link("Rented machines", f"{base}/leases", "machines"),
        Link("Datasets", f"{base}/datasets", "datasets"),
        Link("Checkpoints", f"{base}/checkpoints", "checkpoints"),
        Link("Secrets", f"{base}/secrets", "secrets"),
        Link("Members", f"{base}/members", "members"),
        Link("Notifications", f"{base}/notifications", "bell"),
    ]


def _pool_links() -> list[Link]:
    return [Link("Machines", "/machines", "machines"), Link("Queue", "/queue", "queue")]


def _account_links(*, admin: bool) -> list[Link]:
    links = [
        Link("API keys", "/keys", "keys"),
        Link("Usage", "/usage", "usage"),
        Link("Settings", "/settings", "settings"),
    ]
    return [*links, Link("Admin", "/admin", "admin")] if admin else links


def _mark(link: Link, path: str) -> Link:
    here = path == link.path or (link.path != "/" and path.startswith(f"{link.path}/"))
    return Link(link.title, link.path, link.icon, here)
