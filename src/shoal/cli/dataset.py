"""`shoal dataset`: data for jobs, named, versioned, immutable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from shoal.cli._format import plural, size
from shoal.cli._output import Column, out
from shoal.cli._parse import parse_pairs
from shoal.cli._prompt import confirm
from shoal.cli._session import connect
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.core.datasets import DatasetView

app = App(name="dataset")


@app.command(sort_key=0)
def push(
    name: str,
    /,
    *,
    file: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    empty: bool = False,
    no_unpack: bool = False,
    follow_links: bool = False,
    secret: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    detach: bool = False,
) -> int:
    """Push files as a dataset; a job finds them at /input/NAME.

    Only what the server lacks is sent. After Ctrl-C the same command goes on
    where it stopped. If the name exists with other content, a new version is
    made; the same content again changes nothing.

    A single folder's content is the dataset's, and a single archive (.zip,
    .tar, .tar.gz …) is unpacked. Of several things each keeps its name.

    For example:

      shoal dataset push wikitext --file ./wikitext
      shoal dataset push images --file images.zip
      shoal dataset push corpus --file train.jsonl valid.jsonl
      shoal dataset push c4-part --file s3://bucket/c4/part-1 \\
          --secret AWS_ACCESS_KEY_ID=s3-id --secret AWS_SECRET_ACCESS_KEY=s3-key
      shoal dataset push imdb --file hf://datasets/stanfordnlp/imdb

    Parameters
    ----------
    name
        What to call it; letters, digits, '.', '_' and '-'.
    file
        File, folder or archive (repeatable); or one s3://, hf:// or http(s)://
        URL, which the server fetches by itself.
    empty
        Make a dataset without files.
    no_unpack
        Keep an archive as it is.
    follow_links
        Push what links that leave the folder point to.
    secret
        For a URL: a credential from a secret, as NAME=SECRET (repeatable).
    detach
        For a URL: do not wait until the server has fetched it.
    """
    from shoal.cli._dataset_push import push_files, push_url
    from shoal.cli._dataset_source import split_urls
    from shoal.core.names import check_name

    check_name(name, "dataset name")
    if bool(file) == empty:
        raise UsageError(
            "Say what to push." if not file else "--empty goes without --file.",
            hint=f"{out.prog} dataset push {name} --file PATH (or --empty)",
        )
    paths, url = split_urls(file or [])
    credentials = parse_pairs(secret, "--secret", "NAME=SECRET")
    if url is None and (credentials or detach):
        raise UsageError(f"{'--secret' if credentials else '--detach'} is for URLs that the server fetches.")
    if url is not None:
        return push_url(name, url, credentials, detach=detach)
    return push_files(name, paths, unpack=not no_unpack, follow_links=follow_links)


@app.command(name="list")
def list_datasets(*, all_versions: Annotated[bool, Parameter(name=("--all-versions", "-a"))] = False) -> None:
    """List the datasets of the workspace.

    For example:

      shoal dataset list
      shoal dataset list --all-versions --json

    Parameters
    ----------
    all_versions
        Every version, not only the newest of each dataset.
    """
    with connect() as client:
        found = client.datasets.list()
    shown = found if all_versions else _newest(found)
    columns = [
        Column("NAME", lambda d: d.name),
        Column("VERSION", lambda d: d.version, is_right=True, rank=1),
        Column("STATUS", lambda d: d.status, is_status=True, rank=1),
        Column("FILES", lambda d: d.files, is_right=True, rank=3),
        Column("SIZE", lambda d: size(d.size), is_right=True),
        Column("PUSHED BY", lambda d: d.created_by, rank=4),
        Column("CREATED", lambda d: d.created_at, rank=2),
    ]
    empty = f"No datasets yet. Push one: {out.prog} dataset push NAME --file PATH"
    out.show(shown, lambda: out.table(shown, columns, empty=empty))


@app.command
def inspect(name: str, /, *, files: bool = False) -> None:
    """Show all about a dataset, and its files if asked for.

    For example:

      shoal dataset inspect wikitext
      shoal dataset inspect wikitext@2 --files

    Parameters
    ----------
    name
        NAME for the newest version, NAME@VERSION, or an id.
    files
        List its files too.
    """
    with connect() as client:
        view = client.datasets.get(name)
        listed = list(client.datasets.files(view.id)) if files and view.manifest_id else []
    shown = view.model_dump(mode="json") | ({"file_list": listed} if files else {})

    def page() -> None:
        _print(view)
        if files:
            out.heading("Files")
            out.table(listed, [Column("PATH", lambda f: f.path), Column("SIZE", lambda f: size(f.size), is_right=True)])

    out.show(shown, page)


@app.command
def fetch(
    name: str,
    /,
    *,
    destination: Annotated[Path | None, Parameter(name=("--destination", "-d"))] = None,
    force: bool = False,
) -> None:
    """Download a dataset's files into a folder.

    After Ctrl-C the same command goes on where it stopped. Files that are
    there already with the same content are not fetched again.

    For example:

      shoal dataset fetch wikitext
      shoal dataset fetch wikitext@1 --destination ./old-wikitext

    Parameters
    ----------
    name
        NAME for the newest version, NAME@VERSION, or an id.
    destination
        Folder to write to (default: one of the dataset's name, here).
    force
        Replace files that have other content.
    """
    from shoal.cli._fetching import fetch_with_bar

    with connect() as client:
        view = client.datasets.get(name)
        fetched = fetch_with_bar(client.datasets, view.id, view.size, destination or Path(view.name), force=force)
    result = {"dataset": f"{view.name}@{view.version}", "path": str(fetched.path), "files": fetched.files}
    out.show(result | {"size": fetched.size, "received": fetched.received}, lambda: out.line(str(fetched.path)))
    out.say(
        f"{view.name}@{view.version}: {plural(fetched.files, 'file')}, {size(fetched.size)} "
        f"({size(fetched.received)} received)"
    )


@app.command
def diff(a: str, b: str, /) -> None:
    """Show which files differ between two datasets or versions.

    For example:

      shoal dataset diff wikitext@1 wikitext@2
      shoal dataset diff wikitext@1 wikitext --json

    Parameters
    ----------
    a
        The older one: NAME, NAME@VERSION or id.
    b
        The newer one.
    """
    from shoal.cli._diff import compare, print_diff

    with connect() as client:
        found = compare(client.datasets.manifest(a), client.datasets.manifest(b))
    out.show(found, lambda: print_diff(found))


@app.command
def delete(name: str, /, *, yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False) -> None:
    """Delete a version of a dataset, or with a bare name all of them.

    For example:

      shoal dataset delete wikitext@1
      shoal dataset delete wikitext --yes

    Parameters
    ----------
    name
        NAME for all versions, or NAME@VERSION for one.
    yes
        Do not ask.
    """
    with connect() as client:
        view = client.datasets.get(name)
        versions = [d for d in client.datasets.list() if d.name == view.name]
        what = f"dataset '{name}'" if name != view.name else f"dataset '{name}' ({plural(len(versions), 'version')})"
        if not confirm(f"Delete {what}?", yes=yes):
            out.say("Nothing was deleted.")
            return
        gone = client.datasets.delete(name)
    out.show({"deleted": gone}, lambda: out.say(f"Deleted {plural(gone, 'version')} of '{view.name}'."))


@app.command
def check(name: str, /) -> int:
    """Look for what would hurt a training run; exits with 1 if there is something.

    Empty files; archives, parquet, arrow, json and jsonl files that cannot be
    read (with the line); samples that are in more than one of the train,
    validation and test files.

    For example:

      shoal dataset check wikitext
      shoal dataset check wikitext@2 --json

    Parameters
    ----------
    name
        NAME for the newest version, NAME@VERSION, or an id.
    """
    from shoal.cli._dataset_check import check_dataset, print_findings

    with connect() as client:
        view = client.datasets.get(name)
        findings = check_dataset(client, view)
    out.show(findings, lambda: print_findings(view, findings))
    return 1 if findings.problems else 0


def _newest(found: list[DatasetView]) -> list[DatasetView]:
    """Of each name the newest version that can be used, and a newer one that cannot (yet)."""
    shown: list[DatasetView] = []
    for name in dict.fromkeys(d.name for d in found):
        versions = sorted((d for d in found if d.name == name), key=lambda d: -d.version)
        usable = next((d for d in versions if d.status == "available"), None)
        if versions[0] is not usable:
            shown.append(versions[0])
        if usable is not None:
            shown.append(usable)
    return shown


def _print(view: DatasetView) -> None:
    origin = dict(view.origin)
    where = " ".join(filter(None, [origin.pop("kind", ""), origin.pop("url", "") or origin.pop("path", "")]))
    out.fields(
        [
            ("Dataset", f"{view.name}@{view.version}"),
            ("Status", str(view.status)),
            ("Fetched", _fetched(view)),
            ("Error", view.error),
            ("Id", view.id),
            ("Files", view.files),
            ("Size", f"{size(view.size)} ({view.size} bytes)"),
            ("From", where),
            ("Notes", origin.get("notes")),
            ("Pushed by", view.created_by),
            ("Created", view.created_at),
            ("Available", view.available_at),
            ("In a job", f"/input/{view.name} with --dataset {view.name}"),
        ]
    )


def _fetched(view: DatasetView) -> str | None:
    """How far an import is."""
    if view.status != "importing" or not view.origin.get("progress"):
        return None
    done, total = (int(view.origin.get(key) or 0) for key in ("progress", "total"))
    return f"{size(done)} of {size(total)}" if total else size(done)
