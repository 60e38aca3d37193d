"""Push of checkpoints to the Hugging Face Hub, `hf://ORG/NAME[@REVISION][/FOLDER]`, by Hugging Face's own client.

The repository is created, private, if it does not exist. All files arrive in one commit, or none does.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from shoal.core.artifacts import Manifest, check_path
from shoal.core.errors import Forbidden, InvalidSpec, MissingExtra, NotFound, Refused, ShoalError, Unreachable
from shoal.server.artifacts.imports.hub import hub_endpoint
from shoal.server.artifacts.imports.partial_file import check_room
from shoal.server.context import Context
from shoal.server.ssrf_guard import Stopped
from shoal.store.materialize import materialize

TOKEN = "HF_TOKEN"
_URL = re.compile(r"hf://(?:models/)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/@]+))?(?:/(?P<folder>.*))?")


class HubTarget(NamedTuple):
    """Place in a model repository of the Hub."""

    repo: str
    revision: str
    folder: str
    """Folder in the repository; empty for its root."""

    @property
    def display_url(self) -> str:
        return f"hf://{self.repo}@{self.revision}/{self.folder}".rstrip("/")


def parse_hub_target(text: str) -> HubTarget:
    """Return the place that a URL names; raise InvalidSpec for anything else."""
    match = _URL.fullmatch(text)
    if match is None or text.startswith("hf://datasets/") or any(set(p) == {"."} for p in match["repo"].split("/")):
        raise InvalidSpec(f"{text!r} is not a model of the Hub: give hf://ORG/NAME[@REVISION][/FOLDER].")
    folder = (match["folder"] or "").strip("/")
    if folder:
        check_path(folder)
    return HubTarget(match["repo"], unquote(match["revision"] or "main"), folder)


def check_client() -> None:
    """Raise MissingExtra if Hugging Face's client is not installed here."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "hf:// destinations need a package that is missing on the server.", hint="pip install huggingface_hub"
        ) from error


def check_token(credentials: dict[str, str]) -> None:
    """Raise InvalidSpec unless the only credential is HF_TOKEN."""
    if others := sorted(credentials.keys() - {TOKEN}):
        raise InvalidSpec(f"For the Hub, {TOKEN} is the only credential, not {', '.join(others)}.")


def hub_writer(ctx: Context, target: HubTarget, keys: dict[str, str]) -> Callable[[Manifest, dict[str, str]], str]:
    """Return the function that pushes the files of a manifest. A private server may use its own HF_TOKEN."""
    token = keys.get(TOKEN) or (os.environ.get(TOKEN) if ctx.private else None)
    if not token:
        raise InvalidSpec(
            "The Hub needs a token that may write.",
            hint=f"shoal secret create hf-token, then: --secret {TOKEN}=hf-token",
        )
    return lambda manifest, digests: _push(ctx, target, token, manifest)


def _push(ctx: Context, target: HubTarget, token: str, manifest: Manifest) -> str:
    hub: Any = import_module("huggingface_hub")
    api = hub.HfApi(endpoint=hub_endpoint(), token=token, library_name="shoal")
    with tempfile.TemporaryDirectory(prefix="hub-", dir=ctx.layout.server_dir) as name, _hub_errors(target):
        folder = Path(name)
        check_room(folder / "x", manifest.size)
        materialize(manifest, ctx.store.get, folder, verify=False, merge=True)
        before = f"{target.folder}/" if target.folder else ""
        files = [hub.CommitOperationAdd(f"{before}{file.path}", folder / file.path) for file in manifest.files]
        api.create_repo(target.repo, private=True, exist_ok=True)
        if target.revision != "main":
            api.create_branch(target.repo, branch=target.revision, exist_ok=True)
        for file in files:  # one by one, so that a server that stops need not wait for all of them
            if ctx.live.closing:
                raise Stopped
            api.preupload_lfs_files(target.repo, [file], revision=target.revision, free_memory=False)
        api.create_commit(target.repo, files, commit_message="Checkpoint pushed by Shoal", revision=target.revision)
    return target.display_url


@contextmanager
def _hub_errors(target: HubTarget) -> Iterator[None]:
    """Convert the errors of Hugging Face's client, which wraps some of them in errors of other kinds."""
    try:
        yield
    except (ShoalError, Stopped):
        raise
    except Exception as error:
        raise _as_ours(target, error) from error


def _as_ours(target: HubTarget, error: BaseException) -> ShoalError:
    kind: Any = import_module("huggingface_hub.errors").HfHubHTTPError
    found: Any = error
    while found is not None and not isinstance(found, kind):
        found = found.__cause__ or found.__context__
    said = (getattr(found, "server_message", None) or str(found or error)).strip().partition("\n")[0][:300]
    status = found.response.status_code if found is not None and found.response is not None else 0
    if status in (401, 403):
        return Forbidden(f"The Hub refused the token for {target.repo}: {said}")
    if status == 404:
        return NotFound(f"The Hub has no {target.repo}, or the token may not see it: {said}")
    if 400 <= status < 500 and status != 429:
        return Refused(f"The Hub refused the files for {target.repo}: {said}")
    return Unreachable(f"The push to the Hub failed: {said}")
