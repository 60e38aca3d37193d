"""`shoal dataset`: named, versioned, immutable data for jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from shoal.cli.shared.format import plural, size
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_pairs
from shoal.cli.shared.prompt import confirm
from shoal.cli.shared.session import connect
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
    """Upload files as a dataset; jobs find them at /input/NAME.

    Only data that the server does not have is sent. After Ctrl-C, run the same
    command again to continue. If the name exists with other content, a new
    version is created; pushing the same content again changes nothing.

    With a single folder, its content becomes the dataset. A single archive
    (.zip, .tar, .tar.gz, .tar.bz2 or .tar.xz) is unpacked. Several paths keep
    their names.

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
        Name of the dataset: letters, digits, '.', '_' and '-'.
    file
        File, folder or archive (repeatable); or one s3://, hf:// or http(s)://
        URL, which the server fetches.
    empty
        Create a dataset without files.
    no_unpack
        Do not unpack an archive.
    follow_links
        Include the targets of symbolic links that point outside the folder.
    secret
        Credential for a URL, from a secret: NAME=SECRET (repeatable).
    detach
        Do not wait until the server has fetched a URL.
    """
    from shoal.cli.dataset.push import push_files, push_url
    from shoal.cli.dataset.source import split_urls
    from shoal.core.names import check_name

    check_name(name, "dataset name")
    if bool(file) == empty:
        raise UsageError(
            "Nothing to push." if not file else "--empty and --file cannot be combined.",
            hint=f"{out.prog} dataset push {name} --file PATH (or --empty)",
        )
    paths, url = split_urls(file or [])
    credentials = parse_pairs(secret, "--secret", "NAME=SECRET")
    if url is None and (credentials or detach):
        raise UsageError(f"{'--secret' if credentials else '--detach'} works only with a URL that the server fetches.")
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
        List every version, not only the newest of each dataset.
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
    """Show the details of a dataset, and optionally its files.

    For example:

      shoal dataset inspect wikitext
      shoal dataset inspect wikitext@2 --files

    Parameters
    ----------
    name
        NAME for the newest version, NAME@VERSION, or an id.
    files
        Also list the files.
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

    After Ctrl-C, run the same command again to continue. Files that exist
    with the same content are not downloaded again.

    For example:

      shoal dataset fetch wikitext
      shoal dataset fetch wikitext@1 --destination ./old-wikitext

    Parameters
    ----------
    name
        NAME for the newest version, NAME@VERSION, or an id.
    destination
        Folder to write to (default: a folder named after the dataset, in the current folder).
    force
        Overwrite existing files that differ.
    """
    from shoal.cli.shared.fetching import fetch_with_bar

    with connect() as client:
        view = client.datasets.get(name)
        fetched = fetch_with_bar(client.datasets, view.id, view.size, destination or Path(view.name), force=force)
    result = {"dataset": f"{view.name}@{view.version}", "path": str(fetched.path), "files": fetched.files}
    out.show(result | {"size": fetched.size, "received": fetched.received}, lambda: out.line(str(fetched.path)))
    out.info(
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
        NAME, NAME@VERSION or id of the older version.
    b
        The newer version.
    """
    from shoal.cli.shared.tree_diff import compare, print_diff

    with connect() as client:
        found = compare(client.datasets.manifest(a), client.datasets.manifest(b))
    out.show(found, lambda: print_diff(found))


@app.command
def delete(name: str, /, *, yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False) -> None:
    """Delete one version of a dataset, or all versions.

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
            out.info("Nothing was deleted.")
            return
        gone = client.datasets.delete(name)
    out.show({"deleted": gone}, lambda: out.info(f"Deleted {plural(gone, 'version')} of '{view.name}'."))


@app.command
def check(name: str, /) -> int:
    """Check a dataset for problems that would disturb training; exit 1 if there are any.

    Reports empty files; archives, parquet, arrow, csv, json and jsonl files
    that cannot be read (with the line); and samples that are in more than one
    of the train, validation and test splits.

    For example:

      shoal dataset check wikitext
      shoal dataset check wikitext@2 --json

    Parameters
    ----------
    name
        NAME for the newest version, NAME@VERSION, or an id.
    """
    from shoal.cli.dataset.check import check_dataset, print_findings

    with connect() as client:
        view = client.datasets.get(name)
        findings = check_dataset(client, view)
    out.show(findings, lambda: print_findings(view, findings))
    return 1 if findings.problems else 0


def _newest(found: list[DatasetView]) -> list[DatasetView]:
    """Return, for each name, the newest available version, and before it a newer one that is not available (yet)."""
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
    """Return the progress of a running import, such as "1.2 GiB of 3.0 GiB"; None otherwise."""
    if view.status != "importing" or not view.origin.get("progress"):
        return None
    done, total = (int(view.origin.get(key) or 0) for key in ("progress", "total"))
    return f"{size(done)} of {size(total)}" if total else size(done)
