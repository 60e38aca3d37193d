"""Server-sent events, as far as Shoal uses them: `event`, `id` and one-line `data`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    kind: str
    data: bytes
    id: str


class SseParser:
    """Parser of server-sent events: `feed` takes bytes and returns complete events.

    Events that a broken connection leaves incomplete are never returned. Lines end at a line feed only: JSON escapes line
    feeds, but not the other characters (such as U+2028) at which text-mode readers split lines.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[bytes, bytes] = {}

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = [self._parse_line(line.removesuffix(b"\r")) for line in lines]
        return [event for event in events if event is not None]

    def _parse_line(self, line: bytes) -> ServerEvent | None:
        if not line:
            fields, self._fields = self._fields, {}
            if not fields:
                return None
            kind, event_id = fields.get(b"event", b"message"), fields.get(b"id", b"")
            return ServerEvent(kind.decode(), fields.get(b"data", b""), event_id.decode())
        name, _, value = line.partition(b":")
        if name:  # a line that starts with a colon is a comment, sent to keep the connection open
            value = value.removeprefix(b" ")
            repeated = name == b"data" and name in self._fields
            self._fields[name] = self._fields[name] + b"\n" + value if repeated else value
        return None
