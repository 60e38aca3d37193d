"""`shoal checkpoint`: list, fetch, push, consolidate, export, compare and delete checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shoal.cli.checkpoint.consolidate import consolidate
from shoal.cli.checkpoint.show import called, export_url, facts_of, folder_name, print_checkpoint
from shoal.cli.shared.format import plural, size
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.parse import parse_pairs
from shoal.cli.shared.prompt import confirm
from shoal.cli.shared.session import connect
from shoal.cli.training.checkpoints import COLUMNS

app = App(name="checkpoint")
app.command(consolidate)


@app.command(name="list")
def list_checkpoints(*, job: str | None = None) -> None:
    """List the checkpoints of the workspace, oldest first.

    For example:

      shoal checkpoint list
      shoal checkpoint list --job hello

    Parameters
    ----------
    job
        Show only checkpoints of this job.
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
    """Show the details of a checkpoint, and optionally its files.

    For example:

      shoal checkpoint inspect ckpt_01k9zzzzzzzzzzzzzzzzzzzzzz
      shoal checkpoint inspect hello/checkpoint-500 --files

    Parameters
    ----------
    checkpoint
        Id, pushed name, or JOB/NAME of the checkpoint.
    files
        Also list the files.
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

    After Ctrl-C, run the same command again to continue.

    For example:

      shoal checkpoint fetch ckpt_01k9zzzzzzzzzzzzzzzzzzzzzz --destination ./checkpoint
      shoal checkpoint fetch hello/checkpoint-500

    Parameters
    ----------
    checkpoint
        Id, pushed name, or JOB/NAME of the checkpoint.
    destination
        Folder to write to (default: a folder named after the checkpoint, in the current folder).
    force
        Overwrite existing files that differ.
    """
    from shoal.cli.shared.fetching import fetch_with_bar

    with connect() as client:
        view = client.checkpoints.get(checkpoint)
        target = destination or Path(folder_name(view))
        fetched = fetch_with_bar(client.checkpoints, view.id, view.size, target, force=force)
    result = {"checkpoint": view.id, "path": str(fetched.path), "files": fetched.files, "size": fetched.size}
    out.show(result | {"received": fetched.received}, lambda: out.line(str(fetched.path)))
    out.info(
        f"{called(view)}: {plural(fetched.files, 'file')}, {size(fetched.size)} ({size(fetched.received)} received)"
    )


@app.command
def push(name: str, /, *, file: Annotated[list[str], Parameter(consume_multiple=True)]) -> None:
    """Upload a checkpoint, to start jobs from it with --checkpoint NAME.

    Step, losses and model are read from Hugging Face's files if there are any.

    For example:

      shoal checkpoint push gpt2-base --file ./gpt2
      shoal checkpoint push mine --file model.safetensors config.json

    Parameters
    ----------
    name
        Name of the checkpoint. If several have the same name, the newest is used.
    file
        Folder, file or archive (repeatable). A single archive is unpacked.
    """
    from shoal.cli.dataset.source import gather
    from shoal.cli.shared.fetching import CONTINUES
    from shoal.cli.shared.transfer import TransferBar
    from shoal.core.names import check_name

    check_name(name, "checkpoint name")
    with gather([Path(f) for f in file]) as gathered, connect() as client:
        facts = facts_of({e.path: Path(e.disk) for e in gathered.entries})
        with TransferBar("Pushing", gathered.size, on_interrupt=CONTINUES) as bar:
            view = client.checkpoints.push(name, gathered.entries, facts, bar.add)

    def show() -> None:
        out.line(view.id)
        out.info(f"Checkpoint '{name}': {plural(view.files, 'file')}, {size(view.size)}.")
        out.dim(f"  {out.prog} training run NAME --checkpoint {name} -- train.py")

    out.show(view, show)


