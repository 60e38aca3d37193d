"""`shoal version`."""

from __future__ import annotations

from typing import Any

from shoal import __version__
from shoal.cli.shared.output import out
from shoal.core.settings import Layout


def version() -> None:
    """Show the version of this program and of the server it would use.

    For example:

      shoal version
      shoal version --json
    """
    import platform

    found: dict[str, Any] = {"client": __version__, "server": _server_version(), "python": platform.python_version()}
    out.show(
        found,
        lambda: out.fields(
            [("shoal", __version__), ("server", found["server"] or "not running"), ("python", found["python"])]
        ),
    )


def _server_version() -> str | None:
    """Return the version of the configured or running server, or None. Never starts a server for it."""
    from shoal.cli.shared.session import session
    from shoal.client import Client
    from shoal.client.config import find_target
    from shoal.client.local import running_server
    from shoal.core.errors import ShoalError

    layout = Layout()
    record = running_server(layout)
    url = find_target(layout, url=session.url).url or (record.url if record else None)
    if url is None:
        return None
    try:
        with Client(url) as client:
            return str(client.health().get("version"))
    except ShoalError:
        return None
