"""`shoal notify`: rules for notifications, and what they have told."""

from __future__ import annotations

from cyclopts import App

from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_duration
from shoal.cli.shared.session import connect
from shoal.core.errors import UsageError
from shoal.core.notices import Channel, NoticeKind, RuleSave, RuleView

app = App(name="notify")


@app.command
def add(
    kind: NoticeKind,
    /,
    *,
    jobs: str = "",
    metric: str = "",
    value: str | None = None,
    email: bool = False,
    webhook: str | None = None,
    slack: str | None = None,
    discord: str | None = None,
    shared: bool = False,
) -> None:
    """Add a rule. What it matches is always shown in the console; channels send it elsewhere, too.

    Prints the secret that signs its webhooks once. A webhook that does not
    answer with 2xx is tried again, four times within 72 minutes.

    For example:

      shoal notify add job_failed --email
      shoal notify add metric_above --metric loss --value 10 --jobs "pretrain-*" --slack https://hooks.slack.com/services/…
      shoal notify add lease_ending --value 30m --email
      shoal notify add job_ended --webhook https://ci.example.org/shoal --shared

    Parameters
    ----------
    kind
        What to be told of.
    jobs
        Only jobs with this name; * stands for any text.
    metric
        Metric to watch.
    value
        Limit of the metric; share of the budget (0.8); time before the end of a rented machine (30m).
    email
        Send it by e-mail: to you, or with --shared to all members.
    webhook
        URL to which it is posted as JSON, with a signature.
    slack
        URL of a Slack webhook.
    discord
        URL of a Discord webhook.
    shared
        Make it a rule of the workspace, which tells all its members.
    """
    given: list[tuple[str, str | None]] = [("webhook", webhook), ("slack", slack), ("discord", discord)]
    channels = [{"type": "email", "to": ""}] if email else []
    channels += [{"type": name, "to": url} for name, url in given if url]
    limit = None if value is None else _number(kind, value)
    try:
        rule = RuleSave(
            kind=kind, jobs=jobs, metric=metric, value=limit, channels=[Channel.model_validate(c) for c in channels], shared=shared
        )  # fmt: skip
    except ValueError as error:
        text = str(error).split("Value error, ")[-1].split(" [type")[0].strip()
        raise UsageError(f"{text[:1].upper()}{text[1:]}.", hint=f"{out.prog} notify add --help") from None
    with connect() as client:
        made = client.notices.add(rule)
    out.show(made, lambda: _print_made(made.rule, made.secret))


@app.command(name="list")
def list_() -> None:
    """List your rules in this workspace, and those that it shares.

    For example:

      shoal notify list
      shoal notify list --json
    """
    with connect() as client:
        rules = client.notices.list()
    columns = [
        Column("ID", lambda r: r.id),
        Column("KIND", lambda r: r.kind),
        Column("JOBS", lambda r: r.jobs or "all", rank=2),
        Column("LIMIT", lambda r: " ".join(str(v) for v in (r.metric, r.value) if v not in ("", None)), rank=1),
        Column("SENT BY", lambda r: ", ".join(dict.fromkeys(c.type for c in r.channels)) or "console"),
        Column("FOR", lambda r: "workspace" if r.shared else r.created_by, rank=3),
        Column("LAST SENT", lambda r: r.last_sent_at, rank=4),
        Column("PROBLEM", lambda r: r.last_error or "", rank=1),
    ]
    out.show(rules, lambda: out.table(rules, columns, empty=f"No rules. Add one: {out.prog} notify add job_failed"))


@app.command
def remove(rule: str, /) -> None:
    """Delete a rule.

    For example:

      shoal notify remove rule_01h8x

    Parameters
    ----------
    rule
        Id of the rule; `notify list` shows it.
    """
    with connect() as client:
        client.notices.remove(rule)
    out.show({"removed": rule}, lambda: out.info("Deleted."))


@app.command
def test(rule: str, /) -> None:
    """Send a test through all channels of a rule; `notify list` shows whether it arrived.

    For example:

      shoal notify test rule_01h8x

    Parameters
    ----------
    rule
        Id of the rule; `notify list` shows it.
    """
    with connect() as client:
        client.notices.test(rule)
    out.show({"tested": rule}, lambda: out.info(f"Sent. Whether it arrived: {out.prog} notify list"))


@app.command
def inbox(*, read: bool = False) -> None:
    """Show your newest notices, of all workspaces.

    For example:

      shoal notify inbox
      shoal notify inbox --read

    Parameters
    ----------
    read
        Mark them as read.
    """
    with connect() as client:
        found = client.notices.inbox()
        if read:
            client.notices.mark_read()
    columns = [
        Column("TIME", lambda n: n.at),
        Column("NOTICE", lambda n: n.title),
        Column("TEXT", lambda n: n.text, rank=1),
        Column("NEW", lambda n: "" if n.read else "new", rank=2),
    ]
    out.show(found, lambda: out.table(found.notices, columns, empty="No notices."))


def _number(kind: str, text: str) -> float:
    try:
        return parse_duration(text, "--value") if kind == "lease_ending" else float(text)
    except ValueError:
        raise UsageError(f"--value {text}: give a number.", hint="--value 10") from None


def _print_made(rule: RuleView, secret: str) -> None:
    out.info(f"Rule {rule.id} added.")
    if any(channel.type == "webhook" for channel in rule.channels):
        out.info("Secret that signs its webhooks; it is not shown again:")
        out.line(secret)
    if rule.channels:
        out.info(f"Try it: {out.prog} notify test {rule.id}")
