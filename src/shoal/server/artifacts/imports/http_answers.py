"""Reading of HTTP responses: whether they are a file, and its length, version and name."""

from __future__ import annotations

import re
from email.message import Message
from urllib.parse import unquote

import httpx

from shoal.core.artifacts import check_path
from shoal.core.errors import InvalidSpec, Refused
from shoal.server.artifacts.imports.partial_file import PartFile
from shoal.server.ssrf_guard import display_url
from shoal.store.pack import Progress

_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_COMPRESSED = re.compile(r"\.(gz|tgz|bz2|tbz2|xz|txz|zst|br|z)$", re.I)


class BadStatus(Refused):
    """The server answered with an error status."""

    def __init__(self, url: httpx.URL, status: int, headers: httpx.Headers):
        self.status, self.headers = status, headers
        texts = {
            401: f"{display_url(url)} asks to sign in (401).",
            403: f"{display_url(url)} refuses access to this server (403).",
            404: f"There is nothing at {display_url(url)} (404).",
            410: f"There is nothing at {display_url(url)} any more (410).",
        }
        super().__init__(texts.get(status, f"{display_url(url)} answered with status {status}."))


class Later(Exception):
    """The same request may succeed later."""

    def __init__(self, text: str, wait_s: float | None = None):
        super().__init__(text)
        self.wait_s = wait_s


def check_status(response: httpx.Response, target: httpx.URL) -> None:
    status = response.status_code
    if status in _LATER:
        after = response.headers.get("retry-after", "")
        raise Later(f"it answered with status {status}", float(after) if re.fullmatch(r"\d{1,6}", after) else None)
    if status == 416 or (status == 206 and "content-range" not in response.headers):
        return  # checked by `continues`
    if status not in (200, 206):
        raise BadStatus(target, status, response.headers)


def continues(response: httpx.Response, part: PartFile, report: Progress) -> bool:
    """Check whether a response continues the partial file. Status 200 means that the file changed or ranges are unsupported."""
    if response.status_code == 200:
        return False
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("content-range", ""))
    fits = (
        match is not None
        and response.status_code == 206
        and part.offset > 0
        and part.version is not None
        and int(match[1]) == part.offset
        and (match[2] == "*" or part.total in (None, int(match[2])))
        and response.headers.get("etag", part.version) == part.version
    )
    if not fits:
        report(-part.offset)
        part.start(version=None, total=None)
        raise Later("it answered with another range than requested")
    if match is not None and match[2] != "*":
        part.total = int(match[2])
    return True


def length_of(response: httpx.Response, target: httpx.URL) -> int | None:
    """Return the announced length of a complete body; None if it is sent with chunked encoding."""
    if response.status_code != 200:
        raise Later(f"it answered with status {response.status_code}")
    demand_framing(response, target)
    length = response.headers.get("content-length", "")
    return int(length) if length.isdigit() and "transfer-encoding" not in response.headers else None


def demand_framing(response: httpx.Response, target: httpx.URL) -> None:
    if "content-length" not in response.headers and "transfer-encoding" not in response.headers:
        raise Refused(
            f"{display_url(target)} does not announce its length, so an incomplete download could not be detected."
        )


def strong_etag(response: httpx.Response) -> str | None:
    etag = response.headers.get("etag", "")
    return etag if re.fullmatch(r'"[!#-~]*"', etag) else None


def facts_of(response: httpx.Response, target: httpx.URL) -> dict[str, str]:
    name = _file_name(response, target)
    coding = response.headers.get("content-encoding", "identity").lower()
    if coding not in ("identity", "") and not _COMPRESSED.search(name):
        raise Refused(f"{display_url(target)} is sent compressed ({coding}) although the request did not allow it.")
    return {"name": name, "type": response.headers.get("content-type", "").partition(";")[0].strip().lower()}


def _file_name(response: httpx.Response, target: httpx.URL) -> str:
    header = Message()
    header["content-disposition"] = response.headers.get("content-disposition", "")
    for name in (header.get_filename(), unquote(target.path).rstrip("/").rpartition("/")[2]):
        try:
            return check_path((name or "").replace("\\", "/").rpartition("/")[2])
        except (InvalidSpec, UnicodeError):
            continue
    return "data"
