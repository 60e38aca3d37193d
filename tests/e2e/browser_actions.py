"""Actions of people in a browser: open the link, drop files."""

from __future__ import annotations

from typing import Any

from shoal.testing.live import LiveServer

_DROP = """({ name, data, size }) => {
  const sent = new DataTransfer();
  sent.items.add(new File([data ? new Uint8Array(data) : new Uint8Array(size)], name));
  const drop = document.getElementById("drop");
  for (const kind of ["dragover", "drop"]) drop.dispatchEvent(new DragEvent(kind, { dataTransfer: sent, bubbles: true, cancelable: true }));
}"""


def enter(server: LiveServer, page: Any) -> str:
    """Sign in with the one-time link; return the server's address."""
    link: str = server.json("console")["url"]
    page.goto(link)
    return link.partition("/enter/")[0]


def drop(page: Any, name: str, data: bytes = b"", *, size: int = 0) -> None:
    """A file with this content, or with so many zeros."""
    page.evaluate(_DROP, {"name": name, "data": list(data) or None, "size": size})
