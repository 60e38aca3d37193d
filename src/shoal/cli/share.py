"""`shoal training share`: a job as one file to send to somebody."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from shoal.cli._format import size
from shoal.cli._output import out
from shoal.cli._session import connect
from shoal.core.errors import UsageError


def share(
    job: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    force: bool = False,
) -> None:
    """Write a job as one HTML file that opens in any browser, without a server or a network.

    In it are the charts, settings, config, code, pictures, list of
    checkpoints and the end of the log, as they are now. Values of the
    workspace's secrets, people and paths are left out.

    For example:

      shoal training share hello
      shoal training share hello -o run.html
      shoal training share hello -o ./reports/ --force

    Parameters
    ----------
    job
        The job's name or id.
    output
        File to write, or folder to write it to (default: JOB.html here).
    force
        Replace a file that is there already.
    """
    from shoal.cli._transfer import TransferBar
    from shoal.cli._whole import refuse_existing, whole_file

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
        out.say(f"  {size(written)}, opens in any browser")


def _target(output: Path | None, name: str) -> Path:
    target = output or Path(f"{name}.html")
    if target.is_dir():
        target = target / f"{name}.html"
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent}.", hint=f"mkdir -p {target.parent}")
    return target
