"""`shoal console`: the server's pages in a browser, signed in without a password."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from shoal.cli._output import out
from shoal.cli._session import connect


def console(*, browser: Annotated[bool, Parameter(negative="--no-browser")] = True) -> None:
    """Open the console in your browser.

    Prints a link that signs you in once, within two minutes, and opens it.
    Without a server, the private local one is started.

    For example:

      shoal console
      shoal console --no-browser

    Parameters
    ----------
    browser
        Open the link, too (default); --no-browser only prints it.
    """
    with connect() as client:
        link = client.url + client.auth.console_path()
    show_link(link, browser=browser)


def show_link(link: str, *, browser: bool = True) -> None:
    """On stdout, and in a browser where there is one."""
    out.show({"url": link}, lambda: out.line(link))
    if browser and not out.json and not _open(link):
        out.say("No browser could be opened here: open the link yourself. On another machine, forward the port first.")
    else:
        out.dim("The link works once, within two minutes.")


def _open(link: str) -> bool:
    import os
    import webbrowser

    # Without a display, browsers of the terminal would take the screen over.
    if (
        not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
        and os.uname().sysname != "Darwin"
    ):
        return False
    try:
        return webbrowser.open(link)
    except webbrowser.Error:
        return False
