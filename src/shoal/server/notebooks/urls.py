"""Translates the URL of a page that shows a notebook (Colab, GitHub, gists, nbviewer, Jupyter) to that of the notebook file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, unquote, urlsplit

_DRIVE_ID = re.compile(r"[\w-]{10,}")
_CONNECT = "shoal code-registry connect --host github.com"
_JUPYTER = re.compile(r"^(.*?)/(?:lab/tree|lab/workspaces/[^/]+/tree|notebooks|tree|doc/tree|edit)/(.+\.ipynb)$")


@dataclass(frozen=True, slots=True)
class Place:
    """Address from which a notebook is fetched."""

    url: str
    """URL of the file; for a gist, the URL that lists its files."""
    title: str = "notebook.ipynb"
    headers: dict[str, str] = field(default_factory=dict)
    is_gist: bool = False
    otherwise: str | None = None
    """URL to try if `url` does not exist: an ordinary folder can look like one of Jupyter's pages."""
    private_hint: str = "Give a token that may read it: --token-stdin < FILE"


Tokens = Callable[[str], str | None]
"""Function host → token, or None. Called only for the host that will receive the token, or the host that issued it."""


def find_notebook(url: str, tokens: Tokens) -> Place:
    """Return where to fetch a notebook; a URL of an unknown kind is taken to be the file itself."""
    parts = urlsplit(url)
    finder = _HOSTS.get((parts.hostname or "").lower().removeprefix("www."))
    place = finder(parts.path, parse_qs(parts.query), tokens) if finder else None
    return place or _jupyter(url, tokens) or Place(_on_forge(url), _title(parts.path), _bearer(tokens(parts.netloc)))


def _colab(path: str, query: dict[str, list[str]], tokens: Tokens) -> Place | None:
    kind, _, rest = path.lstrip("/").partition("/")
    if kind == "drive":
        return _drive(rest.partition("/")[0], tokens)
    if kind == "github":
        return _github(f"/{rest}", query, tokens)
    return _gist(f"/{rest}", query, tokens) if kind == "gist" else None


def _drive_page(path: str, query: dict[str, list[str]], tokens: Tokens) -> Place | None:
    found = re.match(r"/file/d/([^/]+)", path)
    return _drive(found[1] if found else next(iter(query.get("id", [])), ""), tokens)


def _drive(ident: str, tokens: Tokens) -> Place | None:
    if not _DRIVE_ID.fullmatch(ident):
        return None
    hint = "Share it with anyone who has the link, or give your own token: --token-stdin < FILE"
    title = f"colab-{ident[:8]}.ipynb"
    if token := tokens("drive.google.com"):
        return Place(
            f"https://www.googleapis.com/drive/v3/files/{ident}?alt=media", title, _bearer(token), private_hint=hint
        )
    return Place(f"https://drive.google.com/uc?export=download&id={ident}", title, private_hint=hint)


def _github(path: str, query: dict[str, list[str]], tokens: Tokens) -> Place | None:
    found = re.match(r"/([^/]+)/([^/]+)/(?:blob|raw)/(.+)", path)
    if not found:
        return None
    raw = f"https://raw.githubusercontent.com/{found[1]}/{found[2]}/{found[3]}"
    return Place(raw, _title(path), _bearer(tokens("github.com")), private_hint=_CONNECT)


def _gist(path: str, query: dict[str, list[str]], tokens: Tokens) -> Place | None:
    found = re.match(r"/(?:[^/]+/)?([0-9a-f]{6,64})(?:/|$)", path)
    if not found or "/raw" in path:
        return None
    headers = {"Accept": "application/vnd.github+json"} | _bearer(tokens("github.com"))
    return Place(f"https://api.github.com/gists/{found[1]}", headers=headers, is_gist=True, private_hint=_CONNECT)


def _nbviewer(path: str, query: dict[str, list[str]], tokens: Tokens) -> Place | None:
    kind, _, rest = path.lstrip("/").partition("/")
    if kind in ("url", "urls"):
        return Place(f"{'https' if kind == 'urls' else 'http'}://{rest}", _title(path))
    if kind == "github":
        return _github(f"/{rest}", query, tokens)
    return _gist(f"/{rest}", query, tokens) if kind == "gist" else None


def _jupyter(url: str, tokens: Tokens) -> Place | None:
    """Return the file behind a page of a Jupyter server. A token in the URL is moved to a header, so it is not recorded."""
    parts = urlsplit(url)
    found = _JUPYTER.match(parts.path)
    if not found:
        return None
    own = tokens(parts.netloc) or next(iter(parse_qs(parts.query).get("token", [])), None)
    file = f"{parts.scheme}://{parts.netloc}{found[1]}/files/{found[2]}"
    return Place(file, _title(found[2]), {"Authorization": f"token {own}"} if own else {}, otherwise=url)


def _on_forge(url: str) -> str:
    """Return the download URL for a file's page on GitLab or the Hugging Face Hub; other URLs are returned unchanged."""
    parts = urlsplit(url)
    path = parts.path.replace("/-/blob/", "/-/raw/", 1)
    if (parts.hostname or "").endswith("huggingface.co"):
        path = path.replace("/blob/", "/resolve/", 1)
    return url if path == parts.path else f"{parts.scheme}://{parts.netloc}{quote(path, safe='/%:@')}"


_HOSTS: dict[str, Callable[[str, dict[str, list[str]], Tokens], Place | None]] = {
    "colab.research.google.com": _colab,
    "drive.google.com": _drive_page,
    "github.com": _github,
    "gist.github.com": _gist,
    "nbviewer.org": _nbviewer,
    "nbviewer.jupyter.org": _nbviewer,
}


def _bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _title(path: str) -> str:
    last = unquote(path).rstrip("/").rpartition("/")[2]
    return last if last.lower().endswith(".ipynb") else f"{last or 'notebook'}.ipynb"
