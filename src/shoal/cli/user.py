"""`shoal user`: accounts of the server, for its admins; and `shoal password`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from cyclopts import App

from shoal.cli.shared.output import Column, out
from shoal.cli.shared.prompt import confirm, read_answer, read_secret
from shoal.cli.shared.session import connect

if TYPE_CHECKING:
    from shoal.core.admin import AccountView

app = App(name="user")
_RANDOM_BYTES = 12


@app.command
def add(email: str, /, *, name: str = "", admin: bool = False, password_stdin: bool = False) -> None:
    """Create an account for another person, with a random password that is printed once.

    It works even if sign-up is closed. To let people choose their own
    password, send them an invitation instead: `shoal workspace invite`.

    For example:

      shoal user add ada@example.org --name Ada
      shoal user add root@example.org --admin --password-stdin < password.txt

    Parameters
    ----------
    email
        E-mail address of the account.
    name
        Display name of the person.
    admin
        Make the person an admin of the server.
    password_stdin
        Read the password (at least 10 characters) from stdin instead of making one.
    """
    password = _given_or_random(password_stdin)
    with connect() as client:
        account = client.users.add(email, password, name, admin=admin)
        url = client.url
    _show_with_password(account, password, password_stdin, f"Created an account for {account.email}.", url)


@app.command(name="list")
def list_accounts() -> None:
    """List all accounts of the server.

    For example:

      shoal user list
      shoal user list --json
    """
    with connect() as client:
        accounts = client.users.list()
    columns = [
        Column("E-MAIL", lambda a: a.email),
        Column("STATE", _state),
        Column("NAME", lambda a: a.name, rank=1),
        Column("WORKSPACES", lambda a: a.workspaces, is_right=True, rank=3),
        Column("JOBS", lambda a: a.jobs, is_right=True, rank=2),
        Column("CREATED", lambda a: a.created_at, rank=4),
    ]
    out.show(accounts, lambda: out.table(accounts, columns))


@app.command
def disable(email: str, /, *, yes: bool = False) -> None:
    """Disable an account: its sessions and leases end, and its keys are refused. Its jobs keep running.

    For example:

      shoal user disable ada@example.org

    Parameters
    ----------
    email
        E-mail address or id of the account.
    yes
        Do not ask for confirmation.
    """
    if not confirm(f"Disable the account of {email}? Sessions and leases end now.", yes=yes):
        return
    _change(email, f"The account of {email} is disabled. To undo: {out.prog} user enable {email}", disabled=True)


@app.command
def enable(email: str, /) -> None:
    """Enable an account that was disabled. Its sessions and leases do not come back.

    For example:

      shoal user enable ada@example.org

    Parameters
    ----------
    email
        E-mail address or id of the account.
    """
    _change(email, f"The account of {email} is enabled.", disabled=False)


@app.command
def promote(email: str, /) -> None:
    """Make a person an admin of the server.

    For example:

      shoal user promote ada@example.org

    Parameters
    ----------
    email
        E-mail address or id of the account.
    """
    _change(email, f"{email} is now an admin of this server.", admin=True)


@app.command
def demote(email: str, /) -> None:
    """Remove a person's admin rights. The last admin keeps them.

    For example:

      shoal user demote ada@example.org

    Parameters
    ----------
    email
        E-mail address or id of the account.
    """
    _change(email, f"{email} is no longer an admin of this server.", admin=False)


@app.command
def reset(email: str, /, *, password_stdin: bool = False) -> None:
    """Set a new password for a person who has lost theirs, print it once, and end all their sessions.

    For example:

      shoal user reset ada@example.org

    Parameters
    ----------
    email
        E-mail address or id of the account.
    password_stdin
        Read the new password (at least 10 characters) from stdin instead of making one.
    """
    password = _given_or_random(password_stdin)
    with connect() as client:
        account = client.users.reset_password(email, password)
        url = client.url
    said = f"{account.email} has a new password; all their sessions are closed."
    _show_with_password(account, password, password_stdin, said, url)


def password(*, stdin: bool = False, lost: bool = False, code: bool = False, email: str | None = None) -> None:
    """Change your own password. All your other sessions are closed.

    If you have lost it, --lost has a mail sent to you, and --code sets a new
    password with the code from that mail. An admin can help too: shoal user reset.

    For example:

      shoal password
      printf '%s\\n' "$OLD" "$NEW" | shoal password --stdin
      shoal password --lost --url https://shoal.example.org --email ada@example.org
      shoal password --code --url https://shoal.example.org

    Parameters
    ----------
    stdin
        Read two lines from stdin instead of asking: the old password (with --code: the code) and the new one.
    lost
        Have a mail with a code sent to the address of your account.
    code
        Set a new password with the code from a mail.
    email
        Address of your account, for --lost.
    """
    from shoal.core.errors import UsageError

    if lost:
        _have_code_sent(email)
        return
    first = "Code from the mail" if code else "Present password"
    if stdin:
        lines = read_secret("Two lines", from_stdin=True, option="--stdin").splitlines()
        if len(lines) != 2:
            raise UsageError(
                f"stdin has {len(lines)} lines; it needs two: the {'code' if code else 'old'} and the new password."
            )
        old, new = lines
    else:
        old = read_secret(first, from_stdin=False, option="--stdin")
        new = read_secret("New password", from_stdin=False, option="--stdin", twice=True)
    if code:
        from shoal.cli.login import server_to_sign_in_to
        from shoal.client import Client

        with Client(server_to_sign_in_to(), None) as client:
            client.auth.recover(old.strip(), new)
        out.show(
            {"changed": True},
            lambda: out.info(f"Your password is set, and all sessions are closed. Next: {out.prog} login"),
        )
        return
    with connect() as client:
        client.auth.change_password(old, new)
    out.show({"changed": True}, lambda: out.info("Your password is changed. Your other sessions are closed."))


def _have_code_sent(email: str | None) -> None:
    from shoal.cli.login import server_to_sign_in_to
    from shoal.client import Client

    url = server_to_sign_in_to()
    email = email or read_answer("E-mail: ")
    with Client(url, None) as client:
        client.auth.send_reset(email)
    told = f"If there is an account for {email}, a mail with a code is on its way. Next: {out.prog} password --code --url {url}"
    out.show({"sent": True}, lambda: out.info(told))


def _given_or_random(from_stdin: bool) -> str:
    if from_stdin:
        return read_secret("Password", from_stdin=True, option="--password-stdin")
    return secrets.token_urlsafe(_RANDOM_BYTES)


def _show_with_password(account: AccountView, password: str, was_given: bool, said: str, url: str) -> None:
    """Print the account; and the password, if it was made here, to stdout so that it can be piped on."""
    shown = account.model_dump(mode="json") | ({} if was_given else {"password": password})

    def page() -> None:
        out.info(said)
        if not was_given:
            out.line(password)
            out.info("This password is not shown again. It can be changed with: shoal password")
        out.dim(f"  {out.prog} login --url {url} --email {account.email}")

    out.show(shown, page)


def _change(email: str, said: str, *, admin: bool | None = None, disabled: bool | None = None) -> None:
    with connect() as client:
        account = client.users.change(email, admin=admin, disabled=disabled)
    out.show(account, lambda: out.info(said))


def _state(account: AccountView) -> str:
    if account.disabled_at is not None:
        return "disabled"
    return "admin" if account.is_admin else "active"
