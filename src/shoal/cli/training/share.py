"""`shoal training share`: write a job as one HTML file to send to others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from shoal.cli.shared.format import size
from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect
from shoal.core.errors import UsageError


def share(
    job: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    force: bool = False,
) -> None:
    """Write a job as one HTML file that opens in any browser, without a server or network.

    It contains the charts, settings, config, code, pictures, the list of
    checkpoints and the end of the log, as they are now. It does not contain
    values of the workspace's secrets, names of people, or paths.

    For example:

      shoal training share hello
      shoal training share hello -o run.html
      shoal training share hello -o ./reports/ --force

    Parameters
    ----------
    job
        The job's name or id.
    output
        File to write, or folder for it (default: JOB.html in the current folder).
    force
        Overwrite an existing file.
    """
    from shoal.cli.shared.atomic_file import refuse_existing, whole_file
    from shoal.cli.shared.transfer import TransferBar

    with connect() as client:
        name = client.jobs.get(job).name
        target = _target(output, name)
        refuse_existing(target, "-o FILE", force=force)
        bar = TransferBar("Saving", 0, on_interrupt="Nothing was written.")
        with bar, client.jobs.shared(job) as (total, pieces), whole_file(target) as file:
            bar.expect(total)
            for piece in pieces:
                file.write(piece)
                bar.add(len(piece))
    written = target.stat().st_size
    out.show({"path": str(target), "size": written}, lambda: out.line(str(target)))
    if not out.json:
        out.info(f"  {size(written)}, opens in any browser")


def _target(output: Path | None, name: str) -> Path:
    target = output or Path(f"{name}.html")
    if target.is_dir():
        target = target / f"{name}.html"
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent}.", hint=f"mkdir -p {target.parent}")
    return target
