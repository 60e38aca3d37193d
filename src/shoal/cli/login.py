"""`shoal login`, `logout`, `signup` and `whoami`."""

from __future__ import annotations

import os
import platform
import re
from typing import TYPE_CHECKING

from shoal.cli.shared.output import out
from shoal.cli.shared.prompt import read_answer, read_secret
from shoal.cli.shared.session import connect, session
from shoal.core.errors import ShoalError, UsageError
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.people import KeyCreated, SessionView, UserView, WorkspaceView


def login(
    *,
    email: str | None = None,
    browser: bool = False,
    key_stdin: bool = False,
    password_stdin: bool = False,
    invitation: str | None = None,
    ca: str | None = None,
    fingerprint: str | None = None,
) -> None:
    """Sign in to a server and remember it for the next commands.

    The password is prompted for and not stored. An API key is created for
    this machine and saved in a file that only you can read. The private local
    server needs no login.

    Without a password, for example if you sign in with Google, use --browser:
    it prints the address of a page that shows a code for this command.

    For example:

      shoal login --url https://shoal.example.org
      shoal login --url https://shoal.example.org --email ada@example.org
      shoal login --url https://shoal.example.org --browser
      shoal login --url https://shoal.example.org --key-stdin < key.txt
      shoal login --url https://10.0.0.5:8443 --fingerprint sha256:4f0c…
      shoal login --invitation https://shoal.example.org/invite/shoali_4f…

    Parameters
    ----------
    email
        E-mail address of your account.
    browser
        Sign in with a code from the console, where any way of signing in works.
    key_stdin
        Use an API key, read from stdin, instead of e-mail and password.
    password_stdin
        Read the password from stdin instead of asking.
    invitation
        Link or code of an invitation to a workspace: join it with your existing account.
    ca
        PEM file of the CA that signed the server's certificate, if this machine does not trust it.
    fingerprint
        Fingerprint of the server's private CA; an admin finds it in `shoal server status`. It is remembered.
    """
    url, code, named = _server_and_code(invitation)
    _trust(url, ca, fingerprint or named)
    if key_stdin:
        key = read_secret("API key", from_stdin=True, option="--key-stdin").strip()
        with _client(url, key) as client:
            user = client.auth.me()
        _remember(url, key, None)
    elif browser:
        user = _by_browser(url)
    else:
        email = email or read_answer("E-mail: ")
        password = read_secret("Password", from_stdin=password_stdin, option="--password-stdin")
        with _client(url, None) as client:
            signed_in = client.auth.sign_in(email, password)
        user = signed_in.user
        _keep_key(url, signed_in)
    joined = join_by(code) if code else None
    told = f"Signed in to {url} as {user.email}." + (f" {_joined_text(joined)}" if joined else "")
    out.show({"url": url, "user": user, "joined": joined}, lambda: out.info(told))


def signup(
    *,
    email: str | None = None,
    name: str = "",
    password_stdin: bool = False,
    setup_code: str | None = None,
    invitation: str | None = None,
    ca: str | None = None,
    fingerprint: str | None = None,
) -> None:
    """Create an account on a server and sign in to it.

    With an invitation to a workspace (`shoal workspace invite`), anyone can
    sign up and becomes a member of it. Without one, the server's settings
    must allow sign-ups. The first account of a shared server becomes its
    admin and needs the setup code, which `shoal server status` shows on the
    server's machine. An admin creates accounts for others in the same way,
    and stays signed in.

    For example:

      shoal signup --invitation https://shoal.example.org/invite/shoali_4f…
      shoal signup --url https://shoal.example.org --email ada@example.org

    Parameters
    ----------
    email
        E-mail address of the account.
    name
        Display name of the person.
    password_stdin
        Read the password (at least 10 characters) from stdin instead of asking.
    setup_code
        Setup code for a server's first account; found automatically on the server's machine.
    invitation
        Link or code of an invitation to a workspace.
    ca
        PEM file of the CA that signed the server's certificate, if this machine does not trust it.
    fingerprint
        Fingerprint of the server's private CA; an admin finds it in `shoal server status`. It is remembered.
    """
    from shoal.client.config import find_target
    from shoal.client.local import local_key

    url, code, named = _server_and_code(invitation)
    _trust(url, ca, fingerprint or named)
    email = email or read_answer("E-mail: ")
    password = read_secret("Password", from_stdin=password_stdin, option="--password-stdin", twice=True)
    layout = Layout()
    # An invited person signs up for themselves, even if someone else is signed in on this machine.
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
        told = f"Created an account for {user.email}. To sign in: {out.prog} login --url {url} --email {user.email}"
    out.show({"url": url, "user": user, "joined": signed_up.joined}, lambda: out.info(told))


def _by_browser(url: str) -> UserView:
    """Sign in with a code that the console shows. The code is a session of two minutes, which ends here."""
    out.info(f"Open {url.rstrip('/')}/settings/terminal in a browser, sign in, and copy the code.")
    code = read_answer("Code: ").strip()
    with _client(url, code) as client:
        user = client.auth.me()
        made = create_own_key(client)
        client.auth.sign_out()
    _remember(url, made.key, made.id)
    return user