@app.command
def export(
    checkpoint: str,
    /,
    *,
    destination_path: str,
    storage_provider: str | None = None,
    secret: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
) -> None:
    """Let the server write a checkpoint's files to S3-compatible storage, the Hugging Face Hub or a folder.

    Running it again writes only missing files. A repository of the Hub that
    does not exist is created, private; all files arrive in one commit.

    For example:

      shoal checkpoint export hello/checkpoint-500 --destination-path s3://bucket/models/hello \\
          --secret AWS_ACCESS_KEY_ID=s3-id --secret AWS_SECRET_ACCESS_KEY=s3-key
      shoal checkpoint export hello/checkpoint-500 --destination-path models/hello \\
          --storage-provider https://minio.example.org:9000
      shoal checkpoint export hello/checkpoint-500 --destination-path /mnt/models/hello
      shoal checkpoint export hello/checkpoint-500 --destination-path hf://me/hello --secret HF_TOKEN=hf-token

    Parameters
    ----------
    checkpoint
        Id, pushed name, or JOB/NAME of the checkpoint.
    destination_path
        s3://BUCKET/PREFIX, or BUCKET/PREFIX with --storage-provider;
        hf://ORG/NAME[@REVISION][/FOLDER]; on a private server also a folder on
        its machine.
    storage_provider
        Kind of storage: s3, the https:// URL of another S3-compatible service, or folder.
    secret
        A credential from a secret, as NAME=SECRET (repeatable).
    """
    destination = export_url(destination_path, storage_provider)
    credentials = parse_pairs(secret, "--secret", "NAME=SECRET")
    with connect() as client:
        done = client.checkpoints.export(checkpoint, destination, credentials)
    files, total = int(str(done.get("files", 0))), int(str(done.get("bytes", 0)))
    out.show(done, lambda: out.line(str(done.get("destination", destination))))
    out.info(f"Exported {plural(files, 'file')}, {size(total)}.")


@app.command
def diff(a: str, b: str, /) -> None:
    """Show which files differ between two checkpoints, and which tensors of safetensors files.

    For example:

      shoal checkpoint diff hello/checkpoint-500 hello/checkpoint-1000
      shoal checkpoint diff gpt2-base hello/checkpoint-500 --json

    Parameters
    ----------
    a
        Id, pushed name, or JOB/NAME of the older checkpoint.
    b
        The newer checkpoint.
    """
    from shoal.cli.shared.tree_diff import compare, compare_tensors, print_diff

    with connect() as client:
        old, new = client.checkpoints.manifest(a), client.checkpoints.manifest(b)
        found = compare(old, new)
        compare_tensors(found, old, new, client.checkpoints.open)
    out.show(found, lambda: print_diff(found))


@app.command
def keep(checkpoint: str, /, *, undo: bool = False) -> None:
    """Protect a checkpoint from automatic deletion by --keep-last and --keep-best.

    For example:

      shoal checkpoint keep hello/checkpoint-500
      shoal checkpoint keep hello/checkpoint-500 --undo

    Parameters
    ----------
    checkpoint
        Id, pushed name, or JOB/NAME of the checkpoint.
    undo
        Remove the protection.
    """
    with connect() as client:
        view = client.checkpoints.keep(checkpoint, keep=not undo)
    word = "can be deleted by the retention rules again" if undo else "is protected from automatic deletion"
    out.show(view, lambda: out.info(f"Checkpoint {called(view)} {word}."))


@app.command
def delete(checkpoint: str, /, *, yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False) -> None:
    """Delete a checkpoint.

    For example:

      shoal checkpoint delete hello/checkpoint-500
      shoal checkpoint delete gpt2-base --yes

    Parameters
    ----------
    checkpoint
        Id, pushed name, or JOB/NAME of the checkpoint.
    yes
        Do not ask.
    """
    with connect() as client:
        view = client.checkpoints.get(checkpoint)
        if not confirm(f"Delete checkpoint {called(view)} ({size(view.size)})?", yes=yes):
            out.info("Nothing was deleted.")
            return
        client.checkpoints.delete(view.id)
    out.show({"deleted": view.id}, lambda: out.info(f"Checkpoint {called(view)} deleted."))
