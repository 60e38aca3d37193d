"""Connection to a workspace of a server, from which everything else is reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shoal.api.checkpoints import Checkpoint
from shoal.api.datasets import Dataset
from shoal.api.frames import Table
from shoal.api.jobs import Job
from shoal.api.runs import Runs
from shoal.api.sweeps import Sweep
from shoal.client import Client
from shoal.core.errors import InvalidSpec

if TYPE_CHECKING:
    from shoal.core.jobs import JobSpec, MachineView

Entry = str | Sequence[str]


def connect(url: str | None = None, *, key: str | None = None, workspace: str | None = None) -> Workspace:
    """Connect to a server as the commands do: the one given, else that of SHOAL_URL or `shoal login`, else your private one.

    The private server of this machine is started if it is not running.

    Args:
        url: Address of the server; `#sha256:…` at its end names its private CA.
        key: API key; default: SHOAL_API_KEY, or the one of `shoal login`.
        workspace: Name or id of the workspace; default: the current one.

    Returns:
        The workspace. Close it, or use it as a context manager.

    Example:
        >>> space = shoal.connect()
        >>> space.run("train.py --lr 3e-4", accels=2).wait().status
        'succeeded'
    """
    from shoal.client.connect import connect as client_of

    return Workspace(client_of(url=url, workspace=workspace, key=key))


class Workspace:
    """A workspace of a server: its jobs, runs, sweeps, checkpoints and datasets. Made by `shoal.connect`.

    `client` has every route of the server, for what these methods do not offer.
    """

    def __init__(self, client: Client):
        self.client = client

    @property
    def name(self) -> str:
        """Name (or id) of the workspace."""
        return self.client.workspace

    @property
    def url(self) -> str:
        """Address of the server."""
        return self.client.url

    def run(
        self,
        entry: Entry,
        *,
        name: str | None = None,
        folder: str | Path = ".",
        nodes: int | tuple[int, int] = 1,
        accels: int = 1,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        datasets: Sequence[str] = (),
        time_limit: str | None = None,
        replace: bool = False,
        **more: Any,
    ) -> Job:
        """Send the code of a folder and submit a job that runs a script of it.

        Args:
            entry: Script and arguments: "train.py --lr 3e-4", or a list of words.
            name: Name of the job; default: one is made up. If a job has it already, the new one is numbered.
            folder: Folder of the code, without what .gitignore and .shoalignore list.
            nodes: Number of nodes, or the least and the most of them.
            accels: Slots per node; each runs a worker.
            env: Environment variables.
            secrets: Environment variable → name of a secret of the workspace.
            datasets: Names of datasets, each mounted at /input/NAME.
            time_limit: Maximum run time: "90s", "30m", "8h".
            replace: Delete the finished job of that name first.
            **more: Other fields of a job's specification, such as `device="cpu"`, `checkpoint=…`, `priority=1`,
                `after=["preprocess"]` (jobs that must have succeeded before).

        Returns:
            The job; it waits in the queue until slots are free.

        Example:
            >>> space.run("train.py --lr 3e-4", nodes=2, accels=4, time_limit="8h")
            Job(brisk-herring-42, queued)
        """
        from shoal.api.code import send_folder, words_of
        from shoal.client.job_names import create_job, free_name

        least, most = (nodes, nodes) if isinstance(nodes, int) else nodes
        size = {"min_nodes": least, "max_nodes": most, "accels": accels}
        given = {"env": dict(env or {}), "secrets": dict(secrets or {}), "datasets": list(datasets)}
        spec = job_spec(words_of(entry), name, **size, **given, time_limit=time_limit, **more)
        spec.source_id = send_folder(self.client, Path(folder), spec.entry)
        if name is not None and not replace:
            spec.name = free_name(self.client, name)
        return Job(self.client, create_job(self.client, spec, replace=replace))

    def sweep_over(
        self,
        entry: Entry,
        params: Mapping[str, Any],
        *,
        name: str | None = None,
        metric: str = "eval/loss",
        direction: str = "min",
        search: str | None = None,
        trials: int | None = None,
        parallel: int = 1,
        folder: str | Path = ".",
        accels: int = 1,
        **more: Any,
    ) -> Sweep:
        """Send the code of a folder and try many parameter values, each as a job.

        Args:
            entry: Script and arguments; each trial adds its values as `--name value`.
            params: Parameter → list of values, or a range as text: "1e-5:1e-2:log", "64:512".
            name: Name of the sweep; default: one is made up.
            metric: Metric that ranks the trials, as the script reports it.
            direction: 'min' or 'max'.
            search: grid, random, tpe, asha or hyperband; default: grid, or tpe if a parameter is a range.
            trials: Largest number of trials; needed unless it is a grid.
            parallel: Number of trials at the same time.
            folder: Folder of the code.
            accels: Slots of each trial.
            **more: Other fields of a job's specification.

        Returns:
            The sweep.

        Example:
            >>> sweep = space.sweep_over("train.py", {"lr": [1e-3, 3e-3]}, metric="loss")
            >>> sweep.wait().best.params
            {'lr': 0.003}
        """
        from shoal.api.code import send_folder, words_of
        from shoal.core.sweeps import SweepSpec
        from shoal.tune.space import read_axis

        job = job_spec(words_of(entry), name, accels=accels, **more)
        space = {key: read_axis(key, value) for key, value in params.items()}
        method = search or ("tpe" if any(axis.kind == "between" for axis in space.values()) else "grid")
        given = {"search": method, "metric": metric, "direction": direction, "trials": trials, "parallel": parallel}
        spec = _checked(SweepSpec, {"name": job.name, "job": job, "space": space, **given})
        spec.job.source_id = send_folder(self.client, Path(folder), job.entry)
        return Sweep(self.client, self.client.sweeps.create(spec))

    def jobs(self, *, status: str | None = None, search: str | None = None, limit: int | None = None) -> Table[Job]:
        """Return jobs, newest first.

        Args:
            status: Only those in this state.
            search: Only those whose name contains this.
            limit: Largest number of jobs.

        Returns:
            A list, which `frame()` makes a data frame.

        Example:
            >>> [job.name for job in space.jobs(status="running")]
            ['first']
        """
        found = self.client.jobs.list(status=status, search=search, limit=limit)
        return Table(Job(self.client, one) for one in found)

    def job(self, name: str) -> Job:
        """Return the job of this name or id.

        Args:
            name: Name or id.

        Example:
            >>> space.job("first").status
        """
        return Job(self.client, name)

    def runs(self, query: str = "", *, columns: Sequence[str] = (), sort: str = "", limit: int = 100) -> Runs:
        """Return the runs that a query matches.

        Args:
            query: Conditions on facts, parameters and metrics: `lr>1e-4 tag:ablation status:failed loss.min<2`.
            columns: Values to return: parameters, or metrics with `.last`, `.min`, `.max`.
            sort: Column to sort by, with `-` in front for descending order.
            limit: Largest number of runs.

        Returns:
            The runs, which `frame()` makes a data frame.

        Example:
            >>> space.runs("tag:ablation", columns=["lr", "loss.min"], sort="loss.min").frame()
        """
        return Runs(self.client, self.client.runs.query(query, sort=sort, columns=columns, limit=limit))

    def sweeps(self) -> Table[Sweep]:
        """Return the sweeps, newest first.

        Example:
            >>> space.sweeps().frame()
        """
        return Table(Sweep(self.client, one) for one in self.client.sweeps.list())

    def sweep(self, name: str) -> Sweep:
        """Return the sweep of this name or id.

        Args:
            name: Name or id.

        Example:
            >>> space.sweep("lr").best
        """
        return Sweep(self.client, name)

    def checkpoints(self) -> Table[Checkpoint]:
        """Return all checkpoints of the workspace, oldest first.

        Example:
            >>> space.checkpoints().frame().sort_values("eval_loss")
        """
        return Table(Checkpoint(self.client, one) for one in self.client.checkpoints.list())

    def checkpoint(self, name: str) -> Checkpoint:
        """Return a checkpoint by its id, the name it was pushed under, or JOB/NAME.

        Args:
            name: Id or name.

        Example:
            >>> space.checkpoint("first/step-500").download()
        """
        return Checkpoint(self.client, self.client.checkpoints.get(name))

    def datasets(self) -> Table[Dataset]:
        """Return the newest versions of all datasets.

        Example:
            >>> space.datasets().frame()
        """
        return Table(Dataset(self.client, one) for one in self.client.datasets.list())

    def dataset(self, name: str) -> Dataset:
        """Return a dataset by NAME, NAME@VERSION or id.

        Args:
            name: Name or id.

        Example:
            >>> space.dataset("reviews@3").download()
        """
        return Dataset(self.client, self.client.datasets.get(name))

    def push_dataset(self, name: str, path: str | Path) -> Dataset:
        """Upload a file or folder as a new version of a dataset. Only what the server does not have is sent.

        Args:
            name: Name of the dataset.
            path: File or folder.

        Returns:
            The new version, or the newest one if nothing has changed.

        Example:
            >>> space.push_dataset("reviews", "data/reviews")
            Dataset(reviews@1, 12 files, 84.1 MB)
        """
        from shoal.store.pack import pack_files, pack_tree

        packed = pack_tree(Path(path), ignore=False) if Path(path).is_dir() else pack_files([Path(path)])
        return Dataset(self.client, self.client.datasets.push(name, packed).dataset)

    def machines(self) -> list[MachineView]:
        """Return the machines of the pool with their slots.

        Example:
            >>> [(machine.name, machine.slots_free) for machine in space.machines()]
        """
        return self.client.machines.capacity().machines

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Workspace({self.name} of {self.url})"


def job_spec(words: list[str], name: str | None, *, time_limit: str | None = None, **given: Any) -> JobSpec:
    """Return the checked specification of a job whose source is not sent yet. Without a name one is made up."""
    from shoal.client.job_names import speakable_name
    from shoal.core.durations import parse_duration
    from shoal.core.jobs import JobSpec

    if time_limit is not None:
        given["time_limit_s"] = int(parse_duration(time_limit, "time_limit"))
    wanted = {"name": name or speakable_name(), "entry": words, "source_id": "", **given}
    checked: JobSpec = _checked(JobSpec, wanted)
    return checked


def _checked(schema: type[Any], given: dict[str, Any]) -> Any:
    """Return the object; raise InvalidSpec that names the field and what is wrong with it."""
    from pydantic import ValidationError

    try:
        return schema.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        known = f" Fields: {', '.join(schema.model_fields)}." if first["type"] == "extra_forbidden" else ""
        raise InvalidSpec(f"{where}: {str(first['msg']).removeprefix('Value error, ')}.{known}") from None
