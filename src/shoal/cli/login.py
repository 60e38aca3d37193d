"""`shoal login`, `logout`, `signup` and `whoami`."""

from __future__ import annotations

import os
import platform
import re
from typing import TYPE_CHECKING

from shoal.cli._output import out
from shoal.cli._prompt import ask, ask_secret
from shoal.cli._session import connect, session
from shoal.core.errors import ShoalError, UsageError
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.people import SessionView, WorkspaceView


def login(
    *,
    email: str | None = None,
    key_stdin: bool = False,
    password_stdin: bool = False,
    invitation: str | None = None,
) -> None:
    """Sign in to a server and remember it for the next commands.

    The password is prompted for; what is kept (readable by you only) is an
    API key made for this machine. The private local server needs no login.

    For example:

      shoal login --url https://shoal.example.org
      shoal login --url https://shoal.example.org --email ada@example.org
      shoal login --url https://shoal.example.org --key-stdin < key.txt
      shoal login --invitation https://shoal.example.org/invite/shoali_4f…

    Parameters
    ----------
    email
        The address you signed up with.
    key_stdin
        Use an API key, read from stdin, instead of e-mail and password.
    password_stdin
        Read the password from stdin instead of asking.
    invitation
        The link of an invitation to a workspace, or its code: join with the account you have.
    """
    url, code = _server_and_code(invitation)
    if key_stdin:
        key = ask_secret("API key", from_stdin=True, option="--key-stdin").strip()
        with _client(url, key) as client:
            user = client.auth.me()
        _remember(url, key, None)
    else:
        email = email or ask("E-mail: ")
        password = ask_secret("Password", from_stdin=password_stdin, option="--password-stdin")
        with _client(url, None) as client:
            signed_in = client.auth.sign_in(email, password)
        user = signed_in.user
        _keep_key(url, signed_in)
    joined = join_by(code) if code else None
    told = f"Signed in to {url} as {user.email}." + (f" {_joined_text(joined)}" if joined else "")
    out.show({"url": url, "user": user, "joined": joined}, lambda: out.say(told))


def signup(
    *,
    email: str | None = None,
    name: str = "",
    password_stdin: bool = False,
    setup_code: str | None = None,
    invitation: str | None = None,
) -> None:
    """Make an account on a server and sign in to it.

    With an invitation to a workspace (`shoal workspace invite`) anyone can
    sign up, and is a member of it. Without one, a server takes sign-ups if
    its settings allow them; the first account of a shared server is its
    admin, and needs the setup code that `shoal server status` shows there.
    An admin makes accounts for others in the same way, and stays signed in
    as themselves.

    For example:

      shoal signup --invitation https://shoal.example.org/invite/shoali_4f…
      shoal signup --url https://shoal.example.org --email ada@example.org

    Parameters
    ----------
    email
        The account's address.
    name
        How others see them.
    password_stdin
        Read the password (at least 10 characters) from stdin instead of asking.
    setup_code
        For a server's first account; on the server's own machine it is found by itself.
    invitation
        The link of an invitation to a workspace, or its code.
    """
    from shoal.client.config import find_target
    from shoal.client.local import local_key

    url, code = _server_and_code(invitation)
    email = email or ask("E-mail: ")
    password = ask_secret("Password", from_stdin=password_stdin, option="--password-stdin", twice=True)
    layout = Layout()
    # Who is invited signs up for themselves, whoever is signed in on this machine.
    key = None if code else find_target(layout, url=url).key or local_key(layout, url)
    with _client(url, key) as client:
        signed_up = client.auth.sign_up(
            email, password, name, setup_code=setup_code or _setup_code(layout, url), invitation=code or ""
        )
    user = signed_up.user
    if key is None:
        _keep_key(url, signed_up)
        told = f"Welcome, {user.name or user.email}. You are signed in to {url}."
        if signed_up.joined is not None:
            _work_in(signed_up.joined)
            told += f" {_joined_text(signed_up.joined)}"
    else:
        with _client(url, signed_up.token) as client:
            client.auth.sign_out()
        told = f"Made an account for {user.email}. They sign in with: {out.prog} login --url {url} --email {user.email}"
    out.show({"url": url, "user": user, "joined": signed_up.joined}, lambda: out.say(told))


def join_by(code: str) -> WorkspaceView:
    """Use an invitation with the account that is signed in, and work in its workspace from now on."""
    with connect() as client:
        joined = client.auth.join_workspace(code)
    _work_in(joined)
    return joined


