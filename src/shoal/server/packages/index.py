"""The simple index (PEP 503) of this server: its own packages, what the client needs, and the wheels an admin put there."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from functools import cache, partial
from html import escape
from pathlib import Path

from shoal import __version__
from shoal.core.errors import NotFound
from shoal.core.install import COMPAT, PACKAGE
from shoal.core.settings import Layout
from shoal.server.packages import installer as program
from shoal.server.packages import wheels

FOLDER = "wheels"
"""Folder of the data directory for further wheels, such as torch for machines without the internet."""
_FILE = re.compile(r"(?P<project>[A-Za-z0-9._]+)-[A-Za-z0-9._+!]+(?:-[A-Za-z0-9._]+){3,4}\.whl")


def projects_page(layout: Layout) -> str:
    """Return the page with a link per project."""
    names = {PACKAGE, COMPAT, *wheels.dependencies(), *_extra(layout)}
    return _page("Packages of this Shoal server", [(f"{name}/", name) for name in sorted(names)])


def project_page(layout: Layout, project: str) -> str:
    """Return the page with a link per file of a project. Links to our own files have a hash, since they are made anyway."""
    files = files_of(layout, project)
    if not files:
        raise NotFound(f"This server has no package '{project}'.", hint=f"It has {PACKAGE} and {COMPAT}: /simple/")
    links = []
    for name in sorted(files):
        is_ours = name in (wheels.file_name(PACKAGE), wheels.file_name(COMPAT))
        links.append((f"{name}#sha256={hashlib.sha256(files[name]()).hexdigest()}" if is_ours else name, name))
    return _page(f"Files of {project}", links)


def file(layout: Layout, project: str, name: str) -> bytes | Path:
    """Return a wheel's bytes, or the path of one that an admin put there."""
    found = files_of(layout, project).get(name)
    if found is not None:
        return found()
    given = _extra(layout).get(wheels.normal(project), {}).get(name)
    if given is None:
        raise NotFound(f"This server has no file '{name}'.", hint=f"/simple/{wheels.normal(project)}/")
    return given


def installer() -> str:
    """Return the installer, with this server's version in it."""
    text = inspect.getsource(program)
    return text.replace('VERSION = ""', f'VERSION = "{__version__}"', 1)


def files_of(layout: Layout, project: str) -> dict[str, Callable[[], bytes]]:
    """Return file name → function that returns its bytes."""
    name = wheels.normal(project)
    found: dict[str, Callable[[], bytes]] = {
        given: path.read_bytes for given, path in _extra(layout).get(name, {}).items()
    }
    if name in (PACKAGE, COMPAT):
        found[wheels.file_name(name)] = partial(_own, name)
    elif (one := wheels.dependencies().get(name)) is not None:
        found[wheels.repacked_name(one)] = partial(wheels.repack, one)
    return found


@cache
def _own(name: str) -> bytes:
    return wheels.pack_own() if name == PACKAGE else wheels.pack_compat()


def _extra(layout: Layout) -> dict[str, dict[str, Path]]:
    """Return normalized project → file name → path of the wheels in the data directory."""
    found: dict[str, dict[str, Path]] = {}
    folder = layout.root / FOLDER
    for path in sorted(folder.glob("*.whl")) if folder.is_dir() else ():
        if (named := _FILE.fullmatch(path.name)) and path.is_file():
            found.setdefault(wheels.normal(named["project"]), {})[path.name] = path
    return found


def _page(title: str, links: list[tuple[str, str]]) -> str:
    rows = "".join(
        f'<a href="{escape(href)}" data-requires-python="&gt;=3.11">{escape(name)}</a><br>\n' for href, name in links
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="pypi:repository-version" content="1.0">'
        f"<title>{escape(title)}</title></head>\n<body><h1>{escape(title)}</h1>\n{rows}</body></html>\n"
    )
