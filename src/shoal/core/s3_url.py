"""The one grammar of S3 URLs: `s3://BUCKET/PREFIX[?endpoint=URL&region=NAME]`. Keys never stand in a URL."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from shoal.core.errors import InvalidSpec

GRAMMAR = "s3://bucket/prefix[?endpoint=…&region=…]"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_MARK = re.compile(r"\?")
_QUERY = re.compile(r"\?(?=(?:endpoint|region)=)")


class S3Url(NamedTuple):
    """Parts of an S3 URL."""

    bucket: str
    prefix: str
    endpoint: str | None = None
    """URL of the service; None: AWS_ENDPOINT_URL, or Amazon's own."""
    region: str | None = None

    @property
    def display_url(self) -> str:
        """The URL without its options."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def options(self) -> dict[str, str]:
        """The given ones of `endpoint` and `region`."""
        found = {"endpoint": self.endpoint, "region": self.region}
        return {name: value for name, value in found.items() if value is not None}


def parse_s3_url(
    text: str, *, keys: str = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", is_pattern: bool = False
) -> S3Url:
    """Return the parts of an S3 URL; raise InvalidSpec for anything else.

    Args:
        text: The URL.
        keys: Where keys come from, for the error message.
        is_pattern: The path may be a pattern, in which a question mark is any character.

    Example:
        >>> parse_s3_url("s3://bucket/data?endpoint=http://10.0.0.5:9000").endpoint
        'http://10.0.0.5:9000'
    """
    plain, query = [*(_QUERY if is_pattern else _MARK).split(text, maxsplit=1), ""][:2]
    scheme, _, rest = plain.partition("://")
    bucket, _, prefix = rest.partition("/")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if scheme != "s3" or not _BUCKET.fullmatch(bucket.rpartition("@")[2]):
        raise InvalidSpec(f"That is not an S3 URL: give {GRAMMAR}.")
    if options.keys() - {"endpoint", "region"} or "@" in bucket:
        raise InvalidSpec(f"An S3 URL takes only 'endpoint' and 'region'; keys come from {keys}.")
    endpoint, region = options.get("endpoint"), options.get("region")
    if endpoint is not None:
        _check_endpoint(endpoint)
    if region is not None and not _REGION.fullmatch(region):
        raise InvalidSpec(f"{region!r} is not a region.")
    return S3Url(bucket, prefix.strip("/"), endpoint.rstrip("/") if endpoint else None, region)


def _check_endpoint(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise InvalidSpec(
            "The endpoint of an S3 URL is an address such as https://minio.example.org:9000, without user and query."
        )
