"""Bodies and headers of webhooks. Pure: no network, no database."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

USER_AGENT = "Shoal-Notifications/1"
_MAX_TEXT = 1500


def request(
    kind: str, notice: dict[str, Any], base_url: str, secret: str, delivery: str, at: int
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of one delivery.

    A webhook is signed: `Shoal-Signature` is `v1=` and the hexadecimal HMAC-SHA256 of `TIMESTAMP.BODY`, with `Shoal-Timestamp` as
    the timestamp. `Shoal-Delivery` is the same for every try, so that a receiver can ignore repetitions.
    """
    url = base_url.rstrip("/") + str(notice["path"])
    title, text = str(notice["title"]), str(notice["text"])[:_MAX_TEXT]
    headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT}
    if kind == "slack":
        body: dict[str, Any] = {"text": f"*{_slack(title)}*\n{_slack(text)}\n<{url}|Open in Shoal>"}
    elif kind == "discord":
        body = {"content": f"**{title}**\n{text}\n{url}"[:2000], "allowed_mentions": {"parse": []}}
    else:
        body = {"id": delivery, "url": url, **notice}
    data = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    if kind == "webhook":
        headers |= {
            "Shoal-Delivery": delivery, "Shoal-Event": str(notice["kind"]), "Shoal-Timestamp": str(at),
            "Shoal-Signature": f"v1={signature(secret, at, data)}",
        }  # fmt: skip
    return data, headers


def signature(secret: str, at: int, body: bytes) -> str:
    """Return the signature that a receiver compares."""
    return hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()


def _slack(text: str) -> str:
    """Escape what Slack would read as a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
