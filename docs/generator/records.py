"""docs/reference/records.md: the records of a training script."""

from __future__ import annotations

from generator._markdown import prose, table
from shoal.core.records import AGENT_ONLY, KEPT, RECORDS, SERIES, Kind


def page() -> str:
    rows = [(f"`{kind}`", kind.name.lower(), prose(record.__doc__ or ""), _fields(kind), _reader(kind))
            for kind, record in RECORDS.items()]  # fmt: skip
    return f"""# Records

The SDK writes what happens in a training script to a file per rank, `spool/rank-0.jsonl` in the run's directory: one JSON
object per line, with the time `t` (seconds since 1970), the line number `n`, the kind `k` and the fields of that kind. The
agent follows the file, acts on some records and sends the others to the server; `shoal sync` does the same for a run that
was trained without a server. NaN and infinity are written as the strings `"nan"`, `"inf"` and `"-inf"`.

{table(["`k`", "Kind", "Meaning", "Fields", "Where it goes"], rows)}
Kinds and field names are stable. Readers ignore fields and kinds they do not know.
"""


def _fields(kind: Kind) -> str:
    record = RECORDS[kind]
    shown = ((record.keys.get(name, name), name.replace("_", " ")) for name in record.names())
    return ", ".join(f"`{key}`" if key == name else f"`{key}` ({name})" for key, name in shown)


def _reader(kind: Kind) -> str:
    if kind in SERIES:
        return f"points of the curves of axis `{SERIES[kind]}`"
    if kind in KEPT:
        return "kept by the server as it is"
    assert kind in AGENT_ONLY  # noqa: S101
    return {Kind.PROGRESS: "the agent's next heartbeat", Kind.DRILL: "the agent"}.get(kind, "uploaded by the agent")