def join_by(code: str) -> WorkspaceView:
    """Accept an invitation with the signed-in account and make its workspace the current one."""
    with connect() as client:
        joined = client.auth.join_workspace(code)
    _work_in(joined)
    return joined


def _joined_text(joined: WorkspaceView) -> str:
    return f"You are now {joined.role} of workspace '{joined.name}'. It is your current workspace."


def _work_in(joined: WorkspaceView) -> None:
    """Make a workspace the current one; by id if it is named 'default', as every account has one of that name."""
    from shoal.client.config import ClientConfig

    layout = Layout()
    config = ClientConfig.load(layout)
    config.workspace = joined.id if joined.name == "default" else joined.name
    config.save(layout)


def _server_and_code(invitation: str | None) -> tuple[str, str | None, str | None]:
    """Return the server to sign in to, the invitation's code and the fingerprint of the server's CA that its link names."""
    from shoal.core.invite_links import parse_invite

    if invitation is None:
        return server_to_sign_in_to(), None, None
    invite = parse_invite(invitation)
    session.url = session.url or invite.url
    return server_to_sign_in_to(), invite.code, invite.fingerprint


def _setup_code(layout: Layout, url: str) -> str:
    """Return the setup code if `url` is the server of this data directory, else ''."""
    from shoal.client.local import running_server

    record = running_server(layout)
    if record is None or url.rstrip("/") not in (record.url, record.public_url) or not layout.setup_code.exists():
        return ""
    return layout.setup_code.read_text().strip()


def logout() -> None:
    """Sign out: forget the server and revoke the key that `shoal login` created.

    For example:

      shoal logout
    """
    from shoal.client.config import ClientConfig

    layout = Layout()
    config = ClientConfig.load(layout)
    if not config.url:
        out.show({"url": None}, lambda: out.info("You were not signed in to any server."))
        return
    url, key, key_id = config.url, config.key, config.key_id
    ClientConfig().save(layout)
    if key and key_id:
        try:
            with _client(url, key) as client:
                client.keys.revoke(key_id)
        except ShoalError as error:
            out.warn(f"The key could not be revoked at {url}: {error.message}")
    out.show({"url": url}, lambda: out.info(f"Signed out of {url}."))


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
        ("E-mail", f"{user.email} (verified)" if user.email_verified else user.email),
        ("Name", user.name),
        ("Admin", "yes" if user.is_admin else "no"),
        ("Server", client.url),
        ("Workspace", client.workspace),
    ]
    out.show(found, lambda: out.fields(pairs))


def server_to_sign_in_to() -> str:
    """Return the URL of the given server, else of the remembered one, else of the local one if it is running."""
    from shoal.client.config import find_target, is_loopback
    from shoal.client.local import running_server

    layout = Layout()
    url = find_target(layout, url=session.url).url
    if url is None:
        record = running_server(layout)
        if record is None:
            raise UsageError(
                "No server given. The private local server needs no login; for another one, use --url.",
                hint=f"{out.prog} login --url https://shoal.example.org",
            )
        url = record.url
    if url.startswith("http://") and not is_loopback(url):
        out.warn(f"{url} is not encrypted: others on the network can read your password and key.")
    return url


def _trust(url: str, ca: str | None, fingerprint: str | None) -> None:
    """Accept the certificates of a CA that is given by a file, or fetched from the server and checked by its fingerprint."""
    from shoal.client.config import trust
    from shoal.client.trust import trust_by_fingerprint
    from shoal.core.tls import pem_of

    if ca is not None:
        trust(url, pem_of(ca))
    elif fingerprint is not None and url.startswith("https://"):
        trust_by_fingerprint(url, fingerprint)


def _keep_key(url: str, signed_in: SessionView) -> None:
    """Create an API key for this machine, save it, and end the short-lived session."""
    with _client(url, signed_in.token) as client:
        made = create_own_key(client)
        client.auth.sign_out()
    _remember(url, made.key, made.id)


def create_own_key(client: Client) -> KeyCreated:
    """Create an API key named after this machine."""
    from shoal.core.errors import NameTaken

    base = re.sub(r"[^A-Za-z0-9.-]", "-", platform.node() or "machine")[:40].strip("-.") or "machine"
    for name in (f"cli-{base}", f"cli-{base}-{os.urandom(3).hex()}"):
        try:
            return client.keys.create(name)
        except NameTaken:
            continue
    raise UsageError(f"A key named {name!r} already exists.", hint=f"{out.prog} key list")


def _remember(url: str, key: str, key_id: str | None) -> None:
    from shoal.client.config import ClientConfig, trusted

    layout = Layout()
    old = ClientConfig.load(layout)
    is_same = old.url == url
    ca = trusted(url) or (old.ca if is_same else None)
    ClientConfig(url=url, key=key, key_id=key_id, workspace=old.workspace if is_same else None, ca=ca).save(layout)
    if os.environ.get("SHOAL_API_KEY"):
        out.warn("SHOAL_API_KEY is set and overrides the key just saved.")


def _client(url: str, key: str | None) -> Client:
    from shoal.client import Client

    return Client(url, key)
