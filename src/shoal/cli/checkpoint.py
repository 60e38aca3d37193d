"""`shoal checkpoint`: what training leaves behind, kept and carried."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shoal.cli._checkpoint import called, export_url, facts_of, folder_name, print_checkpoint
from shoal.cli._format import plural, size
from shoal.cli._output import Column, out
from shoal.cli._parse import parse_pairs
from shoal.cli._prompt import confirm
from shoal.cli._session import connect
from shoal.cli.training_checkpoints import COLUMNS

app = App(name="checkpoint")


@app.command(name="list")
def list_checkpoints(*, job: str | None = None) -> None:
    """List the checkpoints of the workspace, oldest first.

    For example:

      shoal checkpoint list
      shoal checkpoint list --job hello

    Parameters
    ----------
    job
        Only this job's.
    """
    with connect() as client:
        found = client.checkpoints.list(job)
    columns = [
        COLUMNS[0],
        Column("JOB", lambda c: c.job),
        *COLUMNS[1:],
        Column("KEPT", lambda c: "yes" if c.kept else "", rank=4),
    ]
    empty = (
        f"No checkpoints yet. Jobs write them to /output-checkpoint; or: {out.prog} checkpoint push NAME --file PATH"
    )
    out.show(found, lambda: out.table(found, columns, empty=empty))


@app.command
def inspect(checkpoint: str, /, *, files: bool = False) -> None:
    """Show all about a checkpoint, and its files if asked for.

    For example:

      shoal checkpoint inspect ckpt_01k9zzzzzzzzzzzzzzzzzzzzzz
      shoal checkpoint inspect hello/checkpoint-500 --files

    Parameters
    ----------
    checkpoint
        Its id, the name it was pushed under, or JOB/NAME.
    files
        List its files too.
    """
    with connect() as client:
        view = client.checkpoints.get(checkpoint)
        listed = [{"path": f.path, "size": f.size} for f in client.checkpoints.manifest(view.id).files] if files else []
    shown = view.model_dump(mode="json") | ({"file_list": listed} if files else {})

    def page() -> None:
        print_checkpoint(view)
        if files:
            out.heading("Files")
            columns = [Column("PATH", lambda f: f["path"]), Column("SIZE", lambda f: size(f["size"]), is_right=True)]
            out.table(listed, columns)

    out.show(shown, page)


@app.command
def fetch(
    checkpoint: str,
    /,
    *,
    destination: Annotated[Path | None, Parameter(name=("--destination", "-d"))] = None,
    force: bool = False,
) -> None:
    """Download a checkpoint's files into a folder.

    After Ctrl-C the same command goes on where it stopped.

    For example:

      shoal checkpoint fetch ckpt_01k9zzzzzzzzzzzzzzzzzzzzzz --destination ./checkpoint
      shoal checkpoint fetch hello/checkpoint-500

    Parameters
    ----------
    checkpoint
        Its id, the name it was pushed under, or JOB/NAME.
    destination
        Folder to write to (default: one of the checkpoint's name, here).
    force
        Replace files that have other content.
    """
    from shoal.cli._fetching import fetch_with_bar

    with connect() as client:
        view = client.checkpoints.get(checkpoint)
        target = destination or Path(folder_name(view))
        fetched = fetch_with_bar(client.checkpoints, view.id, view.size, target, force=force)
    result = {"checkpoint": view.id, "path": str(fetched.path), "files": fetched.files, "size": fetched.size}
    out.show(result | {"received": fetched.received}, lambda: out.line(str(fetched.path)))
    out.say(
        f"{called(view)}: {plural(fetched.files, 'file')}, {size(fetched.size)} ({size(fetched.received)} received)"
    )


@app.command
def push(name: str, /, *, file: Annotated[list[str], Parameter(consume_multiple=True)]) -> None:
    """Bring a checkpoint from elsewhere, to start jobs from with --checkpoint NAME.

    Step, losses and model are read from Hugging Face's files where they are.

    For example:

      shoal checkpoint push gpt2-base --file ./gpt2
      shoal checkpoint push mine --file model.safetensors config.json

    Parameters
    ----------
    name
        What to call it. Of several with one name, the newest is used.
    file
        Folder, files or archive (repeatable). An archive alone is unpacked.
    """
    from shoal.cli._dataset_source import gather
    from shoal.cli._fetching import CONTINUES
    from shoal.cli._transfer import TransferBar
    from shoal.core.names import check_name

    check_name(name, "checkpoint name")
    with gather([Path(f) for f in file]) as gathered, connect() as client:
        facts = facts_of({e.path: Path(e.disk) for e in gathered.entries})
        with TransferBar("Pushing", gathered.size, on_interrupt=CONTINUES) as bar:
            view = client.checkpoints.push(name, gathered.entries, facts, bar.add)

    def tell() -> None:
        out.line(view.id)
        out.say(f"Checkpoint '{name}': {plural(view.files, 'file')}, {size(view.size)}.")
        out.dim(f"  {out.prog} training run NAME --checkpoint {name} -- train.py")

    out.show(view, tell)


@app.command
def export(
    checkpoint: str,
    /,
    *,
    destination_path: str,
    storage_provider: str | None = None,
    secret: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
) -> None:
    """Have the server write a checkpoint's files to an S3-compatible place.

    Doing it again writes only what is not there yet.

    For example:

      shoal checkpoint export hello/checkpoint-500 --destination-path s3://bucket/models/hello \\
          --secret AWS_ACCESS_KEY_ID=s3-id --secret AWS_SECRET_ACCESS_KEY=s3-key
      shoal checkpoint export hello/checkpoint-500 --destination-path models/hello \\
          --storage-provider https://minio.example.org:9000
      shoal checkpoint export hello/checkpoint-500 --destination-path /mnt/models/hello

    Parameters
    ----------
    checkpoint
        Its id, the name it was pushed under, or JOB/NAME.
    destination_path
        s3://BUCKET/PREFIX, BUCKET/PREFIX with --storage-provider, or on a
        private server a folder of its machine.
    storage_provider
        s3, the https:// address of another S3-compatible service, or folder.
    secret
        A credential from a secret, as NAME=SECRET (repeatable).
    """
    destination = export_url(destination_path, storage_provider)
    credentials = parse_pairs(secret, "--secret", "NAME=SECRET")
    with connect() as client:
        done = client.checkpoints.export(checkpoint, destination, credentials)
    files, total = int(str(done.get("files", 0))), int(str(done.get("bytes", 0)))
    out.show(done, lambda: out.line(str(done.get("destination", destination))))
    out.say(f"Exported {plural(files, 'file')}, {size(total)}.")


@app.command
def diff(a: str, b: str, /) -> None:
    """Show which files differ between two checkpoints, and in safetensors which tensors.

    For example:

      shoal checkpoint diff hello/checkpoint-500 hello/checkpoint-1000
      shoal checkpoint diff gpt2-base hello/checkpoint-500 --json

    Parameters
    ----------
    a
        The older one: id, pushed name, or JOB/NAME.
    b
        The newer one.
    """
    from shoal.cli._diff import compare, compare_tensors, print_diff

    with connect() as client:
        old, new = client.checkpoints.manifest(a), client.checkpoints.manifest(b)
        found = compare(old, new)
        compare_tensors(found, old, new, client.checkpoints.open)
    out.show(found, lambda: print_diff(found))


@app.command
def keep(checkpoint: str, /, *, undo: bool = False) -> None:
    """Keep a checkpoint whatever --keep-last and --keep-best say.

    For example:

      shoal checkpoint keep hello/checkpoint-500
      shoal checkpoint keep hello/checkpoint-500 --undo

    Parameters
    ----------
    checkpoint
        Its id, the name it was pushed under, or JOB/NAME.
    undo
        No longer.
    """
    with connect() as client:
        view = client.checkpoints.keep(checkpoint, keep=not undo)
    word = "may be removed again by retention" if undo else "is kept"
    out.show(view, lambda: out.say(f"Checkpoint {called(view)} {word}."))


@app.command
def delete(checkpoint: str, /, *, yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False) -> None:
    """Delete a checkpoint.

    For example:

      shoal checkpoint delete hello/checkpoint-500
      shoal checkpoint delete gpt2-base --yes

    Parameters
    ----------
    checkpoint
        Its id, the name it was pushed under, or JOB/NAME.
    yes
        Do not ask.
    """
    with connect() as client:
        view = client.checkpoints.get(checkpoint)
        if not confirm(f"Delete checkpoint {called(view)} ({size(view.size)})?", yes=yes):
            out.say("Nothing was deleted.")
            return
        client.checkpoints.delete(view.id)
    out.show({"deleted": view.id}, lambda: out.say(f"Checkpoint {called(view)} deleted."))