def _joined_text(joined: WorkspaceView) -> str:
    return f"You are now {joined.role} of workspace '{joined.name}', which the next commands use."


def _work_in(joined: WorkspaceView) -> None:
    """Switch by id: everyone has a workspace named 'default' of their own."""
    from shoal.client.config import ClientConfig

    layout = Layout()
    config = ClientConfig.load(layout)
    config.workspace = joined.id if joined.name == "default" else joined.name
    config.save(layout)


def _server_and_code(invitation: str | None) -> tuple[str, str | None]:
    """The server to sign in to, and the code of an invitation if there is one; a link names its server."""
    from shoal.core.invite_links import parse_invite

    if invitation is None:
        return _server_to_sign_in_to(), None
    url, code = parse_invite(invitation)
    session.url = session.url or url
    return _server_to_sign_in_to(), code


def _setup_code(layout: Layout, url: str) -> str:
    """Of the server of this data directory, if that is the one."""
    from shoal.client.local import running_server

    record = running_server(layout)
    if record is None or record.url.rstrip("/") != url.rstrip("/") or not layout.setup_code.exists():
        return ""
    return layout.setup_code.read_text().strip()


def logout() -> None:
    """Forget the server and revoke the key that `shoal login` made.

    For example:

      shoal logout
    """
    from shoal.client.config import ClientConfig

    layout = Layout()
    config = ClientConfig.load(layout)
    if not config.url:
        out.show({"url": None}, lambda: out.say("You were not signed in anywhere."))
        return
    url, key, key_id = config.url, config.key, config.key_id
    ClientConfig().save(layout)
    if key and key_id:
        try:
            with _client(url, key) as client:
                client.keys.revoke(key_id)
        except ShoalError as error:
            out.warn(f"The key could not be revoked at {url}: {error.message}")
    out.show({"url": url}, lambda: out.say(f"Signed out of {url}."))


def whoami() -> None:
    """Show who you are, on which server and in which workspace.

    For example:

      shoal whoami
      shoal whoami --json
    """
    with connect() as client:
        user = client.auth.me()
        found = {"user": user, "url": client.url, "workspace": client.workspace}
    pairs = [
        ("E-mail", user.email),
        ("Name", user.name),
        ("Admin", "yes" if user.is_admin else "no"),
        ("Server", client.url),
        ("Workspace", client.workspace),
    ]
    out.show(found, lambda: out.fields(pairs))


def _server_to_sign_in_to() -> str:
    """As given, else the one signed in to before, else the local one, which has to be running."""
    from shoal.client.config import find_target, is_loopback
    from shoal.client.local import running_server

    layout = Layout()
    url = find_target(layout, url=session.url).url
    if url is None:
        record = running_server(layout)
        if record is None:
            raise UsageError(
                "Say which server: the private local one needs no login.",
                hint=f"{out.prog} login --url https://shoal.example.org",
            )
        url = record.url
    if url.startswith("http://") and not is_loopback(url):
        out.warn(f"{url} is not encrypted: others on the network can read your password and key.")
    return url


def _keep_key(url: str, signed_in: SessionView) -> None:
    """Trade the short-lived session for a key of this machine."""
    from shoal.core.errors import NameTaken

    base = re.sub(r"[^A-Za-z0-9.-]", "-", platform.node() or "machine")[:40].strip("-.") or "machine"
    with _client(url, signed_in.token) as client:
        for name in (f"cli-{base}", f"cli-{base}-{os.urandom(3).hex()}"):
            try:
                made = client.keys.create(name)
                break
            except NameTaken:
                continue
        else:
            raise UsageError(f"A key named {name!r} exists already.", hint=f"{out.prog} key list")
        client.auth.sign_out()
    _remember(url, made.key, made.id)


def _remember(url: str, key: str, key_id: str | None) -> None:
    from shoal.client.config import ClientConfig

    layout = Layout()
    old = ClientConfig.load(layout)
    ClientConfig(url=url, key=key, key_id=key_id, workspace=old.workspace if old.url == url else None).save(layout)
    if os.environ.get("SHOAL_API_KEY"):
        out.warn("SHOAL_API_KEY is set and goes before the key just saved.")


def _client(url: str, key: str | None) -> Client:
    from shoal.client import Client

    return Client(url, key)
