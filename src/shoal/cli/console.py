"""`shoal console`: open the web console in a browser, signed in without a password."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect


def console(*, browser: Annotated[bool, Parameter(negative="--no-browser")] = True) -> None:
    """Open the console in your browser.

    Prints a link that signs you in, and opens it. The link works once, within
    two minutes. Without a configured server, the private local one is started.

    For example:

      shoal console
      shoal console --no-browser

    Parameters
    ----------
    browser
        Also open the link (default); --no-browser only prints it.
    """
    with connect() as client:
        link = client.url + client.auth.console_path()
    show_link(link, browser=browser)


def show_link(link: str, *, browser: bool = True) -> None:
    """Print the link on stdout, and open it if there is a browser."""
    out.show({"url": link}, lambda: out.line(link))
    if browser and not out.json and not _open(link):
        out.info("No browser could be opened here: open the link yourself. On another machine, forward the port first.")
    else:
        out.dim("The link works once, within two minutes.")


def _open(link: str) -> bool:
    import os
    import sys
    import webbrowser

    # Without a display, `webbrowser` may start a text browser, which would take over the terminal.
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")) and sys.platform not in (
        "darwin",
        "win32",
    ):
        return False
    try:
        return webbrowser.open(link)
    except webbrowser.Error:
        return False
