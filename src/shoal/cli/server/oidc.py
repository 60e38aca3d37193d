"""`shoal server oidc`: the services that people may sign in with, such as Google."""

from __future__ import annotations

from functools import partial

from cyclopts import App

from shoal.cli.shared.output import Column, out
from shoal.cli.shared.prompt import confirm, read_secret
from shoal.core.settings import Layout

app = App(name="oidc", help="Sign-in with Google, Microsoft or another OpenID Connect issuer.")


@app.command
def add(
    name: str,
    /,
    *,
    client_id: str,
    issuer: str = "",
    tenant: str = "",
    title: str = "",
    domain: list[str] | None = None,
    trust_email: bool = False,
    secret_stdin: bool = False,
    public: bool = False,
) -> None:
    """Let people sign in with a service. It works at once, without a restart.

    First register Shoal with the issuer, as a web application with the
    redirect URI that this command prints: https://SERVER/sign-in/callback/NAME.
    The issuer gives you a client id and a client secret, which is asked for.

    Existing accounts can then be connected on the page Settings. A new person
    needs an invitation, or an address of one of the domains.

    For example:

      shoal server oidc add google --client-id 123.apps.googleusercontent.com --domain example.org
      shoal server oidc add microsoft --tenant 72f9… --client-id 4d1c… --trust-email --domain example.org
      shoal server oidc add company --issuer https://id.example.org --client-id shoal --title "Example SSO"

    Parameters
    ----------
    name
        Name in the redirect URI. The issuer of 'google' is known, and that of 'microsoft' with --tenant.
    client_id
        Client id that the issuer gave to this server.
    issuer
        URL of the issuer, as it names itself.
    tenant
        Id of your Microsoft tenant.
    title
        Name of the service on buttons.
    domain
        Domain of e-mail addresses; people who have one get an account at their first sign-in. Can be repeated.
    trust_email
        Accept addresses that the issuer does not declare as verified; only if nobody can choose their address there.
    secret_stdin
        Read the client secret from stdin instead of asking.
    public
        There is no client secret.
    """
    from shoal.server.people.oidc.protocol import Issuers
    from shoal.server.people.oidc.services import Services, make

    plan = partial(make, name, issuer=issuer, tenant=tenant, client_id=client_id, title=title, domains=domain,
                   trust_email=trust_email)  # fmt: skip
    plan()  # errors before the secret is typed
    secret = "" if public else read_secret("Client secret", from_stdin=secret_stdin, option="--secret-stdin").strip()
    service = plan(client_secret=secret)
    Issuers().endpoints(service)
    layout = Layout()
    Services(layout.sign_in_services).save(service)
    _record(layout, f"oidc {service.name}: {service.issuer}")
    back = _redirect_uri(layout, service.name)
    facts = {"name": service.name, "issuer": service.issuer, "redirect_uri": back}
    out.show(facts, lambda: out.info(f"People can sign in with {service.title}. Redirect URI for the issuer: {back}"))


@app.command(name="list")
def list_services() -> None:
    """List the sign-in services of this server, without their secrets.

    For example:

      shoal server oidc list
    """
    from shoal.server.people.oidc.services import Services

    layout = Layout()
    found = Services(layout.sign_in_services).list()
    rows = [
        {
            "name": one.name,
            "title": one.title,
            "issuer": one.issuer,
            "client_id": one.client_id,
            "domains": list(one.domains),
            "trust_email": one.trust_email,
            "redirect_uri": _redirect_uri(layout, one.name),
        }
        for one in found
    ]
    columns = [
        Column("NAME", lambda row: row["name"]),
        Column("ISSUER", lambda row: row["issuer"]),
        Column("CLIENT ID", lambda row: row["client_id"], rank=3),
        Column("DOMAINS", lambda row: ", ".join(row["domains"]) or "by invitation", rank=1),
        Column("REDIRECT URI", lambda row: row["redirect_uri"], rank=2),
    ]
    out.show(rows, lambda: out.table(rows, columns))


@app.command
def remove(name: str, /, *, yes: bool = False) -> None:
    """Remove a sign-in service. Accounts and sessions remain; adding it again connects the same accounts.

    For example:

      shoal server oidc remove google

    Parameters
    ----------
    name
        Name of the service.
    yes
        Do not ask for confirmation.
    """
    from shoal.server.people.oidc.services import Services

    layout = Layout()
    services = Services(layout.sign_in_services)
    service = services.get(name)
    if not confirm(f"Remove {service.title}? People without a password can then no longer sign in.", yes=yes):
        return
    services.remove(name)
    _record(layout, f"oidc {name} removed")
    out.show({"removed": name}, lambda: out.info(f"{service.title} is removed."))


def _record(layout: Layout, detail: str) -> None:
    from shoal.core.audit import AuditAction
    from shoal.server.audit.record import record_locally

    if layout.database.exists():
        record_locally(layout.database, AuditAction.SETTINGS_CHANGE, "sign-in services", detail=detail)


def _redirect_uri(layout: Layout, name: str) -> str:
    from shoal.client.local import running_server

    record = running_server(layout)
    url = (record.public_url or record.url) if record is not None else "https://SERVER"
    return f"{url.rstrip('/')}/sign-in/callback/{name}"
